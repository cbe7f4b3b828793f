"""Arrays of records: NumPy's structured dtypes.

A record is no lane value but a place: `particles[i].mass` is a load from the array that the
masses of all particles form, whose stride is the size of a record.
"""

import sys

import numpy as np

from .arrays import LaneArray
from .dtypes import select
from .errors import FieldError, LaunchError, UnsupportedError, runs_kernel, site_at


class Records:
    """An array of records as a kernel sees it: a global array for each field."""

    __array_ufunc__ = None

    def __init__(self, memory, array, name):
        self._memory, self._name = memory, name
        self._fields = {field: self._field(array, field) for field in array.dtype.names}
        self.shape = tuple(map(np.int64, array.shape))
        self.ndim, self.size = np.int64(array.ndim), np.int64(array.size)

    def _field(self, array, field):
        values, name = array[field], f"{self._name}.{field}"
        if values.dtype.names:
            return Records(self._memory, values, name)
        return self._memory.global_array(values, name)

    def __getattr__(self, field):
        if field not in self._fields:
            names = ", ".join(self._fields)
            raise FieldError(f"'{self._name}' has no field '{field}': it has {names}")
        return self._fields[field]

    def __len__(self):
        return int(self.shape[0])

    def __getitem__(self, index):
        if isinstance(index, str):
            return getattr(self, index)
        index = index if isinstance(index, tuple) else (index,)
        if len(index) != self.ndim or any(isinstance(i, slice) or i is ... for i in index):
            raise UnsupportedError(
                f"'{self._name}' is an array of records: a part of it cannot be taken",
                hint="Index single records.",
            )
        return Record(self, index)

    def store(self, index, value, site):
        """records[i] = record: copy all fields."""
        if not isinstance(value, Record):
            raise UnsupportedError(f"'{self._name}' is an array of records", hint="Store a field.")
        for field in self._fields:
            self[index].store(field, value[field], site)


class Record:
    """A record for each thread: an array of records, and an index."""

    __array_ufunc__ = None

    def __init__(self, records, index):
        self._records, self._index, self._memory = records, index, records._memory

    def __getattr__(self, field):
        values = getattr(self._records, field)
        return self._memory.load(values, self._index, present_site())

    def __getitem__(self, field):
        if isinstance(field, (int, np.integer)):  # r[0]: the first field
            field = list(self._records._fields)[field]
        return getattr(self, field)

    def store(self, field, value, site):
        """Store to a field, element by element where it holds an array."""
        memory, values = self._memory, getattr(self._records, field)
        if not isinstance(value, LaneArray):
            memory.store(values, self._index, value, site)
            return
        target = memory.view(values, self._index)
        for element in np.ndindex(target.dims):
            element = tuple(map(np.int64, element))
            memory.store(target, element, memory.load(value, element, site), site)

    def shares(self, other):
        return other._records is self._records

    def blend_with(self, old, mask):
        """Let a variable be bound to another record of the same array."""
        if not isinstance(old, Record) or not self.shares(old):
            raise UnsupportedError("threads choose between records of different arrays")
        pairs = zip(self._index, old._index, strict=True)
        return Record(self._records, tuple(select(mask, new, o) for new, o in pairs))


def kernel_frame():
    """Return the frame of the running kernel or device function."""
    frame = sys._getframe(1)
    while not runs_kernel(frame):
        frame = frame.f_back
    return frame


def present_site():
    """Return where in the kernel the expression stands that is being evaluated."""
    frame = kernel_frame()
    code = frame.f_code
    return site_at(code.co_filename, code, frame.f_lasti, frame.f_lineno)


def records_argument(memory, copies, name, value):
    """Return an array of records, or a single record, as a kernel sees it."""
    array = value if isinstance(value, np.ndarray) else np.asarray(value).reshape(1)
    records = Records(memory, copies.of(array, name), name)
    return records if array is value else Record(records, (np.int64(0),))


def aligned(dtype):
    """Return a record's dtype, or an array's, with each field where its size says."""
    if dtype.subdtype:
        element, shape = dtype.subdtype
        return np.dtype((aligned(element), shape))
    if not dtype.names:
        return dtype
    if sum(dtype[name].itemsize for name in dtype.names) > dtype.itemsize:
        raise LaunchError(f"the fields of {dtype} overlap, and are not aligned")
    return np.dtype([(name, aligned(dtype[name])) for name in dtype.names], align=True)


class Copies:
    """Copies of arguments whose elements do not lie at multiples of their size: packed records.

    The kernel works on the copy, which is copied back when the launch ends.
    """

    def __init__(self):
        self.pairs = []  # of an array and its copy

    def of(self, array, name):
        """Return an array, or a copy of it in which all lies at multiples of its size."""
        if not needs_copy(array):
            return array
        for other, copy in self.pairs:
            if same_memory(array, other):
                return copy
            if np.shares_memory(array, other):
                raise LaunchError(
                    f"'{name}' and another argument share memory, and hold packed records",
                    array=name,
                    hint="Make their type with np.dtype([...], align=True).",
                )
        copy = array.astype(aligned(array.dtype))
        self.pairs.append((array, copy))
        return copy

    def back(self):
        for array, copy in self.pairs:
            if array.flags.writeable:
                array[...] = copy


def needs_copy(array):
    """Tell whether an element lies at no multiple of its size."""
    if not array.dtype.names:
        return any(stride % array.itemsize for stride in array.strides)
    fields = array.dtype.fields.values()
    if any(offset % base(kind).itemsize for kind, offset, *_ in fields if not base(kind).names):
        return True
    return any(needs_copy(array[name]) for name in array.dtype.names)


def base(dtype):
    return dtype.subdtype[0] if dtype.subdtype else dtype


def same_memory(a, b):
    return a.__array_interface__ == b.__array_interface__


def arrays_in(value):
    """Return the global arrays that an argument consists of."""
    if isinstance(value, Record):
        value = value._records
    if isinstance(value, Records):
        value = tuple(value._fields.values())
    if isinstance(value, tuple):
        return [array for part in value for array in arrays_in(part)]
    return [value] if getattr(value, "kind", "") == "global" else []
