"""ContiguousCache: attention reads back all appended tokens, in parts of any size."""

import numpy as np
import pytest
from cases import assert_defined, assert_equal, make_qkv, random
from numba import cuda

from fa_numba import flash_attn_v2, reference
from fa_numba.kernels.flash_decode import flash_decode
from fa_numba.kernels.paged_attn_decode import paged_attn_decode
from fa_numba.kv_cache import ContiguousCache

pytestmark = pytest.mark.usefixtures("checked")


def make_cache(*shape):
    """A cache with NaN where nothing has been written."""
    cache = ContiguousCache(*shape)
    cache.k_cache[...] = cache.v_cache[...] = np.nan
    return cache


def test_tokens_are_in_order_and_nothing_else_is_written(rng):
    cache = make_cache(3, 10, 2, 8)
    k, v = (random(rng, 3, 4, 2, 8) for _ in range(2))
    cache.append(k, v, [4, 0, 2])
    cache.append(k[:, ::-1], v[:, ::-1], [1, 3, 4])
    np.testing.assert_array_equal(cache.lengths, [5, 3, 6])
    np.testing.assert_array_equal(cache.seq_lens, np.array([5, 3, 6], np.int32), strict=True)
    tokens = [[0, 1, 2, 3, 3], [3, 2, 1], [0, 1, 3, 2, 1, 0]]
    for got, x in ((cache.k_cache, k), (cache.v_cache, v)):
        for b, order in enumerate(tokens):
            np.testing.assert_array_equal(got[b, : len(order)], x[b, order])
            assert np.isnan(got[b, len(order) :]).all()


@pytest.mark.parametrize("size", [1, 2, 7, 16, 40])
def test_a_prompt_in_parts_equals_the_whole_prompt(rng, size):
    q, k, v = make_qkv(rng, 2, 40, 40, 4, 2, 8)
    options = {"causal": True, "block_m": 8, "block_n": 8, "num_splits": 1}
    cache = make_cache(2, 41, 2, 8)
    outs, lses = [], []
    for start in range(0, 40, size):
        rows = slice(start, start + size)
        cache.append(k[:, rows], v[:, rows])
        out, lse = flash_decode(q[:, rows], cache.k_cache, cache.v_cache, cache.seq_lens, **options)
        outs.append(out)
        lses.append(lse)
    out, lse = np.concatenate(outs, axis=1), np.concatenate(lses, axis=2)
    assert_defined((out, lse), reference.attention, q, k, v, causal=True)
    del options["num_splits"]  # with one, the same tiles of keys in the same order
    assert_equal((out, lse), flash_attn_v2(q, k, v, **options))


def test_it_is_a_paged_cache_with_a_page_for_each_sequence(rng):
    q, k, v = make_qkv(rng, 3, 2, 9, 4, 2, 8)
    cache = make_cache(3, 12, 2, 8)
    cache.append(k, v, [9, 0, 5])
    caches, pages = (cache.k_cache, cache.v_cache), np.arange(3, dtype=np.int32)[:, None]
    dense = flash_decode(q, *caches, cache.seq_lens, causal=True)
    paged = paged_attn_decode(q, *caches, pages, cache.seq_lens, causal=True)
    assert_equal(dense, paged)


def test_running_out_of_room_changes_nothing(rng):
    cache = make_cache(2, 5, 1, 4)
    k, v = (random(rng, 2, 3, 1, 4) for _ in range(2))
    cache.append(k, v, [3, 1])
    before = [x.copy() for x in (cache.k_cache, cache.v_cache, cache.lengths, cache.seq_lens)]
    with pytest.raises(ValueError, match=r"num_new\[0\] must be at most .* = 5 - 3 = 2, got 3"):
        cache.append(k, v)
    after = cache.k_cache, cache.v_cache, cache.lengths, cache.seq_lens
    assert_equal(before, after)
    cache.append(k, v, [2, 3])  # to the last slot


@pytest.mark.parametrize("batch, seqlen_new", [(0, 3), (2, 0)])
def test_nothing_to_append(rng, batch, seqlen_new):
    cache = make_cache(batch, 5, 2, 4)
    k = random(rng, batch, seqlen_new, 2, 4)
    cache.append(k, k)
    assert (cache.lengths == 0).all() and np.isnan(cache.k_cache).all()


def test_the_arrays_appended_are_read_in_place_and_left_alone(rng):
    packed = random(rng, 2, 4, 3, 2, 8)  # q, k, v side by side
    packed.flags.writeable = False
    cache = make_cache(2, 4, 2, 8)
    cache.append(packed[:, :, 1], packed[:, :, 2])
    np.testing.assert_array_equal(cache.k_cache, packed[:, :, 1])
    np.testing.assert_array_equal(cache.v_cache, packed[:, :, 2])


def test_the_cache_is_of_the_library_of_like(rng):
    like = cuda.to_device(np.zeros(1, np.float32))
    k, v = (random(rng, 2, 3, 2, 4) for _ in range(2))
    caches = ContiguousCache(2, 5, 2, 4), ContiguousCache(2, 5, 2, 4, like=like)
    caches[0].append(k, v, [1, 3])
    caches[1].append(cuda.to_device(k), cuda.to_device(v), [1, 3])
    for name in ("k_cache", "v_cache", "seq_lens"):
        assert type(getattr(caches[1], name)) is type(like)
    tables = [(cache.k_cache, cache.v_cache, cache.seq_lens) for cache in caches]
    dense = [flash_decode(q, *c) for q, c in zip((k, cuda.to_device(k)), tables, strict=True)]
    for x, y in zip(*dense, strict=True):
        np.testing.assert_allclose(x, y.copy_to_host(), rtol=1e-5, atol=1e-6)
