"""launching and kernel_cache without a GPU: the arguments of the driver, and the files."""

import contextlib
import ctypes
import importlib
import os
import re
import struct
import subprocess
import sys
import time
import types
import weakref
from pathlib import Path

import numpy as np
import pytest
from numba import cuda, float32, int32

from fa_numba.kernels.flash_attn_v2 import make_flash_attn_v2
from fa_numba.runtime import arrays, kernel_cache, launching

pytestmark = pytest.mark.skipif(launching.driver is None, reason="needs numba-cuda")

SUCCESS = getattr(launching.driver, "CUresult", None) and launching.driver.CUresult.CUDA_SUCCESS
F4 = np.dtype(np.float32)


@cuda.jit
def scale(x, y, factor):
    y[0] = x[0] * factor


class FakeGpu:
    """Replaces the driver and Numba's list of GPUs; records their arguments."""

    def __init__(self):
        self.launches, self.error, self.shared = [], SUCCESS, []
        self.CUresult = launching.driver.CUresult
        self.CUfunction_attribute = launching.driver.CUfunction_attribute
        self.CUdevice_attribute = launching.driver.CUdevice_attribute
        self.CUlaunchAttribute = launching.driver.CUlaunchAttribute
        self.CUlaunchAttributeID = launching.driver.CUlaunchAttributeID
        self.CUlaunchConfig = launching.driver.CUlaunchConfig
        self.CUkernel = self.CUdevice = self.CUstream = self.CUfunction = int
        self.shared_limit = SUCCESS
        self.context, self.primary = 0, 5

    def cuCtxGetCurrent(self):
        return SUCCESS, self.context

    def cuCtxSetCurrent(self, context):
        self.context, self.error = context, SUCCESS
        return (SUCCESS,)

    def cuLaunchKernel(self, function, *sizes_stream_where_extra):
        *sizes, stream, where, extra = sizes_stream_where_extra
        assert extra == 0
        self.launches.append((function, tuple(sizes), stream, where))
        return (self.error,)

    def cuLaunchKernelEx(self, config, function, where, extra):
        (attribute,) = config.attrs
        assert attribute.id.name.endswith("PROGRAMMATIC_STREAM_SERIALIZATION")
        assert attribute.value.programmaticStreamSerializationAllowed == 1
        grid = config.gridDimX, config.gridDimY, config.gridDimZ
        block = config.blockDimX, config.blockDimY, config.blockDimZ
        sizes = *grid, *block, config.sharedMemBytes
        self.launches.append((function, sizes, int(config.hStream), where))
        return (self.error,)

    def cuKernelGetFunction(self, kernel):
        return SUCCESS, kernel

    def cuKernelSetAttribute(self, attribute, value, kernel, device):
        self.shared.append((value, kernel, device))
        return (self.shared_limit,)

    def cuFuncGetName(self, function):
        return SUCCESS, b"scale_kernel"

    def cuCtxGetDevice(self):
        return SUCCESS, 0

    def cuFuncGetAttribute(self, attribute, function):
        of = {"SHARED_SIZE_BYTES": 36_864, "NUM_REGS": 168, "MAX_THREADS_PER_BLOCK": 256}
        return SUCCESS, of[attribute.name.removeprefix("CU_FUNC_ATTRIBUTE_")]

    def cuDeviceGetAttribute(self, attribute, device):
        return SUCCESS, 65_536 if "REGISTERS" in attribute.name else 232_448

    def __getitem__(self, device):
        return self

    def __enter__(self):
        self.before, self.context = self.context, self.primary

    def __exit__(self, *error):
        self.context = self.before


@pytest.fixture
def gpu(monkeypatch):
    gpu = FakeGpu()
    monkeypatch.setattr(launching, "driver", gpu)
    monkeypatch.setattr(launching, "_prepared", {})
    monkeypatch.setattr(launching, "_has_gpu", lambda: True)
    monkeypatch.setattr(launching, "_load", lambda dispatcher, signature, device: 99)
    monkeypatch.setattr(cuda, "gpus", gpu)
    monkeypatch.setattr(launching, "cu_stream", lambda handle: handle)
    return gpu


def launch(arguments, values, shared_bytes=0):
    return launching.launch(
        scale, (4,), (32, 2), shared_bytes, 0, 7, arguments, values, arrays._normalize_layout
    )


def parameters(where, layout):
    """Read the parameters as the driver would, by their pointers."""
    kinds = re.findall(r"(\d*)(\D)", layout)
    kinds = [kind for count, kind in kinds for _ in range(int(count or 1))]
    pointers = (ctypes.c_void_p * len(kinds)).from_address(where)
    return [
        struct.unpack(kind, ctypes.string_at(pointer, struct.calcsize(kind)))[0]
        for kind, pointer in zip(kinds, pointers, strict=True)
    ]


def test_arrays_and_scalars_become_the_parameters_of_a_kernel(gpu):
    x, y = ((2, 3), (12, 4), F4), ((5,), (8,), F4)
    for address in (1 << 40, 1 << 41):  # the second time by what was kept
        assert launch([x, y, np.float32], [address, 4096, 0.5])
        function, sizes, stream, where = gpu.launches[-1]
        assert (function, sizes, stream) == (99, (4, 1, 1, 32, 2, 1, 0), 7)
        assert parameters(where, "16qf") == [
            *(0, 0, 6, 4, address, 2, 3, 12, 4),
            *(0, 0, 5, 4, 4096, 5, 8),
            0.5,
        ]
    assert len(launching._prepared) == 1
    launch([x, ((6,), (4,), F4), np.float32], [1, 2, 3.0])
    assert len(launching._prepared) == 2


def test_a_kernel_that_begins_early_is_launched_the_same(gpu, monkeypatch):
    given = [((2,), (4,), F4), np.float32], [1 << 40, 0.5], 512
    launch(*given)
    launching._prepared.clear()
    monkeypatch.setattr(scale, "begins_early", True, raising=False)
    monkeypatch.delattr(gpu.__class__, "cuLaunchKernel")
    assert launch(*given).begins_early
    before, after = gpu.launches
    assert before[:3] == after[:3] and parameters(after[3], "7qf") == [
        0,
        0,
        2,
        4,
        1 << 40,
        2,
        4,
        0.5,
    ]


def test_scalars_have_the_size_of_their_type(gpu):
    kinds = [np.int8, np.uint64, np.float64, np.bool_, int, float, np.int32]
    launch(kinds, [-3, 2**64 - 1, 0.1, True, -5, 2.5, -7])
    values = parameters(gpu.launches[0][-1], "bQd?qdi")
    assert values == [-3, 2**64 - 1, 0.1, True, -5, 2.5, -7]


def test_a_copy_of_a_launch_has_its_own_parameters(gpu):
    x = ((2,), (4,), F4)
    prepared = launch([x, np.float32, np.int32], [1 << 40, 0.5, 3])
    twin = prepared.copy([1 << 41, 1.5, 4], {})
    assert twin.launch([1 << 41, 1.5, 4], 7) and prepared.launch([1 << 40, 0.5, 3], 7)
    (_, *before), (_, *after) = gpu.launches[-2:]
    assert before[:2] == after[:2]
    want = [[0, 0, 2, 4, 1 << 41, 2, 4, 1.5, 4], [0, 0, 2, 4, 1 << 40, 2, 4, 0.5, 3]]
    assert [parameters(where, "7qfi") for *_, where in gpu.launches[-2:]] == want


def test_the_caller_may_keep_parameters_of_a_copy(gpu):
    x = ((2,), (4,), F4)
    prepared = launch([x, np.float32, x], [1 << 40, 0.5, 1 << 41])
    row = (ctypes.c_uint64 * 3)()
    twin = prepared.copy([0, 0.5, 0], {0: ctypes.addressof(row) + 16, 2: ctypes.addressof(row)})
    for row[0], row[2] in ((7, 8), (9, 10)):
        assert twin.enqueue(7)
        want = [0, 0, 2, 4, row[2], 2, 4, 0.5, 0, 0, 2, 4, row[0], 2, 4]
        assert parameters(gpu.launches[-1][-1], "7qf7q") == want


def test_strides_of_pytorch_are_in_elements():
    assert arrays._normalize_layout(((2, 3), (3, 1), "torch.float16")) == (
        (2, 3),
        (6, 2),
        np.dtype(np.float16),
    )


@pytest.mark.parametrize(
    "x",
    [
        np.zeros((2, 3), np.float32),
        np.zeros((2, 3), np.float32).T,
        np.zeros((2, 6), np.float32)[:, ::2],
        np.zeros((4, 1, 3), np.float32)[::2],
        np.zeros((1, 6, 3), np.float32)[:, ::7],
        np.zeros((0, 6), np.float32).T,
        np.broadcast_to(np.float32(1), (2, 3)),
    ],
)
def test_types_are_those_of_the_dispatcher(x):
    from numba.cuda.cudadrv.dummyarray import Array

    flags = Array.from_desc(0, x.shape, x.strides, x.itemsize).flags
    want = "C" if flags["C_CONTIGUOUS"] else "F" if flags["F_CONTIGUOUS"] else "A"
    assert launching._type((x.shape, x.strides, x.dtype)) == float32[(slice(None),) * x.ndim].copy(
        layout=want
    )
    assert launching._type(np.int32) == int32


def test_more_than_48_kib_is_asked_for_once(gpu):
    for shared_bytes in (48 * 1024, 100_000, 100_000):
        launch([np.float32], [1.0], shared_bytes)
    assert gpu.shared == [(100_000, 99, 0)]


def test_a_refusal_of_the_driver_is_an_error_with_the_launch(gpu):
    gpu.error = gpu.CUresult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(launching.LaunchRefusedError) as caught:
        launch([np.float32], [1.0])
    message = str(caught.value)
    assert re.search(r"grid \(4, 1, 1\).*CUDA_ERROR_INVALID_VALUE", message)
    assert "scale_kernel needs 36864 bytes of shared memory" in message
    assert "threads of 168 registers, of 65536 registers and at most 256 threads" in message


def test_too_much_shared_memory_names_the_kernel_its_sizes_and_the_limit(gpu):
    gpu.shared_limit = gpu.CUresult.CUDA_ERROR_INVALID_VALUE
    said = (
        r"scale_kernel needs 233600 bytes of shared memory \(36864 static, 196736 dynamic\), and "
        "a thread block of this GPU gets at most 232448"
    )
    for _ in range(2):  # asked again: no launch is kept that was never prepared
        with pytest.raises(launching.LaunchRefusedError, match=said):
            launch([np.float32], [1.0], 196_736)
    assert not gpu.launches


def test_an_error_of_an_earlier_kernel_is_no_refusal(gpu):
    gpu.error = gpu.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(RuntimeError, match="CUDA_ERROR_ILLEGAL_ADDRESS") as caught:
        launch([np.float32], [1.0])
    assert not isinstance(caught.value, launching.LaunchRefusedError)


def test_a_thread_without_a_context_enters_that_of_the_kernel(gpu):
    """Unless it has another one, or the kernel's is not known: the dispatcher then launches."""
    gpu.primary, invalid = 0, gpu.CUresult.CUDA_ERROR_INVALID_CONTEXT
    launch([np.float32], [1.0])
    gpu.error = invalid
    assert launch([np.float32], [1.0]) is None and gpu.context == 0
    gpu.primary, gpu.error = 5, SUCCESS
    launch([np.float64], [1.0])
    gpu.error = invalid
    assert launch([np.float64], [1.0]) and gpu.context == 5
    gpu.context, gpu.error = 7, invalid
    assert launch([np.float64], [1.0]) is None and gpu.context == 7


@pytest.mark.parametrize(
    "error", [AttributeError, TypeError, NotImplementedError, launching.NeedsDispatcherError]
)
def test_nothing_is_launched_if_numbas_internals_differ(gpu, monkeypatch, error):
    tries = []

    def other(dispatcher, signature, device):
        tries.append(dispatcher)
        raise error

    monkeypatch.setattr(launching, "_load", other)
    assert launch([np.float32], [1.0]) is None and launch([np.float32], [1.0]) is None
    assert not gpu.launches and tries == [scale]  # not tried again


def test_a_scalar_without_a_c_type_is_left_to_the_dispatcher(gpu):
    assert not launch([np.float16], [1.0])


def test_prepared_launches_do_not_pile_up(gpu):
    for n in range(launching.MAX_PREPARED + 3):
        launch([((n,), (4,), F4)], [0])
    assert len(launching._prepared) == 3


class FakeCopies:
    """A driver that copies within host memory, and Numba's list of GPUs, which counts entries."""

    CUstream_flags = types.SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUstreamCaptureMode = types.SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)

    def __init__(self):
        self.context, self.mode, self.entered, self.enqueued, self.allocated = 0, 0, [], [], []

    def cuCtxGetCurrent(self):
        return 0, self.context

    def cuThreadExchangeStreamCaptureMode(self, mode):
        self.mode, before = mode, self.mode
        return 0, before

    def cuStreamCreate(self, flag):
        return 0, "a stream"

    def cuMemcpyHtoDAsync(self, to, given, num_bytes, stream):
        assert self.context and self.mode == 2
        self.enqueued.append((to, ctypes.string_at(given, num_bytes)))
        return (0,)

    def cuStreamSynchronize(self, stream):
        for to, content in self.enqueued:
            ctypes.memmove(to, content, len(content))
        self.enqueued.clear()
        return (0,)

    def device_array(self, num_bytes, dtype):
        made = np.zeros(num_bytes, dtype).view(HostArray)
        self.allocated.append(weakref.ref(made))
        return made

    def gpu(self, device):
        @contextlib.contextmanager
        def enter():
            self.entered.append(device)
            before, self.context = self.context, 5 + device
            yield
            self.context = before

        return enter()


class HostArray(np.ndarray):
    @property
    def device_ctypes_pointer(self):
        return types.SimpleNamespace(value=self.ctypes.data)


def test_small_arrays_are_copied_into_blocks_which_their_owners_keep(monkeypatch):
    fake = FakeCopies()
    gpus = type("Gpus", (), {"__getitem__": lambda self, device: fake.gpu(device)})()
    monkeypatch.setattr(launching, "driver", fake)
    numba = types.SimpleNamespace(gpus=gpus, device_array=fake.device_array)
    monkeypatch.setattr(launching, "cuda", numba)
    monkeypatch.setattr(launching, "_blocks", {})
    monkeypatch.setattr(launching, "_own_stream", launching._own_stream.__wrapped__)
    monkeypatch.setattr(launching, "BLOCK_BYTES", 1024)

    def copy(number, device=0, num_bytes=128):
        content = np.full(num_bytes, number, np.uint8)
        address, owner = launching.copy_and_wait(lambda: content, device)
        assert address % 128 == owner.address % 128 and not fake.enqueued and fake.mode == 0
        return number, num_bytes, address, owner

    copies = [copy(i, num_bytes=128 if i % 2 else 40) for i in range(20)]
    copies += [copy(i, device=1) for i in range(20, 23)]
    for number, num_bytes, address, _ in copies:
        assert ctypes.string_at(address, num_bytes) == bytes([number]) * num_bytes
    assert len({address for _, _, address, _ in copies}) == 23
    assert len(fake.allocated) == 4 and fake.context == 0  # three for the first GPU
    fake.context, before = 6, len(fake.entered)
    copies.append(copy(30, device=1))
    assert len(fake.entered) == before  # its context is current
    copies.append(copy(31, device=0))
    assert len(fake.entered) == before + 1
    del copies[:8]  # all of the first block
    alive = [ref() is not None for ref in fake.allocated]
    assert alive == [False, True, True, True]


SIGNATURE = (float32, int32)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FA_NUMBA_CACHE", str(tmp_path))
    return tmp_path


def test_the_cache_returns_what_was_saved(folder):
    kernel = make_flash_attn_v2(64, 16, 16, False)
    assert kernel_cache.load(kernel, SIGNATURE, (9, 0)) is None
    kernel_cache.save(kernel, SIGNATURE, (9, 0), "entry", b"code\nand more")
    assert kernel_cache.load(kernel, SIGNATURE, (9, 0)) == ("entry", b"code\nand more")
    for other in (
        (make_flash_attn_v2(64, 16, 8, False), SIGNATURE, (9, 0)),
        (make_flash_attn_v2(64, 16, 16, True), SIGNATURE, (9, 0)),
        (make_flash_attn_v2(64, 16, 16, False, (3, 0)), SIGNATURE, (9, 0)),
        (kernel, (float32,), (9, 0)),
        (kernel, SIGNATURE, (8, 0)),
    ):
        assert kernel_cache.load(*other) is None


def test_a_damaged_file_is_not_used(folder):
    kernel = make_flash_attn_v2(64, 16, 16, False)
    kernel_cache.save(kernel, SIGNATURE, (9, 0), "entry", b"code")
    (path,) = folder.iterdir()
    for content in (path.read_bytes()[:-1], b"", b"x" + path.read_bytes()[1:]):
        path.write_bytes(content)
        assert kernel_cache.load(kernel, SIGNATURE, (9, 0)) is None


def test_a_file_that_cannot_be_written_leaves_nothing(folder, monkeypatch):
    def replace(source, target):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", replace)
    kernel_cache.save(make_flash_attn_v2(64, 16, 16, False), SIGNATURE, (9, 0), "entry", b"code")
    assert not list(folder.iterdir())


def test_a_user_without_a_home_keeps_no_files(monkeypatch, tmp_path):
    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    for name in ("FA_NUMBA_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert kernel_cache.folder() is None
    monkeypatch.setenv("FA_NUMBA_CACHE", str(tmp_path))
    assert kernel_cache.folder() == tmp_path


def test_files_unused_for_two_months_are_removed(folder):
    kernels = [make_flash_attn_v2(64, 16, 16, causal) for causal in (False, True)]
    for name, days in (("old", 61), ("new", 59)):
        (folder / f"{name}.cubin").write_bytes(b"")
        os.utime(folder / f"{name}.cubin", 2 * (time.time() - days * 24 * 3600,))
    kernel_cache.save(kernels[0], SIGNATURE, (9, 0), "entry", b"code")
    (used,) = (path for path in folder.iterdir() if path.name not in ("old.cubin", "new.cubin"))
    assert {path.name for path in folder.iterdir()} == {used.name, "new.cubin"}
    os.utime(used, (0, 0))
    kernel_cache.load(kernels[0], SIGNATURE, (9, 0))
    kernel_cache.save(kernels[1], SIGNATURE, (9, 0), "entry", b"code")
    assert used.exists()


def test_other_instructions_are_another_key(folder, monkeypatch):
    kernel = make_flash_attn_v2(64, 16, 16, False)
    kernel_cache.save(kernel, SIGNATURE, (9, 0), "entry", b"code")
    monkeypatch.setattr(kernel_cache, "_emitters_digest", lambda: "another")
    assert kernel_cache.load(kernel, SIGNATURE, (9, 0)) is None


def test_every_file_that_emits_instructions_is_in_the_key():
    package, pattern = kernel_cache.PACKAGE, re.compile(r"@intrinsic|import lower_|@overload")
    found = {path for path in package.rglob("*.py") if pattern.search(path.read_text())}
    named = {path for glob in kernel_cache.EMITTERS for path in package.glob(glob)}
    assert found and found <= named | {*(package / "cpu").iterdir()}


ONE = """
from typing import NamedTuple
from numba import cuda, float32
import math
class Pair(NamedTuple):
    first: int
    second: int = 2
STEP, PAIRS = 3, (1, 2)
@cuda.jit(device=True)
def inner(x):
    "Text."
    return x + STEP
def make(n):
    @cuda.jit
    def kernel(x):
        tile = cuda.shared.array(n, float32)
        tile[0] = math.exp(inner(x[0])) + PAIRS[1] + Pair(1).second
        x[0] = tile[0]
    return kernel
"""
OTHER_CODE = {
    "a global number": ("STEP, PAIRS = 3", "STEP, PAIRS = 4"),
    "a global tuple": ("(1, 2)", "(1, 3)"),
    "a device function": ("x + STEP", "x - STEP"),
    "its options": ("device=True)", "device=True, inline=True)"),
    "a function of a module": ("math.exp", "math.exp2"),
    "a default of a tuple": ("second: int = 2", "second: int = 3"),
    "a literal": ("tile[0] = math", "tile[1] = math"),
    "a name of another type": (
        "from numba import cuda, float32",
        "from numba import cuda\nfrom numba import float64 as float32",
    ),
}


def test_a_key_holds_all_that_a_kernel_reads(monkeypatch):
    monkeypatch.setattr(kernel_cache, "_is_kept", lambda path: True)

    def key(text, n=4):
        namespace = {"__name__": "fa_numba.kernels.one"}
        exec(compile(text, "one.py", "exec"), namespace)
        return kernel_cache.meaning(namespace["make"](n))

    keys = [key(ONE), key(ONE, 8), *(key(ONE.replace(*change)) for change in OTHER_CODE.values())]
    assert len({*keys}) == len(keys)
    for same in ("\n\n" + ONE, ONE.replace("Text.", "Other text."), ONE + "UNREAD = 1"):
        assert key(same) == keys[0]


def test_the_key_is_the_same_in_every_process(folder):
    kernel = make_flash_attn_v2(64, 16, 16, True, (3, 0), 0.5, True)
    code = (
        "from fa_numba.runtime import kernel_cache\n"
        "from fa_numba.kernels.flash_attn_v2 import make_flash_attn_v2\n"
        "kernel = make_flash_attn_v2(64, 16, 16, True, (3, 0), 0.5, True)\n"
        "print(kernel_cache._path(kernel, 'signature', (9, 0)))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == str(kernel_cache._path(kernel, "signature", (9, 0)))


def test_only_kernels_of_known_meaning_are_kept(folder, monkeypatch):
    things = [object()]

    @cuda.jit
    def closes_over_an_object(x):
        x[0] = len(things)

    for kernel in (scale, closes_over_an_object):  # neither is of the package
        kernel_cache.save(kernel, SIGNATURE, (9, 0), "entry", b"code")
    with pytest.raises(kernel_cache.UnknownValueError):
        kernel_cache.meaning(things[0])
    kernel = make_flash_attn_v2(64, 16, 16, False)
    monkeypatch.setenv("FA_NUMBA_CACHE", "")
    kernel_cache.save(kernel, SIGNATURE, (9, 0), "entry", b"code")
    assert kernel_cache.load(kernel, SIGNATURE, (9, 0)) is None
    assert not list(folder.iterdir())


NOT_OURS = "belongs to user 4711, who could change the compiled code in it: it is not used"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root, to chown")
def test_a_file_or_a_folder_of_another_user_is_refused(folder):
    kernel = make_flash_attn_v2(64, 16, 16, False)
    kernel_cache.save(kernel, SIGNATURE, (9, 0), "entry", b"code")
    (path,) = folder.iterdir()
    os.chown(path, 4711, 4711)
    with pytest.warns(RuntimeWarning, match=NOT_OURS):
        assert kernel_cache.load(kernel, SIGNATURE, (9, 0)) is None
    assert kernel_cache.load(kernel, SIGNATURE, (9, 0)) is None  # and no second warning
    os.chown(path, 0, 0)
    os.chown(folder, 4711, 4711)
    with pytest.warns(RuntimeWarning, match=NOT_OURS):
        assert kernel_cache.folder() is None
    assert kernel_cache.load(kernel, SIGNATURE, (9, 0)) is None
    kernel_cache.save(kernel, SIGNATURE, (9, 0), "entry", b"other code")
    os.chown(folder, 0, 0)
    assert kernel_cache.load(kernel, SIGNATURE, (9, 0)) == ("entry", b"code")


def test_a_link_of_another_user_is_refused(folder, monkeypatch):
    lstat = os.lstat
    kernel = make_flash_attn_v2(64, 16, 16, False)
    kernel_cache.save(kernel, SIGNATURE, (9, 0), "entry", b"code")
    (path,) = folder.iterdir()
    stranger = types.SimpleNamespace(st_uid=4711)
    monkeypatch.setattr(os, "lstat", lambda x: stranger if x == path else lstat(x))
    with pytest.warns(RuntimeWarning, match=NOT_OURS):
        assert kernel_cache.load(kernel, SIGNATURE, (9, 0)) is None


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FA_NUMBA_CACHE", str(tmp_path / "file" / "below"))
    kernel = make_flash_attn_v2(64, 16, 16, False)
    kernel_cache.save(kernel, SIGNATURE, (9, 0), "entry", b"code")
    assert kernel_cache.load(kernel, SIGNATURE, (9, 0)) is None


def test_kernels_of_rooms_that_the_key_leaves_out_are_not_kept(folder):
    save, load = kernel_cache.save, kernel_cache.load
    kernel = importlib.import_module("fa_numba.figures.thread_grid").__dict__
    kernel = next(x for x in kernel.values() if hasattr(x, "py_func"))
    save(kernel, "()", (9, 0), "entry", b"code")
    assert load(kernel, "()", (9, 0)) is None and not list(folder.glob("*"))
