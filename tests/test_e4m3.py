"""Caches of e4m3: the numbers, and what writes and reads them; kernels on the CPU engine."""

import re
import runpy
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from cases import (
    MASKS,
    assert_close,
    from_8_bits,
    in_8_bits,
    make_cache_write,
    make_paged_cache,
    mask_options,
    random,
    thorough,
)
from numba import cuda, float32

import fa_numba
from fa_numba import copy_pages, reference, reshape_and_cache, simt, swap_pages, which
from fa_numba.analysis.machine_code import TARGETS, compile_for, compiler_available
from fa_numba.kernels import e4m3
from fa_numba.kernels.flash_decode import flash_decode, make_flash_decode
from fa_numba.kernels.paged_attn_decode import paged_attn_decode
from fa_numba.kv_cache.reshape_and_cache import make_write_bytes

pytestmark = pytest.mark.usefixtures("checked")

BYTES = np.arange(256, dtype=np.uint8)
NUMBERS = BYTES.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
FORMS = ("head", "token")
each_form = pytest.mark.parametrize("form", FORMS)
# Kernels to read and the CPU's job take q of any dtype: they compute in float32.
each_dtype = pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])


@cuda.jit
def read_kernel(bytes, x):
    i = cuda.threadIdx.x
    x[i] = e4m3.from_e4m3(bytes[i])


@cuda.jit
def write_kernel(x, bytes):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    bytes[i] = e4m3.to_e4m3(float32(x[i]))


def written(x):
    bytes = np.empty(x.shape, np.uint8)
    simt.run(write_kernel, (len(x) // 32,), (32,), x, bytes)
    return bytes


def test_every_byte_is_read_exactly():
    x = np.empty(256, np.float32)
    simt.run(read_kernel, (1,), (256,), BYTES, x)
    for got in (x, e4m3.decode(BYTES, np.float32(1))):
        np.testing.assert_array_equal(got, NUMBERS)
        np.testing.assert_array_equal(np.signbit(got[:255]), np.signbit(NUMBERS[:255]))
    half = e4m3.decode(BYTES, np.float16(1))
    np.testing.assert_array_equal(half.astype(np.float32), NUMBERS)  # float16 has them all


@pytest.mark.parametrize("name", ["ex14b_block_scales", "ex14c_wrong_scale"])
def test_the_rounding_of_lesson_14_saturates(name, rng):
    path = Path(__file__).parents[1] / f"solutions/{name}.py"
    round_e4m3 = runpy.run_path(str(path))["round_e4m3"]

    @cuda.jit
    def kernel(x, y):
        i = cuda.grid(1)
        y[i] = round_e4m3(x[i])

    x = rng.standard_normal(1024) * 10.0 ** rng.uniform(-4, 38, 1024)
    x = x.astype(np.float32)
    y = np.empty_like(x)
    simt.run(kernel, 8, 128, x, y)
    want = np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    np.testing.assert_array_equal(y, want)


def test_a_number_is_rounded_to_the_nearest_byte(rng):
    """The numbers, all ties between them, and others, against ml_dtypes and against a search."""
    finite = np.sort(NUMBERS[np.isfinite(NUMBERS)])
    ties = (finite[1:] + finite[:-1]) / 2
    near = [np.nextafter(ties, np.float32(end)) for end in (-np.inf, np.inf)]
    others = rng.uniform(-4, 4, 256) * 10.0 ** rng.uniform(-4, 2, 256)
    x = np.concatenate([finite, ties, *near, others, np.float32([0, -0.0])]).astype(np.float32)
    x = np.concatenate([x, np.zeros(-len(x) % 32, np.float32)])
    want = x.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    for got in (written(x), e4m3.encode(x, np.float32(1))):
        np.testing.assert_array_equal(NUMBERS[got], NUMBERS[want])
        nearest = np.abs(x[:, None] - finite.astype(np.float64)).min(axis=1)
        np.testing.assert_array_equal(np.abs(x - NUMBERS[got].astype(np.float64)), nearest)


def test_what_is_beyond_the_largest_becomes_the_largest():
    x = np.float32([448, 449, 464, 1e9, np.inf, -448, -449, -1e9, -np.inf] + 23 * [np.nan])
    for got in (written(x), e4m3.encode(x, np.float32(1))):
        assert (
            NUMBERS[got[:9]].tolist() == [448] * 5 + [-448] * 4 and np.isnan(NUMBERS[got[9:]]).all()
        )


def test_the_scale_of_nothing_is_one():
    x = np.zeros((3, 8), np.float32)
    x[1], x[2, 0] = 896, np.nan
    bytes, scale = e4m3.quantise(x)
    assert scale.tolist() == [1, 2, 1]
    assert (NUMBERS[bytes[:2]] == [[0], [448]]).all() and np.isnan(NUMBERS[bytes[2, 0]])


@each_form
@each_dtype
@pytest.mark.parametrize("page_size, heads, head_dim", [(1, 1, 1), (7, 9, 33), (16, 2, 64)])
def test_tokens_are_written_with_their_scales(rng, page_size, heads, head_dim, dtype, form):
    k, v, *caches, slots = make_cache_write(rng, 9, page_size, heads, head_dim)
    k, v = k.astype(dtype), v.astype(dtype)
    k[2], slots[4] = 0, -1
    before, scales = in_8_bits(*(np.nan_to_num(x) for x in caches), form)
    scales = {name: x.copy() for name, x in scales.items()}
    given = {name: x.copy() for name, x in scales.items()}
    views = [np.repeat(x, 2, axis=2)[:, :, ::2] for x in before]
    reshape_and_cache(k, v, *views, slots, **scales)
    for x, cache, old, name in zip((k, v), views, before, scales, strict=True):
        bytes, own = e4m3.quantise(x)
        if form == "head":
            own, bytes = given[name], e4m3.encode(x, given[name][:, None])
        want, kept = old.reshape(-1, heads, head_dim).copy(), slots >= 0
        want[slots[kept]] = bytes[kept]
        np.testing.assert_array_equal(cache.reshape(want.shape), want)
        want = given[name]
        if form == "token":
            want = want.reshape(-1, heads).copy()
            want[slots[kept]] = own[kept]
        np.testing.assert_array_equal(scales[name].reshape(want.shape), want)


def check(decode, q, caches, *tables, form, **options):
    """Against float64 of the numbers in the cache."""
    bytes, scales = in_8_bits(*caches, form)
    got = decode(q, *bytes, *tables, **scales, **options)
    exact = [from_8_bits(x, scale) for x, scale in zip(bytes, scales.values(), strict=True)]
    definition = reference.paged_attention if len(tables) == 2 else reference.cached_attention
    options = {x: y for x, y in options.items() if x not in ("num_splits", "block_m", "block_n")}
    want = definition(q, *exact, *tables, **options)
    rounded = (x.astype(np.float32) for x in exact)
    plain = definition(q, *rounded, *tables, **options, dtype=q.dtype)
    for name, x, y, z in zip(("out", "lse"), got, want, plain, strict=True):
        assert_close(x, y, z, name=name)


def problem(rng, seqlen_q, heads, kv_heads, head_dim, page_size, lengths=(0, 1, 9, 37)):
    q = random(rng, len(lengths), seqlen_q, heads, head_dim)
    k, v, *tables = make_paged_cache(rng, lengths, page_size, kv_heads, head_dim)
    return q, (k, v), *tables


@each_form
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_paged_kernel(rng, mask, form):
    arrays = problem(rng, 3, 4, 2, 6, 5)
    tiles = {"block_m": 4, "block_n": 8, "num_splits": 2}
    check(paged_attn_decode, *arrays, form=form, **mask_options(mask, 4), **tiles)


@each_form
@each_dtype
def test_contiguous_kernel(rng, form, dtype):
    q = random(rng, 2, 3, 4, 8).astype(dtype)
    caches = random(rng, 2, 21, 2, 8), random(rng, 2, 21, 2, 8)
    lengths = np.array([21, 6], np.int32)
    check(flash_decode, q, caches, lengths, form=form, causal=True, num_splits=2, block_n=8)


@each_form
@each_dtype
def test_q_of_any_dtype(rng, form, dtype):
    q, *arrays = problem(rng, 3, 4, 2, 6, 5)
    for decode in (paged_attn_decode, fa_numba.paged_attn_decode):
        check(decode, q.astype(dtype), *arrays, form=form, causal=True)


@each_form
@pytest.mark.parametrize(
    "seqlen_q, heads, kv_heads, head_dim, page_size",
    [(1, 4, 2, 64, 5), (3, 12, 1, 128, 16), (1, 1, 1, 9, 1), (40, 4, 2, 40, 7)],
)
def test_on_the_cpu(rng, seqlen_q, heads, kv_heads, head_dim, page_size, form):
    arrays = problem(rng, seqlen_q, heads, kv_heads, head_dim, page_size, (90, 1, 0, 65))
    check(fa_numba.paged_attn_decode, *arrays, form=form, causal=True)
    q, k, v = (
        random(rng, 2, n, h, head_dim) for n, h in ((seqlen_q, heads), *[(70, kv_heads)] * 2)
    )
    lengths = np.array([70, 13], np.int32)
    check(fa_numba.flash_decode, q, (k, v), lengths, form=form, causal=True, softcap=3.0)


def test_nan_in_one_key_stays_in_its_head(rng):
    q, (k, v), *tables = problem(rng, 1, 4, 2, 8, 4, (9, 6))
    (k, v), scales = in_8_bits(np.nan_to_num(k), np.nan_to_num(v), "token")
    k[tables[0][1, 0], 2, 1, 3] = e4m3.NAN_BYTE
    for decode in (paged_attn_decode, fa_numba.paged_attn_decode):
        out, _ = decode(q, k, v, *tables, **scales)
        assert np.isnan(out[1, :, 2:]).all() and np.isnan(out).sum() == 2 * 8


def test_pages_of_bytes_are_copied_and_swapped(rng):
    k, v = rng.integers(0, 256, (2, 6, 4, 2, 8)).astype(np.uint8)
    src, dst = np.array([1, 3], np.int32), np.array([0, 5], np.int32)
    want = k.copy()
    want[dst] = want[src]
    copy_pages(k, v, src, dst)
    np.testing.assert_array_equal(k, want)
    k_host, v_host = np.zeros((2, *k.shape), np.uint8)
    swap_pages(k, v, k_host, v_host, src, dst)
    np.testing.assert_array_equal(k_host[dst], k[src])


def test_the_fast_kernels_say_why_they_cannot_take_bytes(rng):
    q, (k, v), *tables = problem(rng, 1, 4, 2, 16, 4, (9, 6))
    (k, v), scales = in_8_bits(np.nan_to_num(k), np.nan_to_num(v), "head")
    choice = which(fa_numba.paged_attn_decode, q, k, v, *tables, **scales)
    assert choice.kernel == "cpu.paged_attn_decode"
    for name in ("flash_decode_mma", "flash_decode_wide"):
        assert choice.refused[name]


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"k_scale": None}, TypeError, "k_scale must be an array, because .* uint8"),
        ({"v_scale": None}, TypeError, "v_scale must be an array, because .* uint8"),
        (
            {"v_cache": np.zeros((3, 4, 2, 8), "f2")},
            TypeError,
            "k_cache, v_cache must be of one dtype",
        ),
        ({"k_scale": np.ones(3, "f4")}, ValueError, r"k_scale must have a scale .* got \(3,\)"),
        (
            {"v_scale": np.ones((3, 4, 2), "f4")},
            ValueError,
            "v_scale must have the shape of k_scale",
        ),
        ({"k_scale": np.ones(2, "f8")}, TypeError, "k_scale must be float32, got float64"),
        ({"k_scale": [1.0]}, TypeError, "k_scale must be a NumPy array"),
    ],
)
def test_mixed_caches_and_wrong_scales_are_refused(change, error, message):
    cache, scale = np.zeros((3, 4, 2, 8), np.uint8), np.ones(2, np.float32)
    scales = {"k_scale": scale, "v_scale": scale}
    token = np.zeros((1, 2, 8), np.float32)
    call = {"k_cache": cache, "v_cache": cache.copy(), **scales} | change
    tables = {"block_table": np.zeros((1, 1), np.int32), "seq_lens": np.ones(1, np.int32)}
    for decode in (paged_attn_decode, fa_numba.paged_attn_decode):
        with pytest.raises(error, match=message):
            decode(token[:, None], **call, **tables)
    with pytest.raises(error, match=message):
        reshape_and_cache(token, token, **call, slot_mapping=np.zeros(1, np.int32))


def test_scales_are_for_bytes_alone():
    x, scale = np.zeros((1, 4, 2, 8), np.float32), np.ones(2, np.float32)
    scales = {"k_scale": scale, "v_scale": scale}
    with pytest.raises(TypeError, match="k_cache must be uint8, the bytes of e4m3, .* got float32"):
        fa_numba.flash_decode(x[:, :1], x, x, np.ones(1, np.int32), **scales)
    with pytest.raises(TypeError, match="v_cache must be uint8, .* got float32"):
        fa_numba.flash_decode(x[:, :1], x.astype(np.uint8), x, np.ones(1, np.int32), **scales)
    e4m3 = x.astype(ml_dtypes.float8_e4m3fn)
    with pytest.raises(TypeError, match='got float8_e4m3fn: k_cache.view."uint8".'):
        fa_numba.flash_decode(x[:, :1], e4m3, e4m3, np.ones(1, np.int32), **scales)


@pytest.mark.skipif(not compiler_available(), reason="needs NVVM and NVRTC")
@pytest.mark.parametrize(
    "form, dtype", [("head", "float16"), ("token", "bfloat16"), thorough("token", "float32")]
)
def test_the_kernels_that_write_and_read_stay_within_their_budgets(form, dtype):
    x, slots = np.zeros((1, 1, 64), dtype), np.zeros(1, np.int32)
    cache = np.zeros((2, 4, 1, 64), np.uint8)
    scales = [np.zeros((1,) if form == "head" else (2, 4, 1), np.float32)] * 2
    out, lse = np.zeros((1, 1, 1, 1, 64), np.float32), np.zeros((1, 1, 1, 1), np.float32)
    scalars = np.float32(1), np.float32(0), ()
    reads = x[None], cache, cache, slots[None], slots, *scales, out, lse, *scalars
    for kernel, args in (
        (make_write_bytes(form), (x, x, cache, cache, slots, *scales)),
        (make_flash_decode(64, 4, 64, False, SCALES=form, PAGE_SIZE=16), reads),
    ):
        stated = re.search(r"budget +(\d+) registers, (\d+) bytes", kernel.py_func.__doc__)
        registers, shared_bytes = map(int, stated.groups())
        for code in compile_for(kernel, args, TARGETS[::2]):
            assert code.registers <= registers and code.shared_bytes <= shared_bytes
            assert code.spill_bytes == code.local_bytes == code.float64_instructions == 0
