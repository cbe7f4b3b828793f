"""e4m3 in NumPy, against ml_dtypes, and what the FlashAttention-3 paper says of it."""

import ml_dtypes
import numpy as np

from fa_numba import reference
from fa_numba.analysis import fp8


def test_rounds_as_ml_dtypes_does():
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    x = every[np.abs(every) <= 464].astype(np.float64)  # beyond, ml_dtypes has NaN
    expected = x.astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
    np.testing.assert_array_equal(fp8.round_e4m3(x), expected)


def test_the_largest_and_beyond():
    np.testing.assert_array_equal(fp8.round_e4m3([448, 1e9, -1e9]), [448, 448, -448])


def test_quantise_keeps_the_largest_and_nothing_of_others_scales(rng):
    x = rng.standard_normal((6, 8))
    x[2:4] *= 1e6
    y = fp8.quantise(x, block_rows=2)
    for rows in (slice(0, 2), slice(2, 4), slice(4, 6)):
        largest = np.abs(x[rows]).max()
        np.testing.assert_array_equal(y[rows], fp8.quantise(x[rows]))
        assert np.abs(y[rows]).max() == largest
        assert np.abs(y[rows] - x[rows]).max() <= largest / 16  # half of a step of 1/8
    assert not fp8.quantise(np.zeros((2, 3))).any()


def test_attention_is_the_definition(rng):
    q, k, v = rng.standard_normal((3, 20, 8))
    expected, _ = reference.attention(*(x[None, :, None] for x in (q, k, v)))
    np.testing.assert_allclose(fp8.attention(q, k, v), expected[0, :, 0], rtol=1e-12, atol=1e-12)


def test_outliers_cost_what_the_paper_says():
    """Its Table 3: RMSE 2.4e-2 for one scale per tensor."""
    rng = np.random.default_rng(0)
    q, k, v = fp8.with_outliers(rng, 3, 1024, 128)
    error = fp8.rmse(fp8.attention_e4m3(q, k, v), fp8.attention(q, k, v))
    assert 0.5e-2 <= error <= 3e-2
