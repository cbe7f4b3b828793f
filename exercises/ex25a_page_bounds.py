"""ex25a · The bounds of a page

Before a query reads the keys of a page it wants to know how large their scores can be. For that,
two vectors are kept beside each page and K/V head: of each column the least and the largest number
among the page's keys.

The thread block (i, kv_head, b) does page i of sequence b. Its 32 lanes own columns: lane tx has
columns tx, tx + 32, ... of the head.

shapes    k_cache (num_pages, page_size, num_kv_heads, head_dim) float32; NaN where no token lives
          seq_lens (batch,) int32, from 0 on; block_table (batch, max_pages) int32: column i has the
          page of the tokens from i * page_size on, -1 where the sequence has none
          k_min, k_max (num_pages, num_kv_heads, head_dim) float32. All sizes are >= 1
launch    kernel[(max_pages, num_kv_heads, batch), 32](k_cache, block_table, seq_lens, k_min,
          k_max)
result    k_min[page, kv_head, d], k_max[page, kv_head, d] over the tokens that the page has. The
          last page of a sequence may be part-filled. Other pages are left alone
HBM       each key of a sequence once, empty slots never; each bound stored once and not loaded; in
          whole warps along a row
memory    no shared memory, no local array, no barrier

About 14 lines.
"""

from numba import cuda


@cuda.jit
def kernel(k_cache, block_table, seq_lens, k_min, k_max):
    """Least and largest number of each column of a page's keys.

    grid     (max_pages, num_kv_heads, batch); threads (32,)
    shared   none
    private  low, high
    HBM      k_cache, k_min, k_max once
    paper    Quest, arXiv:2406.10774, section 3.2
    """
    # YOUR CODE HERE
    raise NotImplementedError("ex25a: kernel")


# Stub ae285b67 of solutions/ex25a_page_bounds.py: `fa-numba reset ex25a` brings it back.
