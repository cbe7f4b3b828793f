"""naive_softmax on the CPU engine, every access checked."""

import numpy as np
import pytest
from cases import check_softmax, each_row_shape, random, strided

from fa_numba import naive_softmax

pytestmark = pytest.mark.usefixtures("checked")


@each_row_shape
def test_shapes(rng, shape):
    check_softmax(naive_softmax, random(rng, *shape))


def test_strided_view(rng):
    check_softmax(naive_softmax, strided(random(rng, 1, 5, 1, 40))[0, :, 0])


def test_overflows_on_purpose():
    y = naive_softmax(np.array([[0, 1], [88, 0], [89, 0]], np.float32))
    assert np.isfinite(y[:2]).all()
    assert np.isnan(y[2, 0])  # inf / inf
