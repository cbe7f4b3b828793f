"""Scheduler: answers do not depend on who was preempted, how, and how often."""

import numpy as np
import pytest

from fa_numba import PagePool, copy_pages, reshape_and_cache, swap_pages
from fa_numba.kv_cache import OutOfPagesError, Scheduler

PAGE_SIZE = 4


class Server:
    """A model of one layer, whose next token depends on all that its cache holds for a sequence."""

    def __init__(self, num_pages, host_pages=0, **options):
        self.pool = PagePool(num_pages, PAGE_SIZE, **options)
        host = PagePool(host_pages, PAGE_SIZE, **options) if host_pages else None
        self.scheduler = Scheduler(self.pool, host)
        self.cache = np.full((2, num_pages, PAGE_SIZE, 1, 1), np.nan, np.float32)
        self.host = np.full((2, host_pages, PAGE_SIZE, 1, 1), np.nan, np.float32)
        self.log = []

    def step(self):
        plan = self.scheduler.step()
        if len(plan.swap_out[0]):
            swap_pages(*self.cache, *self.host, *plan.swap_out)
        if len(plan.swap_in[0]):
            swap_pages(*self.host, *self.cache, *plan.swap_in)
        src, dst, slot_mapping = plan.writes
        copy_pages(*self.cache, src, dst)
        new = [
            (token + 1) * (t + 1)
            for request, n in zip(plan.requests, plan.num_new, strict=True)
            for t, token in list(enumerate(request.tokens))[len(request.tokens) - n :]
        ]
        k = np.array(new, np.float32).reshape(-1, 1, 1)
        reshape_and_cache(k, -k, *self.cache, slot_mapping)
        for request in plan.requests:
            pages = self.pool.pages(request.seq)
            k, v = self.cache[:, pages].reshape(2, -1)[:, : len(request.tokens)]
            assert (k == -v).all(), "keys that are not of this sequence, or NaN"
            request.tokens.append(int(k.sum()) % 7)
        self.log.append(plan)
        return plan

    def serve(self, prompts, answer):
        """The answers to all prompts, each of `answer` tokens."""
        requests, running = [self.scheduler.submit(prompt) for prompt in prompts], set()
        while self.scheduler.running or self.scheduler.waiting:
            plan = self.step()
            assert [r for r in requests if r in plan.requests] == plan.requests, "not in order"
            assert not plan.preempted or set(plan.requests) <= running, "let in for who had to go"
            running = set(plan.requests)
            for request in plan.requests:
                if len(request.tokens) == len(prompts[requests.index(request)]) + answer:
                    self.scheduler.finish(request)
            assert len(self.log) < 500
        assert self.pool.num_free == self.pool.num_pages
        assert not self.pool.sequences
        host = self.scheduler.host_pool
        assert host is None or host.num_free == host.num_pages
        return [request.tokens for request in requests]

    def preempted(self):
        return [request for plan in self.log for request in plan.preempted]


PROMPTS = [[1, 2, 3, 4, 5], [1, 2, 3, 4, 6, 0], [3], [1, 2, 3, 4, 5, 6, 0, 1, 2], [5, 5]]


@pytest.mark.parametrize("share_prefixes", [False, True])
@pytest.mark.parametrize("num_pages, host_pages", [(6, 0), (6, 20), (6, 3), (9, 0), (9, 20)])
def test_preemption_changes_no_answer(num_pages, host_pages, share_prefixes):
    options = {"share_prefixes": share_prefixes}
    plenty = Server(100, **options)
    want = plenty.serve(PROMPTS, 13)
    assert not plenty.preempted()
    server = Server(num_pages, host_pages, **options)
    assert server.serve(PROMPTS, 13) == want
    assert server.preempted()
    swapped = sum(len(plan.swap_out[0]) for plan in server.log)
    assert swapped == 0 if host_pages == 0 else swapped > 0
    back = sum(len(plan.swap_in[0]) for plan in server.log)
    assert back == swapped or (share_prefixes and back < swapped)


def test_shared_pages_are_not_swapped_twice():
    server = Server(7, 9)
    prompt = [1, 2, 3, 4, 5, 6, 0, 1]
    first, second, third = (server.scheduler.submit([*prompt, i]) for i in range(3))
    while not server.step().preempted:
        pass
    assert server.log[-1].preempted == [third]
    assert len(server.log[-1].swap_out[0]) == 3
    server.scheduler.finish(second)
    while third not in server.step().requests:
        pass
    assert (
        len(server.log[-1].swap_in[0]) == 0
    )  # the prompt is there, and its own page not yet taken


def test_a_request_swapped_out_computes_nothing_again():
    lengths = {}
    for host_pages in (0, 20):
        server = Server(6, host_pages, share_prefixes=False)
        server.serve(PROMPTS, 13)
        lengths[host_pages] = sum(len(plan.writes.slot_mapping) for plan in server.log)
    assert lengths[20] == sum(map(len, PROMPTS)) + len(PROMPTS) * 12  # the last is not cached
    assert lengths[0] > lengths[20]


def test_the_last_to_come_gives_way_and_is_the_first_to_come_back():
    server = Server(6)
    first, second, third, fourth = (server.scheduler.submit([i] * 4) for i in range(4))
    server.step()
    assert server.scheduler.running == [first, second, third]  # a page each, and one for later
    assert list(server.scheduler.waiting) == [fourth]
    while not server.step().preempted:
        pass
    assert server.log[-1].preempted == [third]
    assert list(server.scheduler.waiting) == [third, fourth]
    assert third.seq is None and third.tokens[:4] == [2] * 4
    server.scheduler.finish(first)
    server.scheduler.finish(second)
    assert server.step().requests == [third, fourth]


def test_who_waits_can_be_finished_too():
    server = Server(2, 2)
    first, second = (server.scheduler.submit([i] * 3) for i in range(2))
    server.step()
    server.scheduler.finish(second)
    assert not server.scheduler.waiting
    third = server.scheduler.submit([2])
    server.scheduler.finish(first)
    server.step()
    assert server.scheduler.running == [third]


def test_a_swapped_request_that_is_finished_leaves_no_pages_on_the_host():
    server = Server(4, 4)
    first, second = (server.scheduler.submit([i] * 4) for i in range(2))
    while not server.step().preempted:
        pass
    assert second.seq_on_host is not None
    assert server.scheduler.host_pool.num_free < 4
    server.scheduler.finish(second)
    assert server.scheduler.host_pool.num_free == 4


def test_a_request_that_can_never_fit_is_refused():
    scheduler = Scheduler(PagePool(2, 4))
    with pytest.raises(OutOfPagesError, match="9 tokens need 3 pages, and the whole pool has 2"):
        scheduler.submit(range(9))
    assert not scheduler.waiting
    request = scheduler.submit(range(8))
    other = scheduler.submit([1])
    scheduler.step()
    assert scheduler.running == [request]
    request.tokens.append(0)
    with pytest.raises(OutOfPagesError, match="can never run"):
        scheduler.step()
    assert scheduler.running == [request] and scheduler.pool.length(request.seq) == 8
    scheduler.finish(request)
    assert scheduler.step().requests == [other]


def test_pools_must_have_pages_of_one_size():
    with pytest.raises(ValueError, match="host_pool must have the page_size of pool, 4, got 2"):
        Scheduler(PagePool(2, 4), PagePool(2, 2))
