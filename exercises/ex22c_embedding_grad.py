"""ex22c · The gradient of an embedding that is used twice

The model has one matrix for two purposes (weight tying):

    x0 = embedding[tokens]               at the beginning: a row for each token
    logits = last @ embedding.T          at the end: a score for each symbol

The backward pass has computed the gradients of both results. Write the kernel that computes that of
the embedding, with a thread block for each symbol.

launch    kernel[vocabulary, NUM_THREADS](tokens, dx0, dlogits, last, dembedding)
arrays    tokens (rows,) int32: symbols of the batch. A symbol may come many times, or never
          dx0 (rows, width) float32: the gradient of x0
          dlogits (rows, vocabulary) float32: the gradient of logits
          last (rows, width) float32
          dembedding (vocabulary, width) float32, the result
HBM       dx0 is loaded once, a row by the thread block of its token; dembedding is stored once,
          and not loaded. Neighbouring threads take neighbouring columns

No shared memory, no barrier. About 8 lines.
"""

from numba import cuda, float32

NUM_THREADS = 64


@cuda.jit
def kernel(tokens, dx0, dlogits, last, dembedding):
    """The gradient of the embedding, by both of its uses: a thread block for each symbol."""
    # YOUR CODE HERE
    raise NotImplementedError("ex22c: kernel")


# Stub 168779f2 of solutions/ex22c_embedding_grad.py: `fa-numba reset ex22c` brings it back.
