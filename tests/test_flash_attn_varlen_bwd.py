"""flash_attn_varlen_bwd on the CPU engine, every access checked."""

import numpy as np
import pytest
from cases import (
    MASKS,
    TWO_HEAD_DIMS,
    assert_defined,
    assert_equal,
    each_option,
    make_qkv,
    mask_options,
    random,
    split_options,
    thorough,
)
from test_flash_attn_varlen import EIGHTS, each_lengths, make_packed, starts

from fa_numba import flash_attn_bwd, flash_attn_varlen_bwd, reference
from fa_numba.kernels.flash_attn_varlen import flash_attn_varlen

pytestmark = pytest.mark.usefixtures("checked")


def gradients(dout, q, k, v, *cu, **options):
    """dq, dk, dv, from the results of the forward pass."""
    mask, _ = split_options(options)
    out, lse = flash_attn_varlen(q, k, v, *cu, **mask)
    return flash_attn_varlen_bwd(dout, q, k, v, out, lse, *cu, **options)


def check(rng, *packed, **options):
    """Compare flash_attn_varlen_bwd with the definition; its arguments must not change."""
    dout = random(rng, *packed[0].shape[:2], packed[2].shape[2])
    before = [x.copy() for x in (dout, *packed)]
    got = gradients(dout, *packed, **options)
    mask, _ = split_options(options)
    assert_defined(got, reference.varlen_attention_bwd, dout, *packed, **mask)
    assert_equal((dout, *packed), before)


@each_option
def test_masks(rng, mask):
    packed = make_packed(rng, ([0, 1, 9, 17, 12], [4, 1, 21, 8, 0]), num_heads=4, num_kv_heads=2)
    check(rng, *packed, **mask_options(mask, 4), **EIGHTS)


@pytest.mark.parametrize(
    "mask", [{}, {"causal": True}, MASKS["all"]], ids=["full", "causal", "all"]
)
@each_lengths
@pytest.mark.few(lambda lengths, mask: [lengths, mask])
def test_each_sequence_is_flash_attn_bwd_bit_for_bit(rng, lengths, mask):
    q, k, v, *cu = make_packed(rng, lengths, num_heads=4, num_kv_heads=2)
    options = mask_options(mask, 4)
    out, lse = flash_attn_varlen(q, k, v, *cu, **options)
    dout, options = random(rng, *q.shape), options | EIGHTS
    got = flash_attn_varlen_bwd(dout, q, k, v, out, lse, *cu, **options)
    for b in range(len(lengths[0])):
        rows, keys = (slice(c[b], c[b + 1]) for c in cu)
        one = (dout[None, rows], q[None, rows], k[None, keys], v[None, keys], out[None, rows])
        want = flash_attn_bwd(*one, lse[None, :, rows], **options)
        for x, part, x_one in zip(got, (rows, keys, keys), want, strict=True):
            np.testing.assert_array_equal(x[part], x_one[0], strict=True)


@pytest.mark.parametrize(
    "head_dims", [(1,), (256,), *TWO_HEAD_DIMS, thorough((59,)), thorough((111,))], ids=str
)
def test_chosen_tiles(rng, head_dims):
    check(rng, *make_packed(rng, ([17, 1, 5], [18, 0, 9]), 1, 1, *head_dims), causal=True)


@pytest.mark.parametrize("softmax_scale", [0, -0.7, 2.5])
def test_softmax_scale(rng, softmax_scale):
    check(rng, *make_packed(rng, ([5, 4], [9, 4])), softmax_scale=softmax_scale)


@pytest.mark.parametrize("mask", [{}, MASKS["all"]], ids=["full", "all"])
@pytest.mark.parametrize("bad", [1, 2, 3])
def test_nan_in_one_sequence_never_reaches_another(rng, bad, mask):
    q, k, v, *cu = make_packed(rng, ([3, 9, 8, 1, 4], [5, 9, 1, 2, 4]))
    dout, options = random(rng, *q.shape), mask_options(mask, 2) | EIGHTS
    want = gradients(dout, q, k, v, *cu, **options)
    rows, keys = (slice(c[bad], c[bad + 1]) for c in cu)
    dout[rows] = q[rows] = k[keys] = v[keys] = np.nan
    got = gradients(dout, q, k, v, *cu, **options)
    for x, y, mine in zip(got, want, (rows, keys, keys), strict=True):
        assert np.isnan(x[mine]).any()
        for others in (slice(0, mine.start), slice(mine.stop, None)):
            np.testing.assert_array_equal(x[others], y[others])


def test_reference_is_attention_bwd_where_the_batch_is_a_rectangle(rng):
    q, k, v = make_qkv(rng, 3, 4, 6, 2, 1, 5)
    dout = random(rng, *q.shape)
    packed = (x.reshape(-1, *x.shape[2:]) for x in (dout, q, k, v))
    got = reference.varlen_attention_bwd(*packed, starts([4] * 3), starts([6] * 3), causal=True)
    want = reference.attention_bwd(dout, q, k, v, causal=True)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_array_equal(x.reshape(y.shape), y)
