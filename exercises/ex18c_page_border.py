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
    # YOUR CODE HERE
    raise NotImplementedError("ex18c: kernel")


# Stub 093013ed of solutions/ex18c_page_border.py: `fa-numba reset ex18c` brings it back.
