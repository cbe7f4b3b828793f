"""The array decides where a kernel runs; the result is an array of the same library.

Kernels run on the CPU engine for NumPy arrays. For CuPy arrays, PyTorch tensors and Numba device
arrays they run on the arrays' GPU, on that library's current stream, and nothing is copied. This is
the only module that distinguishes the libraries.
"""

import contextlib
import functools
import itertools
import math
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
from numba_cuda_simulator import without_numba
from numba_cuda_simulator.devices import chip
from numba_cuda_simulator.host import DeviceArray
from numba_cuda_simulator.options import current_options

LIBRARIES = {
    "numpy": "NumPy array",
    "cupy": "CuPy array",
    "torch": "PyTorch CUDA tensor",
    "numba": "Numba device array",
}
MAX_CONSTANTS = 4096  # arrays of `constant`, 512 bytes or a little more each
_constants = {}
JOBS_ON_CPU = (
    "A job, such as flash_attn, needs Numba; an algorithm, such as flash_attn_v2, does not."
    if without_numba.is_installed()
    else "A job, such as flash_attn, runs compiled for the CPU on NumPy arrays."
)
_captured = []  # arrays that CUDA graphs write; CuPy's pool must not reuse their memory


@dataclass(frozen=True)
class Backend:
    """Where kernels run on this machine.

    Attributes
    ----------
    gpu : str or None
        Name and compute capability of the current GPU.
    reason : str
        How that is known, or why there is no GPU.
    """

    gpu: str | None
    reason: str

    def __str__(self):
        if self.gpu is None:
            return (
                f"Kernels run on the CPU engine, on NumPy arrays: {self.reason}. "
                "Answers, bytes and races are those of a GPU; times are not. "
                f"{JOBS_ON_CPU}"
            )
        return (
            f"Kernels run on the GPU ({self.gpu}) for CuPy arrays, PyTorch tensors and Numba "
            f"device arrays, and on the CPU engine for NumPy arrays. {JOBS_ON_CPU}"
        )


def gpu_available() -> bool:
    """Return whether Numba can launch kernels on a GPU."""
    return simt.has_gpu()


def backend() -> Backend:
    """Say where kernels run on this machine, and why.

    Returns
    -------
    Backend
        `print` it for a sentence.
    """
    if without_numba.is_installed():
        return Backend(None, "Numba is not installed")
    if config.ENABLE_CUDASIM:
        return Backend(None, "NUMBA_ENABLE_CUDASIM is set, which hides any GPU from Numba")
    try:
        if not cuda.is_available():
            why = " ".join(str(cuda.cuda_error() or "the driver gives no reason").split())
            return Backend(None, f"Numba finds no GPU ({why.split('. ')[0].rstrip('.')})")
        device = cuda.get_current_device()
        name = device.name.decode() if isinstance(device.name, bytes) else device.name
        major, minor = device.compute_capability[:2]
    except Exception as error:  # a half-broken CUDA raises errors of many types
        return Backend(None, f"CUDA does not start ({type(error).__name__}: {error})")
    return Backend(f"{name}, sm_{major}{minor}", "the CUDA driver reports it")


@dataclass(eq=False, slots=True)
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
        In bytes. None for a sparse tensor, which has none.
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
    def address(self) -> int:
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
            recording.note_alignment(x, address)
        return address

    @property
    def needs_gradient(self) -> bool:
        """Whether PyTorch records the operations on this tensor, for gradients."""
        if self.library != "torch" or not self.array.requires_grad:
            return False
        return sys.modules["torch"].is_grad_enabled()

    @property
    def last_axis_contiguous(self) -> bool:
        """Whether neighbours along the last axis are neighbours in memory."""
        shape = self.shape
        return shape[-1] <= 1 or 0 in shape or self.strides[-1] == self.itemsize


def facts(x) -> Facts:
    """Read the facts of an array; return `x` itself if it is a `Facts` already.

    So a check can pass the facts that it has read to another check.
    """
    if type(x) is Facts:
        return x
    library = library_of(x)
    if library is None:
        return Facts(x, None, None, None, (), (), 0)
    if library == "torch":
        itemsize = x.element_size()
        try:
            strides = tuple([n * itemsize for n in x.stride()])
        except RuntimeError:
            strides = None
    else:
        itemsize, strides = x.dtype.itemsize, tuple(x.strides)
    return Facts(x, library, device_of(x), dtype_name(x), tuple(x.shape), strides, itemsize)


def library_of(x) -> str | None:
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


def module_of(x):
    """The module whose functions compute with an array on its device: CuPy's, else NumPy."""
    return sys.modules["cupy"] if library_of(x) == "cupy" else np


def dtype_name(x) -> str:
    """Name of an array's dtype: "float32" in every library."""
    return _name_of_dtype(x.dtype)


@functools.cache  # NumPy takes 3 µs to write a dtype's name
def _name_of_dtype(dtype):
    return str(dtype).removeprefix("torch.")


def knows_bfloat16() -> bool:
    """Return whether NumPy has bfloat16: Numba loads it from ml_dtypes, if that is installed."""
    try:
        return np.dtype("bfloat16") is not None
    except TypeError:
        return False


def device_of(x) -> int | None:
    """Index of the GPU an array is on; None in host memory, and for Numba, which uses one GPU."""
    match library_of(x):
        case "cupy":
            return x.device.id
        case "torch":
            return x.device.index
    return None


def address_and_strides(x) -> tuple:
    """Address of an array's first element, and its strides in bytes: see `Facts.address`."""
    x = facts(x)
    return x.address, x.strides


# Facts of the GPU that an array is on. The CPU engine has those of the GPU that it imitates.


def compute_capability(x) -> tuple:
    """Compute capability of the GPU that an array is on: (major, minor)."""
    return tuple(_gpu_of(facts(x)).compute_capability[:2])


def num_sms(x) -> int:
    """Number of SMs of the GPU that an array is on."""
    x = facts(x)
    if x.library == "numpy" or not gpu_available():
        return chip(current_options().device).num_sms
    return _gpu_of(x).MULTIPROCESSOR_COUNT


def shared_bytes_per_block(x) -> int:
    """Largest shared memory that a thread block can ask for on the GPU that an array is on."""
    x = facts(x)
    if x.library == "numpy" or not gpu_available():
        return chip(current_options().device).shared_bytes_per_block
    return _gpu_of(x).MAX_SHARED_MEMORY_PER_BLOCK_OPTIN


def _gpu_of(x):
    """Numba's object of the GPU with the array of some facts."""
    return cuda.gpus[cuda.get_current_device().id if x.device is None else x.device]


def is_capturing(x) -> bool:
    """Return whether a CUDA graph is being captured on the current stream of x's library."""
    library = _library(type(x))
    _, stream = library.current_device_and_stream()() if library else (None, 0)
    return stream != 0 and library.is_capturing(stream)


# New arrays, views and copies


def empty(like, shape: tuple, dtype=np.float32):
    """Make an uninitialised, contiguous array of the library and on the device of `like`.

    Parameters
    ----------
    like : array
    shape : tuple of int
    dtype : dtype, default=float32
        A dtype of NumPy, or the `x.dtype` of an array of any library.

    Returns
    -------
    array
    """
    made = _kept_if_captured(_empty(like, shape, dtype))
    if recording := replay.current():
        allocate = _library(type(like)).empty(like, tuple(shape), made.dtype)
        num_bytes = math.prod(shape) * facts(made).itemsize
        recording.note_allocation(made, allocate, num_bytes)
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


def full(like, shape: tuple, value: float, dtype=np.float32):
    """Make an array as `empty` does, with every element set to `value`."""
    made = _kept_if_captured(_full(like, shape, value, dtype))
    if recording := replay.current():
        allocate = _library(type(like)).full(like, tuple(shape), value, made.dtype)
        recording.note_allocation(made, allocate)
    return made


def constant(like, shape: tuple, value: float, dtype=np.float32):
    """Make an array as `full` does, for kernels to read alone: the same one for the same request.

    Only the first request launches a fill. The array is never freed, because a kernel on any stream
    may still read it; after MAX_CONSTANTS requests new ones are those of `full`.
    """
    library = _library(type(like))
    if library is None:
        return full(like, shape, value, dtype)
    key = library_of(like), device_of(like), shape, value, np.dtype(dtype).name
    made = _constants.get(key)
    if made is None:
        if len(_constants) >= MAX_CONSTANTS or is_capturing(like):
            return full(like, shape, value, dtype)
        made = _full(like, shape, value, dtype)
        library.wait(made)  # the next request may be on another stream
        _constants[key] = made
    if recording := replay.current():
        recording.note_allocation(made, lambda: made)
    return made


def _kept_if_captured(x):
    """Return x, and keep it alive if a CUDA graph that is being captured will write it."""
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


def from_numpy(like, x: np.ndarray):
    """Copy a NumPy array to the library and device of `like`; return it as it is for NumPy."""
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


def to_numpy(x) -> np.ndarray:
    """Copy an array to host memory; for a GPU array this waits for the GPU."""
    if recording := replay.current():
        recording.complete = False  # what follows may depend on its numbers
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


def as_view(view, x):
    """Return `view`, which begins where x does; a recording then knows it."""
    if recording := replay.current():
        recording.note_view(view, x)
    return view


def with_axis(x):
    """Return a view of x with an axis of length 1 before the others."""
    return as_view(x.reshape(1, *x.shape), x)


def as_int16(x, *, flat=False):
    """Return a view of a 16-bit array's bits; with `flat`, of a contiguous array on one axis."""
    return as_view(_seen_as(x.reshape(-1) if flat else x, "int16"), x)


def astype(x, dtype):
    """Return an array's values rounded to a dtype; the array itself if it has that dtype."""
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
    """Return a view of a GPU array's bits as another dtype.

    Plain NumPy has no bfloat16, so not every library can copy it: it is copied as 16-bit integers.
    """
    if library_of(x) == "torch":
        return x.detach().view(_torch_dtype(name))
    return x.view(np.dtype(name))


def _torch_dtype(dtype):
    """Return PyTorch's dtype for a dtype of PyTorch or NumPy."""
    name = str(dtype) if str(dtype).startswith("torch.") else np.dtype(dtype).name
    return getattr(sys.modules["torch"], name.removeprefix("torch."))


# Launches


def launch(kernel, grid: tuple, block: tuple, *args, shared_bytes: int = 0) -> None:
    """Run a kernel where its arrays are; do nothing for a grid without thread blocks.

    Parameters
    ----------
    kernel : function decorated with ``@cuda.jit``
    grid, block : tuple of int
    *args : arrays of one library, NumPy scalars, and tuples of them
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
        if _enqueue(kernel, grid, block, args, shared_bytes, first):  # on the array's own device
            return
        if recording := replay.current():
            recording.complete = False
        warnings.simplefilter("ignore", NumbaPerformanceWarning)  # small grids are fine in lessons
        args = [_for_numba(x) for x in args]
        launching.prepare_compiler()
        if gpu_available():  # else the arrays are the engine's
            launching.allow_shared_bytes(kernel, args, shared_bytes)
        kernel[grid, block, stream, shared_bytes](*args)


def _enqueue(kernel, grid, block, args, shared_bytes, first):
    """Launch without Numba's dispatcher; return False if that cannot be done."""
    if not launching.can_try(kernel):
        return False
    device, current, stream = _devices_and_stream(first)
    if device != current:
        return False
    arguments, values = _described(args)
    prepared = launching.launch(
        kernel, grid, block, shared_bytes, device, stream, arguments, values, _normalize_layout
    )
    if prepared is None:
        return False
    if recording := replay.current():
        elements = (x if type(x) is tuple else (x,) for x in args)
        recording.note_launch(prepared, [*itertools.chain(*elements)], values)
    return True


def _described(args):
    """The arguments and values that `launching.launch` takes."""
    arguments, values = [], []
    for x in args:
        if isinstance(x, (np.generic, bool, int, float)):
            arguments.append(type(x))
            values.append(x.item() if isinstance(x, np.generic) else x)
        elif type(x) is tuple:
            of_elements, more = _described(x)
            arguments.append(launching.Several(of_elements))
            values += more
        else:
            description, address = _description_and_address(x)
            arguments.append(description)
            values.append(address)
    return arguments, values


def replayed(function: Callable) -> Callable:
    """Decorate a function that on a GPU only allocates and launches.

    Its steps must follow from the layouts of its arrays, which come first, and from its options.
    A second call with the same ones repeats these steps alone: `replay`.
    """
    return replay.replayed(function, _library)


@dataclass(frozen=True)
class Library:
    """The quickest ways in which one array library allocates, and gives addresses and streams.

    `replay` uses them, on the current device only.

    Attributes
    ----------
    layout : callable
        ``layout(x)`` holds all that a call may depend on: first shape, strides, dtype, index of
        the device. It raises an error for an object that is no array of this library.
    address_of : callable
        ``address_of()(x)``; `map` takes it for many arrays, without a function of Python.
    view : callable
        ``view(x)`` is another object for the same memory and layout.
    current_device_and_stream : callable
        ``current_device_and_stream()()`` returns the index of the current device, and the handle
        of its current stream as an int.
    empty, full : callable
        ``empty(like, shape, dtype)()`` and ``full(like, shape, value, dtype)()`` allocate on the
        device of `like`, which must be current.
    scratch : callable
        ``scratch(like, num_bytes)()`` allocates that much, a multiple of 4, on the device of
        `like`; the result is an object that ``scratch_address`` takes, and owns the memory.
    is_capturing : callable
        ``is_capturing(handle of a stream)``
    keep_captured : callable
        ``keep_captured(arrays)`` keeps arrays alive that were allocated during a capture.
    wait : callable
        ``wait(x)`` waits for the current stream of x's device.
    """

    layout: Callable
    address_of: Callable
    view: Callable
    current_device_and_stream: Callable
    empty: Callable
    full: Callable
    scratch: Callable
    scratch_address: Callable
    is_capturing: Callable
    keep_captured: Callable
    wait: Callable


def _device_and_stream_of_cupy():
    cupy = sys.modules["cupy"]
    device, stream = cupy.cuda.runtime.getDevice, cupy.cuda.get_current_stream
    return lambda: (device(), stream().ptr)


def _device_and_stream_of_torch():
    torch = sys.modules["torch"]

    def stream_handle(device):
        return torch.cuda.current_stream(device).cuda_stream

    # These two are quicker: they do not test whether CUDA is initialised, nor make a Stream.
    device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
    stream = getattr(torch._C, "_cuda_getCurrentRawStream", stream_handle)
    return lambda: (current := device(), stream(current))


def _wait_for_cupy(x):
    with x.device:
        sys.modules["cupy"].cuda.get_current_stream().synchronize()


def _empty_of_cupy(like, shape, dtype):
    ndarray, kind = sys.modules["cupy"].ndarray, dtype.type  # CuPy takes a type sooner than a dtype
    try:  # the steps of ndarray(shape, kind), without passing both on by name: quicker
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
    # new_empty(shape) takes 0.3 µs longer: it works out these strides each time.
    strides = tuple([math.prod([max(n, 1) for n in shape[i:]]) for i in range(1, len(shape) + 1)])
    try:  # that of torch.compile's own code, without PyTorch's dispatcher: half the time
        guards = sys.modules["torch"]._C._dynamo.guards
        empty_strided = getattr(guards, f"_empty_strided_{like.device.type}")
    except AttributeError:  # another version of PyTorch
        return functools.partial(_prototype(like, dtype).new_empty_strided, shape, strides)
    return functools.partial(empty_strided, shape, strides, dtype)


def _full_of_torch(like, shape, value, dtype):
    return functools.partial(_prototype(like, dtype).new_full, shape, value)


def _layout_of_torch(x):
    # A call that was recorded under torch.no_grad must not be replayed where it is an error.
    needs_gradient = x.requires_grad and sys.modules["torch"].is_grad_enabled()
    return x.shape, x.stride(), x.dtype, x.get_device(), needs_gradient


def _prototype(like, dtype):
    """An empty tensor, whose new_empty is faster than torch.empty(device=…, dtype=…)."""
    return like.new_empty(0, dtype=dtype)


_LIBRARIES = {
    "cupy": Library(
        layout=operator.attrgetter("shape", "strides", "dtype", "data.device_id"),
        address_of=lambda: operator.attrgetter("data.ptr"),
        view=operator.methodcaller("view"),
        current_device_and_stream=_device_and_stream_of_cupy,
        empty=_empty_of_cupy,
        full=_full_of_cupy,
        scratch=lambda like, n: functools.partial(sys.modules["cupy"].cuda.alloc, n),
        scratch_address=operator.attrgetter("ptr"),  # no ndarray is made
        is_capturing=lambda s: bool(sys.modules["cupy"].cuda.runtime.streamIsCapturing(s)),
        keep_captured=lambda made: _captured.extend(made),
        wait=_wait_for_cupy,
    ),
    "torch": Library(
        layout=_layout_of_torch,
        address_of=lambda: sys.modules["torch"].Tensor.data_ptr,
        view=operator.methodcaller("detach"),
        current_device_and_stream=_device_and_stream_of_torch,
        empty=_empty_of_torch,
        full=_full_of_torch,
        scratch=lambda like, n: _empty_of_torch(like, (n // 4,), sys.modules["torch"].float32),
        scratch_address=operator.methodcaller("data_ptr"),
        is_capturing=lambda s: sys.modules["torch"].cuda.is_current_stream_capturing(),
        keep_captured=lambda made: None,  # PyTorch keeps them itself
        wait=lambda x: sys.modules["torch"].cuda.current_stream(x.device).synchronize(),
    ),
}


@functools.cache
def _library(kind):
    """The `Library` of a type of arrays; None if calls with such arrays are not replayed."""
    return _LIBRARIES.get(_library_of_type(kind))


def _devices_and_stream(x):
    """An array's device, the current device, and the handle of its library's current stream."""
    if library := _library(type(x)):
        return device_of(x), *library.current_device_and_stream()()
    device = cuda.get_current_device().id
    return device, device, 0


def _description_and_address(x):
    """(Shape, strides in the library's units, dtype) of an array, and its address."""
    if library := _library(type(x)):
        return library.layout(x)[:3], library.address_of()(x)
    return (x.shape, x.strides, x.dtype), x.device_ctypes_pointer.value or 0


def _normalize_layout(description):
    """Convert (shape, strides in the library's units, dtype) to strides in bytes, NumPy's dtype."""
    shape, strides, dtype = description
    if not isinstance(dtype, np.dtype):  # PyTorch's, with strides in elements
        dtype = np.dtype(str(dtype).removeprefix("torch."))
        strides = [stride * dtype.itemsize for stride in strides]
    return tuple(shape), tuple(strides), dtype


@contextlib.contextmanager
def device_and_stream(x):
    """Make the device of `x` current, and yield its library's current stream as one of Numba's."""
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
    """Return a GPU array as an array of Numba's own, without a copy; scalars as they are."""
    if type(x) is tuple:
        return tuple(map(_for_numba, x))
    match library_of(x):
        case "torch":
            x = x.detach()  # a tensor with a gradient has no array interface
        case "cupy":
            pass
        case _:
            return x
    if dtype_name(x) != "bfloat16":
        return cuda.as_cuda_array(x, sync=False)
    # The array interface has no name for bfloat16: it is passed as 16-bit integers.
    return cuda.as_cuda_array(_seen_as(x, "int16"), sync=False).view("bfloat16")
