"""The row softmaxes on the CPU engine, every access checked; any strides: test_same_bits."""

import numpy as np
import pytest
from cases import check_softmax, each_row_shape, random

from fa_numba import naive_softmax, online_softmax, reference, safe_softmax, softmax_registers
from fa_numba.on_cuda_cores.packets import make_cut
from fa_numba.on_cuda_cores.softmax_registers import make_softmax_packed
from fa_numba.tiling.row_tiling import LONGEST_HELD_ROW, LONGEST_PACKED_ROW, registers_of_row

pytestmark = pytest.mark.usefixtures("checked")
SAFE = safe_softmax, online_softmax, softmax_registers
each_softmax = pytest.mark.parametrize("softmax", SAFE, ids=lambda f: f.__name__)


@pytest.mark.parametrize("softmax", [naive_softmax, *SAFE], ids=lambda f: f.__name__)
@each_row_shape
def test_shapes(rng, shape, softmax):
    check_softmax(softmax, random(rng, *shape))


def test_naive_softmax_overflows_on_purpose():
    y = naive_softmax(np.array([[0, 1], [88, 0], [89, 0]], np.float32))
    assert np.isfinite(y[:2]).all()
    assert np.isnan(y[2, 0])  # inf / inf


@each_softmax
@pytest.mark.parametrize("scale", [1e4, 1e38])
def test_large_numbers(rng, scale, softmax):
    check_softmax(softmax, np.clip(random(rng, 3, 200), -3, 3) * np.float32(scale))


@each_softmax
@pytest.mark.parametrize("step", [1, -1])
def test_ascending_and_descending_rows(step, softmax):
    check_softmax(softmax, np.arange(300, dtype=np.float32)[None, ::step].copy())


@each_softmax
def test_some_minus_infinity(rng, softmax):
    x = random(rng, 3, 300)
    x[0, :200] = x[1, 200:] = x[2, ::2] = -np.inf
    check_softmax(softmax, x)


@each_softmax
def test_nan_stays_in_its_row(rng, softmax):
    x = random(rng, 3, 200)
    x[1, 77] = np.nan
    y = softmax(x)
    assert np.isnan(y[1]).all() and np.isfinite(y[[0, 2]]).all()


@each_softmax
def test_a_row_of_minus_infinity_has_no_softmax(softmax):
    x = np.zeros((2, 5), np.float32)
    x[0] = -np.inf
    y = softmax(x)
    assert np.isnan(y[0]).all() and (y[1] == np.float32(0.2)).all()


@pytest.mark.parametrize(
    "shape",
    [
        (5, 1024),  # the longest row of a warp
        (11, 240),  # several in a thread block
        (1, 1025),
        (2, 1028),  # packets
        (1, 5004),
        (2, LONGEST_HELD_ROW),
        (2, LONGEST_HELD_ROW + 1),  # read twice
        (1, 2 * LONGEST_HELD_ROW + 4),
    ],
    ids=str,
)
def test_rows_of_more_threads(rng, shape):
    check_softmax(softmax_registers, random(rng, *shape))


@pytest.mark.parametrize("some", [0, 1, LONGEST_HELD_ROW + 2])
def test_one_finite_number_in_a_long_row(some):
    """Whole warps, and whole iterations, have no number larger than −inf."""
    x = np.full((2, LONGEST_HELD_ROW + 4), -np.inf, np.float32)
    x[0, some] = x[1, 7] = 3
    for part in (x, x[:, :LONGEST_HELD_ROW], x[1:, :1000]):
        if np.isfinite(part).any(axis=1).all():
            check_softmax(softmax_registers, part)


@pytest.mark.parametrize("width", [1, 4, 8])
def test_every_row_that_registers_hold_has_threads(width):
    for num_cols in [*range(200), *range(width, LONGEST_HELD_ROW + 1, 499 * width)]:
        threads, rows, packets = registers_of_row(num_cols, width)
        assert threads * packets * width >= num_cols
        assert threads * rows <= 1024 and packets * width <= 32
        assert rows == 1 or threads == 32


@pytest.mark.parametrize("num_cols", [3, LONGEST_HELD_ROW + 8, 50_257, LONGEST_PACKED_ROW])
def test_packed_rows_of_16_bits(rng, num_cols):
    """The kernel of a GPU, with float32 numbers in place of packed ones."""
    x = random(rng, 4, num_cols).astype(np.float16)
    x[1, : num_cols - 2], x[2, 1:], x[3] = -np.inf, -np.inf, -np.inf
    got = np.empty_like(x)
    kernel = make_softmax_packed(-(-num_cols // 8192), "", num_cols % 8 > 0, True)
    kernel[4, 1024](x, got)
    want = reference.softmax(x[:3].astype(np.float64))
    np.testing.assert_allclose(got[:3].astype(np.float64), want, rtol=2**-10, atol=2**-24)
    assert np.isnan(got[3]).all()


@pytest.mark.parametrize("width", [4, 8])
def test_a_cut_row_has_each_column_once(width):
    skew, body, edge = (f.py_func for f in make_cut.__wrapped__(width))
    for num_cols in range(1, 4 * width):
        for row in range(2 * width):
            assert skew(row, num_cols) == row * num_cols % width
            begin, end = body(row, num_cols)
            assert (row * num_cols + begin) % width == 0 or begin == num_cols
            assert (end - begin) % width == 0
            columns = [*range(begin, end)]
            columns += [edge(i, begin, end, num_cols) for i in range(2 * width)]
            assert sorted(n for n in columns if n < num_cols) == [*range(num_cols)]
