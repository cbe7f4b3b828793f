"""reshape_and_cache on the CPU engine, every access checked."""

import numpy as np
import pytest
from cases import check_cache_write, make_cache_write, strided

from fa_numba import reshape_and_cache

pytestmark = pytest.mark.usefixtures("checked")


@pytest.mark.parametrize("page_size", [1, 2, 7, 16, 40])
def test_page_sizes(rng, page_size):
    check_cache_write(reshape_and_cache, *make_cache_write(rng, 9, page_size, 2, 8))


@pytest.mark.parametrize("num_kv_heads, head_dim", [(1, 1), (3, 33), (1, 59), (9, 111), (8, 256)])
def test_token_shapes(rng, num_kv_heads, head_dim):
    check_cache_write(reshape_and_cache, *make_cache_write(rng, 5, 4, num_kv_heads, head_dim))


@pytest.mark.parametrize("num_tokens", [0, 1, 32])
def test_numbers_of_tokens(rng, num_tokens):
    check_cache_write(reshape_and_cache, *make_cache_write(rng, num_tokens, 4, 2, 8))


def test_tokens_without_a_slot_are_not_looked_at(rng):
    k, v, k_cache, v_cache, slot_mapping = make_cache_write(rng, 6, 4, 2, 8)
    slot_mapping[[0, 3, 5]] = -1
    k[[0, 3, 5]] = v[[0, 3, 5]] = np.nan
    check_cache_write(reshape_and_cache, k, v, k_cache, v_cache, slot_mapping)
    slot_mapping[:] = -1
    check_cache_write(reshape_and_cache, k, v, k_cache, v_cache, slot_mapping)


def test_strided_views(rng):
    k, v, k_cache, v_cache, slot_mapping = make_cache_write(rng, 6, 4, 2, 8)
    packed = np.stack([k, v, k], axis=1)  # as one projection for q, k, v leaves them
    k, v = packed[:, 0], packed[:, 1]
    slots = np.full(12, -7, np.int32)
    slots[::2] = slot_mapping
    for x in (k, v, slots):
        x.flags.writeable = False
    check_cache_write(reshape_and_cache, k, v, strided(k_cache), strided(v_cache), slots[::2])


def test_k_and_v_may_be_parts_of_one_cache(rng):
    k, v, k_cache, v_cache, slot_mapping = make_cache_write(rng, 6, 4, 2, 8)
    cache = np.stack([k_cache, v_cache], axis=1)
    check_cache_write(reshape_and_cache, k, v, cache[:, 0], cache[:, 1], slot_mapping)
