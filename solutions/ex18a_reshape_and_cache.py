"""ex18a · Where does token t live? Write it there

The KV cache is a pool of pages, each of page_size slots, one slot per token:

    k_cache, v_cache   (num_pages, page_size, num_kv_heads, head_dim) float32
    block_table        (batch, max_pages) int32: row b names the page of the first page_size
                       tokens of sequence b, the page of the next page_size tokens, ...; -1 where
                       no page has been given out

Token t of sequence b lives in page block_table[b, t // page_size], in the slot with offset
t % page_size of that page. In a step each sequence has some new tokens: the whole prompt, or one.

slot_of(block_table, b, t, page_size)   device function, int: page * page_size + offset, the number
                                        of the slot in the whole pool; -1 where the token has no
                                        page. Exact also above 2^31
kernel(k, v, sequence, position, block_table, k_cache, v_cache)   writes the new tokens

launch   kernel[number of new tokens, threads], any number of threads: a thread block per token
arrays   k, v (tokens, num_kv_heads, head_dim) float32: the new keys and values
         sequence, position (tokens,) int32: new token i is token position[i] of sequence
         sequence[i]. A sequence of -1 is padding: nothing is written. Nor is a token without page
HBM      k and v are loaded once, and stored once; neighbouring threads move neighbouring floats

About 4 lines and 9 lines. No shared memory and no barrier.
"""

from numba import cuda

### KIND: write
### HINT 1: Which column of the table names the page of token t? How many tokens lie before it in
### HINT 1: that page?
### HINT 2: page = block_table[b, t // page_size]; a page of -1 is no page. As an index, -1 would
### HINT 2: silently mean the last page of the pool. In the kernel page = slot // page_size again.
### HINT 3: slot_of: return page * page_size + t % page_size if page >= 0 else -1. In the kernel,
### HINT 3: where sequence[i] >= 0 and slot >= 0: for j in range(threadIdx.x, count, blockDim.x): h,
### HINT 3: d = j // head_dim, j % head_dim; k_cache[slot // page_size, slot % page_size, h, d] =
### HINT 3: k[i, h, d].
### DEBRIEF: A table of pages is what an operating system has for every process: a token's number is
### DEBRIEF: a virtual address, (page, offset) the physical one. In serving systems this kernel is
### DEBRIEF: called reshape_and_cache, and slot_of runs before it, once per step and not once per
### DEBRIEF: layer: its result is the slot_mapping. The padding comes from CUDA graphs, whose number
### DEBRIEF: of tokens is fixed.


@cuda.jit(device=True)
def slot_of(block_table, b, t, page_size):
    """The number of the slot in which token t of sequence b lives, or -1."""
    ### BEGIN SOLUTION
    page = block_table[b, t // page_size]
    if page < 0:
        return -1
    return page * page_size + t % page_size
    ### END SOLUTION


@cuda.jit
def kernel(k, v, sequence, position, block_table, k_cache, v_cache):
    """Write the keys and values of new tokens into their pages, a thread block for each token."""
    ### BEGIN SOLUTION
    i = cuda.blockIdx.x
    page_size, num_kv_heads, head_dim = k_cache.shape[1], k_cache.shape[2], k_cache.shape[3]
    if sequence[i] >= 0:
        slot = slot_of(block_table, sequence[i], position[i], page_size)
        if slot >= 0:
            page, offset = slot // page_size, slot % page_size
            for j in range(cuda.threadIdx.x, num_kv_heads * head_dim, cuda.blockDim.x):
                h, d = j // head_dim, j % head_dim
                k_cache[page, offset, h, d] = k[i, h, d]
                v_cache[page, offset, h, d] = v[i, h, d]
    ### END SOLUTION
