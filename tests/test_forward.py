"""Kernels of dense attention on the CPU engine, every access checked.

The same bits from run to run and for any strides: test_same_bits. 16 bits: test_dtypes.
"""

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
from test_flash_attn_v1 import flash_attn_v1

from fa_numba import flash_attn_v2, flash_attn_v2_4x4, lazy_softmax_attn, naive_attn
from fa_numba.on_cuda_cores.flash_attn_registers import flash_attn_registers

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
def test_shapes(rng, kernel, shape, causal):
    tiles = small_tiles(kernel, shape.head_dim)
    check_forward(kernel, *make_qkv(rng, *shape.sizes), causal=causal, **tiles)


@each_mask
@each_value
@each(*KERNELS)
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
