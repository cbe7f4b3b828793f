"""Make Numba's own syntax, kernel[grid, block](*arrays), run on the engine.

Only the subscript of kernel objects is replaced, and what would touch a driver: to_device and
friends, and compilation at decoration time for kernels with a signature. This module and
`names` are the only ones that know Numba's internals.
"""

import builtins
import functools
import importlib.util
import sys
from collections import ChainMap

from numba import cuda

from . import without_numba
from .errors import LaunchError, explain
from .generated import keeping_source
from .host import STAND_INS
from .launch import launch
from .names import MLIR, PLACEHOLDERS
from .overloads import compile_for, enter, forget, note_launch, specialize
from .present import CONTEXT, PRESENT, PRETENDED
from .signatures import parsed_signatures
from .ufuncs import BUILDERS

try:
    from numba.np.ufunc.decorators import GUVectorize, Vectorize

    UFUNCS = Vectorize, GUVectorize
except ImportError:  # without Numba
    UFUNCS = ()

_originals = []  # (object, attribute, its value or MISSING), to undo
MISSING = object()
MLIR_HOST = "numba_cuda_mlir.numba_cuda"  # where numba-cuda-mlir itself takes to_device from


def is_simulator():
    """Tell whether Numba's own simulator is switched on (NUMBA_ENABLE_CUDASIM=1)."""
    return not hasattr(cuda, "driver")


def has_gpu():
    """Tell whether Numba can use a GPU here."""
    if is_simulator():
        return False
    ours = [value for owner, name, value in _originals if (owner, name) == (cuda, "is_available")]
    return ours[0]() if ours else cuda.is_available()


def kernel_class():
    """Return the class of the objects that @cuda.jit makes."""
    if is_simulator():
        from numba.cuda.simulator.kernel import FakeCUDAKernel

        return FakeCUDAKernel
    from numba.cuda.dispatcher import CUDADispatcher

    return CUDADispatcher


class Launcher:
    """kernel[grid, block, stream, shared_bytes], ready to be called."""

    def __init__(self, kernel, configuration):
        __tracebackhide__ = True
        if not isinstance(configuration, tuple) or not 2 <= len(configuration) <= 4:
            raise explain(
                LaunchError(
                    "a kernel is launched as kernel[grid, block](...), with a stream and the bytes "
                    f"of dynamic shared memory after them if need be; got {configuration!r}"
                )
            )
        self.kernel = kernel
        self.griddim, self.blockdim = configuration[:2]
        self.stream, self.sharedmem = (*configuration[2:], 0, 0)[:2]

    def __call__(self, *args, **keywords):
        __tracebackhide__ = True
        if keywords:
            name = next(iter(keywords))
            raise explain(LaunchError(f"a kernel's arguments have no keywords; got {name}=..."))
        error = launch(self.kernel, self.griddim, self.blockdim, args, self.sharedmem)
        if error is not None:
            raise error
        if compiles_nothing(self.kernel) and not self.kernel.specialized:
            note_launch(self.kernel, args)


def compiles_nothing(kernel):
    """Tell whether a kernel is one of Numba's where there is no GPU."""
    return getattr(type(kernel), "compile", None) is compile_for


def getitem(kernel, configuration):
    __tracebackhide__ = True
    return Launcher(kernel, configuration)


def configure(kernel, griddim, blockdim, stream=0, sharedmem=0):
    """kernel.configure(grid, block): the same as kernel[grid, block]."""
    __tracebackhide__ = True
    return Launcher(kernel, (griddim, blockdim, stream, sharedmem))


def blocks_for(kernel, ntasks, tpb=0, stream=0, sharedmem=0):
    """kernel.forall(n): one thread for each of n tasks."""
    __tracebackhide__ = True
    if ntasks < 0:
        raise explain(LaunchError(f"forall() takes a number of tasks from 0 on, got {ntasks}"))
    if ntasks == 0:
        return lambda *args: None
    threads = tpb or 128
    return Launcher(kernel, (-(-int(ntasks) // threads), threads, stream, sharedmem))


def without_signature(jit):
    """Wrap cuda.jit so that a signature is noted, and asks for no GPU at decoration time."""

    @functools.wraps(jit)
    def lazy_jit(func_or_sig=None, *args, **kwargs):
        if func_or_sig is None or hasattr(func_or_sig, "__code__"):
            return jit(func_or_sig, *args, **kwargs)
        device = kwargs.get("device", args[0] if args else False)
        signatures = parsed_signatures(func_or_sig, device)
        decorate = jit(None, *args, **kwargs)

        def with_signatures(function):
            kernel = decorate(function)
            kernel._simt_signatures = signatures
            if compiles_nothing(kernel) and not device:
                for signature in signatures:
                    enter(kernel, signature.args)
                kernel._specialized = len(signatures) == 1
            return kernel

        return with_signatures

    return lazy_jit


def enable(as_gpu=False):
    """Run `kernel[grid, block](*numpy_arrays)` on the engine from now on.

    Parameters
    ----------
    as_gpu : bool, default=False
        Also let `cuda.is_available()` say yes, so that a program takes the engine for a GPU, and
        keep the text of the functions that it makes by `exec`.
    """
    if not _originals:
        replace_kernels(cuda, kernel_class())
        if is_simulator():
            # The simulator lacks these names, so that `from numba.cuda import threadIdx` fails.
            for name, placeholder in PLACEHOLDERS.items():
                if not hasattr(cuda, name):
                    replace(cuda, name, placeholder)
        else:
            replace_host(cuda)
        if MLIR in sys.modules:
            enable_mlir()
        else:
            _originals.append((sys.meta_path, None, None))
            sys.meta_path.insert(0, WhenImported())
    if as_gpu and cuda.is_available is not PRETENDED["is_available"]:
        replace(builtins, "exec", keeping_source(exec))
        for module in [cuda, sys.modules.get(MLIR), sys.modules.get(MLIR_HOST)]:
            for name, stand_in in PRETENDED.items():
                if module is not None:
                    replace(module, name, stand_in)


def replace_kernels(module, kernel):
    """Give a dialect's kernels launches on the engine."""
    replace(kernel, "__getitem__", getitem)
    replace(kernel, "forall", blocks_for)
    replace(kernel, "configure", configure)
    if module is not cuda and not has_gpu():
        replace(kernel, "specialize", lambda kernel, *arguments: kernel)
    elif not has_gpu() and not is_simulator() and not without_numba.is_installed():
        replace(kernel, "specialize", specialize)
        replace(kernel, "compile", compile_for)
        dispatcher = sys.modules[kernel.__module__]
        replace(dispatcher, "get_current_device", PRESENT["get_current_device"])
    replace(module, "jit", without_signature(module.jit))


def replace_host(module):
    """Give a dialect the engine's device arrays, streams, contexts and ufuncs."""
    ours = STAND_INS if has_gpu() else STAND_INS | PRESENT
    for name, stand_in in ours.items():
        replace(module, name, stand_in)
    decorators = [*UFUNCS]
    own = sys.modules.get(f"{module.__name__}.np.ufunc.decorators")
    decorators += [own.Vectorize, own.GUVectorize] if own else []
    for decorator in decorators:
        ours = {"cuda": BUILDERS[decorator.__name__]}
        replace(decorator, "target_registry", ChainMap(ours, decorator.target_registry))
    devices = sys.modules.get(f"{module.__name__}.cudadrv.devices")
    if devices and not has_gpu():
        if hasattr(devices, "_runtime"):
            replace(devices._runtime, "ensure_context", CONTEXT.defer_cleanup)
        replace(devices, "gpus", PRESENT["gpus"])
        replace(devices, "get_context", PRESENT["current_context"])


def enable_mlir():
    """Run kernels of numba-cuda-mlir on the engine too."""
    replace_kernels(
        sys.modules[MLIR], importlib.import_module("numba_cuda_mlir.descriptor").MLIRDispatcher
    )
    for module in sys.modules[MLIR], sys.modules[MLIR_HOST]:
        replace_host(module)
        if cuda.is_available is PRETENDED["is_available"]:
            for name, stand_in in PRETENDED.items():
                replace(module, name, stand_in)


class WhenImported:
    """Finds numba_cuda_mlir.cuda, when it is imported after enable(), and enables it."""

    def find_spec(self, name, path=None, target=None):
        if name != MLIR:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_enable(module):
            execute(module)
            if is_enabled():
                enable_mlir()

        spec.loader.exec_module = execute_and_enable
        return spec


def disable():
    """Give Numba its own launches back."""
    forget()
    while _originals:
        owner, attribute, value = _originals.pop()
        if owner is sys.meta_path:
            owner[:] = [finder for finder in owner if not isinstance(finder, WhenImported)]
            continue
        if value is MISSING:
            delattr(owner, attribute)
        else:
            setattr(owner, attribute, value)


def replace(owner, attribute, value):
    _originals.append((owner, attribute, vars(owner).get(attribute, MISSING)))
    setattr(owner, attribute, value)


def is_enabled():
    """Tell whether kernel[grid, block] runs on the engine."""
    return bool(_originals)
