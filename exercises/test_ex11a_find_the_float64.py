"""Grader of ex11a: the same sums in float32."""

import math

import numpy as np
import pytest

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_no_races
from fa_numba.workbook.graders.tiles import expect_float32, matrices

SIZES = (1, 2, 7, 64, 65, 577)


def launch(exercise, s, slope, total=None):
    total = np.full(len(s), np.nan, np.float32) if total is None else total
    arguments = s, np.array([slope], np.float32), total
    trace = simt.trace(exercise.kernel, math.ceil(len(s) / 64), 64, *arguments)
    return total, trace


def expected(s, slope):
    m, n = np.indices(s.shape)
    score = s.astype(np.float64) / 8 - np.float64(np.float32(slope)) * (m - n)
    weights = np.exp2(score * 1.4426950408889634)
    return np.where(n <= m, weights, 0).sum(axis=1)


def known_mistakes(s, slope):
    """The results of mistakes that people make."""
    m, n = np.indices(s.shape)
    x, slope = s.astype(np.float64), np.float64(np.float32(slope))
    log2_e = 1.4426950408889634

    def sums(score, seen=n <= m):
        with np.errstate(over="ignore"):
            return np.where(seen, np.exp2(score), 0).sum(axis=1)

    return {
        "The row is summed over all keys, not over n = 0 ... m.": sums(
            (x / 8 - slope * (m - n)) * log2_e, True
        ),
        "The last key, n = m, is left out.": sums((x / 8 - slope * (m - n)) * log2_e, n < m),
        "The scores lack the division by 8.": sums((x - slope * (m - n)) * log2_e),
        "The factor LOG2_E is lost: exp2 needs it.": sums(x / 8 - slope * (m - n)),
        "The penalty is gone.": sums(x / 8 * log2_e),
        "The penalty has the wrong sign.": sums((x / 8 + slope * (m - n)) * log2_e),
        "The constant is an integer: LOG2_E is 1.4427.": sums(x / 8 - slope * (m - n)),
    }


def check(got, s, slope):
    want = expected(s, slope)
    wrong = np.flatnonzero(~(np.abs(got - want) <= 1e-5 * want))
    if len(wrong):
        m = wrong[0]
        causes = [
            cause
            for cause, sums in known_mistakes(s, slope).items()
            if np.allclose(got, sums, rtol=1e-3)
        ]
        raise Wrong(
            f"N = {len(s)}, slope {slope}: {len(wrong)} of {len(want)} sums are wrong, first "
            f"total[{m}]: want {want[m]:.6g}, got {got[m]:.6g}",
            causes=causes,
            where=f"total[{m}]",
        )


@pytest.mark.parametrize("N", SIZES)
def test_equals_float64(exercise, N):
    """the sums of every row, as in float64"""
    (s,) = matrices((N, N), seed=N)
    check(launch(exercise, s, 0.25)[0], s, 0.25)


@pytest.mark.parametrize("slope", [0.0, 2**-8, 0.7, 1.0])
def test_slopes(exercise, slope):
    """with other slopes, and scores of another size"""
    (s,) = matrices((40, 40), seed=3)
    check(launch(exercise, 9 * s, slope)[0], 9 * s, slope)


def test_float32(exercise):
    """no operation of kernel is on float64; broken_kernel is as it was given"""
    (s,) = matrices((20, 20))
    expect_float32(launch(exercise, s, 0.25)[1])
    arguments = s, np.array([0.25], np.float32), np.zeros(20, np.float32)
    trace = simt.trace(exercise.broken_kernel, 1, 64, *arguments)
    assert "float32" not in trace.flops.by_dtype, "broken_kernel is to stay: mend `kernel`"


def test_not_more_work(exercise):
    """one exponential for each pair, s loaded once, no memory on the chip"""
    (s,) = matrices((70, 70))
    _, trace = launch(exercise, s, 0.25)
    pairs = 70 * 71 // 2
    kinds = trace.flops.by_kind
    exponentials = sum(kinds.get(kind, 0) for kind in ("exp", "exp2", "pow"))
    assert exponentials <= pairs, f"{pairs} pairs took {exponentials} exponentials: one is enough"
    loads = trace.arrays["s"].loads
    assert loads == pairs, f"s has {pairs} elements on and below the diagonal, loaded are {loads}"
    expect_chip_memory(trace, allowed="a sum is one register")
    expect_no_races(trace)


def test_nothing_else(exercise):
    """s and slope are left as they were, and nothing is written beside total"""
    (s,) = matrices((65, 65))
    before, frame = s.copy(), np.full(80, 7, np.float32)
    total, _ = launch(exercise, s, 0.25, frame[5:70])
    assert (s == before).all(), "the kernel wrote into s"
    check(total, before, 0.25)
    assert (np.delete(frame, range(5, 70)) == 7).all(), "elements around total were written"


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32 throughout"""
    (s,) = matrices((4, 4))
    gpu_ready(exercise.kernel, (s, np.ones(1, np.float32), np.zeros(4, np.float32)))
