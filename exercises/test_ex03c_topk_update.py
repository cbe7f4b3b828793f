"""Grader of ex03c: the list of the k best, and softmax fused with it."""

import functools

import numpy as np
import pytest
from numba import cuda, float32, int32

import fa_numba
from fa_numba import simt
from fa_numba.kernels.softmax_topk import softmax_topk
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_stores_by
from fa_numba.workbook.graders.softmax import LOWEST, softmax64

INF = np.inf
NO_COLUMN = 2**31 - 1
FILLER = -77


def best(scores, columns, k):
    """The k best by definition, best first; empty places behind them."""
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
            f"place {i} is wrong. k = {k}, after {_pairs(x[: n + 1], columns[: n + 1])}: the list "
            f"must be {_pairs(x_want, col_want)}, got {_pairs(x_seen[n], col_seen[n])}. {why}"
        )


def _pairs(x, columns):
    text = [
        "(empty)" if col == NO_COLUMN else f"({s:.4g}, {col})"
        for s, col in zip(x, columns, strict=True)
    ]
    return " ".join(text if len(text) <= 8 else ["...", *text[-8:]])


def test_order(exercise):
    """ranks_before: the larger score first, of equal scores the smaller column"""
    ranks_before = exercise.ranks_before

    @cuda.jit
    def kernel(x, columns, first):
        for a in range(x.shape[0]):
            for b in range(x.shape[0]):
                first[a, b] = ranks_before(x[a], columns[a], x[b], columns[b])

    x = [2, 2, -1, 0, -0.0, -INF, -INF, -INF, 1e4, 1e4, 1e4, LOWEST, -2e30, 1e-40, 3e38]
    x = np.array(x, np.float32)
    far = 2**24  # float32 does not tell this column from the next
    columns = [3, 7, 0, 9, 1, 5, NO_COLUMN - 1, NO_COLUMN, far, far + 1, far + 2, 4, 6, 10, 11]
    columns = np.array(columns, np.int32)
    first = np.zeros((len(x), len(x)), bool)
    simt.run(kernel, 1, 1, x, columns, first)
    for a in range(len(x)):
        for b in range(len(x)):
            want = x[a] > x[b] or (x[a] == x[b] and columns[a] < columns[b])
            assert first[a, b] == want, (
                f"ranks_before({x[a]:g}, {columns[a]}, {x[b]:g}, {columns[b]}) must be {want}: "
                "the larger score comes first, and of equal scores the smaller column"
            )


def test_running_lists(exercise):
    """topk_update: the list is right after every score"""
    scores = np.random.default_rng(0).normal(size=60)
    for k in (2, 5, 8):
        check_list(exercise, scores, k)


def test_long_list(exercise):
    """topk_update: a list of 40, and columns beyond 2**24"""
    columns = np.random.default_rng(10).permutation(50) + 2**24
    check_list(exercise, np.random.default_rng(11).integers(0, 20, 50), 40, columns)


def test_ascending(exercise):
    """topk_update: ascending scores, each of which takes the first place"""
    check_list(exercise, range(12), 4, why="The others move one place back, and the last drops out")


def test_descending(exercise):
    """topk_update: descending scores, of which the first k stay"""
    check_list(exercise, range(12, 0, -1), 4)


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
    """topk_update: fewer scores than places leave the last places empty"""
    check_list(exercise, [1, 3, 2], 8, why="A score ranks before every empty place.")


def test_minus_infinity(exercise):
    """topk_update: -inf ranks behind the finite scores and before the empty places"""
    why = "-inf equals the score of an empty place, and its column is smaller than NO_COLUMN."
    check_list(exercise, [-INF, 1, -INF, -2, -INF], 8, why=why)
    check_list(exercise, [-INF] * 4, 3, [3, 1, 2, 0], why=why)


def test_low_scores_in_the_list(exercise):
    """topk_update: scores down to the lowest float32 rank before every empty place"""
    why = "Only -inf equals the score of an empty place."
    check_list(exercise, [-2e4, -2e9, -INF, LOWEST, -2e30, -1e30], 8, why=why)


def launch(exercise, x, k, how=simt.run):
    """values, columns and what `how` returned; x must stay as it is."""
    x, before = x.copy(), x
    values = np.full((len(x), k), FILLER, np.float32)
    columns = np.full((len(x), k), FILLER, np.int32)
    trace = how(exercise.make_topk(k), -(-len(x) // 32), 32, x, values, columns)
    assert np.array_equal(x, before), "x changed: what a thread keeps belongs in local arrays"
    return values, columns, trace


def check(exercise, x, k):
    x = np.asarray(x, np.float32)
    values, columns, _ = launch(exercise, x, k)
    whole, plain = softmax64(x), softmax64(x, np.float32)
    tolerance = 2 * np.abs(plain - whole).max(initial=0) + 1e-6
    for row in range(len(x)):
        _, col_want = best(x[row], np.arange(x.shape[1]), k)
        col_want = [-1 if col == NO_COLUMN else int(col) for col in col_want]
        want = [0.0 if col < 0 else whole[row, col] for col in col_want]
        for i in range(k):
            case = f"row {row} of {len(x)}, {x.shape[1]} columns, place {i} of {k}"
            got_col, got = columns[row, i], values[row, i]
            if got_col == FILLER or got == FILLER:
                raise AssertionError(f"{case}: nothing was written there")
            assert got_col == col_want[i], (
                f"{case}: the column must be {col_want[i]}"
                f"{', as the row is shorter' if col_want[i] < 0 else ''}, got {got_col}"
            )
            allowed = min(tolerance, 1e-3 * want[i] + 1e-37)  # small shares: three digits
            assert abs(got - want[i]) <= allowed, (
                f"{case}: the value must be {want[i]:.7g}, got {got:.7g}. "
                f"{_cause(x[row], got, col_want[i], want[i])}"
            )


def _cause(x, got, col, want):
    if not np.isfinite(got):
        return "-inf - -inf is NaN, and so is 0 / 0: guard rows and beginnings of rows of -inf."
    if col < 0 or np.isneginf(x[col]):
        return "A masked column and an empty place have no share."
    if got == 0 and want > 1e-6:
        return (
            "The share is lost: m starts at -inf, only -inf is masked, and -inf - -inf is NaN "
            "where a row begins with masked columns."
        )
    p = np.exp(x.astype(np.float64) - x.max())
    if np.isclose(got, p[col], rtol=1e-4):
        return "This is exp(x - m): divide by l after the last column."
    with np.errstate(invalid="ignore"):  # -inf - -inf, where a row begins with masked columns
        forgetful = np.nansum(np.exp(x.astype(np.float64) - np.maximum.accumulate(x)))
    if np.isclose(got, p[col] / forgetful, rtol=1e-4):
        return "l is not multiplied by exp(m_old - m_new) where the maximum rises."
    if want < 1e-6:
        return "exp takes any x - m, however far below 0, without a limit."
    return "Is l the sum over ALL columns of the row, under its final maximum?"


@pytest.mark.parametrize("num_rows, num_cols, k", [(1, 1, 1), (5, 40, 4), (3, 9, 9), (40, 33, 7)])
def test_rows(exercise, num_rows, num_cols, k):
    """kernel: the k largest of each row's softmax, and their columns"""
    check(exercise, np.random.default_rng(2).normal(size=(num_rows, num_cols)), k)


def test_maximum_alone(exercise):
    """kernel: k = 1 gives the maximum of each row, 1 / l"""
    check(exercise, np.random.default_rng(3).normal(size=(4, 50)) * 3, 1)


def test_order_of_the_row(exercise):
    """kernel: ascending, descending and equal scores"""
    ramp = np.linspace(-9, 9, 50)
    check(exercise, [ramp, ramp[::-1], np.full(50, 3.0)], 5)


def test_large_scores(exercise):
    """kernel: stable on scores of +-10000"""
    x = np.random.default_rng(4).normal(size=(4, 60)) * 1e4
    x[1] += 1e4
    x[2] = np.linspace(-1e4, 1e4, 60)
    check(exercise, x, 3)


def test_steep_rows(exercise):
    """kernel: the k largest may have shares of 1e-10 and 1e-35"""
    check(exercise, [np.linspace(-85, 0, 12), np.linspace(40, 0, 12)], 12)


def test_long_rows(exercise):
    """kernel: thousands of columns, and a list of 40"""
    x = np.random.default_rng(12).normal(size=(2, 2000))
    x[0, 1990] = 9
    check(exercise, x, 2)
    check(exercise, np.random.default_rng(13).normal(size=(2, 90)), 40)


def test_masked_columns(exercise):
    """kernel: -inf entries have value 0, also at the beginning of a row"""
    x = np.random.default_rng(5).normal(size=(4, 12))
    x[0, 0] = x[1, :9] = x[2, ::2] = x[3, 3:] = -INF
    check(exercise, x, 5)


def test_masked_rows(exercise):
    """kernel: a row of -inf only has value 0 everywhere"""
    x = np.random.default_rng(6).normal(size=(3, 7))
    x[1] = -INF
    check(exercise, x, 4)


def test_low_scores(exercise):
    """kernel: scores far below 0, down to the lowest float32, are not masked"""
    x = np.random.default_rng(4).normal(size=(5, 20)) - 2e4
    x[1], x[2], x[3], x[4] = -2e9, -2e30, -3e38, LOWEST
    x[1:, ::2] = -INF
    x[2, 7] = -1.9e30
    check(exercise, x, 5)


def test_short_rows(exercise):
    """kernel: fewer columns than k leave value 0 and column -1"""
    check(exercise, np.random.default_rng(7).normal(size=(3, 2)), 5)
    check(exercise, np.full((2, 3), -INF), 4)


def test_hbm_traffic(exercise):
    """kernel: each element is read once, and only the k largest are written"""
    x = np.random.default_rng(8).normal(size=(5, 37)).astype(np.float32)
    x[1] = -INF
    _, _, trace = launch(exercise, x, 3, simt.trace)
    arrays = trace.arrays
    loads = arrays["x"].loads
    assert loads <= x.size, (
        f"x has {x.size} elements and was read {loads} times: m, l and the list share one pass, "
        "and what the values need is in the list"
    )
    assert not arrays["x"].stores, "x is an input, and the kernel wrote into it"
    for name in ("values", "columns"):
        stores, again = arrays[name].stores, arrays[name].loads
        assert stores == 15, f"{name} has 15 elements and was written {stores} times"
        assert again == 0, f"{name} was read back {again} times: the list is a local array"


def test_chip_memory(exercise):
    """kernel: a thread keeps two local arrays of K, and nothing in shared memory"""
    x = np.zeros((5, 37), np.float32)
    for k in (3, 20):
        _, _, trace = launch(exercise, x, k, simt.trace)
        allowed = f"K float32 and K int32, of {4 * k} bytes each"
        expect_chip_memory(trace, local=8 * k, allowed=allowed)


def test_a_thread_per_row(exercise):
    """kernel: each row has a thread of its own"""
    _, _, trace = launch(exercise, np.zeros((70, 3), np.float32), 2, simt.trace)
    written = {name: trace.arrays[name] for name in ("values", "columns")}
    expect_stores_by(written, threads=70, why="thread cuda.grid(1) owns a row")


def predicted_accesses(exercise, *sizes):
    got = exercise.accesses(*sizes)
    two = isinstance(got, (tuple, list)) and len(got) == 2
    assert two and all(type(n) is int for n in got), (
        f"return (fused, separate), two ints, got {got!r}"
    )
    return got


def test_accesses_of_a_vocabulary(exercise):
    """accesses: whole numbers, exact however large"""
    num_rows, num_cols, k = 10**9 + 7, 128_001, 50
    fused = num_rows * num_cols + 2 * num_rows * k
    got = predicted_accesses(exercise, num_rows, num_cols, k)
    for name, want, n in zip(
        ("fused", "separate"), (fused, fused + 3 * num_rows * num_cols), got, strict=True
    ):
        assert n == want, f"{num_rows} rows of {num_cols}, k = {k}: {name} must be {want}, got {n}"


@pytest.mark.parametrize("num_rows, num_cols, k", [(1, 1, 1), (3, 40, 5), (7, 129, 32)])
def test_accesses(exercise, num_rows, num_cols, k):
    """accesses: one read of each element against four accesses, by the meter"""
    x = np.random.default_rng(9).normal(size=(num_rows, num_cols)).astype(np.float32)
    got = predicted_accesses(exercise, num_rows, num_cols, k)
    with simt.tracing() as traces:
        softmax_topk(x, k)
        softmax_topk(fa_numba.online_softmax(x), k)
    fused, *separate = (
        sum(array.loads + array.stores for array in trace.arrays.values()) for trace in traces
    )
    for name, predicted, metered in zip(
        ("fused", "separate"), got, (fused, sum(separate)), strict=True
    ):
        assert predicted == metered, (
            f"{num_rows} rows, {num_cols} columns, k = {k}: {name} must be {metered} elements "
            f"read and written, as metered, got {predicted}"
        )


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32"""
    from fa_numba.analysis.gpu_ready import gpu_ready

    x, values = np.zeros((2, 4), np.float32), np.zeros((2, 3), np.float32)
    columns = np.zeros((2, 3), np.int32)
    launch(exercise, x, 3)  # a function that is not written yet says so here
    gpu_ready(exercise.make_topk(3), (x, values, columns))
