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

### KIND: write
### HINT 1: How many tokens has page i of a sequence of seq_lens[b]? page_size, or fewer, or none: a
### HINT 1: number of 0 or less has nothing to do.
### HINT 2: tokens = min(page_size, seq_lens[b] - i * page_size). Look up the page behind that test,
### HINT 2: then loop over columns outside and over tokens inside: low and high stay with the lane.
### HINT 3: low = high = k_cache[page, 0, kv_head, d]: the first token needs no infinity. Then, for
### HINT 3: offset in range(1, tokens), x = k_cache[page, offset, kv_head, d]; low = min(low, x).
### DEBRIEF: A server need not read the page again for a new token: it takes one key into bounds
### DEBRIEF: that are there, and begins anew at offset 0. fa_numba's update_page_bounds does that.
### DEBRIEF: The bounds cost the bytes of two keys for each page of 16. And they bound a box: keys
### DEBRIEF: that lie far apart in many columns fill a corner of it only.


@cuda.jit
def kernel(k_cache, block_table, seq_lens, k_min, k_max):
    """Least and largest number of each column of a page's keys.

    grid     (max_pages, num_kv_heads, batch); threads (32,)
    shared   none
    private  low, high
    HBM      k_cache, k_min, k_max once
    paper    Quest, arXiv:2406.10774, section 3.2
    """
    ### BEGIN SOLUTION
    tx = cuda.threadIdx.x
    i, kv_head, b = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
    page_size, head_dim = k_cache.shape[1], k_cache.shape[3]
    tokens = min(page_size, seq_lens[b] - i * page_size)
    if tokens > 0:
        page = block_table[b, i]
        for d in range(tx, head_dim, 32):
            low = high = k_cache[page, 0, kv_head, d]
            for offset in range(1, tokens):
                x = k_cache[page, offset, kv_head, d]
                low = min(low, x)
                high = max(high, x)
            k_min[page, kv_head, d] = low
            k_max[page, kv_head, d] = high
    ### END SOLUTION
