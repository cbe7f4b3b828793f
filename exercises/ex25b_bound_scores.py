"""ex25b · Bound the scores of a page

ex25a left a box around the keys of each page: k_min <= k <= k_max in every column. Bound the
product of a query and any key in the box from above, by the box alone:

    u = sum over d of the largest of q_d x for x from k_min_d to k_max_d

The query heads of a group share the pages that are read, so a page's score is the largest u of the
group. The thread block (i, kv_head, b), one warp, does page i of sequence b.

shapes    q (batch, num_heads, head_dim); k_min, k_max (num_pages, num_kv_heads, head_dim), float32
          block_table (batch, max_pages), seq_lens (batch,) int32: as in ex25a
          scores (batch, num_kv_heads, max_pages) float32. num_heads is a multiple of num_kv_heads;
          head h is in the group of K/V head h // (num_heads // num_kv_heads)
launch    kernel[(max_pages, num_kv_heads, batch), 32](q, k_min, k_max, block_table, seq_lens,
          scores, page_size)
result    scores[b, kv_head, i], not scaled; -inf where sequence b has no page i
HBM       q, k_min, k_max at most once for each page and head of its group, bounds of pages that the
          sequence does not have never, in whole warps along a row; each score stored once
memory    no shared memory, no local array, no barrier; lanes add by cuda.shfl_xor_sync

About 17 lines. Write float32(0.0), not 0.0.
"""

import math

from numba import cuda, float32

FULL_MASK = 0xFFFFFFFF


@cuda.jit
def kernel(q, k_min, k_max, block_table, seq_lens, scores, page_size):
    """The largest bound of the heads of a group, for one page.

    grid     (max_pages, num_kv_heads, batch); threads (32,)
    shared   none
    private  best, s
    HBM      q, k_min, k_max once for each page and head of its group; scores once
    paper    Quest, arXiv:2406.10774, section 3.3
    """
    # YOUR CODE HERE
    raise NotImplementedError("ex25b: kernel")


# Stub 82d651f8 of solutions/ex25b_bound_scores.py: `fa-numba reset ex25b` brings it back.
