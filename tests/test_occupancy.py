"""Occupancy against hand-made examples, NVIDIA's own calculator, and a GPU's driver."""

import ctypes
import importlib.util
import itertools
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import cuda, float32

from fa_numba import simt
from fa_numba.analysis.devices import DEVICES, KIB, device
from fa_numba.analysis.occupancy import occupancy

THREADS = st.integers(1, 1024)
REGISTERS = st.integers(1, 255)
GPU = st.sampled_from(list(DEVICES))


# threads, registers, shared bytes, GPU; thread blocks per SM, warps per SM, limiters
BY_HAND = [
    # 64 warps; 65536 registers / (32 * 32) = 64 warps: everything is used up at once
    (256, 32, 0, "A100-40GB", 8, 64, ("threads", "registers")),
    # 33 threads are 2 warps, of 64; but an SM has 32 slots for thread blocks
    (33, 16, 0, "A100-40GB", 32, 64, ("threads", "thread blocks")),
    # 31 registers are given out as 32: no gain over the first row; 33 as 40
    (256, 31, 0, "A100-40GB", 8, 64, ("threads", "registers")),
    # 40 * 32 = 1280 a warp; a quarter's 16384 hold 12 warps: 48 in all, 6 thread blocks of 8
    (256, 33, 0, "A100-40GB", 6, 48, ("registers",)),
    # 168 * 32 = 5376 a warp: 3 warps in a quarter (not 65536 / 5376 = 12.19 of the SM: 12 too)
    (128, 168, 0, "A100-40GB", 3, 12, ("registers",)),
    # 184 * 32 = 5888: 2 warps in a quarter, 8 in all, although 65536 would hold 11
    (32, 184, 0, "A100-40GB", 8, 8, ("registers",)),
    # 255 registers: 256 * 32 = 8192 a warp, 8 warps in all
    (256, 255, 0, "H100", 1, 8, ("registers",)),
    # 13 warps of 136 registers are 56576 of 65536, but three to a quarter are only 12 warps
    (416, 136, 0, "H100", 0, 0, ("registers",)),
    # 48 KiB and 1 KiB of CUDA's: 164 / 49 = 3.3
    (128, 32, 48 * KIB, "A100-40GB", 3, 12, ("shared memory",)),
    # no reserve on Turing: 64 / 32 = 2 exactly; one byte more costs a thread block
    (128, 32, 32 * KIB, "T4", 2, 8, ("shared memory",)),
    (128, 32, 32 * KIB + 1, "T4", 1, 4, ("shared memory",)),
    # units of 256 bytes on Turing: 6500 take 6656, and 64 KiB hold 9 of them, not 10
    (32, 32, 6500, "T4", 9, 9, ("shared memory",)),
    # the whole opt-in amount fits once, a byte more never
    (128, 32, 227 * KIB, "H100", 1, 4, ("shared memory",)),
    (128, 32, 227 * KIB + 1, "H100", 0, 0, ("shared memory",)),
    (128, 32, 99 * KIB, "RTX 4090", 1, 4, ("shared memory",)),
    # GeForce and A10 keep 1536 threads: one thread block of 1024, a third of the SM idle
    (1024, 32, 0, "A10", 1, 32, ("threads",)),
    (32, 32, 0, "A10", 16, 16, ("thread blocks",)),
    (32, 32, 0, "L4", 24, 24, ("thread blocks",)),
    (1025, 32, 0, "H100", 0, 0, ("threads",)),
]


@pytest.mark.parametrize("threads, registers, shared, name, blocks, warps, limiters", BY_HAND)
def test_by_hand(threads, registers, shared, name, blocks, warps, limiters):
    got = occupancy(threads, registers, shared, device=name)
    assert (got.blocks_per_sm, got.warps_per_sm, got.limiters) == (blocks, warps, limiters)


def test_sentence():
    got = occupancy(256, 128, 40_000, device="H100")
    assert str(got) == (
        "2 thread blocks per SM of the H100, 16 of 64 warps (25%), limited by registers"
    )
    assert str(occupancy(1024, 64, device="T4")).startswith("1 thread block per SM")


@pytest.mark.parametrize("config", [(0, 32, 0), (32, 0, 0), (32, 256, 0), (32, 32, -1)])
def test_numbers_that_no_kernel_has(config):
    with pytest.raises(ValueError, match="got"):
        occupancy(*config, device="T4")


@given(THREADS, REGISTERS, st.integers(0, 240 * KIB), GPU)
def test_fits_and_one_more_does_not(threads, registers, shared, name):
    """The definition, apart from rounding: what runs fits, by every resource."""
    got, gpu = occupancy(threads, registers, shared, device=name), DEVICES[name]
    blocks = got.blocks_per_sm
    assert blocks * threads <= gpu.threads_per_sm
    assert blocks * threads * registers <= gpu.registers_per_sm
    assert blocks * shared <= gpu.shared_bytes_per_sm
    assert blocks <= gpu.blocks_per_sm
    assert 0 <= got.fraction <= 1
    assert got.limiters


@given(THREADS, st.integers(1, 254), st.integers(0, 240 * KIB), GPU)
def test_asking_for_less_never_hurts(threads, registers, shared, name):
    blocks = occupancy(threads, registers, shared, device=name).blocks_per_sm
    assert occupancy(threads, registers + 1, shared, device=name).blocks_per_sm <= blocks
    assert occupancy(threads, registers, shared + 1, device=name).blocks_per_sm <= blocks
    assert occupancy(threads + 1, registers, shared, device=name).blocks_per_sm <= blocks


# NVIDIA ships its calculator as a C header with the CUDA runtime.
CALCULATOR = """
#include <limits.h>
#include <string.h>
#include <cuda_occupancy.h>

int blocks(int major, int minor, int threads_per_sm, int shared_per_sm, int optin, int reserved,
           int threads, int registers, int shared)
{
    cudaOccDeviceProp gpu = {
        major, minor, 1024, threads_per_sm, 65536, 65536, 32,
        48 * 1024, shared_per_sm, 1, optin, reserved};
    cudaOccFuncAttributes kernel;
    cudaOccDeviceState state = {CACHE_PREFER_NONE, SHAREDMEM_CARVEOUT_DEFAULT};
    cudaOccResult result;
    memset(&kernel, 0, sizeof kernel);
    kernel.maxThreadsPerBlock = INT_MAX;
    kernel.numRegs = registers;
    kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    kernel.maxDynamicSharedSizeBytes = shared;
    kernel.numBlockBarriers = 1;
    int status = cudaOccMaxActiveBlocksPerMultiprocessor(
        &result, &gpu, &kernel, &state, threads, shared);
    return status == CUDA_OCC_SUCCESS ? result.activeBlocksPerMultiprocessor : -status;
}
"""


@pytest.fixture(scope="module")
def calculator(tmp_path_factory):
    """NVIDIA's calculator as a function of a device and a configuration."""
    nvidia = importlib.util.find_spec("nvidia")
    roots = nvidia.submodule_search_locations if nvidia else []
    headers = [h for root in roots for h in Path(root).glob("*/include/cuda_occupancy.h")]
    compiler = shutil.which("cc")
    if not headers or not compiler:
        pytest.skip("needs cuda_occupancy.h (nvidia-cuda-runtime) and a C compiler")
    folder = tmp_path_factory.mktemp("calculator")
    source, library = folder / "calculator.c", folder / "calculator.so"
    source.write_text(CALCULATOR)
    command = [compiler, "-shared", "-fPIC", "-I", headers[0].parent, source, "-o", library]
    subprocess.run(command, check=True)
    function = ctypes.CDLL(str(library)).blocks

    def blocks(gpu, threads, registers, shared):
        limits = (
            *gpu.compute_capability,
            gpu.threads_per_sm,
            gpu.shared_bytes_per_sm,
            gpu.shared_bytes_per_block,
            gpu.shared_bytes_reserved,
        )
        return function(*limits, threads, registers, shared)

    return blocks


@pytest.mark.parametrize("name", DEVICES)
def test_nvidias_calculator_agrees(calculator, name):
    rng = random.Random(name)
    gpu = DEVICES[name]
    for registers, _ in itertools.product(range(1, 256), range(40)):
        threads = rng.randint(1, 1024)
        most = rng.choice([0, 8 * KIB, 48 * KIB, gpu.shared_bytes_per_block + 2 * KIB])
        config = threads, registers, rng.randint(0, most)
        want = calculator(gpu, *config)
        got = occupancy(*config, device=gpu)
        assert got.blocks_per_sm == want, f"{config}: NVIDIA says {want}, we say {got}"


def make_kernel(LIVE, STATIC, **options):
    """A kernel that keeps LIVE sums in registers and STATIC floats in shared memory."""

    @cuda.jit(**options)
    def kernel(x, y):
        sums = cuda.local.array(LIVE, float32)
        tile = cuda.shared.array(STATIC, float32)
        i = cuda.threadIdx.x
        tile[i % STATIC] = x[i]
        cuda.syncthreads()
        for j in range(LIVE):
            sums[j] = x[i + j]
        for k in range(x.shape[0]):  # no sum is finished before the last turn: all stay alive
            for j in range(LIVE):
                sums[j] = sums[j] * x[k] + tile[j]
        for j in range(LIVE):
            y[i + j] = sums[j]

    return kernel


VARIANTS = [
    *itertools.product((4, 12, 24, 40, 60), (200, 3000), [{}]),
    *itertools.product((60, 100), (200, 12000), [{"max_registers": 32}, {"max_registers": 72}]),
    (100, 500, {"launch_bounds": 1024}),
    (100, 500, {"launch_bounds": (256, 4)}),
]


@pytest.mark.gpu
@pytest.mark.skipif(not simt.has_gpu(), reason="needs a CUDA GPU")
def test_cuda_agrees():
    """100 random launches of compiled kernels: CUDA's occupancy API against ours."""
    driver = pytest.importorskip("cuda.bindings.driver")

    def call(function, *args):
        error, *result = function(*args)
        assert error == driver.CUresult.CUDA_SUCCESS, f"{function.__name__}: {error}"
        return result[0] if result else None

    gpu = device()
    rng = random.Random(0)
    ask_for = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    seen = []
    for live, static, options in VARIANTS:
        compiled = make_kernel(live, static, **options).compile((float32[::1], float32[::1]))
        kernel = compiled._codelibrary.get_cufunc()
        function = call(driver.cuKernelGetFunction, kernel.handle)
        most = gpu.shared_bytes_per_block - kernel.attrs.shared
        call(driver.cuFuncSetAttribute, function, ask_for, most)
        for _ in range(5):
            threads = rng.randint(1, kernel.attrs.maxthreads)
            dynamic = rng.choice([0, rng.randint(0, 40 * KIB), rng.randint(0, most)])
            want = call(
                driver.cuOccupancyMaxActiveBlocksPerMultiprocessor, function, threads, dynamic
            )
            config = threads, kernel.attrs.regs, kernel.attrs.shared + dynamic
            got = occupancy(*config, device=gpu)
            assert got.blocks_per_sm == want, f"{config}: CUDA says {want}, we say {got}"
            seen.append(got)
    assert len(seen) == 100
    limiters = {name for got in seen for name in got.limiters}
    assert {"threads", "registers", "shared memory"} <= limiters  # the draw is not one-sided
