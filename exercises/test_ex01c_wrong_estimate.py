"""Grader of ex01c: an estimate in which each term decides once."""

import numpy as np
import pytest

from fa_numba.workbook.graders.causes import Wrong

FAST = 1e30  # so fast that it takes no time


def made(**rates):
    return {"peak": FAST, "bandwidth": FAST, "pcie": FAST, **rates}


def truth(m, n, k, gpu, *, fma=2, size=2, directions=2, overlap=max, twice=1):
    elements = m * k + k * n + m * n
    product = overlap((fma * m * n * k / gpu["peak"], size * elements / gpu["bandwidth"]))
    return product + directions * twice * size * elements / gpu["pcie"]


MISTAKES = {
    "A fused multiply-add is two FLOPs.": {"fma": 1},
    "A float16 has two bytes.": {"size": 4},
    "pcie adds both directions, and a copy has only one.": {"directions": 1},
    "Arithmetic and HBM traffic overlap: the longer of the two counts, not their sum.": {
        "overlap": sum
    },
    "C is copied once, and so are A and B.": {"twice": 2},
    "The shorter of arithmetic and HBM traffic is taken.": {"overlap": min},
}


def check(exercise, m, n, k, gpu, case):
    got, want = exercise.estimate(m, n, k, *gpu.values()), truth(m, n, k, gpu)
    real = isinstance(got, int | float) and not isinstance(got, bool)
    if real and abs(got - want) <= 1e-9 * want:
        return
    causes = [] if real else ["The result is no number: is a return missing?"]
    if real:
        for sentence, change in MISTAKES.items():
            other = truth(m, n, k, gpu, **change)
            if abs(other - want) > 1e-6 * want and abs(got - other) <= 1e-6 * other:
                causes.append(sentence)
    shown = f"{got:.4g} s, {got / want:.3g} times as long" if real else repr(got)
    raise Wrong(f"{case}: want {want:.4g} s, got {shown}", causes=causes, where=case)


SHAPES = [(64, 32, 16), (8, 1000, 8), (1, 1, 500)]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_arithmetic(exercise, shape):
    """where only the arithmetic takes time"""
    check(exercise, *shape, made(peak=1e9), "slow arithmetic, all else at once")


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_memory(exercise, shape):
    """where only the HBM traffic takes time"""
    check(exercise, *shape, made(bandwidth=1e9), "slow HBM, all else at once")


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_copies(exercise, shape):
    """where only the copies over PCIe take time"""
    check(exercise, *shape, made(pcie=1e9), "slow PCIe, all else at once")


def test_overlap(exercise):
    """arithmetic and HBM traffic at a time: the longer one counts"""
    for peak, bandwidth in ((1e9, 1e9), (1e9, 2e8), (1e10, 1e9)):
        gpu = made(peak=peak, bandwidth=bandwidth)
        check(exercise, 40, 30, 20, gpu, f"peak {peak:g}, HBM {bandwidth:g}, PCIe at once")


def test_all_together(exercise):
    """real rates, and drawn ones"""
    check(exercise, 4096, 4096, 4096, made(peak=312e12, bandwidth=1.555e12, pcie=64e9), "A100")
    rng = np.random.default_rng(0)
    for _ in range(100):
        m, n, k = (int(x) for x in rng.integers(1, 3000, 3))
        peak, bandwidth, pcie = (float(x) for x in 10 ** rng.uniform(9, 12, 3))
        gpu = made(peak=peak, bandwidth=bandwidth, pcie=pcie)
        check(exercise, m, n, k, gpu, f"m = {m}, n = {n}, k = {k}")
