"""The waste simulator: small traces by hand, and the figure of the PagedAttention paper."""

import pytest

from fa_numba import analysis
from fa_numba.kv_cache import random_trace, serve_contiguous, serve_paged
from fa_numba.kv_cache.waste import KINDS, _FirstFit, reservations


def by_kind(*shares):
    return pytest.approx(dict(zip(KINDS, shares, strict=True)))


def test_contiguous_by_hand():
    trace = [(2, 4)] * 9
    # Steps see 3 and 4 tokens of the only request that fits in 10 slots when 8 are set aside.
    usage = serve_contiguous(trace, 10, lambda prompt, final: 8, steps=4, warm_up=0)
    assert usage.shares == by_kind(0.35, 0.05, 0.4, 0.2)
    assert usage.at_a_time == 1 and usage.waste == pytest.approx(0.65)
    usage = serve_contiguous(trace, 10, reservations(8)["an oracle"], steps=4, warm_up=0)
    assert usage.shares == by_kind(0.7, 0.1, 0, 0.2)


def test_paged_by_hand():
    # Three requests of 2 tokens in a page each: a fourth would leave too little for the next step.
    # Then a third token of two requests, in 2 pages each; the third request must give way.
    usage = serve_paged([(2, 4)] * 9, 10, 2, steps=2, warm_up=0)
    assert usage.shares == by_kind(0.6, 0.1, 0, 0.3)
    assert (usage.at_a_time, usage.preemptions, usage.recomputed) == (2.5, 1, 3)


def test_warm_up_is_not_counted():
    trace = [(1, 100)] * 9
    usage = serve_contiguous(trace, 100, lambda prompt, final: final, steps=50, warm_up=49)
    assert usage.shares == by_kind(0.51, 0.49, 0, 0)


def test_first_fit_joins_neighbours():
    memory = _FirstFit(10)
    assert [memory.take(size) for size in (3, 4, 3, 1)] == [0, 3, 7, None]
    memory.free(0, 3)
    memory.free(7, 3)
    assert memory.take(4) is None  # 6 slots are free, but not in one piece: external fragmentation
    memory.free(3, 4)
    assert memory.take(10) == 0


def test_preempted_requests_are_counted_and_come_back():
    usage = serve_paged([(1, 16)] * 50, 24, 1, steps=100, warm_up=0)
    assert usage.preemptions > 0 and usage.recomputed > usage.preemptions


def test_contiguous_allocation_wastes_60_to_80_percent_and_pages_hardly_any():
    slots = analysis.kv_cache_tokens(12 * 10**9, 40, 40, 128)  # OPT-13B on a GPU of 40 GB
    trace = random_trace(6000)
    contiguous = {
        name: serve_contiguous(trace, slots, reserve)
        for name, reserve in reservations(2048).items()
    }
    paged = serve_paged(trace, slots, 16)
    assert 0.6 <= contiguous["the maximum"].waste <= 0.8
    assert contiguous["the maximum"].waste > contiguous["a power of two"].waste
    assert contiguous["a power of two"].waste > contiguous["an oracle"].waste
    assert paged.waste < 0.06 < 0.4 < contiguous["an oracle"].waste
    assert paged.at_a_time > 1.8 * contiguous["an oracle"].at_a_time
    assert paged.shares["given out, never used"] < 0.001  # at most 15 slots of each request
    for usage in (paged, *contiguous.values()):
        assert sum(usage.shares.values()) == pytest.approx(1)
        assert min(usage.shares.values()) >= 0
