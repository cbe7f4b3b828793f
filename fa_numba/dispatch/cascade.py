"""Attention to a paged cache whose sequences share keys: each shared segment is read once.

Rows of all sequences below a segment attend to it in one call, each sequence to its suffix in
another, and the states are merged: ⊕ along the path of each sequence. Bytes of K and V are then
those of the segments and suffixes, and not those of all sequences one by one.

On a GPU, where all sequences share one segment, `merge_states` merges the two states of each. Where
TMA reads the pages, those are two launches: attention to the segment, then to the suffixes, which
begins with its state.

Source: Ye et al. 2024, Cascade inference (a blog post of FlashInfer).
"""

import contextlib
import importlib

import numpy as np

from fa_numba import checks
from fa_numba.checks import HOPPER
from fa_numba.checks.argument_names import refuses_other_names
from fa_numba.checks.refused import RefusedError
from fa_numba.constants import WARP_SIZE
from fa_numba.dispatch.attention import flash_attn
from fa_numba.dispatch.decoding import paged_attn_decode
from fa_numba.kernels.flash_decode import make_combine
from fa_numba.kernels.merge_states import merge_states
from fa_numba.kv_cache.paged_kv_lookup import paged_kv_lookup
from fa_numba.on_cuda_cores.decode_problem import launch_combine_wide
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import ceil_div

TILE_ROWS = 8  # rows for which the decoders read a key once
MANY_ROWS = 128  # and the kernels of whole sequences


@refuses_other_names
def cascade_decode(
    q,
    k_cache,
    v_cache,
    plan,
    *,
    causal=False,
    softcap=0.0,
    softmax_scale=None,
    k_scale=None,
    v_scale=None,
    attend=paged_attn_decode,
):
    """`paged_attn_decode` of sequences that share keys, which are read once for all of them.

    Parameters
    ----------
    q : NumPy or CuPy array of shape (batch, seqlen_q, num_heads, head_dim)
        float32, float16 or bfloat16.
    k_cache, v_cache : arrays of shape (num_pages, page_size, num_kv_heads, head_dim)
    plan : CascadePlan
        Of the sequences' block table and lengths: `fa_numba.kv_cache.cascade_plan`; for arrays on a
        GPU, its `on_device_of`.
    causal, softcap, softmax_scale, k_scale, v_scale
        As for `paged_attn_decode`. Windows and ALiBi need positions that a segment does not have.
    attend : callable, default=paged_attn_decode
        The attention to a segment, or to the suffixes.

    Returns
    -------
    out : array of the shape, dtype and library of q
    lse : array of shape (batch, num_heads, seqlen_q), float32
    """
    checks.check_cascade(q, k_cache, v_cache, plan)
    options = {"softcap": softcap, "softmax_scale": softmax_scale}
    if k_scale is not None or v_scale is not None:
        options |= {"k_scale": k_scale, "v_scale": v_scale}
    caches, tables = (k_cache, v_cache), (plan.block_table, plan.seq_lens)
    if not plan.segments:
        return attend(q, *caches, *tables, causal=causal, **options)
    is_one_for_all = _is_one_for_all(plan, q)
    if is_one_for_all and _by_tma(q, attend, options):
        with contextlib.suppress(RefusedError):
            together = _on_tensor_cores("shared_segment").attend_together
            of_segment = plan.segments[0].block_table
            return together(q, *caches, *tables, of_segment, causal=causal, **options)
    first = attend(q, *caches, *tables, causal=causal, **options)
    xp, (batch, seqlen_q, num_heads, head_dim) = arrays.module_of(q), q.shape
    if is_one_for_all:  # six launches fewer than below
        queries = q.reshape(1, -1, num_heads, head_dim)
        out, lse = _attend_to(plan.segments[0], queries, caches, attend, options)
        out = out.reshape(q.shape).astype(q.dtype, copy=False)
        lse = lse.reshape(num_heads, batch, seqlen_q).transpose(1, 0, 2)
        return merge_states(*first, out, lse)
    states = 2 + plan.segments[-1].depth
    outs = xp.zeros((states, *q.shape), np.float32)
    lses = xp.full((states, batch, num_heads, seqlen_q), -np.inf, np.float32)
    outs[0], lses[0] = first
    for segment in plan.segments:
        rows = _index(segment.rows)
        queries = q[rows].reshape(1, -1, num_heads, head_dim)
        out, lse = _attend_to(segment, queries, caches, attend, options)
        outs[1 + segment.depth, rows] = out.reshape(-1, *q.shape[1:])
        lse = lse.reshape(num_heads, -1, seqlen_q)
        lses[1 + segment.depth, rows] = lse.transpose(1, 0, 2)
    return _merged(q, outs, lses, on_engine=attend is not paged_attn_decode)


def _by_tma(q, attend, options):
    """Whether TMA may read a segment page by page: on Hopper GPUs, 16 bits."""
    if arrays.library_of(q) == "numpy" or attend is not paged_attn_decode or "k_scale" in options:
        return False
    return q.dtype.itemsize == 2 and arrays.compute_capability(q)[0] == HOPPER[0]


def _on_tensor_cores(name):
    """A module that is imported on a GPU for it alone: some versions of Numba lack PTX."""
    return importlib.import_module(f"fa_numba.tensor_core.{name}")


def _is_one_for_all(plan, q):
    """Whether all sequences, in their order, share one segment, on a GPU."""
    rows = plan.segments[0].rows
    alone = len(plan.segments) == 1 and len(rows) == len(q) and isinstance(_index(rows), slice)
    return alone and arrays.library_of(q) != "numpy"


def _index(rows):
    """Rows of an array: as a slice, where they are neighbours, which copies nothing."""
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first == len(rows) - 1 else rows


def _attend_to(segment, queries, caches, attend, options):
    """The state of all queries and a segment.

    On a GPU many rows are work for the kernels of whole sequences, which read a key once for 64 or
    128 of them. Those that do not read pages by TMA take pages that lie one after the other as they
    are; others are copied. Only Hopper's divide the keys of 16 bits: the others need rows for an
    eighth of the SMs at least, or else the decoders are faster, though each of their tiles of
    TILE_ROWS reads the keys.
    """
    by_tma = _by_tma(queries, attend, options)
    if by_tma:
        with contextlib.suppress(RefusedError):
            attend_to_parts = _on_tensor_cores("flash_attn_split").flash_attn_split
            pages = {"block_table": segment.block_table, "out_dtype": "float32"}
            return attend_to_parts(queries, *caches, **pages, **options)
    heads, tables = caches[0].shape[2], (segment.block_table, segment.seq_lens)
    rows = queries.shape[1] * (queries.shape[2] // heads)  # of each K/V head
    many = rows > TILE_ROWS and attend is paged_attn_decode
    if not many or arrays.library_of(queries) == "numpy" or "k_scale" in options:
        return attend(queries, *caches, *tables, **options)
    if not by_tma and 8 * heads * ceil_div(rows, MANY_ROWS) < arrays.num_sms(queries):
        return attend(queries, *caches, *tables, **options)
    pages = segment.pages[0]
    start, stop = int(pages[0]), int(pages[-1]) + 1
    if not all(x.flags.c_contiguous for x in caches):
        keys = paged_kv_lookup(*caches, *tables, max_len=len(pages) * caches[0].shape[1])
    elif (np.diff(pages) == 1).all():
        keys = [x[start:stop].reshape(1, -1, *x.shape[2:]) for x in caches]
    else:
        keys = [_copied(x, segment.block_table[0]) for x in caches]
    return _attend_as_rows(queries, *keys, options)


def _copied(cache, pages):
    """Pages one after the other, moved 16 bytes at a time where a page is made of such packets."""
    rows = cache.reshape(len(cache), -1)
    packets = np.dtype(np.complex128).itemsize
    if rows.shape[1] * cache.itemsize % packets == cache.data.ptr % packets == 0:
        rows = rows.view(np.complex128)
    return rows.take(pages, axis=0).view(cache.dtype).reshape(1, -1, *cache.shape[2:])


def _attend_as_rows(queries, k, v, options):
    """The state, with the query heads of a group as rows: a key is read once for all of them.

    No row of a segment is masked, so that a row may be a query of any head.
    """
    _, n, num_heads, head_dim = queries.shape
    heads = k.shape[2]
    rows = queries.reshape(n, heads, -1, head_dim).transpose(0, 2, 1, 3)
    out, lse = flash_attn(rows.reshape(1, -1, heads, head_dim), k, v, **options)
    out = out.reshape(n, -1, heads, head_dim).transpose(0, 2, 1, 3)
    lse = lse.reshape(heads, n, -1).transpose(0, 2, 1)
    return out.reshape(queries.shape), lse.reshape(1, num_heads, n)


def _merged(q, outs, lses, on_engine):
    """⊕ of the states of each row: by a kernel, or in NumPy."""
    if arrays.library_of(q) == "numpy" and not on_engine:
        top = lses.max(axis=0)
        weights = np.exp(lses - np.where(np.isneginf(top), np.float32(0), top))
        total = weights.sum(axis=0)
        with np.errstate(divide="ignore"):  # −∞ of a row that sees no key
            lse = top + np.log(total)
        weights /= np.where(total > 0, total, np.float32(1))
        return np.einsum("sbhm,sbmhd->bmhd", weights, outs).astype(q.dtype), lse
    out = arrays.empty(q, q.shape, q.dtype)
    lse = arrays.empty(q, lses.shape[1:])
    if arrays.library_of(q) != "numpy":
        launch_combine_wide(outs, lses, out, lse)
        return out, lse
    batch, seqlen_q, num_heads, head_dim = q.shape
    grid = (seqlen_q, num_heads, batch)
    combine = make_combine(head_dim)
    arrays.launch(combine, grid, (WARP_SIZE,), outs, lses, out, lse, np.float32(0))
    return out, lse
