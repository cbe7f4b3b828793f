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

### KIND: write
### HINT 1: q_d x is linear in x: where in the interval from k_min_d to k_max_d is it largest, for a
### HINT 1: positive q_d, and for a negative one?
### HINT 2: At one of the two ends: max(q_d k_min_d, q_d k_max_d). The maximum is taken in each
### HINT 2: column, before the sum. A lane adds its columns, a butterfly the lanes (ex24b).
### HINT 3: best = float32(-math.inf); if i * page_size < seq_lens[b]: for head in range(kv_head *
### HINT 3: group_size, (kv_head + 1) * group_size): s of this head, butterfly, best = max(best, s).
### HINT 3: Lane 0 stores best behind the test, so that -inf is stored too.
### DEBRIEF: u is the largest product of q and a corner of the box, and no key need be in that
### DEBRIEF: corner. So a page with a high bound may have no key of a high score, and is read in
### DEBRIEF: vain; a page with a low bound has none for certain. A choice by an average of the keys
### DEBRIEF: has no such certainty. fa_numba's page_scores is this kernel.


@cuda.jit
def kernel(q, k_min, k_max, block_table, seq_lens, scores, page_size):
    """The largest bound of the heads of a group, for one page.

    grid     (max_pages, num_kv_heads, batch); threads (32,)
    shared   none
    private  best, s
    HBM      q, k_min, k_max once for each page and head of its group; scores once
    paper    Quest, arXiv:2406.10774, section 3.3
    """
    ### BEGIN SOLUTION
    tx = cuda.threadIdx.x
    i, kv_head, b = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
    group_size = q.shape[1] // k_min.shape[1]
    best = float32(-math.inf)
    if i * page_size < seq_lens[b]:
        page = block_table[b, i]
        for head in range(kv_head * group_size, (kv_head + 1) * group_size):
            s = float32(0.0)
            for d in range(tx, q.shape[2], 32):
                x = q[b, head, d]
                s += max(x * k_min[page, kv_head, d], x * k_max[page, kv_head, d])
            for step in range(5):
                s += cuda.shfl_xor_sync(FULL_MASK, s, 16 >> step)
            best = max(best, s)
    if tx == 0:
        scores[b, kv_head, i] = best
    ### END SOLUTION
