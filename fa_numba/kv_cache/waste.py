"""Use of a server's KV memory on a trace of requests: contiguous arrays against pages.

The queue of requests never ends. In each step every running request gets one more token; finished
requests leave, and the next ones enter while there is room. A contiguous array needs its full size
when the request enters, when the length of the answer is still unknown. Memory is counted in slots:
a slot holds the keys and values of one token.

Source: Kwon et al. 2023, PagedAttention, arXiv:2309.06180, sections 1 and 3, which name these kinds
of waste and give 60 to 80 % for contiguous allocation.
"""

import math
from dataclasses import dataclass

import numpy as np

from fa_numba.kv_cache.page_pool import PagePool
from fa_numba.kv_cache.scheduler import Scheduler

KINDS = ("tokens", "reserved, used later", "given out, never used", "free, but nobody fits")


@dataclass(frozen=True)
class Usage:
    """Contents of the memory, averaged over the steps.

    Attributes
    ----------
    shares : dict of str to float
        Share of the memory by kind: tokens; slots that a request will use later; slots that it will
        never use (internal fragmentation); free slots, where the next request does not fit
        (external fragmentation).
    at_a_time : float
        Requests that run at a time.
    preemptions, recomputed : int
        Number of preemptions, and of tokens that were recomputed after them.
    """

    shares: dict
    at_a_time: float
    preemptions: int = 0
    recomputed: int = 0

    @property
    def waste(self):
        """Share of the memory without tokens."""
        return 1 - self.shares["tokens"]


def random_trace(number, *, mean_prompt=160, mean_answer=340, max_len=2048, seed=0):
    """Requests with log-normal lengths: many short ones, a few very long ones.

    Parameters
    ----------
    number : int
    mean_prompt, mean_answer : float, default=160, 340
        Means before long ones are cut.
    max_len : int, default=2048
        A prompt has at most half of it, an answer too.
    seed : int, default=0

    Returns
    -------
    list of (int, int)
        Tokens of the prompt, and of prompt and answer together.
    """
    rng = np.random.default_rng(seed)
    means = np.array([mean_prompt, mean_answer])
    draws = rng.lognormal(np.log(means) - 0.5, 1.0, (number, 2))
    lengths = np.clip(draws.astype(int), 1, max_len // 2)
    return [(int(prompt), int(prompt + answer)) for prompt, answer in lengths]


def reservations(max_len):
    """Numbers of slots that contiguous allocation may reserve for a request.

    Returns
    -------
    dict of str to function of (prompt, final)
        The maximum: always safe. A power of two: the length of the answer, rounded up. An oracle:
        the true length.
    """
    return {
        "the maximum": lambda prompt, final: max_len,
        "a power of two": lambda prompt, final: prompt + 2 ** math.ceil(math.log2(final - prompt)),
        "an oracle": lambda prompt, final: final,
    }


def serve_contiguous(trace, num_slots, reserve, *, steps=2000, warm_up=500):
    """Serve from memory that is allocated in one piece per request, first fit.

    Parameters
    ----------
    trace : sequence of (int, int)
        As from `random_trace`, long enough for all steps.
    num_slots : int
    reserve : function of (prompt, final)
        Slots to reserve, one of `reservations`.
    steps, warm_up : int, default=2000, 500
        All steps, and the first steps that are not counted.
    """
    memory, meter = _FirstFit(num_slots), _Meter(num_slots)
    queue, running = iter(trace), []
    prompt, final = next(queue)
    for step in range(steps):
        while (start := memory.take(size := reserve(prompt, final))) is not None:
            running.append([prompt, final, start, size])
            prompt, final = next(queue)
        for request in running:
            request[0] += 1
        if step >= warm_up:
            meter.read([(length, final, size) for length, final, _, size in running])
        for _, _, start, size in (r for r in running if r[0] >= r[1]):
            memory.free(start, size)
        running = [r for r in running if r[0] < r[1]]
    return meter.usage()


def serve_paged(trace, num_slots, page_size, *, steps=2000, warm_up=500):
    """Serve from a `PagePool`; preempted requests are recomputed.

    Parameters
    ----------
    trace, num_slots, steps, warm_up
        As for `serve_contiguous`.
    page_size : int
    """
    # The trace has no tokens: all are 0, and none may be shared.
    pool = PagePool(num_slots // page_size, page_size, share_prefixes=False)
    scheduler, meter = Scheduler(pool), _Meter(num_slots)
    queue, finals = iter(trace), {}
    preemptions = recomputed = 0
    for step in range(steps):
        while len(scheduler.waiting) < pool.num_pages:  # more than can enter
            prompt, final = next(queue)
            finals[scheduler.submit([0] * prompt)] = final
        plan = scheduler.step()
        if step >= warm_up:
            preemptions += len(plan.preempted)
            recomputed += sum(len(request.tokens) for request in plan.preempted)
            held = ((pool.length(r.seq), finals[r], len(pool.pages(r.seq))) for r in plan.requests)
            meter.read([(n, final, pages * page_size) for n, final, pages in held])
        for request in plan.requests:
            request.tokens.append(0)
        for request in plan.requests:
            if len(request.tokens) >= finals[request]:
                scheduler.finish(request)
                del finals[request]
    return meter.usage(preemptions, recomputed)


class _FirstFit:
    """Memory allocated in one piece, from the first gap that is large enough."""

    def __init__(self, num_slots):
        self.gaps = [(0, num_slots)]  # (start, room); no two are adjacent

    def take(self, size):
        for i, (start, room) in enumerate(self.gaps):
            if room >= size:
                self.gaps[i] = (start + size, room - size)
                return start
        return None

    def free(self, start, size):
        joined = []
        for first, room in sorted([*self.gaps, (start, size)]):
            if joined and sum(joined[-1]) == first:
                joined[-1] = (joined[-1][0], joined[-1][1] + room)
            else:
                joined.append((first, room))
        self.gaps = joined


class _Meter:
    """Sums the contents of the memory over the steps."""

    def __init__(self, num_slots):
        self.num_slots = num_slots
        self.slots = np.zeros(len(KINDS))
        self.running = self.steps = 0

    def read(self, requests):
        """`requests`: (current length, final length, slots) of each running request."""
        tokens = sum(length for length, _, _ in requests)
        later = sum(min(final, held) - length for length, final, held in requests)
        held = sum(held for _, _, held in requests)
        self.slots += (tokens, later, held - tokens - later, self.num_slots - held)
        self.running += len(requests)
        self.steps += 1

    def usage(self, *preempted):
        shares = self.slots / (self.num_slots * self.steps)
        by_kind = dict(zip(KINDS, map(float, shares), strict=True))
        return Usage(by_kind, self.running / self.steps, *preempted)
