"""Grader of ex05b: matrix product by tiles."""

import math

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.elements import exchanged
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_stores_by
from fa_numba.workbook.graders.tiles import expect_product, product_mistakes

# M, K, N, TILE: one line per danger
SHAPES = {
    "one tile": (8, 8, 8, 8),
    "two tiles along K": (8, 16, 8, 8),
    "several tiles each way": (24, 40, 16, 8),
    "M is ragged": (9, 8, 8, 8),
    "N is ragged": (8, 8, 13, 8),
    "K is ragged": (8, 11, 8, 8),
    "all ragged": (19, 27, 37, 16),
    "smaller than a tile": (3, 2, 5, 16),
    "one row": (1, 33, 300, 16),
    "one column": (300, 33, 1, 16),
    "K = 1": (17, 1, 9, 8),
    "one element": (1, 1, 1, 4),
    "a long K": (5, 3000, 6, 8),
}


def launch_shape(M, N, TILE):
    return (math.ceil(N / TILE), math.ceil(M / TILE)), (TILE, TILE)


def make_ab(M, K, N, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((M, K), np.float32), rng.standard_normal((K, N), np.float32)


def multiply(exercise, a, b, TILE, c=None):
    """Run the kernel, checked, on a c full of NaN."""
    c = np.full((a.shape[0], b.shape[1]), np.nan, np.float32) if c is None else c
    simt.run(exercise.make_tiled_matmul(TILE), *launch_shape(*c.shape, TILE), a, b, c)
    return c


def trace(exercise, M, K, N, TILE):
    """The trace of a launch, and its arrays: the trace, {"a": ..., "b": ..., "c": ...}."""
    a, b = make_ab(M, K, N)
    c = np.zeros((M, N), np.float32)
    traced = simt.trace(exercise.make_tiled_matmul(TILE), *launch_shape(M, N, TILE), a, b, c)
    return traced, traced.arrays


def check(c, a, b, TILE, what):
    threads = (TILE * math.ceil(n / TILE) for n in reversed(c.shape))
    mistakes = [*product_mistakes(a, b, TILE), exchanged(a.astype(np.float64) @ b, *threads)]
    expect_product(c, a, b, what, name="c", mistakes=mistakes)


@pytest.mark.parametrize("case", SHAPES)
def test_equals_float64(exercise, case):
    """equals the product in float64, whatever the sizes"""
    M, K, N, TILE = SHAPES[case]
    a, b = make_ab(M, K, N)
    check(multiply(exercise, a, b, TILE), a, b, TILE, f"{case} (M={M}, K={K}, N={N}, TILE={TILE})")


def test_tile_size(exercise):
    """the tile size does not change the answer"""
    a, b = make_ab(37, 50, 41)
    for TILE in (1, 2, 4, 8, 16, 32):
        check(multiply(exercise, a, b, TILE), a, b, TILE, f"M=37, K=50, N=41, TILE={TILE}")


def test_known_product(exercise):
    """a times the identity is a, exactly"""
    a, _ = make_ab(20, 20, 20)
    c = multiply(exercise, a, np.eye(20, dtype=np.float32), 8)
    wrong = np.argwhere(~(c == a))
    assert not len(wrong), (
        f"a @ identity must give a back, bit for bit: c[{wrong[0][0]}, {wrong[0][1]}] is "
        f"{c[tuple(wrong[0])]}, want {a[tuple(wrong[0])]}"
    )


def test_large_outside(exercise):
    """rows that only pad a tile do not leak into its neighbours"""
    a, b = make_ab(10, 9, 10)
    a[-1], b[:, -1] = 1e30, 1e30  # the last row and column dominate everything they touch
    c = multiply(exercise, a, b, 8)
    check(c[:-1, :-1], a[:-1], b[:, :-1], 8, "rows and columns before the last")


def test_inputs_unchanged(exercise):
    """a and b are left as they were"""
    a, b = make_ab(19, 27, 37)
    before = a.copy(), b.copy()
    multiply(exercise, a, b, 8)
    assert (a == before[0]).all() and (b == before[1]).all(), "the kernel wrote into an input"


def test_nothing_else_written(exercise):
    """writes c and not one element beside it"""
    a, b = make_ab(9, 5, 11)
    frame = np.full((15, 21), 7, np.float32)
    multiply(exercise, a, b, 8, c=frame[3:12, 5:16])
    check(frame[3:12, 5:16], a, b, 8, "c inside a larger array")
    frame[3:12, 5:16] = 7
    assert (frame == 7).all(), (
        f"{(frame != 7).sum()} elements around c were written: test row and col before the store"
    )


@pytest.mark.parametrize("M, K, N, TILE", [(32, 48, 64, 8), (32, 48, 64, 16), (19, 27, 37, 8)])
def test_hbm_traffic(exercise, M, K, N, TILE):
    """HBM traffic: a is loaded ceil(N/TILE) times, b ceil(M/TILE) times, c stored once"""
    _, moved = trace(exercise, M, K, N, TILE)
    want = {
        "loads of a": (M * K * math.ceil(N / TILE), moved["a"].loads),
        "loads of b": (K * N * math.ceil(M / TILE), moved["b"].loads),
        "stores of c": (M * N, moved["c"].stores),
        "loads of c": (0, moved["c"].loads),
        "stores of a": (0, moved["a"].stores),
        "stores of b": (0, moved["b"].stores),
    }
    for name, (formula, meter) in want.items():
        assert meter == formula, (
            f"M={M}, K={K}, N={N}, TILE={TILE}: {name}: want {formula} elements, the meter says "
            f"{meter}. "
            + (
                "More than the formula: something is read from HBM again that a tile already holds"
                if meter > formula
                else "Fewer than the formula: some element never arrives"
            )
        )


def test_coalesced(exercise):
    """coalesced: every 32-byte sector that is fetched is used whole"""
    for TILE in (8, 16, 32):
        _, moved = trace(exercise, 64, 64, 64, TILE)
        for name in "ab":
            asked, fetched = moved[name].load_bytes, 32 * moved[name].load_sectors
            assert fetched == asked, (
                f"TILE = {TILE}, {name}: {asked} bytes were asked for, {fetched} fetched. "
                "Let threadIdx.x run along a row, where the floats lie side by side"
            )
        assert 32 * moved["c"].store_sectors == moved["c"].store_bytes, (
            f"TILE = {TILE}: the store of c touches more sectors than it fills; let threadIdx.x "
            "run along a row"
        )


def test_no_bank_conflicts(exercise):
    """no bank conflicts in shared memory, at TILE = 32"""
    tiles = trace(exercise, 64, 64, 64, 32)[0].shared
    assert tiles, "the kernel uses no shared memory: every product would read HBM"
    for name, tile in tiles.items():
        assert tile.bank_conflicts == 0, (
            f"{name} costs {tile.bank_conflicts} extra wavefronts: the threads of a warp read "
            "different rows of one column. Keep threadIdx.x on the last axis"
        )


@pytest.mark.parametrize("TILE", [4, 16])
def test_chip_memory(exercise, TILE):
    """two tiles of TILE x TILE float32 in shared memory, one running sum per thread"""
    traced, _ = trace(exercise, 2 * TILE, 5 * TILE, 2 * TILE, TILE)
    allowed = f"a_tile and b_tile, {TILE} x {TILE} float32 each, and a sum in a register"
    expect_chip_memory(traced, shared=2 * 4 * TILE * TILE, allowed=allowed)


def test_a_thread_per_element(exercise):
    """each thread block writes its tile of c, each thread one element"""
    traced, moved = trace(exercise, 20, 9, 30, 8)
    why = "thread block (x, y) owns one tile of c, thread (ty, tx) one element of it"
    expect_stores_by({"c": moved["c"]}, threads=600, blocks=12, why=why)


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32 throughout"""
    a, b = make_ab(8, 8, 8)
    gpu_ready(exercise.make_tiled_matmul(16), (a, b, np.zeros((8, 8), np.float32)))
