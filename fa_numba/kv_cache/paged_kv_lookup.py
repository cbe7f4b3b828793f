"""Paged KV lookup: copies the pages of each sequence to dense keys and values.

A KV cache grows one token at a time, for many sequences at once. PagedAttention cuts it into pages
of page_size tokens and gives each sequence a row of block_table, as an operating system gives a
process a page table: token t of sequence b is in page block_table[b, t // page_size], at offset
t % page_size. This kernel only follows the table; a fused attention kernel follows it when it loads
its tiles.

Paper: Kwon et al. 2023, PagedAttention, arXiv:2309.06180, sections 4.1 and 4.2.
"""

from numba import cuda, float32

from fa_numba import checks
from fa_numba.checks.argument_names import refuses_other_names
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import ceil_div

THREADS_X, THREADS_Y = 32, 8  # a warp reads a row of head_dim numbers; eight warps


@cuda.jit
def paged_kv_lookup_kernel(k_cache, v_cache, block_table, seq_lens, k, v):
    """A thread block copies one page of one sequence.

    grid      (⌈max_len / page_size⌉, batch); threads (THREADS_X, THREADS_Y): thread (ty, tx) takes
              every THREADS_Y-th row (one token, one head), columns tx, tx + THREADS_X, ...
    shared    none
    private   page
    HBM       used slots of K and V once; all of the dense K and V once; block_table, seq_lens
              once per thread, a warp at a time
    paper     PagedAttention, section 4.1
    budget    72 registers, 0 bytes shared (THREADS_X=32, THREADS_Y=8)
    """
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    page_size, num_kv_heads, head_dim = k_cache.shape[1], k_cache.shape[2], k_cache.shape[3]
    i, b = cuda.blockIdx.x, cuda.blockIdx.y  # the i-th page of sequence b
    first_t = i * page_size
    seq_len = seq_lens[b]
    page = block_table[b, i] if first_t < seq_len else 0  # no page is read past the end

    for row in range(ty, page_size * num_kv_heads, cuda.blockDim.y):
        offset, head = row // num_kv_heads, row % num_kv_heads
        t = first_t + offset
        used = t < seq_len
        if t < k.shape[1]:
            for d in range(tx, head_dim, cuda.blockDim.x):
                k[b, t, head, d] = float32(k_cache[page, offset, head, d]) if used else float32(0.0)
                v[b, t, head, d] = float32(v_cache[page, offset, head, d]) if used else float32(0.0)


@refuses_other_names
def paged_kv_lookup(k_cache, v_cache, block_table, seq_lens, *, max_len=None):
    """Gather the pages of each sequence to dense, padded keys and values.

    Parameters
    ----------
    k_cache, v_cache : arrays of shape (num_pages, page_size, num_kv_heads, head_dim)
        float32, float16 or bfloat16. Any strides with a contiguous last axis; any page_size from 1.
    block_table : array of shape (batch, max_pages), int32
        Page of token t of sequence b: block_table[b, t // page_size]. −1, or anything, past the
        last page of a sequence.
    seq_lens : array of shape (batch,), int32
    max_len : int, default=max(seq_lens)
        Length of the result. On a GPU the default copies seq_lens back, which waits for the GPU.

    Returns
    -------
    k, v : arrays of shape (batch, max_len, num_kv_heads, head_dim)
        Dtype and library as in k_cache; 0 past the end of a sequence.

    Notes
    -----
    The contents of block_table and seq_lens are checked if they are NumPy arrays. Arrays on a GPU
    are not checked, because that would wait for the GPU: a page or a length out of range reads
    memory outside the cache. With the default max_len the lengths are read back, and checked.
    """
    max_len = checks.check_paged(k_cache, v_cache, block_table, seq_lens, max_len)
    batch = seq_lens.shape[0]
    _, page_size, num_kv_heads, head_dim = k_cache.shape
    shape = (batch, max_len, num_kv_heads, head_dim)
    k, v = (arrays.empty(k_cache, shape, k_cache.dtype) for _ in range(2))
    grid = (ceil_div(max_len, page_size), batch)
    arguments = (k_cache, v_cache, block_table, seq_lens, k, v)
    arrays.launch(paged_kv_lookup_kernel, grid, (THREADS_X, THREADS_Y), *arguments)
    return k, v
