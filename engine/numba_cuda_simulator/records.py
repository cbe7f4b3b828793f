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
        spans = *values.strides, array.dtype.fields[field][1]
        if any(span % values.itemsize for span in spans):
            raise LaunchError(
                f"'{self._name}' holds packed records, in which '{field}' is not aligned",
                array=self._name,
                hint="Make their type with np.dtype([...], align=True).",
            )
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

    __getitem__ = __getattr__

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


def records_argument(memory, name, value):
    """Return an array of records, or a single record, as a kernel sees it."""
    if isinstance(value, np.ndarray):
        return Records(memory, value, name)
    return Record(Records(memory, np.asarray(value).reshape(1), name), (np.int64(0),))


def arrays_in(value):
    """Return the global arrays that an argument consists of."""
    if isinstance(value, Record):
        value = value._records
    if isinstance(value, Records):
        value = tuple(value._fields.values())
    if isinstance(value, tuple):
        return [array for part in value for array in arrays_in(part)]
    return [value] if getattr(value, "kind", "") == "global" else []
