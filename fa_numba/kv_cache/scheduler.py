"""First come, first served: which sequences run, and which is preempted when the pages run out.

The length of an answer is unknown in advance, so a pool that reserves nothing will run out of pages
in the middle of a step. Then the sequence that came last is preempted as a whole: its next token
needs all of its keys, so keeping half of them is useless. It comes back before all sequences that
came after it, in one of two ways:

recomputation   its pages are freed; when it comes back, all its tokens so far are its prompt
swapping        its pages are copied to host memory, and back

Recomputation costs arithmetic, swapping costs time on the bus. Recomputation is cheaper for short
sequences, swapping if the bus is fast and the pages are large.

Paper: Kwon et al. 2023, PagedAttention, arXiv:2309.06180, section 4.5.
"""

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fa_numba import checks
from fa_numba.kv_cache.page_pool import OutOfPagesError, Writes
from fa_numba.tiling.block_sizes import ceil_div


@dataclass(eq=False)
class Request:
    """One sequence to be served.

    Attributes
    ----------
    tokens : list of int
        The prompt and the answer so far; append each new token of the model.
    seq : int or None
        Its sequence in the pool while it runs.
    seq_on_host : int or None
        Its sequence in the host's pool while it is swapped out.
    """

    tokens: list
    seq: int | None = None
    seq_on_host: int | None = None


class Plan(NamedTuple):
    """One step: changes of the caches, to apply in this order, and the requests to run.

    Attributes
    ----------
    swap_out : pair of int32 arrays
        src in the cache, dst in the cache of the host, for `swap_pages`.
    swap_in : pair of int32 arrays
        src in the cache of the host, dst in the cache.
    writes : Writes
        For `copy_pages`, then for `reshape_and_cache`.
    requests : list of Request
        The requests that run in this step, in order of arrival.
    num_new : list of int
        Number of tokens of each request that are new to the cache: its last ones. Their slots are
        in writes.slot_mapping, request after request.
    preempted : list of Request
        The requests that were preempted in this step.
    """

    swap_out: tuple
    swap_in: tuple
    writes: Writes
    requests: list
    num_new: list
    preempted: list


class Scheduler:
    """First come, first served.

    Parameters
    ----------
    pool : PagePool
        Used by this scheduler only: its oldest request may need all pages.
    host_pool : PagePool, default=None
        Pages of a cache in host memory, to swap to. Preempted requests are recomputed without it,
        and when it is full.

    Attributes
    ----------
    running : list of Request
        Oldest first.
    waiting : deque of Request
        Oldest first; all of them came after the running requests.
    """

    def __init__(self, pool, host_pool=None):
        checks.check_pools(pool, host_pool)
        self.pool, self.host_pool = pool, host_pool
        self.running, self.waiting = [], deque()

    def submit(self, tokens):
        """Add a request.

        Raises
        ------
        OutOfPagesError
            The prompt is longer than the whole pool. Nothing has been changed.
        """
        request = Request(checks.check_tokens(tokens))
        self._require_room_when_alone(request)
        self.waiting.append(request)
        return request

    def finish(self, request):
        """Remove a running or waiting request and free its pages."""
        checks.check_request(request, self.running, self.waiting)
        if request in self.running:
            self.running.remove(request)
            self.pool.free(request.seq)
            request.seq = None
        else:
            self.waiting.remove(request)
        if request.seq_on_host is not None:
            self.host_pool.free(request.seq_on_host)
            request.seq_on_host = None

    def step(self):
        """Find slots for the new tokens of all running requests; admit waiting ones that fit.

        Returns
        -------
        Plan
            Apply it before the next call.

        Raises
        ------
        OutOfPagesError
            A request is longer than the whole pool: `finish` it. Nothing has been changed.
        """
        for request in self.running:
            self._require_room_when_alone(request)
        preempted, swaps_out, swaps_in = [], [], []
        while True:
            new = {request.seq: self._new_tokens(request) for request in self.running}
            try:
                parts = [self.pool.append(new)]
                break
            except OutOfPagesError:
                preempted.append(self.running.pop())
                swaps_out += self._preempt(preempted[-1])
        num_new = [len(tokens) for tokens in new.values()]
        # A request that was just preempted is first in the queue and does not fit, so none enters.
        while self.waiting and self._has_room(self.waiting[0]):
            request = self.waiting.popleft()
            swap_in, writes = self._admit(request)
            swaps_in += swap_in
            parts.append(writes)
            num_new.append(len(writes.slot_mapping))
            self.running.append(request)
        writes = Writes(*map(np.concatenate, zip(*parts, strict=True)))
        requests = list(self.running)
        swaps = tuple(pairs_of(swaps_out)), tuple(pairs_of(swaps_in))
        return Plan(*swaps, writes, requests, num_new, preempted)

    def _new_tokens(self, request):
        return request.tokens[self.pool.length(request.seq) :]

    def _require_room_when_alone(self, request):
        needed = ceil_div(len(request.tokens), self.pool.page_size)
        if needed > self.pool.num_pages:
            raise OutOfPagesError(
                f"{len(request.tokens)} tokens need {needed} pages, and the whole pool has "
                f"{self.pool.num_pages}: such a request can never run. Nothing has been changed"
            )

    def _has_room(self, request):
        # Each running request may need a page in the next step: keep one free for each.
        needed = self.pool.pages_needed(request.tokens)
        return needed + len(self.running) <= self.pool.num_free

    def _preempt(self, request):
        """Free a request's pages; returns the (src, dst) to copy to the host."""
        self.waiting.appendleft(request)
        moves = []
        try:
            if self.host_pool is not None:
                request.seq_on_host, moves = copy_sequence(self.pool, request.seq, self.host_pool)
        except OutOfPagesError:
            pass  # the host is full: recompute
        self.pool.free(request.seq)
        request.seq = None
        return moves

    def _admit(self, request):
        """Give a request its pages; returns the (src, dst) to copy from the host, and Writes.

        The pool has room for all its tokens.
        """
        if request.seq_on_host is None:
            request.seq, writes = self.pool.allocate(request.tokens)
            return [], writes
        request.seq, moves = copy_sequence(self.host_pool, request.seq_on_host, self.pool)
        self.host_pool.free(request.seq_on_host)
        request.seq_on_host = None
        return moves, self.pool.append({request.seq: self._new_tokens(request)})


def copy_sequence(source, seq, target):
    """Allocate a copy of `seq` in `target`; returns it, and (src, dst) of its unshared pages."""
    copy, writes = target.allocate(source.tokens(seq))
    first_slots = writes.slot_mapping[:: target.page_size]  # of each page; −1: already there
    pages = zip(source.pages(seq), target.pages(copy), first_slots, strict=True)
    return copy, [(src, dst) for src, dst, slot in pages if slot >= 0]


def pairs_of(moves):
    """All src and all dst of moves (src, dst), an int32 array of two rows."""
    return np.array(moves, np.int32).reshape(-1, 2).T.copy()
