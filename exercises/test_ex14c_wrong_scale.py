"""Grader of ex14c: attention in e4m3 with a scale for each tile."""

import numpy as np
import pytest

from fa_numba.analysis import fp8
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.kernels import expect_at_most, launched

LIMIT = 2e-3  # of the largest: where float32 rounds a P to the neighbouring e4m3 number
NAMES = "q8", "k8", "k_scales", "v8", "v_scales"


def run(make, q8, q_scale, k8, k_scales, v8, v_scales, BLOCK_N):
    """out of a kernel that `make` makes, and the trace."""
    given = [np.float32(x) for x in (q8, k8, k_scales, v8, v_scales)]
    given = dict(zip(NAMES, given, strict=True)) | {"out": np.full(q8.shape, np.nan, np.float32)}
    scale = np.float32(q_scale / np.sqrt(q8.shape[1]))
    kernel = make(q8.shape[1], BLOCK_N)
    got, trace = launched(kernel, -(-len(q8) // 64), 64, ("out",), **given, scale=scale)
    return got["out"], trace


def quantised(x, block_rows):
    """e4m3 numbers as float64, and a scale for each block of rows."""
    scales = np.abs(x).reshape(len(x) // block_rows, -1).max(axis=1) / 448
    scales = np.where(scales > 0, scales, 1.0)
    return fp8.round_e4m3(x / np.repeat(scales, block_rows)[:, None]), scales


def problem(tiles, BLOCK_N=8, *, rows=5, head_dim=16, seed=0, k_sizes=None, v_sizes=None):
    """The arguments of an answer; tile t of K and of V is so many times as large."""
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((rows, head_dim))
    k, v = rng.standard_normal((2, tiles * BLOCK_N, head_dim))
    for x, sizes in ((k, k_sizes), (v, v_sizes)):
        if sizes is not None:
            x *= np.repeat(sizes, BLOCK_N)[:, None]
    q8, (q_scale,) = quantised(q, rows)
    return (q8, float(q_scale), *quantised(k, BLOCK_N), *quantised(v, BLOCK_N), BLOCK_N)


def model(q8, q_scale, k8, k_scales, v8, v_scales, BLOCK_N, late_v=None):
    """As the statement says; late_v: one scale for all of V, by mistake."""
    out_scale = np.repeat(v_scales, BLOCK_N)[:, None] if late_v is None else late_v
    k = k8 * np.repeat(k_scales, BLOCK_N)[:, None]
    s = q8 @ k.T * q_scale / np.sqrt(q8.shape[1])
    # P is rounded under the maximum of its tile, as in a loop over tiles.
    m = np.maximum.accumulate(
        s.reshape(len(s), -1, BLOCK_N).max(axis=2), axis=1
    ).repeat(BLOCK_N, axis=1)  # fmt: skip
    p = fp8.round_e4m3(256 * np.exp(s - m)) / 256 * np.exp(m - m[:, -1:])
    return p @ (v8 * out_scale) / np.exp(s - m[:, -1:]).sum(axis=1, keepdims=True)


def check(exercise, arguments, what):
    q8, q_scale, k8, k_scales, v8, v_scales, BLOCK_N = arguments
    got, want = run(exercise.make_kernel, *arguments)[0], model(*arguments)
    size = np.abs(want).max()
    wrong = ~(np.abs(got - want) <= LIMIT * size)
    if not wrong.any():
        return

    def of(k_scales=k_scales, late_v=None, v_scales=v_scales):
        return model(q8, q_scale, k8, k_scales, v8, v_scales, BLOCK_N, late_v)

    first = np.full_like(k_scales, k_scales[0])
    mistakes = {
        "All scores have the scale of K's first tile, and out that of V's last.": of(
            first, v_scales[-1]
        ),
        "All scores have the scale of K's first tile.": of(first),
        "All scores have the scale of K's last tile.": of(np.full_like(k_scales, k_scales[-1])),
        "The whole of out has the scale of V's last tile.": of(late_v=v_scales[-1]),
        "The whole of out has the scale of V's first tile.": of(late_v=v_scales[0]),
        "out lacks V's scale.": of(late_v=1.0),
        "Scores have V's scales.": of(v_scales),
        "out has K's scales.": of(v_scales=k_scales),
        "Scores lack K's scale.": of(np.ones_like(k_scales)),
    }
    row, col = map(int, np.argwhere(wrong)[0])
    if np.isnan(got).any():
        mistakes["A NaN: the first maximum is above all scores, so that l_i is 0."] = got
    raise Wrong(
        f"{what}: out[{row}, {col}] must be {want[row, col]:.6g}, got {got[row, col]:.6g}",
        causes=[
            cause
            for cause, x in mistakes.items()
            if np.allclose(got, x, rtol=0, atol=2 * LIMIT * size, equal_nan=True)
        ],
        where=f"{what}, out[{row}, {col}]",
    )


def test_one_tile(exercise):
    """one tile, as before"""
    check(exercise, problem(1), "one tile")


@pytest.mark.parametrize("sizes", [(1, 4), (4, 1), (1, 3, 9, 0.3)], ids=str)
def test_tiles_of_k(exercise, sizes):
    """tiles of K of different sizes"""
    check(exercise, problem(len(sizes), k_sizes=sizes), f"tiles of K times {sizes}")


@pytest.mark.parametrize("sizes", [(1, 100), (100, 1), (1, 1e-3, 30, 1e3)], ids=str)
def test_tiles_of_v(exercise, sizes):
    """tiles of V of different sizes"""
    check(exercise, problem(len(sizes), v_sizes=sizes), f"tiles of V times {sizes}")


def test_both(exercise):
    """both of different sizes, many tiles"""
    rng = np.random.default_rng(1)
    sizes = 2.0 ** rng.integers(-2, 3, (2, 12))
    sizes = {"k_sizes": sizes[0], "v_sizes": sizes[1], "seed": 2}
    check(exercise, problem(12, 4, **sizes), "12 tiles")
    check(exercise, problem(12, 3, rows=300, head_dim=4, **sizes), "300 queries, 12 tiles")
    check(exercise, problem(2, 4, head_dim=130, k_sizes=(1, 3)), "130 columns")
    check(exercise, problem(2, 4, head_dim=128, v_sizes=(1, 3)), "128 columns")
    check(exercise, problem(12, 23, head_dim=1, **sizes), "276 keys")


def test_low_scores(exercise):
    """scores below -1e4: none is near 0"""
    q8, q_scale, k8, *others = problem(3, k_sizes=(1, 2, 3), v_sizes=(4, 2, 1))
    q8, k8 = -np.abs(q8) - 64, np.abs(k8) + 64
    check(exercise, (q8, 4096 * q_scale, k8, *others), "scores below -1e4")


def test_zeros(exercise):
    """a tile of zeros in V: its keys keep their weight"""
    check(exercise, problem(3, v_sizes=(1, 0, 5)), "a tile of V is zero")


def test_small_values_keep_their_weight(exercise):
    """a tile whose V is tiny beside the others': it is not lost"""
    check(exercise, problem(2, v_sizes=(1e-6, 1e-6), seed=4), "tiny V")
    check(exercise, problem(3, v_sizes=(1e4, 1e-4, 1e-4), seed=5), "tiny V beside large V")


def test_traffic(exercise):
    """a thread loads each key and value once, and two scales for a tile"""
    arguments = problem(3, 8, rows=64, head_dim=8)
    _, trace = run(exercise.make_kernel, *arguments)
    tiles, numbers = 64 * 3, 64 * 24 * 8
    expect_at_most(
        trace,
        k8_loads=(numbers, "once for each query"),
        v8_loads=(numbers, "once for each query"),
        k_scales_loads=(tiles * 8, "once for each query and key"),
        v_scales_loads=(tiles * 8 * 8, "once for each number"),
        out_stores=(64 * 8, "once for each number"),
        out_loads=(0, "acc is on the chip"),
    )


def test_broken_as_given(exercise):
    """make_broken is as it was given"""
    arguments = problem(3, k_sizes=(1, 2, 4), v_sizes=(4, 2, 1))
    q8, q_scale, k8, k_scales, v8, v_scales, BLOCK_N = arguments
    bugs = model(q8, q_scale, k8, np.full(3, k_scales[0]), v8, v_scales, BLOCK_N, v_scales[-1])
    got, _ = run(exercise.make_broken, *arguments)
    size = np.abs(bugs).max()
    assert np.allclose(got, bugs, atol=LIMIT * size), "make_broken is to stay: write make_kernel"


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32 throughout"""
    q8, _, k8, k_scales, v8, v_scales, BLOCK_N = problem(2)
    args = [np.float32(x) for x in (q8, k8, k_scales, v8, v_scales, q8)]
    gpu_ready(exercise.make_kernel(16, BLOCK_N), (*args, np.float32(1)))
