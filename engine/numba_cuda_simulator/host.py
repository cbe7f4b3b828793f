"""Stand-ins for cuda.to_device and friends where there is no GPU: arrays in host memory.

They can do what Numba's device arrays can and no more, so that code which runs here runs on
a GPU too: a kernel takes them, slices are views, numbers come back by copy_to_host().
"""

import contextlib
import time
import weakref

import numpy as np

from .arrays import poison

_exported = weakref.WeakValueDictionary()  # address -> the memory that was shown to others


class Shown:
    """Host memory as NumPy takes it from an address; it keeps what lies there alive."""

    def __init__(self, interface, owner):
        self.__array_interface__ = interface
        self.owner = owner


def from_interface(value):
    """Return the NumPy array behind `__cuda_array_interface__`, if it is the engine's; else None.

    An address that the engine did not give out is that of a GPU.
    """
    interface = getattr(value, "__cuda_array_interface__", None)
    address = interface and interface["data"][0]
    owner = _exported.get(address)
    if owner is None:
        return None
    known = ("shape", "strides", "typestr", "descr", "data")
    shown = {name: interface[name] for name in known if interface.get(name) is not None}
    return np.asarray(Shown(shown | {"version": 3}, owner))


class DeviceArray:
    """A device array that lives in host memory."""

    stream = 0

    def __init__(self, host):
        self._simt_host = host

    shape = property(lambda self: self._simt_host.shape)
    strides = property(lambda self: self._simt_host.strides)
    dtype = property(lambda self: self._simt_host.dtype)
    size = property(lambda self: self._simt_host.size)
    ndim = property(lambda self: self._simt_host.ndim)
    nbytes = alloc_size = property(lambda self: self._simt_host.nbytes)
    T = property(lambda self: self.transpose())

    @property
    def __cuda_array_interface__(self):
        """The array for other libraries, and back: the address is one of the host."""
        host = self._simt_host
        address = host.ctypes.data
        _exported[address] = self
        return {
            "shape": host.shape,
            "strides": None if host.flags.c_contiguous else host.strides,
            "typestr": host.dtype.str,
            "descr": host.dtype.descr,
            "data": (address, not host.flags.writeable),
            "stream": None,
            "version": 3,
        }

    @property
    def flags(self):
        """Whether the elements lie one after the other, as Numba's device arrays say it."""
        names = "C_CONTIGUOUS", "F_CONTIGUOUS"
        return {name: self._simt_host.flags[name] for name in names}

    def copy_to_host(self, ary=None, stream=0):
        """Return the contents as a NumPy array, or copy them into one."""
        if ary is None:
            return self._simt_host.copy()
        check_alike(self, ary)
        ary[...] = self._simt_host.reshape(ary.shape)
        return ary

    def copy_to_device(self, ary, stream=0):
        """Copy an array into this one."""
        order = "C" if self.is_c_contiguous() else "F"
        ary = np.array(getattr(ary, "_simt_host", ary), order=order, copy=None)
        check_alike(self, ary)
        self._simt_host[...] = ary.reshape(self.shape)

    def split(self, section, stream=0):
        """Yield views of `section` elements each; the last one may be shorter."""
        for start in range(0, self.size, section):
            yield self[start : start + section]

    def squeeze(self, axis=None, stream=0):
        """Return a view without the axes of one element."""
        return DeviceArray(self._simt_host.squeeze(axis))

    def reshape(self, *shape, order="C"):
        """Return a view of another shape."""
        return DeviceArray(self._simt_host.reshape(*shape, order=order))

    def ravel(self, order="C", stream=0):
        """Return a flat view."""
        return DeviceArray(self._simt_host.ravel(order=order))

    def transpose(self, axes=None):
        """Return a transposed copy."""
        return DeviceArray(self._simt_host.transpose(axes).copy())

    def view(self, dtype):
        """Return a view of another dtype."""
        return DeviceArray(self._simt_host.view(dtype))

    def is_c_contiguous(self):
        return self._simt_host.flags.c_contiguous

    def is_f_contiguous(self):
        return self._simt_host.flags.f_contiguous

    def __getitem__(self, index):
        part = self._simt_host[index]
        return DeviceArray(part) if isinstance(part, np.ndarray) else part

    def __setitem__(self, index, value):
        self._simt_host[index] = getattr(value, "_simt_host", value)

    def getitem(self, item, stream=0):
        """Return self[item]."""
        return self[item]

    def setitem(self, key, value, stream=0):
        """Store self[key] = value."""
        self[key] = value

    def __len__(self):
        return len(self._simt_host)

    def __array__(self, dtype=None, copy=None):
        return self._simt_host.astype(dtype or self.dtype, copy=True)

    def refuse(self, *_):
        raise TypeError(
            "a device array takes no part in arithmetic: write a kernel, or compute with "
            "copy_to_host()"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = refuse
    __rtruediv__ = __floordiv__ = __mod__ = __pow__ = __matmul__ = __neg__ = __abs__ = refuse
    __iadd__ = __isub__ = __imul__ = __itruediv__ = __lt__ = __le__ = __gt__ = __ge__ = refuse

    def __repr__(self):
        return f"<simt device array {self.shape} {self.dtype}>"


def check_alike(device, host):
    """Refuse a copy between arrays of other bytes; axes of one element do not matter."""
    a, b = device.squeeze(), host.squeeze()
    for name, error in ("dtype", TypeError), ("shape", ValueError), ("strides", ValueError):
        if getattr(a, name) != getattr(b, name) and (name != "strides" or a.size):
            pair = f"{getattr(device, name)} and {getattr(host, name)}"
            raise error(f"arrays of the {name} {pair} cannot be copied: a GPU copies bytes")


def host_value(value):
    """Unwrap the engine's and the simulator's device arrays, and cuda.In(x) and its like."""
    value = unhinted(value)
    host = getattr(value, "_simt_host", None)
    if host is not None:
        return host
    if type(value).__name__ == "FakeCUDAArray":
        return value._ary
    if hasattr(value, "__cuda_array_interface__"):
        shown = from_interface(value)
        return value if shown is None else shown
    return value


class Stream:
    """A stream whose work is always done already."""

    handle = 0

    def synchronize(self):
        pass

    @contextlib.contextmanager
    def auto_synchronize(self):
        yield self

    def add_callback(self, callback, arg=None):
        """Call `callback(stream, 0, arg)` at once: all work before it is done."""
        callback(self, 0, arg)

    async def async_done(self):
        """Return the stream once all work before is done, which it is."""
        return self

    def __bool__(self):
        return True

    def __int__(self):
        return 0


class Event:
    """A point in time."""

    def __init__(self, timing=True):
        self.time = None

    def record(self, stream=0):
        self.time = time.perf_counter()

    def query(self):
        return True

    def wait(self, stream=0):
        pass

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        """Return the milliseconds from this event to another."""
        if None in (self.time, end.time):
            raise RuntimeError("elapsed_time: record() both events before")
        return 1e3 * (end.time - self.time)


def to_device(obj, stream=0, copy=True, to=None):
    """Copy an array into a new device array, or into `to`."""
    if to is not None:
        to.copy_to_device(obj)
        return to
    return DeviceArray(np.array(getattr(obj, "_simt_host", obj)))


def device_array(shape, dtype=np.float64, strides=None, order="C", stream=0):
    """Return an uninitialised device array; NaN or a large number shows where it is read."""
    array = np.empty(shape, dtype, order=order)
    poison(array)
    return DeviceArray(array)


def device_array_like(ary, stream=0):
    """Return an uninitialised device array of the same shape, type and order of axes."""
    array = np.empty_like(getattr(ary, "_simt_host", ary), subok=False)
    poison(array)
    return DeviceArray(array)


def pinned_array(shape, dtype=np.float64, strides=None, order="C", **_):
    """Return a NumPy array."""
    return np.zeros(shape, dtype, order=order)


def pinned_array_like(ary, **_):
    """Return a NumPy array of the same shape, type and order of axes."""
    return np.zeros_like(getattr(ary, "_simt_host", ary), subok=False)


@contextlib.contextmanager
def pinned(*arrays):
    """Do nothing: all memory is host memory."""
    yield


@contextlib.contextmanager
def mapped(*arrays, **_):
    """Yield device arrays that share the arrays' memory."""
    views = [DeviceArray(a) for a in arrays]
    yield views if len(views) > 1 else views[0]


def unhinted(value):
    """Return the array in cuda.In(x), cuda.Out(x) or cuda.InOut(x) as a launch sees it."""
    kind = type(value)
    if kind.__name__ not in ("In", "Out", "InOut") or not kind.__module__.startswith("numba."):
        return value
    array = value.value
    if kind.__name__ == "In" and isinstance(array, (np.ndarray, np.void)):
        return array.copy()  # what the kernel stores there is not copied back
    if kind.__name__ == "Out" and isinstance(array, np.ndarray):
        poison(array)  # what is there is not copied to the GPU
    return array


def synchronize():
    """Do nothing: every launch has finished when it returns."""


FUNCTIONS = to_device, device_array, device_array_like, pinned_array, pinned_array_like, pinned
STAND_INS = {f.__name__: f for f in (*FUNCTIONS, mapped, synchronize)}
STAND_INS |= dict.fromkeys(("mapped_array", "managed_array"), pinned_array)
STAND_INS |= {"mapped_array_like": pinned_array_like, "external_stream": lambda ptr: Stream()}
STREAMS = "stream default_stream legacy_default_stream per_thread_default_stream".split()
STAND_INS |= dict.fromkeys(STREAMS, Stream) | {"event": Event}
STAND_INS["event_elapsed_time"] = lambda start, end: start.elapsed_time(end)
