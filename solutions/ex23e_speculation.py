"""ex23e · Speculation: keep a drafted token, or draw another one

A small model has drafted k tokens, one after another; token i was drawn from its distribution q[i].
Then one pass of the large model has given its distributions p[0] to p[k], where p[i] follows the
first i drafted tokens. From left to right, each drafted token x is kept with the probability
min(1, p[i, x] / q[i, x]). The first one that is not kept ends it: it and all later ones are
dropped. Then one more token is drawn, so that each pass yields at least one.

num_kept(p, q, drafted, uniform)     how many drafted tokens are kept, an int from 0 to k
    uniform[i] is a random number, 0 <= uniform[i] < 1: token i is kept if uniform[i] < p / q
next_probabilities(p, q, kept)       the distribution of the one more token, (vocabulary,)
    kept == k    p[k]
    kept < k     max(p[kept] - q[kept], 0), divided by its sum

    p         (k + 1, vocabulary) float64; each row adds up to 1, and may hold zeros
    q         (k, vocabulary) float64, the same; q[i, drafted[i]] > 0
    drafted   list of k ints; k may be 0

About 4 lines each. p and q are not written.
"""

import numpy as np

### KIND: fill a loop
### HINT 1: Take a vocabulary of two tokens, p = (0.5, 0.5) and q = (0.9, 0.1). How often is token
### HINT 1: 0 drafted and kept? Which token must the others become?
### HINT 2: Leave the loop at the first i with uniform[i] * q[i, x] >= p[i, x]: the number kept is
### HINT 2: i. A product needs no division.
### HINT 3: rest = np.maximum(p[kept] - q[kept], 0); return rest / rest.sum().
### DEBRIEF: Why exact: token x comes out by being kept, with q(x) min(1, p/q) = min(q(x), p(x));
### DEBRIEF: or after a rejection, which has the probability 1 - sum min(p, q) = sum max(p - q, 0),
### DEBRIEF: the same sum that `rest` is divided by: max(p(x) - q(x), 0). Together: p(x). So the
### DEBRIEF: text has the large model's distribution, however bad the draft is; a bad draft costs
### DEBRIEF: time alone. Source: Leviathan et al. 2023, arXiv:2211.17192, and Chen et al. 2023,
### DEBRIEF: arXiv:2302.01318.


def num_kept(p, q, drafted, uniform):
    """How many of the drafted tokens are kept."""
    ### BEGIN SOLUTION
    for i, x in enumerate(drafted):
        if uniform[i] * q[i, x] >= p[i, x]:
            return i
    return len(drafted)
    ### END SOLUTION


def next_probabilities(p, q, kept):
    """The distribution of the token after the kept ones."""
    ### BEGIN SOLUTION
    if kept == len(q):
        return p[kept]
    rest = np.maximum(p[kept] - q[kept], 0)
    return rest / rest.sum()
    ### END SOLUTION
