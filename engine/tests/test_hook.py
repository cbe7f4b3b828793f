"""Numba's own syntax, kernel[grid, block](*arrays), runs on the CPU engine where it should."""

import importlib
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest
from numba import cuda, float32, int64
from sources import run_text

import numba_cuda_simulator as simt
from numba_cuda_simulator import without_numba
from numba_cuda_simulator.errors import LaunchError, RaceError

needs_numba = pytest.mark.skipif(without_numba.is_installed(), reason="needs Numba")


@cuda.jit
def place(out):
    """Store where each thread is, with whatever grid."""
    x, y, z = cuda.grid(3)
    out[z, y, x] = 10000 * z + 100 * y + x


@cuda.jit
def reverse(x, out):
    tile = cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    cuda.syncthreads()
    out[t] = tile[cuda.blockDim.x - 1 - t]


@cuda.jit
def racy_reverse(x, out):
    tile = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    out[t] = tile[63 - t]


X = np.arange(64, dtype=np.float32)


# --- every kind of installation ---------------------------------------------------------------

SESSION = """
import numpy as np
import numba_cuda_simulator as simt

assert not simt.has_gpu() and not simt.is_enabled()
simt.enable()

from numba import cuda, float32
from numba.cuda import blockDim, blockIdx, shared, syncthreads, threadIdx

@cuda.jit("float32(float32, float32)", device=True)
def add(a, b):
    return a + b

@cuda.jit("void(float32[:], float32[:], float32)")
def shift(x, out, by):
    i = blockIdx.x * blockDim.x + threadIdx.x
    tile = shared.array(0, float32)
    tile[threadIdx.x] = x[i] if i < x.size else float32(0)
    syncthreads()
    if i < x.size:
        out[i] = add(tile[threadIdx.x], by)

x, out = np.arange(100, dtype=np.float32), np.zeros(100, np.float32)
shift[4, 32, 0, 32 * 4](x, out, 1.5)
assert (out == x + 1.5).all()

stream = cuda.stream()
device_x, device_out = cuda.to_device(x, stream=stream), cuda.device_array_like(x)
shift[4, 32, stream, 32 * 4](device_x, device_out, 2.5)
stream.synchronize()
cuda.synchronize()
assert (device_out.copy_to_host() == x + 2.5).all()
made = cuda.device_array(100, np.float32)
made.copy_to_device(x)
assert made.shape == (100,) and (made[10:20].copy_to_host() == x[10:20]).all()

@cuda.jit
def double(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= 2

double.forall(x.size)(x)
assert x[99] == 198

start, end = cuda.event(), cuda.event()
start.record()
double[1, 128](x)
end.record()
end.synchronize()
assert start.elapsed_time(end) >= 0 or simulator

simt.disable()
assert not simt.is_enabled()
try:
    double[1, 128](x)  # Numba's own: the simulator runs it, without it there is no driver
    assert simulator and x[99] == 792
except Exception as error:
    assert not simulator and "CUDA" in str(error), error
simt.enable()
double[1, 128](x)
"""


@needs_numba
@pytest.mark.parametrize("simulator", [False, True], ids=["no simulator", "simulator"])
@pytest.mark.parametrize("package", ["numba-cuda", "numba"])
def test_installation(package, simulator, tmp_path):
    """With and without numba-cuda, with and without NUMBA_ENABLE_CUDASIM, no GPU in sight."""
    if package == "numba-cuda":
        pytest.importorskip("numba_cuda")
    packages = Path(np.__file__).parents[1]
    root = Path(simt.__file__).parents[1]
    environment = os.environ | {
        "NUMBA_ENABLE_CUDASIM": str(int(simulator)),
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": f"{root}{os.pathsep}{packages}",
    }
    # Without `site`, numba-cuda does not take the place of Numba's built-in numba.cuda.
    program = tmp_path / "session.py"
    program.write_text(f"simulator = {simulator}\n{SESSION}")
    command = [sys.executable, "-W", "ignore", *["-S"] * (package == "numba"), str(program)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@needs_numba
def test_gpu_is_left_to_numba():
    """Where there is a GPU, nothing of Numba changes until it is asked for."""
    program = """
        from numba import cuda
        from numba.cuda.dispatcher import CUDADispatcher
        numbas_own = CUDADispatcher.__getitem__, cuda.to_device, cuda.jit
        cuda.is_available = lambda: True
        import numba_cuda_simulator as simt
        assert not simt.is_enabled()
        assert numbas_own == (CUDADispatcher.__getitem__, cuda.to_device, cuda.jit)
        simt.enable()
        assert simt.is_enabled() and CUDADispatcher.__getitem__ is not numbas_own[0]
        simt.disable()
        assert numbas_own == (CUDADispatcher.__getitem__, cuda.to_device, cuda.jit)
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# --- launches ---------------------------------------------------------------------------------


@pytest.mark.parametrize("grid, block, shape", [
    (6, 4, (1, 1, 24)),
    ((6,), (4,), (1, 1, 24)),
    ((3, 2), (4, 5), (1, 10, 12)),
    ((3, 2, 2), (4, 1, 2), (4, 2, 12)),
    (np.int64(2), [2, 3, 4], (4, 3, 4)),
])  # fmt: skip
def test_grids(grid, block, shape):
    out = np.full(shape, -1)
    place[grid, block](out)
    z, y, x = np.indices(shape)
    np.testing.assert_array_equal(out, 10000 * z + 100 * y + x)


def test_dynamic_shared_memory():
    out = np.zeros_like(X)
    reverse[1, 64, 0, 64 * 4](X, out)
    np.testing.assert_array_equal(out, X[::-1])
    with pytest.raises(IndexError, match="'tile', whose size is 32"):
        reverse[1, 64, 0, 32 * 4](X, out)


def test_launched_from_threads():
    """Launches in several threads of the host at once do not disturb each other."""
    outs = [np.zeros_like(X) for _ in range(4)]
    threads = [
        threading.Thread(target=reverse[1, 64, 0, 64 * 4], args=(X + n, out))
        for n, out in enumerate(outs)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for n, out in enumerate(outs):
        np.testing.assert_array_equal(out, X[::-1] + n)


# --- notebook cells ---------------------------------------------------------------------------


def run_cell(source, world, file="/tmp/ipykernel_1/1.py"):
    """Run a text as a notebook runs a cell."""
    run_text(textwrap.dedent(source), world, file)


def test_cell_edited_and_run_again():
    """Same file name, same kernel name, new source: the new one runs."""
    world = {"cuda": cuda, "out": np.zeros(1)}
    for number in (1, 2, 3):
        run_cell(
            f"""
            @cuda.jit
            def kernel(out):
                out[0] = {number}
            kernel[1, 1](out)
            """,
            world,
        )
        assert world["out"][0] == number


def test_device_function_defined_again():
    """A kernel sees what a name means when it is launched, as after editing a cell."""
    world = {"cuda": cuda, "out": np.zeros(1), "SCALE": 1}
    device = """
        @cuda.jit(device=True)
        def f(x):
            return x + {} * SCALE
        """
    kernel = """
        @cuda.jit
        def kernel(out):
            out[0] = f(out[0])
        """
    run_cell(device.format(1), world)
    run_cell(kernel, world, "/tmp/ipykernel_1/2.py")
    world["kernel"][1, 1](world["out"])
    assert world["out"][0] == 1
    run_cell(device.format(10), world)
    world["SCALE"] = 2
    world["kernel"][1, 1](world["out"])
    assert world["out"][0] == 21


def test_edited_file(tmp_path, monkeypatch):
    """A module edited and reloaded runs its new source; without a reload it says so."""
    file, out = tmp_path / "edited_kernel.py", np.zeros(1)

    def write(name, number, lines=1):
        head = "from numba import cuda\n" + "#\n" * lines + "@cuda.jit\n"
        file.write_text(f"{head}def {name}(out):\n    out[0] = {number}\n")

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    write("kernel", 1)
    module = importlib.import_module("edited_kernel")
    module.kernel[1, 1](out)
    assert out[0] == 1
    write("kernel", 22, 9)
    kernel = importlib.reload(module).kernel
    for edit in ("kernel", 30, 9), ("another", 22, 9), ("kernel", 22, 10):
        write(*edit)
        with pytest.raises(simt.errors.UnsupportedError, match="has changed since 'kernel' was"):
            kernel[1, 1](out)
    write("kernel", 22, 9)
    kernel[1, 1](out)
    assert out[0] == 22


def test_factories():
    """Constants of a closure belong to the kernel that was made with them."""

    def make(scale, offsets):
        @cuda.jit(device=True)
        def scaled(v):
            return v * scale

        @cuda.jit
        def kernel(x, out):
            tile = cuda.local.array(scale, int64)
            tile[scale - 1] = offsets[1]
            out[cuda.grid(1)] = scaled(x[cuda.grid(1)]) + tile[scale - 1]

        return kernel

    two, three = make(2, (0, 10)), make(3, (0, 20))
    for kernel, want in ((two, 2 * X + 10), (three, 3 * X + 20), (two, 2 * X + 10)):
        out = np.zeros_like(X)
        kernel[2, 32](X, out)
        np.testing.assert_array_equal(out, want)


# --- options ----------------------------------------------------------------------------------


def test_learner_launches_are_checked():
    with pytest.raises(RaceError):
        racy_reverse[1, 64](X, np.zeros_like(X))
    with simt.options(races=False):
        racy_reverse[1, 64](X, np.zeros_like(X))
    with pytest.raises(RaceError):
        racy_reverse[1, 64](X, np.zeros_like(X))


def test_options_as_a_setter():
    simt.options(device="H100")
    try:
        reverse[1, 64, 0, 200_000](X, np.zeros_like(X))
        with simt.options(device="T4"), pytest.raises(LaunchError, match="65536 .* T4"):
            reverse[1, 64, 0, 200_000](X, np.zeros_like(X))
        reverse[1, 64, 0, 200_000](X, np.zeros_like(X))
    finally:
        simt.options(device="T4")
    with pytest.raises(LaunchError):
        reverse[1, 64, 0, 200_000](X, np.zeros_like(X))


def test_options_that_do_not_exist():
    with pytest.raises(TypeError, match="unknown option 'race'; there are races, "):
        simt.options(race=False)
    with pytest.raises(ValueError, match="auto, always, never, got 'sometimes'"):
        simt.options(compiled="sometimes")
    with pytest.raises(LaunchError, match="unknown device 'GTX'; the engine knows T4"):
        simt.options(device="GTX")


def test_tracing_hears_every_launch():
    with simt.tracing() as traces:
        reverse[1, 64, 0, 64 * 4](X, np.zeros_like(X))
        reverse[1, 32, 0, 32 * 4](X, np.zeros_like(X))
        with simt.tracing() as inner:
            racy_reverse[1, 64](X, np.zeros_like(X))
    assert [trace.kernel for trace in traces] == ["reverse", "reverse", "racy_reverse"]
    assert [trace.kernel for trace in inner] == ["racy_reverse"] and inner[0].races
