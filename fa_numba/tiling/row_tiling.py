"""How many threads share a row, where a row is held in registers or walked by warps."""

from fa_numba.constants import WARP_SIZE
from fa_numba.tiling.block_sizes import ceil_div

MAX_THREADS = 1024  # of a thread block; together they may have all registers of an SM
MAX_ROWS = 8  # of a thread block, each with a warp of its own
HELD_NUMBERS = 32  # of a row, by a thread: with 64 registers 1024 threads fit on an SM
LONGEST_HELD_ROW = MAX_THREADS * HELD_NUMBERS

WARPS_PER_SM = 16  # enough loads on the way to keep memory busy
WARPS_PER_BLOCK = 4
TURN_PACKETS = 4  # that a thread reads at once
TURN_NUMBERS = 16  # or more: where packets are of 8 numbers; and where there are no packets


def registers_of_row(num_cols, width):
    """How a row is held in the registers of a thread block.

    Parameters
    ----------
    num_cols : int
        Not more than `LONGEST_HELD_ROW`.
    width : int
        Numbers of a packet.

    Returns
    -------
    threads, rows, packets : int
        Threads of a row, rows of a thread block, packets of a thread.
    """
    num_packets = max(1, ceil_div(num_cols, width))
    threads = WARP_SIZE
    while num_packets * width > threads * HELD_NUMBERS:
        threads *= 2
    rows = WARP_SIZE * HELD_NUMBERS // (num_packets * width)  # 0 where it takes more than a warp
    return threads, max(1, min(MAX_ROWS, rows)), ceil_div(num_packets, threads)


def warps_of_row(num_rows, num_cols, num_sms):
    """How many warps walk a row, so that all of them fill a GPU and each has two turns.

    Parameters
    ----------
    num_rows, num_cols : int
    num_sms : int

    Returns
    -------
    warps, num_splits : int
        Warps of a thread block that share a row or a part of it, and parts of a row: 1, 1 where
        there are rows enough.
    """
    wanted = ceil_div(num_sms * WARPS_PER_SM, max(1, num_rows))
    warps = min(wanted, num_cols // (2 * WARP_SIZE * TURN_NUMBERS))
    if warps <= 1:
        return 1, 1
    return WARPS_PER_BLOCK, ceil_div(warps, WARPS_PER_BLOCK)
