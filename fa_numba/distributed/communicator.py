"""A communicator: the few verbs by which ranks talk, whatever carries the bytes.

A program for many GPUs is one function, and every rank calls it with its own part of the data and
its own communicator. `comm.rank` says which rank it is, `comm.world_size` how many there are.

verb            a rank gives                    a rank receives
send_recv       an array for one other rank     the array of one other rank
all_to_all      an array for every rank         an array from every rank
all_gather      an array                        the arrays of all ranks
reduce_scatter  an array for every rank         the sum, or the maximum, of the arrays for it
all_reduce      an array                        the sum, or the maximum, of the arrays of all

An engine supplies one method, `_start_exchange`: it starts to send arrays to some ranks and to
receive arrays from some. That is the group of sends and receives of NCCL and of MPI. All five verbs
are built on it. Sums and maxima are taken in the order of the ranks, never in the order of arrival:
the same bits in every run, and on every rank.

An exchange is started and later awaited. Between the two a rank computes, and an engine that can
moves the bytes meanwhile. Where the bytes lie until then, and on which stream they move, is the
affair of the engine.
"""

import abc
import math
from dataclasses import dataclass, field

import numpy as np

REDUCTIONS = {"sum": np.add, "max": np.maximum}


class RankLostError(RuntimeError):
    """A rank has died or stalled: this rank will never receive what it waits for.

    Attributes
    ----------
    rank : int or None
        The lost rank; None where all ranks wait for each other.
    """

    def __init__(self, message, rank=None):
        super().__init__(message)
        self.rank = rank


@dataclass
class Step:
    """What one rank did in one step.

    Attributes
    ----------
    bytes_sent : int
        Bytes that left this rank; what it hands to itself is not counted.
    messages : int
        How many arrays these bytes were.
    pairs : int
        Pairs of a query and a key that it sees, for one head of one batch entry.
    """

    bytes_sent: int = 0
    messages: int = 0
    pairs: int = 0


@dataclass
class Record:
    """The steps of one rank: `begin_step` opens the next one, and counts go to the open one."""

    steps: list = field(default_factory=list)

    def begin_step(self):
        """Open the next step."""
        self.steps.append(Step())

    @property
    def step(self):
        """The open step."""
        if not self.steps:
            self.begin_step()
        return self.steps[-1]


class Arrival:
    """An exchange that has been started: `wait` returns what arrives."""

    def __init__(self, wait):
        self.wait = wait


class Communicator(abc.ABC):
    """One rank's end of the lines to all others.

    Attributes
    ----------
    rank : int
        From 0 to world_size − 1.
    world_size : int
    record : Record
        Bytes sent and pairs computed by this rank, step by step.
    """

    def __init__(self, rank, world_size):
        self.rank, self.world_size = rank, world_size
        self.record = Record()

    @abc.abstractmethod
    def _start_exchange(self, outgoing, shapes, like):
        """Start to send `outgoing[r]` to rank r, and to receive an array of `shapes[r]` from it.

        Parameters
        ----------
        outgoing : dict of int to array
            Contiguous, none of them empty, none for this rank. The caller leaves them alone until
            the exchange has been awaited.
        shapes : dict of int to tuple
        like : array
            What arrives has its dtype and its library.

        Returns
        -------
        callable
            Waits, and returns a dict of int to array.
        """

    def start_exchange(self, outgoing, shapes, like):
        """Start to send an array to each of some ranks, and to receive one from each of some.

        Both sides know every shape beforehand; an empty array is not sent. Two ranks that exchange
        arrays repeatedly receive them in the order in which they were sent.

        Parameters
        ----------
        outgoing : dict of int to array
            By rank of destination.
        shapes : dict of int to tuple of int
            By rank of source: the shape of what it sends.
        like : array
            What arrives has its dtype and its library.

        Returns
        -------
        Arrival
            Its `wait` returns a dict of int to array, by rank of source.
        """
        mine = {r: x.copy() for r, x in outgoing.items() if r == self.rank}
        sent = {r: _contiguous(x) for r, x in outgoing.items() if r != self.rank and x.size}
        empty = {r: np.empty_like(like, shape=s) for r, s in shapes.items() if 0 in s}
        expected = {r: s for r, s in shapes.items() if r != self.rank and r not in empty}
        step = self.record.step
        step.bytes_sent += sum(x.nbytes for x in sent.values())
        step.messages += len(sent)
        if not (sent or expected):
            return Arrival(lambda: mine | empty)
        wait = self._start_exchange(sent, expected, like)
        return Arrival(lambda: mine | empty | wait())

    def start_send_recv(self, x, destination, source, shape=None):
        """Start to send x to one rank and to receive an array of its dtype from one rank.

        Parameters
        ----------
        x : array
        destination, source : int
        shape : tuple of int, default=x.shape
            Of what arrives.

        Returns
        -------
        Arrival
            Its `wait` returns the array.
        """
        shape = tuple(x.shape if shape is None else shape)
        arrival = self.start_exchange({destination: x}, {source: shape}, x)
        return Arrival(lambda: arrival.wait()[source])

    def send_recv(self, x, destination, source, shape=None):
        """Send x to one rank and receive an array from one rank: see `start_send_recv`."""
        return self.start_send_recv(x, destination, source, shape).wait()

    def all_to_all(self, pieces, shapes):
        """Send pieces[r] to rank r, and receive a piece from every rank.

        Parameters
        ----------
        pieces : sequence of world_size arrays, of one dtype
        shapes : sequence of world_size tuples of int
            shapes[r] is that of the piece from rank r.

        Returns
        -------
        list of world_size arrays, by rank of source
        """
        outgoing, shapes = dict(enumerate(pieces)), dict(enumerate(map(tuple, shapes)))
        arrived = self.start_exchange(outgoing, shapes, pieces[0]).wait()
        return [arrived[r] for r in range(self.world_size)]

    def all_gather(self, x, shapes=None):
        """The arrays of all ranks.

        Parameters
        ----------
        x : array
        shapes : sequence of world_size tuples of int, default=x.shape of each
            Where the ranks' arrays are not of one shape.

        Returns
        -------
        list of world_size arrays, by rank
        """
        shapes = [x.shape] * self.world_size if shapes is None else shapes
        return self.all_to_all([x] * self.world_size, shapes)

    def reduce_scatter(self, pieces, op="sum"):
        """The sum, or the maximum, of what all ranks give for this one, in the order of the ranks.

        Parameters
        ----------
        pieces : sequence of world_size arrays
            pieces[r] has the same shape on every rank.
        op : "sum" or "max", default="sum"

        Returns
        -------
        array of the shape of pieces[rank]
        """
        combine = REDUCTIONS[op]
        total, *others = self.all_to_all(pieces, [pieces[self.rank].shape] * self.world_size)
        for x in others:
            total = combine(total, x)
        return total

    def all_reduce(self, x, op="sum"):
        """The sum, or the maximum, of the arrays of all ranks: the same bits on every rank.

        Each rank reduces one part of the array and sends the result to all. So a rank sends
        2 (world_size − 1) / world_size times the array, and not world_size − 1 times.

        Parameters
        ----------
        x : array
            Of one shape on all ranks.
        op : "sum" or "max", default="sum"

        Returns
        -------
        array of the shape of x
        """
        flat = x.reshape(-1)
        cuts = self.cuts(flat.size)
        parts = [flat[start:end] for start, end in cuts]
        part = self.reduce_scatter(parts, op)
        gathered = self.all_gather(part, [(end - start,) for start, end in cuts])
        return np.concatenate(gathered).reshape(x.shape)

    def cuts(self, size):
        """Where `size` numbers are cut into world_size parts that differ by one at most."""
        return even_cuts(size, self.world_size)


def _contiguous(x):
    return x if x.flags.c_contiguous else x.copy()


def even_cuts(size, num_parts):
    """(start, end) of each of num_parts parts of range(size); the first ones are the longer."""
    short, longer = divmod(size, num_parts)
    ends = [short * (i + 1) + min(i + 1, longer) for i in range(num_parts)]
    return list(zip([0, *ends], ends, strict=False))


def num_bytes(shape, dtype):
    """Bytes of an array of this shape and dtype."""
    return math.prod(shape) * np.dtype(dtype).itemsize
