"""compile_ahead keeps what a launch on the GPU looks for."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from numba import cuda, float32

from fa_numba.analysis.machine_code import compiler_available
from fa_numba.kernels.naive_softmax import THREADS, make_naive_softmax
from fa_numba.runtime import kernel_cache, launching

FILE = Path(__file__).with_name("test_gpu.py")
OPTIONS = "-m gpu -q --assert=plain -W ignore -p compile_ahead -p no:cacheprovider -n 0 -k"


@pytest.mark.skipif(not compiler_available(), reason="needs NVVM and NVRTC")
def test_a_launch_finds_what_was_compiled_ahead(tmp_path, monkeypatch):
    monkeypatch.setenv("FA_NUMBA_CACHE", str(tmp_path))
    command = [
        sys.executable,
        "-m",
        "pytest",
        FILE,
        *OPTIONS.split(),
        "test_softmax and naive_softmax and 33x100",
    ]
    done = subprocess.run(command, cwd=FILE.parents[1], capture_output=True, text=True)
    assert done.returncode == 0 and "kernels compiled: 1\n" in done.stdout, done.stdout
    (file,) = tmp_path.iterdir()

    loaded = []
    driver = SimpleNamespace(
        cuLibraryLoadData=lambda cubin, *options: (0, loaded.append(cubin)),
        cuLibraryGetKernel=lambda library, name: (0, name.decode()),
    )
    monkeypatch.setattr(launching, "driver", driver)
    monkeypatch.setattr(launching, "_compile", None)  # it is not called
    hopper = SimpleNamespace(compute_capability=(9, 0))
    monkeypatch.setattr(cuda, "get_current_device", lambda: hopper)
    kernel, matrix = make_naive_softmax(THREADS), float32[:, ::1]
    entry = launching._load.__wrapped__(kernel, (matrix, matrix), 0)
    assert "naive_softmax_kernel" in entry
    assert loaded[0].startswith(b"\x7fELF") and entry.encode() in loaded[0]
    assert kernel_cache._path(kernel, str((matrix, matrix)), (9, 0)) == file
