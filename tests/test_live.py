"""The live cells of lessons on tensor cores: what runs here, and what each kernel needs."""

import sys

import pytest
from numba import cuda

from fa_numba.workbook import live as module
from fa_numba.workbook.live import live

NAMES = "flash_attn_mma", "flash_attn_tf32x3", "flash_attn_wgmma"
MEASURED = {"largest error": "1e-4", "TFLOP/s": 1.5}


@pytest.fixture
def measured(monkeypatch):
    """The kernels that are measured, with their dtypes; none is run."""
    pytest.importorskip("numba_cuda", reason="needs numba-cuda")
    calls = []

    def measure(attention, shape, dtype):
        calls.append((attention.__name__, dtype.__name__))
        return MEASURED

    monkeypatch.setattr(module, "_measure", measure)
    monkeypatch.setattr(module.own, "has_cupy_and_gpu", lambda: True)
    return calls


def test_without_a_gpu_it_says_what_each_needs(monkeypatch, measured):
    monkeypatch.setattr(module, "_capability", lambda: None)
    said = live(*NAMES).markdown
    assert said.startswith("*No NVIDIA GPU here.*") and not measured
    assert "flash_attn_mma needs compute capability 8.0 or later" in said
    assert "flash_attn_wgmma needs compute capability 9.0." in said


@pytest.mark.parametrize(
    "here, able", [((7, 5), 0), ((8, 0), 2), ((8, 9), 2), ((9, 0), 3), ((10, 0), 2)]
)
def test_each_kernel_runs_where_its_instructions_are(monkeypatch, measured, here, able):
    monkeypatch.setattr(module, "_capability", lambda: here)
    said = live(*NAMES).markdown
    assert [name for name, _ in measured] == list(NAMES[:able])
    assert said.count("| 1.5 |") == able and said.count("needs") == len(NAMES) - able
    assert (f"This GPU has {here[0]}.{here[1]}" in said) == (able < len(NAMES))


def test_without_cupy_nothing_is_timed(monkeypatch, measured):
    monkeypatch.setattr(module, "_capability", lambda: (9, 0))
    monkeypatch.setattr(module.own, "has_cupy_and_gpu", lambda: False)
    assert "no CuPy" in live(*NAMES).markdown and not measured


def test_the_dtype_is_the_kernels(monkeypatch, measured):
    monkeypatch.setattr(module, "_capability", lambda: (9, 0))
    live("flash_attn_tf32x3", "flash_attn_fp8")
    assert measured == [("flash_attn_tf32x3", "float32"), ("flash_attn_fp8", "float16")]


def test_without_numba_cuda_it_says_so(monkeypatch):
    """Numba's own numba.cuda, of macOS and Python 3.15, lacks modules of numba-cuda."""
    rooms = "fa_numba.ptx.", "fa_numba.tensor_core."
    for name in [name for name in sys.modules if name.startswith(rooms)]:
        monkeypatch.delitem(sys.modules, name)
    if "numba.cuda.core" in sys.modules:
        monkeypatch.delattr(sys.modules["numba.cuda.core"], "errors", raising=False)
    monkeypatch.setitem(sys.modules, "numba.cuda.core.errors", None)
    said = "*Nothing runs on a GPU here: inline PTX needs numba-cuda, which is not installed.*"
    assert live(*NAMES).markdown == said


def test_a_name_that_is_no_kernel_is_refused():
    with pytest.raises(ValueError, match="names must be kernels of fa_numba.tensor_core.*'flash'"):
        live("flash")


@pytest.mark.gpu
def test_on_a_gpu():
    pytest.importorskip("cupy", reason="needs CuPy")
    if not cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    if tuple(cuda.get_current_device().compute_capability) < (8, 0):
        pytest.skip("needs compute capability 8.0")
    said = live("flash_attn_mma", shape=(1, 256, 2, 64)).markdown
    assert "flash_attn_mma" in said and "e-0" in said
