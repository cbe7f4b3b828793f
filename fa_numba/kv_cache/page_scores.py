"""The least and the largest number of each column of a page's keys, and the scores they allow.

A query that attends to few pages must know which, before it reads their keys. Of each page and K/V
head two vectors are kept beside the cache, k_min and k_max. For every key k of the page

    q · k ≤ u = Σ_d max(q_d k_min_d, q_d k_max_d)          up to the rounding of float32

`update_page_bounds` keeps them: call it with the keys that `reshape_and_cache` writes. Pages that
are copied or swapped take their bounds along: k_min[dst] = k_min[src], and k_max likewise.

Paper: Tang et al. 2024, Quest, arXiv:2406.10774, section 3.
"""

import numpy as np
from numba import cuda, float32

from fa_numba import checks
from fa_numba.checks.argument_names import refuses_other_names
from fa_numba.constants import FULL_WARP, NEG_INF, WARP_SIZE, ZERO
from fa_numba.runtime import arrays

THREADS_X, THREADS_Y = 32, 8  # a warp has the columns of a head; eight warps
INF = float32(np.inf)


@cuda.jit
def page_bounds_kernel(k, k_min, k_max, slot_mapping, page_size):
    """The thread block of the first token of a page in slot_mapping does the page's tokens.

    grid      (num_tokens,); threads (THREADS_X, THREADS_Y): thread (ty, tx) takes every
              THREADS_Y-th head, columns tx, tx + THREADS_X, ...
    shared    none
    private   low, high
    HBM       K of the tokens that have a slot read once; a page's bounds written once, and read
              if it had tokens before; slot_mapping in every thread
    paper     Quest, section 3.2
    budget    96 registers, 0 bytes shared (THREADS_X=32, THREADS_Y=8)
    """
    tx, ty, i = cuda.threadIdx.x, cuda.threadIdx.y, cuda.blockIdx.x
    slot = slot_mapping[i]
    page = slot // page_size  # -1 for a token that is not written
    if slot < 0 or (i > 0 and slot_mapping[i - 1] // page_size == page):
        return
    stop = i + 1
    while stop < slot_mapping.shape[0] and slot_mapping[stop] // page_size == page:
        stop += 1
    for head in range(ty, k.shape[1], cuda.blockDim.y):
        for d in range(tx, k.shape[2], cuda.blockDim.x):
            low, high = INF, NEG_INF
            if slot % page_size > 0:  # else the page begins anew
                low, high = k_min[page, head, d], k_max[page, head, d]
            for token in range(i, stop):
                x = float32(k[token, head, d])
                low, high = min(low, x), max(high, x)
            k_min[page, head, d], k_max[page, head, d] = low, high


@cuda.jit
def page_scores_kernel(q, k_min, k_max, block_table, seq_lens, scores, page_size):
    """A warp bounds the scores of one page: the largest bound of the heads of a group.

    grid      (max_pages, num_kv_heads, batch); threads (WARP_SIZE,)
    shared    none
    private   bound, total
    HBM       q once per page, k_min and k_max once per page and head of the group; block_table and
              seq_lens in every thread; scores once
    paper     Quest, section 3.3
    budget    96 registers, 0 bytes shared (WARP_SIZE=32)
    """
    tx = cuda.threadIdx.x
    i, kv_head, b = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
    group_size = q.shape[1] // k_min.shape[1]
    bound = NEG_INF
    if i * page_size < seq_lens[b]:
        page = block_table[b, i]
        for head in range(kv_head * group_size, (kv_head + 1) * group_size):
            total = ZERO
            for d in range(tx, q.shape[2], WARP_SIZE):
                x = float32(q[b, head, d])
                total += max(x * k_min[page, kv_head, d], x * k_max[page, kv_head, d])
            for step in range(5):
                total += cuda.shfl_xor_sync(FULL_WARP, total, 1 << step)
            bound = max(bound, total)
    if tx == 0:
        scores[b, kv_head, i] = bound


@refuses_other_names
def update_page_bounds(k, k_min, k_max, slot_mapping, page_size):
    """Take the keys of new tokens into the bounds of their pages, in place.

    Parameters
    ----------
    k : array of shape (num_tokens, num_kv_heads, head_dim), float32, float16 or bfloat16
    k_min, k_max : float32 arrays of shape (num_pages, num_kv_heads, head_dim)
        A token at offset 0 of a page begins its bounds anew.
    slot_mapping : array of shape (num_tokens,), int32
        As for `reshape_and_cache`. The tokens of a page are neighbours in it, in ascending order;
        `PagePool` gives them so.
    page_size : int
    """
    page_size = checks.check_page_bounds(k, k_min, k_max, slot_mapping, page_size)
    grid, block = (k.shape[0],), (THREADS_X, THREADS_Y)
    arguments = k, k_min, k_max, slot_mapping, np.int32(page_size)
    arrays.launch(page_bounds_kernel, grid, block, *arguments)


@refuses_other_names
def page_scores(q, k_min, k_max, block_table, seq_lens, page_size):
    """Bound the scores of each page, unscaled.

    Parameters
    ----------
    q : array of shape (batch, 1, num_heads, head_dim), float32, float16 or bfloat16
    k_min, k_max : float32 arrays of shape (num_pages, num_kv_heads, head_dim)
    block_table, seq_lens
        As for `paged_attn_decode`.
    page_size : int

    Returns
    -------
    scores : array of shape (batch, num_kv_heads, max_pages), float32
        At least q · k of each key of the page and each query head of the group; −inf where the
        sequence has no page.
    """
    page_size = checks.check_page_scores(q, k_min, k_max, block_table, seq_lens, page_size)
    scores = arrays.empty(q, (q.shape[0], k_min.shape[1], block_table.shape[1]))
    arguments = q[:, 0], k_min, k_max, block_table, seq_lens, scores, np.int32(page_size)
    arrays.launch(page_scores_kernel, scores.shape[::-1], (WARP_SIZE,), *arguments)
    return scores
