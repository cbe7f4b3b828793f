"""Grader of ex18f: numbers into bytes of e4m3, and their scales."""

import numpy as np
import pytest
from numba import cuda

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.kernels import e4m3
from fa_numba.workbook.graders.causes import Wrong

NUMBERS = e4m3.decode(np.arange(0x7F), np.float32(1))  # 0 to 448, ascending
BETWEEN = (NUMBERS[1:] + NUMBERS[:-1]) / 2  # exact in float32
FAR = np.float32(1e9)


def bytes_of(exercise, x):
    """to_e4m3 of all numbers, a thread for each; the byte of -0 is that of 0."""
    to_e4m3 = exercise.to_e4m3

    @cuda.jit
    def kernel(x, codes):
        i = cuda.grid(1)
        if i < x.shape[0]:
            codes[i] = to_e4m3(x[i])

    codes = np.full(len(x), -1, np.int32)
    simt.run(kernel, -(-len(x) // 64), 64, x, codes)
    return np.where(codes == 0x80, 0, codes)


def expect_bytes(exercise, x):
    x = np.concatenate([x, -x]).astype(np.float32)
    got, want = bytes_of(exercise, x), e4m3.encode(x, np.float32(1)).astype(np.int32)
    want = np.where(want == 0x80, 0, want)
    bad = np.flatnonzero(got != want)
    if not len(bad):
        return
    size = np.abs(x)
    near = np.searchsorted(NUMBERS, np.minimum(size, NUMBERS[-1]), side="right") - 1
    up = np.minimum(near + 1, len(NUMBERS) - 1)
    tie = size == (NUMBERS[near] + NUMBERS[up]) / 2
    sign = np.where(x < 0, 0x80, 0)
    small = size < NUMBERS[8]
    exact, even = want & 0x7F, "Of two that are equally near, the even byte: not always the "
    known = {
        f"{even}larger.": np.where(tie, up, exact),
        f"{even}smaller.": np.where(tie, near, exact),
        "Rounded to the nearest, not cut off: add half a step first.": near,
        "Rounded to the nearest, not up.": np.where(size == NUMBERS[near], near, up),
        "The bit 0x80 is for numbers below 0 alone.": exact | 0x80,
    }
    known = {said: np.where(code & 0x7F == 0, 0, code | sign) for said, code in known.items()}
    known["The sign is the bit 0x80."] = exact
    # A mistake with large numbers, or with small ones, leaves the others right.
    part = (small & small[bad].any()) | (~small & (~small)[bad].any())
    causes = [said for said, code in known.items() if np.array_equal(code[part], got[part])]
    shift = (got - want)[~small & (x > 0) & (got > 0)]  # 0 may have been -0
    if shift.any() and shift[0] % 8 == 0 and (shift == shift[0]).all():
        causes.append("The exponent's four bits hold exponent + 7: the bias is 7, of float32 127.")
    if (x[bad] < 0).all():
        causes.append("Below 0 the byte is that of |x|, with the bit 0x80.")
    if (size[bad] > 448).all():
        causes.append("Beyond 448 it is 448, and no larger number or NaN: saturate.")
    if not causes and small[bad].all():
        causes.append("Below 2^-6 the numbers are multiples of 2^-9, with exponent bits 0.")
    at = bad[0]
    raise Wrong(
        f"to_e4m3({x[at]:.9g}) must be {want[at]:#04x}, which is {e4m3.decode(want[at], 1.0):g}; "
        f"got {got[at]:#x}. {len(bad)} of {len(x)} are wrong",
        causes=causes,
        where=f"x = {x[at]:.9g}",
    )


def test_numbers_of_the_format(exercise):
    """to_e4m3: an e4m3 number is its own byte"""
    expect_bytes(exercise, NUMBERS)


def test_ties(exercise):
    """to_e4m3: in the middle between two numbers the even byte"""
    expect_bytes(exercise, BETWEEN)


def test_next_to_ties(exercise):
    """to_e4m3: the nearer one, if only by the last bit of a float32"""
    expect_bytes(exercise, np.concatenate([np.nextafter(BETWEEN, x) for x in (np.float32(0), FAR)]))


def test_saturates(exercise):
    """to_e4m3: beyond 448, 448"""
    expect_bytes(exercise, np.float32([448.1, 463.9, 464, 465, 480, 512, 1e4, 65520, 1e30, 3e38]))


def test_subnormal(exercise):
    """to_e4m3: multiples of 2^-9 below 2^-6, and 0"""
    expect_bytes(exercise, np.linspace(0, 2**-5, 200))
    expect_bytes(exercise, np.float32([1e-45, 1e-30, 1e-10, 2**-10, 2**-10 * 1.0001, 2**-9]))


def test_random(exercise):
    """to_e4m3: random numbers of every size"""
    rng = np.random.default_rng(0)
    expect_bytes(exercise, rng.standard_normal(500) * np.exp(rng.uniform(-8, 6, 500)))


def test_scale(exercise):
    """scale_of: amax becomes 448, whatever its size; 1 if all are 0"""
    scale_of = exercise.scale_of

    @cuda.jit
    def kernel(amax, scale):
        i = cuda.threadIdx.x
        scale[i] = scale_of(amax[i])

    amax = np.float32([0, 1, 448, 3e38, 1e-30, 0.3, 1e-3, 700])
    scale = np.zeros_like(amax)
    simt.run(kernel, 1, len(amax), amax, scale)
    want = np.where(amax > 0, amax / np.float32(448), np.float32(1))
    for a, got, wanted in zip(amax, scale, want, strict=True):
        if not abs(got - wanted) <= 2e-7 * wanted:
            raise Wrong(
                f"scale_of({a:g}) must be {wanted:.7g}, got {got:.7g}",
                causes=scale_causes(amax, scale),
                where=f"amax = {a:g}",
            )


def scale_causes(amax, scale):
    """Name the mistakes that would give these scales."""
    amax, scale = amax.astype(np.float64).ravel(), scale.astype(np.float64).ravel()
    a, got = amax[amax > 0], scale[amax > 0]
    with np.errstate(all="ignore"):
        if np.allclose(got, a / 448):
            return ["All are 0: x / 0 is NaN. Any scale but 0 would do; by the statement it is 1."]
        if np.allclose(got * a, 448, 1e-5):
            return ["It is divided by, not multiplied: amax / 448."]
        largest = a / got
        if np.allclose(largest, largest[0], 1e-5):
            return [f"amax is divided by 448, the largest e4m3 number, not by {largest[0]:.6g}."]
    return []


def written(exercise, x, slots, page_size=4):
    """The cache and its scales after the kernel; 0x55 and 7 where nothing is written."""
    tokens, heads, head_dim = x.shape
    pages = max(slots) // page_size + 2
    x8 = np.full((pages, page_size, heads, head_dim), 0x55, np.uint8)
    scale = np.full((pages, page_size, heads), 7, np.float32)
    simt.trace(exercise.kernel, (tokens, heads), 32, x, np.array(slots, np.int32), x8, scale)
    return x8, scale


def expect_written(exercise, x, slots):
    x8, scale = written(exercise, x, slots)
    codes, scales = e4m3.quantise(x)
    at = np.array(slots)
    own8, own = (a.reshape(-1, *a.shape[2:]) for a in (x8, scale))
    if not np.allclose(own[at], scales, 1e-6, 0):
        causes = scale_causes(np.abs(x).max(axis=-1), own[at])
        raise Wrong("the scale of each token and head must be amax / 448", causes=causes)
    back, want = e4m3.decode(own8[at], own[at][..., None]), e4m3.decode(codes, scales[..., None])
    step = np.maximum(np.abs(x) / 8, scales[..., None] * 2.0**-9)
    assert (np.abs(back - want) <= step).all(), (
        f"read back, the numbers differ from those written by up to {np.nanmax(abs(back - x)):g}"
    )
    others = np.delete(own8, at, axis=0)
    assert (others == 0x55).all(), "slots of other tokens are not written"
    return back, own[at]


@pytest.mark.parametrize("head_dim", [1, 8, 33, 128])
def test_round_trip(exercise, head_dim):
    """written and read back: at most half a step away, each token and head by its scale"""
    rng = np.random.default_rng(head_dim)
    x = rng.standard_normal((5, 3, head_dim)) * np.exp(rng.uniform(-9, 9, (5, 3, 1)))
    x = x.astype(np.float32)
    back, scale = expect_written(exercise, x, [9, 0, 3, 17, 4])
    half = np.maximum(np.abs(x) / 16, scale[..., None] * 2.0**-10) * 1.0001
    at = np.unravel_index(np.argmax(np.abs(back - x) / half), x.shape)
    assert np.abs(back - x)[at] <= half[at], (
        f"{x[at]:g} came back as {back[at]:g}: further away than half a step"
    )


def test_zeros_and_outliers(exercise):
    """a row of zeros stays 0, with scale 1; an outlier is kept, and does not harm other heads"""
    x = np.random.default_rng(0).standard_normal((3, 2, 16), np.float32)
    x[1, 0] = 0
    x[2, 1, 5] = -1e4
    back, scale = expect_written(exercise, x, [1, 2, 3])
    assert scale[1, 0] == 1 and (back[1, 0] == 0).all(), (
        f"a row of zeros: want scale 1 and zeros, got scale {scale[1, 0]:g}"
    )
    assert abs(back[2, 1, 5] + 1e4) < 0.01, "the largest number of a row becomes 448, exactly"


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, without float64"""
    x, slots = np.zeros((1, 1, 32), np.float32), np.zeros(1, np.int32)
    x8, scale = np.zeros((1, 4, 1, 32), np.uint8), np.zeros((1, 4, 1), np.float32)
    gpu_ready(exercise.kernel, (x, slots, x8, scale))
