r"""Compile the kernels of the GPU tests for Hopper, on a machine without a GPU.

    FA_NUMBA_CACHE=ahead python -m pytest -m gpu --assert=plain -W ignore -p compile_ahead -n 2

The suite spends most of its time on a GPU compiling. With this plugin its tests run on NumPy
arrays that pass for CuPy's. Every launch compiles its kernel as on a GPU and keeps the machine code
in $FA_NUMBA_CACHE, and starts nothing. Carry that folder to the machine with the GPU, and set
FA_NUMBA_CACHE there. It is used by the same source, Python and versions of Numba: `kernel_cache`.

Results are zeros, so a test that fails counts for nothing; its asserts, which would end it before
its next launch, are left out. Kernels that are not of the package are not kept.
"""

import contextlib
import importlib.machinery
import os
import sys
import time
import types
from collections import Counter
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

TESTS = Path(__file__).parent
MAX_BYTES = 1 << 30  # of an array; a test of larger ones is skipped


class Gpu(contextlib.AbstractContextManager):
    """An H200, current or not."""

    id = index = 0
    compute_capability = (9, 0)
    name = b"NVIDIA H200"
    MULTIPROCESSOR_COUNT = 132
    MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 232_448

    def __init__(self, index=0):
        pass

    device = property(lambda self: self)

    def __exit__(self, *error):
        pass

    def use(self):
        pass

    def synchronize(self):
        pass


class Stream(Gpu):
    """A stream of it."""

    ptr = 0
    null = None

    def __init__(self, *args, **options):
        pass


class GpuArray(np.ndarray):
    """A NumPy array that passes for one of CuPy's."""

    __module__ = "cupy"
    __cuda_array_interface__ = {}
    device = Gpu()

    @property
    def data(self):
        return types.SimpleNamespace(ptr=self.ctypes.data, device_id=0)

    def get(self):
        return np.array(self, subok=False)


def on_gpu(make):
    """A function of NumPy, whose arrays are on the GPU."""

    def made(*args, **options):
        x = np.asanyarray(make(*args, **options))
        if x.nbytes > MAX_BYTES:
            pytest.skip(f"an array of {x.nbytes:,} bytes")
        return x.view(GpuArray)

    return made


class Generator:
    """NumPy's random numbers, on the GPU."""

    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)

    def __getattr__(self, name):
        return on_gpu(getattr(self.rng, name))


class Cupy(types.ModuleType):
    """A module `cupy`: NumPy's functions, with results on the GPU."""

    ndarray = GpuArray

    def __getattr__(self, name):
        found = getattr(np, name)
        return on_gpu(found) if callable(found) and not isinstance(found, type) else found


class Driver:
    """The CUDA driver's functions succeed and do nothing; its other names are the real ones."""

    NO_RESULT = ("cuLaunchKernel", "cuLaunchKernelEx", "cuKernelSetAttribute")

    def __init__(self, real):
        self.real = real

    def __getattr__(self, name):
        if not name.startswith("cu") or isinstance(getattr(self.real, name), type):
            return getattr(self.real, name)
        return lambda *args: (0,) if name in self.NO_RESULT else (0, 1)


def fake_cupy():
    """Return a module `cupy`, of one GPU."""
    cupy = Cupy("cupy")
    cupy.empty = on_gpu(np.zeros)  # numbers that tests compute with
    cupy.asarray = cupy.array = cupy.ascontiguousarray = on_gpu(np.array)
    cupy.asnumpy = lambda x: x.get() if isinstance(x, GpuArray) else np.asarray(x)
    cupy.random = types.SimpleNamespace(
        default_rng=Generator, standard_normal=Generator().standard_normal
    )
    cupy.get_default_memory_pool = mock.MagicMock
    cupy.cuda = types.SimpleNamespace(
        Device=Gpu,
        Stream=Stream,
        get_current_stream=Stream,
        alloc=lambda n: on_gpu(np.zeros)(n, np.uint8).data,
        runtime=types.SimpleNamespace(
            getDevice=lambda: 0, getDeviceCount=lambda: 1, streamIsCapturing=lambda stream: 0
        ),
    )
    return cupy


class WithoutAsserts(importlib.machinery.SourceFileLoader):
    """Imports a file as `python -O` does; also the finder of this folder's files."""

    def get_code(self, fullname):
        return compile(self.get_data(self.path), self.path, "exec", dont_inherit=True, optimize=1)

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin and Path(spec.origin).parent == TESTS:
            spec.loader = cls(name, spec.origin)
        return spec


count = Counter()  # of launches, kernels and seconds


def install():
    """Replace the GPU, before any test file is imported."""
    from numba import cuda
    from numba.cuda import dispatcher
    from numba.cuda.cudadrv import devices

    def current():
        return Gpu()

    sys.meta_path.insert(0, WithoutAsserts)
    sys.modules["cupy"] = fake_cupy()
    cuda.is_available, cuda.gpus, cuda.synchronize = lambda: True, [Gpu()], lambda: None
    cuda.default_stream = cuda.external_stream = Stream
    cuda.get_current_device = dispatcher.get_current_device = devices.get_context = current
    dispatcher._Kernel.bind = lambda kernel: kernel._codelibrary.get_cubin()  # it loads that, too

    from fa_numba import reference
    from fa_numba.runtime import arrays, graphs, kernel_cache, launching

    library_of_type, launch = arrays._library_of_type, launching.launch
    compile_it = launching._compile

    def compiled(kernel, signature):
        if kernel_cache._path(kernel, "", ()) is None:
            count["kernels that are not kept"] += 1
            return "", b""
        begin = time.process_time()
        try:
            return compile_it(kernel, signature)
        finally:
            count["kernels compiled"] += 1
            count["seconds of CPU time compiling"] += time.process_time() - begin

    def launched(*args):
        count["launches"] += 1
        return launch(*args)

    def launched_by_numba(kernel, configuration):
        count["launches by Numba's dispatcher, not kept"] += 1
        return lambda *args: None

    launching.driver = graphs.driver = Driver(launching.driver)
    launching._compile, launching.launch = compiled, launched
    launching.copy_and_wait = lambda make, device: (1024, None)
    launching.relaxed_capture = contextlib.nullcontext
    graphs.Launches.enqueue = lambda *args: True
    dispatcher.CUDADispatcher.__getitem__ = launched_by_numba
    arrays._library_of_type = lambda kind: (
        "cupy" if issubclass(kind, GpuArray) else library_of_type(kind)
    )
    reference.attention, reference.attention_bwd = no_attention, no_gradients
    for name in dir(np.testing):
        if name.startswith("assert_"):
            setattr(np.testing, name, lambda *args, **options: None)


def no_attention(q, k, v, *, dtype=np.float64, **options):
    """Zeros in place of `reference.attention`, which takes most of a test's time."""
    batch, seqlen_q, num_heads, _ = q.shape
    out = np.zeros((batch, seqlen_q, num_heads, v.shape[-1]), dtype)
    return out, np.zeros((batch, num_heads, seqlen_q), np.result_type(dtype, np.float32))


def no_gradients(dout, q, k, v, *, sinks=None, dtype=np.float64, **options):
    given = q, k, v, *(() if sinks is None else (sinks,))
    return tuple(np.zeros(x.shape, dtype) for x in given)


install()


def pytest_configure(config):
    if not os.environ.get("FA_NUMBA_CACHE") or config.option.assertmode != "plain":
        raise pytest.UsageError("compile_ahead needs --assert=plain and FA_NUMBA_CACHE=folder")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        report.outcome, report.wasxfail = "skipped", "its results are not real"
        report.longrepr = str(call.excinfo.value)[:200]
    return report


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["compiled_ahead"] = dict(count)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    count.update(getattr(node, "workeroutput", {}).get("compiled_ahead", {}))


def pytest_terminal_summary(terminalreporter):
    count["tests collected"] = terminalreporter._numcollected
    files = list(Path(os.environ["FA_NUMBA_CACHE"]).glob("*.cubin"))
    count["files"] = len(files)
    count["MiB"] = sum(file.stat().st_size for file in files) / 2**20
    terminalreporter.section("compiled ahead")
    for name, number in count.items():
        terminalreporter.line(f"{name}: {number:,.0f}")
