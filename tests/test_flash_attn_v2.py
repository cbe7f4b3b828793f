"""flash_attn_v2 on the CPU engine, every access checked."""

import numpy as np
import pytest
from cases import (
    TILES,
    check_forward,
    each_mask,
    each_shape,
    each_value,
    each_wide_head_dims,
    make_qkv,
    strided,
)

from fa_numba import flash_attn_v2

pytestmark = pytest.mark.usefixtures("checked")


@each_mask
@each_shape
def test_shapes(rng, shape, causal):
    check_forward(flash_attn_v2, *make_qkv(rng, *shape.sizes), causal=causal, block_m=8, block_n=8)


@each_mask
@each_value
def test_values(rng, values, causal):
    check_forward(flash_attn_v2, *values(rng), causal=causal, block_m=8, block_n=8)


@each_mask
@pytest.mark.parametrize("block_m, block_n", TILES)
def test_tile_size_does_not_change_the_answer(rng, block_m, block_n, causal):
    q, k, v = make_qkv(rng, 1, 13, 18, 2, 1, 6)
    check_forward(flash_attn_v2, q, k, v, causal=causal, block_m=block_m, block_n=block_n)


@pytest.mark.parametrize("head_dim", [1, 64, 256])
def test_chosen_tiles(rng, head_dim):
    check_forward(flash_attn_v2, *make_qkv(rng, 1, 17, 18, 1, 1, head_dim), causal=True)


@each_wide_head_dims
def test_v_of_another_head_dim(rng, head_dims):
    check_forward(flash_attn_v2, *make_qkv(rng, 1, 7, 9, 2, 1, *head_dims), causal=True)


@pytest.mark.parametrize("softmax_scale", [0, -0.7, 2.5])
def test_softmax_scale(rng, softmax_scale):
    q, k, v = make_qkv(rng, 1, 5, 9, 1, 1, 8)
    check_forward(flash_attn_v2, q, k, v, softmax_scale=softmax_scale)


def test_strided_views_are_read_in_place_and_left_alone(rng):
    q, k, v = (strided(x) for x in make_qkv(rng, 2, 9, 11, 2, 1, 8))
    for x in (q, k, v):
        x.flags.writeable = False
    check_forward(flash_attn_v2, q, k, v, causal=True, block_m=8, block_n=8)


def test_nan_in_one_head_stays_there(rng):
    q, k, v = make_qkv(rng, 1, 9, 9, 2, 2, 8)
    v[0, 3, 1, 2] = np.nan
    out, _ = flash_attn_v2(q, k, v, block_m=8, block_n=8)
    assert np.isnan(out[0, :, 1, 2]).all()
    assert np.isnan(out).sum() == 9
