"""Ranks in one process, in lock step: to learn from, and to test with.

Each rank is a thread, but only one rank runs at a time: the rank that has the baton. It runs until
it must wait for another rank, and then passes the baton on. So every run is the same, a debugger
can stop in it, and printed lines come in order. Messages are copies, as on a wire.

`order` chooses the next rank among those that can go on. None is round robin. An integer seeds a
random choice at every wait. Then arrays arrive in another order, and no result may depend on that.

A rank that raises an error is lost. The other ranks run until they must wait for it; then they
raise RankLostError, which names the lost rank. All ranks raise it if one rank keeps the baton for
longer than `timeout` seconds, or if all ranks wait for each other.

A browser has no threads: there a rank runs again from its beginning after each wait (`_OneThread`).
"""

import contextvars
import itertools
import sys
import threading
import time
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from fa_numba.checks import distributed as checks
from fa_numba.distributed.communicator import (
    HOW_TO_COMPARE,
    Communicator,
    RankLostError,
    RanksDifferError,
)
from fa_numba.on_cuda_cores.running_state import copy

HAS_THREADS = sys.platform not in ("emscripten", "wasi")


@dataclass
class Run:
    """Results and counts of a program that ran on every rank.

    Attributes
    ----------
    results : list
        Return value of each rank.
    bytes_sent, messages, pairs : int64 arrays of shape (world_size, num_steps)
        Counts of each rank in each step: see `Step`.
    """

    results: list
    bytes_sent: np.ndarray
    messages: np.ndarray
    pairs: np.ndarray


def run_ranks(program, world_size, *shards, order=None, timeout=300.0, **options):
    """Run a program on ranks in this process.

    Parameters
    ----------
    program : callable
        Every rank calls ``program(comm, *its own shards, **options)``.
    world_size : int
    *shards : lists of world_size objects
        For example the lists that `shard` returns. Rank r gets element r of each list.
    order : int, default=None
        Seed of the order in which ranks run; None is round robin.
    timeout : float, default=300.0
        Longest time in seconds that a rank runs without waiting for another. None is no limit: use
        it with a debugger. In a browser there is none.
    **options
        The same for every rank.

    Raises
    ------
    RanksDifferError
        Ranks called a function with different dtypes, shapes or options.
    RankLostError
        A rank raised another error or stalled. An error of a rank is the cause of this error. The
        attribute `errors` lists the error of each rank, or None.
    """
    world_size = checks.check_world_size(world_size)
    checks.check_shards(shards, world_size)
    timeout = checks.check_timeout(timeout)
    if HAS_THREADS:
        world = _World(world_size, order, timeout)
    else:
        world = _OneThread(world_size, order, shards)
    comms = [None] * world_size

    def call(rank):
        comms[rank] = _InProcess(world, rank)
        return program(comms[rank], *(parts[rank] for parts in shards), **options)

    results = world.run(call)
    steps = [comm.record.steps for comm in comms]
    num_steps = max(map(len, steps))
    counts = np.zeros((3, world_size, num_steps), np.int64)
    for rank, of_rank in enumerate(steps):
        for t, step in enumerate(of_rank):
            counts[:, rank, t] = step.bytes_sent, step.messages, step.pairs
    return Run(results, *counts)


class _InProcess(Communicator):
    """The connection of one rank: messages in memory."""

    def __init__(self, world, rank):
        super().__init__(rank, world.world_size)
        self._world = world

    def _start_exchange(self, outgoing, shapes, like):
        messages = self._world.post(self.rank, outgoing, shapes)
        return lambda: self._world.fetch(self.rank, messages, shapes, like)


class _World:
    """The baton, the messages, and the lost rank. One lock, that of `changed`, guards all of it."""

    def __init__(self, world_size, order, timeout):
        self.world_size, self.timeout = world_size, timeout
        self.random = None if order is None else np.random.default_rng(order)
        self.changed = threading.Condition()
        self.baton = None  # the rank that runs
        self.since = None  # when it got the baton
        # A message is (source, destination, n): the n-th from the one to the other.
        self.sent = defaultdict(itertools.count)  # (source, destination): the next n to send
        self.expected = defaultdict(itertools.count)  # the next n to receive
        self.mail = {}  # message: its array
        self.waits_for = {}  # rank: the messages that it waits for
        self.done = set()
        self.lost = None  # (rank, why) of the first lost rank
        self.broken = False  # True: no rank can go on
        self.results, self.errors = [None] * world_size, [None] * world_size

    def run(self, call):
        threads = []
        for rank in range(self.world_size):
            target = contextvars.copy_context().run
            threads.append(threading.Thread(target=target, args=(self._body, call, rank)))
            threads[-1].daemon = True  # a stalled rank must not keep the process alive
            threads[-1].start()
        with self.changed:
            self._pass_baton()
            try:
                while len(self.done) < self.world_size and not self.broken:
                    self._watch()
            except BaseException:  # Ctrl-C: no thread may wait for ever
                self._break()
                raise
            stalled = self.baton if self.broken else None
        for rank, thread in enumerate(threads):
            if rank != stalled:
                thread.join()
        if self.lost or self.broken:
            self._raise()
        return self.results

    def post(self, rank, outgoing, sources):
        """Send copies of arrays, and return the message that is to come from each source."""
        with self.changed:
            for destination, x in outgoing.items():
                pair = rank, destination
                self.mail[*pair, next(self.sent[pair])] = copy(x)
            pairs = [(source, rank) for source in sources]
            return [(*pair, next(self.expected[pair])) for pair in pairs]

    def fetch(self, rank, messages, shapes, like):
        """Wait until these messages are there, and take their arrays."""
        arrived = self._wait_for(rank, messages)
        for source, x in arrived.items():
            if x.shape != tuple(shapes[source]) or x.dtype != like.dtype:
                raise ValueError(
                    f"rank {rank} must receive {like.dtype} of shape {tuple(shapes[source])} from "
                    f"rank {source}, got {x.dtype} of shape {x.shape}; {HOW_TO_COMPARE}"
                )
        return arrived

    def _wait_for(self, rank, messages):
        with self.changed:
            self.waits_for[rank] = messages
            self._pass_baton()
            self._take_baton(rank)
            return {message[0]: self.mail.pop(message) for message in messages}

    def _body(self, call, rank):
        try:
            with self.changed:
                self._take_baton(rank)
            self.results[rank] = call(rank)
        except BaseException as error:
            self._note(rank, error)
        finally:
            with self.changed:
                self.done.add(rank)
                if self.baton == rank:
                    self._pass_baton()
                self.changed.notify_all()

    def _note(self, rank, error):
        self.errors[rank] = error
        if self.lost is None and not self.broken:
            self.lost = rank, f"{type(error).__name__}: {error}"

    def _take_baton(self, rank):
        self.changed.wait_for(lambda: self.baton == rank or self.broken)
        if self.broken:
            raise RankLostError(self._why(rank), self.lost and self.lost[0])
        self.waits_for.pop(rank, None)

    def _pass_baton(self):
        """Give the baton to a rank that can go on. If no rank can, break off."""
        last = -1 if self.baton is None else self.baton
        in_line = [(last + 1 + i) % self.world_size for i in range(self.world_size)]
        able = [r for r in in_line if r not in self.done and not self._missing(r)]
        self.baton, self.since = None, time.monotonic()
        if able:
            self.baton = able[0] if self.random is None else int(self.random.choice(able))
            self.changed.notify_all()
        elif len(self.done) < self.world_size:
            self._break()

    def _missing(self, rank):
        """The ranks that a rank waits for."""
        return sorted(x[0] for x in self.waits_for.get(rank, ()) if x not in self.mail)

    def _watch(self):
        """Wait for a change. Break off if a rank has had the baton for too long."""
        if self.timeout is None:
            self.changed.wait()
            return
        left = self.since + self.timeout - time.monotonic()
        if left <= 0:
            why = f"it has not waited for any other rank for {self.timeout:g} s"
            self.lost = self.lost or (self.baton, why)
            self._break()
        else:
            self.changed.wait(left)

    def _break(self):
        self.broken = True
        self.changed.notify_all()

    def _why(self, rank):
        if self.lost:
            return f"rank {self.lost[0]} is lost: {self.lost[1]}"
        waiting = [
            f"rank {r} waits for {', '.join(f'rank {s}' for s in self._missing(r))}"
            for r in range(self.world_size)
            if self._missing(r)
        ]
        finished = [f"rank {r} has finished" for r in sorted(self.done) if not self.errors[r]]
        return f"no rank can go on: {'; '.join(waiting + finished)}"

    def _raise(self):
        rank = self.lost[0] if self.lost else None
        if rank is not None and isinstance(self.errors[rank], RanksDifferError):
            raise self.errors[rank]  # it is no rank's own
        error = RankLostError(self._why(rank), rank)
        error.errors = list(self.errors)
        raise error from (None if rank is None else self.errors[rank])


class _Waits(BaseException):
    """Ends the run of a rank that must wait."""


class _OneThread(_World):
    """The ranks without threads, in the same order.

    A rank that must wait is ended. When it has the baton again it runs from its beginning, and gets
    copies of the messages that it had. So a program must do the same each time; what it prints
    comes each time, and arrays among its shards are as they were.
    """

    def __init__(self, world_size, order, shards):
        super().__init__(world_size, order, timeout=None)
        ranks = range(world_size)
        arrays = [[parts[r] for parts in shards if isinstance(parts[r], np.ndarray)] for r in ranks]
        self.before = [[(x, x.copy()) for x in mine if x.flags.writeable] for mine in arrays]
        self.waited = [0] * world_size  # how often a rank has passed the baton
        self.waits = [None] * world_size  # counts its waits in this run
        self.had = {}  # message: its array

    def run(self, call):
        with self.changed:
            return self._run(call)

    def _run(self, call):
        self._pass_baton()
        while left := [r for r in range(self.world_size) if r not in self.done]:
            rank = left[0] if self.broken else self.baton
            self._begin(rank)
            try:
                self.results[rank] = contextvars.copy_context().run(call, rank)
            except _Waits:
                continue
            except Exception as error:
                self._note(rank, error)
            self.done.add(rank)
            if not self.broken:
                self._pass_baton()
        if self.lost or self.broken:
            self._raise()
        return self.results

    def _begin(self, rank):
        for x, was in self.before[rank]:
            x[...] = was
        self.waits[rank] = itertools.count()
        for other in range(self.world_size):
            self.sent[rank, other] = itertools.count()
            self.expected[other, rank] = itertools.count()

    def _wait_for(self, rank, messages):
        if next(self.waits[rank]) == self.waited[rank]:  # it has not been here before
            self.waited[rank] += 1
            self.waits_for[rank] = messages
            self._pass_baton()
            if self.baton != rank and not self.broken:
                raise _Waits
        if self.broken and self._missing(rank):
            self._take_baton(rank)  # raises the error
        self.waits_for.pop(rank, None)
        self.had |= {
            message: self.mail.pop(message) for message in messages if message in self.mail
        }
        return {message[0]: copy(self.had[message]) for message in messages}
