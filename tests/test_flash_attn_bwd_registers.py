"""flash_attn_bwd_registers on the CPU engine, every access checked."""

import itertools

import numpy as np
import pytest
from cases import (
    check_backward,
    each_mask,
    each_option,
    each_shape,
    make_qkv,
    mask_options,
    plain_attention,
    random,
    thorough,
)
from few_cases import pairs

from fa_numba import simt
from fa_numba.on_cuda_cores.flash_attn_bwd_registers import flash_attn_bwd_registers
from fa_numba.tiling import register_tiling

pytestmark = pytest.mark.usefixtures("checked")
each_way = pytest.mark.parametrize("deterministic", [False, True], ids=["atomic", "deterministic"])
one_way = pytest.mark.parametrize("deterministic", [False, thorough(True)])


def check(rng, shape, **options):
    q, k, v = make_qkv(rng, *shape)
    dout = random(rng, *q.shape)
    check_backward(plain_attention, flash_attn_bwd_registers, dout, q, k, v, **options)


@each_way
@each_mask
@each_shape
@pytest.mark.few(lambda shape, causal, deterministic: pairs(shape, causal, deterministic))
def test_shapes(rng, shape, causal, deterministic):
    options = {"tile_size": 16, "deterministic": deterministic}
    with simt.options(device="A100"):  # the largest head_dim needs more shared memory than a T4's
        check(rng, shape.sizes, causal=causal, **options)


@one_way
@pytest.mark.parametrize("head_dim, tile_size", [(6, 32), (40, 32), (70, 16), (100, 16)])
def test_tile_size_does_not_change_the_answer(rng, head_dim, tile_size, deterministic):
    shape = (1, 40, 50, 1, 1, head_dim)
    check(rng, shape, causal=True, tile_size=tile_size, deterministic=deterministic)


@pytest.mark.parametrize("head_dim", [1, 64, 129])
def test_chosen_tiles(rng, head_dim):
    check(rng, (1, 17, 18, 1, 1, head_dim), causal=True)


@one_way
@each_option
def test_masks(rng, mask, deterministic):
    options = mask_options(mask, 2) | {"tile_size": 16, "deterministic": deterministic}
    check(rng, (1, 37, 45, 2, 1, 8), **options)


@pytest.mark.parametrize("softmax_scale", [0, -0.7, 2.5])
def test_softmax_scale(rng, softmax_scale):
    check(rng, (1, 5, 9, 1, 1, 8), softmax_scale=softmax_scale, tile_size=16)


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
def test_16_bit_floats(rng, dtype, deterministic):
    q, k, v = (x.astype(dtype) for x in make_qkv(rng, 1, 20, 30, 1, 1, 8))
    dout = random(rng, *q.shape).astype(dtype)
    options = {"tile_size": 16, "deterministic": deterministic}
    check_backward(plain_attention, flash_attn_bwd_registers, dout, q, k, v, **options)
