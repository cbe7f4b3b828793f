"""arrays: the array decides where a kernel runs. Tests that need a GPU are in test_gpu."""

import os
import subprocess
import sys
import textwrap
import types

import numpy as np
import pytest
from fake_libraries import CupyArray, FakeDevice, TorchCpuTensor, TorchTensor, fake_cupy, fake_torch
from numba import cuda

import fa_numba
from fa_numba import checks, simt
from fa_numba.runtime import arrays


@cuda.jit
def add_one(x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = x[i] + x[0]


class RecordingKernel:
    """Replaces a compiled kernel; records how it is launched."""

    def __getitem__(self, configuration):
        self.configuration = configuration
        return lambda *args: setattr(self, "args", args)


class NumbaView(tuple):
    """Numba's view of an array interface."""

    def view(self, dtype):
        return NumbaView((*self, dtype))


@pytest.fixture
def log(monkeypatch):
    """Fake CuPy, PyTorch and CUDA; the list of devices entered and left."""
    log = []
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(log))
    monkeypatch.setitem(sys.modules, "torch", fake_torch(log))
    monkeypatch.setattr(cuda, "gpus", [FakeDevice(f"numba {i}", log) for i in range(2)])
    monkeypatch.setattr(cuda, "external_stream", lambda address: f"stream {address}")
    monkeypatch.setattr(cuda, "as_cuda_array", lambda x, sync: NumbaView(("view", x, sync)))
    return log


def test_library_of():
    x = np.zeros(3, np.float32)
    assert arrays.library_of(x) == arrays.library_of(x.view(np.recarray)) == "numpy"
    assert arrays.library_of(CupyArray(x)) == "cupy"
    assert arrays.library_of(TorchTensor(x)) == "torch"
    assert arrays.library_of(TorchCpuTensor(x)) is None
    for other in (None, 3.0, [1.0], np.float32(1), "x", object()):
        assert arrays.library_of(other) is None


def test_dtype_names_are_the_same_in_every_library():
    x = np.zeros(3, np.float32)
    for array in (x, CupyArray(x), TorchTensor(x)):
        assert arrays.dtype_name(array) == "float32"


@pytest.mark.parametrize("library", [lambda x: x, CupyArray, TorchTensor])
def test_last_axis_contiguous(library):
    x = np.zeros((4, 6), np.float32)
    for view in (x, x[::2], x[:, 1:3], x[::-1], x[:, 3:4], x[:0].T, x[:, ::-1][:, :1]):
        assert arrays.facts(library(view)).last_axis_contiguous
    for view in (x.T, x[:, ::2], x[:, ::-1], np.broadcast_to(x[0, 0], (2, 2))):
        assert not arrays.facts(library(view)).last_axis_contiguous


def test_a_call_reads_an_array_once(log):
    reads = []

    class Watched(CupyArray):
        __module__ = "cupy"
        strides = property(lambda self: reads.append("strides") or self.host.strides)
        shape = property(lambda self: reads.append("shape") or self.host.shape)

    q, k, v = (Watched(np.ones((1, 5, 2, 8), np.float32), 0, log) for _ in range(3))
    call = checks.forward_call(q, k, v, softcap=1.0)
    assert call.q is q and sorted(reads) == ["shape"] * 3 + ["strides"] * 3
    facts = arrays.facts(q)
    assert arrays.facts(facts) is facts and facts.array is q


@pytest.mark.parametrize("library", [lambda x: x, CupyArray, TorchTensor])
def test_facts_are_the_same_in_every_library(library):
    x = np.zeros((4, 6), np.float16)[:, 1:3]
    facts = arrays.facts(library(x))
    assert (facts.shape, facts.strides, facts.dtype) == ((4, 2), (12, 2), "float16")
    assert facts.last_axis_contiguous and facts.library == arrays.library_of(library(x))
    if library is not TorchTensor:
        assert facts.address == x.ctypes.data
    assert arrays.facts("text").library is None


def test_numpy_arrays_run_on_the_engine():
    x, y = np.arange(3, dtype=np.float32), np.zeros(3, np.float32)
    arrays.launch(add_one, (1,), (32,), x, y)
    np.testing.assert_array_equal(y, x + x[0])


def test_an_empty_grid_is_not_launched():
    arrays.launch(None, (0, 1), (32,), np.zeros(0))
    arrays.launch(None, (3, 0), (32,), np.zeros(0))


def test_package_launches_are_checked_on_request():
    @cuda.jit
    def racy(x):
        tile = cuda.shared.array(64, np.float32)
        tile[cuda.threadIdx.x] = x[cuda.threadIdx.x]
        x[cuda.threadIdx.x] = tile[63 - cuda.threadIdx.x]

    x = np.zeros(64, np.float32)
    arrays.launch(racy, (1,), (64,), x)
    with simt.options(package=True), pytest.raises(simt.errors.RaceError):
        arrays.launch(racy, (1,), (64,), x)


def test_results_belong_to_the_library_and_device_of_the_input(log):
    x = np.zeros((2, 3), np.float32)
    for library in (CupyArray, TorchTensor):
        like = library(x, 1, log)
        for made in (arrays.empty(like, (4, 5)), arrays.full(like, (4, 5), 7)):
            assert type(made) is library
            assert made.shape == (4, 5) and made.host.dtype == np.float32
            assert made.device.index == 1
        assert (made.host == 7).all()
        host = np.arange(6, dtype=np.int32)[::2]
        made = arrays.from_numpy(like, host)
        assert type(made) is library and made.device.index == 1
        assert (made.host == host).all() and made.host.dtype == np.int32
    assert arrays.from_numpy(x, host) is host
    assert type(arrays.empty(x, (4, 5))) is np.ndarray
    assert (arrays.full(x, (4, 5), -np.inf) == -np.inf).all()


def test_cupy_arrays_run_on_their_device_and_current_stream(log):
    kernel, x, scale = RecordingKernel(), CupyArray(np.ones(3), 1, log), np.float32(2)
    arrays.launch(kernel, (5,), (32,), x, scale, shared_bytes=64)
    assert kernel.configuration == ((5,), (32,), "stream 11", 64)
    assert kernel.args == (("view", x, False), scale)
    assert log == [
        ("enter device", 1),
        ("enter device", "numba 1"),
        ("leave device", "numba 1"),
        ("leave device", 1),
    ]


def test_torch_tensors_run_detached_on_their_device_and_current_stream(log):
    kernel, x = RecordingKernel(), TorchTensor(np.ones(3), 1, log)
    arrays.launch(kernel, (5,), (32,), x)
    assert kernel.configuration == ((5,), (32,), "stream 22", 0)
    ((_, view, sync),) = kernel.args
    assert view.detached and view.host is x.host and not sync
    assert [entry[1] for entry in log if entry[0] == "enter device"] == [1, "numba 1"]


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("library", [lambda x, *_: x, CupyArray, TorchTensor])
def test_every_dtype_goes_there_and_back(log, library, name):
    pytest.importorskip("ml_dtypes")
    host = np.arange(8, dtype=np.float32).astype(name).reshape(2, 4)
    like = library(host, 1, log)
    assert arrays.dtype_name(like) == name
    made = arrays.empty(like, (3, 5), like.dtype)
    assert type(made) is type(like) and arrays.dtype_name(made) == name and made.shape == (3, 5)
    there = arrays.from_numpy(like, host)
    assert type(there) is type(like) and arrays.dtype_name(there) == name
    back = arrays.to_numpy(there)
    assert back.dtype == name and (back == host).all()
    assert arrays.astype(like, like.dtype) is like
    wide = arrays.full(like, (3, 5), 2.7)
    rounded = arrays.to_numpy(arrays.astype(wide, like.dtype))
    np.testing.assert_array_equal(rounded, np.full((3, 5), 2.7, np.float32).astype(name))


@pytest.mark.skipif(arrays.gpu_available(), reason="needs a machine without a GPU")
def test_numba_device_arrays_keep_bfloat16():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    x = arrays.from_numpy(cuda.device_array(1), np.ones((1, 4, 1, 8), bfloat16))
    for name in ("flash_attn_v1", "flash_attn_v2"):
        out, *_ = getattr(fa_numba, name)(x, x, x)
        assert arrays.library_of(out) == "numba" and out.dtype == bfloat16
        assert (arrays.to_numpy(out) == 1).all()


@pytest.mark.parametrize("library", [CupyArray, TorchTensor])
def test_bfloat16_is_given_to_numba_as_its_bits_and_renamed(log, library):
    """The array interface has no name for it: PyTorch has called it float16, and raised."""
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    kernel, x = RecordingKernel(), library(np.ones((2, 3), bfloat16)[:, :2], 1, log)
    arrays.launch(kernel, (5,), (32,), x)
    ((_, view, sync, dtype),) = kernel.args
    assert type(view) is library and view.host.dtype == np.int16 and dtype == "bfloat16"
    assert np.shares_memory(view.host, x.host) and view.strides == x.strides and not sync


def test_bfloat16_tensors_need_ml_dtypes(log, monkeypatch):
    x = TorchTensor(np.ones((1, 2, 1, 4), pytest.importorskip("ml_dtypes").bfloat16), 0, log)
    monkeypatch.setattr(arrays, "knows_bfloat16", lambda: False)
    with pytest.raises(ImportError, match="q is bfloat16, .* the package ml_dtypes"):
        fa_numba.flash_attn_v2(x, x, x)


def test_mixed_libraries_are_refused_with_the_cure():
    x = np.ones((1, 2, 1, 4), np.float32)
    for other, hint in ((CupyArray, "cupy.asarray(x)"), (TorchTensor, "torch.as_tensor(x,")):
        with pytest.raises(TypeError) as raised:
            fa_numba.flash_attn_v2(other(x), x, x)
        message = str(raised.value)
        assert "q, k, v must be arrays of one library" in message
        assert "k: NumPy array" in message and hint in message


def test_a_torch_tensor_in_cpu_memory_is_refused_with_the_cure():
    x = TorchCpuTensor(np.ones((1, 2, 1, 4), np.float32))
    with pytest.raises(TypeError, match=r"q\.cuda\(\) runs on the GPU, q\.numpy\(\) on the CPU"):
        fa_numba.flash_attn_v2(x, x, x)


def test_a_sparse_tensor_is_refused_with_the_cure():
    class Sparse(TorchTensor):
        __module__ = "torch"
        layout = "torch.sparse_coo"

        def stride(self, axis=None):
            raise RuntimeError("Sparse CUDA tensors do not have strides")

    x = np.ones((1, 2, 1, 4), np.float32)
    with pytest.raises(
        TypeError, match=r"k must be a dense tensor, got one of layout torch.sparse"
    ):
        fa_numba.flash_attn_v2(TorchTensor(x), Sparse(x), TorchTensor(x))


def test_arrays_on_two_gpus_are_refused():
    x = np.ones((1, 2, 1, 4), np.float32)
    with pytest.raises(ValueError, match="must be on one GPU, got q: 0, k: 1, v: 1"):
        fa_numba.flash_attn_v2(CupyArray(x, 0), CupyArray(x, 1), CupyArray(x, 1))


def test_a_block_mask_must_be_where_q_is():
    x, block_mask = np.ones((1, 2, 1, 4), np.float32), np.ones((1, 1), bool)
    with pytest.raises(TypeError, match="q, block_mask must be arrays of one library"):
        fa_numba.flash_attn_v1(x, x, x, block_mask=CupyArray(block_mask))
    with pytest.raises(ValueError, match="must be on one GPU, got q: 0, block_mask: 1"):
        checks.check_block_mask(CupyArray(block_mask, 1), CupyArray(x, 0), x, 16, 16)


@pytest.mark.skipif(arrays.gpu_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_numba_device_arrays_run_on_the_engine():
    x = cuda.to_device(np.ones((1, 4, 1, 8), np.float32))
    out, lse = fa_numba.flash_attn_v2(x, x, x)
    assert arrays.library_of(out) == arrays.library_of(lse) == "numba"
    np.testing.assert_array_equal(out.copy_to_host(), np.ones((1, 4, 1, 8)))
    for made in (arrays.to_numpy(out), arrays.to_numpy(np.ones(3))):
        assert type(made) is np.ndarray


def test_sms_are_counted_on_the_gpu_of_an_array(monkeypatch):
    x = np.ones(3, np.float32)
    assert arrays.num_sms(x) == 40  # of a T4, the GPU that the engine imitates
    monkeypatch.setattr(arrays, "gpu_available", lambda: True)
    gpus = [
        types.SimpleNamespace(MULTIPROCESSOR_COUNT=n, compute_capability=(9, n)) for n in (1, 132)
    ]
    monkeypatch.setattr(cuda, "gpus", gpus)
    assert arrays.num_sms(x) == 40  # NumPy arrays run on the engine even so
    assert arrays.num_sms(CupyArray(x, 1)) == 132
    assert arrays.compute_capability(arrays.facts(CupyArray(x, 1))) == (9, 132)


def test_backend_says_where_and_why(monkeypatch):
    report = fa_numba.backend()
    assert (report.gpu is not None) == arrays.gpu_available()
    assert "CPU engine" in str(report) and report.reason

    monkeypatch.setattr(arrays.config, "ENABLE_CUDASIM", 0)
    monkeypatch.setattr(cuda, "is_available", lambda: True)
    device = types.SimpleNamespace(name=b"Some GPU", compute_capability=(8, 6))
    monkeypatch.setattr(cuda, "get_current_device", lambda: device)
    assert fa_numba.backend().gpu == "Some GPU, sm_86"
    assert "on the GPU (Some GPU, sm_86)" in str(fa_numba.backend())

    monkeypatch.setattr(arrays.config, "ENABLE_CUDASIM", 1)
    assert "NUMBA_ENABLE_CUDASIM" in str(fa_numba.backend())


def test_with_numbas_own_simulator():
    """It hides any GPU, and knows few options of cuda.jit; kernels run on the CPU engine."""
    program = """
        import numpy as np
        import fa_numba
        from fa_numba import reference
        assert "NUMBA_ENABLE_CUDASIM" in fa_numba.backend().reason
        q = np.random.default_rng(0).standard_normal((1, 9, 2, 8), np.float32)
        options = {"causal": True, "dropout_p": 0.25}
        out, _ = fa_numba.flash_attn_v2(q, q, q, **options)
        want, _ = reference.attention(q, q, q, **options)
        np.testing.assert_allclose(out, want, rtol=0, atol=1e-5)
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)]
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("shape, step", [((1, 2, 1, 5), 1), ((2, 1, 4), 1), ((1, 2, 1, 8), 2)])
def test_a_passed_check_does_not_let_other_arguments_pass(shape, step):
    changed = np.ones(shape, np.float32)[..., ::step]
    x = np.ones((1, 2, 1, 4), np.float32)
    for _ in range(2):
        fa_numba.flash_attn_v2(x, x, x)
        with pytest.raises(ValueError):
            fa_numba.flash_attn_v2(x, changed, x)
        for options in ({"causal": 1}, {"dropout_p": True}, {"softmax_scale": True}):
            with pytest.raises(TypeError):
                fa_numba.flash_attn_v2(x, x, x, **options)
        with pytest.raises(TypeError, match="MaskedArray"):
            fa_numba.flash_attn_v2(x, x, np.ma.masked_array(x))
        fa_numba.flash_attn_v2(x, x, x, dropout_p=0, softmax_scale=1.0)
