"""Attention of one query of each sequence to the pages whose scores may be the largest.

Each K/V head has a block table of its own: the last page, which has the newest tokens, and those
whose bounds are the largest, of equal bounds the later page. `paged_attn_decode` attends to them,
of a cache that is seen as one with pages of one head. With as many pages as a sequence has it is
attention to all keys. On a GPU bounds and choice are a launch each, and nothing waits for the CPU.

Paper: Tang et al. 2024, Quest, arXiv:2406.10774.
"""

import numpy as np

from fa_numba import checks
from fa_numba.checks.argument_names import refuses_other_names
from fa_numba.dispatch.decoding import paged_attn_decode
from fa_numba.kv_cache.page_scores import page_scores
from fa_numba.kv_cache.top_pages import top_pages
from fa_numba.runtime import arrays


@refuses_other_names
def topk_decode(
    q,
    k_cache,
    v_cache,
    k_min,
    k_max,
    block_table,
    seq_lens,
    num_top_pages,
    *,
    softmax_scale=None,
    attend=paged_attn_decode,
):
    """`paged_attn_decode` to the few pages of each K/V head whose scores may be the largest.

    Parameters
    ----------
    q : NumPy or CuPy array of shape (batch, 1, num_heads, head_dim)
    k_cache, v_cache : contiguous arrays of shape (num_pages, page_size, num_kv_heads, head_dim)
        Dtype of q.
    k_min, k_max : contiguous arrays of shape (num_pages, num_kv_heads, head_dim), dtype of q
        The bounds of the pages: `fa_numba.kv_cache.update_page_bounds`.
    block_table, seq_lens
        As for `paged_attn_decode`.
    num_top_pages : int
        Pages of each sequence and K/V head, its last one among them. The result is exact where a
        sequence has no more.
    softmax_scale : float, default=1/√head_dim
        Positive.
    attend : callable, default=paged_attn_decode

    Returns
    -------
    out : array of the shape, dtype and library of q
    lse : array of shape (batch, num_heads, 1), float32
        Of the keys of these pages.
    """
    num_top_pages, softmax_scale = checks.check_topk_decode(
        q, k_cache, v_cache, k_min, k_max, num_top_pages, softmax_scale
    )
    page_size, num_kv_heads, head_dim = k_cache.shape[1:]
    on_cpu = arrays.library_of(q) == "numpy"
    bound, choose = (_scores_in_numpy, _top_pages_in_numpy) if on_cpu else (page_scores, top_pages)
    scores = bound(q, k_min, k_max, block_table, seq_lens, page_size)
    num_top_pages = min(num_top_pages, scores.shape[2] + 1)  # an int32 holds it
    tables = choose(scores, block_table, seq_lens, page_size, num_top_pages)
    rows = q.reshape(-1, 1, q.shape[2] // num_kv_heads, head_dim)
    caches = [_pages_of_one_head(x) for x in (k_cache, v_cache)]
    out, lse = attend(rows, *caches, *tables, softmax_scale=softmax_scale)
    return out.reshape(q.shape), lse.reshape(q.shape[0], q.shape[2], 1)


def _scores_in_numpy(q, k_min, k_max, block_table, seq_lens, page_size):
    """As `page_scores`, by products of matrices: the engine would run it, which is for tracing."""
    checks.check_page_scores(q, k_min, k_max, block_table, seq_lens, page_size)
    k_min, k_max = (x.astype(np.float32) for x in (k_min, k_max))
    exists = page_size * np.arange(block_table.shape[1]) < seq_lens[:, None]
    pages = np.where(exists, block_table, 0)
    queries = q[:, 0].reshape(len(q), k_min.shape[1], -1, q.shape[3]).astype(np.float32)
    scores = np.einsum("bhgd,bphd->bhpg", np.maximum(queries, 0), k_max[pages])
    scores += np.einsum("bhgd,bphd->bhpg", np.minimum(queries, 0), k_min[pages])
    return np.where(exists[:, None], scores.max(axis=3), -np.inf).astype(np.float32)


def _top_pages_in_numpy(scores, block_table, seq_lens, page_size, num_top_pages):
    """As `top_pages`, by a sort."""
    batch, num_kv_heads, max_pages = scores.shape
    num_pages = ((seq_lens + (page_size - 1)) // page_size)[:, None, None]  # of each sequence
    places = np.broadcast_to(np.arange(max_pages), scores.shape)
    first = np.where(places == num_pages - 1, np.nan, scores)  # a NaN comes last in a sort
    best = np.lexsort((first, places < num_pages))[..., ::-1][..., :num_top_pages]
    best = np.sort(np.where(best < num_pages, best, max_pages))
    exists, best = best < max_pages, np.minimum(best, max(max_pages - 1, 0))
    table = np.take_along_axis(block_table[:, None], best, axis=2)
    heads = np.arange(num_kv_heads)[:, None]
    table = np.where(exists, table * (page_size * num_kv_heads) + heads, -1).astype(np.int32)
    left = seq_lens - np.maximum(num_pages[:, 0, 0] - num_top_pages, 0) * page_size
    lengths = np.repeat(left.astype(np.int32), num_kv_heads)
    return table.reshape(batch * num_kv_heads, -1), lengths


def _pages_of_one_head(cache):
    """The same memory as pages of one head: head h of page p is page p · page_size · heads + h.

    The key after a key of a head is one row of heads further. So these pages overlap, and a page
    may begin at any row.
    """
    num_pages, page_size, num_heads, head_dim = cache.shape
    row, number = cache.strides[2], cache.strides[3]
    shape = max((num_pages - 1) * page_size + 1, 0) * num_heads, page_size, 1, head_dim
    as_strided = arrays.module_of(cache).lib.stride_tricks.as_strided
    return as_strided(cache, shape, (row, num_heads * row, row, number))
