"""Grader of ex18e: paged decode of a cache of bytes with a scale for each token and head."""

from dataclasses import replace

import numpy as np
import pytest
from numba import cuda

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.attention import expect_clean
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.kernels import expect_at_most
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_products, expect_traffic
from fa_numba.workbook.graders.pages import check, prepare
from fa_numba.workbook.graders.pages import make_paged as paged


def make_paged(*args, **options):
    return paged(*args, fp8=True, **options)


def number(byte):
    """The definition, without NaN: an exponent of 4 bits, a mantissa of 3."""
    exponent, mantissa = byte >> 3 & 15, byte & 7
    size = (8 + mantissa) * 2.0 ** (exponent - 10) if exponent else mantissa * 2.0**-9
    return -size if byte & 0x80 else size


def numbers(from_byte, codes):
    """The numbers of all bytes, a thread for each."""

    @cuda.jit
    def kernel(codes, x):
        i = cuda.grid(1)
        if i < x.shape[0]:
            x[i] = from_byte(codes[i])

    x = np.zeros(len(codes), np.float32)
    simt.run(kernel, 4, 64, codes, x)
    return x


def test_every_byte(exercise):
    """from_e4m3: all 254 numbers exactly, the subnormal ones too"""
    codes = np.array([byte for byte in range(256) if byte & 0x7F != 0x7F], np.uint8)
    got, want = numbers(exercise.from_e4m3, codes), np.array([number(int(byte)) for byte in codes])
    bad = np.flatnonzero(~(got == want))
    if not len(bad):
        return
    size, exponent = np.abs(want), codes >> 3 & 15
    normal = np.where(exponent > 0, want, np.copysign((8 + (codes & 7)) / 1024, want))
    known = {
        "An exponent of 0 has no leading 1, and counts as an exponent of 1.": normal,
        "The subnormal numbers are not 0.": np.where(size < 2.0**-6, 0, want),
        "The bias is 7.": want / 2,
        "The bit 0x80 is the sign.": size,
        "e4m3 has no infinities: an exponent of 15 is one like the others.": np.where(
            exponent == 15, np.nan, want
        ),
    }
    at = bad[0]
    raise Wrong(
        f"from_e4m3({codes[at]:#04x}) must be {want[at]:g}, got {got[at]:g}; {len(bad)} of 254 "
        "numbers are wrong",
        causes=[
            said
            for said, x in known.items()
            if np.array_equal(np.nan_to_num(got), np.nan_to_num(x))
            or (said.startswith("e4m3 has no") and (exponent[bad] == 15).all())
        ],
        where=f"byte {codes[at]:#04x}",
    )


def test_nan(exercise):
    """from_e4m3: 0x7f and 0xff are NaN, not 480"""
    got = numbers(exercise.from_e4m3, np.array([0x7F, 0xFF], np.uint8))
    assert np.isnan(got).all(), f"0x7f and 0xff must be NaN, got {got.tolist()}"


def test_every_int8(exercise):
    """from_int8: all 256 numbers"""
    codes = np.arange(256, dtype=np.uint8)
    got, want = numbers(exercise.from_int8, codes), codes.view(np.int8)
    bad = np.flatnonzero(~(got == want))
    if not len(bad):
        return
    known = {
        "Bytes from 128 on are negative.": codes,
        "0 is the byte 0, not 128.": codes - 128.0,
        "0xff is -1: the bit 0x80 is no sign.": np.where(codes > 127, 128.0 - codes, codes),
    }
    raise Wrong(
        f"from_int8({bad[0]:#04x}) must be {want[bad[0]]}, got {got[bad[0]]:g}; {len(bad)} of 256 "
        "numbers are wrong",
        causes=[said for said, x in known.items() if np.array_equal(got, x)],
        where=f"byte {bad[0]:#04x}",
    )


def test_int8(exercise):
    """a cache of int8, by the same kernel"""
    check(exercise, paged([29], 3, int8=True))
    check(exercise, paged([13, 0, 1, 22], 4, int8=True))


@pytest.mark.parametrize("page_size", [1, 3, 8, 12, 64])
def test_pages(exercise, page_size):
    """every token has its scale, whatever the size of a page"""
    check(exercise, make_paged([29], page_size))


def test_batch(exercise):
    """several sequences; one is empty"""
    check(exercise, make_paged([13, 0, 1, 22], 4))


@pytest.mark.parametrize("num_heads, num_kv_heads", [(3, 3), (6, 2), (20, 1)])
def test_heads(exercise, num_heads, num_kv_heads):
    """every K/V head has its scale"""
    check(exercise, make_paged([18], 5, num_heads, num_kv_heads))


@pytest.mark.parametrize("num_splits", [1, 4])
@pytest.mark.parametrize("BLOCK_N", [4, 33])
def test_tiles_and_splits(exercise, num_splits, BLOCK_N):
    """tile size and number of splits do not change the answer"""
    check(exercise, make_paged([35, 9], 6), num_splits, BLOCK_N)


@pytest.mark.parametrize("head_dim", [1, 128, 130])
def test_head_dim(exercise, head_dim):
    """head_dim odd, and larger than the thread block is wide"""
    check(exercise, make_paged([11], 4, 2, 1, head_dim))


def test_low_scores(exercise):
    """scores far below 0, where a finite number in place of -inf would be the largest"""
    step = make_paged([21], 4)
    step = replace(step, q=np.float32(-1e6) * np.abs(step.q), k_cache=step.k_cache & 0x7F)
    check(exercise, step, num_splits=1)


def test_many(exercise):
    """270 splits and pages; a page of 300; 70 sequences; 70 K/V heads"""
    check(exercise, make_paged([270], 1, 1, 1, 2), 270, 1)
    check(exercise, make_paged([293], 300, 1, 1, 2), 2, 8)
    check(exercise, make_paged([1 + b % 3 for b in range(70)], 2, 1, 1, 2), 2, 4)
    check(exercise, make_paged([3], 2, 70, 70, 2), 1, 4)


def test_traffic(exercise):
    """each key and value is loaded once, a byte each; scales at most once per tile and thread"""
    step = make_paged([37, 0, 16], 5, 4, 2, 32)
    launch, _ = prepare(exercise, step, 3, 8)
    trace = simt.trace(*launch)
    keys = (53 * 2 * 32, "sum(seq_lens) * num_kv_heads * HEAD_DIM")
    none = 0, "a thread block keeps its result to itself"
    expect_traffic(trace, {
        ("k_cache", "loads"): keys, ("v_cache", "loads"): keys,
        ("out_partial", "loads"): none, ("lse_partial", "loads"): none,
        ("out_partial", "stores"): (3 * 3 * 4 * 32, "num_splits * batch * num_heads * HEAD_DIM"),
    })  # fmt: skip
    scales = 53 * 2 * 8, "once for each key, K/V head and thread of a row of the tile"
    expect_at_most(trace, k_scale_loads=scales, v_scale_loads=scales, block_table_loads=scales)


def test_memory(exercise):
    """shared memory: five tiles, as before"""
    trace = simt.trace(*prepare(exercise, make_paged([48], 6, 16, 1, 32), 2, 16)[0])
    tiles = 3 * 16 * 33 + 2 * 16 * 17 + 4 * 16
    allowed = "tiles of q, k, v, s and p are shared; a thread has its columns of acc"
    expect_chip_memory(trace, shared=4 * tiles, local=4 * (2 + 16), allowed=allowed)


def test_each_score_once(exercise):
    """each score is computed by one thread, and no tile behind the last key"""
    trace = simt.trace(*prepare(exercise, make_paged([48], 6, 16, 1, 32), 2, 16)[0])
    how = "(ty, tx) computes one score of a tile, and there are ceil(seq_len / BLOCK_N) tiles"
    expect_products(trace, 2 * 16 * 48 * 32, "q k^T and P v are", how)


def test_inputs_and_edges(exercise):
    """inputs stay as they are, and nothing is written beside the results"""
    step = make_paged([11, 18], 4)
    expect_clean(*prepare(exercise, step, 2, 8), " ".join(step.inputs))


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, without float64"""
    (kernel, _, _, *args), _ = prepare(exercise, make_paged([4], 16, 4, 1, 64), 2, 16)
    gpu_ready(kernel, args)
