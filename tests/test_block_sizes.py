"""tiling.block_sizes: the optimum by brute force; shared memory as the compiler counts it."""

import numpy as np
import pytest
from cases import kernel_function, thorough
from launch_limits import static_shared_bytes

from fa_numba.analysis.machine_code import compile_kernel, compiler_available
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import (
    KERNELS,
    MAX_ACCUMULATORS,
    STATIC_SHARED_BYTES,
    accumulators,
    calculate_block_sizes,
    kernel_block_sizes,
    shared_bytes,
)


def fits(b_r, b_c, sram_bytes, d, dtype_bytes):
    return dtype_bytes * (b_r * d + 2 * b_c * d + b_r * b_c) <= sram_bytes


@pytest.mark.parametrize("dtype_bytes", [1, 2, 4])
@pytest.mark.parametrize("sram_bytes, d", [(200, 3), (1024, 7), (2048, 16), (4001, 1), (640, 20)])
def test_no_tile_is_larger(sram_bytes, d, dtype_bytes):
    best = calculate_block_sizes(sram_bytes, d, dtype_bytes=dtype_bytes)
    b_r, b_c = np.ogrid[1:sram_bytes, 1 : sram_bytes // d]
    size = np.where(fits(b_r, b_c, sram_bytes, d, dtype_bytes), b_r * b_c, 0)
    largest = np.argwhere(size == size.max())[-1] + 1  # the last: with the most rows
    assert best == tuple(largest)


def test_known_figures():
    assert calculate_block_sizes(164 * 1024, 64) == (289, 157)  # an A100, fp16
    assert calculate_block_sizes(164 * 1024, 128) == (228, 113)
    assert fits(128, 128, 80 * 1024, 64, 2) and not fits(128, 128, 80 * 1024 - 1, 64, 2)


def test_the_smallest_tile_and_none():
    assert calculate_block_sizes(50, 8) == (1, 1)
    with pytest.raises(ValueError, match="sram_bytes must be at least 50 for d=8, got 49"):
        calculate_block_sizes(49, 8)


@pytest.mark.parametrize("kernel_name", KERNELS)
def test_every_head_dim_has_tiles_that_a_thread_block_can_keep(kernel_name):
    for head_dim in range(1, 257):
        block_m, block_n = kernel_block_sizes(kernel_name, head_dim)
        assert shared_bytes(kernel_name, head_dim, block_m, block_n) <= STATIC_SHARED_BYTES
        assert accumulators(kernel_name, head_dim, block_m, block_n) <= MAX_ACCUMULATORS
        assert 32 <= block_m * block_n <= 256


@pytest.mark.parametrize("kernel_name", KERNELS)
def test_the_usual_head_dims_get_square_tiles(kernel_name):
    assert kernel_block_sizes(kernel_name, 64) == (16, 16)
    assert kernel_block_sizes(kernel_name, 128) == (16, 16)


def test_few_rows_get_flat_tiles():
    tiles = [kernel_block_sizes("flash_decode", 64, num_rows=rows) for rows in (1, 4, 5, 8, 9, 99)]
    assert tiles == [(4, 64), (4, 64), (8, 32), (8, 32), (16, 16), (16, 16)]
    for head_dim in range(1, 257):
        block_m, block_n = kernel_block_sizes("flash_decode", head_dim, num_rows=1)
        assert 1 <= block_m <= 4 and 64 <= block_m * block_n <= 256


def test_more_memory_and_threads_give_larger_tiles():
    large = kernel_block_sizes("flash_attn_v2", 64, sram_bytes=227 * 1024, max_threads=1024)
    assert large == (32, 32)
    assert kernel_block_sizes("flash_attn_v2", 64, max_threads=64) == (8, 8)
    with pytest.raises(ValueError, match="flash_attn_v2 has no tiles for head_dim=64"):
        kernel_block_sizes("flash_attn_v2", 64, sram_bytes=100)


def declared(kernel, args):
    """As the compiler counts: `test_what_is_declared_is_what_is_compiled` compares them."""
    return static_shared_bytes(kernel)


def compiled(kernel, args):
    if not compiler_available():
        pytest.skip("needs NVVM and NVRTC")
    return compile_kernel(kernel, args).shared_bytes


@pytest.mark.parametrize("count", [declared, thorough(compiled)])
@pytest.mark.parametrize("block_m, block_n, head_dim", [(8, 4, 12), (4, 8, 7)])
@pytest.mark.parametrize("kernel_name", KERNELS)
def test_shared_memory_is_that_of_the_kernel(
    kernel_name, block_m, block_n, head_dim, count, monkeypatch
):
    launches = []
    monkeypatch.setattr(
        arrays, "launch", lambda kernel, grid, block, *a: launches.append((kernel, a))
    )
    x, lse = np.zeros((1, 1, 1, head_dim), np.float32), np.zeros((1, 1, 1), np.float32)
    args = (x, x, x)
    if kernel_name == "flash_attn_bwd":
        args = (x, x, x, x, x, lse)
    elif kernel_name == "flash_decode":
        args = (x, x, x, np.ones(1, np.int32))
    kernel_function(kernel_name)(*args, block_m=block_m, block_n=block_n)
    taken = max(count(kernel, args) for kernel, args in launches)
    stated = shared_bytes(kernel_name, head_dim, block_m, block_n)
    assert stated <= taken < stated + 16  # the compiler aligns
