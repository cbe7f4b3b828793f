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


def embedding_grad(tokens, dx0, dlogits, last):
    """The gradient of the embedding, by both of its uses."""
    # YOUR CODE HERE
    raise NotImplementedError("ex22c: embedding_grad")


# Stub 886d9c19 of solutions/ex22c_embedding_grad.py: `fa-numba reset ex22c` brings it back.
