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

import contextlib
import copy
import ctypes
import functools
import importlib
import math
import struct
import threading
import weakref

import numpy as np
from numba import cuda, types

from fa_numba import simt
from fa_numba.runtime import kernel_cache
from fa_numba.simt.devices import STATIC_SHARED_BYTES

try:
    from cuda.bindings import driver
    from numba.cuda.np.numpy_support import from_dtype  # isort: skip   plain Numba has it not
    from numba.cuda.dispatcher import CUDADispatcher
except ImportError:  # no numba-cuda, or its simulator
    driver = None

MAX_PLANS = 1024  # combinations of shapes that are kept
OFTEN = 8  # launches that come back more often become a CUDA graph, which takes longer to make
MAX_STREAMS = 4  # on which there are graphs of the same launches

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
        self.constants, self.variable = [], []
        for argument in arguments:
            if isinstance(argument, tuple):
                shape, strides, dtype = argument
                self.constants += 0, 0, math.prod(shape), dtype.itemsize
                self._add_variable("Q")
                self.constants += *shape, *strides
            else:
                self._add_variable(_ctype(argument)._type_)
        self._take_parameters({})

    def _add_variable(self, kind):
        self.variable.append((struct.Struct(kind).pack_into, len(self.constants)))
        self.constants.append(0)

    def _take_parameters(self, elsewhere):
        """Eight bytes for each parameter, and for the driver a pointer to each."""
        self.lock = threading.Lock()  # two threads must not write the parameters at once
        length = len(self.constants)
        self.parameters = (ctypes.c_int64 * length)(*self.constants)
        first = ctypes.addressof(self.parameters)
        self.pointers = (ctypes.c_void_p * length)(*range(first, first + 8 * length, 8))
        for i, address in elsewhere.items():
            _, place = self.variable[i]
            self.pointers[place] = address
        self.where = ctypes.addressof(self.pointers)

    def copy(self, values, elsewhere):
        """A plan for the same launch with parameters of its own.

        Those of some arguments lie `elsewhere`: by the number of the argument, an address.
        """
        plan = copy.copy(self)
        plan._take_parameters(elsewhere)
        plan.write(values)
        return plan

    def write(self, values):
        """Set the address of each array and the number of each scalar."""
        for (pack_into, place), value in zip(self.variable, values, strict=True):
            pack_into(self.parameters, 8 * place, value)

    def launch(self, values, stream):
        """Enqueue with an address for each array and a number for each scalar; True if done."""
        with self.lock:
            self.write(values)
            return self.enqueue(stream)

    def enqueue(self, stream):
        """Enqueue with the parameters as they are; True if done."""
        stream = stream_at(stream)
        (error,) = driver.cuLaunchKernel(self.function, *self.sizes, stream, self.where, 0)
        if not error:
            return True
        if error == driver.CUresult.CUDA_ERROR_INVALID_CONTEXT:
            return False  # a new thread has none: Numba's way gives it one
        raise RuntimeError(
            f"the GPU refused a launch with grid {self.sizes[:3]}, block {self.sizes[3:6]}, "
            f"{self.sizes[6]} bytes of dynamic shared memory: {error.name}"
        )

    def node(self, graph, after):
        """The launch as one that a CUDA graph makes after others, and what describes it there."""
        params = driver.CUDA_KERNEL_NODE_PARAMS()
        params.func = self.function
        params.gridDimX, params.gridDimY, params.gridDimZ = self.sizes[:3]
        params.blockDimX, params.blockDimY, params.blockDimZ = self.sizes[3:6]
        params.sharedMemBytes, params.kernelParams = self.sizes[6], self.where
        node = _driver(driver.cuGraphAddKernelNode(graph, after, len(after), params))
        return node, params


class Launches:
    """Launches one behind the other, made again and again with other addresses.

    What has been made often enough becomes a CUDA graph, for which the driver takes less time than
    for one launch by itself: 1.7 µs on an H200 (benchmarks/results/launch.json and NOTES.md).

    Parameters
    ----------
    num_words : int
        Addresses of arrays, and numbers computed from them, in a row.
    recorded : list of (Plan, values, places)
        `places` holds, by the number of an argument, which word that is; the others are constant.
    """

    def __init__(self, num_words, recorded):
        self.lock = threading.Lock()  # one thread at a time has the row
        self.row = (ctypes.c_uint64 * num_words)()  # where the parameters of all launches point to
        self.write = functools.partial(struct.Struct(f"{num_words}Q").pack_into, self.row, 0)
        first = ctypes.addressof(self.row)
        self.plans = [
            plan.copy(values, {i: first + 8 * place for i, place in places.items()})
            for plan, values, places in recorded
        ]
        self.graphs, self.times = {}, 0

    def enqueue(self, words, stream, capturing):
        """Enqueue with these words; True if done."""
        with self.lock:
            graph = self.graphs.get(stream)
            if graph and not capturing:
                if graph.context != _context():
                    return False
                if words != graph.words:
                    self.write(*words)
                    graph.take(words)
                graph.enqueue()
                return True
            self.write(*words)
            for plan in self.plans:
                if not plan.enqueue(stream):
                    return False
            self.times += 1
            if self.times > OFTEN and not capturing and len(self.graphs) < MAX_STREAMS:
                self.graphs[stream] = _graph(self.plans, stream)
        return True


class Graph:
    """A CUDA graph of some launches.

    Parameters
    ----------
    plans : list of Plan
    stream : int
        On which it is launched: on two of them it would wait for itself.
    """

    def __init__(self, plans, stream):
        self.plans, self.stream = plans, stream_at(stream)
        graph, after, nodes = _driver(driver.cuGraphCreate(0)), [], []
        for plan in plans:
            node, params = plan.node(graph, after)
            nodes.append((node, params))
            after = [node]
        self.launched = _driver(driver.cuGraphInstantiate(graph, 0))
        self.nodes, self.words, self.context = nodes, None, _context()
        weakref.finalize(self, _destroy, graph, self.launched).atexit = False

    def take(self, words):
        """From now on launch with the parameters as they are, which come from these words."""
        self.words = None
        for node, params in self.nodes:
            _driver(driver.cuGraphExecKernelNodeSetParams(self.launched, node, params))
        self.words = words

    def enqueue(self):
        """Enqueue with the parameters that were taken."""
        (error,) = driver.cuGraphLaunch(self.launched, self.stream)
        if error:
            raise RuntimeError(
                f"the GPU refused a CUDA graph of {len(self.nodes)} launches: {error.name}"
            )


def _graph(plans, stream):
    """A graph of these launches, or None where there cannot be one."""
    try:
        with _unsafe_while_capturing():
            return Graph(plans, stream)
    except (RuntimeError, AttributeError, TypeError):
        return None


def _destroy(graph, launched):
    if _context():
        driver.cuGraphExecDestroy(launched)  # if it is under way, afterwards
        driver.cuGraphDestroy(graph)


def _context():
    """Address of this thread's context, or 0: without one, a call with a graph ends the process."""
    _, context = driver.cuCtxGetCurrent()
    return int(context)


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
            loaded = _kernel(kernel, tuple(map(_type, arguments)), device)
            _allow_shared_bytes(int(loaded), shared_bytes, device)
            # Of a CUkernel, each launch would look for this: half a microsecond.
            function = _driver(driver.cuKernelGetFunction(loaded))
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
def _kernel(kernel, signature, device):
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
    return _driver(driver.cuLibraryGetKernel(library, entry.encode()))


def define_conversions():
    """Let kernels that are compiled from now on have the conversions of `bfloat16`.

    Importing them takes a tenth of a second, of which a process that finds its kernels on disk has
    no use.
    """
    importlib.import_module("fa_numba.runtime.bfloat16")


def _compile(kernel, signature):
    """Name and machine code of a kernel, from Numba."""
    define_conversions()
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
    with cuda.gpus[device], _unsafe_while_capturing():
        stream = _own_stream(device)
        copied = cuda.to_device(make(), stream=stream)
        stream.synchronize()
    return copied


@contextlib.contextmanager
def _unsafe_while_capturing():
    """Inside, this thread may do what would spoil a capture that is none of its own."""
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = _driver(driver.cuThreadExchangeStreamCaptureMode(relaxed))
    try:
        yield
    finally:
        _driver(driver.cuThreadExchangeStreamCaptureMode(before))


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
