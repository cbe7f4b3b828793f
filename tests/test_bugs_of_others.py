"""Situations of public bug reports, rebuilt: docs/bugs_of_others.md says which report is which.

Each situation is one that went wrong elsewhere. Attention runs by the job, whose NumPy arrays are
computed on the CPU, and by a lesson kernel on the engine.
"""

import re
from pathlib import Path

import numpy as np
import pytest
from cases import assert_close, assert_defined, kernel_function, make_qkv, random
from numba import cuda, float32, int64

import fa_numba
from fa_numba import PagePool, merge_states, reference, simt
from numba_cuda_simulator.errors import (
    BarrierDivergenceError,
    KernelIndexError,
    RaceError,
    UninitialisedReadError,
)

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "bugs_of_others.md"
FORWARD = {"job": fa_numba.flash_attn, "kernel": fa_numba.flash_attn_v2}
BACKWARD = {"job": fa_numba.flash_attn_grad, "kernel": fa_numba.flash_attn_bwd}
DECODE = {"job": fa_numba.flash_decode, "kernel": kernel_function("flash_decode")}
PAGED = {"job": fa_numba.paged_attn_decode, "kernel": kernel_function("paged_attn_decode")}
each_way = pytest.mark.parametrize("way", FORWARD)


def check(way, q, k, v, **options):
    """out, lse and gradients, compared with the definition; returned."""
    out, lse = FORWARD[way](q, k, v, **options)
    dout = random(np.random.default_rng(1), *q.shape)
    gradients = BACKWARD[way](dout, q, k, v, out, lse, **options)
    got = out, lse, *gradients
    want, plain = (
        (
            *reference.attention(q, k, v, **options, dtype=dtype),
            *reference.attention_bwd(dout, q, k, v, **options, dtype=dtype),
        )
        for dtype in (np.float64, np.float32)
    )
    for name, *x in zip(("out", "lse", "dq", "dk", "dv"), got, want, plain, strict=True):
        assert_close(*x, name=name, factor=3, floor=4e-6)
    return got


# --- attention ---------------------------------------------------------------------------------


@each_way
@pytest.mark.parametrize("seqlen_q, seqlen_k", [(70, 6), (40, 1), (9, 0)])
def test_rows_that_see_no_key(rng, way, seqlen_q, seqlen_k):
    """Bottom-right causal with more queries than keys: whole leading tiles see no key."""
    q, k, v = make_qkv(rng, 1, seqlen_q, seqlen_k, 2, 1, 8)
    out, lse, dq, *_ = check(way, q, k, v, causal=True)
    empty = slice(0, seqlen_q - seqlen_k)
    assert not out[:, empty].any() and not dq[:, empty].any()
    assert (lse[:, :, empty] == -np.inf).all()


@each_way
def test_finite_scores_far_below_zero(rng, way):
    """All scores lie below the finite number that stands for a masked one elsewhere."""
    q, k, v = make_qkv(rng, 1, 12, 20, 1, 1, 4)
    q, k = 1 + abs(q), -3e5 * (1 + abs(k))
    out, lse = FORWARD[way](q, k, v, softmax_scale=1.0)
    assert lse.max() < -1e5 and np.isfinite(lse).all()
    assert_defined((out, lse), reference.attention, q, k, v, softmax_scale=1.0)


@each_way
@pytest.mark.parametrize("seqlen_k", [1, 7, 33, 65])
def test_queries_of_zero(rng, way, seqlen_k):
    """All scores are 0: columns beyond the last key, which are 0 too, may not count."""
    q, k, v = make_qkv(rng, 1, 5, seqlen_k, 1, 1, 8)
    out, lse = FORWARD[way](np.zeros_like(q), k, v)
    np.testing.assert_allclose(out, np.broadcast_to(v.mean(axis=1), out.shape), atol=1e-6)
    np.testing.assert_allclose(lse, np.log(seqlen_k), atol=1e-6)


@each_way
def test_nan_in_a_query_stays_nan_and_in_its_row(rng, way):
    q, k, v = make_qkv(rng, 1, 9, 20, 2, 2, 8)
    clean, _ = FORWARD[way](q, k, v)
    q[0, 4, 1, 3] = np.nan
    out, lse = FORWARD[way](q, k, v)
    assert np.isnan(out[0, 4, 1]).all() and np.isnan(lse[0, 1, 4])
    out[0, 4, 1] = clean[0, 4, 1]
    np.testing.assert_array_equal(out, clean)


@each_way
def test_both_ends_of_a_window_are_inclusive(rng, way):
    """A window of S − 1 keys to the left is no window; W − 1 are W tokens with the query's own."""
    q, k, v = make_qkv(rng, 1, 33, 33, 1, 1, 33)
    causal, _ = FORWARD[way](q, k, v, causal=True)
    for left in (-1, 32, 33):
        out, _ = FORWARD[way](q, k, v, window_size=(left, 0))
        np.testing.assert_allclose(out, causal, atol=1e-6)
    one_hot = np.eye(33, dtype=np.float32)[None, :, None]  # out is P
    for left, right in ((3, 0), (0, 0), (2, 5), (31, 0), (7, -1), (8, -1)):
        p, _ = FORWARD[way](q, k, one_hot, window_size=(left, right))
        distance = np.arange(33)[:, None] - np.arange(33)
        seen = (distance <= left) & ((right < 0) | (-distance <= right))
        np.testing.assert_array_equal(p[0, :, 0] > 0, seen)


@pytest.mark.parametrize("window_size", [(-5, 0), (0, -2)])
def test_a_window_of_negative_size_is_refused(rng, window_size):
    with pytest.raises(ValueError, match=r"window_size\[[01]\] must be at least -1, got -"):
        fa_numba.flash_attn(*make_qkv(rng, 1, 5, 5, 1, 1, 8), window_size=window_size)


def views(rng, *shape):
    """The same values in several memory layouts, with NaN in between."""
    x = random(rng, *shape)
    heads_first = np.full((shape[0], shape[2], shape[1], shape[3]), np.nan, np.float32)
    heads_first = heads_first.transpose(0, 2, 1, 3)
    every_second = np.full((shape[0], 2 * shape[1], *shape[2:]), np.nan, np.float32)[:, ::2]
    packed = np.full((*shape[:2], 3, *shape[2:]), np.nan, np.float32)[:, :, 1]
    backwards = np.full(shape, np.nan, np.float32)[:, ::-1]
    for view in (made := [heads_first, every_second, packed, backwards]):
        view[...] = x
    return x, made


@each_way
def test_q_k_and_v_of_different_strides(rng, way):
    """Each of q, k, v, dout has strides of its own; gaps along head_dim are refused."""
    (q, qs), (k, ks), (v, vs), (dout, douts) = (
        views(rng, 2, 19, heads, 8) for heads in (4, 2, 2, 4)
    )
    out, lse = FORWARD[way](q, k, v, causal=True)
    want = BACKWARD[way](dout, q, k, v, out, lse, causal=True)
    for i in range(4):
        x = qs[i], ks[(i + 1) % 4], vs[(i + 2) % 4]
        got = FORWARD[way](*x, causal=True)
        gradients = BACKWARD[way](douts[(i + 3) % 4], *x, *got, causal=True)
        for a, b in zip((*got, *gradients), (out, lse, *want), strict=True):
            np.testing.assert_array_equal(a, b)
    with pytest.raises(ValueError, match="v must be contiguous along its last axis"):
        FORWARD[way](q, k, np.repeat(v, 2, axis=3)[..., ::2])


@each_way
@pytest.mark.parametrize("heads", [(6, 2), (6, 3), (5, 1)])
def test_gradients_of_heads_that_share_keys(rng, way, heads):
    """Group sizes that are no powers of two, in lengths that are no multiples of a tile."""
    check(way, *make_qkv(rng, 2, 19, 37, *heads, 8), causal=True)


@each_way
def test_a_batch_has_the_gradients_of_its_sequences(rng, way):
    """At the largest head_dim, and with K/V heads that are shared."""
    q, k, v = make_qkv(rng, 2, 10, 10, 2, 1, 256)
    both = check(way, q, k, v, causal=True)
    dout = random(np.random.default_rng(1), *q.shape)
    for b in range(2):
        one = slice(b, b + 1)
        state = both[0][one], both[1][one]
        gradients = BACKWARD[way](dout[one], q[one], k[one], v[one], *state, causal=True)
        for got, want in zip(gradients, both[2:], strict=True):
            np.testing.assert_allclose(got, want[one], atol=1e-6)


@pytest.mark.parametrize("largest", [1, 9])
@pytest.mark.parametrize("head_dim", [8, 256])
def test_packed_sequences_without_queries_or_keys(rng, largest, head_dim):
    """The first, the last and middle sequences lack queries, keys, or both."""
    cu_q = np.int32(np.cumsum([0, 0, largest, 0, 1, 0]))
    cu_k = np.int32(np.cumsum([0, 3, 0, 5, 7, 0]))
    q = random(rng, cu_q[-1], 3, head_dim)
    k, v = (random(rng, cu_k[-1], 1, head_dim) for _ in "kv")
    dout = random(rng, *q.shape)
    out, lse = fa_numba.flash_attn_varlen(q, k, v, cu_q, cu_k, causal=True)
    gradients = fa_numba.flash_attn_varlen_grad(dout, q, k, v, out, lse, cu_q, cu_k, causal=True)
    got, packed = (out, lse, *gradients), (q, k, v, cu_q, cu_k)
    want, plain = (
        (
            *reference.varlen_attention(*packed, causal=True, dtype=dtype),
            *reference.varlen_attention_bwd(dout, *packed, causal=True, dtype=dtype),
        )
        for dtype in (np.float64, np.float32)
    )
    for name, *x in zip(("out", "lse", "dq", "dk", "dv"), got, want, plain, strict=True):
        assert_close(*x, name=name, floor=4e-6)
    assert not out[:largest].any() and not gradients[0][:largest].any()  # they see no key
    for dx in gradients[1:]:  # no query sees these keys
        assert not dx[:8].any()


@pytest.mark.parametrize("function", ["softmax", "safe_softmax", "online_softmax"])
def test_softmax_of_rows_that_have_none(rng, function):
    """NaN as the definition has it, in these rows alone; −inf among numbers is a 0."""
    x = random(rng, 6, 40)
    x[1], x[2, 3], x[3, 5], x[4, ::2] = -np.inf, np.inf, np.nan, -np.inf
    got = getattr(fa_numba, function)(x)
    assert np.isnan(got[[1, 2, 3]]).all() and not got[4, ::2].any()
    np.testing.assert_allclose(got[[0, 4, 5]].sum(axis=1), 1, atol=1e-5)


# --- caches ------------------------------------------------------------------------------------


def paged(k, page_size, spare=0):
    """k in pages, in a shuffled order, and the block table; `spare` pages more hold NaN."""
    batch, seqlen, *rest = k.shape
    num_pages = -(-seqlen // page_size)
    order = np.random.default_rng(3).permutation(batch * num_pages + spare)
    table = order[: batch * num_pages].reshape(batch, num_pages)
    cache = np.full((len(order), page_size, *rest), np.nan, np.float32)
    for b in range(batch):
        for i, page in enumerate(table[b]):
            rows = k[b, i * page_size : (i + 1) * page_size]
            cache[page, : len(rows)] = rows
    ahead = order[batch * num_pages :].reshape(1, spare).repeat(batch, axis=0)
    return cache, np.int32(np.concatenate([table, ahead], axis=1))


@each_way
@pytest.mark.parametrize("seqlen_q", [1, 3])
def test_nan_behind_the_length_is_not_read(rng, way, seqlen_q):
    """One sequence is empty, as in a batch that was padded for a CUDA graph."""
    q, k, v = make_qkv(rng, 4, seqlen_q, 70, 4, 2, 8)
    lengths = np.int32([70, 0, 33, 7])
    want = reference.cached_attention(q, k, v, lengths)
    for b, length in enumerate(lengths):
        k[b, length:], v[b, length:] = np.nan, np.nan
    pages, table = zip(*(paged(x, 16, spare=1) for x in (k, v)), strict=True)
    for out, lse in (DECODE[way](q, k, v, lengths), PAGED[way](q, *pages, table[0], lengths)):
        np.testing.assert_allclose(out, want[0], atol=1e-5)
        np.testing.assert_allclose(lse, want[1], atol=1e-5)


@each_way
def test_a_full_cache_is_its_slice(rng, way):
    """A cache longer than the sequence has the bits of one that ends with it."""
    q, k, v = make_qkv(rng, 2, 1, 96, 4, 2, 8)
    lengths = np.int32([40, 40])
    whole = DECODE[way](q, k, v, lengths, **({} if way == "job" else {"num_splits": 1}))
    part = DECODE[way](
        q, k[:, :40], v[:, :40], lengths, **({} if way == "job" else {"num_splits": 1})
    )
    for a, b in zip(whole, part, strict=True):
        np.testing.assert_array_equal(a, b)


@each_way
@pytest.mark.parametrize("page_size", [1, 16, 32])
def test_a_length_of_whole_pages(rng, way, page_size):
    """The next page is in the block table already, and holds NaN."""
    length = 64
    q, k, v = make_qkv(rng, 2, 1, length, 4, 2, 8)
    (k_cache, table), (v_cache, _) = (paged(x, page_size, spare=1) for x in (k, v))
    out, lse = PAGED[way](q, k_cache, v_cache, table, np.int32([length, length - page_size]))
    want = reference.cached_attention(q, k, v, np.int32([length, length - page_size]))
    np.testing.assert_allclose(out, want[0], atol=1e-5)
    np.testing.assert_allclose(lse, want[1], atol=1e-5)


@pytest.mark.parametrize("num_splits", [1, 2, 7])
def test_the_lse_of_a_cache_in_splits(rng, num_splits):
    """More splits than pages: some splits have no key. Each has its lse merged."""
    q, k, v = make_qkv(rng, 2, 1, 40, 4, 2, 8)
    lengths = np.int32([40, 3])
    (k_cache, table), (v_cache, _) = (paged(x, 16) for x in (k, v))
    want = reference.cached_attention(q, k, v, lengths)
    for out, lse in (
        PAGED["kernel"](q, k_cache, v_cache, table, lengths, num_splits=num_splits),
        DECODE["kernel"](q, k, v, lengths, num_splits=num_splits),
    ):
        np.testing.assert_allclose(out, want[0], atol=1e-5)
        np.testing.assert_allclose(lse, want[1], atol=1e-5)


@each_way
def test_prefix_and_suffix_make_the_whole(rng, way):
    """Every lse is a natural logarithm, so that states of two functions can be merged."""
    q, k, v = make_qkv(rng, 1, 1, 80, 4, 2, 8)
    whole = FORWARD[way](q, k, v)
    lengths = np.int32([64])
    (k_cache, table), (v_cache, _) = (paged(x[:, :64], 16) for x in (k, v))
    suffix = FORWARD[way](q, k[:, 64:], v[:, 64:])
    for prefix in (
        FORWARD[way](q, k[:, :64], v[:, :64]),
        DECODE[way](q, k[:, :64], v[:, :64], lengths),
        PAGED[way](q, k_cache, v_cache, table, lengths),
    ):
        for a, b in zip(merge_states(*prefix, *suffix), whole, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


def test_a_cache_of_more_than_2_31_numbers(rng, tmp_path):
    """The pages lie beyond 2³¹ numbers of the cache: an index of 32 bits would be negative."""
    q, k, v = make_qkv(rng, 1, 1, 32, 2, 1, 8)
    num_pages = 2**31 // (16 * 8) + 3
    caches = [
        np.memmap(tmp_path / name, np.float32, "w+", shape=(num_pages, 16, 1, 8)) for name in "kv"
    ]  # files with holes: two pages are stored
    table = np.int32([[num_pages - 1, num_pages - 2]])
    for cache, x in zip(caches, (k, v), strict=True):
        cache[table[0]] = x.reshape(2, 16, 1, 8)
    out, lse = fa_numba.paged_attn_decode(q, *map(np.asarray, caches), table, np.int32([32]))
    want = reference.attention(q, k, v)
    np.testing.assert_allclose(out, want[0], atol=1e-5)
    np.testing.assert_allclose(lse, want[1], atol=1e-5)


def test_prompts_of_equal_python_hashes_share_no_page():
    a, b = [5, 0, 7, 8], [5, 2**61 - 1, 7, 8]
    assert hash(tuple(a)) == hash(tuple(b))
    pool = PagePool(8, 4)
    first, _ = pool.allocate([*a, 1])
    second, writes = pool.allocate([*b, 1])
    assert pool.shared_tokens([*a, 2]) == pool.shared_tokens([*b, 2]) == 4
    assert not {*pool.block_table([first])[0]} & {*pool.block_table([second])[0]}
    assert (writes.slot_mapping >= 0).all()


# --- kernels -----------------------------------------------------------------------------------

FULL = 0xFFFFFFFF


@cuda.jit
def checkerboard_in_one_launch(x):
    """Cells of one colour read cells of the other; a barrier between the two orders no blocks."""
    i = cuda.grid(1)
    for parity in range(4):
        if i % 2 == parity % 2 and 0 < i < x.size - 1:
            x[i] = x[i - 1] + x[i + 1]
        cuda.syncthreads()


@cuda.jit
def all_threads_add(x):
    total = cuda.shared.array(1, int64)
    total[0] = 0
    cuda.syncthreads()
    total[0] += 1
    cuda.syncthreads()
    x[0] = total[0]


@cuda.jit
def one_barrier_in_a_loop(x):
    """The barrier before the reads; none before the next iteration's stores."""
    tile = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    total = float32(0)
    for i in range(2):
        tile[t] = x[(t + i) % x.size]
        cuda.syncthreads()
        total += tile[63 - t]
    x[t] = total


@cuda.jit
def prefix_sum_in_place(x):
    cells = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    cells[t] = x[t]
    cuda.syncthreads()
    offset = 1
    while offset < 64:
        if t >= offset:
            cells[t] += cells[t - offset]
        cuda.syncthreads()
        offset *= 2
    x[t] = cells[t]


@cuda.jit
def one_thread_tells_all(x):
    total = cuda.shared.array(1, float32)
    if cuda.threadIdx.x == 0:
        total[0] = x[0]
    x[cuda.threadIdx.x] = total[0]


@cuda.jit
def a_warp_without_syncwarp(x):
    """The last steps of a reduction, in the belief that a warp runs in lock step."""
    cells = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    cells[t] = x[t]
    cuda.syncthreads()
    if t < 32:
        cells[t] += cells[t + 32]
        cells[t] += cells[t + 16]
    x[t] = cells[0]


@cuda.jit
def shared_memory_of_the_last_launch(x):
    total = cuda.shared.array(4, float32)
    if cuda.threadIdx.x == 0:
        total[0] += x[0]
        x[0] = total[0]


@cuda.jit
def sum_of_a_ragged_block(x):
    """Threads beyond the array load nothing, and the reduction reads their cells."""
    cells = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    if t < x.size:
        cells[t] = x[t]
    cuda.syncthreads()
    step = 1
    while step < 64:
        if t % (2 * step) == 0:
            cells[t] += cells[t + step]
        cuda.syncthreads()
        step *= 2
    if t == 0:
        x[0] = cells[0]


@cuda.jit
def no_guard(x):
    x[cuda.grid(1)] += 10


@cuda.jit
def a_fence_in_place_of_a_grid_barrier(x):
    """Softmax's last step: each block adds to the total, and reads it behind a fence."""
    if cuda.threadIdx.x == 0:
        cuda.atomic.add(x, 0, float32(1))
    cuda.threadfence()
    x[1 + cuda.grid(1) % (x.size - 1)] = x[0]


@cuda.jit
def more_lanes_than_warps(x):
    """The second stage of a reduction: 32 lanes read the sums of two warps."""
    sums = cuda.shared.array(2, float32)
    t = cuda.threadIdx.x
    if t % 32 == 0:
        sums[t // 32] = x[t]
    cuda.syncthreads()
    if t < 32:
        x[t] = sums[t]


@cuda.jit
def copied_by_columns(x, out):
    column, row = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        out[row, column] = x[row, column]


@pytest.mark.skipif(simt.has_gpu(), reason="a GPU's new arrays hold anything")
def test_a_grid_of_rows_for_a_kernel_of_columns():
    """The grid covers a square only; what no thread stores is NaN in a new device array."""
    x, enabled = np.ones((20, 50), np.float32), simt.is_enabled()
    simt.enable()
    try:
        out = cuda.device_array_like(x)
        copied_by_columns[(2, 5), (10, 10)](x, out)  # blocks for 20 rows, and for 50 columns
        assert np.isnan(out.copy_to_host()).sum() == 20 * 30
        copied_by_columns[(5, 2), (10, 10)](x, out)
    finally:
        if not enabled:
            simt.disable()
    np.testing.assert_array_equal(out.copy_to_host(), x)


@cuda.jit
def barrier_in_a_branch(x):
    t = cuda.threadIdx.x
    cells = cuda.shared.array(64, float32)
    cells[t] = x[t]
    if t % 2 == 0:
        cuda.syncthreads()
        x[t] = cells[t + 1]


@cuda.jit
def shuffle_of_lanes_that_are_not_here(x):
    t = cuda.threadIdx.x
    value = x[t]
    if t < 10:
        value += cuda.shfl_down_sync(FULL, value, 4)
    x[t] = value


@cuda.jit
def threads_that_skip_a_block_wait(x):
    """Right: the barrier lies behind the block that threads 14 and later skip."""
    t = cuda.threadIdx.x
    if t < 14:
        for i in range(t + 1):
            if i == 9:
                x[0] = 112211
    cuda.syncthreads()
    if t == 17:
        x[1] = x[0]


WRONG_KERNELS = {
    "checkerboard_in_one_launch": (RaceError, "nothing orders blocks"),
    "all_threads_add": (RaceError, r"total\[0\]"),
    "one_barrier_in_a_loop": (RaceError, "in a loop, the store may be in the next iteration"),
    "prefix_sum_in_place": (RaceError, "no barrier lies between"),
    "one_thread_tells_all": (RaceError, r"total\[0\]"),
    "a_warp_without_syncwarp": (RaceError, r"cells\["),
    "shared_memory_of_the_last_launch": (UninitialisedReadError, r"total\[0\]"),
    "sum_of_a_ragged_block": (UninitialisedReadError, r"cells\["),
    "no_guard": (KernelIndexError, "60"),
    "a_fence_in_place_of_a_grid_barrier": (RaceError, r"x\[0\]"),
    "more_lanes_than_warps": (KernelIndexError, "sums"),
    "barrier_in_a_branch": (BarrierDivergenceError, "barrier|syncthreads"),
    "shuffle_of_lanes_that_are_not_here": (BarrierDivergenceError, "thread"),
}


@pytest.mark.parametrize("name", WRONG_KERNELS)
def test_a_wrong_kernel_is_named(name):
    """The engine names each fault, its lines and its cause; on a GPU most of them pass by luck."""
    error, words = WRONG_KERNELS[name]
    ragged = name in ("no_guard", "sum_of_a_ragged_block")
    x = np.arange(60 if ragged else 64, dtype=np.float32)
    several = "no_guard", "checkerboard_in_one_launch", "a_fence_in_place_of_a_grid_barrier"
    grid, block = (4, 16) if name in several else (1, 64)
    with pytest.raises(error, match=words) as raised:
        simt.run(globals()[name], grid, block, x)
    assert Path(__file__).name in str(raised.value) or raised.value.lines


def test_threads_that_skip_a_block_wait_at_the_barrier():
    x = np.zeros(2)
    simt.run(threads_that_skip_a_block_wait, 1, 21, x)
    assert x.tolist() == [112211, 112211]


# --- the page ----------------------------------------------------------------------------------


def test_each_test_that_the_page_names_exists():
    text = PAGE.read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:engine/tests/)?test_\w+\.py)(?:::(test_\w+))?", text))
    assert len(named) > 30
    for file, test in named:
        path = ROOT / (file if "/" in file else f"tests/{file}")
        assert path.is_file(), file
        if test:
            assert re.search(rf"^def {test}\(", path.read_text(encoding="utf-8"), re.M), test
    here = re.findall(r"^def (test_\w+)\(", Path(__file__).read_text(encoding="utf-8"), re.M)
    situations = {test for test in here if not test.startswith("test_each_")}
    assert situations == {x for file, x in named if file == Path(__file__).name and x}
    assert set(WRONG_KERNELS) == set(re.findall(r"_is_named` \((\w+)\)", text))


def test_each_row_has_a_report_a_situation_and_a_test():
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    rows = [re.split(r" \| ", row.strip("| ")) for row in rows if not row.startswith("| reports")]
    assert len(rows) > 30
    for row in rows:
        assert len(row) == 4 and all(row), row
        assert re.search(r"\d", row[0]) and re.search("`(engine/tests/)?test_", row[3]), row
