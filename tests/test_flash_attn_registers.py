"""flash_attn_registers on the CPU engine, every access checked."""

import itertools

import pytest
from cases import (
    check_forward,
    each_mask,
    each_option,
    each_shape,
    each_value,
    make_qkv,
    mask_options,
    strided,
)

from fa_numba.on_cuda_cores.flash_attn_registers import flash_attn_registers
from fa_numba.tiling import register_tiling

pytestmark = pytest.mark.usefixtures("checked")
SMALL = {"block_m": 32, "block_n": 16}  # one warp where head_dim is at most 64


@each_mask
@each_shape
def test_shapes(rng, shape, causal):
    tiles = SMALL if shape.head_dim <= 128 else {"block_m": 16, "block_n": 16}
    check_forward(flash_attn_registers, *make_qkv(rng, *shape.sizes), causal=causal, **tiles)


@each_mask
@each_value
def test_values(rng, values, causal):
    check_forward(flash_attn_registers, *values(rng), causal=causal, **SMALL)


@pytest.mark.parametrize(
    "head_dim, block_m, block_n",
    [(6, 32, 32), (6, 64, 16), (70, 16, 16), (70, 32, 16), (100, 16, 16), (100, 32, 32)],
)
def test_tile_size_does_not_change_the_answer(rng, head_dim, block_m, block_n):
    q, k, v = make_qkv(rng, 1, 50, 70, 2, 1, head_dim)
    check_forward(flash_attn_registers, q, k, v, causal=True, block_m=block_m, block_n=block_n)


@pytest.mark.parametrize("head_dim, block_m, block_n", [(8, 16, 32), (70, 32, 64)])
def test_four_rows_of_a_thread(rng, head_dim, block_m, block_n):
    q, k, v = make_qkv(rng, 1, 50, 70, 2, 1, head_dim)
    tiles = {"block_m": block_m, "block_n": block_n, "rows": 4}
    check_forward(flash_attn_registers, q, k, v, causal=True, **tiles)


@pytest.mark.parametrize("head_dim", [1, 64, 65, 129])
def test_chosen_tiles(rng, head_dim):
    check_forward(flash_attn_registers, *make_qkv(rng, 1, 17, 18, 1, 1, head_dim), causal=True)


@each_option
def test_masks(rng, mask):
    q, k, v = make_qkv(rng, 1, 37, 45, 2, 1, 8)
    check_forward(flash_attn_registers, q, k, v, **mask_options(mask, 2), **SMALL)


@pytest.mark.parametrize("softmax_scale", [0, -0.7, 2.5])
def test_softmax_scale(rng, softmax_scale):
    q, k, v = make_qkv(rng, 1, 5, 9, 1, 1, 8)
    check_forward(flash_attn_registers, q, k, v, softmax_scale=softmax_scale, **SMALL)


def test_strided_views_are_read_in_place_and_left_alone(rng):
    q, k, v = (strided(x) for x in make_qkv(rng, 2, 9, 11, 2, 1, 8))
    for x in (q, k, v):
        x.flags.writeable = False
    check_forward(flash_attn_registers, q, k, v, causal=True, **SMALL)


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


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_floats(rng, dtype):
    pytest.importorskip("ml_dtypes")
    q, k, v = (x.astype(dtype) for x in make_qkv(rng, 1, 20, 30, 1, 1, 8))
    check_forward(flash_attn_registers, q, k, v, **SMALL)
