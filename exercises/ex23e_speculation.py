"""ex23e · Speculation: keep a drafted token, or draw another one

A small model has drafted k tokens of each request, one after another; token i was drawn from its
distribution q[i]. Then one pass of the large model has given its distributions p[0] to p[k], where
p[i] follows the first i drafted tokens. From left to right, each drafted token x is kept with the
probability min(1, p[i, x] / q[i, x]). The first one that is not kept ends it: it and all later ones
are dropped. Then one more token is drawn, so that each pass yields at least one. Write the kernel
that verifies and draws.

kept        how many drafted tokens are kept, from 0 to k: token i is kept if uniform[i] < p / q,
            where 0 <= uniform < 1
token       drawn from p[k] if all k are kept, else from max(p[kept] - q[kept], 0), divided by its
            sum. Draw by a race: the x with the largest weight[x] / noise[x] has won. (With noise
            from the exponential distribution it is x with a probability proportional to weight[x].)

launch   kernel[batch, NUM_THREADS](p, q, drafted, uniform, noise, kept, token): a thread block for
         each request
arrays   p (batch, k + 1, vocabulary), q (batch, k, vocabulary) float32; rows add up to 1, and may
         hold zeros; q[b, i, drafted[b, i]] > 0
         drafted (batch, k) int32, uniform (batch, k) float32; k may be 0
         noise (batch, vocabulary) float32, positive
         kept, token (batch,) int32
HBM      of p and q the row that is drawn from is loaded once, by neighbouring threads, and besides
         it at most k numbers by each thread

winner is given. In float32 throughout; never divide by q. About 17 lines.
"""

from numba import cuda, float32, int32

NUM_THREADS = 64


@cuda.jit(device=True)
def winner(values, places, value, place):
    """The place of the largest value of the thread block, in every thread.

    values, places (NUM_THREADS,) are shared, float32 and int32. All threads call it, once.
    """
    tx = cuda.threadIdx.x
    values[tx], places[tx] = value, place
    step = NUM_THREADS // 2
    while step > 0:
        cuda.syncthreads()  # values and places are complete up to 2 * step
        if tx < step and values[tx + step] > values[tx]:
            values[tx], places[tx] = values[tx + step], places[tx + step]
        step //= 2
    cuda.syncthreads()  # places[0] is complete
    return places[0]


@cuda.jit
def kernel(p, q, drafted, uniform, noise, kept, token):
    """Keep drafted tokens and draw one more, a thread block for each request."""
    values = cuda.shared.array(NUM_THREADS, float32)
    places = cuda.shared.array(NUM_THREADS, int32)
    b, tx = cuda.blockIdx.x, cuda.threadIdx.x
    # YOUR CODE HERE
    raise NotImplementedError("ex23e: kernel")


# Stub 685341db of solutions/ex23e_speculation.py: `fa-numba reset ex23e` brings it back.
