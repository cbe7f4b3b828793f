"""Tile sizes, threads and shared memory of the kernels with register tiles.

A thread holds a few rows by several columns of each product, and a thread block has one thread for
each such part of its tiles. Two limits decide which tiles fit: 255 registers per thread, and the
shared memory of a thread block that asks for more than 48 KiB (64 KiB on a T4, 163 on an A100, 99
on the graphics cards of its generation, 227 on an H100).
"""

from typing import NamedTuple

from fa_numba.tiling.block_sizes import ceil_div

SIZES = (16, 32, 64, 128)  # of block_m and block_n
BACKWARD_SIZES = (16, 32, 64)  # of both


class ForwardTiling(NamedTuple):
    """How a thread block of `flash_attn_registers` divides its tiles."""

    width: int  # columns of the tiles of Q, K, V: head_dim rounded up
    rows: int  # rows of S and of out that a thread holds
    threads_x: int  # threads along a row of the tile, and along a column
    threads_y: int
    # Indices of the tiles of K, P and V in shared memory, in floats. The tile of Q is at 0; the
    # tile of P overwrites that of K.
    k_start: int
    p_start: int
    v_start: int
    shared_bytes: int

    @property
    def threads(self):
        """Threads of a thread block."""
        return self.threads_x * self.threads_y


def columns(head_dim):
    """Threads along a row, and head_dim rounded up: a thread owns groups of four columns."""
    threads_x = 8 if head_dim <= 96 else 16
    return threads_x, ceil_div(head_dim, 4 * threads_x) * 4 * threads_x


def forward_rows(head_dim):
    """The most rows of a thread: out and the sum of one tile take 2 · rows · columns registers."""
    threads_x, width = columns(head_dim)
    return 8 if width // threads_x <= 8 else 4  # 128 registers are affordable


def forward_tiling(head_dim, block_m, block_n, rows=None):
    """The `ForwardTiling` for tiles of block_m queries and block_n keys."""
    threads_x, width = columns(head_dim)
    rows = rows or forward_rows(head_dim)
    k_start = block_m * (width + 4)
    k_size, p_size = block_n * (width + 4), block_m * (block_n + threads_x)
    p_start = k_start
    v_start = k_start + max(k_size, p_size)
    shared_bytes = 4 * (v_start + block_n * width)
    threads_y = block_m // rows
    return ForwardTiling(width, rows, threads_x, threads_y, k_start, p_start, v_start, shared_bytes)


def forward_fits(head_dim, block_m, block_n, shared_limit, rows=None):
    """True if the registers and the shared memory suffice for a thread block with these tiles."""
    tiling = forward_tiling(head_dim, block_m, block_n, rows)
    # Whole warps; with 255 registers per thread an SM holds 256 threads. A thread has at most 8
    # columns of S.
    return (
        32 <= tiling.threads <= 256
        and tiling.threads_x <= block_n <= 8 * tiling.threads_x
        and tiling.shared_bytes <= shared_limit
    )


def forward_block_sizes(head_dim, shared_limit, rows=None):
    """(block_m, block_n) of `flash_attn_registers` for shared_limit bytes per thread block.

    The tiles with the most scores per SM, in one thread block or in two. Of equally good tiles:
    those with the most threads, because one warp computes while another waits; then those with two
    thread blocks per SM; then those with the most queries, because K and V are loaded less often.
    """

    def merit(sizes):
        tiling = forward_tiling(head_dim, *sizes, rows)
        # CUDA reserves 1 KiB per thread block; with 255 registers an SM holds 256 threads.
        fitting = (shared_limit + 1024) // (tiling.shared_bytes + 1024)
        blocks = min(fitting, 256 // tiling.threads, 2)
        return blocks * sizes[0] * sizes[1], blocks * tiling.threads, blocks, sizes[0]

    fitting = [
        (block_m, block_n)
        for block_m in SIZES
        for block_n in SIZES
        if forward_fits(head_dim, block_m, block_n, shared_limit, rows)
    ]
    return max(fitting, key=merit)


def block_of_4x4(head_dim):
    """The rows of the square tiles of `flash_attn_v2_4x4`: three tiles fit in 48 KiB."""
    return 64 if head_dim <= 64 else 32


class BackwardTiling(NamedTuple):
    """How a thread block of `flash_attn_bwd_registers` divides its tiles, which are square."""

    width: int  # columns of the tiles of Q, K, V, dout: head_dim rounded up
    threads_x: int  # threads along a row of the tile, and along a column; a thread holds four rows
    threads_y: int
    row: int  # row length of those tiles, and of the tiles of P and dS, in shared memory
    score_row: int
    shared_bytes: int

    @property
    def threads(self):
        """Threads of a thread block."""
        return self.threads_x * self.threads_y


def backward_tiling(head_dim, tile_size):
    """The `BackwardTiling` for tiles of tile_size queries and tile_size keys."""
    threads_x, width = columns(head_dim)
    row, score_row = width + 4, tile_size + threads_x  # padded: no bank conflicts
    shared_bytes = 4 * tile_size * (4 * row + 2 * score_row + 2)  # and lse, delta
    return BackwardTiling(width, threads_x, tile_size // 4, row, score_row, shared_bytes)


def backward_tile_size(head_dim, shared_limit):
    """The largest tile size of `flash_attn_bwd_registers` that fits, or None."""
    fitting = [
        size
        for size in BACKWARD_SIZES
        if backward_tiling(head_dim, size).shared_bytes <= shared_limit
    ]
    return max(fitting, default=None)
