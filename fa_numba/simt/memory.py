"""Arrays as kernels see them: global, shared and local memory.

An array is indexed by lane values. `locate` checks the indices of the active threads
against each axis and turns them into one offset; loading is then a gather and storing a
scatter, or cheaper where the offset is the same for all threads or all blocks.

Shared memory of a batch of blocks is kept as (elements, blocks): the element that all
threads of many blocks read at once is one contiguous row.
"""

import math

import numpy as np

from .dtypes import INT64, TypedInts, as_index, select, typed
from .errors import KernelError, KernelIndexError, LaunchError, UnsupportedError, thread_name
from .lanes import ALL, NOBODY, type_name

STATIC_SHARED_LIMIT = 48 * 1024  # bytes; every CUDA GPU


class LaneArray:
    """What the three kinds of memory have in common."""

    kind = ""
    __array_ufunc__ = None  # `x + 1` on a whole array is an error, not NumPy's broadcasting

    def __init__(self, name, dtype, dims, strides):
        self.name, self.dtype = name, np.dtype(dtype)
        self.itemsize = self.dtype.itemsize
        self.offset = 0  # of the first element, in elements; a lane value
        self.needs_type = self.dtype.kind in "iub" and self.dtype != INT64
        self.place(dims, strides)
        self.whole = self  # what this is a view of

    def place(self, dims, strides):
        self.dims, self.strides = tuple(dims), tuple(strides)  # what the engine computes with
        self.shape = tuple(map(np.int64, self.dims))  # what the kernel sees
        self.ndim = np.int64(len(self.dims))
        self.size = np.int64(math.prod(self.dims))

    def __len__(self):
        return self.dims[0]

    def __bool__(self):
        raise TypeError(f"the {self.kind} array '{self.name}' has no truth value")

    def __iter__(self):
        raise UnsupportedError(
            f"looping over the {self.kind} array '{self.name}'",
            hint="Loop over range(len(x)) and index it.",
        )

    def blend_with(self, old, mask):
        """A variable may be bound again to the same array, never to one array per thread."""
        if type(old) is type(self) and self.same_memory(old):
            return self
        raise UnsupportedError(
            f"threads choose between {type_name(old)} and {type_name(self)} for one variable",
            hint="Choose the index, or branch around the accesses.",
        )

    def element(self, offset):
        """Return the index of the element at an offset, as 'x[3, 4]'."""
        whole = self.whole
        rest, index = int(offset) - int(whole.offset), [0] * len(whole.dims)
        for axis in sorted(range(len(index)), key=lambda a: -abs(whole.strides[a])):
            stride, size = whole.strides[axis], whole.dims[axis]
            if stride and size > 1:
                # A negative stride counts down from the first element.
                steps = rest // stride if stride > 0 else -(rest // -stride)
                index[axis] = min(max(steps, 0), size - 1)
                rest -= index[axis] * stride
        return f"{self.name}[{', '.join(map(str, index))}]"

    def view(self, offset, dims, strides):
        """Return a sub-array, as x[i] of a 2-D x."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.offset = offset
        other.place(dims, strides)
        return other


class GlobalArray(LaneArray):
    """A NumPy array passed to the kernel: the GPU's device memory (HBM)."""

    kind = "global"

    def __init__(self, array, name):
        itemsize = array.dtype.itemsize
        if any(stride % itemsize for stride in array.strides):
            raise LaunchError(f"'{name}' has strides that are not whole elements; copy it first")
        super().__init__(name, array.dtype, array.shape, (s // itemsize for s in array.strides))
        self.array = array
        # One flat view from the lowest address to the highest, whatever the strides.
        steps = tuple(slice(None, None, -1 if s < 0 else 1) for s in array.strides)
        ascending = array[steps]
        extent = sum((n - 1) * s for n, s in zip(self.dims, map(abs, self.strides), strict=True))
        self.flat = np.lib.stride_tricks.as_strided(
            ascending, (extent + 1 if array.size else 0,), (itemsize,)
        )
        self.offset = sum(
            (1 - n) * s for n, s in zip(self.dims, self.strides, strict=True) if s < 0
        )
        self.alignment = alignment(self.flat)

    def same_memory(self, other):
        return other.flat is self.flat and other.dims == self.dims and other.offset is self.offset

    def load(self, machine, offset):
        return self.flat.take(offset)

    def store(self, machine, offset, value):
        scatter(self.flat, offset, value, machine.mask)

    def addresses(self, machine, offset):
        """Return the places in `flat` of an offset, for atomics."""
        return offset


class SharedArray(LaneArray):
    """A tile in shared memory, one copy per block."""

    kind = "shared"

    alignment = 0

    def __init__(self, memory, name, dtype, dims, num_blocks, rows=None):
        super().__init__(name, dtype, dims, row_major(dims))
        self.memory = memory  # names the piece of shared memory; arrays may share one
        self.num_blocks = num_blocks
        if rows is None:
            rows = np.empty((math.prod(dims), num_blocks), self.dtype)
            poison(rows)
        self.use(rows)

    def use(self, rows):
        """Take the elements from here, (elements, blocks)."""
        self.rows, self.flat = rows, rows.reshape(-1)
        self.extent = len(rows)

    def same_memory(self, other):
        return other.rows is self.rows and other.dims == self.dims and other.offset is self.offset

    def load(self, machine, offset):
        if self.num_blocks == 1:
            return self.flat.take(offset)
        if not isinstance(offset, np.ndarray):
            return self.rows[offset].reshape(1, 1, 1, -1).copy()
        if offset.shape[3] == 1:
            return self.rows.take(offset[..., 0], axis=0)
        return self.flat.take(offset * self.num_blocks + machine.block_column)

    def store(self, machine, offset, value):
        mask = machine.mask
        if self.num_blocks == 1:
            scatter(self.flat, offset, value, mask)
        elif (isinstance(offset, np.ndarray) and offset.shape[3] > 1) or (
            mask is not ALL and mask.shape[3] > 1
        ):
            scatter(self.flat, offset * self.num_blocks + machine.block_column, value, mask)
        else:
            # The same elements in every block: whole rows.
            offset, value = spread(offset), spread(value)
            lanes = np.broadcast_shapes(offset.shape[:3], value.shape[:3])
            if mask is not ALL:
                lanes = np.broadcast_shapes(lanes, mask.shape[:3])
            offset = np.broadcast_to(offset[..., 0], lanes)
            value = np.broadcast_to(value, (*lanes, value.shape[3]))
            if mask is not ALL:
                mask = np.broadcast_to(mask[..., 0], lanes)
                offset, value = offset[mask], value[mask]
            self.rows[offset] = value

    def addresses(self, machine, offset):
        return offset * self.num_blocks + machine.block_column


class LocalArray(LaneArray):
    """A thread's own array (registers or local memory): a list of lane values.

    As with variables, a store under the mask that the array was made under overwrites.
    """

    kind = "local"

    def __init__(self, name, dtype, dims, home):
        super().__init__(name, dtype, dims, row_major(dims))
        start = np.zeros((), self.dtype)
        poison(start)
        self.values = [start[()]] * math.prod(dims)
        self.home = home

    def same_memory(self, other):
        return other.values is self.values

    def blend_with(self, old, mask):
        if isinstance(old, LocalArray) and old.dims == self.dims and old.dtype == self.dtype:
            pairs = zip(old.values, self.values, strict=True)
            self.values = [new if new is o else select(mask, new, o) for o, new in pairs]
            self.home = ALL
            return self
        return super().blend_with(old, mask)

    def load(self, machine, offset):
        if not isinstance(offset, np.ndarray):
            return self.values[offset]
        stacked = np.stack([np.broadcast_to(v, machine.shape) for v in self.values])
        where = np.broadcast_to(offset, machine.shape)[None]
        return np.take_along_axis(stacked, where, 0)[0]

    def store(self, machine, offset, value):
        value = value if value.dtype == self.dtype else value.astype(self.dtype)
        if isinstance(value, TypedInts):
            value = value.view(np.ndarray)
        mask, values = machine.mask, self.values
        if not isinstance(offset, np.ndarray):
            if mask is ALL or mask is self.home:
                values[offset] = value
            else:
                values[offset] = np.where(mask, value, values[offset])
            return
        for element in np.unique(offset):
            chosen = offset == element
            if mask is not ALL:
                chosen = chosen & mask
            values[element] = np.where(chosen, value, values[element])


def alignment(flat):
    """Return where an array starts within a 32-byte sector.

    GPU allocations start at one; a slice of an array starts where it starts.
    """
    base = flat
    while isinstance(base.base, np.ndarray):
        base = base.base
    return (flat.ctypes.data - base.ctypes.data) % 32 if base.size else 0


def row_major(dims):
    strides, step = [], 1
    for n in reversed(dims):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def poison(values):
    """Fill with what no sensible program computes: memory starts uninitialised on a GPU."""
    if values.dtype.kind == "f":
        values.fill(np.nan)
    elif values.dtype.kind in "iu":
        values.fill(np.iinfo(values.dtype).max // 3 * 2)


def spread(value):
    """Return a lane value as an array of four axes."""
    return value if isinstance(value, np.ndarray) else np.full((1, 1, 1, 1), value)


def pick(value, shape, mask):
    """Return a lane value's elements of the active threads, in thread order."""
    full = np.broadcast_to(value, shape)
    return full.reshape(-1) if mask is ALL else full[np.broadcast_to(mask, shape)]


def same_values(a, b):
    """Compare element by element; NaN is the same as NaN."""
    return (a == b) | ((a != a) & (b != b))


def scatter(flat, offset, value, mask):
    """Store for the active threads; where several hit one element, the last one wins."""
    if mask is ALL:
        if not isinstance(offset, np.ndarray):
            flat[offset] = value.reshape(-1)[-1] if isinstance(value, np.ndarray) else value
            return
        if isinstance(value, np.ndarray) and value.shape != offset.shape:
            shape = np.broadcast_shapes(offset.shape, value.shape)
            offset = np.broadcast_to(offset, shape)
        flat[offset] = value
        return
    shape = mask.shape
    if isinstance(offset, np.ndarray) and offset.shape != shape:
        shape = np.broadcast_shapes(shape, offset.shape)
    if isinstance(value, np.ndarray) and value.shape != shape:
        shape = np.broadcast_shapes(shape, value.shape)
    mask = mask if mask.shape == shape else np.broadcast_to(mask, shape)
    if isinstance(value, np.ndarray):
        value = (value if value.shape == shape else np.broadcast_to(value, shape))[mask]
    if isinstance(offset, np.ndarray):
        offset = (offset if offset.shape == shape else np.broadcast_to(offset, shape))[mask]
        flat[offset] = value
    else:
        flat[offset] = value[-1] if isinstance(value, np.ndarray) else value


class Memory:
    """Loads, stores and allocation; the machine's memory system."""

    def start_memory(self, dynamic_bytes):
        self.allocations = {}  # Site -> SharedArray: one per call in the source
        self.shared_bytes = 0
        self.dynamic_bytes = dynamic_bytes
        self.dynamic = None
        column = np.arange(self.num_blocks).reshape(1, 1, 1, -1)
        self.block_column = column if self.num_blocks > 1 else np.int64(0)

    # ------------------------------------------------------------------ indices

    def check_index(self, index, array, axis):
        """Return an index that is in range for every thread; an active stray one raises."""
        size = array.dims[axis]
        if type(index) is TypedInts:
            index = as_index(index)
        if isinstance(index, np.ndarray):
            if index.dtype.kind not in "iu":
                self.refuse_index(index, array)
            # As unsigned numbers negative ones are huge: one comparison serves both ends.
            if index.size == 0 or index.view(np.uint64).max() < size:
                return index
            bad = (index < 0) | (index >= size)
            hit = bad if self.mask is ALL else bad & self.mask
            if not hit.any():
                return np.where(bad, 0, index)
            return self.stray(index, hit, array, axis)
        if not isinstance(index, np.integer):
            self.refuse_index(index, array)
        if 0 <= index < size:
            return index
        return self.stray(index, self.mask, array, axis)

    def refuse_index(self, index, array):
        if isinstance(index, LaneArray) or not hasattr(index, "dtype"):
            raise UnsupportedError(f"indexing '{array.name}' by {type_name(index)}")
        raise KernelIndexError(
            f"an index of '{array.name}' must be an integer, got {type_name(index)}",
            array=array.name,
        )

    def stray(self, index, hit, array, axis):
        thread, block, more = self.culprit(hit)
        full, hit = self.full(index), self.full(True if hit is ALL else hit)
        where = np.unravel_index(hit.T.argmax(), hit.T.shape)
        value, size = int(full.T[where]), array.dims[axis]
        wraps = -size <= value < 0
        raise KernelIndexError(
            f"index {value} is out of bounds for axis {axis} of '{array.name}', whose size is "
            f"{size}, in {thread_name(thread, block)}{more}",
            array=array.name,
            thread=thread,
            block=block,
            hint="Numba would wrap this to the end of the array." if wraps else None,
        )

    def locate(self, array, index):
        """Return the offset of an element, or a view if the index picks a sub-array."""
        if type(index) is not tuple:
            index = (index,)
        if len(index) > len(array.dims):
            raise KernelIndexError(
                f"'{array.name}' has {len(array.dims)} dimensions but is indexed with {len(index)}",
                array=array.name,
            )
        offset, strides = array.offset, array.strides
        for axis, i in enumerate(index):
            if type(i) is slice:
                return self.locate_view(array, index)
            i = self.check_index(i, array, axis)
            stride = strides[axis]
            step = i if stride == 1 else i * stride
            offset = step if type(offset) is int and not offset else offset + step
        if len(index) < len(array.dims):
            return array.view(offset, array.dims[len(index) :], strides[len(index) :])
        return offset

    def locate_view(self, array, index):
        """x[i, 2:5]: a view whose shape must be the same for all threads."""
        offset, dims, strides = array.offset, [], []
        for axis in range(len(array.dims)):
            i = index[axis] if axis < len(index) else slice(None)
            size, stride = array.dims[axis], array.strides[axis]
            if type(i) is not slice:
                offset = offset + self.check_index(i, array, axis) * stride
                continue
            if i.step is not None and (isinstance(i.step, np.ndarray) or i.step != 1):
                raise UnsupportedError(f"slicing '{array.name}' with a step")
            start, stop = (
                self.clamp(bound, size, default)
                for bound, default in ((i.start, np.int64(0)), (i.stop, np.int64(size)))
            )
            length = np.maximum(stop - start, 0)
            if isinstance(length, np.ndarray):
                if (length != length.flat[0]).any():
                    raise UnsupportedError(
                        f"a slice of '{array.name}' whose length differs between threads"
                    )
                length = length.flat[0]
            offset = offset + start * stride
            dims.append(int(length))
            strides.append(stride)
        return array.view(offset, dims, strides)

    @staticmethod
    def clamp(bound, size, default):
        if bound is None:
            return default
        bound = as_index(bound) if type(bound) is TypedInts else bound
        bound = np.where(bound < 0, bound + size, bound)[()]
        return np.clip(bound, 0, size)

    # ------------------------------------------------------------------ load and store

    def load(self, array, index, site):
        if not isinstance(array, LaneArray):
            return self.load_other(array, index)
        offset = self.locate(array, index)
        if isinstance(offset, LaneArray):
            return offset
        value = array.load(self, offset)
        if self.watch is not None and array.kind != "local":
            value = self.watch.load(array, offset, value, site)
        return typed(value) if array.needs_type else value

    def load_other(self, container, index):
        """Index a tuple."""
        if isinstance(container, tuple):
            if isinstance(index, np.ndarray):
                raise UnsupportedError("indexing a tuple differently in each thread")
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
        raise UnsupportedError(f"indexing {type_name(container)}")

    def store(self, array, index, value, site):
        if not isinstance(array, LaneArray):
            if hasattr(array, "fail"):
                array.fail()
            raise UnsupportedError(f"storing into {type_name(array)}")
        offset = self.locate(array, index)
        if isinstance(offset, LaneArray):
            return self.fill(offset, value, index)
        value = self.storable(value, array)
        if self.watch is not None and array.kind != "local":
            self.watch.store(array, offset, value, site)
        else:
            array.store(self, offset, value)
        return None

    def storable(self, value, array):
        if isinstance(value, (bool, int, float)):
            value = np.asarray(value)[()]
        if not isinstance(value, (np.ndarray, np.generic)):
            if hasattr(value, "fail"):
                value.fail()
            raise UnsupportedError(f"storing {type_name(value)} into '{array.name}'")
        return value

    def fill(self, view, value, index):
        count = len(index) if isinstance(index, tuple) else 1
        raise UnsupportedError(
            f"'{view.name}' is stored to with {count} index{'es' * (count > 1)}, which is a whole "
            "row, not an element",
            hint="Loop over its elements.",
        )

    # ------------------------------------------------------------------ allocation

    def shared_array(self, site, shape, dtype):
        """cuda.shared.array: one allocation per call in the source, whoever runs it."""
        array = self.allocations.get(site)
        if array is None:
            dims = constant_shape(shape)
            if dims == (0,):
                array = self.dynamic_array(site, dtype)
            else:
                array = SharedArray(site, site.name or "shared array", dtype, dims, self.num_blocks)
                self.shared_bytes += math.prod(dims) * array.itemsize
                if self.shared_bytes > STATIC_SHARED_LIMIT:
                    raise LaunchError(
                        f"{self.shared_bytes} bytes of shared memory are more than the "
                        f"{STATIC_SHARED_LIMIT} that a block can declare with fixed shapes",
                        array=array.name,
                        hint="Smaller tiles, or dynamic shared memory (shape 0).",
                    )
            self.allocations[site] = array
        return array

    def dynamic_array(self, site, dtype):
        """cuda.shared.array(0, dtype): all of them name the same memory."""
        dtype = np.dtype(dtype)
        if self.dynamic is None:
            rows = np.empty((self.dynamic_bytes // dtype.itemsize, self.num_blocks), dtype)
            poison(rows)
            self.dynamic = rows
        if dtype.itemsize != self.dynamic.dtype.itemsize:
            raise UnsupportedError("dynamic shared memory used with two sizes of element")
        rows = self.dynamic.view(dtype)
        name = site.name or "dynamic shared memory"
        return SharedArray("dynamic", name, dtype, (len(rows),), self.num_blocks, rows)

    def local_array(self, site, shape, dtype):
        return LocalArray(site.name or "local array", dtype, constant_shape(shape), self.mask)

    def memory_state(self):
        """Return a copy of all memory that a kernel can write (see waits.py)."""
        arrays = [a.flat.copy() for a in self.globals]
        return arrays + [a.flat.copy() for a in self.allocations.values()]


def constant_shape(shape):
    dims = shape if isinstance(shape, tuple) else (shape,)
    for n in dims:
        if isinstance(n, np.ndarray) or not isinstance(n, (int, np.integer)):
            raise UnsupportedError(
                f"the shape of an array must be a compile-time constant, got {type_name(n)}"
            )
        if n < 0:
            raise KernelError(f"the shape of an array has a negative size, {int(n)}")
    return tuple(map(int, dims))


def nobody(mask):
    return mask is NOBODY
