"""Figures of lessons 05, 07, 10 and 18: the words beside a drawing say what was counted."""

import re

import numpy as np
import pytest
from numba import cuda

from fa_numba import simt
from fa_numba.figures.backward_flow import backward_flow
from fa_numba.figures.banks import banks
from fa_numba.figures.mask_tiles import mask_tiles
from fa_numba.figures.memory_shares import memory_shares
from fa_numba.figures.packed_batch import packed_batch, tile_numbers
from fa_numba.figures.tiled_product import tiled_product
from fa_numba.figures.warp_partition import warp_partition
from fa_numba.kernels.sequence_of import make_sequence_of
from fa_numba.masks import tiles_of_pairs


def test_tiled_product_counts_each_iteration():
    turn_a, turn_b, mine = np.full((4, 6), -1), np.full((6, 8), -1), np.zeros((4, 8), bool)
    for turn in range(3):
        turn_a[2:4, 2 * turn : 2 * turn + 2] = turn
        turn_b[2 * turn : 2 * turn + 2, :2] = turn
    mine[2:4, :2] = True
    text = tiled_product(turn_a, turn_b, mine).describe()
    assert "3 iterations, 4 elements of c" in text
    assert text.count("4 of a, 4 of b") == 3


@pytest.mark.parametrize("row_length, wavefronts", [(32, 32), (33, 1), (36, 4), (64, 32)])
def test_banks_counts_wavefronts(row_length, wavefronts):
    text = banks({"column": (np.arange(32) * row_length, row_length)}).describe()
    assert f"{wavefronts} wavefront" in text


def test_memory_shares_names_every_kind():
    shares = {"a": {"used": 0.75, "free": 0.25}, "b": {"used": 1.0, "free": 0.0}}
    figure = memory_shares(shares, notes={"a": "3 at a time"})
    assert figure.describe() == "a: used 75%, free 25%\nb: used 100%, free 0%"
    assert figure.png().startswith(b"\x89PNG")


@pytest.mark.parametrize("lengths", [(5,), (9, 2, 5, 1), (16, 8), (3, 40, 3)], ids=str)
@pytest.mark.parametrize("block", [1, 4, 16])
def test_tiles_of_a_packed_batch_are_those_of_the_kernels(lengths, block):
    starts = np.cumsum([0, *lengths]).astype(np.int32)
    sequence_of = make_sequence_of(block)

    @cuda.jit
    def ask(cu_seqlens, found):
        tile = cuda.grid(1)
        if tile < found.shape[0]:
            b, _, seqlen, row = sequence_of(tile, cu_seqlens)
            found[tile, 0] = b
            found[tile, 1] = row if row < seqlen else -1

    found = np.zeros((starts[-1] // block + len(lengths), 2), np.int64)
    simt.run(ask, len(found) // 32 + 1, 32, starts, found)
    used = {tile: (b, row) for tile, (b, row) in enumerate(found.tolist()) if row >= 0}
    assert tile_numbers(starts.tolist(), block) == used


def test_packed_batch_counts_pairs():
    assert "50% of the padded tokens" in packed_batch([4, 1, 1], 2).describe()
    titles = [ax.get_title(loc="left") for ax in packed_batch([3, 1], 2, causal=True).axes]
    assert titles[-1] == "pairs: 7 of 16" and titles[0] == "padded: 6 tokens, 33% padding"
    assert (
        titles[1].startswith("packed: 4 tokens; 3 tiles of 2") and "of 4 in the grid" in titles[1]
    )


def test_warp_partition_counts_the_parts_of_a_row():
    by_keys = np.repeat([[0, 1, 2, 3]], 3, axis=0)
    text = warp_partition({"keys": by_keys, "queries": by_keys.T}).describe()
    assert text.count("0 1 2 3   out: sum of 4 parts") == 3
    assert text.count("out: sum of 1 part\n") == 3 and "2 2 2   out: sum of 1 part" in text


def test_arrows_of_the_backward_pass_are_the_operands_of_its_formulas():
    names = {"Q": "q", "K": "k", "V": "v", "dO": "dout", "O": "out"}
    lines = backward_flow(4096, 4096, 64, 16, 16).describe().splitlines()
    formulas = [line for line in lines if "=" in line]
    assert len(formulas) == 8
    for line in formulas:
        formula, sources = line.split("   (")[0].split("=")[1], line.split("from ")[1]
        operands = set(re.findall("[A-Za-z]+", formula)) - {"scale", "exp", "rowsum"}
        assert {names.get(x, x) for x in operands} == set(sources.split(", ")), line


def test_warp_partition_draws_partitions_of_other_shapes():
    figure = warp_partition({"one warp": np.zeros((2, 5), int)})
    assert figure.png().startswith(b"\x89PNG")


def test_tiles_of_a_mask_are_counted_pair_by_pair():
    """Five queries, three keys, tiles of 2 by 2: rows 0 and 1 see nothing, row 2 sees key 0."""
    sees = np.arange(3) <= np.arange(5)[:, None] - 2
    tiles = tiles_of_pairs(sees, 2, 2)
    assert tiles.classes[0, 0].tolist() == [[0, 0], [1, 0], [2, 1]], "half of a tile is not there"
    text = mask_tiles(tiles).describe()
    assert "1 whole, 2 mixed, 3 hidden" in text and text.endswith("· ·\n◩ ·\n■ ◩")
    costs = "47% of the FLOPs, 0.0001 of 0.000132 MB"  # 2 · 2 · 2 (5 rows + 5 or 9 keys) + 20
    assert costs in mask_tiles(tiles, head_dim=2).describe()
    assert costs in mask_tiles({"one": tiles}, head_dim=2).describe()
    visited = tiles_of_pairs(sees, 2, 2, visited=np.ones((3, 2), bool))
    assert visited.classes[0, 0].tolist() == [[1, 1], [1, 1], [2, 1]]
