"""Grader of ex03d: the list of the k best, and softmax fused with it."""

import functools

import numpy as np
import pytest
from numba import cuda, float32, int32

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.meter import expect_chip_memory
from fa_numba.workbook.graders.softmax import LOWEST, softmax64

INF = np.inf
NO_COLUMN = 2**31 - 1
FILLER = -77


def best(scores, columns, k):
    """The k best by definition, best first; empty slots behind them."""
    order = np.lexsort((columns, -np.asarray(scores, np.float64)))[:k]
    empty = k - len(order)
    x = np.append(np.asarray(scores)[order], np.full(empty, np.float32(-INF)))
    return x, np.append(np.asarray(columns)[order], np.full(empty, NO_COLUMN))


@functools.cache
def make_scan(topk_update, K):
    @cuda.jit
    def scan(x, columns, x_seen, col_seen):
        """One thread feeds the scores to topk_update; the list after each goes to HBM."""
        x_best = cuda.local.array(K, float32)
        col_best = cuda.local.array(K, int32)
        for i in range(K):
            x_best[i] = float32(-INF)
            col_best[i] = int32(NO_COLUMN)
        for n in range(x.shape[0]):
            topk_update(x_best, col_best, x[n], columns[n])
            for i in range(K):
                x_seen[n, i] = x_best[i]
                col_seen[n, i] = col_best[i]

    return scan


def check_list(exercise, scores, k, columns=None, why=""):
    """Hold the list to its definition after every score."""
    x = np.array(scores, np.float32)
    columns = np.arange(len(x), dtype=np.int32) if columns is None else np.int32(columns)
    x_seen = np.full((len(x), k), FILLER, np.float32)
    col_seen = np.full((len(x), k), FILLER, np.int32)
    simt.run(make_scan(exercise.topk_update, k), 1, 1, x, columns, x_seen, col_seen)
    for n in range(len(x)):
        x_want, col_want = best(x[: n + 1], columns[: n + 1], k)
        right = np.array_equal(x_seen[n], x_want) and np.array_equal(col_seen[n], col_want)
        i = int(np.argmax((x_seen[n] != x_want) | (col_seen[n] != col_want)))
        assert right, (
            f"slot {i} is wrong. k = {k}, after {_pairs(x[: n + 1], columns[: n + 1])}: the list "
            f"must be {_pairs(x_want, col_want)}, got {_pairs(x_seen[n], col_seen[n])}. {why}"
        )


def _pairs(x, columns):
    text = [
        "(empty)" if col == NO_COLUMN else f"({s:.4g}, {col})"
        for s, col in zip(x, columns, strict=True)
    ]
    return " ".join(text if len(text) <= 8 else ["...", *text[-8:]])


def test_running_lists(exercise):
    """topk_update: the list is right after every score"""
    scores = np.random.default_rng(0).normal(size=60)
    for k in (2, 5, 8):
        check_list(exercise, scores, k)


def test_long_list(exercise):
    """topk_update: a list of 40, and columns beyond 2**24"""
    columns = np.random.default_rng(10).permutation(50) + 2**24
    check_list(exercise, np.random.default_rng(11).integers(0, 3, 50), 40, columns)


def test_ascending(exercise):
    """topk_update: ascending scores, each of which takes the first slot"""
    check_list(exercise, range(12), 4, why="The others move one slot back, and the last drops out")


def test_descending(exercise):
    """topk_update: descending scores, of which the first k stay"""
    check_list(exercise, range(0, -12, -1), 4)


def test_equal_scores(exercise):
    """topk_update: of equal scores the smaller column is before the larger, in any order"""
    rng = np.random.default_rng(1)
    why = "Equal scores rank by their column, whichever came first."
    check_list(exercise, np.ones(10), 4, rng.permutation(10), why)
    check_list(exercise, np.ones(10), 4, range(9, -1, -1), why)
    check_list(exercise, rng.integers(0, 3, 40), 6, rng.permutation(40), why)


def test_one_place(exercise):
    """topk_update: k = 1 keeps the maximum"""
    check_list(exercise, [0, -3, 2, 2, 5, 4, 5], 1)
    check_list(exercise, [1, 1, 1], 1, [2, 0, 1], "Of equal scores the smaller column stays.")


def test_empty_places(exercise):
    """topk_update: fewer scores than slots leave the last slots empty"""
    check_list(exercise, [1, 3, 2], 8, why="A score ranks before every empty slot.")


def test_minus_infinity(exercise):
    """topk_update: -inf ranks behind the finite scores and before the empty slots"""
    why = "-inf equals the score of an empty slot, and its column is smaller than NO_COLUMN."
    check_list(exercise, [-INF, 1, -INF, -2, -INF], 8, why=why)
    check_list(exercise, [-INF] * 4, 3, [3, 1, 2, 0], why=why)


def test_low_scores_in_the_list(exercise):
    """topk_update: scores down to the lowest float32 rank before every empty slot"""
    why = "Only -inf equals the score of an empty slot."
    check_list(exercise, [-2e4, -2e9, -INF, LOWEST, -2e30, -1e30], 8, why=why)


def launch(exercise, x, k):
    """values, columns and the trace; x must stay as it is."""
    x, before = x.copy(), x
    values = np.full((len(x), k), FILLER, np.float32)
    columns = np.full((len(x), k), FILLER, np.int32)
    trace = simt.trace(exercise.make_topk(k), -(-len(x) // 64), 64, x, values, columns)
    assert np.array_equal(x, before), "x changed: what a thread keeps belongs in local arrays"
    return values, columns, trace


CASES = {
    "one column": ((1, 1), 1),
    "a list shorter than the row": ((3, 300), 4),
    "as many slots as columns": ((3, 9), 9),
    "more rows than a thread block": ((300, 9), 7),
    "a row shorter than the list": ((3, 2), 5),
    "masked columns": ((4, 12), 5),
}


@pytest.mark.parametrize("case", CASES)
def test_rows(exercise, case):
    """kernel: the k largest of each row's softmax, and their columns"""
    shape, k = CASES[case]
    x = np.random.default_rng(2).normal(size=shape).astype(np.float32)
    if case == "masked columns":
        x[0, 0] = x[1, :9] = x[2] = -INF
    values, columns, _ = launch(exercise, x, k)
    whole = softmax64(x)
    for row in range(len(x)):
        _, wanted = best(x[row], np.arange(x.shape[1]), k)
        for i, col in enumerate(wanted.tolist()):
            col, value = (-1, 0.0) if col == NO_COLUMN else (col, whole[row, col])
            got = columns[row, i], values[row, i]
            assert got[0] == col and abs(got[1] - value) <= 1e-6, (
                f"{case}, row {row}, slot {i}: want column {col} with {value:.6g}, got column "
                f"{got[0]} with {got[1]:.6g}"
            )


def test_memory(exercise):
    """kernel: x is read once, and a thread keeps two local arrays of K, nothing else"""
    x = np.zeros((5, 37), np.float32)
    for k in (3, 20):
        _, _, trace = launch(exercise, x, k)
        allowed = f"K float32 and K int32, of {4 * k} bytes each"
        expect_chip_memory(trace, local=8 * k, allowed=allowed)
        loads = trace.arrays["x"].loads
        assert loads <= x.size, f"x has {x.size} elements and was read {loads} times"


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32"""
    x, values = np.zeros((2, 4), np.float32), np.zeros((2, 3), np.float32)
    columns = np.zeros((2, 3), np.int32)
    launch(exercise, x, 3)  # a function that is not written yet says so here
    gpu_ready(exercise.make_topk(3), (x, values, columns))
