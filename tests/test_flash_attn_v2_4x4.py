"""flash_attn_v2_4x4 on the CPU engine, every access checked."""

import pytest
from cases import (
    SHAPES,
    check_forward,
    each_mask,
    each_option,
    each_value,
    make_qkv,
    mask_options,
    strided,
)

from fa_numba import flash_attn_v2_4x4

pytestmark = pytest.mark.usefixtures("checked")
SHAPES = [shape for shape in SHAPES if shape.head_dim <= 128]


@each_mask
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.danger)
def test_shapes(rng, shape, causal):
    check_forward(flash_attn_v2_4x4, *make_qkv(rng, *shape.sizes), causal=causal)


@each_mask
@each_value
def test_values(rng, values, causal):
    check_forward(flash_attn_v2_4x4, *values(rng), causal=causal)


@pytest.mark.parametrize("head_dim", [1, 64, 65, 128])
def test_more_than_a_tile(rng, head_dim):
    check_forward(flash_attn_v2_4x4, *make_qkv(rng, 1, 70, 75, 2, 1, head_dim), causal=True)


@pytest.mark.parametrize("head_dim, columns", [(8, 1), (65, 1), (8, 2)])
def test_fewer_columns(rng, head_dim, columns):
    q, k, v = make_qkv(rng, 1, 70, 75, 2, 1, head_dim)
    check_forward(flash_attn_v2_4x4, q, k, v, causal=True, columns=columns)


@each_option
def test_masks(rng, mask):
    q, k, v = make_qkv(rng, 1, 37, 75, 2, 1, 8)
    check_forward(flash_attn_v2_4x4, q, k, v, **mask_options(mask, 2))


@pytest.mark.parametrize("softmax_scale", [0, -0.7, 2.5])
def test_softmax_scale(rng, softmax_scale):
    q, k, v = make_qkv(rng, 1, 5, 9, 1, 1, 8)
    check_forward(flash_attn_v2_4x4, q, k, v, softmax_scale=softmax_scale)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_floats(rng, dtype):
    pytest.importorskip("ml_dtypes")
    q, k, v = (x.astype(dtype) for x in make_qkv(rng, 1, 20, 30, 1, 1, 8))
    check_forward(flash_attn_v2_4x4, q, k, v)


def test_strided_views_are_read_in_place_and_left_alone(rng):
    q, k, v = (strided(x) for x in make_qkv(rng, 2, 9, 11, 2, 1, 8))
    for x in (q, k, v):
        x.flags.writeable = False
    check_forward(flash_attn_v2_4x4, q, k, v, causal=True)
