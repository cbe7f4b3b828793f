"""Launches a compiled kernel by the CUDA driver, in microseconds instead of a hundred.

Numba's dispatcher examines every argument of every launch anew: it reads the array interface,
infers a type, finds the code compiled for it, and unpacks the array again. This module does that
once for each combination of shapes, and keeps the result (`Plan`). A later launch writes the
addresses of its arrays into the plan's parameters, and calls the driver. Numba still compiles the
kernel, once for each combination of types; its machine code is kept on disk (`kernel_cache`).

A kernel takes an array as 5 + 2·ndim parameters: two zeros, its size, its itemsize, its address,
its shape, and its strides in bytes. It takes a scalar as one parameter.

Where numba-cuda's internals differ from the ones that this module expects, `launch` returns False,
and the dispatcher does the work. fa_numba/runtime/__init__.py lists where they are used.
"""

import contextlib
import copy
import ctypes
import functools
import importlib
import math
import struct
import threading

import numpy as np
from numba import cuda, types

from fa_numba import simt
from fa_numba.runtime import kernel_cache
from fa_numba.simt.devices import STATIC_SHARED_BYTES

try:
    from cuda.bindings import driver
    from numba.cuda.np.numpy_support import from_dtype  # isort: skip   plain Numba lacks it
    from numba.cuda.dispatcher import CUDADispatcher
except ImportError:  # no numba-cuda, or its simulator
    driver = None

MAX_PLANS = 1024  # combinations of shapes that are kept

enabled = driver is not None  # False leaves every launch to Numba's dispatcher

_plans = {}
_lock = threading.Lock()


class UnexpectedError(Exception):
    """numba-cuda's internals differ from the ones that this module expects."""


class Plan:
    """A launch without the addresses of its arrays and the values of its scalars.

    Parameters
    ----------
    function : CUfunction
    grid, block : tuple of int
    shared_bytes : int
    arguments : list
        For an array (shape, strides in bytes, dtype); for a scalar its type.

    Attributes
    ----------
    constants : list of int
        All parameters, 0 where a launch writes its own.
    variable : list of (callable, int)
        For each argument: a function that packs its value, and the index of its parameter.
    pointers_at : int
        Address of the array of pointers to the parameters, which the driver takes.
    """

    def __init__(self, function, grid, block, shared_bytes, arguments):
        self.function = function
        self.grid, self.block, self.shared_bytes = _three(grid), _three(block), shared_bytes
        self.sizes = (*self.grid, *self.block, shared_bytes)
        self.constants, self.variable = [], []
        for argument in arguments:
            if isinstance(argument, tuple):
                shape, strides, dtype = argument
                self.constants += 0, 0, math.prod(shape), dtype.itemsize
                self._add_variable("Q")
                self.constants += *shape, *strides
            else:
                self._add_variable(_ctype(argument)._type_)
        self._make_parameters({})

    def _add_variable(self, kind):
        self.variable.append((struct.Struct(kind).pack_into, len(self.constants)))
        self.constants.append(0)

    def _make_parameters(self, elsewhere):
        """Allocate 8 bytes for each parameter, and a pointer to each for the driver.

        `elsewhere` maps the index of an argument to an address that the pointer takes instead.
        """
        self.lock = threading.Lock()  # two threads must not write the parameters at once
        length = len(self.constants)
        self.parameters = (ctypes.c_int64 * length)(*self.constants)
        first = ctypes.addressof(self.parameters)
        self.pointers = (ctypes.c_void_p * length)(*range(first, first + 8 * length, 8))
        for i, address in elsewhere.items():
            _, parameter = self.variable[i]
            self.pointers[parameter] = address
        self.pointers_at = ctypes.addressof(self.pointers)

    def copy(self, values, elsewhere):
        """Return a plan of the same launch with parameters of its own, set to `values`.

        `elsewhere` maps the index of an argument to the address where its parameter is kept.
        """
        plan = copy.copy(self)
        plan._make_parameters(elsewhere)
        plan.write(values)
        return plan

    def write(self, values):
        """Set the address of each array and the number of each scalar."""
        for (pack_into, parameter), value in zip(self.variable, values, strict=True):
            pack_into(self.parameters, 8 * parameter, value)

    def launch(self, values, stream: int) -> bool:
        """Enqueue with these values; return False if this thread has no CUDA context."""
        with self.lock:
            self.write(values)
            return self.enqueue(stream)

    def enqueue(self, stream: int) -> bool:
        """Enqueue with the parameters as they are; return False without a CUDA context."""
        stream = stream_at(stream)
        (error,) = driver.cuLaunchKernel(self.function, *self.sizes, stream, self.pointers_at, 0)
        if not error:
            return True
        if error == driver.CUresult.CUDA_ERROR_INVALID_CONTEXT:
            return False  # in a new thread: Numba's dispatcher makes a context current
        raise RuntimeError(
            f"the GPU refused a launch with grid {self.grid}, block {self.block}, "
            f"{self.shared_bytes} bytes of dynamic shared memory: {error.name}"
        )


def takes(kernel) -> bool:
    """Return whether `launch` may be able to launch this: a kernel of Numba's, on a GPU."""
    return enabled and isinstance(kernel, CUDADispatcher) and _has_gpu()


def launch(kernel, grid, block, shared_bytes, device, stream, arguments, values, in_bytes):
    """Enqueue a kernel. Compile it for these arguments if that was not done before.

    Parameters
    ----------
    kernel : function decorated with ``@cuda.jit``
    grid, block : tuple of int
    shared_bytes : int
        Dynamic shared memory of a thread block; may exceed 48 KiB.
    device : int
        Index of the current GPU.
    stream : int
        Address of one of its streams.
    arguments : list
        Descriptions that decide a launch: the type of a scalar, a tuple for an array.
    values : list of int and float
        Addresses of the arrays, and the scalars.
    in_bytes : callable
        Converts such a tuple to (shape, strides in bytes, NumPy dtype).

    Returns
    -------
    Plan, or False
        False if nothing was launched, and Numba's dispatcher has to do it.
    """
    key = (kernel, grid, block, shared_bytes, device, *arguments)
    plan = _plans.get(key)
    if plan is None:
        arguments = [in_bytes(x) if isinstance(x, tuple) else x for x in arguments]
        plan = _make_plan(key, kernel, grid, block, shared_bytes, device, arguments)
    return plan if plan and plan.launch(values, stream) else False


def _make_plan(key, kernel, grid, block, shared_bytes, device, arguments):
    """Make and keep the plan for these arguments, or False if there cannot be one."""
    with _lock, cuda.gpus[device]:
        try:
            loaded = _kernel(kernel, tuple(map(_type, arguments)), device)
            _allow_shared_bytes(int(loaded), shared_bytes, device)
            # A launch of the CUkernel itself would look up its CUfunction: half a microsecond.
            function = value_of(driver.cuKernelGetFunction(loaded))
            plan = Plan(function, grid, block, shared_bytes, arguments)
        except (UnexpectedError, AttributeError, TypeError, NotImplementedError):
            plan = False
        if len(_plans) >= MAX_PLANS:
            _plans.clear()
        _plans[key] = plan
    return plan


# Types: what Numba's dispatcher would infer


def _type(argument):
    """Numba's type of an argument, as its dispatcher would infer it."""
    if not isinstance(argument, tuple):
        return from_dtype(np.dtype(argument))
    shape, strides, dtype = argument
    return types.Array(from_dtype(dtype), len(shape), _layout(shape, strides, dtype.itemsize))


def _layout(shape, strides, itemsize):
    """Numba's layout of an array: "C", "F" or "A"; never contiguous with a stride of 0."""
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


def _three(sizes):
    return (*sizes, 1, 1)[:3]


# Kernels: compiled by Numba, or loaded from disk


@functools.cache
def _kernel(kernel, signature, device):
    """Load a kernel on a GPU: from disk, or compiled by Numba."""
    if kernel.targetoptions.get("debug") or kernel.extensions:  # these need the dispatcher
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
    return value_of(driver.cuLibraryGetKernel(library, entry.encode()))


def _compile(kernel, signature):
    """Return the entry name and machine code of a kernel, from Numba."""
    define_conversions()
    compiled = kernel.compile(signature)
    if compiled.cooperative or compiled.launch_config_sensitive:
        raise UnexpectedError
    library = compiled._codelibrary
    return library._entry_name, bytes(library.get_cubin().code)


def define_conversions():
    """Give kernels that are compiled from now on the conversions of `bfloat16`.

    Importing them takes a tenth of a second. A process that finds its kernels on disk saves it.
    """
    importlib.import_module("fa_numba.runtime.bfloat16")


def allow_shared_bytes(kernel, args, shared_bytes):
    """Allow a kernel that Numba's dispatcher launches more than 48 KiB of shared memory."""
    if shared_bytes > STATIC_SHARED_BYTES:
        compiled = kernel.compile(tuple(map(kernel.typeof_pyval, args)))
        function, device = compiled._codelibrary.get_cufunc(), cuda.get_current_device().id
        _allow_shared_bytes(int(function.handle), shared_bytes, device)


def _allow_shared_bytes(function, shared_bytes, device):
    if shared_bytes > STATIC_SHARED_BYTES:
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        kernel, device = driver.CUkernel(function), driver.CUdevice(device)
        value_of(driver.cuKernelSetAttribute(attribute, shared_bytes, kernel, device))


# Copies and streams


def copy_at_once(make, device: int):
    """Copy a NumPy array to a GPU and wait for that, also while a stream is being captured.

    `make` returns the array. It is called in the GPU's context, which a new thread may lack.

    A copy enqueued on a captured stream would run only when the graph is launched. And during a
    capture the driver refuses to allocate or to wait, unless the thread says that it means to.
    """
    with cuda.gpus[device], relaxed_capture():
        stream = _own_stream(device)
        copied = cuda.to_device(make(), stream=stream)
        stream.synchronize()
    return copied


@contextlib.contextmanager
def relaxed_capture():
    """Let this thread make calls that the driver forbids during another thread's capture."""
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = value_of(driver.cuThreadExchangeStreamCaptureMode(relaxed))
    try:
        yield
    finally:
        value_of(driver.cuThreadExchangeStreamCaptureMode(before))


@functools.cache
def _own_stream(device):
    """A stream of the current GPU, neither captured nor ordered by the default stream."""
    flag = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
    return cuda.external_stream(int(value_of(driver.cuStreamCreate(flag))))


@functools.cache
def stream_at(address: int):
    """The driver's object of the stream at an address."""
    return driver.CUstream(address)


# The driver


def value_of(result):
    """Return the value of a result of the driver; raise its error, by name, if it is one."""
    error, *values = result
    if error:
        raise RuntimeError(f"the CUDA driver refused: {error.name}")
    return values[0] if values else None


@functools.cache
def _has_gpu():
    return simt.has_gpu()
