"""lazy_softmax_attn: what test_forward does not ask, every access checked."""

import numpy as np
import pytest
from cases import check_forward, each_mask, make_qkv

from fa_numba import lazy_softmax_attn, simt
from fa_numba.analysis import Problem, traffic

pytestmark = pytest.mark.usefixtures("checked")

CHUNKS = [(1, 1), (4, 5), (5, 18), (13, 6), (100, 100)]  # of 13 queries and 18 keys


@each_mask
@pytest.mark.parametrize("query_chunk_size, key_chunk_size", CHUNKS)
def test_chunks_do_not_change_the_answer(rng, query_chunk_size, key_chunk_size, causal):
    chunks = {"query_chunk_size": query_chunk_size, "key_chunk_size": key_chunk_size}
    check_forward(lazy_softmax_attn, *make_qkv(rng, 1, 13, 18, 4, 2, 6), causal=causal, **chunks)


def test_a_score_of_minus_infinity_weighs_nothing(rng):
    q, k, v = make_qkv(rng, 1, 3, 11, 1, 1, 1)
    q[...] = 1
    k[0, :5] = k[0, 7] = -np.inf  # the first chunk sees nothing else
    check_forward(lazy_softmax_attn, q, k, v, key_chunk_size=4)
    k[...] = -np.inf
    check_forward(lazy_softmax_attn, q, k, v, key_chunk_size=4)


def test_nan_in_one_head_stays_there(rng):
    q, k, v = make_qkv(rng, 1, 9, 9, 2, 2, 8)
    v[0, 3, 1, 2] = np.nan
    out, _ = lazy_softmax_attn(q, k, v)
    assert np.isnan(out[0, :, 1, 2]).all()
    assert np.isnan(out).sum() == 9


def test_nan_under_the_mask_is_not_seen(rng):
    q, k, v = make_qkv(rng, 1, 9, 9, 1, 1, 8)
    k[0, 4] = v[0, 4] = np.nan
    out, lse = lazy_softmax_attn(q, k, v, causal=True)
    assert np.isfinite(out[0, :4]).all() and np.isfinite(lse[..., :4]).all()
    assert np.isnan(out[0, 4:]).all() and np.isnan(lse[..., 4:]).all()


def test_memory_is_bounded_by_the_chunks(rng):
    q, k, v = make_qkv(rng, 1, 40, 50, 1, 1, 4)
    with simt.tracing() as traces:
        lazy_softmax_attn(q, k, v, query_chunk_size=8, key_chunk_size=10)
    assert len(traces) == 2 * 5
    kept = 8 * 5 * (4 + 2)  # queries of a chunk, chunks of keys, floats of each
    first = traces[0].arrays
    partial = ("acc_partial", "l_partial", "m_partial")
    assert sum(first[name].stores for name in partial) == kept < 40 * 50


def test_memory_is_saved_and_traffic_is_not():
    problem = Problem(1, 4096, 4096, 1, 1, 64)
    lazy, flash = traffic.lazy_softmax_attn(problem), traffic.flash_attn_v2(problem)
    assert lazy.loads["k"] == 4096 * 4096 * 64 == 16 * flash.loads["k"]
    assert lazy.loads["k"] > traffic.naive_attn(problem).loads["k"]
