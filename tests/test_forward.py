"""Kernels of dense attention on the CPU engine, every access checked.

The same bits from run to run and for any strides: test_same_bits. 16 bits: test_dtypes.
"""

import itertools

import numpy as np
import pytest
from cases import (
    SHAPES,
    TILES,
    check_forward,
    each_mask,
    each_option,
    each_value,
    each_wide_head_dims,
    make_qkv,
    mask_options,
)
from few_cases import pairs
from test_flash_attn_v1 import flash_attn_v1

from fa_numba import flash_attn_v2, flash_attn_v2_4x4, lazy_softmax_attn, naive_attn
from fa_numba.on_cuda_cores.flash_attn_registers import flash_attn_registers
from fa_numba.tiling import register_tiling

pytestmark = pytest.mark.usefixtures("checked")

TILED = naive_attn, flash_attn_v1, flash_attn_v2  # with tiles of any size
LADDER = flash_attn_v2_4x4, flash_attn_registers
KERNELS = *TILED, *LADDER, lazy_softmax_attn


def each(*kernels):
    return pytest.mark.parametrize("kernel", kernels, ids=lambda f: f.__name__)


def small_tiles(kernel, head_dim=8):
    if kernel is flash_attn_registers:  # one warp up to a head_dim of 64
        return {"block_m": 32 if head_dim <= 128 else 16, "block_n": 16}
    return {"block_m": 8, "block_n": 8} if kernel in TILED else {}


@each_mask
@pytest.mark.parametrize(
    "kernel, shape",
    [(f, s) for f in KERNELS for s in SHAPES if f is not flash_attn_v2_4x4 or s.head_dim <= 128],
    ids=lambda x: getattr(x, "danger", None) or x.__name__,
)
@pytest.mark.few(lambda kernel, shape, causal: pairs(kernel, shape, causal))
def test_shapes(rng, kernel, shape, causal):
    tiles = small_tiles(kernel, shape.head_dim)
    check_forward(kernel, *make_qkv(rng, *shape.sizes), causal=causal, **tiles)


@each_mask
@each_value
@each(*KERNELS)
@pytest.mark.few(lambda kernel, values, causal: pairs(kernel, values, causal))
def test_values(rng, kernel, values, causal):
    check_forward(kernel, *values(rng), causal=causal, **small_tiles(kernel))


@pytest.mark.parametrize("softmax_scale", [0, -0.7, 2.5])
@each(*KERNELS)
def test_softmax_scale(rng, kernel, softmax_scale):
    q, k, v = make_qkv(rng, 1, 5, 9, 1, 1, 8)
    check_forward(kernel, q, k, v, softmax_scale=softmax_scale, **small_tiles(kernel))


@each_mask
@pytest.mark.parametrize("block_m, block_n", TILES)
@each(*TILED)
@pytest.mark.few(lambda kernel, block_m, block_n, causal: pairs(kernel, (block_m, block_n), causal))
def test_tile_size_does_not_change_the_answer(rng, kernel, block_m, block_n, causal):
    q, k, v = make_qkv(rng, 1, 13, 18, 2, 1, 6)
    check_forward(kernel, q, k, v, causal=causal, block_m=block_m, block_n=block_n)


@pytest.mark.parametrize(
    "kernel, head_dim",
    [(f, d) for f in TILED for d in (1, 64, 256)]
    + [(flash_attn_registers, d) for d in (1, 64, 65, 129)],
)
def test_chosen_tiles(rng, kernel, head_dim):
    check_forward(kernel, *make_qkv(rng, 1, 17, 18, 1, 1, head_dim), causal=True)


@each_wide_head_dims
@each(naive_attn, flash_attn_v2)
def test_v_of_another_head_dim(rng, kernel, head_dims):
    check_forward(kernel, *make_qkv(rng, 1, 7, 9, 2, 1, *head_dims), causal=True)


@each_option
@each(*LADDER)
def test_masks(rng, kernel, mask):
    """The tiled kernels: test_masks.py."""
    q, k, v = make_qkv(rng, 1, 37, 75, 2, 1, 8)
    check_forward(kernel, q, k, v, **mask_options(mask, 2), **small_tiles(kernel))


@pytest.mark.parametrize("head_dim", [1, 64, 65, 128])
def test_more_than_a_tile_of_4x4(rng, head_dim):
    check_forward(flash_attn_v2_4x4, *make_qkv(rng, 1, 70, 75, 2, 1, head_dim), causal=True)


@pytest.mark.parametrize("head_dim, columns", [(8, 1), (65, 1), (8, 2)])
def test_fewer_columns_of_4x4(rng, head_dim, columns):
    q, k, v = make_qkv(rng, 1, 70, 75, 2, 1, head_dim)
    check_forward(flash_attn_v2_4x4, q, k, v, causal=True, columns=columns)


@pytest.mark.parametrize("head_dim", [65, 64])
def test_copies_in_a_batch_of_4x4_change_nothing(rng, head_dim):
    q, k, v = make_qkv(rng, 1, 33, 40, 2, 1, head_dim)
    plain, batched = (flash_attn_v2_4x4(q, k, v, causal=True, batched=b) for b in (False, True))
    for one, other in zip(plain, batched, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "head_dim, block_m, block_n",
    [(6, 32, 32), (6, 64, 16), (70, 16, 16), (70, 32, 16), (100, 16, 16), (100, 32, 32)],
)
def test_register_tiles_do_not_change_the_answer(rng, head_dim, block_m, block_n):
    q, k, v = make_qkv(rng, 1, 50, 70, 2, 1, head_dim)
    check_forward(flash_attn_registers, q, k, v, causal=True, block_m=block_m, block_n=block_n)


@pytest.mark.parametrize("head_dim, block_m, block_n", [(8, 16, 32), (70, 32, 64)])
def test_four_rows_of_a_thread(rng, head_dim, block_m, block_n):
    q, k, v = make_qkv(rng, 1, 50, 70, 2, 1, head_dim)
    tiles = {"block_m": block_m, "block_n": block_n, "rows": 4}
    check_forward(flash_attn_registers, q, k, v, causal=True, **tiles)


def test_there_are_tiles_for_every_head_dim_and_gpu():
    for head_dim, kib in itertools.product(range(1, 257, 15), [64, 99, 163, 227]):
        block_m, block_n = register_tiling.forward_block_sizes(head_dim, 1024 * kib)
        assert register_tiling.forward_fits(head_dim, block_m, block_n, 1024 * kib), (head_dim, kib)


@pytest.mark.parametrize(
    "tiles, message",
    [
        ({"block_m": 48}, "block_m must be 16, 32, 64 or 128, got 48"),
        ({"block_n": 1.0}, "block_n must be an integer, got 1.0"),
        ({"block_m": 128, "block_n": 128}, "block_m and block_n must fit .* got 128 and 128"),
    ],
)
def test_tiles_that_do_not_fit_are_refused(rng, tiles, message):
    with pytest.raises((TypeError, ValueError), match=message):
        flash_attn_registers(*make_qkv(rng, 1, 3, 3, 1, 1, 8), **tiles)
