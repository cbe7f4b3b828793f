"""flash_attn_bwd on the CPU engine, every access checked."""

import numpy as np
import pytest
from cases import (
    TILES,
    assert_close,
    check_backward,
    each_mask,
    each_shape,
    each_two_head_dims,
    each_value,
    make_qkv,
    random,
)

from fa_numba import flash_attn_bwd, flash_attn_v2, reference

pytestmark = pytest.mark.usefixtures("checked")


def check(rng, q, k, v, **options):
    dout = random(rng, *q.shape[:3], v.shape[3])
    check_backward(flash_attn_v2, flash_attn_bwd, dout, q, k, v, **options)


@each_mask
@each_shape
def test_shapes(rng, shape, causal):
    check(rng, *make_qkv(rng, *shape.sizes), causal=causal, block_m=8, block_n=8)


@each_mask
@each_value
def test_values(rng, values, causal):
    check(rng, *values(rng), causal=causal, block_m=8, block_n=8)


@each_mask
@pytest.mark.parametrize("block_m, block_n", TILES)
def test_tile_size_does_not_change_the_answer(rng, block_m, block_n, causal):
    q, k, v = make_qkv(rng, 1, 13, 18, 2, 1, 6)
    check(rng, q, k, v, causal=causal, block_m=block_m, block_n=block_n)


@pytest.mark.parametrize("head_dim", [1, 64, 256])
def test_chosen_tiles(rng, head_dim):
    check(rng, *make_qkv(rng, 1, 17, 18, 1, 1, head_dim), causal=True)


@each_two_head_dims
def test_v_of_another_head_dim(rng, head_dims):
    check(rng, *make_qkv(rng, 1, 7, 9, 2, 1, *head_dims), causal=True)


@pytest.mark.parametrize("softmax_scale", [0, -0.7, 2.5])
def test_softmax_scale(rng, softmax_scale):
    check(rng, *make_qkv(rng, 1, 5, 9, 1, 1, 8), softmax_scale=softmax_scale)


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
