"""flash_attn_varlen on the CPU engine, every access checked."""

import numpy as np
import pytest
from cases import (
    MASKS,
    TWO_HEAD_DIMS,
    WIDE_HEAD_DIMS,
    assert_defined,
    assert_equal,
    each_option,
    make_qkv,
    mask_options,
    split_options,
)

from fa_numba import flash_attn_v2, reference, simt
from fa_numba.kernels.flash_attn_varlen import flash_attn_varlen

pytestmark = pytest.mark.usefixtures("checked")

# Of the queries and of the keys. With tiles of 8: none, one, tile ± 1, whole tiles, both sides.
LENGTHS = {
    "one_sequence": ([13], [21]),
    "many": ([0, 1, 7, 8, 9, 17, 0], [3, 1, 7, 8, 9, 19, 0]),
    "ends_on_a_tile": ([8, 16, 8], [16, 8, 8]),
    "empty_first_and_last": ([0, 0, 9, 0], [0, 5, 9, 0]),
    "no_keys": ([5, 9, 3], [7, 0, 4]),  # rows of 0 and -inf in the middle
    "more_queries_than_keys": ([20, 9], [6, 1]),  # causal: rows that see no key
    "one_query_each": ([1] * 10, [9, 1, 33, 0, 8, 7, 2, 16, 17, 5]),  # a step of decoding
    "no_tokens": ([0, 0], [0, 0]),
    "no_queries": ([0, 0], [4, 9]),
    "no_batch": ([], []),
}
each_lengths = pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
EIGHTS = {"block_m": 8, "block_n": 8}


def starts(lengths):
    """cu_seqlens of these lengths."""
    return np.cumsum([0, *lengths], dtype=np.int32)


def make_packed(rng, lengths, num_heads=2, num_kv_heads=1, head_dim=6, head_dim_v=None):
    """Normally distributed q, k, v, and the starts of their sequences."""
    cu = [starts(side) for side in lengths]
    sizes = num_heads, num_kv_heads, head_dim, head_dim_v
    q, k, v = make_qkv(rng, 1, *(c[-1] for c in cu), *sizes)
    return q[0], k[0], v[0], *cu


def check(q, k, v, *cu, **options):
    """Compare flash_attn_varlen with the definition; its arguments must not change."""
    packed = (q, k, v, *cu)
    before = [x.copy() for x in packed]
    mask, tiles = split_options(options)
    out, lse = flash_attn_varlen(*packed, **mask, **tiles)
    assert_defined((out, lse), reference.varlen_attention, *packed, **mask)
    assert_equal(packed, before)
    return out, lse


def one_by_one(q, k, v, cu_q, cu_k, **options):
    """(rows, out, lse) of each sequence, from flash_attn_v2."""
    for b in range(len(cu_q) - 1):
        rows, keys = (slice(cu[b], cu[b + 1]) for cu in (cu_q, cu_k))
        out, lse = flash_attn_v2(q[None, rows], k[None, keys], v[None, keys], **options)
        yield rows, out[0], lse[0]


@each_option
def test_masks(rng, mask):
    packed = make_packed(rng, ([0, 1, 9, 17, 12], [4, 1, 21, 8, 0]), num_heads=4, num_kv_heads=2)
    check(*packed, **mask_options(mask, 4), **EIGHTS)


@pytest.mark.parametrize(
    "mask", [{}, {"causal": True}, MASKS["all"]], ids=["full", "causal", "all"]
)
@each_lengths
def test_each_sequence_is_flash_attn_v2_bit_for_bit(rng, lengths, mask):
    packed = make_packed(rng, lengths, num_heads=4, num_kv_heads=2)
    options = mask_options(mask, 4) | EIGHTS
    out, lse = flash_attn_varlen(*packed, **options)
    for rows, out_one, lse_one in one_by_one(*packed, **options):
        np.testing.assert_array_equal(out[rows], out_one, strict=True)
        np.testing.assert_array_equal(lse[:, rows], lse_one, strict=True)


@pytest.mark.parametrize("block_m", [1, 2, 3, 4, 7])
def test_every_tile_is_found_wherever_it_begins(rng, block_m):
    """Sequences of 0 to 5 queries, in another order each time: ends before, on and past a tile."""
    for _ in range(10):
        lengths = rng.integers(0, 6, size=rng.integers(1, 9))
        q, k, v, *cu = make_packed(rng, (lengths, np.ones_like(lengths)), 1, 1, 1)
        out, lse = flash_attn_varlen(q, k, v, *cu, block_m=block_m, block_n=2)
        np.testing.assert_array_equal(out, np.repeat(v, lengths, axis=0))  # of the only key
        assert np.isfinite(lse).all()


@pytest.mark.parametrize(
    "head_dims", [(1,), (59,), (111,), (256,), *TWO_HEAD_DIMS, *WIDE_HEAD_DIMS], ids=str
)
def test_chosen_tiles(rng, head_dims):
    check(*make_packed(rng, ([17, 1, 5], [18, 0, 9]), 1, 1, *head_dims), causal=True)


@pytest.mark.parametrize("softmax_scale", [0, -0.7, 2.5])
def test_softmax_scale(rng, softmax_scale):
    check(*make_packed(rng, ([5, 4], [9, 4])), softmax_scale=softmax_scale)


@pytest.mark.parametrize("mask", [{}, MASKS["all"]], ids=["full", "all"])
@pytest.mark.parametrize("bad", [1, 2, 3])
def test_nan_in_one_sequence_never_reaches_another(rng, bad, mask):
    q, k, v, *cu = make_packed(rng, ([3, 9, 8, 1, 4], [5, 9, 1, 2, 4]))
    options = mask_options(mask, 2) | EIGHTS
    want = flash_attn_varlen(q, k, v, *cu, **options)
    rows, keys = (slice(c[bad], c[bad + 1]) for c in cu)
    q[rows] = k[keys] = v[keys] = np.nan
    out, lse = flash_attn_varlen(q, k, v, *cu, **options)
    assert np.isnan(out[rows]).any()
    for x, y in ((out, want[0]), (lse.T, want[1].T)):
        for others in (slice(0, rows.start), slice(rows.stop, None)):
            np.testing.assert_array_equal(x[others], y[others])


def test_no_padding_is_read_and_at_most_one_tile_per_sequence_is_unused(rng):
    lengths = [1, 40, 3, 0, 9]
    packed = make_packed(rng, (lengths, lengths), 1, 1, 4)
    with simt.tracing() as traces:
        flash_attn_varlen(*packed, **EIGHTS)
    (trace,) = traces
    tiles = [-(-n // 8) for n in lengths]
    assert sum(tiles) <= trace.grid[0] == 53 // 8 + 5 <= sum(tiles) + len(lengths)
    assert trace.arrays["q"].loads == sum(lengths) * 4
    assert trace.arrays["k"].loads == sum(m * n for m, n in zip(tiles, lengths, strict=True)) * 4


def ints(*numbers, dtype=np.int32):
    return np.array(numbers, dtype)


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


GOOD = {
    "q": ones(5, 4, 8),
    "k": ones(6, 2, 8),
    "v": ones(6, 2, 8),
    "cu_seqlens_q": ints(0, 2, 5),
    "cu_seqlens_k": ints(0, 6, 6),
}


def test_good_inputs_are_taken():
    out, lse = flash_attn_varlen(**GOOD)
    assert (out[:2] == 1).all() and (out[2:] == 0).all()
    assert lse.shape == (4, 5) and (lse[:, 2:] == -np.inf).all()


def test_reference_is_attention_where_the_batch_is_a_rectangle(rng):
    q, k, v = make_qkv(rng, 3, 4, 6, 2, 1, 5)
    want = reference.attention(q, k, v, causal=True)
    packed = (x.reshape(-1, *x.shape[2:]) for x in (q, k, v))
    out, lse = reference.varlen_attention(*packed, starts([4] * 3), starts([6] * 3), causal=True)
    np.testing.assert_array_equal(out.reshape(q.shape), want[0])
    np.testing.assert_array_equal(lse.reshape(2, 3, 4).swapaxes(0, 1), want[1])
