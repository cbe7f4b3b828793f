"""Grader of ex01a: FLOPs over bytes, checked by counting both one element at a time."""

from numbers import Real

import numpy as np
import pytest
from numba import cuda

from fa_numba import simt
from fa_numba.analysis.devices import DEVICES
from fa_numba.workbook.graders.causes import Wrong


def close(got, want, why, rel=1e-9, mistakes=()):
    """Fail unless `got` is a number within `rel` of `want`, however small the two are.

    `mistakes` are pairs (sentence, result).
    """
    if not isinstance(got, Real):
        cause = "The result is no number: is a return missing?"
        raise Wrong(f"want a plain number, got {got!r}: is a return missing?", causes=[cause])
    if abs(got - want) <= rel * abs(want):
        return
    known = [*mistakes, ("The division drops what follows the point: / and not //.", want // 1)]
    if want:
        known.append(("The fraction is upside down.", 1 / want))
    causes = [sentence for sentence, x in known if x != want and abs(got - x) <= rel * abs(x)]
    raise Wrong(f"{why}: expected {want:.6g}, got {got:.6g}", causes=causes)


def expect(got, flops, elements, dtype_bytes, mistakes=()):
    """`mistakes` are triples (sentence, flops, elements)."""
    known = [(words, f / (e * dtype_bytes)) for words, f, e in mistakes]
    for size in (1, 2, 4):
        words = f"An element has dtype_bytes bytes, and not always {size}."
        known.append((words, flops / (elements * size)))
    why = f"{flops} FLOP / ({elements} elements * {dtype_bytes} bytes)"
    close(got, flops / (elements * dtype_bytes), why, mistakes=known)


@pytest.mark.parametrize("n, dtype_bytes", [(1, 4), (1000, 4), (1000, 2), (10**12, 1)])
def test_vector_add(exercise, n, dtype_bytes):
    """vector_add: two reads and one write for each addition"""
    known = [("Three vectors move: a and b are read, out is written.", n, 2 * n)]
    expect(exercise.vector_add(n, dtype_bytes), n, 3 * n, dtype_bytes, known)


def test_vector_add_is_what_the_meter_says(exercise):
    """vector_add: agrees with the bytes that the engine counts for a kernel"""

    @cuda.jit
    def add(a, b, out):
        i = cuda.grid(1)
        if i < out.shape[0]:
            out[i] = a[i] + b[i]

    n = 1000
    got = exercise.vector_add(n, 4)
    x = np.ones(n, np.float32)
    trace = simt.trace(add, 8, 128, x, x.copy(), np.zeros_like(x))
    moved = sum(array.load_bytes + array.store_bytes for array in trace.arrays.values())
    close(got, n / moved, f"{n} FLOP over {moved} bytes metered")


@pytest.mark.parametrize(
    "m, n, k, dtype_bytes",
    [(2, 3, 5, 4), (7, 1, 64, 2), (128, 128, 128, 2), (10**10 + 1, 10**10 + 7, 10**10 + 9, 1)],
)
def test_matmul(exercise, m, n, k, dtype_bytes):
    """matmul: any shape, each matrix moved once"""
    flops, inputs, output = 2 * m * n * k, m * k + k * n, m * n
    known = [
        ("A multiplication and an addition are two FLOPs.", flops // 2, inputs + output),
        ("C is written: m * n elements.", flops, inputs),
        ("C is written, not read.", flops, inputs + 2 * output),
    ]
    expect(exercise.matmul(m, n, k, dtype_bytes), flops, inputs + output, dtype_bytes, known)


@pytest.mark.parametrize("N, d, dtype_bytes", [(1, 1, 4), (16, 8, 4), (1024, 64, 2), (77, 80, 1)])
def test_standard_attention(exercise, N, d, dtype_bytes):
    """standard_attention: S and P are written and read once each"""
    products = 2 * (2 * N * N * d)
    qkvo, s_and_p = 4 * N * d, 2 * (2 * N * N)
    known = [
        ("S and P are both written and read: 4 N^2 elements.", products, qkvo + s_and_p // 2),
        ("There are two products, of 2 N^2 d FLOPs each.", products // 2, qkvo + s_and_p),
        ("Q, K and V are read and O is written: 4 N d elements.", products, qkvo * 3 / 4 + s_and_p),
        ("Only the products count, not exp.", products + N * N, qkvo + s_and_p),
    ]
    got = exercise.standard_attention(N, d, dtype_bytes)
    expect(got, products, qkvo + s_and_p, dtype_bytes, known)


@pytest.mark.parametrize("N, d, dtype_bytes", [(1, 1, 4), (16, 8, 4), (1024, 64, 2), (77, 80, 1)])
def test_fused_attention(exercise, N, d, dtype_bytes):
    """fused_attention: only Q, K, V and O cross the boundary"""
    products, qkvo = 2 * (2 * N * N * d), 4 * N * d
    known = [
        ("Q, K and V are read and O is written: 4 N d elements.", products, qkvo * 3 / 4),
        ("The intensity grows with N, not with d.", products * d, qkvo * N),
    ]
    expect(exercise.fused_attention(N, d, dtype_bytes), products, qkvo, dtype_bytes, known)


def test_longer_sequences(exercise):
    """attention: fusing keeps paying as the sequence grows, the standard way stalls at d / bytes"""
    standard = [exercise.standard_attention(N, 64, 2) for N in (1 << 10, 1 << 30)]
    fused = [exercise.fused_attention(N, 64, 2) for N in (1 << 10, 1 << 30)]
    close(standard[1], 32, "standard attention, d = 64 in 2 bytes, tends to d / bytes", rel=1e-6)
    ratio = "fused, 2**20 times the length is 2**20 times the intensity"
    close(fused[1], (1 << 20) * fused[0], ratio)


@pytest.mark.parametrize("device", DEVICES.values(), ids=lambda d: d.name)
def test_ridge_point(exercise, device):
    """ridge_point: arithmetic and memory take equally long there"""
    peak, bandwidth = device.float32, device.memory_bandwidth
    got = exercise.ridge_point(peak, bandwidth)
    why = (
        f"{device.name}: one byte takes {1 / bandwidth:.3g} s at {bandwidth:.4g} bytes/s; in that "
        f"time {peak:.4g} FLOP/s do"
    )
    close(got, peak / bandwidth, why)


def test_ridge_point_of_made_up_devices(exercise):
    """ridge_point: any two numbers, whole or not"""
    for peak, bandwidth, want in [(100, 10, 10), (7, 2, 3.5), (1, 4, 0.25), (0.3, 0.6, 0.5)]:
        got = exercise.ridge_point(peak, bandwidth)
        close(got, want, f"peak {peak} FLOP/s, {bandwidth} bytes/s: FLOP in the time of a byte")


@pytest.mark.parametrize(
    "intensity, peak, bandwidth, want",
    [
        (0.5, 100, 10, 5),
        (10, 100, 10, 100),
        (1000, 100, 10, 100),
        (0, 100, 10, 0),
        (1e-6, 1e-3, 1e-9, 1e-15),
    ],
    ids=["memory-bound", "at the ridge", "compute-bound", "no arithmetic", "tiny"],
)
def test_attainable_flops(exercise, intensity, peak, bandwidth, want):
    """attainable_flops: the lower of the two roofs"""
    got = exercise.attainable_flops(intensity, peak, bandwidth)
    why = (
        f"{intensity} FLOP/byte at {bandwidth} bytes/s feed {intensity * bandwidth} FLOP/s and the "
        f"peak is {peak}"
    )
    roofs = [
        ("It is the lower of the two roofs, not the higher one.", max(peak, intensity * bandwidth)),
        ("The peak is a roof, too.", intensity * bandwidth),
        ("The memory is a roof, too: intensity * bandwidth.", peak),
    ]
    close(got, want, why, mistakes=roofs)
