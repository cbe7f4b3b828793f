"""An engine in a thread of its own, and a view of its state for other threads.

Only that thread changes the engine. Other threads leave it messages, which it reads before each
step, so that none of them waits for a lock while a step runs.
"""

import logging
import threading
import time
from collections import Counter, deque
from itertools import islice

from fa_numba.language_model.server.engine import Engine
from fa_numba.language_model.server.request import Request

SECONDS_BETWEEN_VIEWS = 0.2
SHOWN = 50  # requests of each list of a view
log = logging.getLogger("fa_numba.serve")


class Stopping(RuntimeError):
    """The engine takes no more requests."""


class Background:
    """Run an engine in a thread.

    Parameters
    ----------
    engine : Engine
        Not to be used by others from now on.

    Attributes
    ----------
    view : dict
        The state of pages, queue and answers, as JSON has it; replaced a few times a second.
    """

    def __init__(self, engine: Engine):
        self.engine = engine
        self._inbox, self._wake = deque(), threading.Event()
        self._stopping, self._viewed_at = False, 0.0
        self.view = view_of(engine)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self):
        """Start the thread."""
        self._thread.start()

    def stop_soon(self):
        """Cancel all requests, and end the thread; do not wait for that."""
        self._stopping = True
        self._wake.set()

    def stop(self):
        """Cancel all requests, and end the thread."""
        self.stop_soon()
        self._thread.join()

    def submit(self, prompt, options, listener) -> Request:
        """As `Engine.submit`; the listener is called in the engine's thread."""
        if self._stopping:
            raise Stopping("the server is stopping")
        others = len(self._inbox)
        request = self.engine.make_request(prompt, options, listener, others=others)
        self._send(self.engine.add, request)
        return request

    def cancel(self, request):
        """As `Engine.cancel`, soon."""
        self._send(self.engine.cancel, request)

    def _send(self, function, request):
        self._inbox.append((function, request))
        self._wake.set()

    def _run(self):
        try:
            self._answer_requests(self.engine)
        finally:  # also after an error, so that later requests are refused, and none waits for ever
            self._stopping = True
            self._read_inbox()
            for request in list(self.engine.requests):
                self.engine.cancel(request)

    def _read_inbox(self):
        while self._inbox:
            function, request = self._inbox.popleft()
            function(request)

    def _answer_requests(self, engine):
        while not self._stopping:
            self._wake.clear()
            failed = False
            try:
                self._read_inbox()
                if engine.busy:
                    engine.step()
            except Exception:
                log.exception("a step failed: all requests end")
                failed = True
            if failed:  # not in the except clause: the error would keep the step's caches alive
                engine.fail()
            now = time.perf_counter()
            if not engine.busy or now - self._viewed_at > SECONDS_BETWEEN_VIEWS:
                self.view, self._viewed_at = view_of(engine), now
            if not engine.busy and not self._inbox:
                self._wake.wait(SECONDS_BETWEEN_VIEWS)


def view_of(engine) -> dict:
    """The state of an engine, as JSON has it.

    Returns
    -------
    dict
        "pages": for each page the number of the request that has it, −1 if it is free, −2 if it is
        free and may still be shared, −3 if several requests have it.
    """
    schedule, pool, host = engine.schedule, engine.pool, engine.schedule.host_pool
    pages = [-1] * pool.num_pages
    for page in pool.kept_pages:
        pages[page] = -2
    for request in schedule.running:
        mine = Counter(p for b in request.branches if b.seq is not None for p in pool.pages(b.seq))
        for page, held in mine.items():
            pages[page] = request.number if pool.references(page) == held else -3
    return {
        "pages": pages,
        "page_size": pool.page_size,
        "used_pages": pool.num_pages - pool.num_free,
        "used_slots": schedule.used_slots(),
        "host_pages": host.num_pages if host else 0,
        "used_host_pages": host.num_pages - host.num_free if host else 0,
        "running": [_row(request, schedule) for request in schedule.running[:SHOWN]],
        "waiting": [_row(request, schedule) for request in islice(schedule.queue, SHOWN)],
        "num_running": len(schedule.running),
        "num_waiting": len(schedule.queue),
        "tokens_per_second": round(engine.tokens_per_second(), 1),
        "tokens_made": engine.tokens_made,
        "steps": engine.steps,
        "ended": engine.ended,
        "cancelled": engine.cancelled,
        "preemptions": schedule.preemptions,
        "swapped_pages": schedule.swapped,
        "recomputed_tokens": schedule.recomputed,
        "shared_tokens": schedule.shared,
        "prompt_tokens": schedule.read,
        "hit_rate": round(schedule.shared / max(schedule.read, 1), 3),
        "drafts": engine.trees,
        "drafted_tokens": engine.guesses,
        "accepted_tokens": engine.kept,
    }


def _row(request, schedule):
    pool = schedule.pool
    branches = request.branches
    cached = sum(pool.length(b.seq) for b in branches if b.seq is not None)
    if request.started:
        state = "preempted" if request in schedule.queue.preempted else "answering"
    else:
        state = "reading" if cached else "waiting"
    return {
        "number": request.number,
        "client": request.options.client[:40],
        "prompt": len(request.prompt),
        "answer": max((len(b.tokens) - len(request.prompt) for b in branches), default=0),
        "max_tokens": request.options.max_tokens,
        "branches": len(branches),
        "cached": cached,
        "preempted": request.preempted,
        "state": state,
        "seconds": round(time.perf_counter() - request.arrived, 1),
    }
