"""RollingCache: the last tokens and the first ones after any appends, and attention to them."""

import numpy as np
import pytest
from cases import assert_close, make_qkv, random

from fa_numba import reference
from fa_numba.kernels.flash_decode import flash_decode
from fa_numba.kv_cache import ContiguousCache, RollingCache

pytestmark = pytest.mark.usefixtures("checked")

WINDOWS = [(1, 0), (4, 0), (4, 2), (7, 1), (1, 3), (30, 0), (20, 4)]
each_window = pytest.mark.parametrize("window, num_sinks", WINDOWS)


def make_cache(batch, window, num_kv_heads, head_dim, num_sinks):
    """A cache with NaN where nothing has been written."""
    cache = RollingCache(batch, window, num_kv_heads, head_dim, num_sinks=num_sinks)
    cache.k_cache[...] = cache.v_cache[...] = np.nan
    return cache


def kept(length, window, num_sinks):
    """The tokens that a cache has kept, in their order."""
    return [t for t in range(length) if t < num_sinks or t >= length - window]


def test_the_write_pointer_wraps():
    cache = make_cache(1, 4, 1, 1, 0)
    rows, pointers = [], []
    for t in range(6):
        token = np.full((1, 1, 1, 1), t, np.float32)
        cache.append(token, token)
        rows.append(np.nan_to_num(cache.k_cache, nan=-1).ravel().tolist())
        pointers.append(int(cache.write_pointer[0]))
    assert rows[2:] == [[0, 1, 2, -1], [0, 1, 2, 3], [4, 1, 2, 3], [4, 5, 2, 3]]
    assert pointers == [1, 2, 3, 0, 1, 2]


@each_window
def test_any_appends_keep_the_same_tokens_and_positions(rng, window, num_sinks):
    tokens = np.arange(25, dtype=np.float32)
    for _ in range(5):
        cache = make_cache(2, window, 2, 3, num_sinks)
        while cache.lengths.min() < 25:
            num_new = np.minimum(rng.integers(0, 12, 2), 25 - cache.lengths)
            x = np.zeros((2, num_new.max(), 2, 3), np.float32)
            for b, (n, start) in enumerate(zip(num_new, cache.lengths, strict=True)):
                x[b, :n] = tokens[start : start + n, None, None]
            cache.append(x, -x, num_new)
            for b, length in enumerate(cache.lengths):
                want = kept(length, window, num_sinks)
                order = cache.positions[b]
                assert cache.seq_lens[b] == len(want) == (order >= 0).sum()
                assert sorted(order[order >= 0]) == list(range(len(want)))
                assert (order[: len(want)] >= 0).all()  # the empty slots are the last
                np.testing.assert_array_equal(
                    cache.k_cache[b, : len(want), 1, 2], np.array(want)[order[: len(want)]]
                )
                np.testing.assert_array_equal(
                    cache.v_cache[b, : len(want)], -cache.k_cache[b, : len(want)]
                )
                assert np.isnan(cache.k_cache[b, len(want) :]).all()


@each_window
def test_decoding_sees_the_sinks_and_the_window(rng, window, num_sinks):
    q, k, v = make_qkv(rng, 2, 24, 24, 4, 2, 8)
    m, n = np.arange(24)[:, None], np.arange(24)
    mask = (n <= m) & ((n < num_sinks) | (n > m - window))
    want = reference.attention(q, k, v, mask=mask)
    plain = reference.attention(q, k, v, mask=mask, dtype=np.float32)
    cache = make_cache(2, window, 2, 8, num_sinks)
    for t in range(24):
        one = slice(t, t + 1)
        cache.append(k[:, one], v[:, one])
        caches = (cache.k_cache, cache.v_cache, cache.seq_lens)
        out, lse = flash_decode(q[:, one], *caches, num_splits=2, block_n=8)
        assert_close(out, want[0][:, one], plain[0][:, one], name="out")
        assert_close(lse, want[1][..., one], plain[1][..., one], name="lse")


def test_a_window_that_nothing_leaves_is_a_contiguous_cache(rng):
    k, v = (random(rng, 2, 9, 2, 4) for _ in range(2))
    rolling, contiguous = make_cache(2, 9, 2, 4, 3), ContiguousCache(2, 12, 2, 4)
    contiguous.k_cache[...] = np.nan
    for cache in (rolling, contiguous):
        cache.append(k, v, [9, 2])
        cache.append(k[:, :3], v[:, :3], [3, 1])
    np.testing.assert_array_equal(rolling.k_cache, contiguous.k_cache)
    np.testing.assert_array_equal(rolling.seq_lens, contiguous.seq_lens)


def rotated(x, positions):
    """RoPE: each pair of numbers rotated by an angle that grows with the position."""
    half = x.shape[-1] // 2
    angle = positions[..., None] * 0.5 ** np.arange(half)
    cos, sin = np.cos(angle)[:, :, None], np.sin(angle)[:, :, None]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1).astype(np.float32)


def test_positions_are_counted_inside_the_cache(rng):
    """Keys are stored unrotated, and rotated by their positions among the kept tokens."""
    q, k, v = make_qkv(rng, 1, 1, 30, 2, 1, 8)
    cache = make_cache(1, 6, 1, 8, 2)
    cache.append(k, v)
    left = kept(30, 6, 2)
    assert left == [0, 1, 24, 25, 26, 27, 28, 29]  # to the model, tokens 0 to 7
    q = rotated(q, np.array([[7]]))
    dense = rotated(k[:, left], np.arange(8)[None])
    want = reference.attention(q, dense, v[:, left])
    plain = reference.attention(q, dense, v[:, left], dtype=np.float32)
    k_rotated = rotated(cache.k_cache, cache.positions)
    out, lse = flash_decode(q, k_rotated, cache.v_cache, cache.seq_lens)
    assert_close(out, want[0], plain[0], name="out")
    assert_close(lse, want[1], plain[1], name="lse")
