"""softmax_topk on the CPU engine, every access checked."""

import numpy as np
import pytest
from cases import assert_close, random, strided

from fa_numba import online_softmax, reference, softmax_topk

pytestmark = pytest.mark.usefixtures("checked")


def check_topk(x, k):
    """Hold softmax_topk to the definition; the columns must be the very same."""
    values, columns = softmax_topk(x, k)
    want, want_columns = reference.softmax_topk(x, k)
    plain, _ = reference.softmax_topk(x, k, dtype=np.float32)
    assert_close(values, want, plain, name="values")
    np.testing.assert_array_equal(columns, want_columns.astype(np.int32), strict=True)


@pytest.mark.parametrize(
    "num_rows, num_cols, k",
    [(1, 1, 1), (3, 7, 7), (2, 127, 5), (2, 128, 1), (2, 129, 32), (4, 300, 5), (0, 4, 2)],
)
def test_shapes(rng, num_rows, num_cols, k):
    check_topk(random(rng, num_rows, num_cols), k)


@pytest.mark.parametrize("k", [1, 2, 5, 31])
def test_equal_numbers_come_by_column(rng, k):
    check_topk(rng.integers(0, 3, (4, 200)).astype(np.float32), k)
    _, columns = softmax_topk(np.ones((1, 200), np.float32), k)
    np.testing.assert_array_equal(columns[0], np.arange(k))


def test_zeros_of_both_signs_are_equal():
    x = np.zeros((1, 140), np.float32)
    x[0, ::2] = -0.0
    check_topk(x, 4)


@pytest.mark.parametrize("step", [1, -1])
def test_ascending_and_descending_rows(step):
    check_topk(np.arange(300, dtype=np.float32)[None, ::step].copy(), 6)


def test_all_from_one_thread(rng):
    x = random(rng, 2, 700)
    x[:, 3::128] += 100
    check_topk(x, 6)


@pytest.mark.parametrize("scale", [1e4, 1e38])
def test_large_numbers(rng, scale):
    check_topk(np.clip(random(rng, 3, 200), -3, 3) * np.float32(scale), 5)


def test_minus_infinity_is_a_number_like_others(rng):
    x = random(rng, 3, 200)
    x[0, :] = x[1, 2:] = x[2, ::2] = -np.inf
    check_topk(x[1:], 5)
    values, columns = softmax_topk(x, 5)
    assert np.isnan(values[0]).all()
    np.testing.assert_array_equal(columns[:2], [[0, 1, 2, 3, 4], [*columns[1, :2], 2, 3, 4]])


def test_nan_stays_in_its_row_and_its_columns_are_columns(rng):
    x = random(rng, 3, 140)
    x[1, 77] = np.nan
    x[2, 1:] = np.nan
    values, columns = softmax_topk(x, 5)
    assert np.isnan(values[1:]).all() and np.isfinite(values[0]).all()
    np.testing.assert_array_equal(columns, reference.softmax_topk(x, 5)[1])
    np.testing.assert_array_equal(columns[2], [0, 1, 2, 3, 4])


def test_infinity_has_no_softmax(rng):
    x = random(rng, 1, 50)
    x[0, 9] = np.inf
    values, columns = softmax_topk(x, 3)
    assert np.isnan(values).all() and columns[0, 0] == 9


def test_values_are_those_of_the_whole_softmax(rng):
    x = random(rng, 3, 260)
    values, columns = softmax_topk(x, 7)
    whole = np.take_along_axis(online_softmax(x), columns.astype(np.int64), axis=1)
    np.testing.assert_array_equal(values, whole)


def test_strided_view_is_left_alone(rng):
    x = strided(random(rng, 1, 5, 1, 40))[0, :, 0]
    x.flags.writeable = False
    check_topk(x, 3)
