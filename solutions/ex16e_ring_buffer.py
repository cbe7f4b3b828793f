"""ex16e · A rolling cache: the slot of a token

A sliding window asks for the last `window` tokens only, so the cache of a sequence has room for no
more, and a new token overwrites the oldest. The first num_sinks tokens are the exception: they have
slots of their own, in front of the ring, and stay. A row of the cache is

    0 .. num_sinks - 1                      token t in slot t, for ever
    num_sinks .. num_sinks + window - 1     a ring: token num_sinks goes to its first slot, the
                                            next token to the next, and after the last slot
                                            comes the first again

num_sinks = 2, window = 4, after 9 tokens:    0 1 | 6 7 8 5    (token 9 will overwrite token 5)

Write `slot`; the kernel that appends is given. One launch may bring more tokens than the ring has
slots, and its thread blocks run in any order: of tokens that would meet in one slot, only the last
may be written.

slot(t, end, num_sinks, window)   device function: the slot of token t when tokens 0 .. end - 1 have
    come, 0 <= t < end; -1 if token t is not kept any more. window >= 1, num_sinks >= 0. All are
    whole numbers, up to 2^31 - 1. About four lines.
"""

from numba import cuda

### KIND: fill a line
### HINT 1: Write the slots of tokens 0, 1, 2, ... for num_sinks = 2 and window = 4 on paper. Which
### HINT 1: slot of the ring has token t if the ring starts with token num_sinks?
### HINT 2: In the ring: num_sinks + (t - num_sinks) % window. A token of the ring is kept while
### HINT 2: fewer than `window` tokens have come after it. A sink always is.
### HINT 3: if t < num_sinks: return t; if t < end - window: return -1; else the slot in the ring.
### DEBRIEF: The memory of a sequence does not grow any more, and an append costs what the new token
### DEBRIEF: costs: nothing is shifted. The keys lie in the ring out of order, and attention does
### DEBRIEF: not mind: a softmax is a sum over keys. What does mind is the position that a model
### DEBRIEF: adds to its keys, so a rolling cache must know each token's number, and its slot.


@cuda.jit(device=True)
def slot(t, end, num_sinks, window):
    """Slot of token t in its row when `end` tokens have come; -1 if it is not kept."""
    ### BEGIN SOLUTION
    if t < num_sinks:
        return t
    if t < end - window:  # a later token has, or will have, its slot
        return -1
    return num_sinks + (t - num_sinks) % window
    ### END SOLUTION


@cuda.jit
def kernel(k_new, v_new, lengths, num_new, num_sinks, k_cache, v_cache):
    """Append to a rolling cache: thread block (i, b) moves new token i of sequence b.

    k_new, v_new      (batch, seqlen_new, num_kv_heads, head_dim); of those of sequence b the first
                      num_new[b] are tokens lengths[b], lengths[b] + 1, ...; the others are padding
    k_cache, v_cache  (batch, num_sinks + window, num_kv_heads, head_dim)
    """
    i, b = cuda.blockIdx.x, cuda.blockIdx.y
    num_kv_heads, head_dim = k_new.shape[2], k_new.shape[3]
    window = k_cache.shape[1] - num_sinks
    if i < num_new[b]:
        n = slot(lengths[b] + i, lengths[b] + num_new[b], num_sinks, window)
        if n >= 0:
            for e in range(cuda.threadIdx.x, num_kv_heads * head_dim, cuda.blockDim.x):
                h, d = e // head_dim, e % head_dim
                k_cache[b, n, h, d] = k_new[b, i, h, d]
                v_cache[b, n, h, d] = v_new[b, i, h, d]
