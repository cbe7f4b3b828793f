"""KV-cache sizes: the published example, real arrays, pages."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_numba.analysis.kv_cache_size import kv_cache_bytes, kv_cache_tokens

SMALL = st.integers(1, 40)
GPT3 = {"num_layers": 96, "num_kv_heads": 96, "head_dim": 128}


def test_gpt3():
    assert kv_cache_bytes(4096, **GPT3) == 19_327_352_832 == 18 * 2**30
    # "22.5 %" of 80 GB mixes units: 18 GiB of 80 GiB, or 19.3 GB of 80 GB
    assert kv_cache_bytes(4096, **GPT3) / 80e9 == pytest.approx(0.242, abs=5e-4)
    assert kv_cache_bytes(4096, **GPT3) / (80 * 2**30) == 0.225


def test_gpt3_with_one_head_of_k_and_v():
    mqa = kv_cache_bytes(4096, num_layers=96, num_kv_heads=1, head_dim=128)
    assert mqa == 192 * 2**20
    assert 96 * mqa == kv_cache_bytes(4096, **GPT3)


def test_llama_2_70b_by_hand():
    """80 layers, 8 heads of 128, float16: 2 * 80 * 8 * 128 * 2 bytes = 320 KiB a token."""
    assert kv_cache_bytes(1, 80, 8, 128) == 320 * 1024


@given(SMALL, SMALL, SMALL, SMALL, SMALL, SMALL)
def test_as_large_as_the_arrays(seqlen, layers, heads, head_dim, batch, page_size):
    num_pages = sum(len(range(0, seqlen, page_size)) for _ in range(batch))
    k_cache = np.broadcast_to(np.float32(0), (layers, num_pages, page_size, heads, head_dim))
    v_cache = k_cache
    got = kv_cache_bytes(
        seqlen, layers, heads, head_dim, batch=batch, dtype_bytes=4, page_size=page_size
    )
    assert got == 4 * (k_cache.size + v_cache.size)


@given(st.integers(0, 10**9), SMALL, SMALL, SMALL, SMALL)
def test_tokens_fit_and_one_page_more_does_not(memory, layers, heads, head_dim, page_size):
    model = {"num_layers": layers, "num_kv_heads": heads, "head_dim": head_dim}
    tokens = kv_cache_tokens(memory, **model, page_size=page_size)
    assert tokens % page_size == 0
    assert kv_cache_bytes(tokens, **model, page_size=page_size) <= memory
    assert kv_cache_bytes(tokens + 1, **model, page_size=page_size) > memory


def test_an_empty_cache_is_free():
    assert kv_cache_bytes(0, 1, 1, 1) == kv_cache_bytes(1, 1, 1, 1, batch=0) == 0


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: kv_cache_bytes(-1, 1, 1, 1), "seqlen must not be negative, got -1"),
        (lambda: kv_cache_bytes(1, 0, 1, 1), "num_layers must be positive, got 0"),
        (lambda: kv_cache_bytes(1, 1, 1, 1, page_size=0), "page_size must be positive, got 0"),
        (lambda: kv_cache_tokens(-1, 1, 1, 1), "memory_bytes must not be negative, got -1"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()
