"""Grader of ex10c: the sequence of each tile."""

import math

import numpy as np
import pytest
from numba import cuda

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.causes import Wrong

BATCHES = [
    [5],
    [4, 4],
    [9, 2, 5, 1],
    [1, 1, 1, 1, 1],
    [0, 3, 0, 0, 8, 0],
    [16, 0, 1],
    [3, 40, 3],
    [7, 8, 9, 10, 11, 12, 13],
    [300, 0, 150, 7, 499],
]
EACH = pytest.mark.parametrize("lengths", BATCHES, ids=str)


def ask(exercise, lengths, block):
    """(the sequence of each tile of the grid, the launch's trace)."""
    starts = np.cumsum([0, *lengths]).astype(np.int32)
    function = exercise.make_sequence_of(block)
    tiles = int(starts[-1]) // block + len(lengths)

    @cuda.jit
    def kernel(cu_seqlens, got):
        tile = cuda.grid(1)
        if tile < got.shape[0]:
            got[tile] = function(tile, cu_seqlens)

    got = np.full(tiles, -7, np.int64)
    return got, simt.trace(kernel, (tiles + 63) // 64, 64, starts, got)


def expected(lengths, block):
    """By the statement: the last sequence whose first number is not larger."""
    starts = np.cumsum([0, *lengths])
    first = [int(starts[b]) // block + b for b in range(len(lengths))]
    tiles = int(starts[-1]) // block + len(lengths)
    return [max(b for b, x in enumerate(first) if x <= tile) for tile in range(tiles)], first


def check(exercise, lengths, block):
    got, trace = ask(exercise, lengths, block)
    want, first = expected(lengths, block)
    starts = np.cumsum([0, *lengths])
    wrong = [tile for tile, (a, b) in enumerate(zip(got.tolist(), want, strict=True)) if a != b]
    if wrong:
        tile = wrong[0]
        after = [
            next((b for b, x in enumerate(first) if x > t), len(first)) for t in range(len(want))
        ]
        up = [-(-int(starts[b]) // block) + b for b in range(len(lengths))]
        without = [max(b for b, x in enumerate(first) if x - b <= t) for t in range(len(want))]
        causes = {
            "That is the first sequence behind the tile: the one before it has the tile.": after,
            "The + b of the numbering is missing.": without,
            "cu_seqlens[b] // BLOCK is rounded down, not up.": [
                max(b for b, x in enumerate(up) if x <= t) for t in range(len(want))
            ],
            "A sequence begins after the tiles before it, not after the rows: cu_seqlens[b] is not "
            "compared with tile * BLOCK.": [
                max(b for b, x in enumerate(starts[:-1]) if x <= t * block)
                for t in range(len(want))
            ],
            "Every tile is said to be of sequence 0: the search never moves b.": [0] * len(want),
            "A tile that is the first of its sequence belongs to it: <=, not <.": [
                max([b for b, x in enumerate(first) if x < t], default=0) for t in range(len(want))
            ],
        }
        causes = [cause for cause, numbers in causes.items() if numbers == got.tolist()]
        if not causes and (got > want).any():
            causes = ["Sequences behind the tile's are returned: b stays one that may still be it."]
        elif not causes:
            causes = [
                "Sequences before the tile's are returned: b_end is the first that cannot be it."
            ]
        raise Wrong(
            f"lengths {lengths}, tiles of {block}, first numbers {first}: tile {tile} belongs to "
            f"sequence {want[tile]}, got {got[tile]}",
            causes=causes,
            where=f"tile {tile}",
        )
    return trace


@EACH
@pytest.mark.parametrize("block", [1, 4, 100])
def test_tiles(exercise, lengths, block):
    """every tile of the grid, whatever the lengths and the size of tiles"""
    check(exercise, lengths, block)


def test_many_sequences(exercise):
    """a thousand sequences, empty ones among them"""
    check(exercise, [n * 7919 % 23 for n in range(1000)], 8)


@pytest.mark.parametrize("batch", [1, 2, 5, 64, 1000])
def test_budget(exercise, batch):
    """at most ceil(log2(batch)) loads of cu_seqlens in each thread"""
    lengths = [3] * batch
    trace = check(exercise, lengths, 4)
    threads = 3 * batch // 4 + batch
    most = math.ceil(math.log2(batch)) * threads
    loads = trace.arrays["cu_seqlens"].loads
    if loads > most:
        raise Wrong(
            f"{batch} sequences: {loads / threads:.3g} loads of cu_seqlens for each tile, allowed "
            f"are {most // threads}",
            causes=["The search goes through the sequences one by one: halve them instead."],
            where=f"{batch} sequences",
        )


def test_writes_nothing(exercise):
    """cu_seqlens is left as it was"""
    _, trace = ask(exercise, [5, 6, 7], 4)
    assert trace.arrays["cu_seqlens"].stores == 0, "cu_seqlens is an input"


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, without a float"""
    function = exercise.make_sequence_of(16)

    @cuda.jit
    def kernel(cu_seqlens, got):
        got[cuda.grid(1)] = function(cuda.grid(1), cu_seqlens)

    arguments = np.int32([0, 1, 2]), np.zeros(2, np.int64)
    simt.run(kernel, 1, 2, *arguments)
    gpu_ready(kernel, arguments)
