"""Ranks in one process, in lock step: to learn from, and to test with.

Each rank is a thread, but one rank runs at a time: the one that has the baton. It runs until it
must wait for another rank, and passes the baton on. So a run is the same every time, a debugger may
stop in it, and prints come in order. Messages are copies, as on a wire.

`order` says who gets the baton of those who could go on. None: the next in line. A number seeds a
random choice at every wait, so that arrays arrive in another order; no result may depend on it.

A rank that raises an error is lost. The others go on until they wait for it, and then raise
RankLostError, which names it. So do all when a rank keeps the baton for longer than `timeout`
seconds, and when all wait for each other.
"""

import contextvars
import threading
import time
from collections import defaultdict, deque
from dataclasses import dataclass

import numpy as np

from fa_numba.checks import distributed as checks
from fa_numba.distributed.communicator import Communicator, RankLostError


@dataclass
class Run:
    """What came of a program that ran on every rank.

    Attributes
    ----------
    results : list
        By rank: what the program returned.
    bytes_sent, messages, pairs : int64 arrays of shape (world_size, num_steps)
        What each rank did in each step: see `Step`.
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
    *shards : sequences of world_size objects
        What `shard` returns, say: rank r gets element r of each.
    order : int, default=None
        Seed of the order in which ranks go on; None is round robin.
    timeout : float, default=300.0
        Seconds that a rank may run without waiting for another; None is no limit, for a debugger.
    **options
        The same for every rank.

    Returns
    -------
    Run

    Raises
    ------
    RankLostError
        A rank raised an error, which is this error's cause, or stalled. The attribute `errors`
        holds, by rank, what each of them raised.
    """
    world_size = checks.check_world_size(world_size)
    checks.check_shards(shards, world_size)
    timeout = checks.check_timeout(timeout)
    world = _World(world_size, order, timeout)
    comms = [_InProcess(world, rank) for rank in range(world_size)]

    def call(rank):
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
    """The lines of one rank: letter boxes in memory."""

    def __init__(self, world, rank):
        super().__init__(rank, world.world_size)
        self._world = world

    def _start_exchange(self, outgoing, shapes, like):
        self._world.post(self.rank, outgoing)
        return lambda: self._world.fetch(self.rank, shapes, like)


class _World:
    """The baton, the letter boxes, and who is lost. All is guarded by one lock, in `changed`."""

    def __init__(self, world_size, order, timeout):
        self.world_size, self.timeout = world_size, timeout
        self.random = None if order is None else np.random.default_rng(order)
        self.changed = threading.Condition()
        self.baton = None  # the rank that runs
        self.since = None  # when it got the baton
        self.boxes = defaultdict(deque)  # (source, destination): arrays, oldest first
        self.waits_for = {}  # rank: the sources without which it cannot go on
        self.done = set()
        self.lost = None  # (rank, why): the first to be lost
        self.broken = False  # nobody can go on
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
            except BaseException:  # Ctrl-C: let no thread wait for ever
                self._break()
                raise
            stalled = self.baton if self.broken else None
        for rank, thread in enumerate(threads):
            if rank != stalled:
                thread.join()
        if self.lost or self.broken:
            self._raise()
        return self.results

    def post(self, rank, outgoing):
        with self.changed:
            for destination, x in outgoing.items():
                self.boxes[rank, destination].append(x.copy())

    def fetch(self, rank, shapes, like):
        """Wait until an array of each source is in its box, and take them out."""
        with self.changed:
            self.waits_for[rank] = set(shapes)
            self._pass_baton()
            self._take_baton(rank)
            arrived = {source: self.boxes[source, rank].popleft() for source in shapes}
        for source, x in arrived.items():
            if x.shape != tuple(shapes[source]) or x.dtype != like.dtype:
                raise ValueError(
                    f"rank {rank} must receive {like.dtype} of shape {tuple(shapes[source])} from "
                    f"rank {source}, got {x.dtype} of shape {x.shape}"
                )
        return arrived

    def _body(self, call, rank):
        try:
            with self.changed:
                self._take_baton(rank)
            self.results[rank] = call(rank)
        except BaseException as error:
            self.errors[rank] = error
            if self.lost is None and not self.broken:
                self.lost = rank, f"{type(error).__name__}: {error}"
        finally:
            with self.changed:
                self.done.add(rank)
                if self.baton == rank:
                    self._pass_baton()
                self.changed.notify_all()

    def _take_baton(self, rank):
        self.changed.wait_for(lambda: self.baton == rank or self.broken)
        if self.broken:
            raise RankLostError(self._why(rank), self.lost and self.lost[0])
        self.waits_for.pop(rank, None)

    def _pass_baton(self):
        """Give the baton to a rank that can go on; where there is none, all is over."""
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
        """The ranks from which a rank still needs an array."""
        return sorted(s for s in self.waits_for.get(rank, ()) if not self.boxes[s, rank])

    def _watch(self):
        """Wait for a change; break off where a rank has had the baton for too long."""
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
        error = RankLostError(self._why(rank), rank)
        error.errors = list(self.errors)
        raise error from (None if rank is None else self.errors[rank])
