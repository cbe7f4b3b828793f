"""mla_decode on the CPU engine, every access checked; slots that no token owns hold NaN."""

import numpy as np
import pytest
from cases import (
    assert_close,
    assert_equal,
    check_latent_decode,
    each_mask,
    make_latent_case,
    random,
    thorough,
)

import fa_numba
from fa_numba import reference, simt

pytestmark = pytest.mark.usefixtures("checked")

LENGTHS = [0, 1, 15, 16, 17, 53]  # with tiles of 16: none, one key, tile ± 1, several tiles
SCALE = 0.3


@each_mask
@pytest.mark.parametrize(  # None: contiguous
    "page_size, num_splits", [(None, 0), (None, 3), thorough(1, 2), (7, 3), (64, 1)]
)
def test_caches(rng, page_size, num_splits, causal):
    case = make_latent_case(rng, LENGTHS, 3, 7, 40, 9, page_size)  # 21 rows: two tiles
    options = {"latent_dim": 40, "causal": causal, "num_splits": num_splits}
    check_latent_decode(*case, softmax_scale=SCALE, **options)


@pytest.mark.parametrize(
    "latent_dim, rope_dim, num_heads", [(1, 0, 1), (31, 2, 16), (32, 32, 17), (512, 64, 16)]
)
def test_sizes(rng, latent_dim, rope_dim, num_heads):
    case = make_latent_case(rng, [21, 5], 1, num_heads, latent_dim, rope_dim)
    check_latent_decode(*case, softmax_scale=SCALE, latent_dim=latent_dim, num_splits=2)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("page_size", [thorough(None), 64])
def test_16_bits(rng, dtype, page_size):
    q, cache, *tables = make_latent_case(rng, [70, 9], 2, 3, 40, 9, page_size)
    arrays = q.astype(dtype), cache.astype(dtype), *tables
    out, _ = check_latent_decode(*arrays, softmax_scale=SCALE, latent_dim=40, causal=True)
    assert out.dtype == dtype


def test_absorbed_decoding_is_latent_attention(rng):
    """The kernel between two products by W_uk and W_uv, against keys and values of every head."""
    n, h, d, r, c = 37, 4, 24, 8, 40
    q_nope, q_rope = random(rng, 1, 1, h, d), random(rng, 1, 1, h, r)
    latent, k_rope = random(rng, 1, n, c), random(rng, 1, n, r)
    w_uk, w_uv = random(rng, 2, h, c, d) / np.float32(c) ** 0.5
    q = np.concatenate([np.einsum("bmhd,hcd->bmhc", q_nope, w_uk), q_rope], axis=3)
    cache = np.concatenate([latent, k_rope], axis=2)
    scale = (d + r) ** -0.5
    out, lse = fa_numba.mla_decode(
        q, cache, np.array([n], np.int32), softmax_scale=scale, latent_dim=c
    )
    arrays = q_nope, q_rope, latent, k_rope, w_uk, w_uv
    want = reference.latent_attention(*arrays)
    plain = reference.latent_attention(*arrays, absorbed=True, dtype=np.float32)
    assert_close(np.einsum("bmhc,hcd->bmhd", out, w_uv), want[0], plain[0], name="out")
    assert_close(lse, want[1], plain[1], name="lse")


@pytest.mark.parametrize("seq_lens, seqlen_q", [([], 1), ([0, 0], 2), ([5], 0), ([2, 4], 9)])
def test_nothing_to_see(rng, seq_lens, seqlen_q):
    case = make_latent_case(rng, seq_lens, seqlen_q, 2, 8, 3)
    options = {"softmax_scale": SCALE, "latent_dim": 8, "causal": True}
    out, lse = check_latent_decode(*case, **options)
    assert (out[np.isneginf(lse).mT] == 0).all()


@pytest.mark.parametrize("softmax_scale", [0, -0.7, 40])
def test_softmax_scale(rng, softmax_scale):
    case = make_latent_case(rng, [40, 9], 1, 3, 16, 4)
    check_latent_decode(*case, softmax_scale=softmax_scale, latent_dim=16, num_splits=2)


def test_an_infinite_score_is_no_nan():
    q, cache = np.full((1, 1, 1, 4), -1e30, np.float32), np.full((1, 3, 4), 1e30, np.float32)
    cache[0, 2] = 1
    length = np.array([3], np.int32)
    out, _ = fa_numba.mla_decode(q, cache, length, softmax_scale=1, latent_dim=4)
    np.testing.assert_array_equal(out[0, 0, 0], 1)


def test_pages_change_nothing_not_a_bit(rng):
    q, cache, lengths, table = make_latent_case(rng, LENGTHS, 2, 3, 16, 4, 5)
    options = {"softmax_scale": SCALE, "latent_dim": 16, "num_splits": 2}
    paged = fa_numba.mla_decode(q, cache, lengths, block_table=table, **options)
    rows, _ = reference.paged_kv_lookup(*[cache[:, :, None]] * 2, table, lengths)
    assert_equal(paged, fa_numba.mla_decode(q, rows[:, :, 0], lengths, **options))


@pytest.mark.parametrize("num_heads", [1, 16, thorough(32)])
def test_sixteen_heads_share_one_read_of_the_cache(rng, num_heads):
    """A number of the cache is loaded once for all columns of keys and values, and 16 heads."""
    q, cache, lengths, _ = make_latent_case(rng, [64], 1, num_heads, 48, 16)
    with simt.tracing() as traces:
        fa_numba.mla_decode(q, cache, lengths, softmax_scale=SCALE, latent_dim=48, num_splits=4)
    assert traces[0].arrays["latent_cache"].loads == 64 * 64 * max(1, num_heads // 16)
