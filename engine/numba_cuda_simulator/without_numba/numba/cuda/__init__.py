"""The names of numba.cuda: the engine gives them their meaning inside kernels."""

from numba import types  # noqa: F401

from numba_cuda_simulator.without_numba.missing import needs_numba

from . import cg, libdevice  # noqa: F401
from .dispatcher import CUDADispatcher

driver = None  # Numba's own simulator lacks the name
NAMES = """threadIdx blockIdx blockDim gridDim grid gridsize laneid warpsize shared local const
    atomic syncthreads syncthreads_count syncthreads_or syncthreads_and syncwarp shfl_sync
    shfl_up_sync shfl_down_sync shfl_xor_sync any_sync all_sync eq_sync ballot_sync match_any_sync
    match_all_sync activemask lanemask_lt threadfence threadfence_block threadfence_system
    nanosleep popc clz ffs brev cbrt fma selp fp16""".split()


class Name:
    """A function or variable of CUDA, known by its identity."""

    def __init__(self, name):
        self.__name__ = name

    def __repr__(self):
        return f"cuda.{self.__name__}"

    def __call__(self, *args, **kwargs):
        raise RuntimeError(f"cuda.{self.__name__} is for kernels: it has no meaning outside of one")


globals().update({name: Name(name) for name in NAMES})


def jit(func_or_sig=None, *args, **options):
    """Make a kernel or a device function."""
    if func_or_sig is None:
        return lambda function: CUDADispatcher(function, options)
    if not hasattr(func_or_sig, "__code__"):
        raise needs_numba("a signature")
    return CUDADispatcher(func_or_sig, options)


def is_available():
    return False


def cuda_error():
    """Return why there is no GPU."""
    return needs_numba("a GPU")


COMPILED = """as_cuda_array close compile compile_all compile_for_current_device compile_ptx
    compile_ptx_for_current_device detect device_array device_array_like event external_stream
    get_current_device gpus list_devices profile_start profile_stop stream synchronize
    to_device""".split()


def __getattr__(name):
    if name in COMPILED:
        raise needs_numba(f"cuda.{name}")
    raise AttributeError(f"module 'numba.cuda' has no attribute {name!r}")
