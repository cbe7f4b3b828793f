"""The roofline: numbers by hand, and the two ways to read it agree."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import cuda

from fa_numba import simt
from fa_numba.analysis.devices import DEVICES, device
from fa_numba.analysis.roofline import Roofline

A100 = Roofline("A100-40GB", "float16")  # 312 TFLOP/s, 1555 GB/s
FLOPS = st.floats(1, 1e18)
BYTES = st.floats(1, 1e15)
ROOFLINES = st.sampled_from(
    [Roofline(gpu, dtype) for gpu in DEVICES.values() for dtype in ("float32", "float16")]
)


def test_by_hand():
    assert A100.ridge == pytest.approx(312e12 / 1555e9)  # 200.6
    assert A100.attainable(100) == pytest.approx(155.5e12)
    assert A100.attainable(1000) == pytest.approx(312e12)
    assert A100.seconds(312e12, 1) == pytest.approx(1)
    assert A100.seconds(1, 1555e9) == pytest.approx(1)
    assert (A100.bound(200), A100.bound(201)) == ("memory", "arithmetic")


def test_matrix_product_of_4096():
    """2 n³ FLOPs and 3 n² elements in float16: n / 3 = 1365 FLOP per byte, 0.44 ms on an A100."""
    n = 4096
    flops, num_bytes = 2 * n**3, 3 * n**2 * 2
    assert flops / num_bytes == pytest.approx(n / 3)
    assert A100.bound(flops / num_bytes) == "arithmetic"
    assert A100.seconds(flops, num_bytes) == pytest.approx(0.4405e-3, rel=1e-3)


def test_each_dtype_has_its_own_ridge():
    h100 = [Roofline("H100", dtype).ridge for dtype in ("float32", "float16", "float8")]
    assert h100 == pytest.approx([19.96, 295.2, 590.4], rel=1e-3)
    assert Roofline("H100", np.float16) == Roofline("H100", np.float16)
    assert Roofline("H100", np.float16).ridge == Roofline("H100", "float16").ridge


@given(ROOFLINES, FLOPS, BYTES)
def test_time_and_rate_are_one_statement(roofline, flops, num_bytes):
    intensity = flops / num_bytes
    seconds = roofline.seconds(flops, num_bytes)
    assert flops / seconds == pytest.approx(roofline.attainable(intensity))
    if roofline.bound(intensity) == "memory":
        assert seconds == pytest.approx(num_bytes / roofline.bandwidth)
    else:
        assert seconds == pytest.approx(flops / roofline.peak)


@given(ROOFLINES, st.floats(1e-3, 1e6), st.floats(1, 1e3))
def test_more_intensity_never_runs_slower(roofline, intensity, more):
    assert roofline.attainable(intensity) <= roofline.attainable(intensity * more)
    assert roofline.attainable(roofline.ridge) == pytest.approx(roofline.peak)


@cuda.jit
def polynomial(x, out, degree):
    i = cuda.grid(1)
    total = x[i]
    for _ in range(degree):
        total = total * x[i] + x[i]  # an fma; 8 bytes
    out[i] = total


def test_a_launch_has_its_place():
    """2 FLOPs for every 8 bytes: a quarter of the bandwidth, however long the kernel."""
    x, out = np.ones((2, 64), np.float32)
    roofline = Roofline("T4")
    point = roofline.place(simt.trace(polynomial, 2, 32, x, out, 100))
    assert point.kernel == "polynomial" and point.bound == "memory"
    assert point.intensity == 2 * 100 / (8 * 100 + 8)
    assert point.attainable == point.intensity * roofline.bandwidth
    assert point.seconds == pytest.approx(64 * 808 / roofline.bandwidth)


def test_errors():
    with pytest.raises(ValueError, match="no GPU 'A1000' in the table"):
        Roofline("A1000")
    with pytest.raises(ValueError, match="no bfloat16 peak is known for V100"):
        Roofline("V100", "bfloat16")
    unknown = dataclasses.replace(device("T4"), memory_bandwidth=None)
    with pytest.raises(ValueError, match="bandwidth of T4 is not known"):
        Roofline(unknown)
