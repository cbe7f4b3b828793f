"""The GPU that a program finds where the engine stands in for one.

    cuda.is_available(), cuda.gpus, cuda.select_device(0), cuda.current_context(), ...

It is the one that `simt.options(device=...)` names. Contexts, profilers and memory managers do
nothing: all memory is the host's, and every launch has finished when it returns.
"""

import contextlib
from collections import namedtuple

from .devices import chip
from .errors import UnsupportedError
from .host import DeviceArray, from_interface
from .options import current_options

MemoryInfo = namedtuple("MemoryInfo", "free total")


class NoSuchDevice(RuntimeError, IndexError):
    """A number that no GPU has."""


class Device:
    """The one GPU, as numba.cuda's Device objects tell of theirs."""

    id = 0
    WARP_SIZE = 32
    MAX_THREADS_PER_BLOCK = 1024
    MAX_BLOCK_DIM_X, MAX_BLOCK_DIM_Y, MAX_BLOCK_DIM_Z = 1024, 1024, 64
    MAX_GRID_DIM_X, MAX_GRID_DIM_Y, MAX_GRID_DIM_Z = 2**31 - 1, 65535, 65535
    ASYNC_ENGINE_COUNT, UNIFIED_ADDRESSING, COOPERATIVE_LAUNCH = 2, 1, 1
    PCI_BUS_ID = PCI_DEVICE_ID = PCI_DOMAIN_ID = 0
    supports_float16 = supports_bfloat16 = True
    uuid = "GPU-00000000-0000-0000-0000-000000000000"

    @property
    def chip(self):
        return chip(current_options().device)

    name = property(lambda self: f"{self.chip.name} (numba_cuda_simulator)".encode())
    compute_capability = property(lambda self: self.chip.compute_capability)
    MULTIPROCESSOR_COUNT = property(lambda self: self.chip.num_sms)
    MAX_SHARED_MEMORY_PER_BLOCK = property(lambda self: 48 * 1024)
    MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = property(lambda self: self.chip.shared_bytes_per_block)
    MAX_THREADS_PER_MULTI_PROCESSOR = property(lambda self: self.chip.threads)
    CLOCK_RATE = property(lambda self: int(self.chip.ghz * 1e6))
    COMPUTE_CAPABILITY_MAJOR = property(lambda self: self.compute_capability[0])
    COMPUTE_CAPABILITY_MINOR = property(lambda self: self.compute_capability[1])
    _device = property(lambda self: self)

    def reset(self):
        """Do nothing."""

    def get_primary_context(self):
        return CONTEXT

    release_primary_context = reset

    def __enter__(self):
        return CONTEXT

    def __exit__(self, *error):
        pass

    def __call__(self, function):
        """Decorate a function that is to run on this GPU."""
        return function

    def __repr__(self):
        return f"<simt device {self.chip.name}>"


class Pending:
    """The memory that is to be freed: none."""

    def clear(self):
        """Do nothing."""

    def __len__(self):
        return 0


class Context:
    """The context of the one GPU: it does nothing."""

    def __init__(self, device):
        self.device, self.deallocations = device, Pending()

    def get_memory_info(self):
        total = int(self.device.chip.gb * 1e9)
        return MemoryInfo(total, total)

    def synchronize(self):
        """Do nothing; so do the others."""

    reset = push = pop = prepare_for_use = synchronize

    @contextlib.contextmanager
    def defer_cleanup(self):
        yield

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


class Gpus:
    """cuda.gpus: a list of one GPU."""

    @property
    def lst(self):
        return [DEVICE]

    current = property(lambda self: DEVICE)

    def __len__(self):
        return 1

    def __iter__(self):
        return iter(self.lst)

    def __getitem__(self, number):
        if number not in (0, -1):
            raise NoSuchDevice(f"there is one GPU, of number 0; got {number}")
        return DEVICE

    def __repr__(self):
        return "<Managed Device 0>"


DEVICE = Device()
CONTEXT = Context(DEVICE)
GPUS = Gpus()


def select_device(device_id):
    """Make GPU number 0 the present one, which it is."""
    return GPUS[device_id]


def current_context(devnum=None):
    """Return the context of GPU number 0."""
    if devnum is not None:
        select_device(devnum)
    return CONTEXT


def detect():
    """Say which GPU there is; return True."""
    print(f"Found 1 CUDA device\nid 0    {DEVICE.name.decode()}: it runs kernels on the CPU")
    return True


def require_context(function):
    """Return the function: a context is always there."""
    return function


@contextlib.contextmanager
def nothing(*_, **__):
    yield


def is_cuda_array(obj):
    """Tell whether an object is a device array."""
    return isinstance(obj, DeviceArray) or hasattr(obj, "__cuda_array_interface__")


def as_cuda_array(obj, sync=True):
    """Return a device array as it is; another library's arrays live on a GPU."""
    if isinstance(obj, DeviceArray):
        return obj
    if not hasattr(obj, "__cuda_array_interface__"):
        raise TypeError("*obj* doesn't implement the cuda array interface.")
    shown = from_interface(obj)
    if shown is not None:
        return DeviceArray(shown)
    raise UnsupportedError(f"a {type(obj).__name__} lives on a GPU: copy it to the host")


# Without a GPU each of these would ask for a driver.
PRESENT = {
    "gpus": GPUS, "list_devices": lambda: GPUS, "get_current_device": lambda: DEVICE,
    "select_device": select_device, "current_context": current_context, "close": lambda: None,
    "detect": detect, "require_context": require_context, "defer_cleanup": nothing,
    "profiling": nothing, "profile_start": lambda: None, "profile_stop": lambda: None,
    "is_cuda_array": is_cuda_array, "as_cuda_array": as_cuda_array,
    "is_float16_supported": lambda: True, "is_bfloat16_supported": lambda: True,
}  # fmt: skip
# These only where a program is to take the engine for a GPU.
PRETENDED = {"is_available": lambda: True, "is_supported_version": lambda: True}
