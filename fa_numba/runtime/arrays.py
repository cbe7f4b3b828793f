"""The array decides where a kernel runs, and what kind of array the result is.

NumPy arrays run on the CPU engine. CuPy arrays, PyTorch tensors and Numba device arrays run on the
GPU they are on, on that library's current stream, with nothing copied. This is the only module
that knows one library from another.
"""

import contextlib
import functools
import operator
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numba import config, cuda
from numba.core.errors import NumbaPerformanceWarning

from fa_numba import simt
from fa_numba.runtime import launching, replay
from fa_numba.simt.devices import chip
from fa_numba.simt.host import DeviceArray
from fa_numba.simt.options import current_options

LIBRARIES = {
    "numpy": "NumPy array",
    "cupy": "CuPy array",
    "torch": "PyTorch CUDA tensor",
    "numba": "Numba device array",
}
_captured = []  # arrays that CUDA graphs write: CuPy's pool would give their memory to others


@dataclass(frozen=True)
class Backend:
    """Where kernels run on this machine.

    Attributes
    ----------
    gpu : str or None
        Name and compute capability of the current GPU.
    reason : str
        Why there is one, or why there is none.
    """

    gpu: str | None
    reason: str

    def __str__(self):
        if self.gpu is None:
            return (
                f"Kernels run on the CPU engine, on NumPy arrays: {self.reason}. "
                "Answers, bytes and races are those of a GPU; times are not."
            )
        return (
            f"Kernels run on the GPU ({self.gpu}) for CuPy arrays, PyTorch tensors and Numba "
            "device arrays, and on the CPU engine for NumPy arrays."
        )


def gpu_available():
    """True where Numba can launch kernels on a GPU."""
    return simt.has_gpu()


def backend():
    """Say where kernels run here, and why.

    Returns
    -------
    Backend
        `print` it for a sentence.
    """
    if config.ENABLE_CUDASIM:
        return Backend(None, "NUMBA_ENABLE_CUDASIM is set, which hides any GPU from Numba")
    try:
        if not cuda.is_available():
            why = " ".join(str(cuda.cuda_error() or "the driver gives no reason").split())
            return Backend(None, f"Numba finds no GPU ({why.split('. ')[0].rstrip('.')})")
        device = cuda.get_current_device()
        name = device.name.decode() if isinstance(device.name, bytes) else device.name
        major, minor = device.compute_capability[:2]
    except Exception as error:  # a half-broken CUDA raises kinds of its own
        return Backend(None, f"CUDA does not start ({type(error).__name__}: {error})")
    return Backend(f"{name}, sm_{major}{minor}", "the CUDA driver reports it")


@dataclass(frozen=True, eq=False, slots=True)
class Facts:
    """The properties of an array that checks and launches need, read from it once: see `facts`.

    Attributes
    ----------
    array : object
        The array itself.
    library : str or None
        "numpy", "cupy", "torch" or "numba"; None if kernels cannot take the object. Then the other
        attributes are empty.
    device : int or None
        Index of its GPU; None in host memory, and for Numba, which uses one GPU.
    dtype : str or None
        Name of its dtype, the same in every library: "float32".
    shape : tuple of int
    strides : tuple of int
        In bytes.
    itemsize : int
    """

    array: object
    library: str | None
    device: int | None
    dtype: str | None
    shape: tuple
    strides: tuple
    itemsize: int

    @property
    def address(self):
        """Address of the first element.

        A `replayed` function may depend on it modulo 16 only: reading it here notes that.
        """
        x = self.array
        match self.library:
            case "torch":
                address = x.data_ptr()
            case "cupy":
                address = x.data.ptr
            case "numpy":
                address = x.ctypes.data
            case _:
                address = x.device_ctypes_pointer.value or 0
        if recording := replay.current():
            recording.looked_at(x, address)
        return address

    @property
    def last_axis_contiguous(self):
        """True where neighbours along the last axis are neighbours in memory."""
        shape = self.shape
        return shape[-1] <= 1 or 0 in shape or self.strides[-1] == self.itemsize


def facts(x):
    """The facts of an array; `x` itself if it is a `Facts` already.

    So a check may call another one with what it has read.
    """
    if type(x) is Facts:
        return x
    library = library_of(x)
    if library is None:
        return Facts(x, None, None, None, (), (), 0)
    if library == "torch":
        itemsize = x.element_size()
        strides = [n * itemsize for n in x.stride()]
    else:
        itemsize, strides = x.dtype.itemsize, x.strides
    layout = tuple(x.shape), tuple(strides), itemsize
    return Facts(x, library, device_of(x), dtype_name(x), *layout)


def library_of(x):
    """Name the library that an array belongs to.

    Parameters
    ----------
    x : object

    Returns
    -------
    "numpy", "cupy", "torch" or "numba", or None for anything that kernels cannot take
        A PyTorch tensor in CPU memory is such a thing.
    """
    library = _library_of_type(type(x))
    return None if library == "torch" and not getattr(x, "is_cuda", False) else library


@functools.cache
def _library_of_type(kind):
    if issubclass(kind, np.ndarray):
        return "numpy"
    if issubclass(kind, DeviceArray):
        return "numba"  # the engine's, from cuda.to_device where there is no GPU
    roots = {base.__module__.partition(".")[0] for base in kind.__mro__}
    if "torch" in roots:
        return "torch"
    for library in ("cupy", "numba"):
        if library in roots and hasattr(kind, "__cuda_array_interface__"):
            return library
    return None


def signature(x):
    """All but the values and the address of an array, to be compared; None for anything else."""
    if not _library_of_type(type(x)):
        return None
    way = _way(type(x))
    try:
        return (type(x), *(way.layout(x) if way else (x.shape, x.strides, x.dtype)))
    except (AttributeError, RuntimeError):  # a tensor without strides or memory of its own
        return None


def dtype_name(x):
    """Name of an array's dtype: "float32" in every library."""
    return str(x.dtype).removeprefix("torch.")


def knows_bfloat16():
    """True where NumPy has bfloat16, from the package ml_dtypes, which Numba loads if it can."""
    try:
        return np.dtype("bfloat16") is not None
    except TypeError:
        return False


def last_axis_contiguous(x):
    """True where neighbours along the last axis are neighbours in memory."""
    return facts(x).last_axis_contiguous


def device_of(x):
    """Index of the GPU an array is on; None in host memory, and for Numba, which uses one GPU."""
    match library_of(x):
        case "cupy":
            return x.device.id
        case "torch":
            return x.device.index
    return None


def compute_capability(x):
    """Compute capability of the GPU that an array is on: (major, minor)."""
    with device_and_stream(facts(x).array):
        return tuple(cuda.get_current_device().compute_capability[:2])


def address_and_strides(x):
    """Where the first element of a GPU array is, and its strides in bytes.

    What a `replayed` function does may follow from the address modulo 16, not from the rest of it.
    """
    x = facts(x)
    return x.address, x.strides


def is_capturing(x):
    """True while what is enqueued on the current stream of an array's library becomes a graph."""
    way = _way(type(x))
    _, stream = way.place()() if way else (None, 0)
    return stream != 0 and way.is_capturing(stream)


def num_sms(x):
    """SMs of the GPU that an array is on; for the CPU engine, of the GPU that it imitates."""
    x = facts(x).array
    if library_of(x) == "numpy" or not gpu_available():
        return chip(current_options().device).num_sms
    with device_and_stream(x):
        return cuda.get_current_device().MULTIPROCESSOR_COUNT


def shared_bytes_per_block(x):
    """Shared memory that a thread block may ask for where the kernels of an array run."""
    x = facts(x)
    if x.library == "numpy" or not gpu_available():
        return chip(current_options().device).shared_bytes_per_block
    device = x.device
    return _shared_bytes_per_block(cuda.get_current_device().id if device is None else device)


@functools.cache
def _shared_bytes_per_block(device):
    return cuda.gpus[device].MAX_SHARED_MEMORY_PER_BLOCK_OPTIN


def empty(like, shape, dtype=np.float32):
    """An uninitialised, contiguous array of the library and on the device of `like`.

    Parameters
    ----------
    like : array
    shape : tuple of int
    dtype : default=float32
        NumPy's, or an array's own `x.dtype` in any library.

    Returns
    -------
    array
    """
    made = _kept_if_captured(_empty(like, shape, dtype))
    if recording := replay.current():
        recording.allocated(made, _way(type(like)).empty(like, tuple(shape), made.dtype))
    return made


def _empty(like, shape, dtype):
    match library_of(like):
        case "cupy":
            with like.device:
                return sys.modules["cupy"].empty(shape, dtype)
        case "torch":
            torch = sys.modules["torch"]
            return torch.empty(shape, dtype=_torch_dtype(dtype), device=like.device)
        case "numba":
            return cuda.device_array(shape, dtype)
    return np.empty(shape, dtype)


def full(like, shape, value, dtype=np.float32):
    """An array like `empty` makes, every element set to `value`."""
    made = _kept_if_captured(_full(like, shape, value, dtype))
    if recording := replay.current():
        recording.allocated(made, _way(type(like)).full(like, tuple(shape), value, made.dtype))
    return made


def _kept_if_captured(x):
    if library_of(x) == "cupy" and is_capturing(x):
        _captured.append(x)
    return x


def _full(like, shape, value, dtype):
    match library_of(like):
        case "cupy":
            with like.device:
                return sys.modules["cupy"].full(shape, value, dtype)
        case "torch":
            return _empty(like, shape, dtype).fill_(value)
        case "numba":
            return cuda.to_device(np.full(shape, value, dtype))
    return np.full(shape, value, dtype)


def from_numpy(like, x):
    """A NumPy array as one of the library and on the device of `like`; for NumPy, the same."""
    if dtype_name(x) == "bfloat16" and library_of(like) != "numpy":
        return _seen_as(from_numpy(like, x.view(np.int16)), "bfloat16")
    match library_of(like):
        case "cupy":
            with like.device:
                return sys.modules["cupy"].asarray(x)
        case "torch":
            return sys.modules["torch"].tensor(x, device=like.device)
        case "numba":
            return cuda.to_device(np.ascontiguousarray(x))
    return x


def to_numpy(x):
    """A copy of an array in host memory; for a GPU array this waits for the GPU."""
    if dtype_name(x) == "bfloat16" and library_of(x) != "numpy":
        return to_numpy(_seen_as(x, "int16")).view("bfloat16")
    match library_of(x):
        case "cupy":
            return x.get()
        case "torch":
            return x.detach().cpu().numpy()
        case "numba":
            return x.copy_to_host()
    return x.copy()


def with_axis(x):
    """A view of x with an axis of length 1 before the others."""
    view = x.reshape(1, *x.shape)
    if recording := replay.current():
        recording.seen_as(view, x)
    return view


def astype(x, dtype):
    """An array's values rounded to a dtype; the array itself where it has that already."""
    if x.dtype == dtype:
        return x
    match library_of(x):
        case "cupy":
            with x.device:
                return x.astype(dtype)
        case "torch":
            return x.to(_torch_dtype(dtype))
        case "numba":
            return from_numpy(x, to_numpy(x).astype(dtype))
    with np.errstate(over="ignore"):
        return x.astype(dtype)


def _seen_as(x, name):
    """A GPU array's bits as another dtype: bfloat16 is copied to and fro as integers.

    Not every library can copy it as what it is, for plain NumPy does not have it.
    """
    if library_of(x) == "torch":
        return x.detach().view(_torch_dtype(name))
    return x.view(np.dtype(name))


def _torch_dtype(dtype):
    """PyTorch's dtype for its own or NumPy's."""
    name = str(dtype) if str(dtype).startswith("torch.") else np.dtype(dtype).name
    return getattr(sys.modules["torch"], name.removeprefix("torch."))


def launch(kernel, grid, block, *args, shared_bytes=0):
    """Run a kernel where its arrays are; a grid without thread blocks is not launched.

    Parameters
    ----------
    kernel : function decorated with ``@cuda.jit``
    grid, block : tuple of int
    *args : arrays of one library, and NumPy scalars
        In the order of the kernel's parameters.
    shared_bytes : int, default=0
        Dynamic shared memory of a thread block.
    """
    if 0 in grid:
        return
    first = next((x for x in args if library_of(x) not in (None, "numpy")), None)
    if first is None:
        checked = current_options().package
        simt.run(kernel, grid, block, *args, shared_bytes=shared_bytes, checked=checked)
        return
    if _enqueue(kernel, grid, block, args, shared_bytes, first):
        return
    with device_and_stream(first) as stream, warnings.catch_warnings():
        if _enqueue(kernel, grid, block, args, shared_bytes, first):  # now its device is current
            return
        if recording := replay.current():
            recording.complete = False
        warnings.simplefilter("ignore", NumbaPerformanceWarning)  # small grids are fine in lessons
        args = [_for_numba(x) for x in args]
        launching.define_conversions()
        launching.allow_shared_bytes(kernel, args, shared_bytes)
        kernel[grid, block, stream, shared_bytes](*args)


def _enqueue(kernel, grid, block, args, shared_bytes, first):
    """Launch without Numba's dispatcher; False where that cannot be done."""
    if not launching.takes(kernel):
        return False
    device, current, stream = _places(first)
    if device != current:
        return False
    arguments, values = [], []
    for x in args:
        if isinstance(x, (np.generic, bool, int, float)):
            argument, value = type(x), x.item() if isinstance(x, np.generic) else x
        else:
            argument, value = _description(x)
        arguments.append(argument)
        values.append(value)
    plan = launching.launch(
        kernel, grid, block, shared_bytes, device, stream, arguments, values, _in_bytes
    )
    if plan and (recording := replay.current()):
        recording.launched(plan, args, values)
    return bool(plan)


def replayed(function):
    """Decorate a function that on a GPU does nothing but allocate and launch.

    What it does must follow from the layouts of its arrays, which come first, and from its options.
    The second call with the same ones is no more than that: `replay`.
    """
    return replay.replayed(function, _way)


@dataclass(frozen=True)
class Way:
    """The short way to do again what a library's arrays went through, on their own device.

    Attributes
    ----------
    layout : callable
        What a call may look at of an array: shape, strides, dtype, device; an error for what is
        none of this library.
    address : callable
        Of an array.
    view : callable
        Of an array: the same memory and layout, another object.
    place : callable
        ``place()()`` gives the current device, and the address of its current stream.
    empty, full : callable
        ``empty(like, shape, dtype)()`` and ``full(like, shape, value, dtype)()`` allocate, on the
        device of `like` where that is current.
    is_capturing : callable
        Of the address of a stream.
    keep_captured : callable
        Keeps arrays that were allocated during a capture.
    """

    layout: Callable
    address: Callable
    view: Callable
    place: Callable
    empty: Callable
    full: Callable
    is_capturing: Callable
    keep_captured: Callable


def _place_of_cupy():
    cupy = sys.modules["cupy"]
    device, stream = cupy.cuda.runtime.getDevice, cupy.cuda.get_current_stream
    return lambda: (device(), stream().ptr)


def _place_of_torch():
    torch = sys.modules["torch"]

    def address(device):
        return torch.cuda.current_stream(device).cuda_stream

    # Where there are these two, they look whether CUDA is initialised no more, and make no stream.
    device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
    stream = getattr(torch._C, "_cuda_getCurrentRawStream", address)
    return lambda: (current := device(), stream(current))


def _empty_of_cupy(like, shape, dtype):
    ndarray, kind = sys.modules["cupy"].ndarray, dtype.type  # which is found sooner than a dtype
    try:  # what ndarray(shape, kind) does, without passing both on by name: quicker
        base = ndarray.__base__
        make, init = base.__new__, base._init
    except AttributeError:
        return functools.partial(ndarray, shape, kind)

    def empty():
        made = make(ndarray)
        init(made, shape, kind)
        return made

    return empty


def _full_of_cupy(like, shape, value, dtype):
    cupy = sys.modules["cupy"]
    if value == 0:
        return functools.partial(cupy.zeros, shape, dtype)  # clears memory without a kernel
    return functools.partial(cupy.full, shape, value, dtype)


def _empty_of_torch(like, shape, dtype):
    return functools.partial(_nothing(like, dtype).new_empty, shape)


def _full_of_torch(like, shape, value, dtype):
    return functools.partial(_nothing(like, dtype).new_full, shape, value)


def _nothing(like, dtype):
    """A tensor without elements: it makes others sooner than if they are told device and dtype."""
    return like.new_empty(0, dtype=dtype)


_WAYS = {
    "cupy": Way(
        layout=operator.attrgetter("shape", "strides", "dtype", "data.device_id"),
        address=operator.attrgetter("data.ptr"),
        view=operator.methodcaller("view"),
        place=_place_of_cupy,
        empty=_empty_of_cupy,
        full=_full_of_cupy,
        is_capturing=lambda at: bool(sys.modules["cupy"].cuda.runtime.streamIsCapturing(at)),
        keep_captured=lambda made: _captured.extend(made),
    ),
    "torch": Way(
        layout=lambda x: (x.shape, x.stride(), x.dtype, x.get_device()),
        address=operator.methodcaller("data_ptr"),
        view=operator.methodcaller("detach"),
        place=_place_of_torch,
        empty=_empty_of_torch,
        full=_full_of_torch,
        is_capturing=lambda at: sys.modules["torch"].cuda.is_current_stream_capturing(),
        keep_captured=lambda made: None,  # PyTorch does so itself
    ),
}


@functools.cache
def _way(kind):
    """Of a type of arrays; None where calls are not replayed."""
    return _WAYS.get(_library_of_type(kind))


def _places(x):
    """Device of an array, the current one, and the address of its library's current stream."""
    if way := _way(type(x)):
        return device_of(x), *way.place()()
    device = cuda.get_current_device().id
    return device, device, 0


def _description(x):
    """What decides how an array is launched on, in its library's terms, and its address."""
    if way := _way(type(x)):
        return way.layout(x)[:3], way.address(x)
    return (x.shape, x.strides, x.dtype), x.device_ctypes_pointer.value or 0


def _in_bytes(description):
    """Shape, strides in bytes and NumPy's dtype from a description above."""
    shape, strides, dtype = description
    if not isinstance(dtype, np.dtype):  # PyTorch's, with strides in elements
        dtype = np.dtype(str(dtype).removeprefix("torch."))
        strides = [stride * dtype.itemsize for stride in strides]
    return tuple(shape), tuple(strides), dtype


@contextlib.contextmanager
def device_and_stream(x):
    """Make the device of `x` current; give its library's current stream as Numba's."""
    match library_of(x):
        case "cupy":
            with x.device, cuda.gpus[x.device.id]:
                yield cuda.external_stream(sys.modules["cupy"].cuda.get_current_stream().ptr)
        case "torch":
            torch = sys.modules["torch"]
            with torch.cuda.device(x.device), cuda.gpus[x.device.index]:
                yield cuda.external_stream(torch.cuda.current_stream().cuda_stream)
        case "numba":
            yield 0  # the default stream


def _for_numba(x):
    """A view of a GPU array as Numba's own; scalars as they are."""
    match library_of(x):
        case "torch":
            x = x.detach()  # with a gradient it has no interface
        case "cupy":
            pass
        case _:
            return x
    if dtype_name(x) != "bfloat16":
        return cuda.as_cuda_array(x, sync=False)
    # The interface has no name for bfloat16: it goes through as 16-bit integers.
    return cuda.as_cuda_array(_seen_as(x, "int16"), sync=False).view("bfloat16")
