"""Tile sizes (block_m, block_n) of the lesson kernels: the largest that fit on chip.

`calculate_block_sizes` is the papers' rule: the tiles of Q, K, V and S must fit in SRAM.
`kernel_block_sizes` is the rule for the kernels of this package. It counts everything that they
keep: every shared tile with its padding, the row statistics, the threads, the registers.
"""

import functools
import itertools
import math

from numba_cuda_simulator.devices import STATIC_SHARED_BYTES

MAX_THREADS = 1024  # per thread block, on every GPU
MAX_ACCUMULATORS = 128  # of a thread's 255 registers; the others hold indices and operands

MLA_BLOCK_M, MLA_BLOCK_N = 16, 16  # of mla_decode: heads of a GPU in eight, keys of 576 in 48 KiB
MIN_ROWS = 4  # of a tile: with fewer, too few threads load K and V to keep memory busy

KERNELS = ("naive_attn", "flash_attn_v1", "flash_attn_v2", "flash_attn_bwd", "flash_decode")


def ceil_div(a, b):
    """⌈a / b⌉ for integers."""
    return -(-a // b)


def calculate_block_sizes(sram_bytes, d, *, dtype_bytes=2):
    """The tile sizes of FlashAttention that use a given SRAM best.

    The largest tile of scores, B_r · B_c, for which one tile each of Q, K, V and S fits:
    dtype_bytes · (B_r·d + 2·B_c·d + B_r·B_c) <= sram_bytes. Of equally large tiles, the one with
    the largest B_r, because K and V are read ⌈N / B_r⌉ times.

    Parameters
    ----------
    sram_bytes : int
    d : int
        head_dim
    dtype_bytes : int, default=2

    Returns
    -------
    (B_r, B_c) : tuple of int

    Raises
    ------
    ValueError
        Not even B_r = B_c = 1 fits.
    """
    elements = sram_bytes // dtype_bytes
    # For a given B_r the largest B_c follows from the constraint, so one loop sees every optimum.
    tiles = [
        (b_r, (elements - b_r * d) // (2 * d + b_r))
        for b_r in range(1, (elements - 2 * d) // (d + 1) + 1)
    ]
    if not tiles:
        needed = dtype_bytes * (3 * d + 1)
        raise ValueError(f"sram_bytes must be at least {needed} for {d=}, got {sram_bytes}")
    return max(tiles, key=lambda tile: (tile[0] * tile[1], tile[0]))


@functools.cache
def shared_bytes(kernel_name, head_dim, block_m, block_n, head_dim_v=None):
    """Static shared memory of a thread block: the maximum over the kernels of the function."""
    m, n, d, d_v = block_m, block_n, head_dim, head_dim_v or head_dim
    odd, odd_v = d | 1, d_v | 1  # odd row lengths: the threads of a warp read different banks
    floats = {
        "naive_attn": [m * d + n * odd, 128, n * d_v + m * n],  # q, k; a tree of 128 threads; v, p
        "flash_attn_v1": [m * d + n * odd + n * d_v + 2 * m * n + 2 * m],  # q, k, v; s, p; l, m
        "flash_attn_v2": [m * d + n * odd + n * d_v + 2 * m * n],  # q, k, v; s, p
        "flash_decode": [m * d + n * odd + n * d_v + 2 * m * n],  # q, k, v; s, p
        "flash_attn_bwd": [
            n * (d + d_v) + m * (odd + odd_v) + 2 * m * n + 2 * m,  # dK/dV: all; p, ds; lse, delta
            m * (d + d_v) + n * (odd + odd_v) + m * n + 2 * m,  # dQ: all; ds; lse, delta
        ],
    }
    return 4 * max(floats[kernel_name])


def accumulators(kernel_name, head_dim, block_m, block_n, head_dim_v=None):
    """Registers of a thread that hold its columns of the result."""
    head_dim_v = head_dim_v or head_dim
    if kernel_name == "flash_attn_bwd":  # block_n threads share a row of dq, block_m of dk and dv
        of_keys = 2 * ceil_div(max(head_dim, head_dim_v), block_m)
        return 2 * max(ceil_div(head_dim, block_n), of_keys)
    row = ceil_div(head_dim_v, block_n)  # block_n threads share a row of out
    if kernel_name == "flash_attn_v1":  # the sum of a tile goes to HBM
        return row
    return 2 * row  # the running sum, and the sum of one tile


@functools.cache
def kernel_block_sizes(
    kernel_name,
    head_dim,
    *,
    head_dim_v=None,
    num_rows=math.inf,
    sram_bytes=STATIC_SHARED_BYTES,
    max_threads=MAX_THREADS // 4,
):
    """The tile sizes that a kernel of this package runs with by default.

    The largest block_m · block_n in powers of two whose shared memory, accumulators and threads
    fit; of equally large tiles the squarest, then the one with the fewest accumulators.

    Parameters
    ----------
    kernel_name : one of `KERNELS`
    head_dim : int
    head_dim_v : int, default=head_dim
        That of v and out.
    num_rows : int, default=unlimited
        Rows of the problem. block_m is at most the power of two that holds them all in one tile,
        but at least `MIN_ROWS`.
    sram_bytes : int, default=48 KiB
        Shared memory of a thread block.
    max_threads : int, default=256
        A thread computes one score, so a thread block has block_m · block_n threads. A quarter of
        CUDA's limit lets several thread blocks share a multiprocessor: one computes while another
        waits.

    Returns
    -------
    (block_m, block_n) : tuple of int
    """
    powers = [2**i for i in range(MAX_THREADS.bit_length())]
    fitting = [
        (m, n)
        for m, n in itertools.product(powers, repeat=2)
        if m * n <= max_threads
        and m < 2 * max(MIN_ROWS, num_rows)
        and shared_bytes(kernel_name, head_dim, m, n, head_dim_v) <= sram_bytes
        and accumulators(kernel_name, head_dim, m, n, head_dim_v) <= MAX_ACCUMULATORS
    ]
    if not fitting:
        raise ValueError(
            f"{kernel_name} has no tiles for {head_dim=} in {sram_bytes=} with {max_threads=}"
        )
    return max(
        fitting,
        key=lambda tile: (
            tile[0] * tile[1],
            min(tile),
            -accumulators(kernel_name, head_dim, *tile, head_dim_v),
        ),
    )
