"""flash_attn_v2_4x4: more than one tile, and fewer columns; the rest: test_forward."""

import pytest
from cases import check_forward, make_qkv

from fa_numba import flash_attn_v2_4x4

pytestmark = pytest.mark.usefixtures("checked")


@pytest.mark.parametrize("head_dim", [1, 64, 65, 128])
def test_more_than_a_tile(rng, head_dim):
    check_forward(flash_attn_v2_4x4, *make_qkv(rng, 1, 70, 75, 2, 1, head_dim), causal=True)


@pytest.mark.parametrize("head_dim, columns", [(8, 1), (65, 1), (8, 2)])
def test_fewer_columns(rng, head_dim, columns):
    q, k, v = make_qkv(rng, 1, 70, 75, 2, 1, head_dim)
    check_forward(flash_attn_v2_4x4, q, k, v, causal=True, columns=columns)
