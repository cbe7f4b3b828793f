"""ex18b · The paged lookup

Gather the keys and values of every sequence out of their pages, side by side, so that any attention
kernel can read them.

    k_cache, v_cache   (num_pages, page_size, num_kv_heads, head_dim) float32
    block_table        (batch, max_pages) int32, -1 = no page; its columns suffice for the tokens,
                       not always for max_len
    seq_lens           (batch,) int32; 0 is allowed
    k_out, v_out       (batch, max_len, num_kv_heads, head_dim) float32, max_len >= every seq_len

k_out[b, t] is the key of token t of sequence b, for all heads: k_cache[page, offset] with
page = block_table[b, t // page_size] and offset = t % page_size. For t >= seq_lens[b] it is 0. The
same for v_out. k_out and v_out may hold anything before.

Launch   grid (max_len, batch), thread block of any number of threads (1-D): the thread block
         (t, b) moves one token. num_kv_heads and head_dim may be smaller or larger than the
         thread block, and need not be multiples of it.
HBM      each key and value of a token is loaded once and stored once; padding is stored and not
         loaded. A thread looks up the page of a token at most once, and none for padding. Slots
         that hold no token are never loaded.
Access   neighbouring threads move neighbouring floats.

About 12 lines. No shared memory, no local array and no barrier: nobody reads what another thread
wrote.
"""

from numba import cuda

### HINT 1: A token is num_kv_heads * head_dim floats, in one piece. Let thread i move element i,
### i + blockDim.x, i + 2 * blockDim.x, ...: for i in range(tid, count, cuda.blockDim.x).
### HINT 2: Element i is head i // head_dim, dimension i % head_dim. The page does not depend on i:
### look it up before the loop, and only where t < seq_lens[b].
### HINT 3: if t < seq_lens[b]: page, offset = block_table[b, t // page_size], t % page_size, then
### the loop with k_out[b, t, h, d] = k_cache[page, offset, h, d], and v; else: the loop storing 0.
### DEBRIEF: The lookup reads each key and value and writes it, and the attention after it reads it
### again: three moves where one would do. So serving fuses the two: the attention kernel follows
### the block table itself, and the dense copy never exists.


@cuda.jit
def kernel(k_cache, v_cache, block_table, seq_lens, k_out, v_out):
    """Gather pages to dense, padded k_out and v_out: one thread block per token."""
    ### BEGIN SOLUTION
    t, b = cuda.blockIdx.x, cuda.blockIdx.y
    page_size, num_kv_heads, head_dim = k_cache.shape[1], k_cache.shape[2], k_cache.shape[3]
    count = num_kv_heads * head_dim
    if t < seq_lens[b]:
        page = block_table[b, t // page_size]
        offset = t % page_size
        for i in range(cuda.threadIdx.x, count, cuda.blockDim.x):
            h, d = i // head_dim, i % head_dim
            k_out[b, t, h, d] = k_cache[page, offset, h, d]
            v_out[b, t, h, d] = v_cache[page, offset, h, d]
    else:
        for i in range(cuda.threadIdx.x, count, cuda.blockDim.x):
            h, d = i // head_dim, i % head_dim
            k_out[b, t, h, d] = 0
            v_out[b, t, h, d] = 0
    ### END SOLUTION
