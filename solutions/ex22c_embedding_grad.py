"""ex22c · The gradient of an embedding that is used twice

The model has one matrix for two purposes (weight tying):

    x0 = embedding[tokens]               at the beginning: a row for each token
    logits = last @ embedding.T          at the end: a score for each symbol

The backward pass has computed the gradients of both results. Compute that of the embedding.

embedding_grad(tokens, dx0, dlogits, last) -> dembedding
    tokens       (rows,) int32: symbols of the batch. A symbol may come many times, or never.
    dx0          (rows, width) float32: the gradient of x0
    dlogits      (rows, vocabulary) float32: the gradient of logits
    last         (rows, width) float32
    dembedding   (vocabulary, width) float32

No argument is changed. About 3 lines.
"""

import numpy as np

### KIND: fill a line
### HINT 1: A weight that is used twice has a gradient for each use, and they add up. One of the two
### HINT 1: is that of a product: y = x @ w.T has dw = dy.T @ x.
### HINT 2: The other: each row of dx0 is added to the row of its token. The letter e comes a dozen
### HINT 2: times in a batch, so a dozen rows are added to one.
### HINT 3: NumPy's d[tokens] += dx0 adds one of them and drops the others. np.add.at(d, tokens,
### HINT 3: dx0) adds them all. So does a product with the one-hot matrix of the tokens, transposed.
### DEBRIEF: d[tokens] += dx0 reads all rows, adds, and writes all rows: of rows written to the same
### DEBRIEF: place one remains. On a GPU the same happens when threads add without atomics. The
### DEBRIEF: model still learns with the mistake, because the gradient by the logits is complete;
### DEBRIEF: only a comparison with finite differences shows it. The package multiplies by a one-hot
### DEBRIEF: matrix: a product is fast on a GPU, and its sum is the same in each run, as that of
### DEBRIEF: atomics is not.


def embedding_grad(tokens, dx0, dlogits, last):
    """The gradient of the embedding, by both of its uses."""
    ### BEGIN SOLUTION
    dembedding = dlogits.T @ last
    np.add.at(dembedding, tokens, dx0)
    return dembedding
    ### END SOLUTION
