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

### KIND: write
### HINT 1: Take a vocabulary of two tokens, p = (0.5, 0.5) and q = (0.9, 0.1). How often is token 0
### HINT 1: drafted and kept? Which token must the others become? In the kernel every thread may
### HINT 1: find `kept` by itself: k is small.
### HINT 2: n = 0; while n < k and uniform[b, n] * q[b, n, x] < p[b, n, x], where x = drafted[b, n]:
### HINT 2: n += 1. A product needs no division. For the race no sum is needed, either: dividing all
### HINT 2: weights by the same number changes no winner.
### HINT 3: best, at = float32(-1), int32(0); for x in range(tx, vocabulary, NUM_THREADS): weight =
### HINT 3: p[b, n, x], less q[b, n, x] where n < k; value = weight / noise[b, x]; keep the larger
### HINT 3: one and its x. Then at = winner(values, places, best, at). Thread 0 stores.
### DEBRIEF: Why exact: token x comes out by being kept, with q(x) min(1, p/q) = min(q(x), p(x)); or
### DEBRIEF: after a rejection, which has the probability 1 - sum min(p, q) = sum max(p - q, 0), the
### DEBRIEF: same sum that the weights are divided by: max(p(x) - q(x), 0). Together: p(x). So the
### DEBRIEF: text has the large model's distribution, however bad the draft is; a bad draft costs
### DEBRIEF: time alone. The race is how vLLM samples: no sorting, no running sum over the
### DEBRIEF: vocabulary, one maximum over the thread block. Source: Leviathan et al. 2023,
### DEBRIEF: arXiv:2211.17192, and Chen et al. 2023, arXiv:2302.01318.


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
    ### BEGIN SOLUTION
    k, vocabulary = drafted.shape[1], p.shape[2]
    n = 0
    while n < k:
        x = drafted[b, n]
        if uniform[b, n] * q[b, n, x] >= p[b, n, x]:
            break
        n += 1
    best, at = float32(-1.0), int32(0)
    for x in range(tx, vocabulary, NUM_THREADS):
        weight = p[b, n, x]
        if n < k:
            weight = max(weight - q[b, n, x], float32(0.0))
        value = weight / noise[b, x]
        if value > best:
            best, at = value, int32(x)
    at = winner(values, places, best, at)
    if tx == 0:
        kept[b] = n
        token[b] = at
    ### END SOLUTION
