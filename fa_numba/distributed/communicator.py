"""A communicator: five operations by which ranks exchange arrays, independent of the transport.

A program for many GPUs is one function. Every rank calls it with its own part of the data and its
own communicator. `comm.rank` is the number of the rank, `comm.world_size` the number of ranks.

operation       a rank gives                    a rank receives
send_recv       an array for one other rank     the array of one other rank
all_to_all      an array for every rank         an array from every rank
all_gather      an array                        the arrays of all ranks
reduce_scatter  an array for every rank         the sum, or the maximum, of the arrays for it
all_reduce      an array                        the sum, or the maximum, of the arrays of all

An engine implements one method, `_start_exchange`. It starts to send arrays to some ranks and to
receive arrays from some ranks, as a group of sends and receives does in NCCL and in MPI. All five
operations use it. Sums and maxima are computed in the order of the ranks, never in the order of
arrival. So every run and every rank has the same bits.

A rank starts an exchange, computes, and then waits for the exchange. An engine may move the bytes
while the rank computes. The engine also chooses the buffers and the stream.

Ranks that differ in dtype, shape or an option would send arrays that the others do not expect, or
compute another mask. `agree` compares them before the first call of a layout, with 32 bytes from
each rank to each other, and not in later calls. With FA_NUMBA_CHECK_RANKS=1 in the environment of
all ranks it compares them in every call.
"""

import abc
import hashlib
import json
import math
import os
from dataclasses import dataclass, field

import numpy as np

from fa_numba.on_cuda_cores.running_state import copy
from fa_numba.runtime import arrays

REDUCTIONS = {"sum": np.add, "max": np.maximum}
CHECK_RANKS = "FA_NUMBA_CHECK_RANKS"  # environment variable: compare the ranks in every call
HOW_TO_COMPARE = f"{CHECK_RANKS}=1 compares the dtypes, shapes and options of all ranks"
MOST_AGREED = 1024  # layouts; then all ranks forget them, after the same call
QUESTION = b"fa-numba"  # the first of the 32 bytes by which a rank asks the others


class RankLostError(RuntimeError):
    """A rank has died or stalled, so this rank cannot go on.

    Attributes
    ----------
    rank : int or None
        The lost rank; None where all ranks wait for each other.
    """

    def __init__(self, message, rank=None):
        super().__init__(message)
        self.rank = rank


class RanksDifferError(ValueError):
    """Ranks call a function with different dtypes, shapes or options; every rank raises it.

    Attributes
    ----------
    on_all_ranks : bool
        Every rank has seen the difference for itself, so none has to be told.
    """

    on_all_ranks = False


@dataclass
class Step:
    """Counts of one rank in one step."""

    bytes_sent: int = 0  # to other ranks
    messages: int = 0  # arrays sent to other ranks
    pairs: int = 0  # pairs (query, key) that the mask allows, for one head and one batch entry


@dataclass
class Record:
    """The steps of one rank. `begin_step` opens a step; counts are added to the open step."""

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
    """The connection of one rank to all others.

    Attributes
    ----------
    rank : int
        From 0 to world_size − 1.
    world_size : int
    record : Record
        Bytes sent and pairs computed by this rank, step by step. The bytes of `agree` are not among
        them.
    checked : bool
        Whether `agree` compares the ranks in every call: the same on all ranks.
    """

    def __init__(self, rank, world_size):
        self.rank, self.world_size = rank, world_size
        self.record = Record()
        self.checked = os.environ.get(CHECK_RANKS, "0") not in ("", "0")
        self._agreed = set()

    @abc.abstractmethod
    def _start_exchange(self, outgoing, shapes, like):
        """Start to send `outgoing[r]` to rank r, and to receive an array of `shapes[r]` from it.

        What is sent is contiguous, not empty, and for other ranks only; the caller does not change
        it before the exchange is complete. The received arrays have the dtype and library of
        `like`. Returns a function that waits, and returns them by rank.
        """

    def start_exchange(self, outgoing, shapes, like):
        """Start to send an array to each of some ranks, and to receive one from each of some.

        Both sides know every shape beforehand. An empty array is not sent. Arrays from one rank
        arrive in the order in which that rank sent them.

        Parameters
        ----------
        outgoing : dict of int to array
            By rank of destination.
        shapes : dict of int to tuple of int
            By rank of source: the shape of its array.
        like : array
            The received arrays have its dtype and its library.

        Returns
        -------
        Arrival
            Its `wait` returns a dict of int to array, by rank of source.
        """
        mine = {r: copy(x) for r, x in outgoing.items() if r == self.rank}
        sent = {r: _contiguous(x) for r, x in outgoing.items() if r != self.rank and x.size}
        empty = {r: arrays.empty(like, s, like.dtype) for r, s in shapes.items() if 0 in s}
        expected = {r: s for r, s in shapes.items() if r != self.rank and r not in empty}
        step = self.record.step
        step.bytes_sent += sum(x.nbytes for x in sent.values())
        step.messages += len(sent)
        if not (sent or expected):
            return Arrival(lambda: mine | empty)
        wait = self._start_exchange(sent, expected, like)
        return Arrival(lambda: mine | empty | wait())

    def agree(self, function, like, equal=None, **facts):
        """Raise unless all ranks call a function alike; only the first call of a layout asks them.

        Parameters
        ----------
        function : str
        like : array
            The library and the device of the exchange.
        equal : dict of str to array, default=None
            Arrays whose values must be the same on all ranks. They are compared in the calls that
            ask, and do not make a layout new.
        **facts
            Dtype, sizes and options: numbers, texts, None, and tuples of them.

        Raises
        ------
        RanksDifferError
            On every rank. It names each fact that differs, and its value on each rank.
        """
        key = function, *facts.items()
        if self.world_size == 1 or (key in self._agreed and not self.checked):
            return
        facts = {"function": function, CHECK_RANKS: self.checked} | facts
        for name, x in (equal or {}).items():
            digest = hashlib.sha256(arrays.to_numpy(x).tobytes()).hexdigest()
            facts[f"digest of {name}"] = digest[:16]
        text = json.dumps(facts).encode()
        digest = QUESTION + hashlib.sha256(text).digest()[:24]
        digests = self._gather_bytes(digest, [len(digest)] * self.world_size, like)
        silent = [r for r, x in enumerate(digests) if not x.startswith(QUESTION)]
        if silent:  # their bytes are those of an array
            raise RanksDifferError(
                f"rank {self.rank} calls {function} with a dtype, a shape or an option that is new "
                f"here, and rank {silent[0]} does not; {HOW_TO_COMPARE}"
            )
        if len(set(digests)) > 1:
            sizes = self._gather_bytes(np.int64(len(text)).tobytes(), [8] * self.world_size, like)
            sizes = [int(np.frombuffer(size, np.int64)[0]) for size in sizes]
            texts = self._gather_bytes(text, sizes, like)
            error = RanksDifferError(differences(function, list(map(json.loads, texts))))
            error.on_all_ranks = True
            raise error
        if len(self._agreed) == MOST_AGREED:
            self._agreed.clear()
        self._agreed.add(key)

    def _gather_bytes(self, data, sizes, like):
        """The bytes of all ranks, by rank; sizes[r] are those of rank r. `record` omits them."""
        others = [r for r in range(self.world_size) if r != self.rank]
        x = arrays.from_numpy(like, np.array(bytearray(data), np.uint8))
        shapes = {r: (sizes[r],) for r in others}
        arrived = self._start_exchange(dict.fromkeys(others, x), shapes, x)()
        found = {r: arrays.to_numpy(part).tobytes() for r, part in arrived.items()}
        return [data if r == self.rank else found[r] for r in range(self.world_size)]

    def start_send_recv(self, x, destination, source, shape=None):
        """Start to send x to one rank and to receive an array of its dtype from one rank.

        Parameters
        ----------
        x : array
        destination, source : int
        shape : tuple of int, default=x.shape
            Shape of the received array.

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
            Needed if the ranks' arrays differ in shape.

        Returns
        -------
        list of world_size arrays, by rank
        """
        shapes = [x.shape] * self.world_size if shapes is None else shapes
        return self.all_to_all([x] * self.world_size, shapes)

    def reduce_scatter(self, pieces, op="sum"):
        """The sum, or the maximum, of the pieces for this rank, in the order of the ranks.

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
        2 (world_size − 1) / world_size times the array. To send the whole array to every rank would
        cost world_size − 1 times the array. Of two ranks each sends the whole array to the other:
        as many bytes, in one exchange and not in two.

        Parameters
        ----------
        x : array
            It has the same shape on all ranks.
        op : "sum" or "max", default="sum"

        Returns
        -------
        array of the shape of x
        """
        if self.world_size == 2:
            return REDUCTIONS[op](x, self.send_recv(x, 1 - self.rank, 1 - self.rank))
        flat = x.reshape(-1)
        cuts = self.cuts(flat.size)
        parts = [flat[start:end] for start, end in cuts]
        part = self.reduce_scatter(parts, op)
        gathered = self.all_gather(part, [(end - start,) for start, end in cuts])
        return np.concatenate(gathered).reshape(x.shape)

    def cuts(self, size):
        """(start, end) of each of world_size parts of range(size): see `even_cuts`."""
        return even_cuts(size, self.world_size)


def agree_on_attention(comm, function, q, k, layout, slopes=None, equal=None, **options):
    """`comm.agree` on the facts of an attention over ranks.

    The ranks may hold different numbers of tokens. `slopes` is the argument alibi_slopes; `equal`
    are other arrays whose values must be the same on all ranks.
    """
    seqlens = layout.cu_seqlens
    where = {"seqlen": seqlens[1]} if len(seqlens) == 2 else {"cu_seqlens": seqlens}
    if slopes is not None:
        equal = {"alibi_slopes": slopes} | (equal or {})
    comm.agree(
        function, q, equal,
        dtype=arrays.dtype_name(q), batch=q.shape[0], num_heads=q.shape[2],
        num_kv_heads=k.shape[2], head_dim=q.shape[3], layout=layout.name, **where,
        alibi_slopes="None" if slopes is None else "an array", **options,
    )  # fmt: skip


def differences(function, facts):
    """The message about ranks that differ, from each rank's `facts` for `Communicator.agree`."""
    found = []
    names = dict.fromkeys(name for of_rank in facts for name in of_rank)
    if len({of_rank["function"] for of_rank in facts}) > 1:  # then their options differ too
        names, function = ["function"], "one function"
    for name in names:
        values = [of_rank.get(name, "missing") for of_rank in facts]
        if all(isinstance(value, list) for value in values):
            name, values = _first_difference(name, values)
        ranks = {}
        for rank, value in enumerate(values):
            ranks.setdefault(json.dumps(value), []).append(rank)
        if len(ranks) > 1:
            fewest_first = sorted(ranks.items(), key=lambda item: len(item[1]))
            found.append(f"{name} is {', '.join(_on_ranks(*item) for item in fewest_first)}")
    return f"all ranks must call {function} with equal arguments, got: {'; '.join(found)}"


def _first_difference(name, values):
    """The name and the values of the first element that differs, of lists of the ranks."""
    lengths = list(map(len, values))
    if len(set(lengths)) > 1:
        return f"the number of elements of {name}", lengths
    for i, elements in enumerate(zip(*values, strict=True)):
        if len(set(map(json.dumps, elements))) > 1:
            return f"{name}[{i}]", elements
    return name, values


def _on_ranks(value, ranks):
    some = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
    return f"{value} on {some}"


def _contiguous(x):
    return x if x.flags.c_contiguous else copy(x)


def even_cut(size, num_parts, i):
    """(start, end) of part i of num_parts parts of range(size); the first ones are the longer."""
    short, longer = divmod(size, num_parts)
    return tuple(short * j + min(j, longer) for j in (i, i + 1))


def even_cuts(size, num_parts):
    """(start, end) of each part."""
    return [even_cut(size, num_parts, i) for i in range(num_parts)]


def num_bytes(shape, dtype):
    """Bytes of an array of this shape and dtype."""
    return math.prod(shape) * np.dtype(dtype).itemsize
