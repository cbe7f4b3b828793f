"""The jobs compiled for the CPU, held to the definition by the cases of every kernel."""

import os
import subprocess
import sys
import threading
import weakref

import numba
import numpy as np
import pytest
from cases import (
    MASKS,
    assert_close,
    assert_defined,
    assert_same,
    check_backward,
    check_forward,
    check_softmax,
    each_mask,
    each_option,
    each_row_shape,
    each_shape,
    each_value,
    each_wide_head_dims,
    make_paged_cache,
    make_qkv,
    mask_options,
    random,
    strided,
)
from few_cases import pairs
from hypothesis import given, settings
from hypothesis import strategies as st

from fa_numba import cpu, reference
from fa_numba.cpu import attention, decode, exponential, plans, rows, threads, vectors
from fa_numba.cpu.tiles import BLOCK_M, BLOCK_N, WIDTH
from fa_numba.tiling.block_sizes import ceil_div

DTYPES = ["float32", "float16", "bfloat16"]
each_dtype = pytest.mark.parametrize("dtype", DTYPES)
# Sizes on both sides of the edges of tiles, with tails; a window has an edge in most of the tiles.
LARGE = {
    "whole_tiles": (1, BLOCK_M, 2 * BLOCK_N, 2, 1, 64),
    "tile_plus_one": (1, BLOCK_M + 1, BLOCK_N + 1, 1, 1, 33),
    "tile_minus_one": (2, BLOCK_M - 1, 2 * BLOCK_N - 1, 4, 2, 31),
    "many_tiles": (1, 2 * BLOCK_M + WIDTH + 3, 5 * BLOCK_N + 7, 3, 1, 48),
    "many_queries": (1, 3 * BLOCK_M + 5, BLOCK_N - 9, 2, 2, 16),
}
LARGE_MASKS = MASKS | {
    "none": {},
    "causal": {"causal": True},
    "window_of_tiles": {"window_size": (70, 33)},
    "far_window": {"window_size": (200, -1), "causal": True},
}
WORDS = "causal", "window_size", "softcap", "alibi"
each_large_shape = pytest.mark.parametrize("shape", LARGE.values(), ids=LARGE)
each_large_mask = pytest.mark.parametrize("mask", LARGE_MASKS.values(), ids=LARGE_MASKS)


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """New arrays, and what an earlier call left in the workspaces, are NaN."""
    empty = np.empty

    def full_of_nan(shape, dtype=float):
        made = empty(shape, dtype)
        if made.dtype.kind not in "iub":
            made.fill(np.nan)
        return made

    monkeypatch.setattr(np, "empty", full_of_nan)
    for workspace in WORKSPACES:
        workspace.fill(np.nan)


WORKSPACES = []
_make_workspace = threads._workspace


def _noted(size):
    made = _make_workspace(size)
    if not any(made is known for known in WORKSPACES):
        WORKSPACES.append(made)
    return made


threads._workspace = _noted


@each_shape
@each_mask
def test_forward(rng, shape, causal):
    check_forward(cpu.flash_attn, *make_qkv(rng, *shape.sizes), causal=causal)


@each_shape
@each_mask
def test_gradients(rng, shape, causal):
    q, k, v = make_qkv(rng, *shape.sizes)
    dout = random(rng, *q.shape)
    check_backward(cpu.flash_attn, cpu.flash_attn_grad, dout, q, k, v, causal=causal)


@each_large_shape
@each_large_mask
@pytest.mark.few(lambda shape, mask: [mask, *((shape, word, word in mask) for word in WORDS)])
def test_large(rng, shape, mask):
    q, k, v = make_qkv(rng, *shape)
    options = mask_options(mask, shape[3])
    check_forward(cpu.flash_attn, q, k, v, **options)
    check_backward(cpu.flash_attn, cpu.flash_attn_grad, random(rng, *q.shape), q, k, v, **options)


@each_value
@each_mask
def test_values(rng, values, causal):
    check_forward(cpu.flash_attn, *values(rng), causal=causal)


@each_dtype
@each_option
def test_dtypes(rng, dtype, mask):
    q, k, v = (x.astype(dtype) for x in make_qkv(rng, 2, 70, 75, 4, 2, 35))
    dout, options = random(rng, *q.shape).astype(dtype), mask_options(mask, 4)
    out, lse = cpu.flash_attn(q, k, v, **options)
    want, lse_want = reference.attention(q, k, v, **options)
    plain, _ = reference.attention(q, k, v, **options, dtype=q.dtype.type)
    assert_close(out, want, plain)
    assert lse.dtype == np.float32
    np.testing.assert_allclose(lse, lse_want, rtol=1e-5, atol=1e-5)
    check_backward(cpu.flash_attn, cpu.flash_attn_grad, dout, q, k, v, **options)


@each_dtype
def test_strides(rng, dtype):
    """Views with gaps, of NaN: the same bits as from arrays without."""
    arrays = [x.astype(dtype) for x in make_qkv(rng, 2, 40, 70, 4, 2, 20)]
    dout = random(rng, *arrays[0].shape).astype(dtype)
    out, lse = cpu.flash_attn(*arrays, causal=True)
    views = [strided(x) for x in arrays]
    for x, y in zip(cpu.flash_attn(*views, causal=True), (out, lse), strict=True):
        assert_same(x, y)
    got = cpu.flash_attn_grad(strided(dout), *views, strided(out), lse, causal=True)
    want = cpu.flash_attn_grad(dout, *arrays, out, lse, causal=True)
    for x, y in zip(got, want, strict=True):
        assert_same(x, y)


def test_read_only(rng):
    """Nothing is written but results; and no second compilation for such arrays."""
    arrays = make_qkv(rng, 1, 20, 20, 2, 2, 8)
    slopes = np.array([0.5, 0.25], np.float32)
    from fa_numba.cpu.backward import backward
    from fa_numba.cpu.forward import forward

    want = cpu.flash_attn(*arrays, alibi_slopes=slopes)
    want += cpu.flash_attn_grad(arrays[0], *arrays, *want, alibi_slopes=slopes)
    compiled = len(forward.signatures), len(backward.signatures)
    for x in (*arrays, slopes):
        x.flags.writeable = False
    got = cpu.flash_attn(*arrays, alibi_slopes=slopes)
    got += cpu.flash_attn_grad(arrays[0], *arrays, *got, alibi_slopes=slopes)
    for x, y in zip(got, want, strict=True):
        assert_same(x, y)
    assert (len(forward.signatures), len(backward.signatures)) == compiled


@pytest.mark.parametrize("head_dim", [1, 2, 15, 16, 17, 63, 65, 127, 129, 255, 256])
def test_head_dims(rng, head_dim):
    q, k, v = make_qkv(rng, 1, 35, 70, 2, 1, head_dim)
    check_forward(cpu.flash_attn, q, k, v, causal=True)
    dout = random(rng, *q.shape)
    check_backward(cpu.flash_attn, cpu.flash_attn_grad, dout, q, k, v, causal=True)


@each_wide_head_dims
def test_v_of_another_head_dim(rng, head_dims):
    q, k, v = make_qkv(rng, 2, 35, 70, 4, 2, *head_dims)
    dout = random(rng, *q.shape[:3], v.shape[3])
    for options in ({"causal": True}, {"dropout_p": 0.3}):
        check_forward(cpu.flash_attn, q, k, v, **options)
        check_backward(cpu.flash_attn, cpu.flash_attn_grad, dout, q, k, v, **options)
    cache = make_paged_cache(rng, [70, 3], 16, 2, *head_dims)
    for num_queries in (1, 5, 35):
        check_decode(q[:, :num_queries], cache, causal=True)


@pytest.mark.parametrize("scale", [0.0, -0.3, 2.0])
def test_scales(rng, scale):
    q, k, v = make_qkv(rng, 1, 35, 70, 2, 1, 16)
    options = {"softmax_scale": scale, "causal": True}
    check_forward(cpu.flash_attn, q, k, v, **options)
    check_backward(cpu.flash_attn, cpu.flash_attn_grad, random(rng, *q.shape), q, k, v, **options)


def test_a_score_of_minus_infinity_weighs_nothing(rng):
    q, k, v = make_qkv(rng, 1, 3, 11, 1, 1, 1)
    q[...] = 1
    k[0, :5] = k[0, 7] = -np.inf
    check_forward(cpu.flash_attn, q, k, v)
    k[...] = -np.inf
    check_forward(cpu.flash_attn, q, k, v)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.filterwarnings("ignore:invalid value")
def test_not_a_number(rng, value):
    """A query, a key or a value that is none spoils the rows that it spoils by definition."""
    for which in range(3):
        arrays = make_qkv(rng, 1, 40, 70, 1, 1, 8)
        arrays[which][0, 33, 0, 3] = value
        out, lse = cpu.flash_attn(*arrays)
        want, lse_want = reference.attention(*arrays)
        for x, y in ((out, want), (lse, lse_want)):
            np.testing.assert_array_equal(np.isnan(x), np.isnan(y))
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dropout_p", [1e-12, 0.1, 0.7])
@pytest.mark.parametrize("mask", [{}, {"causal": True}, {"window_size": (33, 6), "softcap": 2.0}])
def test_dropout(rng, dropout_p, mask):
    """The definition's entries are dropped; tiles begin at any key."""
    for shape in ((2, 75, 150, 4, 2, 24), (1, 5, 40, 2, 2, 16)):
        q, k, v = make_qkv(rng, *shape)
        options = {"dropout_p": dropout_p, "seed": 2**63 + 2**32 + 5, **mask}
        check_forward(cpu.flash_attn, q, k, v, **options)
        dout = random(rng, *q.shape)
        check_backward(cpu.flash_attn, cpu.flash_attn_grad, dout, q, k, v, **options)


def test_dropout_where_most_is_dropped(rng):
    """Every entry that is kept is seen in out: v is the identity."""
    q, k, _ = make_qkv(rng, 2, 33, 64, 3, 3, 64)
    v = np.broadcast_to(np.eye(64, dtype=np.float32)[:, None], (2, 64, 3, 64))
    out, _ = cpu.flash_attn(q, k, np.ascontiguousarray(v), dropout_p=0.5, seed=7)
    kept = reference.dropout_mask(7, 0.5, 2, 3, 33, 64)
    np.testing.assert_array_equal(out.transpose(0, 2, 1, 3) != 0, kept)


def test_gradients_are_differences(rng):
    """Along a random direction, the loss changes as the gradients say."""
    arrays = make_qkv(rng, 1, 40, 70, 2, 1, 16)
    options = {"causal": True, "softcap": 3.0}
    dout = random(rng, *arrays[0].shape)
    gradients = cpu.flash_attn_grad(dout, *arrays, *cpu.flash_attn(*arrays, **options), **options)
    for i, gradient in enumerate(gradients):
        step = 1e-2 * random(rng, *gradient.shape)

        def loss(sign, i=i, step=step):
            moved = [x + sign * step if i == j else x for j, x in enumerate(arrays)]
            return float((dout * cpu.flash_attn(*moved, **options)[0]).sum(dtype=np.float64))

        change = float((gradient * step).sum(dtype=np.float64))
        assert (loss(1) - loss(-1)) / 2 == pytest.approx(change, rel=1e-2, abs=1e-4)


drawn = settings(max_examples=60)
problems = st.tuples(
    st.integers(0, 2),  # batch
    st.integers(0, 150),  # seqlen_q
    st.integers(0, 150),  # seqlen_k
    st.sampled_from([(1, 1), (4, 2), (3, 1)]),  # num_heads, num_kv_heads
    st.tuples(st.integers(1, 40), st.integers(1, 40)),  # head_dim of q and k, of v
)
masks = st.sampled_from(list(LARGE_MASKS.values()))


@drawn
@given(problems, masks)
def test_any(problem, mask):
    batch, seqlen_q, seqlen_k, heads, head_dims = problem
    rng = np.random.default_rng(0)
    q, k, v = make_qkv(rng, batch, seqlen_q, seqlen_k, *heads, *head_dims)
    options = mask_options(mask, heads[0])
    check_forward(cpu.flash_attn, q, k, v, **options)
    dout = random(rng, *q.shape[:3], v.shape[3])
    check_backward(cpu.flash_attn, cpu.flash_attn_grad, dout, q, k, v, **options)


lengths = st.lists(st.tuples(st.integers(0, 150), st.integers(0, 150)), max_size=5)


@drawn
@given(lengths, problems, masks)
def test_packed(lengths, problem, mask):
    *_, heads, (head_dim, head_dim_v) = problem
    rng = np.random.default_rng(0)
    cu_seqlens = np.cumsum([(0, 0), *lengths], axis=0, dtype=np.int32).T
    cu_seqlens = [np.ascontiguousarray(cu) for cu in cu_seqlens]
    dims = head_dim, head_dim_v
    q, dout = (random(rng, cu_seqlens[0][-1], heads[0], dim) for dim in dims)
    k, v = (random(rng, cu_seqlens[1][-1], heads[1], dim) for dim in dims)
    options = mask_options(mask, heads[0])
    host = (q, k, v, *cu_seqlens)
    out, lse = cpu.flash_attn_varlen(*host, **options)
    grads = cpu.flash_attn_varlen_grad(dout, *host[:3], out, lse, *cu_seqlens, **options)
    assert_defined((out, lse), reference.varlen_attention, *host, **options)
    assert_defined(grads, reference.varlen_attention_bwd, dout, *host, **options)


def check_decode(q, cache, **options):
    """From pages and from a contiguous cache; what is past a sequence's end is NaN."""
    seq_lens = cache[-1]
    k, v = reference.paged_kv_lookup(*cache)
    for b, seq_len in enumerate(seq_lens):
        k[b, seq_len:] = v[b, seq_len:] = np.nan
    paged = cpu.paged_attn_decode(q, *cache, **options)
    for got in (paged, cpu.flash_decode(q, k, v, seq_lens, **options)):
        assert_defined(got, reference.cached_attention, q, k, v, seq_lens, **options)


@each_option
@pytest.mark.parametrize("seqlen_q", [1, 5, 40])
@pytest.mark.parametrize("page_size", [1, 7, 16, 100])
@pytest.mark.few(lambda seqlen_q, page_size, mask: pairs(seqlen_q, page_size, mask))
def test_decode(rng, seqlen_q, page_size, mask):
    q = random(rng, 3, seqlen_q, 6, 20)
    cache = make_paged_cache(rng, [150, 0, 77], page_size, 2, 20)
    check_decode(q, cache, **mask_options(mask, 6))


@each_option
@pytest.mark.parametrize("page_size", [1, 16, 48])
@pytest.mark.parametrize("head_dim", [32, 80, 128])
@pytest.mark.few(lambda head_dim, page_size, mask: pairs(head_dim, page_size, mask))
def test_decode_in_place(rng, head_dim, page_size, mask):
    """Few rows for each key head: K and V are read where they lie."""
    cache = make_paged_cache(rng, [150, 16, 77], page_size, 3, head_dim)
    for seqlen_q, group in ((1, 1), (2, 1), (1, 4), (2, 2), (1, 3), (1, 5)):
        q = random(rng, 3, seqlen_q, 3 * group, head_dim)
        check_decode(q, cache, **mask_options(mask, 3 * group))


@each_dtype
@pytest.mark.parametrize("group", [1, 4, 6])
def test_decode_heads_first(rng, dtype, group):
    """A cache in which the keys of a head lie side by side: the same bits."""
    q = random(rng, 2, 1, 3 * group, 64).astype(dtype)
    k, v = (random(rng, 2, 70, 3, 64).astype(dtype) for _ in range(2))
    lens = np.array([70, 37], np.int32)
    heads_first = (x.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3) for x in (k, v))
    want = cpu.flash_decode(q, k, v, lens)
    for x, y in zip(cpu.flash_decode(q, *heads_first, lens), want, strict=True):
        assert_same(x, y)


@pytest.mark.parametrize("rows", range(1, decode.MAX_IN_PLACE + 1))
def test_sums_of_rows_in_place_fit(rows):
    """They lie where the tiles of K and V do: LANES keys, each LANES numbers for each row."""
    heads = decode.MAX_ROWS // (ceil_div(rows, vectors.ROWS) * vectors.ROWS)
    sums_row = (heads * rows // 2 * 2 + 1) * vectors.LANES
    last = (vectors.LANES - 1) * sums_row + heads * rows * vectors.LANES
    assert last <= decode.Q - decode.K


@pytest.mark.parametrize("num_heads", [3, 12])
def test_decode_reads_no_key_beyond_the_last(rng, num_heads):
    """A cache may have any numbers after the keys of a sequence."""
    q, k, v = make_qkv(rng, 2, 1, 90, num_heads, 3, 64)
    lens = np.array([70, 37], np.int32)
    want = cpu.flash_decode(q, k, v, lens)
    for x in k, v:
        for b, end in enumerate(lens):
            x[b, end:] = np.nan
    for x, y in zip(cpu.flash_decode(q, k, v, lens), want, strict=True):
        assert_same(x, y)


@each_dtype
@pytest.mark.parametrize("heads", [(3, 3), (4, 2)])
def test_decode_dtypes(rng, dtype, heads):
    q = random(rng, 2, 1, heads[0], 64).astype(dtype)
    k_cache, v_cache, *cache = make_paged_cache(rng, [70, 33], 16, heads[1], 64)
    check_decode(q, (k_cache.astype(dtype), v_cache.astype(dtype), *cache))


@pytest.mark.parametrize("mask", [{}, {"window_size": (700, 0)}, {"window_size": (9, 0)}])
@pytest.mark.parametrize("group", [1, 3])
def test_decode_splits_the_keys(rng, monkeypatch, group, mask):
    """Parts of one head are merged, also those that see no key."""
    merges, run = [], threads.run

    def noted(worker, *args, **arrays):
        merges.append(worker is decode.merge)
        run(worker, *args, **arrays)

    monkeypatch.setattr(threads, "run", noted)
    monkeypatch.setattr(attention, "LEAST_BYTES", 2**16)
    monkeypatch.setattr(numba, "get_num_threads", lambda: 2)
    cache = make_paged_cache(rng, [2100, 0, 40], 16, 1, 40)
    check_decode(random(rng, 3, 2, group, 40), cache, **mask)
    assert sum(merges) == 2


@pytest.mark.parametrize("heads", [(300, 300), (600, 2), (257, 1)])
def test_decode_many_heads(rng, heads):
    """More rows than a task holds: tasks for some heads, or for some queries."""
    q = random(rng, 1, 3, heads[0], 16)
    check_decode(q, make_paged_cache(rng, [310], 16, heads[1], 16), causal=True)


def test_decode_reads_no_page_before_a_window(rng):
    """Pages that no query sees may hold anything."""
    k_cache, v_cache, block_table, seq_lens = make_paged_cache(rng, [100], 16, 2, 32)
    options = {"window_size": (20, 0)}
    for num_heads in (2, 4):
        q = random(rng, 1, 1, num_heads, 32)
        want = cpu.paged_attn_decode(q, k_cache, v_cache, block_table, seq_lens, **options)
        spoilt = [x.copy() for x in (k_cache, v_cache)]
        for x in spoilt:
            x[block_table[0, : (100 - 1 - 20) // 16]] = np.nan
        got = cpu.paged_attn_decode(q, *spoilt, block_table, seq_lens, **options)
        for x, y in zip(got, want, strict=True):
            assert_same(x, y)


# --- softmax ---------------------------------------------------------------------------------


@each_dtype
@each_row_shape
def test_softmax(rng, dtype, shape):
    check_softmax(cpu.softmax, (4 * random(rng, *shape)).astype(dtype))


@each_dtype
@pytest.mark.parametrize("num_cols", [rows.GROUP - 1, rows.GROUP, rows.CHUNK, rows.CHUNK + 1])
def test_softmax_of_long_rows(rng, dtype, num_cols):
    """Over the edges of groups and chunks; the largest number is the last, or the first."""
    x = random(rng, 2, num_cols)
    x[0, -1], x[1, 0] = 9, 9
    check_softmax(cpu.softmax, x.astype(dtype))
    check_topk(x.astype(dtype), 5)


def check_topk(x, k):
    values, columns = cpu.softmax_topk(x, k)
    want, want_columns = reference.softmax_topk(x, k)
    plain, _ = reference.softmax_topk(x, k, dtype=x.dtype.type)
    assert_close(values, want, plain)
    np.testing.assert_array_equal(columns, want_columns)
    assert columns.dtype == np.int32


@each_dtype
@pytest.mark.parametrize("k", [1, 5, 32])
@pytest.mark.parametrize("num_cols", [32, 33, 64, 1000])
def test_topk(rng, dtype, num_cols, k):
    check_topk(random(rng, 3, num_cols).astype(dtype), k)


def test_topk_of_equal_numbers(rng):
    """The smaller column first, also among −∞."""
    x = rng.integers(0, 3, (4, 500)).astype(np.float32)
    x[1] = 2
    x[2] = -np.inf
    x[2, [3, 77, 400]] = 1
    for k in (1, 7, 32):
        check_topk(x, k)


@each_dtype
@pytest.mark.parametrize("num_cols", [5, 70, rows.CHUNK + 70])
@pytest.mark.filterwarnings("ignore:invalid value")
def test_softmax_of_no_numbers(rng, dtype, num_cols):
    """NaN where the definition has it; a NaN ranks as −∞."""
    x = random(rng, 6, num_cols)
    x[0] = -np.inf
    x[1, : num_cols - 1] = -np.inf
    x[2, 1] = np.nan
    x[3, num_cols - 2] = np.inf
    x[4, 2:] = np.nan
    x[5, : num_cols // 2] = np.nan
    x = x.astype(dtype)
    assert_same(np.isnan(cpu.softmax(x)), np.isnan(reference.softmax(x)))
    values, columns = cpu.softmax_topk(x, 4)
    want, want_columns = reference.softmax_topk(x, 4)
    np.testing.assert_array_equal(columns, want_columns)
    assert_same(np.isnan(values), np.isnan(want))
    check_softmax(cpu.softmax, x[1:2])


@each_dtype
def test_softmax_strides(rng, dtype):
    x = random(rng, 40, 77).astype(dtype)
    gaps = np.full((80, 100), np.nan, x.dtype)
    gaps[::2, 3:80] = x
    for view, same in ((gaps[::2, 3:80], x), (x[::-1], x[::-1].copy())):
        assert_same(cpu.softmax(view), cpu.softmax(same))
        for y, z in zip(cpu.softmax_topk(view, 3), cpu.softmax_topk(same, 3), strict=True):
            assert_same(y, z)


def test_softmax_of_many_rows(rng):
    """Several tasks, the last of them smaller."""
    check_softmax(cpu.softmax, random(rng, 2 * rows.PER_TASK // 50 + 7, 50))
    check_topk(random(rng, 2 * rows.PER_TASK // 50 + 7, 50), 3)


def test_wrong_rows(rng):
    with pytest.raises(TypeError, match="x must be float32, float16 or bfloat16, got float64"):
        cpu.softmax(np.zeros((2, 3)))
    with pytest.raises(ValueError, match="k must be at most"):
        cpu.softmax_topk(random(rng, 2, 3), 4)


# --- arguments -------------------------------------------------------------------------------


def test_wrong_arguments(rng):
    q, k, v = make_qkv(rng, 1, 3, 3, 2, 2, 4)
    with pytest.raises(TypeError, match="k must be float32, float16 or bfloat16, got float64"):
        cpu.flash_attn(q, k.astype(np.float64), v)
    with pytest.raises(ValueError, match="dropout_p must be at least 0 and less than 1"):
        cpu.flash_attn(q, k, v, dropout_p=1)
    with pytest.raises(TypeError, match="has no argument 'dropout_p'"):
        cpu.flash_decode(q, k, v, np.array([3], np.int32), dropout_p=0.1)
    with pytest.raises(TypeError, match="causal"):
        cpu.flash_attn(q, k, v, is_causal=True)
    with pytest.raises(ValueError, match="lse must have shape"):
        cpu.flash_attn_grad(q, q, k, v, q, np.zeros((1, 3, 2), np.float32))


@pytest.mark.parametrize(
    "right, wrong, message",
    [
        ({"causal": True}, {"causal": 1}, "causal must be True or False, got 1"),
        (
            {"window_size": (1, 0)},
            {"window_size": (True, 0)},
            r"window_size\[0\] must be an integer",
        ),
        ({"window_size": (1, 0)}, {"window_size": {1, 0}}, "window_size must be a tuple"),
        ({"softcap": 1.0}, {"softcap": True}, "softcap must be a number, got bool"),
        ({"dropout_p": 0.5, "seed": 1}, {"dropout_p": 0.5, "seed": 1.0}, "seed must be an integer"),
    ],
)
def test_wrong_arguments_after_equal_ones(rng, right, wrong, message):
    """The plan that is kept for an argument is not that of one which merely equals it."""
    q, k, v = make_qkv(rng, 1, 3, 3, 2, 2, 4)
    forward = cpu.flash_attn(q, k, v, **right)
    cpu.flash_attn_grad(q, q, k, v, *forward, **right)
    with pytest.raises(TypeError, match=message):
        cpu.flash_attn(q, k, v, **wrong)
    with pytest.raises(TypeError, match=message):
        cpu.flash_attn_grad(q, q, k, v, *forward, **wrong)


def test_plans_are_kept_for_layouts(rng, monkeypatch):
    """Other contents and addresses take the plan of a call; other layouts and options do not."""
    made = []
    monkeypatch.setattr(
        attention, "_tiles", lambda *x, call=attention._tiles: made.append(0) or call(*x)
    )
    slopes = rng.random(2, np.float32)
    for seqlen_q in (221, 222):
        for causal in (False, True):
            for _ in range(3):
                q, k, v = make_qkv(rng, 1, seqlen_q, 23, 2, 2, 61)
                slopes *= 2
                options = {"causal": causal, "alibi_slopes": slopes}
                check_forward(cpu.flash_attn, q, k, v, **options)
                check_backward(cpu.flash_attn, cpu.flash_attn_grad, q.copy(), q, k, v, **options)
    assert len(made) == 4


def test_wrong_contents_after_right_ones(rng):
    """Lengths and pages are read in every call."""
    q, k, v = make_qkv(rng, 1, 1, 8, 2, 2, 4)
    lens, table = np.array([8], np.int32), np.array([[0, 1]], np.int32)
    pages = [x.reshape(2, 4, 2, 4) for x in (k, v)]
    for x, y in zip(
        cpu.flash_decode(q, k, v, lens), cpu.paged_attn_decode(q, *pages, table, lens), strict=True
    ):
        assert_same(x, y)
    with pytest.raises(ValueError, match=r"block_table\[0, 1\] must be"):
        cpu.paged_attn_decode(q, *pages, table + 1, lens)
    for call in (cpu.flash_decode, q, k, v), (cpu.paged_attn_decode, q, *pages, table):
        with pytest.raises(ValueError, match=r"seq_lens\[0\] must be from 0 to .* = 8, got 9"):
            call[0](*call[1:], lens + 1)


def test_checks_are_plans():
    """A function that returns None, since it only checks, is not called again."""
    called = []
    check = plans.kept(called.append)
    for _ in range(3):
        check(1)
    assert called == [1]


def test_few_plans_are_kept(rng, monkeypatch):
    monkeypatch.setattr(plans, "MAX_KEPT", 2)
    arrays = make_qkv(rng, 1, 20, 20, 1, 1, 4)
    for _ in range(2):
        for left in range(4):
            check_forward(cpu.flash_attn, *arrays, window_size=(left, 0))


# --- 2^x, tanh, e^x and log ------------------------------------------------------------------


@numba.njit
def _each(function, x, y):
    for i in range(0, x.size, vectors.LANES):
        vectors.store(y, i, function(vectors.load(x, i)))


def _units_in_the_last_place(got, want):
    return np.abs(got - want) / np.spacing(np.abs(want).astype(np.float32)).astype(np.float64)


def test_exp2():
    x = np.linspace(-126, 127, 2**20, dtype=np.float32)
    y = np.zeros_like(x)
    _each(exponential.exp2, x, y)
    assert _units_in_the_last_place(y, np.exp2(x.astype(np.float64))).max() <= 1.1

    x = np.zeros(16, np.float32)
    x[:6] = -np.inf, -126.5, -1e30, 127, np.nan, 1
    _each(exponential.exp2, x, y)
    np.testing.assert_array_equal(y[:7], [0, 0, 0, 2.0**127, np.nan, 2, 1])


def test_tanh():
    x = np.float32(10) ** np.linspace(-30, 1.2, 2**16, dtype=np.float32)
    x = np.concatenate([x, -x])
    y = np.zeros_like(x)
    _each(exponential.tanh, x, y)
    assert _units_in_the_last_place(y, np.tanh(x.astype(np.float64))).max() <= 3


def test_exp_and_log():
    x = np.linspace(-87, 88, 2**16, dtype=np.float32)
    y = np.zeros_like(x)
    _each(exponential.exp, x, y)
    assert _units_in_the_last_place(y, np.exp(x.astype(np.float64))).max() <= 2
    x = np.exp(x)
    x[:1024] = np.linspace(0.9, 1.1, 1024)
    _each(exponential.log, x, y)
    assert _units_in_the_last_place(y, np.log(x.astype(np.float64))).max() <= 3

    x = np.zeros(16, np.float32)
    x[:6] = -np.inf, np.inf, np.nan, -100, 100, 1
    with np.errstate(all="ignore"):
        for function, want in ((exponential.exp, np.exp(x)), (exponential.log, np.log(x))):
            _each(function, x, y)
            want[3] = 0 if function is exponential.exp else np.nan
            np.testing.assert_allclose(y[:16], want, rtol=2e-7)


# --- threads and files -----------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2])
def test_no_more_threads_than_asked_for(rng, monkeypatch, limit):
    if limit > numba.config.NUMBA_NUM_THREADS:
        pytest.skip("this machine has one core")
    ids, call = set(), threads._workspace
    monkeypatch.setattr(
        threads, "_workspace", lambda size: ids.add(threading.get_ident()) or call(size)
    )
    arrays = make_qkv(rng, 4, 70, 70, 4, 4, 16)
    before = numba.get_num_threads()
    numba.set_num_threads(limit)
    try:
        check_forward(cpu.flash_attn, *arrays)
        of_forward = len(ids)
        out, lse = cpu.flash_attn(*arrays)
        ids.clear()  # another call may take other threads of the pool
        cpu.flash_attn_grad(out, *arrays, out, lse)
    finally:
        numba.set_num_threads(before)
    assert 1 <= of_forward <= limit and 1 <= len(ids) <= limit


def test_one_head_for_all_threads(rng):
    """Parts of dk and dv are added afterwards; the same bits in every run."""
    arrays = make_qkv(rng, 1, 5 * BLOCK_M, 100, 1, 1, 16)
    dout = random(rng, *arrays[0].shape)
    check_backward(cpu.flash_attn, cpu.flash_attn_grad, dout, *arrays, causal=True)
    forward = cpu.flash_attn(*arrays)
    first, second = (cpu.flash_attn_grad(dout, *arrays, *forward) for _ in range(2))
    for x, y in zip(first, second, strict=True):
        assert_same(x, y)


def test_calls_from_many_threads(rng):
    arrays = make_qkv(rng, 1, 200, 200, 4, 4, 16)
    want, got = cpu.flash_attn(*arrays), [None] * 4

    def call(i):
        got[i] = cpu.flash_attn(*arrays)

    callers = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for result in got:
        for x, y in zip(result, want, strict=True):
            assert_same(x, y)


def test_interrupted(monkeypatch):
    """Ctrl-C ends the caller; the arrays live until the other thread has ended its last task."""
    caller, begun, ended = threading.get_ident(), threading.Event(), threading.Event()
    counters = []

    def worker(counter, num_tasks, workspace):
        counters.append(counter)
        if threading.get_ident() == caller:
            assert begun.wait(60)
            raise KeyboardInterrupt
        begun.set()
        ended.wait(60)

    monkeypatch.setattr(threads.disk_cache, "keep", lambda worker: None)
    monkeypatch.setattr(numba, "get_num_threads", lambda: 2)
    written = np.zeros(3, np.float32)
    freed = threading.Event()
    weakref.finalize(written, freed.set)
    with pytest.raises(KeyboardInterrupt):
        threads.run(worker, 9, 1, arrays=(written,))
    del written
    assert counters[0][0] == 9  # nobody takes another task
    assert not freed.wait(0.1)
    ended.set()
    assert freed.wait(60)


def test_no_thread_can_start(rng, monkeypatch):
    """The caller takes all tasks, and no pool keeps the arrays for a thread to come."""

    def start(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(numba, "get_num_threads", lambda: 2)
    threads._pool.cache_clear()
    x = random(rng, 5, rows.PER_TASK)
    want = cpu.softmax(x)
    threads._pool.cache_clear()
    freed = threading.Event()
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", start)
        assert_same(cpu.softmax(x), want)
    weakref.finalize(x, freed.set)
    del x
    assert freed.wait(1)


AT_EXIT = """
import atexit
import numba
import numpy as np
from fa_numba import cpu
numba.get_num_threads()  # on Python 3.14 Numba leaves a semaphore if this is first asked at exit
x = np.ones((2, 2**16), np.float32)
atexit.register(lambda: print(cpu.softmax(x).sum()))
"""


def test_at_exit():
    """No thread can start when a process ends: the caller takes all tasks."""
    command = [sys.executable, "-c", AT_EXIT]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (float(done.stdout), done.stderr) == (2, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_after_a_fork(rng):
    arrays = make_qkv(rng, 4, 100, 100, 4, 4, 16)
    want, _ = cpu.flash_attn(*arrays)
    child = os.fork()
    if child == 0:
        out, _ = cpu.flash_attn(*arrays)
        os._exit(0 if np.array_equal(out, want) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


KEPT = """
from fa_numba.cpu import disk_cache, tiles, vectors
@vectors.worker
def rounded_up(x, multiple):
    return tiles.round_up(x, multiple)
disk_cache.keep(rounded_up)
assert rounded_up(5, 4) == 8
print(sum(rounded_up.stats.cache_hits.values()))
"""


@pytest.fixture
def kept(warm_processes, tmp_path):
    """Run KEPT with this cache, in a process with its imports done; its hits, and what it says."""
    (program := tmp_path / "kept.py").write_text(KEPT)

    def run(cache):
        environment = os.environ | {"FA_NUMBA_CACHE": str(cache)}
        command, how = [sys.executable, program], {"capture_output": True, "text": True}
        done = warm_processes.run(command, cwd=tmp_path, env=environment, **how)
        assert done.returncode == 0, done.stderr
        return int(done.stdout), done.stderr

    return run


def test_files(kept, tmp_path):
    """A second process compiles nothing; where no file can be written, all works without."""

    def hits(folder):
        return kept(folder)[0]

    cache = tmp_path / "cache"
    assert [hits(cache) for _ in range(2)] == [0, 1]
    (folder,) = (cache / "cpu").iterdir()
    for suffix in ("nbi", "nbc"):  # the index, then the code: a damaged file is written anew
        (file,) = folder.glob(f"*.{suffix}")
        file.write_bytes(file.read_bytes()[:90])
        assert [hits(cache) for _ in range(2)] == [0, 1]
    (tmp_path / "file").touch()
    assert hits(tmp_path / "file" / "folder") == 0


def test_one_of_two_processes_compiles(tmp_path):
    """The other process waits, and loads the compiled function."""
    pytest.importorskip("fcntl", reason="Windows: each process compiles")
    environment = os.environ | {"FA_NUMBA_CACHE": str(tmp_path)}
    command, how = [sys.executable, "-c", KEPT], {"stdout": subprocess.PIPE, "env": environment}
    both = [subprocess.Popen(command, **how) for _ in range(2)]
    assert sorted(int(each.communicate(timeout=120)[0]) for each in both) == [0, 1]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root, to chown")
def test_files_of_another_user_are_not_loaded(kept, tmp_path):
    """Numba's files are pickles: whoever writes them runs code."""
    (cache := tmp_path / "cache").mkdir()

    def hits():
        count, said = kept(cache)
        return count, "belongs to user 4711" in said

    assert hits() == (0, False)
    for suffix in ("nbi", "nbc", "folder"):
        file = cache if suffix == "folder" else next(cache.rglob(f"*.{suffix}"))
        os.chown(file, 4711, 4711)
        assert hits() == (0, True), suffix
        os.chown(file, 0, 0)
    assert hits() == (1, False)


NAMES = """
import os
import fa_numba.cpu.disk_cache
from numba.core.bytecode import FunctionIdentity
child = os.fork()
os.write(1, b"%d " % next(FunctionIdentity._unique_ids))
if child:
    os.waitpid(child, 0)
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_processes_number_their_functions_differently():
    """Else machine code of two processes, loaded by a third, has one name for two functions."""
    numbers = []
    for _ in range(2):
        run = subprocess.run([sys.executable, "-c", NAMES], capture_output=True, check=True)
        numbers += map(int, run.stdout.split())
    assert len(numbers) == 4 and min(np.diff(sorted(numbers))) > 1e6
