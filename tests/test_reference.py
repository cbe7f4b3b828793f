"""reference: the definitions, against loops over single numbers and finite differences."""

import math

import numpy as np
import pytest
from cases import check_by_differences, make_qkv, mask_options, random

from fa_numba import reference

SHAPES = {  # batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim
    "mha": (2, 3, 3, 2, 2, 4),
    "gqa_more_keys": (1, 2, 5, 4, 2, 3),
    "mqa_more_queries": (1, 5, 2, 3, 1, 2),
    "one": (1, 1, 1, 1, 1, 1),
}


MASKS = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window_size": (1, 0)},
    "left_of_the_queries": {"window_size": (-1, 1)},
    "causal_window": {"causal": True, "window_size": (1, 3)},
    "softcap": {"softcap": 0.8},
    "alibi": {"alibi": True},
    "all": {"causal": True, "window_size": (2, -1), "softcap": 1.5, "alibi": True},
}
each_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)


def brute_force(
    q, k, v, softmax_scale, causal=False, window_size=(-1, -1), softcap=0, alibi_slopes=None
):
    """Attention, one Python float at a time, straight from the formula."""
    batch, seqlen_q, num_heads, head_dim = q.shape
    seqlen_k, num_kv_heads = k.shape[1:3]
    out = np.zeros(q.shape)
    lse = np.full((batch, num_heads, seqlen_q), -np.inf)
    for b, m, h in np.ndindex(batch, seqlen_q, num_heads):
        kv_head = h // (num_heads // num_kv_heads)
        position = m + seqlen_k - seqlen_q
        weights = {}
        for n in range(seqlen_k):
            left, right = window_size
            if (
                (causal and n > position)
                or (left != -1 and n < position - left)
                or (right != -1 and n > position + right)
            ):
                continue
            s = softmax_scale * sum(
                float(q[b, m, h, d]) * float(k[b, n, kv_head, d]) for d in range(head_dim)
            )
            if softcap:
                s = softcap * math.tanh(s / softcap)
            if alibi_slopes is not None:
                s -= float(alibi_slopes[h]) * abs(position - n)
            weights[n] = math.exp(s)
        if not weights:
            continue
        total = sum(weights.values())
        lse[b, h, m] = math.log(total)
        for d in range(head_dim):
            out[b, m, h, d] = (
                sum(w * float(v[b, n, kv_head, d]) for n, w in weights.items()) / total
            )
    return out, lse


@each_mask
@pytest.mark.parametrize("softmax_scale", [None, 0.3])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_attention_is_the_formula(rng, shape, softmax_scale, mask):
    q, k, v = make_qkv(rng, *shape)
    mask = mask_options(mask, q.shape[2])
    out, lse = reference.attention(q, k, v, **mask, softmax_scale=softmax_scale)
    scale = 1 / math.sqrt(shape[-1]) if softmax_scale is None else softmax_scale
    out_brute, lse_brute = brute_force(q, k, v, scale, **mask)
    assert out.dtype == lse.dtype == np.float64
    np.testing.assert_allclose(out, out_brute, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(lse, lse_brute, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "seqlen_q, seqlen_k, causal, window_size, mask",
    [
        (2, 5, True, (-1, -1), ["11110", "11111"]),
        (5, 2, True, (-1, -1), ["00", "00", "00", "10", "11"]),
        (2, 5, False, (1, 0), ["00110", "00011"]),
        (2, 5, False, (-1, 0), ["11110", "11111"]),  # causal by another name
        (2, 5, True, (2, 4), ["01110", "00111"]),
        (3, 3, False, (0, 0), ["100", "010", "001"]),
        (5, 2, False, (0, 1), ["00", "00", "10", "11", "01"]),
        (3, 3, False, (0, -1), ["111", "011", "001"]),
        (2, 5, False, (9, 9), ["11111", "11111"]),
    ],
)
def test_who_sees_whom(seqlen_q, seqlen_k, causal, window_size, mask):
    q, k = np.zeros((1, seqlen_q, 1, seqlen_k)), np.zeros((1, seqlen_k, 1, seqlen_k))
    v = np.eye(seqlen_k)[None, :, None, :]  # out is then the row of P
    out, lse = reference.attention(q, k, v, causal=causal, window_size=window_size)
    seen = np.array([[int(c) for c in row] for row in mask])
    np.testing.assert_array_equal(out[0, :, 0] > 0, seen)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(lse[0, 0], np.log(seen.sum(axis=1)))


def test_rows_that_see_no_key_are_zero(rng):
    q, k, v = make_qkv(rng, 1, 5, 2, 1, 1, 4)
    dout = random(rng, *q.shape)
    out, lse = reference.attention(q, k, v, causal=True)
    dq, _, _ = reference.attention_bwd(dout, q, k, v, causal=True)
    for x in (out, dq):
        assert (x[:, :3] == 0).all() and (x[:, 3:] != 0).any()
    assert (lse[..., :3] == -np.inf).all() and np.isfinite(lse[..., 3:]).all()


@pytest.mark.parametrize("seqlen_q, seqlen_k, batch", [(3, 0, 1), (0, 3, 1), (3, 3, 0)])
def test_empty_inputs(rng, seqlen_q, seqlen_k, batch):
    q, k, v = make_qkv(rng, batch, seqlen_q, seqlen_k, 2, 1, 4)
    out, lse = reference.attention(q, k, v)
    assert out.shape == q.shape and (out == 0).all()
    assert lse.shape == (batch, 2, seqlen_q) and (lse == -np.inf).all()
    for dx, x in zip(reference.attention_bwd(q, q, k, v), (q, k, v), strict=True):
        assert dx.shape == x.shape and (dx == 0).all()


def test_large_scores_do_not_overflow(rng):
    q, k, v = make_qkv(rng, 1, 4, 6, 1, 1, 4)
    out, lse = reference.attention(200 * q, 200 * k, v, dtype=np.float32)
    assert np.isfinite(out).all() and np.isfinite(lse).all()


@each_mask
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_gradients_are_finite_differences(rng, shape, mask):
    q, k, v = (x.astype(np.float64) for x in make_qkv(rng, *shape))
    dout = rng.standard_normal(q.shape)
    options = mask_options(mask, q.shape[2]) | {"softmax_scale": 0.4}
    check_by_differences(dout, q, k, v, **options)


def test_dtype_is_the_precision_of_the_computation(rng):
    q, k, v = make_qkv(rng, 1, 4, 6, 2, 1, 4)
    options = mask_options(MASKS["all"], 2) | {"dtype": np.float32}
    arrays = (
        *reference.attention(q, k, v, **options),
        *reference.attention_bwd(q, q, k, v, **options),
        reference.softmax(q[0, :, 0], dtype=np.float32),
    )
    assert all(x.dtype == np.float32 for x in arrays)


def test_softmax_is_the_formula(rng):
    x = random(rng, 3, 7)
    brute = [[math.exp(a) / sum(math.exp(b) for b in row) for a in row] for row in x.tolist()]
    np.testing.assert_allclose(reference.softmax(x), brute, rtol=1e-13)
    np.testing.assert_allclose(reference.softmax(x + np.float32(1000)).sum(axis=1), 1)
    assert np.isnan(reference.softmax(np.full((1, 3), -np.inf))).all()
    assert reference.softmax(np.zeros((3, 0))).shape == (3, 0)


def test_softmax_topk_is_the_head_of_the_sorted_row():
    x = np.array([[1, 3, 3, 2], [0, -np.inf, np.nan, -np.inf]])
    values, columns = reference.softmax_topk(x, 3)
    np.testing.assert_array_equal(columns, [[1, 2, 3], [0, 1, 2]])
    np.testing.assert_array_equal(values[0], reference.softmax(x)[0, [1, 2, 3]])
    assert np.isnan(values[1]).all()


def test_feature_maps_are_their_formulas(rng):
    q, k, _ = make_qkv(rng, 1, 3, 3, 2, 2, 4)
    q, k = q.astype(np.float64), k.astype(np.float64)
    w = rng.standard_normal((2, 4, 5))
    elu1 = [x + 1 if x > 0 else math.exp(x) for x in q.flat]
    np.testing.assert_allclose(reference.feature_map(q, "elu1").ravel(), elu1)
    assert reference.feature_map(q, "relu").ravel().tolist() == [max(x, 0) for x in q.flat]
    brute = [[math.exp(q[0, n, h] @ w[h, :, f]) for f in range(5)] for n, h in np.ndindex(3, 2)]
    np.testing.assert_allclose(reference.feature_map(q, "hedgehog", w).reshape(6, 5), brute)
    phi_q, phi_k = (reference.feature_map(x, "taylor2") for x in (q, k))
    s = (q * k).sum(axis=3) / 2  # √head_dim
    np.testing.assert_allclose((phi_q * phi_k).sum(axis=3), 1 + s + s**2 / 2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("feature_map", ["elu1", "relu", "taylor2"])
def test_linear_attention_is_the_formula(rng, feature_map, causal):
    q, k, v = make_qkv(rng, 2, 5, 5, 4, 2, 3)
    out, state = reference.linear_attn(q, k, v, feature_map=feature_map, causal=causal)
    phi_q, phi_k = (reference.feature_map(x, feature_map) for x in (q, k))
    for b, m, h in np.ndindex(2, 5, 4):
        seen = range(m + 1 if causal else 5)
        weights = np.array([phi_q[b, m, h] @ phi_k[b, n, h // 2] for n in seen])
        total = weights @ v[b, : len(seen), h // 2]
        np.testing.assert_allclose(out[b, m, h], total / (weights.sum() or 1), atol=1e-14)
    np.testing.assert_allclose(state[..., 3], phi_k.sum(axis=1))
    np.testing.assert_allclose(state[1, 0, :, 2], phi_k[1, :, 0].T @ v[1, :, 0, 2])


def test_linear_attention_goes_on_from_its_state(rng):
    q, k, v = make_qkv(rng, 2, 7, 7, 4, 2, 3)
    whole, last = reference.linear_attn(q, k, v, causal=True)
    first, state = reference.linear_attn(q[:, :4], k[:, :4], v[:, :4], causal=True)
    then, state = reference.linear_attn(q[:, 4:], k[:, 4:], v[:, 4:], causal=True, state=state)
    np.testing.assert_allclose(np.concatenate([first, then], axis=1), whole, atol=1e-14)
    np.testing.assert_allclose(state, last)
    plain = reference.linear_attn(q, k, v, causal=True, dtype=np.float32)
    assert all(x.dtype == np.float32 for x in plain)


def test_a_mask_hides_keys_from_queries(rng):
    q, k, v = make_qkv(rng, 1, 2, 5, 1, 1, 4)
    mask = np.array([[1, 0, 1, 0, 0], [0, 0, 0, 0, 0]], bool)
    out, lse = reference.attention(q, k, v, mask=mask)
    seen, lse_seen = reference.attention(q[:, :1], k[:, :3:2], v[:, :3:2])
    np.testing.assert_allclose(out[:, :1], seen)
    np.testing.assert_allclose(lse[..., :1], lse_seen)
    assert (out[:, 1] == 0).all() and (lse[..., 1] == -np.inf).all()
    _, lse = reference.attention(q, k, v, mask=mask, causal=True)  # 1 1 1 1 0: nothing more
    np.testing.assert_allclose(lse[..., :1], lse_seen)
    assert reference.attention(q, k, v, mask=mask, dtype=np.float32)[0].dtype == np.float32


def test_a_mask_of_tiles_stands_for_a_mask_of_scores():
    block_mask = np.array([[1, 0], [0, 1]], bool)
    dense = reference.dense_mask(block_mask, 2, 3, 3, 4)
    np.testing.assert_array_equal(dense, [[1, 1, 1, 0], [1, 1, 1, 0], [0, 0, 0, 1]])


@pytest.mark.parametrize("causal", [False, True])
def test_cached_attention_looks_no_further_than_each_sequence(rng, causal):
    q, k, v = make_qkv(rng, 3, 2, 7, 4, 2, 4)
    out, lse = reference.cached_attention(q, k, v, [7, 0, 3], causal=causal, softmax_scale=0.3)
    for b, n in enumerate((7, 0, 3)):
        one = (x[b : b + 1, :n] for x in (k, v))
        out_b, lse_b = reference.attention(q[b : b + 1], *one, causal=causal, softmax_scale=0.3)
        np.testing.assert_array_equal(out[b], out_b[0])
        np.testing.assert_array_equal(lse[b], lse_b[0])
    assert reference.cached_attention(q, k, v, [1, 1, 1], dtype=np.float32)[0].dtype == np.float32


def test_both_forms_of_latent_attention_are_the_formula(rng):
    """DeepSeek's sizes, 192/128 against 576/512; beside them the formula, key by key."""
    b, n, h, d, r, c = 2, 5, 3, 128, 64, 512
    q_nope, q_rope, latent, k_rope, w_uk, w_uv = arrays = [
        rng.standard_normal(shape)
        for shape in ((b, n, h, d), (b, n, h, r), (b, n, c), (b, n, r), (h, c, d), (h, c, d))
    ]
    for causal in (False, True):
        plain = reference.latent_attention(*arrays, causal=causal)
        absorbed = reference.latent_attention(*arrays, causal=causal, absorbed=True)
        for x, y in zip(plain, absorbed, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12)
    i, m, head = 1, 3, 2
    keys, values = latent[i, : m + 1] @ w_uk[head], latent[i, : m + 1] @ w_uv[head]
    s = (keys @ q_nope[i, m, head] + k_rope[i, : m + 1] @ q_rope[i, m, head]) / math.sqrt(192)
    np.testing.assert_allclose(plain[0][i, m, head], reference.softmax(s[None])[0] @ values)
    np.testing.assert_allclose(plain[1][i, head, m], np.log(np.exp(s).sum()))


@pytest.mark.parametrize("cut", [0, 2, 6])
def test_merged_parts_of_attention_are_the_whole(rng, cut):
    q, k, v = make_qkv(rng, 2, 3, 6, 4, 2, 4)
    parts = [reference.attention(q, k[:, part], v[:, part]) for part in (np.s_[:cut], np.s_[cut:])]
    merged = reference.merge_states(*parts[0], *parts[1])
    for x, y in zip(merged, reference.attention(q, k, v), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-14)


def test_an_empty_part_is_not_looked_at():
    out, lse = np.ones((1, 1, 1, 2)), np.full((1, 1, 1), 3.0)
    empty = np.full_like(out, np.nan), np.full_like(lse, -np.inf)
    for merged in (
        reference.merge_states(out, lse, *empty),
        reference.merge_states(*empty, out, lse),
    ):
        np.testing.assert_array_equal(merged[0], out)
        np.testing.assert_array_equal(merged[1], lse)
    none, lse = reference.merge_states(*empty, *empty)
    assert (none == 0).all() and (lse == -np.inf).all()


def test_paged_kv_lookup_follows_the_block_table():
    cache = np.arange(4 * 2 * 1 * 1, dtype=np.float32).reshape(4, 2, 1, 1)  # page p holds 2p, 2p+1
    block_table = np.array([[3, 0], [1, -1], [-1, -1]], np.int32)
    k, v = reference.paged_kv_lookup(cache, -cache, block_table, np.array([3, 2, 0], np.int32))
    np.testing.assert_array_equal(k[..., 0, 0], [[6, 7, 0], [2, 3, 0], [0, 0, 0]])
    np.testing.assert_array_equal(v, -k)
    k, _ = reference.paged_kv_lookup(cache, cache, block_table, np.array([1, 1, 0]), max_len=2)
    np.testing.assert_array_equal(k[..., 0, 0], [[6, 0], [2, 0], [0, 0]])


def test_inputs_are_not_changed(rng):
    q, k, v = (x.astype(np.float64) for x in make_qkv(rng, 1, 5, 3, 2, 1, 4))
    before = [x.copy() for x in (q, k, v)]
    for x in (q, k, v):
        x.flags.writeable = False
    reference.attention(q, k, v, causal=True)
    reference.attention_bwd(q, q, k, v, causal=True)
    reference.softmax(q[0, :, 0])
    for x, y in zip((q, k, v), before, strict=True):
        np.testing.assert_array_equal(x, y)
