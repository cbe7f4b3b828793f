"""Checks of key-value caches: contiguous ones, pages, page pools, tokens and requests."""

import dataclasses
import operator
from collections.abc import Mapping, Set

import numpy as np

from fa_numba.checks.refused import RefusedValueError
from fa_numba.checks.requirements import (
    MAX_GRID,
    MAX_HEAD_DIM,
    MAX_ROW_DIM,
    ONE_HEAD_DIM,
    Q_AXES,
    hint_of_heads_before_slots,
    require_axes,
    require_bytes,
    require_cache_dtypes,
    require_divisible_heads,
    require_grid,
    require_group_of_bytes,
    require_head_dim,
    require_int32,
    require_lengths,
    require_no_repeats,
    require_one_dtype,
    require_one_for_each,
    require_one_library,
    require_rows,
    require_same_shape,
    require_writable,
)
from fa_numba.checks.values import check_positive_scale, integer
from fa_numba.runtime import arrays
from fa_numba.runtime.arrays import facts

NEW_AXES = ("batch", "seqlen_new", "num_kv_heads", "head_dim")
CACHE_AXES = ("num_pages", "page_size", "num_kv_heads", "head_dim")
LATENT_AXES = ("batch", "max_len", "row_dim")
PAGED_LATENT_AXES = ("num_pages", "page_size", "row_dim")
TOKEN_AXES = ("num_tokens", "num_kv_heads", "head_dim")
TABLE_AXES = ("batch", "max_pages")
SWIZZLED_ROWS = 8  # after which the swizzle repeats: TMA copies as many, or a multiple


# Contiguous and rolling caches


def check_cache_shape(batch, max_len, num_kv_heads, head_dim, like) -> tuple:
    """Return the shape of a contiguous cache as ints; raise unless `like` is an array."""
    like = facts(like)
    require_one_library(like=like)
    require_one_dtype(like=like)
    batch = integer("batch", batch, at_least=0)
    max_len = integer("max_len", max_len, at_least=1)
    num_kv_heads = integer("num_kv_heads", num_kv_heads, at_least=1)
    head_dim = integer("head_dim", head_dim, at_least=1, at_most=MAX_HEAD_DIM)
    _require_slots_fit("batch * max_len", batch * max_len)
    return batch, max_len, num_kv_heads, head_dim


def check_window(window, num_sinks) -> tuple:
    """Return the two sizes of a rolling cache as ints."""
    window = integer("window", window, at_least=1)
    num_sinks = integer("num_sinks", num_sinks, at_least=0)
    _require_slots_fit("window + num_sinks", window + num_sinks)
    return window, num_sinks


def check_append(k, v, k_cache, num_new) -> np.ndarray:
    """Return the number of new tokens of each sequence, int32; raise unless k and v hold them."""
    k, v, k_cache = facts(k), facts(v), facts(k_cache)
    require_one_library(k=k, v=v, k_cache=k_cache)
    require_one_dtype(k=k, v=v, k_cache=k_cache)
    require_rows(NEW_AXES, k=k, v=v)
    require_same_shape("v", v, "k", k)
    batch, _, *token = k_cache.shape
    seqlen_new = k.shape[1]
    if k.shape != (batch, seqlen_new, *token):
        want = ", ".join(map(str, (batch, "seqlen_new", *token)))
        raise ValueError(f"k must have shape ({want}) for this cache, got {k.shape}")
    got = np.full(batch, seqlen_new) if num_new is None else num_new
    try:
        num_new = np.asarray(got)
    except ValueError:  # rows of different lengths
        num_new = np.empty(0)
    if num_new.shape != (batch,) or num_new.dtype.kind not in "iu":
        raise ValueError(
            f"num_new must be {batch} integers, one for each sequence, got {got!s:.60}"
        )
    for b in np.flatnonzero((num_new < 0) | (num_new > seqlen_new))[:1]:
        raise ValueError(
            f"num_new[{b}] must be from 0 to seqlen_new = {seqlen_new}, got {num_new[b]}"
        )
    return num_new.astype(np.int32)


def check_room(lengths, num_new, max_len) -> np.ndarray:
    """Return the lengths with the new tokens; raise unless each sequence has room for its own."""
    for b in np.flatnonzero(lengths + num_new > max_len)[:1]:
        raise ValueError(
            f"num_new[{b}] must be at most max_len - lengths[{b}] = {max_len} - {lengths[b]} "
            f"= {max_len - lengths[b]}, got {num_new[b]}: the row is full"
        )
    return lengths + num_new


def check_head_shard(num_heads, num_kv_heads, num_shards, shard):
    """Raise unless the heads can be divided equally among so many devices."""
    sizes = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "num_shards": num_shards}
    for name, size in sizes.items():
        integer(name, size, at_least=1)
    if num_heads % num_kv_heads:
        raise ValueError(
            f"num_heads must be a multiple of num_kv_heads, got {num_heads} and {num_kv_heads}"
        )
    if num_heads % num_shards:
        raise ValueError(
            f"num_shards must divide num_heads, got {num_shards} for {num_heads} heads"
        )
    if num_kv_heads % num_shards and num_shards % num_kv_heads:
        raise ValueError(
            "num_shards must divide num_kv_heads or be a multiple of it, "
            f"got {num_shards} for {num_kv_heads} heads"
        )
    if integer("shard", shard, at_least=0) >= num_shards:
        raise ValueError(f"shard must be from 0 to {num_shards - 1}, got {shard}")


# Paged caches


def check_paged(k_cache, v_cache, block_table, seq_lens, max_len) -> int:
    """Raise unless the block table maps sequences to pages of the caches; return max_len.

    The contents of the tables are read only from NumPy arrays; reading a GPU array waits for it.
    For GPU arrays only the longest length is read, and only if `max_len` is None.
    """
    k_cache, v_cache, block_table, seq_lens = map(facts, (k_cache, v_cache, block_table, seq_lens))
    _require_tables(k_cache, v_cache, block_table, seq_lens)
    batch, max_pages = block_table.shape
    page_size = k_cache.shape[1]
    if batch > MAX_GRID:
        raise ValueError(f"batch must be at most {MAX_GRID}, got {batch}")
    if max_len is not None:
        max_len = integer("max_len", max_len, at_least=0)
        if max_len > max_pages * page_size:
            raise ValueError(
                f"max_len must be at most max_pages * page_size = {max_pages * page_size}, "
                f"got {max_len}"
            )
    if max_len is not None and seq_lens.library != "numpy":
        return max_len
    lengths = arrays.to_numpy(seq_lens.array)
    longest = int(lengths.max(initial=0))
    if max_len is None:
        require_lengths(lengths, "max_pages * page_size", max_pages * page_size)
    else:
        require_lengths(lengths, "max_len", max_len)
    if block_table.library == "numpy":
        _require_used_pages(block_table.array, lengths, *k_cache.shape[:2])
    return longest if max_len is None else max_len


def check_paged_decode(
    q,
    k_cache,
    v_cache,
    block_table,
    seq_lens,
    k_scale=None,
    v_scale=None,
    *,
    head_dims=ONE_HEAD_DIM,
):
    """Raise unless the queries are of the sequences that the block table maps to pages.

    The contents of the tables are read only from NumPy arrays; reading a GPU array waits for it.
    """
    q, k_cache, v_cache = facts(q), facts(k_cache), facts(v_cache)
    block_table, seq_lens = facts(block_table), facts(seq_lens)
    more = block_table, seq_lens, k_scale, v_scale
    check_paged_decode_layouts(q, k_cache, v_cache, *more, head_dims=head_dims)
    if q.library == "numpy":
        check_paged_decode_contents(block_table.array, seq_lens.array, k_cache)


def check_paged_decode_layouts(
    q,
    k_cache,
    v_cache,
    block_table,
    seq_lens,
    k_scale=None,
    v_scale=None,
    *,
    head_dims=ONE_HEAD_DIM,
):
    """Make those checks of `check_paged_decode` that read no table."""
    q, k_cache, v_cache = facts(q), facts(k_cache), facts(v_cache)
    block_table, seq_lens = facts(block_table), facts(seq_lens)
    require_one_library(
        q=q, k_cache=k_cache, v_cache=v_cache, block_table=block_table, seq_lens=seq_lens
    )
    require_rows(Q_AXES, q=q)
    _require_tables(k_cache, v_cache, block_table, seq_lens, bytes=True, head_dims=head_dims)
    require_cache_dtypes(q, k_cache, v_cache, k_scale, v_scale)
    batch, _, num_heads, _ = q.shape
    require_grid(batch, num_heads)
    hint = hint_of_heads_before_slots(q, k_cache)
    require_divisible_heads(num_heads, k_cache.shape[2], "k_cache and v_cache", hint)
    require_group_of_bytes(q, k_cache)
    head_dims.check(q=q, k_cache=k_cache, v_cache=v_cache)
    require_one_for_each("block_table", block_table, "a row", batch, "sequences of q")


def keys_of_pages(k, v, block_table, mask=None, score=None) -> tuple:
    """Facts of pages of keys and values as if these were contiguous; raise unless TMA reads them.

    Each row of the block table has whole pages alone. There is no kernel with the user's functions.
    """
    if mask is not None or score is not None:
        name, function = ("score", score) if mask is None else ("mask", mask)
        raise RefusedValueError(f"{name} must be None with a block_table, got {function!r:.40}")
    k, v, block_table = map(facts, (k, v, block_table))
    require_one_library(k=k, v=v, block_table=block_table)
    _require_caches(k, v, ("k", "v"))
    require_same_shape("v", v, "k", k)
    require_int32(TABLE_AXES, block_table=block_table)
    batch, max_pages = block_table.shape
    page_size = k.shape[1]
    if page_size % SWIZZLED_ROWS:
        raise RefusedValueError(
            f"k must have a page_size that is a multiple of {SWIZZLED_ROWS}, got {page_size}"
        )
    shape = batch, max_pages * page_size, *k.shape[2:]
    return dataclasses.replace(k, shape=shape), dataclasses.replace(v, shape=shape)


def check_paged_decode_contents(block_table, seq_lens, k_cache):
    """Make those checks of `check_paged_decode` that read the tables, NumPy arrays."""
    require_lengths(seq_lens, "max_pages * page_size", block_table.shape[1] * k_cache.shape[1])
    _require_used_pages(block_table, seq_lens, *k_cache.shape[:2])


def check_latent_decode(q, latent_cache, seq_lens, block_table, latent_dim) -> int:
    """Return latent_dim as an int; raise unless queries, cache and tables are of one model's MLA.

    The contents of the tables are read only from NumPy arrays; reading a GPU array waits for it.
    """
    q, cache, lengths = facts(q), facts(latent_cache), facts(seq_lens)
    require_one_library(q=q, latent_cache=cache, seq_lens=lengths)
    require_one_dtype(q=q, latent_cache=cache)
    require_rows(("batch", "seqlen_q", "num_heads", "row_dim"), q=q)
    paged = block_table is not None
    require_rows(PAGED_LATENT_AXES if paged else LATENT_AXES, latent_cache=cache)
    batch, _, num_heads, row_dim = q.shape
    require_grid(batch, num_heads)
    if num_heads == 0:
        raise ValueError("q must have at least one head, got num_heads=0")
    if not 1 <= row_dim <= MAX_ROW_DIM:
        raise ValueError(f"q must have row_dim from 1 to {MAX_ROW_DIM}, got {row_dim}")
    if cache.shape[2] != row_dim:
        raise ValueError(
            f"latent_cache must have the row_dim of q, {row_dim}, got {cache.shape[2]}"
        )
    latent_dim = integer("latent_dim", latent_dim, at_least=1)
    if latent_dim > row_dim:
        raise ValueError(f"latent_dim must be at most row_dim = {row_dim}, got {latent_dim}")
    require_int32(("batch",), seq_lens=lengths)
    rows = {"seq_lens": lengths}
    if paged:
        if cache.shape[1] == 0:
            raise ValueError("latent_cache must have a page_size of at least 1, got 0")
        rows["block_table"] = block_table = facts(block_table)
        require_one_library(q=q, block_table=block_table)
        require_int32(TABLE_AXES, block_table=block_table)
    else:
        rows["latent_cache"] = cache
    for name, x in rows.items():
        require_one_for_each(name, x, "a row", batch, "sequences of q")
    if q.library == "numpy":
        if paged:
            check_paged_decode_contents(block_table.array, lengths.array, cache)
        else:
            require_lengths(lengths.array, "max_len", cache.shape[1])
    return latent_dim


def check_cascade_tables(block_table, seq_lens, page_size, seqlen_q) -> tuple:
    """Return a block table and lengths as NumPy arrays; raise unless they are, and fit."""
    table, lengths = facts(block_table), facts(seq_lens)
    _require_on_host("shared pages are found on the host", block_table=table, seq_lens=lengths)
    _require_table_and_lengths(table, lengths)
    page_size = integer("page_size", page_size, at_least=1)
    integer("seqlen_q", seqlen_q, at_least=0)
    require_lengths(lengths.array, "max_pages * page_size", table.shape[1] * page_size)
    return table.array, lengths.array


def check_cascade(q, k_cache, v_cache, plan):
    """Raise unless `plan` is a plan for these queries and this cache."""
    q, k_cache, v_cache = map(facts, (q, k_cache, v_cache))
    require_one_library(q=q, k_cache=k_cache, v_cache=v_cache)
    if q.library not in ("numpy", "cupy"):
        raise TypeError(f"q must be a NumPy or CuPy array, got {arrays.LIBRARIES[q.library]}")
    require_axes("q", q, Q_AXES)
    require_axes("k_cache", k_cache, CACHE_AXES)
    ONE_HEAD_DIM.check(q=q, k_cache=k_cache, v_cache=v_cache)
    if not hasattr(plan, "segments"):
        raise TypeError(f"plan must be a CascadePlan, from cascade_plan, got {type(plan).__name__}")
    planned = len(plan.seq_lens), plan.seqlen_q, plan.page_size
    given = *q.shape[:2], k_cache.shape[1]
    if planned != given:
        raise ValueError(
            f"plan must be for the batch, seqlen_q and page_size of q and k_cache, {given}, "
            f"got {planned}"
        )


def check_write(k, v, k_cache, v_cache, slot_mapping, k_scale=None, v_scale=None):
    """Raise unless these are tokens, caches to write them to, and a slot for each or −1.

    The slots are read only from a NumPy array; reading a GPU array waits for it.
    """
    k, v, k_cache, v_cache, slots = map(facts, (k, v, k_cache, v_cache, slot_mapping))
    require_one_library(k=k, v=v, k_cache=k_cache, v_cache=v_cache, slot_mapping=slots)
    _require_caches(k_cache, v_cache, bytes=True)
    if k_scale is v_scale is None and k_cache.dtype != "uint8":
        require_one_dtype(k=k, v=v, k_cache=k_cache, v_cache=v_cache)
    else:
        require_one_dtype(k=k, v=v)
        require_bytes(k_cache, v_cache, k_scale, v_scale)
        if len(k_scale.shape) == 3:  # written, too
            for name, x in (("k_scale", k_scale), ("v_scale", v_scale)):
                require_writable(name, facts(x))
    require_rows(TOKEN_AXES, k=k, v=v)
    require_same_shape("v", v, "k", k)
    if k.shape[1:] != k_cache.shape[2:]:
        raise ValueError(
            "k and v must have the num_kv_heads and head_dim of the caches, "
            f"{k_cache.shape[2:]}, got {k.shape[1:]}"
        )
    _require_slots(slots, k)
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        require_writable(name, cache)
    if k_cache.array is v_cache.array:
        raise ValueError("v_cache must be another array than k_cache, got one array for both")
    if slots.library == "numpy":
        slots, num_slots = slots.array, k_cache.shape[0] * k_cache.shape[1]
        for i in np.flatnonzero((slots < -1) | (slots >= num_slots))[:1]:
            raise ValueError(
                f"slot_mapping[{i}] must be a slot from 0 to {num_slots - 1}, or -1 for a token "
                f"that is skipped, got {slots[i]}"
            )
        require_no_repeats("slot_mapping", slots, "slot")


def _require_contiguous(name, x):
    step = x.itemsize
    for length, stride in zip(reversed(x.shape), reversed(x.strides), strict=True):
        if length > 1 and stride != step:
            raise ValueError(f"{name} must be contiguous, got strides {x.strides}")
        step *= length


def _require_bounds(k_min, k_max, **keys):
    require_one_library(k_min=k_min, k_max=k_max)
    require_one_dtype(**keys, k_min=k_min, k_max=k_max)
    for name, x in (("k_min", k_min), ("k_max", k_max)):
        require_axes(name, x, ("num_pages", "num_kv_heads", "head_dim"))
    require_same_shape("k_max", k_max, "k_min", k_min)


def check_page_bounds(k, k_min, k_max, slot_mapping, page_size) -> int:
    """Return page_size as an int; raise unless these are keys, bounds and a slot for each key.

    The slots are read only from a NumPy array; reading a GPU array waits for it.
    """
    k, k_min, k_max, slots = map(facts, (k, k_min, k_max, slot_mapping))
    require_one_library(k=k, k_min=k_min, k_max=k_max, slot_mapping=slots)
    require_axes("k", k, TOKEN_AXES)
    _require_bounds(k_min, k_max, k=k)
    for name, x in (("k_min", k_min), ("k_max", k_max)):
        require_writable(name, x)
    if k.shape[1:] != k_min.shape[1:]:
        raise ValueError(
            "k must have the num_kv_heads and head_dim of k_min and k_max, "
            f"{k_min.shape[1:]}, got {k.shape[1:]}"
        )
    _require_slots(slots, k)
    page_size = integer("page_size", page_size, at_least=1)
    if slots.library == "numpy":
        end = k_min.shape[0] * page_size
        for i in np.flatnonzero((slots.array < -1) | (slots.array >= end))[:1]:
            raise ValueError(
                f"slot_mapping[{i}] must be from -1 to {end - 1}, got {slots.array[i]}"
            )
        pages = slots.array // page_size
        starts = np.flatnonzero(np.diff(pages, prepend=-2))  # of each run of tokens of a page
        used, counts = np.unique(pages[starts], return_counts=True)
        for page in used[(counts > 1) & (used >= 0)][:1]:
            i, j = starts[pages[starts] == page][:2]
            raise ValueError(
                "slot_mapping must have the tokens of a page as neighbours, got tokens of page "
                f"{page} at {i} and again at {j}"
            )
    return page_size


def check_page_scores(q, k_min, k_max, block_table, seq_lens, page_size) -> int:
    """Return page_size as an int; raise unless the table maps the queries' sequences to bounds."""
    q, k_min, k_max, block_table, seq_lens = map(facts, (q, k_min, k_max, block_table, seq_lens))
    require_one_library(q=q, k_min=k_min, block_table=block_table, seq_lens=seq_lens)
    require_axes("q", q, Q_AXES)
    require_grid(*q.shape[::2])
    _require_bounds(k_min, k_max, q=q)
    for name, x in (("k_min", k_min), ("k_max", k_max)):
        _require_contiguous(name, x)
    page_size = integer("page_size", page_size, at_least=1)
    _require_table_and_lengths(block_table, seq_lens)
    require_one_for_each("block_table", block_table, "a row", q.shape[0], "sequences of q")
    if q.shape[1] != 1:
        raise ValueError(f"q must have one query of each sequence, got {q.shape[1]}")
    if q.shape[3] != k_min.shape[2]:
        raise ValueError(f"q must have the head_dim of k_min, {k_min.shape[2]}, got {q.shape[3]}")
    require_divisible_heads(q.shape[2], k_min.shape[1], "k_min and k_max")
    if q.library == "numpy":
        end = block_table.shape[1] * page_size
        require_lengths(seq_lens.array, "max_pages * page_size", end)
        _require_used_pages(block_table.array, seq_lens.array, k_min.shape[0], page_size)
    return page_size


def check_topk_decode(q, k_cache, v_cache, k_min, k_max, num_top_pages, softmax_scale) -> tuple:
    """Return num_top_pages and softmax_scale; raise unless pages of one head can be cut.

    `check_page_scores` and `check_paged_decode` make the other checks.
    """
    q, k_cache, v_cache, k_min, k_max = map(facts, (q, k_cache, v_cache, k_min, k_max))
    require_one_library(q=q, k_cache=k_cache, v_cache=v_cache, k_min=k_min, k_max=k_max)
    if q.library not in ("numpy", "cupy"):
        raise TypeError(f"q must be a NumPy or CuPy array, got {arrays.LIBRARIES[q.library]}")
    require_axes("q", q, Q_AXES)
    _require_caches(k_cache, v_cache)
    for name, x in (("k_cache", k_cache), ("v_cache", v_cache)):
        _require_contiguous(name, x)
    require_head_dim("q", q.shape[3])
    num_top_pages = integer("num_top_pages", num_top_pages, at_least=1)
    return num_top_pages, check_positive_scale(softmax_scale, q.shape[3])


def check_copy(k_cache, v_cache, src, dst):
    """Raise unless pages src[i] of the caches can be copied to pages dst[i] in any order.

    The page numbers are read only from NumPy arrays; reading a GPU array waits for it.
    """
    k_cache, v_cache, src, dst = map(facts, (k_cache, v_cache, src, dst))
    require_one_library(k_cache=k_cache, v_cache=v_cache, src=src, dst=dst)
    _require_caches(k_cache, v_cache, bytes=True)
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        require_writable(name, cache)
    _require_page_numbers(src, dst)
    if src.library == "numpy":
        _require_pages_of("k_cache", k_cache, src=src.array, dst=dst.array)
        _require_disjoint(src.array, dst.array)


def check_swap(k_src, v_src, k_dst, v_dst, src, dst):
    """Raise unless pages src[i] of one pair of caches can be copied to pages dst[i] of another."""
    k_src, v_src, k_dst, v_dst = map(facts, (k_src, v_src, k_dst, v_dst))
    src, dst = facts(src), facts(dst)
    require_one_library(k_src=k_src, v_src=v_src)
    require_one_library(k_dst=k_dst, v_dst=v_dst)
    _require_caches(k_src, v_src, names=("k_src", "v_src"), bytes=True)
    _require_caches(k_dst, v_dst, names=("k_dst", "v_dst"), bytes=True)
    if not k_src.dtype == k_dst.dtype == "uint8":
        require_one_dtype(k_src=k_src, k_dst=k_dst)
    if k_src.shape[1:] != k_dst.shape[1:]:
        raise ValueError(
            f"k_dst and v_dst must have the pages of k_src, {k_src.shape[1:]}, "
            f"got {k_dst.shape[1:]}"
        )
    if "numpy" not in (k_src.library, k_dst.library):
        require_one_library(k_src=k_src, k_dst=k_dst)
    for name, cache in (("k_dst", k_dst), ("v_dst", v_dst)):
        require_writable(name, cache)
    _require_on_host("the page numbers are needed on the host", src=src, dst=dst)
    _require_page_numbers(src, dst)
    _require_pages_of("k_src", k_src, src=src.array)
    _require_pages_of("k_dst", k_dst, dst=dst.array)
    if k_src.array is k_dst.array or v_src.array is v_dst.array:
        _require_disjoint(src.array, dst.array)


def _require_tables(k_cache, v_cache, block_table, seq_lens, bytes=False, head_dims=ONE_HEAD_DIM):
    """Raise unless these are a paged cache and its tables, whatever their contents."""
    require_one_library(
        k_cache=k_cache, v_cache=v_cache, block_table=block_table, seq_lens=seq_lens
    )
    _require_caches(k_cache, v_cache, bytes=bytes, head_dims=head_dims)
    _require_table_and_lengths(block_table, seq_lens)


def _require_table_and_lengths(block_table, seq_lens):
    """Raise unless these are int32, with a row and a length for each sequence."""
    require_int32(TABLE_AXES, block_table=block_table)
    require_int32(("batch",), seq_lens=seq_lens)
    batch = block_table.shape[0]
    require_one_for_each("seq_lens", seq_lens, "one length", batch, "rows of block_table")


def _require_slots(slots, k):
    require_int32(("num_tokens",), slot_mapping=slots)
    require_one_for_each("slot_mapping", slots, "a slot", k.shape[0], "tokens of k")


def _require_on_host(why, **named):
    for name, x in named.items():
        if x.library != "numpy":
            raise TypeError(f"{name} must be a NumPy array: {why}, got {type(x.array).__name__}")


def _require_caches(
    k_cache, v_cache, names=("k_cache", "v_cache"), bytes=False, head_dims=ONE_HEAD_DIM
):
    """Raise unless these are the keys and values of one paged cache, with `bytes` also of e4m3."""
    caches = dict(zip(names, (k_cache, v_cache), strict=True))
    dtypes = {k_cache.dtype, v_cache.dtype}
    if not (bytes and dtypes == {"uint8"}):
        require_one_dtype(mixed_with="uint8" if bytes else None, **caches)
    require_rows(CACHE_AXES, **caches)
    head_dims.check_values(**caches)
    k_name, _ = names
    _, page_size, num_kv_heads, _ = k_cache.shape
    if page_size == 0 or num_kv_heads == 0:
        raise ValueError(
            f"{k_name} must have page_size and num_kv_heads of at least 1, got {page_size=}, "
            f"{num_kv_heads=}"
        )


def _require_used_pages(block_table, lengths, num_pages, page_size):
    """Raise unless each page within a sequence's length is one of the cache."""
    used = np.arange(block_table.shape[1]) * page_size < lengths[:, None]
    for b, i in np.argwhere(used & ((block_table < 0) | (block_table >= num_pages)))[:1]:
        raise ValueError(
            f"block_table[{b}, {i}] must be a page from 0 to {num_pages - 1}, because "
            f"seq_lens[{b}] = {lengths[b]} reaches it, got {block_table[b, i]}"
        )


def _require_page_numbers(src, dst):
    """Raise unless src and dst are arrays of equally many integers; in dst none comes twice."""
    require_int32(("num_copies",), src=src, dst=dst)
    require_same_shape("dst", dst, "src", src)
    if dst.library == "numpy":
        require_no_repeats("dst", dst.array, "page")


def _require_pages_of(cache_name, cache, **named):
    """Raise unless the page numbers in NumPy arrays are those of pages of the cache."""
    num_pages = cache.shape[0]
    for name, pages in named.items():
        for i in np.flatnonzero((pages < 0) | (pages >= num_pages))[:1]:
            raise ValueError(
                f"{name}[{i}] must be a page of {cache_name}, from 0 to {num_pages - 1}, "
                f"got {pages[i]}"
            )


def _require_disjoint(src, dst):
    """Raise if a page is both copied and overwritten."""
    for i in np.flatnonzero(np.isin(dst, src))[:1]:
        raise ValueError(
            "src and dst must have no page in common, because the copies are made in any "
            f"order, got dst[{i}] = {dst[i]}, which is also src[{np.argmax(src == dst[i])}]"
        )


def _require_slots_fit(product, num_slots):
    if num_slots > 2**31:
        raise ValueError(
            f"{product} must be at most 2**31, so that a slot fits an int32, got {num_slots}"
        )


# Page pools, sequences and tokens


def check_pool(num_pages, page_size, names=("num_pages", "page_size")) -> tuple:
    """Return the sizes of a page pool as ints; `names` are those of the caller's arguments."""
    num_pages = integer(names[0], num_pages, at_least=1)
    page_size = integer(names[1], page_size, at_least=1)
    _require_slots_fit(" * ".join(names), num_pages * page_size)
    return num_pages, page_size


def check_pools(pool, host_pool):
    """Raise unless `pool`, and `host_pool` if there is one, are pools with pages of one size."""
    for name, x in (("pool", pool), ("host_pool", pool if host_pool is None else host_pool)):
        if not hasattr(x, "page_size"):
            raise TypeError(f"{name} must be a PagePool, got {type(x).__name__}")
    if host_pool is pool:
        raise ValueError("host_pool must be another pool than pool, got the same")
    if host_pool is not None and host_pool.page_size != pool.page_size:
        raise ValueError(
            f"host_pool must have the page_size of pool, {pool.page_size}, "
            f"got {host_pool.page_size}"
        )


def check_request(request, running, waiting):
    """Raise unless a scheduler has this request."""
    if request not in running and request not in waiting:
        raise ValueError(
            f"request must be running or waiting in this scheduler, got {request!r:.60}"
        )


def check_seq(seq, sequences):
    """Raise unless `seq` is one of the sequences of a page pool."""
    seq = integer("seq", seq)
    if seq not in sequences:
        raise ValueError(f"seq must be a sequence of this pool, not freed, got {seq}")


def check_seqs(seqs) -> list:
    """Return the sequences as a list; raise unless they can be iterated over."""
    try:
        return list(seqs)
    except TypeError:
        raise TypeError(f"seqs must be a sequence of integers, got {seqs!r:.60}") from None


def check_page(page, num_pages) -> int:
    """Return the number of a pool's page as an int."""
    page = integer("page", page)
    if not 0 <= page < num_pages:
        raise ValueError(f"page must be a page of this pool, from 0 to {num_pages - 1}, got {page}")
    return page


def check_beams(seqs, parents, sequences) -> tuple:
    """Return the beams, and for each new beam the index of the one it continues: lists of ints."""
    seqs = check_seqs(seqs)
    for seq in seqs:
        check_seq(seq, sequences)
        if seqs.count(seq) > 1:
            raise ValueError(f"seqs must not name a sequence twice, got {seqs}")
    try:
        indices = [operator.index(parent) for parent in parents]
    except TypeError:
        raise TypeError(f"parents must be a sequence of integers, got {parents!r:.60}") from None
    for i, parent in enumerate(indices):
        if not 0 <= parent < len(seqs):
            raise ValueError(
                f"parents[{i}] must be the index of one of the {len(seqs)} beams, got {parent}"
            )
    return seqs, indices


def check_tokens(tokens) -> list:
    """Return the tokens of a sequence as a list of ints."""
    if isinstance(tokens, (Mapping, Set)):
        raise TypeError(
            f"tokens must be a sequence of integers, got {tokens!r:.60}, which has no order"
        )
    if isinstance(tokens, np.ndarray) and tokens.dtype.kind in "iu" and tokens.ndim == 1:
        tokens = tokens.tolist()
    if type(tokens) is list and set(map(type, tokens)) <= {int}:  # a server checks many in a step
        checked = tokens.copy()
    else:
        try:
            checked = [_token(token) for token in tokens]
        except TypeError:
            raise TypeError(f"tokens must be a sequence of integers, got {tokens!r:.60}") from None
    if checked and not -(2**63) <= min(checked) <= max(checked) < 2**63:  # as they are hashed
        raise ValueError(f"tokens must be integers that an int64 can hold, got {tokens!r:.60}")
    return checked


def _token(token):
    if isinstance(token, bool):
        raise TypeError
    return operator.index(token)


def check_new_tokens(tokens) -> dict:
    """Return the new tokens of each sequence as a dict of lists of ints."""
    if not isinstance(tokens, Mapping):
        raise TypeError(
            "tokens must be a dict of the new tokens of each sequence, {seq: [token]}, "
            f"got {tokens!r:.60}"
        )
    return {seq: check_tokens(new) for seq, new in tokens.items()}


def check_guesses(guesses, tokens) -> dict:
    """Return the number of guesses of some of the sequences that get tokens, {} for None."""
    if guesses is None:
        return {}
    if not isinstance(guesses, Mapping) or not guesses.keys() <= tokens.keys():
        raise ValueError(
            "guesses must be a dict of the number of guesses of sequences in tokens, got "
            f"{guesses!r:.60}"
        )
    return {seq: integer("guesses", n, at_least=0) for seq, n in guesses.items()}


def check_settled(tokens, room) -> list:
    """Return the tokens that guesses have become; raise if there are more than slots."""
    tokens = check_tokens(tokens)
    if len(tokens) > room:
        raise ValueError(f"tokens must be at most {room}, the slots for guesses, got {len(tokens)}")
    return tokens
