"""Attention in 8-bit floats, in NumPy: the error of rounding to e4m3, and how scales reduce it.

e4m3 has a sign, four bits of exponent and three of mantissa: sixteen values between 1 and 4. The
largest is 448, the smallest positive one 2^-9. So numbers are divided by a scale before they are
rounded, such that the largest becomes 448.
"""

import numpy as np

E4M3_MAX = 448.0
SMALLEST_EXPONENT = -6  # below it the distance between neighbours no longer shrinks
MANTISSA_BITS = 3
P_SCALE = 256.0  # a power of two: brings P, at most 1, to the top of the range


def round_e4m3(x):
    """The nearest e4m3 numbers, ties to even; beyond the largest, the largest.

    Parameters
    ----------
    x : array of finite floats

    Returns
    -------
    array, float64
    """
    x = np.asarray(x, np.float64)
    _, exponent = np.frexp(x)  # x = fraction 2^exponent, ½ <= |fraction| < 1
    step = 2.0 ** (np.maximum(exponent - 1, SMALLEST_EXPONENT) - MANTISSA_BITS)
    return np.clip(np.round(x / step) * step, -E4M3_MAX, E4M3_MAX)


def quantise(x, block_rows=None):
    """x, scaled, rounded to e4m3 and scaled back.

    Parameters
    ----------
    x : array of shape (rows, head_dim)
    block_rows : int, default=None
        Rows that share a scale. None: one scale for the whole tensor.

    Returns
    -------
    array, float64
    """
    x = np.asarray(x, np.float64)
    y = np.empty_like(x)
    for start in range(0, len(x), block_rows or len(x)):
        rows = slice(start, start + (block_rows or len(x)))
        scale = np.abs(x[rows]).max() / E4M3_MAX or 1.0
        y[rows] = round_e4m3(x[rows] / scale) * scale
    return y


def attention(q, k, v, p_rounded=None):
    """Attention of one head in float64, with P = exp(S − max) rounded before it meets V.

    Parameters
    ----------
    q, k, v : arrays of shape (seqlen, head_dim)
    p_rounded : function of an array, default=None
        None leaves P as it is.

    Returns
    -------
    array of shape (seqlen, head_dim), float64
    """
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    s = q @ k.T / np.sqrt(q.shape[1])
    p = np.exp(s - s.max(axis=1, keepdims=True))
    l = p.sum(axis=1, keepdims=True)  # the sum is taken before P is rounded, as in the kernels
    return (p if p_rounded is None else p_rounded(p)) @ v / l


def attention_e4m3(q, k, v, block_rows=None):
    """Attention of one head with Q, K, V and P in e4m3, all else exact; see `attention`."""
    q, k, v = (quantise(x, block_rows) for x in (q, k, v))
    return attention(q, k, v, lambda p: round_e4m3(P_SCALE * p) / P_SCALE)


def with_outliers(rng, *shape):
    """Numbers as in the FlashAttention-3 paper: N(0, 1) + N(0, 100) · Bernoulli(0.001).

    One in a thousand is ten times as large as the others.
    """
    return rng.standard_normal(shape) + 10 * rng.standard_normal(shape) * (
        rng.random(shape) < 0.001
    )


def rmse(x, y):
    """Root of the mean squared difference."""
    return float(np.sqrt(np.mean((np.asarray(x, np.float64) - y) ** 2)))
