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


def num_kept(p, q, drafted, uniform):
    """How many of the drafted tokens are kept."""
    # YOUR CODE HERE
    raise NotImplementedError("ex23e: num_kept")


def next_probabilities(p, q, kept):
    """The distribution of the token after the kept ones."""
    # YOUR CODE HERE
    raise NotImplementedError("ex23e: next_probabilities")


# Stub 95741643 of solutions/ex23e_speculation.py: `fa-numba reset ex23e` brings it back.
