"""ex18c · Find the bug: a tile that crosses a page

`broken_kernel` computes the scores of one decoding step, and follows the block table itself. It was
tested with page_size 16 and sequences of 8, 16 and 24 tokens, and it was right. With page_size 3
most of its scores are wrong.

Write `kernel`, the same without the bug. Copy broken_kernel and mend it; two lines change.

Launch   grid (ceil(max_len / BLOCK_N), batch), thread block (BLOCK_N,): thread x of thread block
         (i, b) has the key n = i BLOCK_N + x of sequence b
Arrays   q (batch, head_dim), k_cache (num_pages, page_size, head_dim), both float32
         block_table (batch, max_pages) int32, -1 = no page; seq_lens (batch,) int32
         s (batch, columns) float32, columns a multiple of BLOCK_N, -inf everywhere
Result   s[b, n] = q[b] · key n of sequence b for n < seq_lens[b]; other elements stay -inf
HBM      each key of a sequence is loaded once, and nothing else of k_cache
"""

from numba import cuda, float32

BLOCK_N = 8  # keys of a tile, one for each thread

### KIND: find the bug
### HINT 1: A tile of 8 keys and pages of 3: in how many pages are the keys 0 to 7? How many pages
### HINT 1: does broken_kernel look up?
### HINT 2: The page belongs to the key, not to the tile. And which keys of the last tile exist?
### HINT 3: The test: n < seq_lens[b]. The page: block_table[b, n // page_size].
### DEBRIEF: Of 16 keys in pages of 3, broken_kernel gets 4 right: 0, 1, 2 and 8. Keys 3 to 7 have
### DEBRIEF: the scores of 0, 1, 2, 0 and 1; key 9 has that of 6. A kernel may look a page up once
### DEBRIEF: per tile only if every tile lies in one page. So many kernels demand that page_size is
### DEBRIEF: a multiple of their tile, and some libraries accept pages of 64 or 256 slots alone. The
### DEBRIEF: tests of broken_kernel's author were all of that kind.


@cuda.jit
def broken_kernel(q, k_cache, block_table, seq_lens, s):
    """Scores of one query for each sequence, wrong where a tile crosses a page."""
    n_start, b = cuda.blockIdx.x * BLOCK_N, cuda.blockIdx.y
    n = n_start + cuda.threadIdx.x
    page_size = k_cache.shape[1]
    if n_start < seq_lens[b]:
        page = block_table[b, n_start // page_size]
        score = float32(0)
        for d in range(q.shape[1]):
            score += q[b, d] * k_cache[page, n % page_size, d]
        s[b, n] = score


@cuda.jit
def kernel(q, k_cache, block_table, seq_lens, s):
    """Scores of one query for each sequence, the keys in pages."""
    ### BEGIN SOLUTION
    n_start, b = cuda.blockIdx.x * BLOCK_N, cuda.blockIdx.y
    n = n_start + cuda.threadIdx.x
    page_size = k_cache.shape[1]
    if n < seq_lens[b]:
        page = block_table[b, n // page_size]
        score = float32(0)
        for d in range(q.shape[1]):
            score += q[b, d] * k_cache[page, n % page_size, d]
        s[b, n] = score
    ### END SOLUTION
