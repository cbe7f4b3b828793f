"""Grader of ex03b: maximum and sum of each row by a warp."""

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders import softmax as rows
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.meter import expect_chip_memory

INF = np.inf


def launch(exercise, x, kernel="kernel"):
    """m, l and the trace of one launch; x must stay as it is."""
    x, before = x.copy(), x
    m, l = np.full((2, len(x)), np.nan, np.float32)
    trace = simt.trace(getattr(exercise, kernel), len(x), 32, x, m, l)
    rows.check_unchanged(before, x)
    return m, l, trace


def statistics(row, *, forgets=False, inverse=False, unscaled=False):
    """(m, l) of a row in float64; the options are mistakes, lane by lane as a warp makes them."""
    parts = []
    for lane in range(32):
        m, l = -INF, 0.0
        for s in row[lane::32]:
            if s > -INF:
                m_new = max(m, s)
                l = l * (1.0 if forgets else np.exp(m - m_new)) + np.exp(s - m_new)
                m = m_new
        parts.append((m, l))
    offset = 16
    with np.errstate(over="ignore"):
        while offset:
            merged = []
            for lane in range(32):
                (m_a, l_a), (m_b, l_b) = parts[lane], parts[lane ^ offset]
                m = max(m_a, m_b)
                if min(m_a, m_b) > -INF:
                    sign = -1 if inverse else 0 if unscaled else 1
                    l = l_a * np.exp(sign * (m_a - m)) + l_b * np.exp(sign * (m_b - m))
                else:
                    l = l_a + l_b
                merged.append((m, l))
            parts, offset = merged, offset // 2
    return parts[0]


MISTAKES = {
    "In the loop over columns, what was summed under the old maximum is not rescaled.": {
        "forgets": True
    },
    "In the merge the factor is upside down: exp(m_i - m_new) is at most 1.": {"inverse": True},
    "Both bugs are still there: the forgotten rescaling, and the factor upside down.": {
        "forgets": True,
        "inverse": True,
    },
    "In the merge nothing is rescaled.": {"unscaled": True},
    "Nothing is rescaled, neither in the loop nor in the merge.": {
        "forgets": True,
        "unscaled": True,
    },
}


def close(got, want):
    return got == want or abs(got - want) <= 2e-5 * abs(want) + 1e-37


def check(exercise, x, what):
    x = np.asarray(x, np.float32)
    m, l, _ = launch(exercise, x)
    for row, scores in enumerate(x.astype(np.float64)):
        want_m, want_l = statistics(scores)
        where = f"{what}, row {row}"
        if not m[row] == want_m:
            raise Wrong(
                f"{where}: m must be {want_m:.6g}, got {m[row]:.6g}",
                causes=["The maximum was right in broken_kernel: it is to stay."],
                where=where,
            )
        if not close(l[row], want_l):
            causes = [
                cause
                for cause, options in MISTAKES.items()
                if close(l[row], np.float32(statistics(scores, **options)[1]))
            ]
            if not np.isfinite(l[row]) and np.isneginf(scores).any():
                causes = ["-inf - -inf is NaN: the guards of broken_kernel are right."]
            raise Wrong(
                f"{where}: l must be {want_l:.7g}, got {l[row]:.7g}", causes=causes, where=where
            )


def one_high(cols, high):
    """Rows of 0 with one 1 in each."""
    x = np.zeros((len(high), cols), np.float32)
    x[np.arange(len(high)), high] = 1
    return x


def test_one_high_score(exercise):
    """one 1 among zeros, in the first column of a lane, or in the second"""
    check(exercise, one_high(64, [0, 1, 31, 32, 40, 63]), "one 1 among 63 zeros")


def test_a_column_for_each_lane(exercise):
    """as many columns as lanes: the merge alone"""
    check(exercise, one_high(32, [0, 5, 31]), "one 1 among 31 zeros")
    check(exercise, np.random.default_rng(1).normal(size=(3, 32)) * 3, "32 random scores")


def test_one_lane(exercise):
    """one lane has all finite scores: the loop alone"""
    x = np.full((3, 320), -INF)
    x[0, 4::32], x[1, 4::32] = np.arange(10), -np.arange(10)
    x[2, 4::32] = np.random.default_rng(2).normal(size=10)
    check(exercise, x, "lane 4 alone")


@pytest.mark.parametrize("num_rows, cols", [(4, 1), (11, 31), (4, 33), (4, 100), (1, 4500)])
def test_random(exercise, num_rows, cols):
    """random rows of any length"""
    check(
        exercise, np.random.default_rng(cols).normal(size=(num_rows, cols)) * 2, f"{cols} columns"
    )


def test_order(exercise):
    """ascending, descending and equal scores"""
    ramp = np.linspace(-9, 9, 200)
    check(exercise, [ramp, ramp[::-1], np.full(200, 3.0)], "ascending, descending, equal")


def test_large_scores(exercise):
    """scores of +-10000 and lower"""
    check(exercise, rows.large_scores(), "large scores")
    check(exercise, rows.low_scores(), "low scores")


def test_masked(exercise):
    """a masked column adds 0, and a row of -inf only has l = 0"""
    check(exercise, rows.masked_scores(), "masked columns")
    check(exercise, rows.masked_rows(), "masked rows")


def test_broken_stays(exercise):
    """broken_kernel is as it was given"""
    x = np.random.default_rng(3).normal(size=(2, 100)).astype(np.float32)
    _, l, _ = launch(exercise, x, "broken_kernel")
    want = [statistics(row, forgets=True, inverse=True)[1] for row in x.astype(np.float64)]
    assert np.allclose(l, want, rtol=1e-4), "broken_kernel is to stay: mend `kernel`"


def test_registers_only(exercise):
    """no shared memory, no local array, no barrier; x is read once, m and l are written once"""
    x = np.zeros((3, 128), np.float32)
    _, _, trace = launch(exercise, x)
    expect_chip_memory(trace, allowed="m_i and l_i are registers, and shuffles exchange them")
    assert trace.barriers == 0, "the lanes of a warp need no barrier: they meet in each shuffle"
    loads = trace.arrays["x"].loads
    assert loads <= x.size, f"x has {x.size} elements and was read {loads} times: once is enough"
    for name in ("m", "l"):
        stores = trace.arrays[name].stores
        assert stores == 3, f"{name} has 3 elements and was written {stores} times"
    fetched = 32 * trace.arrays["x"].load_sectors
    assert fetched <= x.nbytes, "neighbouring lanes read neighbouring columns, as before"


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32"""
    m = np.zeros(4, np.float32)
    gpu_ready(exercise.kernel, (np.zeros((4, 8), np.float32), m, m))
