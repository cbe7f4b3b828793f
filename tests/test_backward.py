"""Backward kernels of dense attention on the CPU engine, every access checked.

Their masks: test_masks. The same bits from run to run and for any strides: test_same_bits.
"""

import itertools

import numpy as np
import pytest
from cases import (
    TILES,
    assert_close,
    check_backward,
    each_mask,
    each_option,
    each_shape,
    each_two_head_dims,
    each_value,
    make_qkv,
    mask_options,
    plain_attention,
    random,
    thorough,
)
from few_cases import pairs

from fa_numba import flash_attn_bwd, flash_attn_v2, reference, simt
from fa_numba.on_cuda_cores.flash_attn_bwd_registers import flash_attn_bwd_registers
from fa_numba.tiling import register_tiling

pytestmark = pytest.mark.usefixtures("checked")
SMALL_TILES = {"block_m": 8, "block_n": 8}
each_kernel = pytest.mark.parametrize("kernel", [flash_attn_bwd, flash_attn_bwd_registers])
each_way = pytest.mark.parametrize("deterministic", [False, True], ids=["atomic", "deterministic"])
one_way = pytest.mark.parametrize("deterministic", [False, thorough(True)])


def check(rng, kernel, q, k, v, **options):
    dout = random(rng, *q.shape[:3], v.shape[3]).astype(q.dtype)
    forward = flash_attn_v2 if kernel is flash_attn_bwd else plain_attention
    check_backward(forward, kernel, dout, q, k, v, **options)


@each_mask
@each_shape
def test_shapes(rng, shape, causal):
    check(rng, flash_attn_bwd, *make_qkv(rng, *shape.sizes), causal=causal, **SMALL_TILES)


@each_way
@each_mask
@each_shape
@pytest.mark.few(lambda shape, causal, deterministic: [shape, *pairs(causal, deterministic)])
def test_shapes_of_register_tiles(rng, shape, causal, deterministic):
    options = {"tile_size": 16, "deterministic": deterministic, "causal": causal}
    with simt.options(device="A100"):  # the largest head_dim needs more shared memory than a T4's
        check(rng, flash_attn_bwd_registers, *make_qkv(rng, *shape.sizes), **options)


@each_mask
@each_value
def test_values(rng, values, causal):
    check(rng, flash_attn_bwd, *values(rng), causal=causal, **SMALL_TILES)


@each_mask
@pytest.mark.parametrize("block_m, block_n", TILES)
def test_tile_size_does_not_change_the_answer(rng, block_m, block_n, causal):
    q, k, v = make_qkv(rng, 1, 13, 18, 2, 1, 6)
    check(rng, flash_attn_bwd, q, k, v, causal=causal, block_m=block_m, block_n=block_n)


@one_way
@pytest.mark.parametrize("head_dim, tile_size", [(6, 32), (40, 32), (70, 16), (100, 16)])
def test_register_tiles_do_not_change_the_answer(rng, head_dim, tile_size, deterministic):
    options = {"causal": True, "tile_size": tile_size, "deterministic": deterministic}
    check(rng, flash_attn_bwd_registers, *make_qkv(rng, 1, 40, 50, 1, 1, head_dim), **options)


@pytest.mark.parametrize(
    "kernel, head_dim",
    [(flash_attn_bwd, 1), (flash_attn_bwd, 64), (flash_attn_bwd, 256)]
    + [(flash_attn_bwd_registers, d) for d in (1, 64, 129)],
)
def test_chosen_tiles(rng, kernel, head_dim):
    check(rng, kernel, *make_qkv(rng, 1, 17, 18, 1, 1, head_dim), causal=True)


@each_two_head_dims
def test_v_of_another_head_dim(rng, head_dims):
    check(rng, flash_attn_bwd, *make_qkv(rng, 1, 7, 9, 2, 1, *head_dims), causal=True)


@one_way
@each_option
def test_masks_of_register_tiles(rng, mask, deterministic):
    options = mask_options(mask, 2) | {"tile_size": 16, "deterministic": deterministic}
    check(rng, flash_attn_bwd_registers, *make_qkv(rng, 1, 37, 45, 2, 1, 8), **options)


@each_kernel
@pytest.mark.parametrize("softmax_scale", [0, -0.7, 2.5])
def test_softmax_scale(rng, kernel, softmax_scale):
    check(rng, kernel, *make_qkv(rng, 1, 5, 9, 1, 1, 8), softmax_scale=softmax_scale)


def test_rows_without_keys_and_keys_without_rows_have_no_gradient(rng):
    q, k, v = make_qkv(rng, 1, 12, 5, 1, 1, 4)
    out, lse = flash_attn_v2(q, k, v, causal=True)
    dout = random(rng, *q.shape)
    dq, dk, dv = flash_attn_bwd(dout, q, k, v, out, lse, causal=True, block_m=4, block_n=4)
    assert (dq[:, :7] == 0).all()
    want = reference.attention_bwd(dout[:, 7:], q[:, 7:], k, v, causal=True)
    plain = reference.attention_bwd(dout[:, 7:], q[:, 7:], k, v, causal=True, dtype=np.float32)
    for x, x_ref, x_f32 in zip((dk, dv), want[1:], plain[1:], strict=True):
        assert_close(x, x_ref, x_f32, factor=3)


def test_there_are_tiles_for_every_head_dim_and_gpu():
    for head_dim, kib in itertools.product(range(1, 257, 15), [64, 99, 163, 227]):
        size = register_tiling.backward_tile_size(head_dim, 1024 * kib)
        assert size or (head_dim > 192 and kib == 64)  # a T4: flash_attn_bwd runs there


@pytest.mark.parametrize(
    "head_dim, options, message",
    [
        (8, {"tile_size": 48}, "tile_size must be 16, 32 or 64, got 48"),
        (8, {"tile_size": 16.0}, "tile_size must be an integer, got 16.0"),
        (128, {"tile_size": 64}, "tile_size must leave .* 65536 bytes .* got 64, which needs"),
        (256, {}, "tile_size must leave .* got 16, which needs .*; flash_attn_bwd runs here"),
        (8, {"deterministic": 1}, "deterministic must be True or False, got 1"),
    ],
)
def test_tiles_that_do_not_fit_are_refused(rng, head_dim, options, message):
    q, k, v = make_qkv(rng, 1, 3, 3, 1, 1, head_dim)
    with pytest.raises((TypeError, ValueError), match=message):
        flash_attn_bwd_registers(q, q, k, v, q, np.zeros((1, 1, 3), np.float32), **options)


@each_way
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_floats_of_register_tiles(rng, dtype, deterministic):
    inputs = (x.astype(dtype) for x in make_qkv(rng, 1, 20, 30, 1, 1, 8))
    options = {"tile_size": 16, "deterministic": deterministic}
    check(rng, flash_attn_bwd_registers, *inputs, **options)
