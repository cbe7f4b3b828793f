"""The three kinds of array that kernels see: in global, shared and local memory.

Shared memory of a batch of blocks is kept as (elements, blocks): the element that all
threads of many blocks read at once is one contiguous row.
"""

import copy
import functools
import math

import numpy as np

from .dtypes import INT64, TypedInts, as_intp, common_shape, is_floating, select, stretch
from .errors import KernelError, LaunchError, UnsupportedError
from .lanes import ALL, refuse_mixture, without


class LaneArray:
    """What the three kinds of memory have in common."""

    kind = ""
    __array_ufunc__ = None  # `x + 1` on a whole array is an error, not NumPy's broadcasting

    def __init__(self, name, dtype, dims, strides):
        self.name, self.dtype = name, np.dtype(dtype)
        self.itemsize = self.dtype.itemsize
        # Where the first element is: the same for all threads, plus what differs (of a view).
        self.offset, self.lanes = 0, None
        self.needs_type = self.dtype.kind in "iub" and self.dtype != INT64
        self.place(dims, strides)
        self.whole = self  # what this is a view of

    def place(self, dims, strides):
        self.dims, self.strides = tuple(dims), tuple(strides)  # what the engine computes with
        self.axes = tuple(zip(self.dims, self.strides, strict=True))
        self.shape = tuple(map(np.int64, self.dims))  # what the kernel sees
        self.ndim = np.int64(len(self.dims))
        self.size = np.int64(math.prod(self.dims))
        self.nbytes = np.int64(self.size * self.itemsize)

    real = property(lambda self: self.part("real"))
    imag = property(lambda self: self.part("imag"))

    def part(self, name):
        if self.dtype.kind != "c" and name == "real":
            return self
        raise UnsupportedError(
            f"'{self.name}.{name}' of the {self.kind} array '{self.name}' of {self.dtype}",
            hint=f"Write {self.name}[i].{name}: the part of an element.",
        )

    @property
    def T(self):
        return self.view(self.offset, self.lanes, self.dims[::-1], self.strides[::-1])

    def reshape(self, *shape):
        """x.reshape(2, 16) or x.reshape((2, 16)): the same elements in another shape."""
        dims = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        if any(isinstance(n, np.ndarray) for n in dims):
            raise UnsupportedError(f"the shape for '{self.name}' differs between threads")
        dims = list(map(int, dims))
        if not self.is_contiguous("C"):
            raise UnsupportedError(
                f"'{self.name}' cannot be reshaped: its elements do not lie one after the other"
            )
        rest = math.prod(n for n in dims if n != -1)
        if dims.count(-1) == 1 and rest and self.size % rest == 0:
            dims[dims.index(-1)] = int(self.size) // rest
        if min(dims, default=1) < 0 or math.prod(dims) != self.size:
            shape = tuple(dims)
            raise KernelError(
                f"'{self.name}' of {self.size} elements cannot have the shape {shape}"
            )
        return self.view(self.offset, self.lanes, dims, row_major(dims))

    def ravel(self):
        """x.ravel(): all elements in a row."""
        return self.reshape(self.size)

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
        """A variable may hold another part of one array in each thread, never another array."""
        if type(old) is type(self) and self.shares(old) and self.axes == old.axes:
            if self.place_is(old):
                return self
            mine, others = (v.offset + (0 if v.lanes is None else v.lanes) for v in (self, old))
            return self.view(0, select(mask, mine, others), self.dims, self.strides)
        refuse_mixture(old, self, "Choose the index, or branch around the accesses.")

    def place_is(self, other):
        """Tell whether two views show the same elements."""
        mine, theirs = (self.offset, self.axes), (other.offset, other.axes)
        return mine == theirs and self.lanes is other.lanes

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

    def is_contiguous(self, layout):
        """Tell whether all elements lie one after the other, rows first (C) or columns (F)."""
        dims, strides = (
            (self.dims, self.strides) if layout == "C" else (self.dims[::-1], self.strides[::-1])
        )
        pairs = zip(dims, strides, row_major(dims), strict=True)
        return 0 in dims or all(n == 1 or stride == packed for n, stride, packed in pairs)

    def layout(self):
        """Return the letter that Numba's array types have for it."""
        return next((x for x in "CF" if self.is_contiguous(x)), "A")

    def view(self, offset, lanes, dims, strides):
        """Return a sub-array, as x[i] of a 2-D x."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.offset, other.lanes = offset, lanes
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
        self.captured = False  # a device array that the kernel knows as a global name
        self.parts = {}  # of complex numbers: the arrays of their "real" and "imag" parts
        if array.flags.c_contiguous:
            self.flat, self.offset = np.asarray(array).reshape(-1), 0
        else:
            self.flatten()
        self.writeable = self.flat.flags.writeable

    def flatten(self):
        """Make one flat view from the lowest address to the highest, whatever the strides."""
        array, pairs = self.array, list(zip(self.dims, self.strides, strict=True))
        ascending = array[tuple(slice(None, None, -1 if s < 0 else 1) for s in array.strides)]
        extent = sum((n - 1) * abs(s) for n, s in pairs)
        self.flat = np.lib.stride_tricks.as_strided(
            ascending, (extent + 1 if array.size else 0,), (self.itemsize,)
        )
        self.offset = sum((1 - n) * s for n, s in pairs if s < 0)

    @functools.cached_property
    def region(self):
        """The addresses of its memory, from and to, in bytes."""
        start = self.flat.ctypes.data
        return start, start + self.flat.nbytes

    @functools.cached_property
    def alignment(self):
        """Where the lowest element is within a 32-byte sector.

        GPU allocations start at one; a slice of an array starts where it starts.
        """
        base = self.array
        while isinstance(base.base, np.ndarray):
            base = base.base
        return (self.region[0] - base.ctypes.data) % 32 if base.size else 0

    def take_for(self, dtype):
        """Take the elements for integers of the other signedness, as a signature says."""
        if dtype != self.dtype:
            self.dtype, self.flat = dtype, self.flat.view(dtype)
            self.needs_type = dtype != INT64

    def part(self, name):
        """x.real or x.imag."""
        if not self.parts:
            return super().part(name)
        lanes = self.lanes if self.lanes is None else 2 * self.lanes
        strides = [2 * stride for stride in self.strides]
        return self.parts[name].view(2 * self.offset, lanes, self.dims, strides)

    def shares(self, other):
        return other.flat is self.flat

    def load(self, lanes, offset):
        if isinstance(offset, np.ndarray):
            # In range already: this is the fastest mode.
            return self.flat.take(as_intp(offset), mode="wrap")
        return self.flat[offset]

    def store(self, lanes, offset, value):
        if not self.writeable:
            raise LaunchError(
                f"'{self.name}' is a read-only NumPy array",
                array=self.name,
                hint="Pass a copy of it.",
            )
        scatter(self.flat, offset, value, lanes.mask)

    def addresses(self, lanes, offset):
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

    def shares(self, other):
        return other.rows is self.rows

    def load(self, lanes, offset):
        # Always a copy: a lane value must not change when the memory does.
        if not isinstance(offset, np.ndarray):
            if self.num_blocks == 1:
                return self.flat[offset]
            return self.rows[offset].copy().reshape(1, 1, 1, -1)
        if offset.shape[3] == 1:
            return self.rows.take(as_intp(offset[..., 0]), axis=0, mode="wrap")
        return self.flat.take(as_intp(offset * self.num_blocks + lanes.block_column), mode="wrap")

    def store(self, lanes, offset, value):
        mask = lanes.mask
        if self.num_blocks == 1:
            scatter(self.flat, offset, value, mask)
            return
        if not varies_with_block(offset):
            if mask is not ALL and mask.shape[:3] == (1, 1, 1):
                # Blocks that are not here store what they hold already.
                value = np.where(mask, value.astype(self.dtype), self.load(lanes, offset))
                mask = ALL
            if not varies_with_block(mask):
                self.store_rows(offset, value, mask)
                return
        scatter(self.flat, offset * self.num_blocks + lanes.block_column, value, mask)

    def store_rows(self, offset, value, mask):
        """Store to the same elements in every block: whole rows."""
        offset, value = spread(offset), spread(value)
        lanes = common_shape(offset.shape[:3], value.shape[:3])
        if mask is not ALL:
            lanes = common_shape(lanes, mask.shape[:3])
        offset = stretch(offset[..., 0], lanes)
        value = stretch(value, (*lanes, value.shape[3]))
        if mask is not ALL:
            mask = stretch(mask[..., 0], lanes)
            offset, value = offset[mask], value[mask]
        self.rows[offset] = value

    def addresses(self, lanes, offset):
        return offset * self.num_blocks + lanes.block_column


class Cells(list):
    """The elements of a local array: a lane value of each, or the rows of one matrix.

    Where all threads index alike, an element costs no more than a variable. Once threads index
    differently, the elements are rows of a matrix (elements, lanes), so that one take or put serves
    all threads.
    """

    matrix = lane = None

    def stack(self, shape, dtype):
        """Become a matrix; return it flat, its width, and the number of each lane."""
        if self.matrix is None:
            self.matrix = np.empty((len(self), *shape), dtype)
            for row, value in zip(self.matrix, self, strict=True):
                row[...] = value
            self[:] = self.matrix
            self.lane = np.arange(math.prod(shape), dtype=np.int64).reshape(shape)
        return self.matrix.reshape(-1), self.lane.size, self.lane


class LocalArray(LaneArray):
    """A thread's own array (registers or local memory): a list of lane values.

    As with variables, a store under the mask that the array was made under overwrites. `stored`
    says who has stored each element: another such array, in which a thread that is not here has.
    """

    kind = "local"
    writeable = True
    stored, left = None, 0  # left: of `stored`, how many elements some thread has not stored

    def __init__(self, name, dtype, dims, home, checked=False):
        super().__init__(name, dtype, dims, row_major(dims))
        start = np.zeros((), self.dtype)
        poison(start)
        self.values = Cells([start[()]] * math.prod(dims))
        self.home = home
        if checked:
            who, size = copy.copy(self), len(self.values)
            who.values = Cells([np.False_ if home is ALL else ~home] * size)
            who.dtype, who.left, self.stored = np.dtype(bool), size, who

    def shares(self, other):
        return other.values is self.values

    def blend_with(self, old, mask):
        same = isinstance(old, LocalArray) and old.axes == self.axes and old.dtype == self.dtype
        again = same and old.name == self.name and self.place_is(old)  # made anew by the same line
        if again and not self.shares(old):
            pairs = zip(old.values, self.values, strict=True)
            self.values = Cells(new if new is o else select(mask, new, o) for o, new in pairs)
            self.home = ALL
            if self.stored is not None:
                self.stored.left += old.stored.left
                self.stored.blend_with(old.stored, mask)
            return self
        return super().blend_with(old, mask)

    def load(self, lanes, offset):
        values = self.values
        if not isinstance(offset, np.ndarray):
            # A row of the matrix is copied: a lane value must not change when the memory does.
            return values[offset] if values.matrix is None else values[offset].copy()
        flat, width, lane = values.stack(lanes.shape, self.dtype)
        return flat.take(as_intp(offset * width + lane), mode="wrap")

    def store(self, lanes, offset, value):
        value = value if value.dtype == self.dtype else value.astype(self.dtype)
        if isinstance(value, TypedInts):
            value = value.view(np.ndarray)
        mask, values = lanes.mask, self.values
        if isinstance(offset, np.ndarray):
            flat, width, lane = values.stack(lanes.shape, self.dtype)
            scatter(flat, offset * width + lane, value, mask)
        elif values.matrix is not None:
            np.copyto(values[offset], value, where=True if mask is ALL else mask)
        elif mask is ALL or mask is self.home:
            values[offset] = value
        else:
            values[offset] = np.where(mask, value, values[offset])
        who = self.stored
        if who is not None and who.left and not self.all_stored(offset):
            whole = mask is ALL or mask is self.home
            if not whole or isinstance(offset, np.ndarray) or who.values.matrix is not None:
                who.store(lanes, offset, np.True_)
            if who.values.matrix is None and (whole or np.all(who.values[offset])):
                who.values[offset], who.left = np.True_, who.left - 1

    def all_stored(self, offset):
        """Tell whether all threads are known to have stored an element."""
        return not isinstance(offset, np.ndarray) and self.stored.values[offset] is np.True_

    def missing(self, lanes, offset):
        """Return the mask of the active threads that load an element before they store it."""
        return without(lanes.mask, self.stored.load(lanes, offset))


def row_major(dims):
    strides, step = [], 1
    for n in reversed(dims):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def poison(values):
    """Fill with what no sensible program computes: memory starts uninitialised on a GPU."""
    if is_floating(values.dtype):
        values.fill(np.nan)
    elif values.dtype.kind in "iu":
        values.fill(np.iinfo(values.dtype).max // 3 * 2)


def varies_with_block(value):
    return isinstance(value, np.ndarray) and value.shape[3] > 1


def spread(value):
    """Return a lane value as an array of four axes."""
    return value if isinstance(value, np.ndarray) else np.full((1, 1, 1, 1), value)


def pick(value, shape, mask):
    """Return a lane value's elements of the active threads, in thread order."""
    full = stretch(value, shape)
    return full.reshape(-1) if mask is ALL else full[stretch(mask, shape)]


def same_values(a, b):
    """Compare element by element; NaN is the same as NaN."""
    return (a == b) | ((a != a) & (b != b))


def scatter(flat, offset, value, mask):
    """Store for the active threads; where several hit one element, the last one wins."""
    if mask is ALL:
        if not isinstance(offset, np.ndarray):
            last = value.reshape(-1)[-1] if isinstance(value, np.ndarray) else value
            flat[offset] = fitting(last, flat.dtype)
            return
        if isinstance(value, np.ndarray):
            offset = stretch(offset, common_shape(offset.shape, value.shape))
        flat[offset] = value if isinstance(value, np.ndarray) else fitting(value, flat.dtype)
        return
    shape = mask.shape
    if isinstance(offset, np.ndarray):
        shape = common_shape(shape, offset.shape)
    if isinstance(value, np.ndarray):
        shape = common_shape(shape, value.shape)
    mask = stretch(mask, shape)
    if isinstance(value, np.ndarray):
        value = stretch(value, shape)[mask]
    if isinstance(offset, np.ndarray):
        offset = stretch(offset, shape)[mask]
        flat[offset] = value if isinstance(value, np.ndarray) else fitting(value, flat.dtype)
    else:
        last = value[-1] if isinstance(value, np.ndarray) else value
        flat[offset] = fitting(last, flat.dtype)


def fitting(value, dtype):
    """Return a scalar in an array's type: NumPy wraps arrays around as a GPU does, not scalars."""
    return value if value.dtype is dtype else value.astype(dtype)
