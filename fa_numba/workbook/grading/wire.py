"""Values between the judge and the answering process, as JSON and raw buffers.

Nothing is pickled: a message from an answer must not be able to run code in the judge. A
number, a text, None and a bool stand for themselves in the JSON; everything else is a list whose
first item is a tag. Values of other types are whatever the two subclasses of `Codec` make of them.

An array that the judge sends is a *window* of memory and a view into it. The other side rebuilds
the view at the same offset within a 32-byte sector, two views of one memory overlap there as they
do here, and changes are copied back after the call. That is how kernels write outputs.
"""

from __future__ import annotations

import json
import select
import struct
from collections import deque
from fractions import Fraction

import numpy as np

HEADER = struct.Struct("!QI")
SIZE = struct.Struct("!Q")
MOST_BYTES = 1 << 29  # of one message
MOST_BUFFERS = 1 << 16
MOST_BITS = 1 << 13  # of a whole number: Python reads no more than 4300 digits back
SECTOR = 32
PLAIN = {type(None), bool, int, float, str}


class WireError(Exception):
    """A received message is malformed, or a value cannot be sent."""


class Closed(Exception):
    """The other process has gone."""


class Channel:
    """Messages over a socket: a JSON value and buffers."""

    def __init__(self, sock):
        self.sock = sock
        self.read_ahead = b""

    def send(self, message, buffers=()):
        text = json.dumps(message).encode()
        parts = [HEADER.pack(len(text), len(buffers))]
        parts += [SIZE.pack(len(b)) for b in buffers]
        try:
            self.sock.sendall(b"".join([*parts, text]))
            for buffer in buffers:
                self.sock.sendall(buffer)
        except OSError as error:
            raise Closed from error

    def receive(self, wait=None):
        """(message, buffers). `wait` is called when nothing comes for a while; it may raise."""
        length, count = HEADER.unpack(self._exactly(HEADER.size, wait))
        if length > MOST_BYTES or count > MOST_BUFFERS:
            raise WireError("a message that is too long")
        head = self._exactly(SIZE.size * count, wait)
        sizes = [SIZE.unpack_from(head, SIZE.size * i)[0] for i in range(count)]
        if length + sum(sizes) > MOST_BYTES:
            raise WireError("a message that is too long")
        text = self._exactly(length, wait)
        buffers = [self._exactly(size, wait) for size in sizes]
        try:
            return json.loads(bytes(text)), buffers
        except (ValueError, RecursionError) as error:
            raise WireError("no JSON") from error

    def _exactly(self, size, wait):
        """The next bytes; most messages come whole with the first read."""
        data = bytearray(size)
        got = min(size, len(self.read_ahead))
        data[:got] = self.read_ahead[:got]
        self.read_ahead = self.read_ahead[got:]
        view = memoryview(data)[got:]
        while len(view):
            if wait is not None and not select.select([self.sock], [], [], 0.05)[0]:
                wait()
                continue
            try:
                new = self.sock.recv(1 << 16 if len(view) < 1 << 16 else 1 << 20)
            except OSError as error:
                raise Closed from error
            if not new:
                raise Closed
            got = min(len(view), len(new))
            view[:got] = new[:got]
            self.read_ahead = new[got:]
            view = view[got:]
        return data

    def close(self):
        self.sock.close()


def root_of(array):
    """The array that owns the memory of a view."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def byte_bounds(array):
    """First address of an array, and the one after its last byte."""
    low = high = array.__array_interface__["data"][0]
    for size, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0:
            low += (size - 1) * stride
        else:
            high += (size - 1) * stride
    return low, high + array.itemsize


def dtype_name(dtype):
    """A dtype as JSON; object arrays cannot be sent."""
    if dtype.hasobject:
        raise WireError("an array of Python objects: it must hold numbers")
    if dtype.names:
        return [list(field) for field in dtype.descr]
    return "bfloat16" if dtype.name == "bfloat16" else dtype.str


def dtype_of(name):
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    if isinstance(name, list):
        dtype = np.dtype([(f[0], f[1], *(tuple(x) for x in f[2:])) for f in name])
    else:
        dtype = np.dtype(str(name))
    if dtype.hasobject:  # addresses, which the other side could choose
        raise WireError("an array of Python objects")
    return dtype


class Window:
    """A range of memory with arrays of one call."""

    def __init__(self, root):
        self.root = root
        self.start = byte_bounds(root)[0]
        self.low, self.high = None, None
        self.arrays = []

    def cover(self, array):
        low, high = byte_bounds(array)
        low = self.start + (low - self.start) // SECTOR * SECTOR
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)
        self.arrays.append(array)

    def memory(self):
        """The bytes from low to high, to read and to write."""
        size = self.high - self.low
        interface = {"data": (self.low, False), "shape": (size,), "typestr": "|u1", "version": 3}
        holder = type("Memory", (), {"__array_interface__": interface, "keeps": self.root})()
        return np.asarray(holder)


class Codec:
    """Encodes values for the other side and decodes its own, with the arrays of one message."""

    def __init__(self, buffers=()):
        self.buffers = list(buffers)  # of the message that is written, or read

    # --- writing

    def encode(self, value):
        kind = type(value)
        if kind is int and value.bit_length() > MOST_BITS:
            raise WireError(f"a whole number of {value.bit_length():,} bits")
        if kind in PLAIN:
            return value
        if isinstance(value, np.ndarray):
            return self.encode_array(value)
        if isinstance(value, np.generic):
            return ["n", dtype_name(value.dtype), self.add(value.tobytes())]
        if isinstance(value, np.dtype):
            return ["dtype", dtype_name(value)]
        for plain in (int, float, str):  # a subclass may lie about itself: its value goes
            if isinstance(value, plain):
                return self.encode(plain.__str__(value) if plain is str else plain.__pos__(value))
        if isinstance(value, complex):
            return ["c", value.real, value.imag]
        if isinstance(value, Fraction):
            return ["f", value.numerator, value.denominator]
        if isinstance(value, bytes | bytearray):
            return ["b", self.add(bytes(value))]
        if isinstance(value, tuple):
            return ["t", [self.encode(x) for x in tuple.__iter__(value)]]
        if isinstance(value, list | deque):
            return ["l", [self.encode(x) for x in type(value).__iter__(value)]]
        if isinstance(value, dict):
            return ["d", [[self.encode(k), self.encode(v)] for k, v in dict.items(value)]]
        if isinstance(value, set | frozenset):
            return ["s", [self.encode(x) for x in value]]
        if isinstance(value, range):
            return ["r", value.start, value.stop, value.step]
        if isinstance(value, slice):
            return ["slice", *map(self.encode, (value.start, value.stop, value.step))]
        if value is Ellipsis:
            return ["..."]
        if isinstance(value, type) and issubclass(value, np.generic):
            return ["scalar", np.dtype(value).name]
        return self.encode_other(value)

    def add(self, data):
        self.buffers.append(data)
        return len(self.buffers) - 1

    def encode_array(self, array):
        """A copy; the judge's side sends views instead."""
        data = np.ascontiguousarray(array)
        return ["a", dtype_name(array.dtype), list(array.shape), self.add(data.tobytes())]

    def encode_other(self, value):
        raise WireError(f"a {type(value).__name__}")

    # --- reading

    def decode(self, data):
        if type(data) in PLAIN:
            return data
        if type(data) is not list or not data or type(data[0]) is not str:
            raise WireError("no value")
        tag, *rest = data
        reader = getattr(self, f"read_{tag}" if tag != "..." else "read_dots", None)
        if reader is None:
            raise WireError(f"no value is tagged {tag[:20]}")
        return reader(*rest)

    def buffer(self, index):
        return self.buffers[int(index)]

    read_dtype, read_r = staticmethod(dtype_of), staticmethod(range)

    def read_n(self, dtype, index):
        return np.frombuffer(self.buffer(index), dtype_of(dtype), 1)[0]

    def read_scalar(self, name):
        return dtype_of(name).type

    def read_c(self, real, imag):
        return complex(real, imag)

    def read_f(self, numerator, denominator):  # a lone text could be a number without end
        return Fraction(numerator, denominator)

    def read_b(self, index):
        return bytes(self.buffer(index))

    def read_t(self, items):
        return tuple(self.decode(x) for x in items)

    def read_l(self, items):
        return [self.decode(x) for x in items]

    def read_d(self, items):
        return {self.decode(k): self.decode(v) for k, v in items}

    def read_s(self, items):
        return {self.decode(x) for x in items}

    def read_slice(self, *parts):
        return slice(*map(self.decode, parts))

    def read_dots(self):
        return Ellipsis

    def read_a(self, dtype, shape, index):
        array = np.frombuffer(self.buffer(index), dtype_of(dtype))
        return array.reshape([int(n) for n in shape])


class SendingWindows(Codec):
    """The judge's side: arrays go as windows of its memory."""

    def __init__(self):
        super().__init__()
        self.windows = {}  # id of the root -> Window
        self.placed = []  # (JSON of a view, window, array), completed once all are known

    def encode_array(self, array):
        if not array.size or array.dtype.names or array.dtype.hasobject:
            return super().encode_array(array)
        root = root_of(array)
        window = self.windows.setdefault(id(root), Window(root))
        window.cover(array)
        number = list(self.windows).index(id(root))
        data = ["w", number, dtype_name(array.dtype), list(array.shape), list(array.strides)]
        self.placed.append((data, window, array))
        return data

    def finish(self):
        """Complete the views; return the windows' positions in the buffers."""
        for data, window, array in self.placed:
            data += [array.__array_interface__["data"][0] - window.low, array.flags.writeable]
        return [self.add(window.memory().tobytes()) for window in self.windows.values()]

    def write_back(self, changed, buffers):
        """Copy changed windows into the judge's arrays."""
        windows = list(self.windows.values())
        for number, index in changed:
            if any(array.flags.writeable for array in windows[number].arrays):
                memory = windows[number].memory()
                memory[:] = np.frombuffer(buffers[index], np.uint8)


class ReceivingWindows(Codec):
    """The answering side: rebuilds the windows, and finds the changes."""

    def __init__(self, buffers, windows):
        super().__init__(buffers)
        self.before = [bytes(buffers[i]) for i in windows]
        self.memory = []
        for data in self.before:
            own = np.empty(len(data) + SECTOR, np.uint8)
            shift = -own.__array_interface__["data"][0] % SECTOR
            own[shift : shift + len(data)] = np.frombuffer(data, np.uint8)
            # An array of its own, so that the engine counts sectors from its first byte.
            self.memory.append(np.frombuffer(memoryview(own)[shift : shift + len(data)], np.uint8))

    def read_w(self, number, dtype, shape, strides, offset, writeable):
        memory = self.memory[number]
        array = np.ndarray(shape, dtype_of(dtype), memory, offset, strides)
        array.flags.writeable = writeable
        return array

    def changed(self):
        """(window, bytes) of the call's stores."""
        for number, (before, memory) in enumerate(zip(self.before, self.memory, strict=True)):
            after = memory.tobytes()
            if after != before:
                yield number, after
