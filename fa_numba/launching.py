"""The way from a compiled kernel to the GPU, in microseconds instead of a hundred.

Numba's dispatcher looks at every argument of every launch anew: it takes the array interface,
infers a type, finds the code compiled for it, and unpacks the array again. Here that is done once
for each combination of shapes; what remains of a launch is to write the addresses of the arrays
into a block of parameters that is kept, and to call the driver. Numba still compiles the kernel,
once for each combination of types, and what it made is kept on disk (`kernel_cache`).

Where Numba's inside is not what this module expects, `launch` returns False, and the dispatcher
does the work. This is the only module that touches how numba-cuda loads and launches.

A kernel takes an array as 5 + 2·ndim parameters: two that are 0, its size and itemsize, its
address, its shape and its strides in bytes; a scalar is itself.
"""

import copy
import ctypes
import functools
import math
import struct
import threading

import numpy as np
from numba import cuda, types

from fa_numba import kernel_cache, simt

try:
    from cuda.bindings import driver
    from numba.cuda.np.numpy_support import from_dtype  # isort: skip   plain Numba has it not
    from numba.cuda.dispatcher import CUDADispatcher
except ImportError:  # no numba-cuda, or its simulator
    driver = None

END, BUFFER, SIZE = 0, 1, 2  # names of the driver's for what a list of parameters holds
STATIC_SHARED_BYTES = 48 * 1024  # what a thread block gets without asking for more
MAX_PLANS = 1024  # combinations of shapes that are kept

enabled = driver is not None  # False leaves every launch to Numba's dispatcher

_plans = {}
_lock = threading.Lock()


class UnexpectedError(Exception):
    """Numba's inside is not what this module expects."""


class Plan:
    """All of a launch but the addresses of its arrays and the values of its scalars.

    Parameters
    ----------
    function : CUfunction
    grid, block : tuple of int
    shared_bytes : int
    arguments : list
        For an array (shape, strides in bytes, dtype); for a scalar its type.
    """

    def __init__(self, function, grid, block, shared_bytes, arguments):
        self.function = function
        self.sizes = (*_three(grid), *_three(block), shared_bytes)
        self.constants, self.layout, self.variable = [], "", []
        for argument in arguments:
            if isinstance(argument, tuple):
                shape, strides, dtype = argument
                self._add("qqqq", 0, 0, math.prod(shape), dtype.itemsize)
                self._add_variable("q")
                self._add("q" * 2 * len(shape), *shape, *strides)
            else:
                self._add_variable(_ctype(argument)._type_)
        self._take_buffer()

    def _add(self, layout, *values):
        self.layout += layout
        self.constants += values

    def _add_variable(self, kind):
        self._add(kind, 0)
        offset = struct.calcsize(self.layout) - struct.calcsize(kind)
        self.variable.append((struct.Struct(kind).pack_into, offset))

    def _take_buffer(self):
        """The parameters in a row, as a C struct has them, and where the driver finds that."""
        self.lock = threading.Lock()  # two threads must not write the parameters at once
        size = struct.calcsize(self.layout)
        self.words = (ctypes.c_int64 * -(-size // 8))()
        struct.pack_into(self.layout, self.words, 0, *self.constants)
        self.size = ctypes.c_size_t(size)
        places = (ctypes.addressof(x) for x in (self.words, self.size))
        self.extra = (ctypes.c_void_p * 5)(BUFFER, next(places), SIZE, next(places), END)
        self.where = ctypes.addressof(self.extra)

    def copy(self, values):
        """Another plan for the same launch, with parameters of its own."""
        plan = copy.copy(self)
        plan._take_buffer()
        plan.write(values)
        return plan

    def write(self, values):
        """Set the address of each array and the number of each scalar."""
        for (pack_into, offset), value in zip(self.variable, values, strict=True):
            pack_into(self.words, offset, value)

    def launch(self, values, stream):
        """Enqueue with an address for each array and a number for each scalar; True if done."""
        with self.lock:
            self.write(values)
            return self.enqueue(stream)

    def enqueue(self, stream):
        """Enqueue with the parameters as they are; True if done."""
        stream = stream_at(stream)
        (error,) = driver.cuLaunchKernel(self.function, *self.sizes, stream, 0, self.where)
        if not error:
            return True
        if error == driver.CUresult.CUDA_ERROR_INVALID_CONTEXT:
            return False  # a new thread has none: Numba's way gives it one
        raise RuntimeError(
            f"the GPU refused a launch with grid {self.sizes[:3]}, block {self.sizes[3:6]}, "
            f"{self.sizes[6]} bytes of dynamic shared memory: {error.name}"
        )


def takes(kernel):
    """True for what `launch` may be able to launch: a kernel of Numba's, on a GPU."""
    return enabled and isinstance(kernel, CUDADispatcher) and _has_gpu()


def launch(kernel, grid, block, shared_bytes, device, stream, arguments, values, in_bytes):
    """Enqueue a kernel, compiled for these arguments before or now.

    Parameters
    ----------
    kernel : function decorated with ``@cuda.jit``
    grid, block : tuple of int
    shared_bytes : int
        Dynamic shared memory of a thread block; may exceed 48 KiB.
    device : int
        The current GPU.
    stream : int
        Address of a stream of that.
    arguments : list
        What decides a launch: the type of a scalar, a tuple for an array.
    values : list of int and float
        Addresses of the arrays, and the scalars.
    in_bytes : callable
        Makes such a tuple shape, strides in bytes and NumPy dtype.

    Returns
    -------
    Plan, or False
        False where nothing was done, because Numba's inside is not what is expected here.
    """
    key = (kernel, grid, block, shared_bytes, device, *arguments)
    plan = _plans.get(key)
    if plan is None:
        arguments = [in_bytes(x) if isinstance(x, tuple) else x for x in arguments]
        plan = _make_plan(key, kernel, grid, block, shared_bytes, device, arguments)
    return plan if plan and plan.launch(values, stream) else False


def _make_plan(key, kernel, grid, block, shared_bytes, device, arguments):
    """The plan for these arguments, or False where there cannot be one; kept either way."""
    with _lock, cuda.gpus[device]:
        try:
            function = _function(kernel, tuple(map(_type, arguments)), device)
            _allow_shared_bytes(int(function), shared_bytes, device)
            plan = Plan(function, grid, block, shared_bytes, arguments)
        except (UnexpectedError, AttributeError, TypeError, NotImplementedError):
            plan = False
        if len(_plans) >= MAX_PLANS:
            _plans.clear()
        _plans[key] = plan
    return plan


def _type(argument):
    """Numba's type of an argument, as its dispatcher would find it."""
    if not isinstance(argument, tuple):
        return from_dtype(np.dtype(argument))
    shape, strides, dtype = argument
    return types.Array(from_dtype(dtype), len(shape), _layout(shape, strides, dtype.itemsize))


def _layout(shape, strides, itemsize):
    """ "C", "F" or "A", as Numba has it: with a stride of 0 never contiguous."""
    if 0 in shape:
        return "C"
    axes = list(zip(shape, strides, strict=True))
    for name, ordered in (("C", reversed(axes)), ("F", axes)):
        expected, contiguous = itemsize, 0 not in strides
        for size, stride in ordered:
            contiguous = contiguous and (size == 1 or stride == expected)
            expected *= size
        if contiguous:
            return name
    return "A"


def _ctype(scalar_type):
    return np.ctypeslib.as_ctypes_type(np.dtype(scalar_type))


@functools.cache
def _function(kernel, signature, device):
    """The kernel loaded on a GPU: from the disk, or compiled by Numba."""
    if kernel.targetoptions.get("debug") or kernel.extensions:  # the dispatcher has more to do
        raise UnexpectedError
    compute_capability = tuple(cuda.get_current_device().compute_capability)
    found = kernel_cache.load(kernel, str(signature), compute_capability)
    if found is None:
        found = _compile(kernel, signature)
        kernel_cache.save(kernel, str(signature), compute_capability, *found)
    entry, cubin = found
    error, library = driver.cuLibraryLoadData(cubin, [], [], 0, [], [], 0)
    if error:
        raise UnexpectedError(error.name)
    loaded = _driver(driver.cuLibraryGetKernel(library, entry.encode()))
    return driver.CUfunction(int(loaded))  # a launch takes either


def _compile(kernel, signature):
    """Name and machine code of a kernel, from Numba."""
    compiled = kernel.compile(signature)
    if compiled.cooperative or compiled.launch_config_sensitive:
        raise UnexpectedError
    library = compiled._codelibrary
    return library._entry_name, bytes(library.get_cubin().code)


def allow_shared_bytes(kernel, args, shared_bytes):
    """Let a kernel that Numba's dispatcher launches have more than 48 KiB of shared memory."""
    if shared_bytes > STATIC_SHARED_BYTES:
        compiled = kernel.compile(tuple(map(kernel.typeof_pyval, args)))
        function, device = compiled._codelibrary.get_cufunc(), cuda.get_current_device().id
        _allow_shared_bytes(int(function.handle), shared_bytes, device)


def _allow_shared_bytes(function, shared_bytes, device):
    if shared_bytes > STATIC_SHARED_BYTES:
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        kernel, device = driver.CUkernel(function), driver.CUdevice(device)
        _driver(driver.cuKernelSetAttribute(attribute, shared_bytes, kernel, device))


def copy_at_once(make, device):
    """Copy a NumPy array to a GPU and wait for that, also while a stream is being captured.

    `make` makes the array, in the GPU's context, which a new thread may not have.

    What is enqueued on a stream under capture happens later, and only if the graph is launched; and
    while there is one, the driver refuses to allocate or to wait unless told that this is meant.
    """
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    with cuda.gpus[device]:
        before = _driver(driver.cuThreadExchangeStreamCaptureMode(relaxed))
        try:
            stream = _own_stream(device)
            copied = cuda.to_device(make(), stream=stream)
            stream.synchronize()
        finally:
            _driver(driver.cuThreadExchangeStreamCaptureMode(before))
    return copied


@functools.cache
def _own_stream(device):
    """A stream of the current GPU that is not ordered by the default stream, nor captured."""
    flag = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
    return cuda.external_stream(int(_driver(driver.cuStreamCreate(flag))))


def _driver(result):
    """What a call of the driver returned, or an error with its name."""
    error, *values = result
    if error:
        raise RuntimeError(f"the CUDA driver refused: {error.name}")
    return values[0] if values else None


@functools.cache
def _has_gpu():
    return simt.has_gpu()


@functools.cache
def stream_at(address):
    return driver.CUstream(address)


def _three(sizes):
    return (*sizes, 1, 1)[:3]
