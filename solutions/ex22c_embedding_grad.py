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

### KIND: write
### HINT 1: A weight that is used twice has a gradient for each use, and they add up. One of the two
### HINT 1: is that of a product: y = x @ w.T has dw = dy.T @ x. The other: each row of dx0 is added
### HINT 1: to the row of its token.
### HINT 2: Turn the loop around: the thread of column d of symbol `symbol` walks over all rows of
### HINT 2: the batch, and collects what belongs to it. So nobody else writes its element.
### HINT 3: acc += dlogits[row, symbol] * last[row, d], and if tokens[row] == symbol: acc +=
### HINT 3: dx0[row, d].
### DEBRIEF: NumPy's d[tokens] += dx0 adds one of several rows with the same token, and drops the
### DEBRIEF: others; on a GPU the same happens when threads add without atomics. The model still
### DEBRIEF: learns with the mistake, because the gradient by the logits is complete. With atomics
### DEBRIEF: (cuda.atomic.add) it is right, but the sums differ from run to run, since float32
### DEBRIEF: addition is not associative. Your kernel gathers in place of scattering: same bits each
### DEBRIEF: time. Libraries sort the tokens first, so that nobody walks over rows of others.


@cuda.jit
def kernel(tokens, dx0, dlogits, last, dembedding):
    """The gradient of the embedding, by both of its uses: a thread block for each symbol."""
    ### BEGIN SOLUTION
    symbol = cuda.blockIdx.x
    for d in range(cuda.threadIdx.x, last.shape[1], NUM_THREADS):
        acc = float32(0.0)
        for row in range(tokens.shape[0]):
            acc += dlogits[row, symbol] * last[row, d]
            if tokens[row] == symbol:
                acc += dx0[row, d]
        dembedding[symbol, d] = acc
    ### END SOLUTION
