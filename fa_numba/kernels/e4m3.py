"""8-bit floats for a KV cache: e4m3 and its scales, on the host and as device functions.

e4m3 has a sign, four bits of exponent, three of mantissa: steps of 1/8 between 1 and 2, up to 448,
the smallest positive number 2^-9. Such numbers are bytes here, in arrays of uint8. A key or a value
is scale · e4m3, with a float32 scale for each head of K and V, or for each token and head:

    scale = amax / 448, or 1 where amax = 0      amax: the largest |x| of the token's head
    byte = e4m3(x / scale)                       the nearest, ties to even; beyond ±448, ±448

Every e4m3 number is a float16 and a float32, so that reading is exact. NaN stays NaN.

Paper: Micikevicius et al. 2022, FP8 formats for deep learning, arXiv:2209.05433, section 3.
"""

import functools
import math

import numpy as np
from numba import cuda, float32, int32, uint8

from fa_numba.constants import ZERO

E4M3_MAX = float32(448.0)
HALF = float32(0.5)
NAN = float32(np.nan)
NAN_BYTE = 0x7F
LEAST_EXPONENT = -6  # below 2^-6 the steps stay those of 2^-6
LEAST_NORMAL = float32(2.0**LEAST_EXPONENT)
NO_SCALE = np.float32(0)  # passed where a cache has no scales: kernels ignore it


# Host


def scale_of(amax):
    """The scale of numbers up to amax, an array of float32."""
    return np.where(amax > 0, np.asarray(amax, np.float32) / E4M3_MAX, np.float32(1))


def encode(x, scale):
    """The bytes of x / scale, as `to_e4m3` computes them, bit for bit."""
    x = np.asarray(x, np.float32)
    with np.errstate(invalid="ignore"):  # ∞ / ∞
        x = x / np.asarray(scale, np.float32)
    size = np.minimum(np.abs(x), E4M3_MAX)
    exponent = np.where(size < LEAST_NORMAL, LEAST_EXPONENT, np.frexp(size)[1] - 1)
    steps = np.rint(np.ldexp(size, 3 - exponent))
    code = 8 * (exponent - LEAST_EXPONENT) + np.where(np.isnan(x), 0, steps).astype(np.int32)
    code |= np.where(x < 0, 0x80, 0)
    return np.where(np.isnan(x), NAN_BYTE, code).astype(np.uint8)


def decode(bytes, scale):
    """scale · e4m3 of bytes, in the dtype of the scale."""
    return _NUMBERS[bytes].astype(np.asarray(scale).dtype) * scale


def quantise(x):
    """Bytes of x (…, head_dim), and the scale of each row."""
    with np.errstate(invalid="ignore"):
        amax = np.fmax.reduce(np.abs(np.asarray(x, np.float32)), axis=-1, initial=np.float32(0))
    scale = scale_of(amax)
    return encode(x, scale[..., None]), scale


def _numbers():
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    size = np.where(exponent > 0, 8 + mantissa << exponent, 2 * mantissa) / np.float32(1024)
    size[codes & NAN_BYTE == NAN_BYTE] = np.nan
    return np.where(codes & 0x80, -size, size).astype(np.float32)


_NUMBERS = _numbers()


def scales_of(k_scale, v_scale):
    """SCALES of `make_load`, and the scales as kernels take them."""
    if k_scale is None:
        return "", NO_SCALE, NO_SCALE
    return "head" if len(k_scale.shape) == 1 else "token", k_scale, v_scale


# Kernels


@cuda.jit(device=True)
def from_e4m3(byte):
    """The number of a byte, exactly."""
    code = int32(byte)
    exponent, mantissa = code >> 3 & 15, code & 7
    size = 8 + mantissa << exponent if exponent > 0 else 2 * mantissa  # in steps of 2^-10
    x = float32(size) * float32(1 / 1024)
    if code & NAN_BYTE == NAN_BYTE:
        x = NAN
    return -x if code & 0x80 else x


@cuda.jit(device=True)
def to_e4m3(x):
    """The byte of the nearest number, of two the even one; ±448 for all beyond."""
    size = min(abs(x), E4M3_MAX)
    _, exponent = math.frexp(size)
    exponent = int32(exponent) - 1 if size >= LEAST_NORMAL else LEAST_EXPONENT
    steps = math.ldexp(size, 3 - exponent)  # 8 to 16, or 0 to 8 below 2^-6
    whole = int32(steps)
    part = steps - float32(whole)
    if part > HALF or (part == HALF and whole & 1):
        whole += 1  # 16 is the next exponent's 8: no carry to care for
    code = 8 * (exponent - LEAST_EXPONENT) + whole
    if x != x:
        return uint8(NAN_BYTE)
    return uint8(code | 0x80 if x < ZERO else code)


@functools.cache
def make_load(SCALES):
    """load(cache, scale, page, offset, head, d): a number of a cache as float32.

    SCALES is "" for a cache of floats, whose `scale` is any scalar; "head" and "token" for bytes
    with scales of shape (num_kv_heads,) and (num_pages, page_size, num_kv_heads).
    """

    @cuda.jit(device=True)
    def load(cache, scale, page, offset, head, d):
        x = cache[page, offset, head, d]
        if SCALES == "head":
            return from_e4m3(x) * scale[head]
        if SCALES == "token":
            return from_e4m3(x) * scale[page, offset, head]
        return float32(x)

    return load
