"""softmax_topk and softmax_topk_warps on the CPU engine, every access checked."""

import numpy as np
import pytest
from cases import assert_close, random

from fa_numba import online_softmax, reference, softmax_registers, softmax_topk_warps
from fa_numba.kernels.softmax_topk import softmax_topk
from fa_numba.tiling.row_tiling import warps_of_row

pytestmark = pytest.mark.usefixtures("checked")
each_topk = pytest.mark.parametrize(
    "topk", [softmax_topk, softmax_topk_warps], ids=lambda f: f.__name__
)


def check_topk(topk, x, k):
    """Hold `topk` to the definition; the columns must be the very same."""
    values, columns = topk(x, k)
    want, want_columns = reference.softmax_topk(x, k)
    plain, _ = reference.softmax_topk(x, k, dtype=np.float32)
    assert_close(values, want, plain, name="values")
    np.testing.assert_array_equal(columns, want_columns.astype(np.int32), strict=True)


@each_topk
@pytest.mark.parametrize(
    "num_rows, num_cols, k",
    [(1, 1, 1), (3, 7, 7), (2, 127, 5), (2, 128, 1), (2, 129, 32), (4, 300, 5), (0, 4, 2)],
)
def test_shapes(rng, num_rows, num_cols, k, topk):
    check_topk(topk, random(rng, num_rows, num_cols), k)


@each_topk
@pytest.mark.parametrize("k", [1, 2, 5, 31])
def test_equal_numbers_come_by_column(rng, k, topk):
    check_topk(topk, rng.integers(0, 3, (4, 200)).astype(np.float32), k)
    _, columns = topk(np.ones((1, 200), np.float32), k)
    np.testing.assert_array_equal(columns[0], np.arange(k))


@each_topk
def test_zeros_of_both_signs_are_equal(topk):
    x = np.zeros((1, 140), np.float32)
    x[0, ::2] = -0.0
    check_topk(topk, x, 4)


@each_topk
@pytest.mark.parametrize("step", [1, -1])
def test_ascending_and_descending_rows(step, topk):
    check_topk(topk, np.arange(300, dtype=np.float32)[None, ::step].copy(), 6)


@each_topk
def test_all_from_one_thread(rng, topk):
    x = random(rng, 2, 700)
    x[:, 3::128] += 100
    check_topk(topk, x, 6)


@each_topk
@pytest.mark.parametrize("scale", [1e4, 1e38])
def test_large_numbers(rng, scale, topk):
    check_topk(topk, np.clip(random(rng, 3, 200), -3, 3) * np.float32(scale), 5)


@each_topk
def test_minus_infinity_is_a_number_like_others(rng, topk):
    x = random(rng, 3, 200)
    x[0, :] = x[1, 2:] = x[2, ::2] = -np.inf
    check_topk(topk, x[1:], 5)
    values, columns = topk(x, 5)
    assert np.isnan(values[0]).all()
    np.testing.assert_array_equal(columns[:2], [[0, 1, 2, 3, 4], [*columns[1, :2], 2, 3, 4]])


@each_topk
def test_nan_stays_in_its_row_and_its_columns_are_columns(rng, topk):
    x = random(rng, 3, 140)
    x[1, 77] = np.nan
    x[2, 1:] = np.nan
    values, columns = topk(x, 5)
    assert np.isnan(values[1:]).all() and np.isfinite(values[0]).all()
    np.testing.assert_array_equal(columns, reference.softmax_topk(x, 5)[1])
    np.testing.assert_array_equal(columns[2], [0, 1, 2, 3, 4])


@each_topk
def test_infinity_has_no_softmax(rng, topk):
    x = random(rng, 1, 50)
    x[0, 9] = np.inf
    values, columns = topk(x, 3)
    assert np.isnan(values).all() and columns[0, 0] == 9


@pytest.mark.parametrize("num_cols", [260, 2600])
def test_values_are_those_of_the_whole_softmax(rng, num_cols):
    x = random(rng, 3, num_cols)
    values, columns = softmax_topk(x, 7)
    whole = np.take_along_axis(online_softmax(x), columns.astype(np.int64), axis=1)
    np.testing.assert_array_equal(values, whole)
    values, columns = softmax_topk_warps(x, 7)
    whole = np.take_along_axis(softmax_registers(x), columns.astype(np.int64), axis=1)
    np.testing.assert_allclose(values, whole, rtol=1e-6)  # summed in another order


@pytest.mark.parametrize("k", [1, 5, 32])
@pytest.mark.parametrize(
    "num_rows, num_cols, warps, num_splits",
    [(2200, 3, 1, 1), (1, 2049, 4, 1), (3, 2052, 4, 1), (2, 9000, 4, 2), (1, 40_001, 4, 10)],
)
@pytest.mark.few(lambda num_cols, num_splits, k: [(num_cols, num_splits), k])
def test_rows_of_several_warps_and_thread_blocks(rng, num_rows, num_cols, warps, num_splits, k):
    assert warps_of_row(num_rows, num_cols, 40) == (warps, num_splits)
    x = random(rng, num_rows, num_cols).round(1)  # many are equal
    check_topk(softmax_topk_warps, x, min(k, num_cols))


@pytest.mark.parametrize("width", [0, 3])  # in packets and not
@pytest.mark.parametrize("num_cols", [2048, 20_000])
def test_long_rows_of_few_finite_numbers(num_cols, width):
    x = np.full((3, num_cols - width), -np.inf, np.float32)
    x[0, 5:] = np.nan
    x[1, [7, 700, -1]] = 1, 3, 1
    x[2, [-1, -2]] = 2
    values, columns = softmax_topk_warps(x, 6)
    np.testing.assert_array_equal(columns, reference.softmax_topk(x, 6)[1])
    assert np.isnan(values[0]).all()
    check_topk(softmax_topk_warps, x[1:], 6)


@pytest.mark.parametrize("step", [1, -1])
def test_long_ascending_and_descending_rows(step):
    check_topk(softmax_topk_warps, np.arange(5000, dtype=np.float32)[None, ::step].copy(), 32)
