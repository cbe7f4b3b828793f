"""ex22a · The loss, and the gradient that it sends back

A model gives a score to each symbol of its vocabulary, the logits. Softmax makes probabilities p of
them. The loss of a token is -log of the probability of its target, the symbol that really followed;
the loss of a batch is the mean over its tokens. The backward pass begins with the gradient of that
mean with respect to the logits.

cross_entropy(logits, targets) -> loss, dlogits
    logits    (rows, vocabulary) float32: any finite numbers, also 1e4 and -1e4. Not changed.
    targets   (rows,) int32: the column of each row's target
    loss      a float32 number: the mean over the rows, in nats
    dlogits   (rows, vocabulary) float32

With y = one-hot(target), dlogits = (p - y) / rows. NumPy, no loop over rows. The loss must be right
where p of the target is too small for float32: do not take the log of p. About 8 lines.
"""

import numpy as np

### KIND: write
### HINT 1: Lesson 02: softmax does not change if the same number is subtracted from all scores of a
### HINT 1: row. With the row's maximum subtracted no exp overflows.
### HINT 2: log p = (score - maximum) - log(sum of all exp(score - maximum)). This is a difference
### HINT 2: of two numbers of moderate size, whatever p is. It is lesson 07's lse once more.
### HINT 3: each = np.arange(len(targets)), targets; shifted[each] is the score of each row's
### HINT 3: target. Then dlogits = exp / sum; dlogits[each] -= 1; divide by the number of rows.
### DEBRIEF: Each row of dlogits sums to 0: probability that one symbol gains, the others lose. At
### DEBRIEF: first the model knows nothing, and the loss is log(vocabulary). The package computes p
### DEBRIEF: by the softmax kernel and then the log of it, cut off at 1e-37: so its losses end at 85
### DEBRIEF: nats, which no training run that works comes near. Yours has no such end.


def cross_entropy(logits, targets):
    """Mean loss of the targets, and its gradient with respect to the logits."""
    ### BEGIN SOLUTION
    each = np.arange(len(targets)), targets
    shifted = logits - logits.max(axis=1, keepdims=True)
    exp = np.exp(shifted)
    total = exp.sum(axis=1, keepdims=True)
    loss = (np.log(total[:, 0]) - shifted[each]).mean()
    dlogits = exp / total
    dlogits[each] -= 1
    return loss, dlogits / np.float32(len(targets))
    ### END SOLUTION
