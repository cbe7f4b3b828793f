"""flash_attn_v2_4x4: more than one tile, fewer columns, batches; the rest: test_forward."""

import numpy as np
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


@pytest.mark.parametrize("head_dim", [65, 64])
def test_copies_in_a_batch_change_nothing(rng, head_dim):
    q, k, v = make_qkv(rng, 1, 33, 40, 2, 1, head_dim)
    plain, batched = (flash_attn_v2_4x4(q, k, v, causal=True, batched=b) for b in (False, True))
    for one, other in zip(plain, batched, strict=True):
        np.testing.assert_array_equal(one, other)
