"""Launches a compiled kernel by the driver API: a few µs; Numba's dispatcher takes more than 100.

Numba's dispatcher examines every argument of every launch again: it reads the array interface,
infers a type, finds the code compiled for it, and unpacks the array again. This module does that
once for each kernel, grid, block, shared memory, GPU, and list of shapes, strides and dtypes, and
keeps the result (`PreparedLaunch`). A later launch writes the addresses of its arrays into the
kept parameters, and calls the driver. Numba still compiles the kernel, once for each combination
of types; its machine code is kept on disk (`kernel_cache`).

numba-cuda 0.30, the version that pyproject.toml requires, passes an array as 5 + 2·ndim
parameters: meminfo and parent (both 0 in a launch), size, itemsize, address, shape, and strides in
bytes. It passes a scalar as one parameter, and a tuple as the parameters of its elements.

If numba-cuda's internals differ from the ones that this module expects, `launch` launches nothing,
and the caller uses the dispatcher. fa_numba/runtime/__init__.py lists where internals are used.

The caller keeps the arrays alive until the kernel has run. The driver copies all parameters during
its call, so a `PreparedLaunch` may write the next ones as soon as the call returns.
"""

import contextlib
import copy
import ctypes
import functools
import gc
import importlib
import math
import struct
import threading

import numpy as np
from numba import cuda, types

from fa_numba import simt
from fa_numba.runtime import kernel_cache
from numba_cuda_simulator.devices import STATIC_SHARED_BYTES

try:
    from cuda.bindings import driver
    from numba.cuda.np.numpy_support import from_dtype  # isort: skip   plain Numba lacks it
    from numba.cuda.dispatcher import CUDADispatcher
except ImportError:  # numba-cuda is not installed, or NUMBA_ENABLE_CUDASIM is set
    driver = None

MAX_PREPARED = 1024  # prepared launches kept; when full, all are dropped
BLOCK_BYTES = 8192  # of a `Block`
UINT64 = "Q"  # the struct module's format
# Errors of cuLaunchKernel about the launch itself, not about an earlier kernel.
LIMITS_EXCEEDED = ("CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES")

enabled = driver is not None  # False leaves every launch to Numba's dispatcher

_prepared = {}  # a PreparedLaunch, or None for a launch that only the dispatcher can make
_lock = threading.Lock()
_blocks = {}  # of each GPU: the one with room
_blocks_lock = threading.Lock()


class Several(tuple):
    """The arguments that are the elements of one tuple."""


def flat(arguments):
    """Arguments with the elements of tuples in place of the tuples."""
    for x in arguments:
        if type(x) is Several:
            yield from x
        else:
            yield x


class NeedsDispatcherError(Exception):
    """This module cannot launch the kernel; Numba's dispatcher has to."""


class LaunchRefusedError(RuntimeError):
    """The driver cannot launch this kernel with this block and shared memory; nothing has run."""


class PreparedLaunch:
    """A launch without the addresses of its arrays and the values of its scalars.

    Parameters
    ----------
    function : CUfunction
    grid, block : tuple of int
    shared_bytes : int
    arguments : list
        For an array (shape, strides in bytes, dtype); for a scalar its type; `Several` for a tuple.

    Attributes
    ----------
    launch_config : tuple of int
        Grid, block and shared_bytes, in the order of cuLaunchKernel.
    initial_parameters : list of int
        All parameters; 0 for those that each launch writes.
    writers : list of (callable, int)
        For each argument: the function that packs its value, and the index of its parameter.
    parameters, pointers : ctypes array
        8 bytes for each parameter, and their addresses. They live as long as this object.
    pointers_at : int
        Address of `pointers`, an argument of cuLaunchKernel.
    context : int
        Handle of the context that `function` belongs to; 0 if that is not known.
    begins_early : bool
        Whether it may begin while the kernel before it ends (`ptx.dependent_launch`).
    """

    context = 0

    def __init__(self, function, grid, block, shared_bytes, arguments, begins_early=False):
        self.begins_early = begins_early
        self.function = function
        self.grid, self.block, self.shared_bytes = _pad_to_3(grid), _pad_to_3(block), shared_bytes
        self.launch_config = (*self.grid, *self.block, shared_bytes)
        self.initial_parameters, self.writers = [], []
        for argument in flat(arguments):
            if isinstance(argument, tuple):
                shape, strides, dtype = argument
                meminfo = parent = 0
                self.initial_parameters += meminfo, parent, math.prod(shape), dtype.itemsize
                self._add_writer(UINT64)
                self.initial_parameters += *shape, *strides
            else:
                self._add_writer(_ctype(argument)._type_)
        self._make_parameters({})

    def _add_writer(self, struct_format):
        pack_into = struct.Struct(struct_format).pack_into
        self.writers.append((pack_into, len(self.initial_parameters)))
        self.initial_parameters.append(0)

    def _make_parameters(self, parameter_addresses):
        """Allocate 8 bytes for each parameter, and a pointer to each; an argument as for `copy`."""
        self.lock = threading.Lock()  # two threads must not write the parameters at once
        length = len(self.initial_parameters)
        self.parameters = (ctypes.c_int64 * length)(*self.initial_parameters)
        first = ctypes.addressof(self.parameters)
        self.pointers = (ctypes.c_void_p * length)(*range(first, first + 8 * length, 8))
        for i, address in parameter_addresses.items():
            _, parameter = self.writers[i]
            self.pointers[parameter] = address
        self.pointers_at = ctypes.addressof(self.pointers)

    def copy(self, values, parameter_addresses):
        """Return the same launch with its own parameters, set to `values`.

        Parameters
        ----------
        values : list of int and float
            As for `write`.
        parameter_addresses : dict of int to int
            Index of an argument → address of memory that the caller fills; the driver reads the
            parameter there. The caller keeps that memory alive.
        """
        prepared = copy.copy(self)  # shares all attributes; the next line replaces those written to
        prepared._make_parameters(parameter_addresses)
        prepared.write(values)
        return prepared

    def write(self, values):
        """Set the address of each array and the value of each scalar."""
        for (pack_into, parameter), value in zip(self.writers, values, strict=True):
            pack_into(self.parameters, 8 * parameter, value)

    def launch(self, values, stream: int) -> bool:
        """Enqueue with these values; return False if this thread has no CUDA context."""
        with self.lock:
            self.write(values)
            return self.enqueue(stream)

    def enqueue(self, stream: int) -> bool:
        """Enqueue with the parameters as they are; return False without a CUDA context."""
        stream = cu_stream(stream)
        if self.begins_early:
            config = early_config(*self.launch_config, stream)
            (error,) = driver.cuLaunchKernelEx(config, self.function, self.pointers_at, 0)
        else:
            (error,) = driver.cuLaunchKernel(
                self.function, *self.launch_config, stream, self.pointers_at, 0
            )
        if not error:
            return True
        if error == driver.CUresult.CUDA_ERROR_INVALID_CONTEXT:  # in a new thread
            # Without the context, Numba's dispatcher launches, and makes one current for that.
            return enter_context(self.context) and self.enqueue(stream)
        failed = f"cuLaunchKernel failed for grid {self.grid}, block {self.block}: {error.name}"
        if error.name in LIMITS_EXCEEDED:
            raise LaunchRefusedError(
                f"{failed}. {needs(self.function, self.shared_bytes, math.prod(self.block))}"
            )
        raise RuntimeError(failed)


def can_try(kernel) -> bool:
    """Return True if `kernel` is a Numba-CUDA dispatcher and a GPU is present."""
    return enabled and isinstance(kernel, CUDADispatcher) and _has_gpu()


def launch(
    dispatcher, grid, block, shared_bytes, device, stream, arguments, values, normalize_layout
):
    """Enqueue a kernel. Compile it for these arguments if that was not done before.

    Parameters
    ----------
    dispatcher : function decorated with ``@cuda.jit``
    grid, block : tuple of int
    shared_bytes : int
        Dynamic shared memory of a thread block; may exceed 48 KiB.
    device : int
        Index of the current GPU.
    stream : int
        Handle of one of its streams (cudaStream_t) as an int.
    arguments : list
        For an array (shape, strides in the library's units, the library's dtype), for a scalar its
        type; `Several` of these for a tuple.
    values : list of int and float
        Addresses of the arrays, and values of the scalars; those of a tuple's elements one by one.
    normalize_layout : callable
        Converts an array's tuple to (shape, strides in bytes, NumPy dtype).

    Returns
    -------
    PreparedLaunch or None
        None if nothing was launched, and the caller must use the dispatcher: this module cannot
        launch the kernel, or this thread has no CUDA context.
    """
    key = (dispatcher, grid, block, shared_bytes, device, *arguments)
    try:
        prepared = _prepared[key]
    except KeyError:
        arguments = normalized(arguments, normalize_layout)
        prepared = _prepare(key, dispatcher, grid, block, shared_bytes, device, arguments)
    if prepared is None or not prepared.launch(values, stream):
        return None
    return prepared


def normalized(arguments, normalize_layout):
    """Arguments with layouts as (shape, strides in bytes, NumPy dtype), in tuples too."""
    return [
        Several(normalized(x, normalize_layout))
        if type(x) is Several
        else normalize_layout(x)
        if isinstance(x, tuple)
        else x
        for x in arguments
    ]


def _prepare(key, dispatcher, grid, block, shared_bytes, device, arguments):
    """Prepare a launch and keep it. Keep None if only the dispatcher can make the launch.

    None stays right until the process ends: it follows from the kernel's options, its types, and
    the versions of numba-cuda and cuda.bindings, which do not change. It is also kept if loading
    fails, for example without free memory; the dispatcher then launches, slower, the same kernel.
    """
    with _lock, cuda.gpus[device]:
        try:
            cukernel = _load(dispatcher, tuple(map(_type, arguments)), device)
            _set_shared_limit(int(cukernel), shared_bytes, device, math.prod(block))
            # Launching the CUkernel costs 0.5 µs more: the driver looks up the CUfunction.
            function = value_of(driver.cuKernelGetFunction(cukernel))
            early = getattr(dispatcher, "begins_early", False)
            prepared = PreparedLaunch(function, grid, block, shared_bytes, arguments, early)
            prepared.context = current_context()
        # AttributeError, TypeError: a version of numba-cuda or cuda.bindings lacks a name used
        # here, or its functions take other arguments. NotImplementedError: Numba or ctypes lacks
        # a type; ctypes lacks float16.
        except (NeedsDispatcherError, AttributeError, TypeError, NotImplementedError):
            prepared = None
        if len(_prepared) >= MAX_PREPARED:
            _prepared.clear()
        _prepared[key] = prepared
    return prepared


# Types: what Numba's dispatcher would infer


def _type(argument):
    """Numba's type of an argument, as its dispatcher would infer it."""
    if type(argument) is Several:
        return types.BaseTuple.from_types(tuple(map(_type, argument)))
    if not isinstance(argument, tuple):
        return from_dtype(np.dtype(argument))
    shape, strides, dtype = argument
    return types.Array(from_dtype(dtype), len(shape), _layout(shape, strides, dtype.itemsize))


def _layout(shape, strides, itemsize):
    """Numba's layout of an array: "C", "F" or "A".

    An array without elements is "C". An array with a 0 stride is "A"; Numba says so too.
    """
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


def _pad_to_3(sizes):
    return (*sizes, 1, 1)[:3]


# Kernels: compiled by Numba, or loaded from disk


@functools.cache
def _load(dispatcher, signature, device):
    """Return the CUkernel of a dispatcher for a signature: from disk, or compiled by Numba.

    The library that holds it is never unloaded, so it is valid until the process ends.
    """
    if dispatcher.targetoptions.get("debug") or dispatcher.extensions:
        # The dispatcher reads a debug kernel's errors, and lets extensions convert arguments.
        raise NeedsDispatcherError
    compute_capability = tuple(cuda.get_current_device().compute_capability)
    found = kernel_cache.load(dispatcher, str(signature), compute_capability)
    if found is None:
        found = _compile(dispatcher, signature)
        kernel_cache.save(dispatcher, str(signature), compute_capability, *found)
    entry, cubin = found
    error, library = driver.cuLibraryLoadData(cubin, [], [], 0, [], [], 0)
    if error:
        raise NeedsDispatcherError(error.name)
    return value_of(driver.cuLibraryGetKernel(library, entry.encode()))


def _compile(dispatcher, signature):
    """Return the entry name and machine code of a kernel, from Numba."""
    prepare_compiler()
    try:
        compiled = dispatcher.compile(signature)
    finally:
        # Numba leaves an exception in a reference cycle. Its traceback holds the frames of all
        # callers, and so their arrays.
        gc.collect()
    if compiled.cooperative or compiled.launch_config_sensitive:
        raise NeedsDispatcherError
    library = compiled._codelibrary
    return library._entry_name, bytes(library.get_cubin().code)


def prepare_compiler():
    """Give Numba the bfloat16 conversions, and quicken its compiler, before it compiles.

    Importing them takes a tenth of a second. A process that finds its kernels on disk saves it.
    """
    importlib.import_module("fa_numba.runtime.bfloat16")
    importlib.import_module("fa_numba.runtime.quick_compiler")


def allow_shared_bytes(dispatcher, args, shared_bytes):
    """Raise the dynamic shared memory limit of a kernel launched by Numba's dispatcher."""
    if shared_bytes > STATIC_SHARED_BYTES:
        compiled = dispatcher.compile(tuple(map(dispatcher.typeof_pyval, args)))
        cukernel, device = compiled._codelibrary.get_cufunc().handle, cuda.get_current_device().id
        _set_shared_limit(int(cukernel), shared_bytes, device)


def _set_shared_limit(cukernel, shared_bytes, device, threads=None):
    """Let a kernel have more than 48 KiB of dynamic shared memory.

    Parameters
    ----------
    cukernel : int
        Handle of a CUkernel. That of a CUfunction is not valid: cuKernelSetAttribute sets it.
    """
    if shared_bytes > STATIC_SHARED_BYTES:
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        kernel = driver.CUkernel(cukernel)
        (error,) = driver.cuKernelSetAttribute(
            attribute, shared_bytes, kernel, driver.CUdevice(device)
        )
        if error:
            function = value_of(driver.cuKernelGetFunction(kernel))
            raise LaunchRefusedError(
                f"cuKernelSetAttribute failed: {error.name}. "
                f"{needs(function, shared_bytes, threads)}"
            )


def needs(function, shared_bytes, threads=None) -> str:
    """Say what a kernel needs of an SM in a launch, beside the GPU's limits."""
    names, devices = driver.CUfunction_attribute, driver.CUdevice_attribute

    def of_kernel(name):
        return value_of(
            driver.cuFuncGetAttribute(getattr(names, f"CU_FUNC_ATTRIBUTE_{name}"), function)
        )

    def of_gpu(name):
        gpu = value_of(driver.cuCtxGetDevice())
        attribute = getattr(devices, f"CU_DEVICE_ATTRIBUTE_{name}")
        return value_of(driver.cuDeviceGetAttribute(attribute, gpu))

    name = value_of(driver.cuFuncGetName(function))
    name = name.decode() if isinstance(name, bytes) else name
    static, registers = of_kernel("SHARED_SIZE_BYTES"), of_kernel("NUM_REGS")
    said = (
        f"{name} needs {static + shared_bytes} bytes of shared memory ({static} static, "
        f"{shared_bytes} dynamic), and a thread block of this GPU gets at most "
        f"{of_gpu('MAX_SHARED_MEMORY_PER_BLOCK_OPTIN')}"
    )
    if threads is not None:
        said += (
            f"; {threads} threads of {registers} registers, of {of_gpu('MAX_REGISTERS_PER_BLOCK')} "
            f"registers and at most {of_kernel('MAX_THREADS_PER_BLOCK')} threads"
        )
    return said


# Copies and streams


class Block:
    """Memory of a GPU for small arrays, one after the other; nothing is written twice.

    It is freed once nobody keeps this object. To allocate for each array takes far longer than to
    copy it.

    Attributes
    ----------
    array : Numba device array
    address : int
    context : int
        Handle of the context that it was allocated in.
    used_bytes : int
    """

    def __init__(self):
        self.array = cuda.device_array(BLOCK_BYTES, np.uint8)
        self.address = self.array.device_ctypes_pointer.value
        self.context, self.used_bytes = current_context(), 0

    def take(self, num_bytes):
        """Return the address of so many bytes, a multiple of 128; None if there is no room."""
        begin = -(-self.used_bytes // 128) * 128
        if begin + num_bytes > BLOCK_BYTES:
            return None
        self.used_bytes = begin + num_bytes
        return self.address + begin


def copy_and_wait(make, device: int) -> tuple:
    """Copy a NumPy array to a GPU and wait for that, also while a stream is being captured.

    A copy enqueued on a captured stream would run only when the graph is launched. And during a
    capture the driver refuses to allocate or to wait, unless the thread's capture mode is RELAXED.

    Parameters
    ----------
    make : callable
        Returns the array, of at most BLOCK_BYTES. It is called in the GPU's context, which a new
        thread may lack.
    device : int
        Index of the GPU.

    Returns
    -------
    address : int
    owner : object
        It keeps the copy.
    """
    block = _blocks.get(device)
    entered = block is not None and block.context == current_context()
    with contextlib.nullcontext() if entered else cuda.gpus[device], relaxed_capture():
        made = make()
        with _blocks_lock:
            block = _blocks.get(device)
            address = block and block.take(made.nbytes)
            if address is None:
                block = _blocks[device] = Block()
                address = block.take(made.nbytes)
        stream = _own_stream(device)
        value_of(driver.cuMemcpyHtoDAsync(address, made.ctypes.data, made.nbytes, stream))
        value_of(driver.cuStreamSynchronize(stream))
    return address, block


@contextlib.contextmanager
def relaxed_capture():
    """Set this thread's capture mode to RELAXED: it may allocate and wait during any capture."""
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = value_of(driver.cuThreadExchangeStreamCaptureMode(relaxed))
    try:
        yield
    finally:
        value_of(driver.cuThreadExchangeStreamCaptureMode(before))


@functools.cache
def _own_stream(device):
    """A stream of GPU `device`, neither captured nor ordered by the default stream.

    The driver makes it on the current GPU: make `device` current before the first call.
    """
    return value_of(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))


@functools.cache
def cu_stream(handle: int):
    """The driver's object of a stream."""
    return driver.CUstream(handle)


@functools.lru_cache(MAX_PREPARED)
def early_config(*sizes_and_stream):
    """The driver's description of a launch that may begin while the kernel before it ends."""
    attribute, config = driver.CUlaunchAttribute(), driver.CUlaunchConfig()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    config.gridDimX, config.gridDimY, config.gridDimZ, *rest = sizes_and_stream
    config.blockDimX, config.blockDimY, config.blockDimZ, *rest = rest
    config.sharedMemBytes, config.hStream = rest
    config.attrs, config.numAttrs = [attribute], 1
    return config


# Contexts


def current_context() -> int:
    """Handle of this thread's context, or 0."""
    _, context = driver.cuCtxGetCurrent()
    return int(context)


def enter_context(context: int) -> bool:
    """Make a context current in a thread that has none; return whether that was done.

    CUDA's runtime does that at a thread's first call of it. The driver does not.
    """
    if context == 0 or current_context() != 0:
        return False
    (error,) = driver.cuCtxSetCurrent(context)
    return not error


# The driver


def value_of(result):
    """Return the value of a driver call's result, or raise RuntimeError with the error name."""
    error, *values = result
    if error:
        raise RuntimeError(f"a call of the CUDA driver failed: {error.name}")
    return values[0] if values else None


@functools.cache
def _has_gpu():
    return simt.has_gpu()
