"""The kernels on a real GPU against the float64 definitions: `pytest -m gpu`.

`-k small` keeps the cases that are small enough for compute-sanitizer (`make sanitize`).
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import dtype_cases
import numpy as np
import pytest
from cases import (
    check_cache_write,
    check_copies,
    check_latent_decode,
    check_lookup,
    kernel_function,
    make_latent_case,
    make_paged_cache,
    pages,
)
from few_cases import pairs
from gpu_cases import ON_A_GPU
from numba import cuda, float32

import fa_numba
from fa_numba import analysis, reference
from fa_numba.kernels.flash_attn_varlen import flash_attn_varlen
from fa_numba.kernels.flash_decode import flash_decode
from fa_numba.kernels.paged_attn_decode import paged_attn_decode
from fa_numba.kv_cache import RollingCache
from fa_numba.runtime import arrays, launching
from fa_numba.workbook import ladder
from numba_cuda_simulator.devices import chip
from numba_cuda_simulator.options import current_options

cupy = pytest.importorskip("cupy", reason="needs CuPy")
pytestmark = ON_A_GPU

# batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim, causal
SMALL = [
    (1, 1, 1, 1, 1, 1, False),
    (2, 17, 33, 2, 2, 16, False),
    (2, 33, 17, 4, 2, 16, True),  # rows that see no key
    (1, 5, 64, 4, 1, 59, True),
    (1, 40, 40, 1, 1, 128, True),
    (4, 20, 20, 4, 2, 256, True),  # many numbers: the largest error is not one row's luck
    (1, 1, 50, 2, 1, 111, False),
]
LARGE = [
    (2, 1024, 1024, 4, 4, 64, True),
    (1, 1000, 3001, 4, 2, 64, True),
    (1, 4096, 4096, 2, 1, 128, False),
    (1, 8192, 8192, 1, 1, 64, True),
    (1, 8192, 8192, 1, 1, 64, False),
    (1, 2048, 2048, 1, 1, 256, True),
    (1, 16384, 16384, 1, 1, 64, True),
]


def named(case):
    batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim, causal = case
    size = "small" if case in SMALL else "large"
    heads = f"h{num_heads}_{num_kv_heads}"
    return f"{size}-b{batch}-{seqlen_q}x{seqlen_k}-{heads}-d{head_dim}{'-causal' * causal}"


cases = pytest.mark.parametrize("case", SMALL + LARGE, ids=named)


def random(rng, *shape):
    return rng.standard_normal(shape, dtype=np.float32)


def make_case(case):
    batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim, causal = case
    rng = np.random.default_rng(sum(case))
    q = random(rng, batch, seqlen_q, num_heads, head_dim)
    k, v = (random(rng, batch, seqlen_k, num_kv_heads, head_dim) for _ in range(2))
    q, k, v = (in_eighths(x, case) for x in (q, k, v))
    return q, k, v, causal


def make_dout(case, q):
    return in_eighths(random(np.random.default_rng(1), *q.shape), case)


def in_eighths(x, case):
    """x, rounded to eighths in a small case with long rows.

    The products of eighths add up without rounding in any order. What plain NumPy loses in so long
    a sum depends on the host's BLAS, up to fivefold, and few numbers do not average.
    """
    *_, head_dim, _ = case
    return np.round(x * 8) / 8 if case in SMALL and head_dim > 128 else x


def assert_close(got, want, plain, *, factor=2):
    """At most `factor` times the error of a plain float32 computation; NaN fails."""
    assert isinstance(got, cupy.ndarray)
    got = cupy.asnumpy(got)
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite])
    error = np.abs(got[finite] - want[finite]).max(initial=0.0)
    tolerance = factor * np.abs(plain[finite] - want[finite]).max(initial=0.0) + 1e-6
    assert error <= tolerance


LADDER = ("flash_attn_v2", "flash_attn_v2_unsigned", "flash_attn_v2_4x4", "flash_attn_registers")


@pytest.mark.few(
    lambda name, case: [case, *pairs(name, case[-2]), *pairs(name, (case in SMALL, case[-1]))]
)
@cases
@pytest.mark.parametrize("name", ["naive_attn", "lazy_softmax_attn", "flash_attn_v1", *LADDER])
def test_forward(name, case):
    q, k, v, causal = make_case(case)
    if name == "flash_attn_v2_4x4" and q.shape[3] > 128:
        with pytest.raises(ValueError, match="head_dim must be at most 128"):
            fa_numba.flash_attn_v2_4x4(*(cupy.asarray(x) for x in (q, k, v)))
        return
    out_ref, lse_ref = reference.attention(q, k, v, causal=causal)
    out_f32, _ = reference.attention(q, k, v, causal=causal, dtype=np.float32)
    on_gpu = [cupy.asarray(x) for x in (q, k, v)]
    out, *statistics = getattr(fa_numba, name)(*on_gpu, causal=causal)
    assert_close(out, out_ref, out_f32)
    if name == "flash_attn_v1":
        l, m = statistics
        with np.errstate(divide="ignore"):
            lse = cupy.asarray(np.where(l.get() > 0, m.get() + np.log(l.get()), -np.inf))
    else:
        (lse,) = statistics
    # lse grows like log(n) while its error grows like the longest sum: relative, not plain NumPy's
    np.testing.assert_allclose(lse.get(), lse_ref, rtol=1e-5, atol=1e-5)
    for before, after in zip((q, k, v), on_gpu, strict=True):
        np.testing.assert_array_equal(before, after.get())


@pytest.mark.parametrize("head_dim", ladder.HEAD_DIMS)
@pytest.mark.parametrize("rung", ladder.RUNGS, ids=str)
def test_each_rung_of_the_ladder(rung, head_dim):
    q, k, v, _ = make_case((1, 150, 150, 2, 1, head_dim, True))
    out_ref, _ = reference.attention(q, k, v, causal=True)
    out_f32, _ = reference.attention(q, k, v, causal=True, dtype=np.float32)
    out, *_ = rung(*(cupy.asarray(x) for x in (q, k, v)), causal=True)
    assert_close(out, out_ref, out_f32)


@pytest.mark.few(lambda case, share: [case, *pairs(share, case[-2] > 128)])
@pytest.mark.parametrize("share", [0, 0.3, 1])
@pytest.mark.parametrize("case", [*SMALL, *LARGE[:2], LARGE[4]], ids=named)
def test_block_sparse(case, share):
    q, k, v, causal = make_case(case)
    seqlen_q, seqlen_k, head_dim = q.shape[1], k.shape[1], q.shape[3]
    block_m, block_n = analysis.kernel_block_sizes("flash_attn_v1", head_dim)
    num_tiles = -(-seqlen_q // block_m), -(-seqlen_k // block_n)
    block_mask = np.random.default_rng(0).random(num_tiles) < share
    mask = reference.dense_mask(block_mask, block_m, block_n, seqlen_q, seqlen_k)
    out_ref, lse_ref = reference.attention(q, k, v, causal=causal, mask=mask)
    out_f32, _ = reference.attention(q, k, v, causal=causal, mask=mask, dtype=np.float32)
    on_gpu = [cupy.asarray(x) for x in (q, k, v)]
    sparse = fa_numba.flash_attn_v1(*on_gpu, causal=causal, block_mask=cupy.asarray(block_mask))
    assert_close(sparse[0], out_ref, out_f32)
    l, m = (x.get() for x in sparse[1:])
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(m + np.log(l), lse_ref, rtol=1e-5, atol=1e-5)
    if share == 1:
        for x, dense in zip(sparse, fa_numba.flash_attn_v1(*on_gpu, causal=causal), strict=True):
            assert (x == dense).all()


# lengths of the queries and of the keys, num_heads, num_kv_heads, head_dim
VARLEN_SMALL = [
    ([1], [1], 1, 1, 1),
    ([0, 1, 15, 16, 17, 0], [3, 1, 17, 16, 15, 0], 4, 2, 64),
    ([33, 5, 2], [17, 0, 40], 4, 1, 59),  # rows that see no key
    ([20, 3], [20, 50], 1, 1, 256),
    ([1] * 40, list(range(40)), 2, 2, 111),
]
VARLEN_LARGE = [
    ([4096, 1, 0, 1000, 2047], [4096, 3000, 5, 1000, 2049], 4, 2, 64),
    ([1] * 2000, [(7 * b) % 301 for b in range(2000)], 8, 2, 128),
]


def varlen_named(case):
    seqlens_q, seqlens_k, num_heads, num_kv_heads, head_dim = case
    size = "small" if case in VARLEN_SMALL else "large"
    sums = f"{sum(seqlens_q)}x{sum(seqlens_k)}"
    return f"{size}-b{len(seqlens_q)}-{sums}-h{num_heads}_{num_kv_heads}-d{head_dim}"


@pytest.mark.few(lambda case, mask: [case, *pairs(case in VARLEN_SMALL, mask)])
@pytest.mark.parametrize("mask", ["full", "causal", "all"])
@pytest.mark.parametrize("case", VARLEN_SMALL + VARLEN_LARGE, ids=varlen_named)
def test_flash_attn_varlen(case, mask):
    seqlens_q, seqlens_k, num_heads, num_kv_heads, head_dim = case
    rng = np.random.default_rng(sum(seqlens_q))
    q = random(rng, sum(seqlens_q), num_heads, head_dim)
    k, v = (random(rng, sum(seqlens_k), num_kv_heads, head_dim) for _ in range(2))
    cu_seqlens = [np.cumsum([0, *lengths], dtype=np.int32) for lengths in (seqlens_q, seqlens_k)]
    options = MASKS | {"full": {}, "causal": {"causal": True}}
    what, what_on_gpu = masked(options[mask], num_heads)
    host = (q, k, v, *cu_seqlens)
    out_ref, lse_ref = reference.varlen_attention(*host, **what)
    out_f32, _ = reference.varlen_attention(*host, **what, dtype=np.float32)
    on_gpu = [cupy.asarray(x) for x in host]
    out, lse = flash_attn_varlen(*on_gpu, **what_on_gpu)
    assert_close(out, out_ref, out_f32)
    np.testing.assert_allclose(lse.get(), lse_ref, rtol=1e-5, atol=1e-5)
    for b in range(min(len(seqlens_q), 6)):  # the same tiles as where it is alone
        rows, keys = (slice(int(cu[b]), int(cu[b + 1])) for cu in cu_seqlens)
        one = (x[None, part] for x, part in zip(on_gpu[:3], (rows, keys, keys), strict=True))
        out_one, lse_one = fa_numba.flash_attn_v2(*one, **what_on_gpu)
        assert (out[rows] == out_one[0]).all() and (lse[:, rows] == lse_one[0]).all()

    dout = random(rng, *q.shape)
    want = reference.varlen_attention_bwd(dout, *host, **what)
    plain = reference.varlen_attention_bwd(dout, *host, **what, dtype=np.float32)
    arguments = (cupy.asarray(dout), *on_gpu[:3], out, lse, *on_gpu[3:])
    got = fa_numba.flash_attn_varlen_bwd(*arguments, **what_on_gpu)
    again = fa_numba.flash_attn_varlen_bwd(*arguments, **what_on_gpu)
    for x, x_ref, x_f32, x_again in zip(got, want, plain, again, strict=True):
        assert_close(x, x_ref, x_f32, factor=3)
        assert (x == x_again).all()
    for before, after in zip(host, on_gpu, strict=True):
        np.testing.assert_array_equal(before, after.get())


# seq_lens, max_len, seqlen_q, num_heads, num_kv_heads, head_dim
DECODE_SMALL = [
    ([1], 1, 1, 1, 1, 1),
    ([0, 1, 63, 64, 65], 70, 1, 4, 2, 64),
    ([200, 3], 200, 3, 4, 1, 59),
    ([90, 90], 100, 1, 3, 3, 111),
    ([40, 0, 25], 40, 20, 2, 2, 256),
    ([2], 8, 5, 2, 1, 32),  # causal: rows that see no key
]
DECODE_LARGE = [
    ([131_072], 131_072, 1, 8, 2, 64),
    ([131_071], 131_072, 1, 8, 8, 128),
    ([8192, 100, 0, 5001], 8192, 1, 32, 8, 128),
    ([10_000, 16_384], 16_384, 70, 4, 2, 64),  # a chunk of a prompt
]


def decode_named(case):
    seq_lens, _, seqlen_q, num_heads, num_kv_heads, head_dim = case
    size = "small" if case in DECODE_SMALL else "large"
    lengths = "_".join(map(str, seq_lens))
    return f"{size}-q{seqlen_q}-k{lengths}-h{num_heads}_{num_kv_heads}-d{head_dim}"


@pytest.mark.few(lambda case, causal: [case, *pairs(case[-1] // 64, causal)])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("case", DECODE_SMALL + DECODE_LARGE, ids=decode_named)
def test_flash_decode(case, causal):
    seq_lens, max_len, seqlen_q, num_heads, num_kv_heads, head_dim = case
    rng = np.random.default_rng(sum(seq_lens))
    q = random(rng, len(seq_lens), seqlen_q, num_heads, head_dim)
    k, v = (random(rng, len(seq_lens), max_len, num_kv_heads, head_dim) for _ in range(2))
    for b, seq_len in enumerate(seq_lens):
        k[b, seq_len:] = v[b, seq_len:] = np.nan
    out_ref, lse_ref = reference.cached_attention(q, k, v, seq_lens, causal=causal)
    out_f32, _ = reference.cached_attention(q, k, v, seq_lens, causal=causal, dtype=np.float32)
    host = (q, k, v, np.array(seq_lens, np.int32))
    on_gpu = [cupy.asarray(x) for x in host]
    for num_splits in (0, 1, 2, 7, 300):
        options = {"causal": causal, "num_splits": num_splits}
        out, lse = flash_decode(*on_gpu, **options)
        assert_close(out, out_ref, out_f32)
        np.testing.assert_allclose(lse.get(), lse_ref, rtol=1e-5, atol=1e-5)
        out_again, lse_again = flash_decode(*on_gpu, **options)
        assert (out == out_again).all() and (lse == lse_again).all()
    for before, after in zip(host, on_gpu, strict=True):
        np.testing.assert_array_equal(before, after.get())


def paged(rng, k, v, seq_lens, page_size):
    """The first seq_lens[b] tokens of k and v in shuffled pages, NaN in slots that no one owns."""
    pages = -(-np.array(seq_lens) // page_size)
    num_pages = int(pages.sum()) + 3
    shape = (num_pages, page_size, *k.shape[2:])
    caches = [np.full(shape, np.nan, np.float32) for _ in range(2)]
    block_table = np.full((len(seq_lens), pages.max() + 1), -1, np.int32)
    free = rng.permutation(num_pages).astype(np.int32)
    for b, seq_len in enumerate(seq_lens):
        mine, free = free[: pages[b]], free[pages[b] :]
        block_table[b, : pages[b]] = mine
        slots = (mine[:, None] * page_size + np.arange(page_size)).ravel()[:seq_len]
        for cache, x in zip(caches, (k, v), strict=True):
            cache.reshape(-1, *shape[2:])[slots] = x[b, :seq_len]
    return *caches, block_table, np.array(seq_lens, np.int32)


@pytest.mark.few(lambda case, page_size: [case, *pairs(page_size, case[-1] > 64)])
@pytest.mark.parametrize("page_size", [1, 7, 16, 256])
@pytest.mark.parametrize("case", DECODE_SMALL + DECODE_LARGE, ids=decode_named)
def test_paged_attn_decode(case, page_size):
    seq_lens, max_len, seqlen_q, num_heads, num_kv_heads, head_dim = case
    rng = np.random.default_rng(sum(seq_lens))
    q = random(rng, len(seq_lens), seqlen_q, num_heads, head_dim)
    k, v = (random(rng, len(seq_lens), max_len, num_kv_heads, head_dim) for _ in range(2))
    out_ref, lse_ref = reference.cached_attention(q, k, v, seq_lens, causal=True)
    out_f32, _ = reference.cached_attention(q, k, v, seq_lens, causal=True, dtype=np.float32)
    host = (q, *paged(rng, k, v, seq_lens, page_size))
    on_gpu = [cupy.asarray(x) for x in host]
    dense = [cupy.asarray(x) for x in (q, k, v)]
    for num_splits in (0, 1, 7):
        options = {"causal": True, "num_splits": num_splits}
        out, lse = paged_attn_decode(*on_gpu, **options)
        assert_close(out, out_ref, out_f32)
        np.testing.assert_allclose(lse.get(), lse_ref, rtol=1e-5, atol=1e-5)
        if num_splits > 0:  # the same tiles and splits as where the keys lie in a row
            again = flash_decode(*dense, on_gpu[-1], **options)
            for x, y in zip((out, lse), again, strict=True):
                assert (x == y).all()
    for before, after in zip(host, on_gpu, strict=True):
        np.testing.assert_array_equal(before, after.get())


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("page_size", [None, 64])
@pytest.mark.parametrize(
    "case",
    [((0, 1, 65, 200), 2, 5, 40, 9), ((1000, 77), 1, 16, 512, 64), ((5001,), 2, 128, 512, 64)],
    ids=["small", "large-16", "large-128"],
)
def test_mla_decode(case, page_size, dtype):
    q, cache, *tables = make_latent_case(np.random.default_rng(0), *case, page_size)
    arrays = q.astype(dtype), cache.astype(dtype), *tables
    for num_splits in (0, 1, 7):
        options = {"latent_dim": case[3], "causal": True, "num_splits": num_splits}
        options |= {"softmax_scale": 192**-0.5, "decode": kernel_function("mla_decode")}
        # A thread adds all keys of a split one by one, NumPy in blocks: 1000 keys are off by 4.2
        # of NumPy's errors, on a GPU and bit for bit on the CPU engine.
        factor = 5 if dtype == "float32" and case[0][0] >= 1000 else 2
        check_latent_decode(*arrays, cupy.asarray, factor=factor, **options)


@pytest.mark.parametrize("window, num_sinks", [(20, 0), (7, 2), (64, 4)])
def test_rolling_cache_small(window, num_sinks):
    q, k, v, _ = make_case((2, 40, 40, 4, 2, 59, True))
    m, n = np.arange(40)[:, None], np.arange(40)
    mask = (n <= m) & ((n < num_sinks) | (n > m - window))
    out_ref, lse_ref = reference.attention(q, k, v, mask=mask)
    out_f32, _ = reference.attention(q, k, v, mask=mask, dtype=np.float32)
    q, k, v = (cupy.asarray(x) for x in (q, k, v))
    cache = RollingCache(2, window, 2, 59, num_sinks=num_sinks, like=q)
    cache.k_cache[...] = cache.v_cache[...] = np.nan
    for t in range(40):
        one = slice(t, t + 1)
        cache.append(k[:, one], v[:, one])
        caches = (cache.k_cache, cache.v_cache, cache.seq_lens)
        out, lse = flash_decode(q[:, one], *caches)
        assert_close(out, out_ref[:, one], out_f32[:, one])
        np.testing.assert_allclose(lse.get(), lse_ref[..., one], rtol=1e-5, atol=1e-5)


def test_splits_are_chosen_for_this_gpu_small():
    sms = cuda.get_current_device().MULTIPROCESSOR_COUNT
    assert arrays.num_sms(cupy.zeros(1)) == sms
    assert arrays.num_sms(np.zeros(1)) == chip(current_options().device).num_sms


@pytest.mark.parametrize("cut", [0, 1, 100, 300])
def test_merge_states_small(cut):
    q, k, v, _ = make_case((2, 17, 300, 4, 2, 59, False))
    want = reference.attention(q, k, v)
    plain = reference.attention(q, k, v, dtype=np.float32)
    q, k, v = (cupy.asarray(x) for x in (q, k, v))
    left = fa_numba.flash_attn_v2(q, k[:, :cut], v[:, :cut])
    right = fa_numba.flash_attn_v2(q, k[:, cut:], v[:, cut:])
    out, lse = fa_numba.merge_states(*left, *right)
    assert_close(out, want[0], plain[0])
    np.testing.assert_allclose(lse.get(), want[1], rtol=1e-5, atol=1e-5)


@pytest.mark.few(lambda name, case: [case, *pairs(name, case[-2] // 64, case[-1])])
@cases
@pytest.mark.parametrize("name", ["flash_attn_bwd", "flash_attn_bwd_registers"])
def test_backward(name, case):
    q, k, v, causal = make_case(case)
    dout = make_dout(case, q)
    want = reference.attention_bwd(dout, q, k, v, causal=causal)
    plain = reference.attention_bwd(dout, q, k, v, causal=causal, dtype=np.float32)
    q, k, v, dout = (cupy.asarray(x) for x in (q, k, v, dout))
    out, lse = fa_numba.flash_attn_v2(q, k, v, causal=causal)
    arguments, backward = (dout, q, k, v, out, lse), getattr(fa_numba, name)
    ways = [{}] if name == "flash_attn_bwd" else [{}, {"deterministic": True}]
    for options in ways:
        got = backward(*arguments, causal=causal, **options)
        again = backward(*arguments, causal=causal, **options)
        for gradient, x, x_ref, x_f32, x_again in zip(
            ("dq", "dk", "dv"), got, want, plain, again, strict=True
        ):
            assert_close(x, x_ref, x_f32, factor=3)
            if gradient != "dq" or options == ways[-1]:  # dq may be summed in any order
                assert (x == x_again).all(), f"{gradient} differs from run to run"


MASKS = {
    "window": {"window_size": (9, 3)},
    "causal_window": {"causal": True, "window_size": (64, -1)},
    "softcap": {"softcap": 2.0},
    "alibi": {"alibi": True},
    "all": {"causal": True, "window_size": (30, 0), "softcap": 20.0, "alibi": True},
}
MASKED = [*SMALL, LARGE[0], LARGE[1]]


def masked(mask, num_heads):
    mask = dict(mask)
    if mask.pop("alibi", False):
        mask["alibi_slopes"] = np.float32(0.5) ** np.arange(1, num_heads + 1, dtype=np.float32)
    return mask, {
        name: cupy.asarray(x) if name == "alibi_slopes" else x for name, x in mask.items()
    }


@pytest.mark.few(lambda case, mask: [mask, case[-2] // 64, *pairs(case in SMALL, case[-2] > 64)])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("case", MASKED, ids=named)
def test_masks(case, mask):
    q, k, v, _ = make_case(case)
    mask, mask_on_gpu = masked(mask, q.shape[2])
    dout = make_dout(case, q)
    out_ref, lse_ref = reference.attention(q, k, v, **mask)
    out_f32, _ = reference.attention(q, k, v, **mask, dtype=np.float32)
    want = reference.attention_bwd(dout, q, k, v, **mask)
    plain = reference.attention_bwd(dout, q, k, v, **mask, dtype=np.float32)
    q, k, v, dout = (cupy.asarray(x) for x in (q, k, v, dout))
    for name in ("naive_attn", "flash_attn_v1", *LADDER):
        if name == "flash_attn_v2_4x4" and q.shape[3] > 128:
            continue  # test_forward has its error
        out, *statistics = getattr(fa_numba, name)(q, k, v, **mask_on_gpu)
        assert_close(out, out_ref, out_f32)
    (lse,) = statistics
    np.testing.assert_allclose(lse.get(), lse_ref, rtol=1e-5, atol=1e-5)
    for name in ("flash_attn_bwd", "flash_attn_bwd_registers"):
        got = getattr(fa_numba, name)(dout, q, k, v, out, lse, **mask_on_gpu)
        for x, x_ref, x_f32 in zip(got, want, plain, strict=True):
            assert_close(x, x_ref, x_f32, factor=3)


@pytest.mark.few(lambda case, p: [p, case[-2] // 64, *pairs(case in SMALL, case[-1])])
@pytest.mark.parametrize("p", [0.1, 0.9])
@pytest.mark.parametrize("case", MASKED, ids=named)
def test_dropout(case, p):
    q, k, v, causal = make_case(case)
    options = {"causal": causal, "dropout_p": p, "seed": 2**63 + 7}
    dout = make_dout(case, q)
    out_ref, lse_ref = reference.attention(q, k, v, **options)
    out_f32, _ = reference.attention(q, k, v, **options, dtype=np.float32)
    want = reference.attention_bwd(dout, q, k, v, **options)
    plain = reference.attention_bwd(dout, q, k, v, **options, dtype=np.float32)
    q, k, v, dout = (cupy.asarray(x) for x in (q, k, v, dout))
    out, *_ = fa_numba.flash_attn_v1(q, k, v, **options)
    assert_close(out, out_ref, out_f32)
    for tiles in ({"block_m": 8, "block_n": 8}, {}):  # the same mask
        out, lse = fa_numba.flash_attn_v2(q, k, v, **options, **tiles)
        assert_close(out, out_ref, out_f32)
        np.testing.assert_allclose(lse.get(), lse_ref, rtol=1e-5, atol=1e-5)
    got = fa_numba.flash_attn_bwd(dout, q, k, v, out, lse, **options)
    again = fa_numba.flash_attn_bwd(dout, q, k, v, out, lse, **options)
    for x, x_ref, x_f32, x_again in zip(got, want, plain, again, strict=True):
        assert_close(x, x_ref, x_f32, factor=3)
        assert (x == x_again).all()


@pytest.mark.few(lambda case, page_size, mask: [case, page_size, *pairs(page_size == 1, mask)])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("page_size", [1, 7, 16])
@pytest.mark.parametrize("case", [*DECODE_SMALL, *DECODE_LARGE[2:]], ids=decode_named)
def test_masks_of_decoding(case, page_size, mask):
    seq_lens, max_len, seqlen_q, num_heads, num_kv_heads, head_dim = case
    rng = np.random.default_rng(sum(seq_lens))
    q = random(rng, len(seq_lens), seqlen_q, num_heads, head_dim)
    k, v = (random(rng, len(seq_lens), max_len, num_kv_heads, head_dim) for _ in range(2))
    mask, mask_on_gpu = masked(mask, num_heads)
    out_ref, lse_ref = reference.cached_attention(q, k, v, seq_lens, **mask)
    out_f32, _ = reference.cached_attention(q, k, v, seq_lens, **mask, dtype=np.float32)
    on_gpu = [cupy.asarray(x) for x in (q, *paged(rng, k, v, seq_lens, page_size))]
    for b, seq_len in enumerate(seq_lens):
        k[b, seq_len:] = v[b, seq_len:] = np.nan
    dense = [cupy.asarray(x) for x in (q, k, v)]
    for num_splits in (0, 1, 2, 7):
        options = mask_on_gpu | {"num_splits": num_splits}
        out, lse = flash_decode(*dense, on_gpu[-1], **options)
        assert_close(out, out_ref, out_f32)
        np.testing.assert_allclose(lse.get(), lse_ref, rtol=1e-5, atol=1e-5)
        paged_out, paged_lse = paged_attn_decode(*on_gpu, **options)
        if num_splits > 0:  # the same tiles and splits as where the keys lie in a row
            assert (paged_out == out).all() and (paged_lse == lse).all()
        assert_close(paged_out, out_ref, out_f32)


@pytest.mark.parametrize(
    "shape",
    [(1, 1), (3, 7), (33, 100), (64, 1025), (4096, 8192), (7, 32_768), (7, 33_333), (7, 65_536)],
    ids=lambda s: f"{'small' if s[1] < 2000 else 'large'}-{s[0]}x{s[1]}",
)
@pytest.mark.parametrize(
    "name", ["naive_softmax", "safe_softmax", "online_softmax", "softmax_registers"]
)
def test_softmax(name, shape):
    x = random(np.random.default_rng(0), *shape)
    got = getattr(fa_numba, name)(cupy.asarray(x))
    assert_close(got, reference.softmax(x), reference.softmax(x, dtype=np.float32))


@pytest.mark.parametrize("k", [1, 5, 32])
@pytest.mark.parametrize(
    "shape",
    [(3, 32), (33, 100), (64, 1025), (16, 128_256), (3000, 3000)],  # 128 256 is a vocabulary
    ids=lambda s: f"{'small' if s[1] < 2000 else 'large'}-{s[0]}x{s[1]}",
)
@pytest.mark.parametrize("name", ["softmax_topk", "softmax_topk_warps"])
def test_softmax_topk(name, shape, k):
    x = random(np.random.default_rng(0), *shape).round(1)  # with many that are equal
    values, columns = kernel_function(name)(cupy.asarray(x), k)
    want, want_columns = reference.softmax_topk(x, k)
    assert_close(values, want, reference.softmax_topk(x, k, dtype=np.float32)[0])
    np.testing.assert_array_equal(columns.get(), want_columns)


LINEAR_SMALL = [(1, 1, 1, 1, 1), (2, 33, 4, 2, 16), (2, 50, 3, 1, 59), (2, 17, 4, 4, 111)]
LINEAR_LARGE = [(1, 4000, 4, 2, 64), (2, 1000, 2, 2, 128)]  # batch, seqlen, heads, head_dim


def linear_named(case):
    batch, seqlen, num_heads, num_kv_heads, head_dim = case
    size = "small" if case in LINEAR_SMALL else "large"
    return f"{size}-b{batch}-{seqlen}-h{num_heads}_{num_kv_heads}-d{head_dim}"


@pytest.mark.few(lambda case, feature_map, form: [case, *pairs(feature_map, form)])
@pytest.mark.parametrize("form", ["full", "chunked", "recurrent"])
@pytest.mark.parametrize("feature_map", ["elu1", "relu", "taylor2", "hedgehog"])
@pytest.mark.parametrize("case", LINEAR_SMALL + LINEAR_LARGE, ids=linear_named)
def test_linear_attn(case, feature_map, form):
    batch, seqlen, num_heads, num_kv_heads, head_dim = case
    if case in LINEAR_LARGE and (feature_map == "taylor2" or form == "recurrent"):
        pytest.skip("a state of megabytes for every chunk, or moved for every token")
    q, k, v, _ = make_case((batch, seqlen, seqlen, num_heads, num_kv_heads, head_dim, True))
    rng = np.random.default_rng(0)
    weights = [random(rng, *x.shape[2:], 24) / np.float32(2 * head_dim**0.5) for x in (q, k)]
    options = {"feature_map": feature_map, "causal": form != "full"}
    on_gpu = [cupy.asarray(x) for x in (q, k, v)]
    if feature_map == "hedgehog":
        options["weights"] = weights
    want = reference.linear_attn(q, k, v, **options)
    plain = reference.linear_attn(q, k, v, **options, dtype=np.float32)
    if feature_map == "hedgehog":
        options["weights"] = [cupy.asarray(w) for w in weights]
    options["form"] = None if form == "full" else form
    got = fa_numba.linear_attn(*on_gpu, **options)
    again = fa_numba.linear_attn(*on_gpu, **options)
    for x, x_ref, x_f32, x_again in zip(got, want, plain, again, strict=True):
        assert_close(x, x_ref, x_f32)
        assert (x == x_again).all()
    for before, after in zip((q, k, v), on_gpu, strict=True):
        np.testing.assert_array_equal(before, after.get())


def test_linear_attn_decodes_from_its_state_small():
    q, k, v, _ = make_case((2, 40, 40, 4, 2, 64, True))
    whole, _ = reference.linear_attn(q, k, v, causal=True)
    q, k, v = (cupy.asarray(x) for x in (q, k, v))
    out, state = fa_numba.linear_attn(q[:, :30], k[:, :30], v[:, :30], causal=True)
    pieces = [out]
    for n in range(30, 40):
        token = (x[:, n : n + 1] for x in (q, k, v))
        out, state = fa_numba.linear_attn(*token, causal=True, state=state)
        pieces.append(out)
    out = cupy.concatenate(pieces, axis=1)
    np.testing.assert_allclose(out.get(), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("page_size", [1, 7, 16])
def test_paged_kv_lookup_small(page_size):
    host = make_paged_cache(np.random.default_rng(0), [0, 1, 50, 33], page_size, 2, 59)
    check_lookup(fa_numba.paged_kv_lookup, *map(cupy.asarray, host))


CACHE_SIZES = [(1, 1, 1), (7, 2, 59), (16, 9, 111), (16, 8, 128)]  # page_size, heads, head_dim


@pytest.mark.parametrize("sizes", CACHE_SIZES, ids=lambda s: "x".join(map(str, s)))
def test_reshape_and_cache_small(sizes):
    rng = np.random.default_rng(0)
    k, v = (random(rng, 9, *sizes[1:]) for _ in range(2))
    k_cache, v_cache = (random(rng, 12, *sizes) for _ in range(2))
    slot_mapping = rng.permutation(12 * sizes[0])[:9].astype(np.int32)
    slot_mapping[[2, 5]] = -1
    on_gpu = map(cupy.asarray, (k, v, k_cache, v_cache, slot_mapping))
    check_cache_write(fa_numba.reshape_and_cache, *on_gpu)


@pytest.mark.parametrize("sizes", CACHE_SIZES, ids=lambda s: "x".join(map(str, s)))
def test_copy_pages_small(sizes):
    rng = np.random.default_rng(0)
    caches = [random(rng, 9, *sizes) for _ in range(2)]
    host = *caches, pages(8, 0, 0, 4), pages(2, 7, 1, 5)
    check_copies(fa_numba.copy_pages, *map(cupy.asarray, host))


def to_library(library, x):
    if library == "torch":
        like = pytest.importorskip("torch").empty(0, device="cuda")
    else:
        like = cuda.device_array(1) if library == "numba" else cupy.empty(0)
    return arrays.from_numpy(like, x)


@pytest.mark.parametrize("library", ["cupy", "torch", "numba"])
@pytest.mark.parametrize("sizes", CACHE_SIZES, ids=lambda s: "x".join(map(str, s)))
def test_swap_pages_out_and_in_small(sizes, library):
    rng = np.random.default_rng(0)
    caches = [random(rng, 9, *sizes) for _ in range(2)]
    host = [random(rng, 5, *sizes) for _ in range(2)]
    on_gpu = [to_library(library, x) for x in caches]
    out = pages(8, 0, 3), pages(1, 4, 0)
    want = reference.swap_pages(*caches, *host, *out)
    fa_numba.swap_pages(*on_gpu, *host, *out)
    for x, x_ref in zip(host, want, strict=True):
        np.testing.assert_array_equal(x, x_ref)
    back = pages(4, 2, 1), pages(5, 6, 0)
    want = reference.swap_pages(*host, *caches, *back)
    fa_numba.swap_pages(*host, *on_gpu, *back)
    for x, x_ref in zip(on_gpu, want, strict=True):
        np.testing.assert_array_equal(arrays.to_numpy(x), x_ref)


def test_swap_pages_within_a_gpu_small():
    rng = np.random.default_rng(0)
    source, target = ([random(rng, n, 4, 2, 59) for _ in range(2)] for n in (9, 5))
    numbers = pages(8, 0, 3), pages(1, 4, 0)
    want = reference.swap_pages(*source, *target, *numbers)
    on_gpu = [cupy.asarray(x) for x in target]
    fa_numba.swap_pages(*(cupy.asarray(x) for x in source), *on_gpu, *numbers)
    for x, x_ref in zip(on_gpu, want, strict=True):
        np.testing.assert_array_equal(x.get(), x_ref)


# One head_dim and one mask for all, so that few kernels are to be compiled.
DTYPE_SHAPES = {"small": (2, 17, 33, 4, 2, 64), "large": (2, 1000, 1500, 4, 2, 64)}
DTYPE_MASK = {"causal": True, "softcap": 20.0, "alibi": True}


# A conversion is the same in every kernel: those of attention meet both dtypes, any other one.
@pytest.mark.few(
    lambda name, size, dtype, library: [
        (name, name in dtype_cases.ATTENTION and dtype),
        *pairs(size, dtype, library),
    ]
)
@pytest.mark.parametrize(
    "size, dtype, library",
    [
        ("small", "float16", "cupy"),
        ("small", "float16", "torch"),
        ("small", "bfloat16", "cupy"),
        ("small", "bfloat16", "torch"),
        ("large", "float16", "cupy"),
        ("large", "bfloat16", "torch"),
    ],
)
@pytest.mark.parametrize("name", [*dtype_cases.ATTENTION, *dtype_cases.OTHERS])
def test_16_bits(name, size, dtype, library):
    if size == "large" and name == "linear_attn_taylor2":
        pytest.skip("a state of megabytes for every token")
    options = [DTYPE_MASK] if name in dtype_cases.ATTENTION else []
    check = (dtype_cases.ATTENTION | dtype_cases.OTHERS)[name]
    rng, dtype = np.random.default_rng(0), np.dtype(dtype).type
    check(rng, dtype, lambda x: to_library(library, x), DTYPE_SHAPES[size], *options)


@pytest.mark.parametrize("library", ["cupy", "torch", "numba"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_results_of_16_bits_are_of_the_library_and_dtype_small(dtype, library):
    q, k, v, _ = make_case((2, 17, 33, 2, 2, 64, False))
    q, k, v = (to_library(library, x.astype(dtype)) for x in (q, k, v))
    for name in ("flash_attn_v1", "flash_attn_v2"):
        out, *statistics = getattr(fa_numba, name)(q, k, v)
        assert type(out) is type(q) and out.dtype == q.dtype
        assert all(arrays.dtype_name(x) == "float32" for x in statistics)


@cuda.jit
def convert(x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = float32(x[i])


def test_bfloat16_converts_as_ml_dtypes_does_small():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    every = np.arange(2**16, dtype=np.uint16).view(bfloat16)
    tails = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    heads = np.arange(0, 2**16, 7, dtype=np.uint32) << 16
    for x, dtype in (
        (every, np.float32),
        ((heads[:, None] | tails).ravel().view(np.float32), bfloat16),
    ):
        y = cupy.empty(x.shape, dtype)
        arrays.launch(convert, (-(-x.size // 256),), (256,), to_library("cupy", x), y)
        want = x.astype(dtype).astype(np.float32)
        np.testing.assert_array_equal(arrays.to_numpy(y).astype(np.float32), want)


def test_strided_arrays_small():
    rng = np.random.default_rng(0)
    qkv = cupy.asarray(random(rng, 2, 40, 3, 2, 32))  # packed: a view of each, not contiguous
    q, k, v = (qkv[:, :, i] for i in range(3))
    out, lse = fa_numba.flash_attn_v2(q, k, v)
    packed = [cupy.ascontiguousarray(x) for x in (q, k, v)]
    out_packed, lse_packed = fa_numba.flash_attn_v2(*packed)
    assert (out == out_packed).all() and (lse == lse_packed).all()


@pytest.mark.parametrize("library", ["cupy", "torch", "numba"])
@pytest.mark.parametrize("name", LADDER)  # flash_attn_registers: more than 48 KiB of shared memory
def test_both_ways_of_launching_give_the_same_bits_small(monkeypatch, name, library):
    q, k, v, _ = make_case((1, 40, 50, 4, 2, 64, True))
    x = [to_library(library, x) for x in (q, k, v)]
    short = getattr(fa_numba, name)(*x, causal=True)
    prepared = launching._prepared.items()
    assert any(launch for key, launch in prepared if name in key[0].py_func.__name__)
    monkeypatch.setattr(launching, "enabled", False)
    by_dispatcher = getattr(fa_numba, name)(*x, causal=True)
    for one, other in zip(short, by_dispatcher, strict=True):
        np.testing.assert_array_equal(arrays.to_numpy(one), arrays.to_numpy(other))


def test_a_new_process_finds_its_kernels_on_disk_small(tmp_path):
    code = (
        "import cupy, fa_numba, numpy\n"
        "from fa_numba.runtime import launching\n"
        "x = cupy.ones((1, 20, 2, 64), 'float32')\n"
        "launching._compile = COMPILE\n"
        "print(float(fa_numba.flash_attn_registers(x, x, x, causal=True)[0].sum()))"
    )
    told = [
        subprocess.run(
            [sys.executable, "-c", code.replace("COMPILE", how)],
            env=os.environ | {"FA_NUMBA_CACHE": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        for how in ("launching._compile", "None")  # the second cannot compile
    ]
    assert told[0].stdout == told[1].stdout == "2560.0\n", told[1].stderr
    assert any(path.name.startswith("flash_attn_registers") for path in tmp_path.iterdir())


def test_threads_launch_at_once():
    q, k, v, causal = make_case((1, 64, 64, 2, 2, 64, True))
    x = [cupy.asarray(x) for x in (q, k, v)]
    want, _ = fa_numba.flash_attn_v2(*x, causal=causal)

    def call(_):
        return [(fa_numba.flash_attn_v2(*x, causal=causal)[0] == want).all() for _ in range(50)]

    with ThreadPoolExecutor(8) as threads:
        assert all(map(all, threads.map(call, range(8))))


def test_runs_on_the_current_stream():
    q, k, v, causal = make_case((1, 64, 64, 2, 2, 32, True))
    out_ref, _ = reference.attention(q, k, v, causal=causal)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        big = cupy.random.standard_normal((4096, 4096), dtype=np.float32)
        for _ in range(20):
            big = big @ big * np.float32(1e-3)  # keeps the stream busy: an early start is seen
        late = (big[0, 0] * 0).astype(np.float32)
        arrays = [cupy.asarray(x) + cupy.nan_to_num(late) for x in (q, k, v)]
        out, _ = fa_numba.flash_attn_v2(*arrays, causal=causal)
    stream.synchronize()
    np.testing.assert_allclose(out.get(), out_ref, rtol=1e-4, atol=1e-5)


def test_torch_tensors_small():
    torch = pytest.importorskip("torch")
    q, k, v, causal = make_case((2, 50, 50, 4, 2, 64, True))
    tensors = [torch.tensor(x, device="cuda") for x in (q, k, v)]
    out, lse = fa_numba.flash_attn_v2(*tensors, causal=causal)
    assert isinstance(out, torch.Tensor) and out.device == tensors[0].device
    out_ref, lse_ref = reference.attention(q, k, v, causal=causal)
    np.testing.assert_allclose(out.cpu().numpy(), out_ref, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(lse.cpu().numpy(), lse_ref, rtol=1e-4, atol=1e-5)


def test_numba_device_arrays_small():
    q, k, v, causal = make_case((1, 20, 20, 1, 1, 16, False))
    out, _ = fa_numba.flash_attn_v2(*(cuda.to_device(x) for x in (q, k, v)))
    out_ref, _ = reference.attention(q, k, v)
    np.testing.assert_allclose(out.copy_to_host(), out_ref, rtol=1e-4, atol=1e-5)


def test_numpy_arrays_run_on_the_cpu_engine_small():
    q, k, v, causal = make_case((1, 20, 20, 1, 1, 16, False))
    out, _ = fa_numba.flash_attn_v2(q, k, v)
    assert isinstance(out, np.ndarray)


def test_libraries_do_not_mix_small():
    q, k, v, _ = make_case((1, 4, 4, 1, 1, 4, False))
    with pytest.raises(TypeError, match="cupy"):
        fa_numba.flash_attn_v2(cupy.asarray(q), k, v)
