"""Grader of ex13d: tiles of queries for persistent thread blocks."""

import numpy as np
import pytest
from numba import cuda

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.simt.errors import KernelIndexError
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.kernels import expect_at_most, launched
from fa_numba.workbook.graders.meter import expect_chip_memory

BUDGET = 1.10  # longest work over the least possible
CASES = [
    (6, 28),
    (4, 32),
    (8, 32),
    (8, 16),
    (3, 30),
    (5, 128),
    (16, 64),
    (132, 1056),
    (7, 100),
    (10, 95),
]
FEW = [(1, 7), (4, 4), (8, 3), (132, 5), (1, 1)]


def turns(exercise, num_blocks, num_tiles, extra=3):
    """[block, turn] -> tile, by the learner's device function."""
    tile_of = exercise.tile_of

    @cuda.jit
    def ask(found, num_tiles):
        block, turn = cuda.blockIdx.x, cuda.threadIdx.x
        while turn < found.shape[1]:
            found[block, turn] = tile_of(block, found.shape[0], num_tiles, turn)
            turn += cuda.blockDim.x

    found = np.full((num_blocks, -(-num_tiles // num_blocks) + extra), -9, np.int64)
    simt.run(ask, num_blocks, 64, found, num_tiles)
    return found


def dealt(exercise, num_blocks, num_tiles):
    """The tiles of every thread block, checked: each tile once, then -1."""
    case = f"{num_tiles} tiles, {num_blocks} thread blocks"
    found, asked = [], turns(exercise, num_blocks, num_tiles, extra=2 + num_tiles % 5)
    for block, row in enumerate(asked.tolist()):
        count = row.index(-1) if -1 in row else len(row)
        assert row[count:] == [-1] * (len(row) - count), (
            f"{case}: thread block {block} has the tiles {row}: after the first -1 there are none"
        )
        if count > -(-num_tiles // num_blocks) + 1 and count == len(row):
            raise Wrong(
                f"{case}: thread block {block} still has a tile in its turn {count - 1}",
                causes=["Nobody is ever done: -1 where there is no tile."],
            )
        found.append(row[:count])
    owner = {}
    for block, tiles in enumerate(found):
        right = isinstance(tiles, list) and all(type(tile) is int for tile in tiles)
        assert right, f"{case}: tiles_of({block}, ...) must be a list of ints, got {tiles!r:.60}"
        for tile in tiles:
            assert 0 <= tile < num_tiles, f"{case}: thread block {block} has tile {tile}"
            if tile in owner:
                raise Wrong(
                    f"{case}: tile {tile} belongs to thread block {owner[tile]} and to {block}",
                    causes=["A tile is computed twice."],
                )
            owner[tile] = block
    if missing := set(range(num_tiles)) - owner.keys():
        raise Wrong(f"{case}: nobody computes tile {min(missing)}", causes=["A tile is left out."])
    return found


@pytest.mark.parametrize("num_blocks, num_tiles", CASES + FEW)
def test_each_tile_once(exercise, num_blocks, num_tiles):
    """each tile belongs to exactly one thread block"""
    dealt(exercise, num_blocks, num_tiles)


@pytest.mark.parametrize("num_blocks, num_tiles", CASES + FEW)
def test_budget(exercise, num_blocks, num_tiles):
    """the longest work is at most 1.10 times the least possible"""
    found = dealt(exercise, num_blocks, num_tiles)
    work = [sum(tile + 1 for tile in tiles) for tiles in found]
    least = max(sum(work) / num_blocks, num_tiles)
    if max(work) > BUDGET * least:
        counts = [len(tiles) for tiles in found]
        causes = []
        if all(tiles == sorted(range(b, num_tiles, num_blocks)) for b, tiles in enumerate(found)):
            causes = ["Each round runs the same way: the last thread block always gets the most."]
        elif all(x == [*range(num_tiles - 1 - b, -1, -num_blocks)] for b, x in enumerate(found)):
            causes = ["Each round runs the same way: thread block 0 always gets the most."]
        elif max(counts) - min(counts) <= 1 and any(
            tiles == list(range(min(tiles), max(tiles) + 1)) and len(tiles) > 1 for tiles in found
        ):
            causes = ["A thread block has neighbouring tiles: all long, or all short."]
        elif all(tiles == sorted(tiles) for tiles in found):
            causes = [
                "The last round, which is incomplete, has the longest tiles: begin with them."
            ]
        raise Wrong(
            f"{num_tiles} tiles, {num_blocks} thread blocks: thread block {work.index(max(work))} "
            f"has the work {max(work)}, the mean is {sum(work) / num_blocks:.1f}: "
            f"{max(work) / least:.2f} times the least possible, {BUDGET:.2f} are allowed",
            causes=causes,
            where=f"{num_tiles} tiles, {num_blocks} thread blocks",
        )


def run(exercise, rows, columns, num_blocks, seed=0):
    v = np.random.default_rng(seed).standard_normal((rows, columns), np.float32)
    given = {"v": v, "out": np.full_like(v, np.nan)}
    try:
        got, trace = launched(exercise.kernel, num_blocks, (32, 8), ("out",), **given)
    except KernelIndexError as error:
        causes = ["A thread block that has no more tiles goes on with tile -1."]
        if "index -" not in str(error):
            raise
        raise Wrong(f"KernelIndexError: {error}", causes=causes) from None
    return v, got["out"], trace


@pytest.mark.parametrize(
    "rows, columns, num_blocks",
    [(64, 4, 3), (61, 4, 3), (5, 3, 1), (20, 2, 7), (100, 1, 4), (300, 1, 6), (9, 130, 2)],
)
def test_kernel(exercise, rows, columns, num_blocks):
    """the kernel computes every tile, with any number of thread blocks"""
    v, got, trace = run(exercise, rows, columns, num_blocks)
    want = np.cumsum(v, axis=0, dtype=np.float64) / np.arange(1, rows + 1)[:, None]
    wrong = ~(np.abs(got - want) <= 1e-5)
    if wrong.any():
        m, d = map(int, np.argwhere(wrong)[0])
        missing = sorted({int(i) // 8 for i in np.argwhere(np.isnan(got))[:, 0]})
        said = f"the tiles {missing[:8]} were never computed" if missing else f"got {got[m, d]:.6g}"
        raise Wrong(
            f"{rows} rows, {num_blocks} thread blocks: out[{m}, {d}] must be {want[m, d]:.6g}; "
            f"{said}",
            causes=["A thread block stops before its tiles are done."] if missing else [],
            where=f"out[{m}, {d}]",
        )
    expect_at_most(trace, out_stores=(rows * columns, "each tile is computed once"))
    expect_chip_memory(trace, allowed="a tile's number is a register")


def test_same_every_time(exercise):
    """the same answer each time: thread blocks ask for themselves"""
    first, again = (turns(exercise, 5, 23) for _ in range(2))
    assert np.array_equal(first, again), "asked again, the tiles are others"


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU"""
    v = np.zeros((9, 4), np.float32)
    gpu_ready(exercise.kernel, (v, v.copy()))
