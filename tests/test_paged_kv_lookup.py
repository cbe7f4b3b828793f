"""paged_kv_lookup on the CPU engine, every access checked."""

import pytest
from cases import check_lookup, make_paged_cache

from fa_numba import paged_kv_lookup

pytestmark = pytest.mark.usefixtures("checked")


@pytest.mark.parametrize("page_size", [1, 2, 7, 16, 40])
def test_page_sizes(rng, page_size):
    check_lookup(paged_kv_lookup, *make_paged_cache(rng, [5, 16, 33, 1], page_size, 2, 8))


@pytest.mark.parametrize("num_kv_heads, head_dim", [(1, 1), (3, 33), (1, 59), (5, 111), (1, 256)])
def test_token_shapes(rng, num_kv_heads, head_dim):
    check_lookup(paged_kv_lookup, *make_paged_cache(rng, [5, 9], 4, num_kv_heads, head_dim))


@pytest.mark.parametrize("seq_lens", [[0, 3], [3, 0], [0], [0, 0], [], [16], [8, 8], [7, 8, 9]])
def test_lengths(rng, seq_lens):
    check_lookup(paged_kv_lookup, *make_paged_cache(rng, seq_lens, 8, 2, 4))


@pytest.mark.parametrize("max_len", [9, 10, 16])
def test_max_len(rng, max_len):
    check_lookup(paged_kv_lookup, *make_paged_cache(rng, [5, 9], 8, 2, 4), max_len=max_len)


def test_pages_may_be_shared(rng):
    k_cache, v_cache, block_table, seq_lens = make_paged_cache(rng, [12, 11], 4, 1, 8)
    block_table[1, :2] = block_table[0, :2]
    check_lookup(paged_kv_lookup, k_cache, v_cache, block_table, seq_lens)


def test_the_block_table_is_not_read_past_the_last_page(rng):
    k_cache, v_cache, block_table, seq_lens = make_paged_cache(rng, [12, 3], 4, 1, 8)
    block_table[1, 1:] = 2**31 - 1
    check_lookup(paged_kv_lookup, k_cache, v_cache, block_table, seq_lens)
