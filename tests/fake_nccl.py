"""CuPy's streams and events and its NCCL in one process, for NumPy arrays: ranks are threads.

It keeps NCCL's rules: what a group sends goes out when the group ends; the n-th message to a rank
is taken by its n-th receive from this rank; an event is done when all before it on its stream is;
and what has been aborted moves no more bytes.
"""

import ctypes
import threading
from types import SimpleNamespace

import numpy as np


class World:
    """The wires between the ranks."""

    def __init__(self, world_size):
        self.world_size = world_size
        self.changed = threading.Condition()
        self.wires = {}  # (source, destination): list of bytes, None where taken


class Rank:
    """What one rank sees: `cupy`, `nccl`, and counts of what it has done."""

    def __init__(self, world, rank):
        self.world, self.rank = world, rank
        self.aborted = self.destroyed = False
        self.broken = None  # the error that NCCL reports
        self.taken = {}
        self.group = None
        self.waited = []  # (stream, event) of wait_event
        self.current = Stream(self)
        self.pending = []  # receives whose message has not come
        self.nccl = SimpleNamespace(
            NCCL_UINT8=1,
            groupStart=self._start,
            groupEnd=self._end,
            get_unique_id=lambda: bytes(range(128)),
            NcclCommunicator=self._make,
        )
        events = SimpleNamespace(
            Stream=lambda **options: Stream(self),
            Event=lambda **options: Event(self),
            get_current_stream=lambda: self.current,
        )
        self.cupy = SimpleNamespace(cuda=events, zeros=np.zeros)

    def _make(self, world_size, unique_id, rank):
        assert (world_size, rank) == (self.world.world_size, self.rank)
        assert unique_id == bytes(range(128))
        return self

    def _start(self):
        assert self.group is None
        self.group = []

    def _end(self):
        group, self.group = self.group, None
        with self.world.changed:
            for kind, address, count, peer in group:
                if kind == "send":
                    wire = self.world.wires.setdefault((self.rank, peer), [])
                    wire.append(ctypes.string_at(address, count))
                else:
                    n = self.taken[peer] = self.taken.get(peer, -1) + 1
                    self.pending.append((peer, n, address, count))

    def send(self, address, count, dtype, peer, stream):
        assert dtype == 1 and peer != self.rank and stream == 7
        self.group.append(("send", address, count, peer))

    def recv(self, address, count, dtype, peer, stream):
        assert dtype == 1 and peer != self.rank and stream == 7
        self.group.append(("recv", address, count, peer))

    def progress(self):
        """Take the messages that have come."""
        with self.world.changed:
            for receive in list(self.pending):
                peer, n, address, count = receive
                wire = self.world.wires.get((peer, self.rank), [])
                if n < len(wire) and not self.aborted:
                    assert len(wire[n]) == count
                    ctypes.memmove(address, wire[n], count)
                    self.pending.remove(receive)

    def check_async_error(self):
        if self.broken:
            raise RuntimeError(self.broken)

    def abort(self):
        self.aborted = True

    def destroy(self):
        assert not self.aborted
        self.destroyed = True


class Stream:
    ptr = 7

    def __init__(self, rank):
        self.rank = rank

    def wait_event(self, event):
        assert event.recorded
        self.rank.waited.append((self, event))

    def synchronize(self):
        pass


class Event:
    def __init__(self, rank):
        self.rank, self.recorded, self.before = rank, None, []

    def record(self, stream):
        self.recorded, self.before = stream, list(self.rank.pending)

    @property
    def done(self):
        self.rank.progress()
        return not any(receive in self.rank.pending for receive in self.before)
