"""flash_attn_v1: masks of tiles, every access checked; the rest: test_forward."""

import numpy as np
import pytest
from cases import assert_close, assert_equal, each_mask, each_shape, make_qkv
from few_cases import pairs

import fa_numba
from fa_numba import reference, simt

pytestmark = pytest.mark.usefixtures("checked")


def flash_attn_v1(*args, **options):
    """out and lse, which the other kernels return."""
    out, l, m = fa_numba.flash_attn_v1(*args, **options)
    assert (m[l == 0] == -np.inf).all()
    with np.errstate(divide="ignore"):
        return out, m + np.log(l)


def check_block_sparse(q, k, v, block_mask, *, block_m, block_n, **options):
    """Hold flash_attn_v1 to the definition with the mask of tiles written out."""
    tiles = {"block_mask": block_mask, "block_m": block_m, "block_n": block_n}
    out, lse = flash_attn_v1(q, k, v, **options, **tiles)
    mask = reference.dense_mask(block_mask, block_m, block_n, q.shape[1], k.shape[1])
    options |= {"mask": mask}
    out_ref, lse_ref = reference.attention(q, k, v, **options)
    out_f32, lse_f32 = reference.attention(q, k, v, **options, dtype=np.float32)
    assert_close(out, out_ref, out_f32, name="out")
    assert_close(lse, lse_ref, lse_f32, name="lse")
    return out, lse


@each_mask
@each_shape
def test_block_mask(rng, shape, causal):
    q, k, v = make_qkv(rng, *shape.sizes)
    block_mask = rng.random((-(-shape.seqlen_q // 8), -(-shape.seqlen_k // 8))) < 0.5
    check_block_sparse(q, k, v, block_mask, causal=causal, block_m=8, block_n=8)


@each_mask
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("block_m, block_n", [(8, 8), (4, 8), (8, 4), (1, 5)])
@pytest.mark.few(lambda block_m, block_n, share, causal: pairs((block_m, block_n), share, causal))
def test_block_masks_of_any_share(rng, block_m, block_n, share, causal):
    q, k, v = make_qkv(rng, 1, 29, 34, 2, 1, 6)
    block_mask = rng.random((-(-29 // block_m), -(-34 // block_n))) < share
    check_block_sparse(q, k, v, block_mask, causal=causal, block_m=block_m, block_n=block_n)


@each_mask
def test_a_block_mask_of_ones_is_dense_attention_bit_for_bit(rng, causal):
    q, k, v = make_qkv(rng, 2, 21, 27, 2, 1, 8)
    options = {"causal": causal, "block_m": 8, "block_n": 4}
    dense = fa_numba.flash_attn_v1(q, k, v, **options)
    sparse = fa_numba.flash_attn_v1(q, k, v, **options, block_mask=np.ones((3, 7), bool))
    assert_equal(dense, sparse)


def test_a_block_mask_of_zeros_sees_no_key(rng):
    q, k, v = make_qkv(rng, 2, 9, 11, 2, 1, 8)
    k[...] = v[...] = np.nan  # nothing of it is read
    out, l, m = fa_numba.flash_attn_v1(
        q, k, v, block_mask=np.zeros((2, 2), bool), block_m=8, block_n=8
    )
    assert (out == 0).all() and (l == 0).all() and (m == -np.inf).all()


def test_rows_whose_tiles_are_all_masked_are_zero(rng):
    q, k, v = make_qkv(rng, 1, 24, 24, 1, 1, 8)
    block_mask = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 1]], bool)
    out, lse = check_block_sparse(q, k, v, block_mask, block_m=8, block_n=8)
    assert (out[:, 8:16] == 0).all() and (lse[..., 8:16] == -np.inf).all()
    assert np.isfinite(np.delete(lse, np.s_[8:16], axis=2)).all()


def test_masked_tiles_are_neither_loaded_nor_computed(rng):
    q, k, v = make_qkv(rng, 1, 16, 24, 1, 1, 8)
    k[:, 8:16] = v[:, 8:16] = np.nan  # no query sees the tile in the middle
    q[:, :8] = np.nan  # and the first eight queries see none
    block_mask = np.array([[0, 0, 0], [1, 0, 1]], bool)
    out, lse = flash_attn_v1(q, k, v, block_mask=block_mask, block_m=8, block_n=8)
    assert (out[:, :8] == 0).all() and np.isfinite(out).all()


def test_a_block_mask_may_be_a_strided_view_and_is_left_alone(rng):
    q, k, v = make_qkv(rng, 1, 16, 24, 1, 1, 8)
    block_mask = (rng.random((4, 9)) < 0.5)[::2, 1::3]
    block_mask.flags.writeable = False
    check_block_sparse(q, k, v, block_mask, block_m=8, block_n=8)


def test_the_cost_falls_with_the_share_of_live_tiles(rng):
    q, k, v = make_qkv(rng, 1, 64, 64, 1, 1, 8)
    order = rng.permutation(64)  # each mask keeps the live tiles of the one before it
    moved, exps = [], []
    for live in (64, 32, 16, 8, 0):
        block_mask = (order < live).reshape(8, 8)
        with simt.tracing() as traces:
            fa_numba.flash_attn_v1(q, k, v, block_mask=block_mask, block_m=8, block_n=8)
        (trace,) = traces
        moved.append(trace.arrays["q"].loads + trace.arrays["out"].stores)
        exps.append(trace.shared["p_tile"].stores)
    assert moved == [2 * live * 8 * 8 for live in (64, 32, 16, 8, 0)]  # 8 rows of 8, in and out
    assert exps == [live * 8 * 8 for live in (64, 32, 16, 8, 0)]  # a tile of P each
