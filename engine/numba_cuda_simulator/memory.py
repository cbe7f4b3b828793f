"""The memory system: indices to offsets, loads and stores, allocation.

An array is indexed by lane values. `locate` turns the indices into one offset per thread, or
one for all; loading is then a gather and storing a scatter, or less where threads agree.
"""

import math
from collections.abc import Iterator
from functools import partial

import numpy as np

from .arrays import GlobalArray, LaneArray, LocalArray, SharedArray, pick, poison
from .devices import STATIC_SHARED_BYTES, chip
from .dtypes import TypedInts, as_index, is_floating, numpy_dtype, typed
from .errors import KernelError, KernelIndexError, LaunchError, UnsupportedError
from .intrinsics import EnumClass
from .lanes import ALL, Dim3, lane_dtype, type_name
from .options import TOO_MUCH_SHARED
from .records import Record, Records
from .syntax import FromEnd

STRAY = {
    True: "Numba counts it from the end of the array, as Python does; here only a literal is, "
    "as in x[-1]: a computed one is seldom meant.",
    False: "A GPU would use whatever memory lies there, without a word. Is the index right? An if "
    "keeps out the threads that have no element.",
}
MOST_KNOWN = 64  # index arrays remembered; each keeps its memory alive


class Memory:
    """Loads, stores and allocation.

    Parameters
    ----------
    lanes : Lanes
        The threads that load and store.
    options : Options
    watch : Watch or None
        Hears every access.
    dynamic_bytes : int
        Dynamic shared memory of a block.
    """

    def __init__(self, lanes, options, watch, dynamic_bytes):
        self.lanes, self.options, self.watch = lanes, options, watch
        self.dynamic_bytes = dynamic_bytes
        self.globals = []
        self.start_batch()

    def start_batch(self):
        """Forget the shared and local memory of the batch before."""
        self.allocations = {}  # Site -> SharedArray: one per call in the source
        self.shared_bytes = 0
        self.local_sizes = {}  # Site -> bytes of a thread's array: one per call in the source
        self.dynamic = None
        self.unchanged = None  # in a store: the threads that store what is there
        self.known = {}  # (id of an index, axis) -> (the index, its offsets): see locate

    def global_array(self, array, name):
        """Return a NumPy array as the kernel sees it."""
        whole = GlobalArray(array, name)
        self.globals.append(whole)
        if array.dtype.kind == "c":
            for part in "real", "imag":
                whole.parts[part] = GlobalArray(getattr(array, part), f"{name}.{part}")
                self.globals.append(whole.parts[part])
        return whole

    # ------------------------------------------------------------------ indices

    def locate(self, array, index, site):
        """Return the offset of an element: an int where all threads agree, else an array.

        Indices of active threads are checked against their axis; those of masked threads are
        made harmless. What all threads share is added up as plain ints.
        """
        if type(index) is not tuple:
            index = (index,)
        if len(index) != len(array.axes):
            self.refuse_count(array, index)
        offset, lanes, known = array.offset, array.lanes, self.known
        variables = site.variables
        if len(variables) != len(index):  # x[position] with a tuple
            variables = (False,) * len(index)
        for i, axis, is_variable in zip(index, array.axes, variables, strict=True):
            size, stride = axis
            if type(i) is np.int64:
                place = int(i)
                if not 0 <= place < size:
                    place = int(self.wrapped(i, size))
                    if not 0 <= place < size:
                        self.stray(i, self.lanes.mask, array, axis)
                offset += place * stride
                continue
            # The same variable again (x[row, c] for many c): checked and scaled already.
            found = known.get((id(i), axis)) if is_variable else None
            if found is not None and found[0] is i:
                step = found[1]
            else:
                step = self.check_index(i, array, axis)
                if not isinstance(step, np.ndarray):
                    offset += int(step) * stride
                    continue
                clean = step is i
                if stride != 1:
                    step = step * stride
                if is_variable and clean:
                    if len(known) > MOST_KNOWN:
                        known.clear()
                    known[id(i), axis] = i, step
            lanes = step if lanes is None else lanes + step
        if lanes is None:
            return offset
        return lanes + offset if offset else lanes

    def check_index(self, index, array, axis):
        """Return an index that is in range for every thread; an active stray one raises."""
        size, _ = axis
        if type(index) is FromEnd:
            index = np.int64(index + size if index >= -size else index)
        if type(index) is TypedInts:
            index = as_index(index)
        if isinstance(index, np.ndarray):
            if index.dtype.kind not in "iu":
                self.refuse_index(index, array)
            # As unsigned numbers negative ones are huge: one comparison serves both ends.
            if not index.size or np.maximum.reduce(index.view(np.uint64), axis=None) < size:
                return index
            given, index = index, self.wrapped(index, size)
            bad = (index < 0) | (index >= size)
            hit = bad if self.lanes.mask is ALL else bad & self.lanes.mask
            if np.count_nonzero(hit):
                self.stray(given, hit, array, axis)
            return np.where(bad, 0, index)
        if not isinstance(index, np.integer):
            self.refuse_index(index, array)
        if not 0 <= (place := self.wrapped(index, size)) < size:
            self.stray(index, self.lanes.mask, array, axis)
        return place

    def wrapped(self, index, size):
        """Return an index as Numba takes it, from the end if it is negative, if so it is to be."""
        if not self.options.wrap:
            return index
        return np.where(index < 0, index + size, index)[()]

    def refuse_count(self, array, index):
        given, has = len(index), len(array.axes)
        raise KernelIndexError(
            f"'{array.name}' has {has} dimension{'s' * (has != 1)} but is indexed with {given} "
            f"index{'es' * (given != 1)}",
            array=array.name,
            hint=f"Write {array.name}[{', '.join('ijklmnop'[:has])}], an index for each axis.",
        )

    def refuse_index(self, index, array):
        if isinstance(index, LaneArray) or not hasattr(index, "dtype"):
            if isinstance(index, Dim3):
                index.fail()
            raise UnsupportedError(f"'{array.name}' cannot be indexed by {type_name(index)}")
        raise KernelIndexError(
            f"an index of '{array.name}' must be an integer, got {type_name(index)}",
            array=array.name,
            hint="In Python / divides into a float; // stays with integers.",
        )

    def stray(self, index, hit, array, axis):
        full, found = self.lanes.full(index), self.lanes.full(True if hit is ALL else hit)
        where = np.unravel_index(found.T.argmax(), found.T.shape)
        value, (size, _), number = int(full.T[where]), axis, array.axes.index(axis)
        message = f"index {value} is out of bounds for axis {number} of '{array.name}',"
        message += f" whose size is {size},"
        hint = STRAY[-size <= value < 0]
        self.lanes.fail(hit, KernelIndexError, message, array=array.name, hint=hint)

    def view(self, array, index):
        """x[i] of a 2-D x, x[i, 2:5]: a sub-array, whose shape is the same for all threads."""
        if not isinstance(array, LaneArray):
            return self.load_other(array, index)
        index = index if isinstance(index, tuple) else (index,)
        if not any(i is ... for i in index):
            index += (...,)
        if len(index) - 1 > len(array.axes):
            self.refuse_count(array, tuple(i for i in index if i is not ...))
        gap = next(n for n, i in enumerate(index) if i is ...)
        missing = (slice(None),) * (len(array.axes) - len(index) + 1)
        index = index[:gap] + missing + index[gap + 1 :]
        offset, lanes, dims, strides = array.offset, array.lanes, [], []
        for i, axis in zip(index, array.axes, strict=True):
            size, stride = axis
            if type(i) is slice:
                start, stop, step = self.slice_bounds(array, i, size)
                dims.append(self.slice_length(array, start, stop, step))
                strides.append(stride * step)
                i = start
            else:
                i = self.check_index(i, array, axis)
            if isinstance(i, np.ndarray):
                lanes = i * stride if lanes is None else lanes + i * stride
            else:
                offset += int(i) * stride
        return array.view(offset, lanes, dims, strides)

    def slice_bounds(self, array, part, size):
        step = 1 if part.step is None else part.step
        if isinstance(step, np.ndarray):
            raise UnsupportedError(f"the step of a slice of '{array.name}' differs between threads")
        if step == 0:
            raise KernelError(f"the step of a slice of '{array.name}' is zero", array=array.name)
        low, high = (0, size) if step > 0 else (-1, size - 1)
        first, last = (low, high) if step > 0 else (high, low)
        start = np.int64(first) if part.start is None else self.clamp(part.start, size, low, high)
        stop = np.int64(last) if part.stop is None else self.clamp(part.stop, size, low, high)
        return start, stop, int(step)

    def slice_length(self, array, start, stop, step):
        length = np.maximum((stop - start + step - np.sign(step)) // step, 0)
        if isinstance(length, np.ndarray):
            active = pick(length, self.lanes.shape, self.lanes.mask)
            length = active[0]
            if (active != length).any():
                raise UnsupportedError(
                    f"a slice of '{array.name}' whose length differs between threads",
                    hint="Index the whole array, from the slice's start on.",
                )
        return int(length)

    @staticmethod
    def clamp(bound, size, low, high):
        bound = as_index(bound) if type(bound) is TypedInts else bound
        bound = np.where(bound < 0, bound + size, bound)[()]
        return np.clip(bound, low, high)

    # ------------------------------------------------------------------ load and store

    def load(self, array, index, site):
        if not isinstance(array, LaneArray):
            return self.load_other(array, index)
        if (len(index) if type(index) is tuple else 1) < len(array.axes):
            return self.view(array, index)
        offset = self.locate(array, index, site)
        value = array.load(self.lanes, offset)
        if self.watch is not None:
            if array.kind != "local":
                value = self.watch.load(array, offset, value, site)
            elif array.stored is not None and array.stored.left and not array.all_stored(offset):
                self.watch.load_local(array, offset, site)
        return typed(value) if array.needs_type else value

    def load_other(self, container, index):
        """Index a tuple, or what is made of records."""
        if isinstance(container, (Record, Records, EnumClass)):
            return container[index]
        if isinstance(container, tuple):
            if isinstance(index, np.ndarray):
                return self.part_of_tuple(container, index)
            if isinstance(index, slice):
                parts = (index.start, index.stop, index.step)
                return container[slice(*(None if p is None else int(p) for p in parts))]
            if not -len(container) <= index < len(container):
                raise KernelIndexError(
                    f"index {index} is out of bounds for a tuple of {len(container)}"
                )
            return container[index]
        if hasattr(container, "fail"):
            container.fail()
        raise UnsupportedError(f"{type_name(container)} cannot be indexed")

    def part_of_tuple(self, parts, index):
        """Return the part that each thread takes from a tuple whose parts are of one type."""
        if index.dtype.kind not in "iu":
            raise KernelIndexError(f"an index of a tuple must be an integer, got {index.dtype}")
        lanes, index, count = self.lanes, as_index(index), len(parts)
        bad = (index < -count) | (index >= count)
        hit = bad if lanes.mask is ALL else bad & lanes.mask
        if np.any(hit):
            lanes.fail(hit, KernelIndexError, f"an index is out of bounds for a tuple of {count},")
        place = np.where(bad, 0, index) % count
        taken = np.unique(pick(place, lanes.shape, lanes.mask))
        result = parts[int(taken[0])]
        for number in map(int, taken[1:]):
            if layout(parts[number]) != layout(result):
                raise UnsupportedError(
                    "threads take parts of several types from one tuple",
                    hint="Numba refuses it too. Make its parts all integers or all floats.",
                )
            part = parts[number]
            result = lanes.under(place == number, partial(lanes.blend, result, part))
        return result

    def store(self, array, index, value, site):
        if not isinstance(array, LaneArray):
            if isinstance(array, (Record, Records)):
                array.store(index, value, site)
                return
            if hasattr(array, "fail"):
                array.fail()
            raise UnsupportedError(f"{type_name(array)} cannot be stored into")
        offset = self.locate(array, index, site)
        if not isinstance(value, (np.ndarray, np.generic)):
            value = self.storable(value, array)
        if self.watch is not None and array.kind != "local":
            self.watch.store(array, offset, value, site)
        else:
            array.store(self.lanes, offset, value)

    def store_copy(self, array, index, value, site, source):
        """x[i] = x[j]: a thread whose i is its j changes nothing."""
        if self.watch is not None and isinstance(array, LaneArray):
            there = self.locate(array, source, site)
            self.unchanged = np.equal(self.locate(array, index, site), there)
        self.store(array, index, value, site)
        self.unchanged = None

    def fill(self, array, index, value, site):
        """x[2:5] = value: store one value to each element of a part."""
        part = self.view(array, index)
        if not isinstance(part, LaneArray) or isinstance(value, LaneArray):
            raise UnsupportedError(
                f"a slice of {type_name(array)} cannot take {type_name(value)}",
                hint="Loop over its elements.",
            )
        for element in np.ndindex(part.dims):
            self.store(part, tuple(map(np.int64, element)), value, site)

    def store_field(self, record, field, value, site):
        """r.x = value."""
        if not isinstance(record, Record):
            raise UnsupportedError(
                "assigning to an attribute cannot be used in a CUDA kernel",
                sites=[site],
                hint="Numba does not compile it for a GPU. Store into an element.",
            )
        record.store(field, value, site)

    def storable(self, value, array):
        if isinstance(value, (bool, int, float)):
            value = np.asarray(value)[()]
        if not isinstance(value, (np.ndarray, np.generic)):
            if hasattr(value, "fail"):
                value.fail()
            raise UnsupportedError(f"'{array.name}' cannot hold {type_name(value)}")
        return value

    # ------------------------------------------------------------------ sequences

    def sequence_turns(self, exits, site, called, *values):
        """Yield the loop variable of a loop over a tuple or array, enumerate(x) or zip(x, y)."""
        return self.lanes.same_turns(self.sequence(site, called, *values))

    def sequence(self, site, called, *values):
        """Return an iterator over a tuple or array, enumerate(x) or zip(x, y)."""
        if called == "enumerate":
            start = values[1] if len(values) > 1 else 0
            elements = enumerate(self.elements(values[0], site))
            return ((np.int64(start + i), x) for i, x in elements)
        turns = [self.elements(x, site) for x in values]
        return zip(*turns, strict=False) if called == "zip" else iter(turns[0])

    def elements(self, values, site):
        """Return the elements of a tuple or array, loaded when their turn comes."""
        if isinstance(values, (tuple, Iterator)):
            return values
        if getattr(values, "kind", None) is None:
            raise UnsupportedError(
                f"{type_name(values)} cannot be looped over",
                hint="Loops run over range(...), a tuple or an array.",
            )
        return (self.load(values, np.int64(i), site) for i in range(len(values)))

    def unpack(self, value, count, site):
        if getattr(value, "kind", None) is not None:
            value = tuple(self.elements(value, site))
        if not isinstance(value, tuple):
            raise UnsupportedError(f"cannot unpack {type_name(value)} into {count} variables")
        if len(value) != count:
            raise KernelError(f"cannot unpack {len(value)} values into {count} variables")
        return value

    # ------------------------------------------------------------------ allocation

    def shared_array(self, site, shape, dtype, alignment=None):
        """cuda.shared.array: one allocation per call in the source, whoever runs it."""
        dtype = element_dtype(dtype)
        array = self.allocations.get(site)
        if array is None:
            dims = constant_shape(shape, can_be_dynamic=True)
            if dims == (0,):
                array = self.dynamic_array(site, dtype)
            else:
                array = SharedArray(
                    site, site.name or "shared array", dtype, dims, self.lanes.num_blocks
                )
                self.shared_bytes += math.prod(dims) * array.itemsize
                if self.shared_bytes > STATIC_SHARED_BYTES:
                    raise LaunchError(
                        f"with '{array.name}' a block takes {self.shared_bytes} bytes of shared "
                        f"memory: it can have {STATIC_SHARED_BYTES} in arrays of fixed shape",
                        array=array.name,
                        hint="Make the tiles smaller, or use dynamic shared memory (shape 0).",
                    )
                self.check_shared_total(array)
            self.allocations[site] = array
        return array

    def check_shared_total(self, array):
        device = self.options.device
        total, limit = self.shared_bytes + self.dynamic_bytes, chip(device).shared_bytes_per_block
        if total > limit:
            raise LaunchError(
                f"with '{array.name}' a block takes {total} bytes of shared memory, "
                f"{self.dynamic_bytes} of them dynamic: it can have {limit} on {device}",
                array=array.name,
                hint=TOO_MUCH_SHARED,
            )

    def dynamic_array(self, site, dtype):
        """cuda.shared.array(0, dtype): all of them name the same memory."""
        dtype = np.dtype(dtype)
        if self.dynamic is None:
            rows = np.empty((self.dynamic_bytes // dtype.itemsize, self.lanes.num_blocks), dtype)
            poison(rows)
            self.dynamic = rows
        if dtype.itemsize != self.dynamic.dtype.itemsize:
            raise UnsupportedError("dynamic shared memory is used with two sizes of element")
        rows = self.dynamic.view(dtype)
        name = site.name or "dynamic shared memory"
        return SharedArray("dynamic", name, dtype, (len(rows),), self.lanes.num_blocks, rows)

    def local_array(self, site, shape, dtype, alignment=None):
        """cuda.local.array."""
        dtype = element_dtype(dtype)
        checked = self.watch is not None and self.options.uninitialised
        name, dims = site.name or "local array", constant_shape(shape)
        array = LocalArray(name, dtype, dims, self.lanes.mask, checked)
        self.local_sizes[site] = math.prod(array.dims) * array.itemsize
        return array

    def byte_strides(self, array):
        """x.strides, in bytes."""
        if not isinstance(array, LaneArray):
            return array.strides
        return tuple(np.int64(stride * array.itemsize) for stride in array.strides)

    def state(self):
        """Return a copy of all memory that a kernel can write (see waits.py)."""
        arrays = [a.flat.copy() for a in self.globals]
        return arrays + [a.flat.copy() for a in self.allocations.values()]


def element_dtype(type_):
    dtype = numpy_dtype(type_)
    if dtype.kind not in "biu" and not is_floating(dtype):
        raise UnsupportedError(
            f"shared and local arrays of {dtype} do not run on the CPU engine",
            hint="Make an array for each field.",
        )
    return dtype


def layout(value):
    """Return a value's type, of a tuple those of its parts."""
    return list(map(layout, value)) if isinstance(value, tuple) else str(lane_dtype(value))


def constant_shape(shape, can_be_dynamic=False):
    dims = shape if isinstance(shape, tuple) else (shape,)
    for n in dims:
        if isinstance(n, (np.ndarray, bool)) or not isinstance(n, (int, np.integer)):
            raise UnsupportedError(
                f"the shape of an array must be a compile-time constant, got {type_name(n)}"
            )
        if n < 0 or (n == 0 and not (can_be_dynamic and len(dims) == 1)):
            raise KernelError(f"the shape of an array has the size {int(n)}")
    return tuple(map(int, dims))
