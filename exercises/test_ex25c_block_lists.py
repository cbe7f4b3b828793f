"""Grader of ex25c: FlashAttention-2 over a list of key tiles for each query tile."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest

from fa_numba import reference, simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.attention import (
    Head,
    expect_close,
    expect_guard,
    guarded,
    negative_scores,
    ordered_scores,
    random_head,
    weightless_value,
)
from fa_numba.workbook.graders.kernels import expect_at_most, launched
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_products, expect_traffic
from fa_numba.workbook.graders.tiles import expect_float32

BOTH = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


@dataclass(frozen=True)
class Listed:
    """A head, and the tiles of keys that each tile of queries sees."""

    head: Head
    lists: np.ndarray
    BLOCK_M: int = 8
    BLOCK_N: int = 8

    @property
    def num_m_tiles(self):
        return math.ceil(len(self.head.q) / self.BLOCK_M)

    def answer(self, dtype=np.float64, lists=None, causal=None, end=None):
        """out and lse, by definition or with a usual mistake."""
        head, lists = self.head, self.lists if lists is None else lists
        rows, keys = len(head.q), len(head.k)
        chosen = np.zeros((rows, keys), bool)
        for m in range(rows):
            for n_tile in lists[m // self.BLOCK_M]:
                if n_tile >= 0:
                    chosen[m, n_tile * self.BLOCK_N : (n_tile + 1) * self.BLOCK_N] = True
        if head.causal if causal is None else causal:
            chosen &= np.arange(keys) <= np.arange(rows)[:, None] + keys - rows
        first = keys - rows  # the position of query 0
        out, lse = reference.attention(
            *(np.nan_to_num(x[None, :, None]) for x in (head.q, head.k, head.v)),
            softmax_scale=float(head.scale), dtype=dtype,
            mask=lambda b, h, m, n: bool(chosen[m - first, n]),
        )  # fmt: skip
        return {"out": out[0, :, 0], "lse": lse[0, 0]}

    @cached_property
    def mistakes(self):
        """(sentence, answers)."""
        every = np.tile(np.arange(math.ceil(len(self.head.k) / self.BLOCK_N)), (len(self.lists), 1))
        rows = {
            "The list of m-tile 0 serves all.": np.tile(self.lists[:1], (len(self.lists), 1)),
            "All tiles are seen, the list is not looked at.": every,
            "The first element of the list is left out.": np.where(
                np.arange(self.lists.shape[1]) == 0, -1, self.lists
            ),
            "The list does not end at -1: more tiles may follow.": np.where(
                np.logical_or.accumulate(self.lists < 0, axis=1), -1, self.lists
            ),
        }
        found = [(said, self.answer(lists=lists)) for said, lists in rows.items()]
        if self.head.causal:
            found.append(("CAUSAL hides keys of a chosen tile, too.", self.answer(causal=False)))
        return found


def some(head, BLOCK_M=8, BLOCK_N=8, most=3, seed=1):
    """Random lists, in any order, with gaps; one of them is empty."""
    rng = np.random.default_rng(seed)
    tiles = math.ceil(len(head.k) / BLOCK_N)
    lists = np.full((math.ceil(len(head.q) / BLOCK_M), most + 1), -1, np.int32)
    for row in lists:
        named = rng.permutation(tiles)[: rng.integers(1, most + 1)]
        row[rng.permutation(most + 1)[: len(named)]] = named
    if len(lists) > 2:
        lists[1] = -1
    return Listed(head, lists, BLOCK_M, BLOCK_N)


def every(head, BLOCK_M=8, BLOCK_N=8):
    """All tiles, from the last one to the first."""
    tiles = np.arange(math.ceil(len(head.k) / BLOCK_N), dtype=np.int32)[::-1]
    return Listed(head, np.tile(tiles, (math.ceil(len(head.q) / BLOCK_M), 1)), BLOCK_M, BLOCK_N)


def check(exercise, step):
    """Run checked, compare out and lse; the trace."""
    head = step.head
    kernel = exercise.make_kernel(head.q.shape[1], step.BLOCK_M, step.BLOCK_N, head.causal)
    outputs = {"out": guarded(*head.q.shape), "lse": guarded(len(head.q))}
    arrays = {name: array for name, (array, _) in outputs.items()}
    got, trace = launched(
        kernel, step.num_m_tiles, (step.BLOCK_N, step.BLOCK_M), ("out", "lse"), q=head.q,
        k=head.k, v=head.v, lists=step.lists, **arrays, softmax_scale=head.scale,
    )  # fmt: skip
    want, plain = step.answer(), step.answer(np.float32)
    for name in ("lse", "out"):
        expect_close(
            name, got[name], want[name], plain[name], tile=step.BLOCK_M, mistakes=step.mistakes
        )
    return trace


def test_one_tile(exercise):
    """one tile of queries, one tile of keys in its list"""
    check(exercise, Listed(random_head(8, 24, 8), np.array([[1]], np.int32)))


@BOTH
def test_lists(exercise, causal):
    """lists of each m-tile, in any order, with -1 anywhere; one is empty"""
    check(exercise, some(random_head(40, 40, 8, causal=causal)))


@BOTH
def test_all_tiles(exercise, causal):
    """all tiles in the list, the last one first: attention to all keys"""
    check(exercise, every(random_head(21, 29, 8, causal=causal)))


def test_behind_the_diagonal(exercise):
    """causal: a list that names only tiles behind the diagonal leaves 0 and -inf"""
    head = random_head(24, 24, 8, causal=True)
    lists = np.array([[2, 1], [2, 0], [2, -1]], np.int32)
    check(exercise, Listed(head, lists))


@BOTH
@pytest.mark.parametrize("seqlen_q, seqlen_k", [(1, 1), (3, 5), (19, 24), (16, 19), (1, 37)])
def test_lengths(exercise, seqlen_q, seqlen_k, causal):
    """lengths that the tiles do not divide; the last tile of keys may stand anywhere"""
    check(exercise, every(random_head(seqlen_q, seqlen_k, 8, causal=causal)))


def test_rows_that_see_no_key(exercise):
    """causal: more queries than keys"""
    check(exercise, every(random_head(22, 9, 8, causal=True)))


@BOTH
@pytest.mark.parametrize("BLOCK_M, BLOCK_N", [(4, 16), (16, 4), (5, 7), (1, 32), (32, 1)])
def test_tile_size(exercise, BLOCK_M, BLOCK_N, causal):
    """any tile size"""
    check(exercise, some(random_head(35, 37, 12, causal=causal), BLOCK_M, BLOCK_N))


@pytest.mark.parametrize("head_dim", [1, 13, 33, 128])
def test_head_dim(exercise, head_dim):
    """head_dim odd, and larger than the thread block is wide"""
    check(exercise, some(random_head(11, 18, head_dim)))


@pytest.mark.parametrize("scale", [1.0, -0.3, 0.0])
def test_scale(exercise, scale):
    """softmax_scale is honoured"""
    check(exercise, some(random_head(10, 20, 8, softmax_scale=scale)))


def test_ascending_scores(exercise):
    """a new maximum in every tile rescales what was summed before"""
    check(exercise, every(ordered_scores()))


@BOTH
@pytest.mark.parametrize("size", [3e4, 2e30])
def test_negative_scores(exercise, size, causal):
    """scores far below 0, where a finite number in place of -inf would be the largest"""
    check(exercise, every(negative_scores(size, causal=causal)))


def test_weightless_value(exercise):
    """exp of -120 is 0: a key that far below the maximum adds nothing, however large its value"""
    check(exercise, every(weightless_value()))


def test_many(exercise):
    """300 tiles of keys, 75 tiles of queries"""
    check(exercise, every(random_head(2, 1201, 2), 2, 4))
    check(exercise, some(random_head(300, 9, 3), 4, 8))


def test_unnamed_tiles(exercise):
    """tiles that no list names are not loaded: they may hold NaN"""
    step = some(random_head(40, 64, 8), most=2)
    unnamed = sorted({*range(8)} - {*step.lists.ravel().tolist()})
    for n_tile in unnamed:
        step.head.k[8 * n_tile : 8 * n_tile + 8] = step.head.v[8 * n_tile : 8 * n_tile + 8] = np.nan
    assert unnamed
    check(exercise, Listed(step.head, step.lists))


def test_traffic(exercise):
    """only the tiles of the lists are loaded, each once"""
    step = some(random_head(35, 61, 12))
    named = [n for row in step.lists for n in row if n >= 0]
    rows = sum(min(8, 61 - 8 * n) for n in named)
    per_tile = (rows * 12, "head_dim * rows of the tiles in the lists")
    trace = check(exercise, step)
    expect_traffic(trace, {
        ("q", "loads"): (35 * 12, "seqlen_q * head_dim"),
        ("k", "loads"): per_tile, ("v", "loads"): per_tile,
        ("out", "loads"): (0, "a result"), ("lse", "loads"): (0, "a result"),
        ("out", "stores"): (35 * 12, "seqlen_q * head_dim"), ("lse", "stores"): (35, "seqlen_q"),
    })  # fmt: skip
    expect_at_most(trace, lists_loads=(step.lists.size * 64, "once for each thread"))


def test_memory(exercise):
    """shared memory: five tiles; four barriers for a tile"""
    step = every(random_head(32, 48, 32), 16, 16)
    trace = check(exercise, step)
    tiles = 16 * 33 + 2 * 16 * 33 + 2 * 16 * 17 + 4 * 16  # a padded column each, four a row
    allowed = "tiles of q, k, v, s and p are shared; a thread has its columns of acc"
    expect_chip_memory(trace, shared=4 * tiles, local=4 * (2 + 16), allowed=allowed)


def test_each_score_once(exercise):
    """each score is computed by one thread, and none of a tile that is not in the list"""
    step = some(random_head(40, 64, 32))
    trace = check(exercise, step)
    named = int((step.lists >= 0).sum())
    how = "(ty, tx) computes score (ty, tx) alone, and a tile that is not in the list costs nothing"
    expect_products(trace, 2 * named * 64 * 32, "S = q k^T and P v are", how, factor=1.4)


@BOTH
def test_nothing_written_outside(exercise, causal):
    """nothing is written beside out and lse"""
    head = random_head(11, 18, 8, causal=causal)
    step = every(head)
    outputs = {"out": guarded(*head.q.shape), "lse": guarded(len(head.q))}
    arrays = [array for array, _ in outputs.values()]
    kernel = exercise.make_kernel(8, 8, 8, causal)
    simt.run(kernel, 2, (8, 8), head.q, head.k, head.v, step.lists, *arrays, head.scale)
    for name, (_, larger) in outputs.items():
        expect_guard(name, larger)


def test_float32(exercise):
    """computes in float32"""
    expect_float32(check(exercise, every(random_head(9, 9, 8))))


@BOTH
def test_compiles_for_a_gpu(exercise, causal):
    """compiles for a GPU, without float64"""
    head = random_head(4, 4, 64, causal=causal)
    step = every(head, 16, 16)
    check(exercise, step)
    outputs = np.zeros_like(head.q), np.zeros(4, np.float32)
    kernel = exercise.make_kernel(64, 16, 16, causal)
    gpu_ready(kernel, (head.q, head.k, head.v, step.lists, *outputs, head.scale))
