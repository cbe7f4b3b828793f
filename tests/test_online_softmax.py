"""online_softmax on the CPU engine, every access checked."""

import numpy as np
import pytest
from cases import check_softmax, each_row_shape, random, strided

from fa_numba import online_softmax

pytestmark = pytest.mark.usefixtures("checked")


@each_row_shape
def test_shapes(rng, shape):
    check_softmax(online_softmax, random(rng, *shape))


@pytest.mark.parametrize("scale", [1e4, 1e38])
def test_large_numbers(rng, scale):
    check_softmax(online_softmax, np.clip(random(rng, 3, 200), -3, 3) * np.float32(scale))


@pytest.mark.parametrize("step", [1, -1])
def test_ascending_and_descending_rows(step):
    check_softmax(online_softmax, np.arange(300, dtype=np.float32)[None, ::step].copy())


def test_some_minus_infinity(rng):
    x = random(rng, 3, 300)
    x[0, :200] = x[1, 200:] = x[2, ::2] = -np.inf
    check_softmax(online_softmax, x)


def test_nan_stays_in_its_row(rng):
    x = random(rng, 3, 200)
    x[1, 77] = np.nan
    y = online_softmax(x)
    assert np.isnan(y[1]).all() and np.isfinite(y[[0, 2]]).all()


def test_a_row_of_minus_infinity_has_no_softmax():
    x = np.zeros((2, 5), np.float32)
    x[0] = -np.inf
    y = online_softmax(x)
    assert np.isnan(y[0]).all() and (y[1] == np.float32(0.2)).all()


def test_strided_view_is_left_alone(rng):
    x = strided(random(rng, 1, 5, 1, 40))[0, :, 0]
    x.flags.writeable = False
    check_softmax(online_softmax, x)
