"""Threads and warps per row: `softmax_registers`, `softmax_topk_warps`, `page_scores`."""

from typing import NamedTuple

from fa_numba.constants import WARP_SIZE
from fa_numba.tiling.block_sizes import ceil_div

MAX_THREADS = 1024  # of a thread block; it may use all registers of an SM
MAX_ROWS = 8  # of a thread block, one warp each
HELD_NUMBERS = 32  # numbers of a row in a thread's registers: 64 registers, 1024 threads per SM
LONGEST_HELD_ROW = MAX_THREADS * HELD_NUMBERS
LONGEST_PACKED_ROW = 2 * LONGEST_HELD_ROW  # of 16 bits, two numbers in a register

WARPS_PER_SM = 16  # enough loads in flight to keep memory busy
WARPS_PER_BLOCK = 4
PACKETS_AT_ONCE = 4  # loads that a thread has in flight
PAGES_OF_BLOCK = 128  # whose rows a thread block reads, in some steps
NUMBERS_AT_ONCE = 16  # the numbers of those loads; 32 where a packet has 8 numbers


class HeldRow(NamedTuple):
    """How a row is held in registers."""

    threads: int  # of a row
    rows: int  # of a thread block
    packets: int  # of a thread


class WalkedRow(NamedTuple):
    """How warps walk a row."""

    warps: int  # warps of a thread block that share a row, or one split of a row
    num_splits: int  # splits of a row, each with a thread block of its own


class PageRows(NamedTuple):
    """How a warp reads one row of each of several pages."""

    lanes: int  # of a row, a power of two
    packets: int  # of a lane, in a row
    pages: int  # that these lanes read at once
    pages_of_warp: int


def rows_of_pages(num_cols, width):
    """The `PageRows` for a number of columns and the numbers of a packet.

    There is a lane for the result of each page.
    """
    lanes = min(WARP_SIZE, 1 << (ceil_div(num_cols, width) - 1).bit_length())
    packets = ceil_div(num_cols, lanes * width)
    pages = max(1, min(lanes, PACKETS_AT_ONCE, NUMBERS_AT_ONCE * 2 // (packets * width)))
    return PageRows(lanes, packets, pages, pages * WARP_SIZE // lanes)


def registers_of_row(num_cols, width):
    """The `HeldRow` for a number of columns.

    Parameters
    ----------
    num_cols : int
        At most `LONGEST_HELD_ROW`.
    width : int
        Numbers of a packet.
    """
    num_packets = max(1, ceil_div(num_cols, width))
    threads = WARP_SIZE
    while num_packets * width > threads * HELD_NUMBERS:
        threads *= 2
    rows = WARP_SIZE * HELD_NUMBERS // (num_packets * width)  # 0 if a row needs more than a warp
    return HeldRow(threads, max(1, min(MAX_ROWS, rows)), ceil_div(num_packets, threads))


def warps_of_row(num_rows, num_cols, num_sms):
    """The `WalkedRow` that fills a GPU, with at least two iterations for each warp.

    Returns
    -------
    WalkedRow
        (1, 1) if there are enough rows to fill the GPU.
    """
    wanted = ceil_div(num_sms * WARPS_PER_SM, max(1, num_rows))
    warps = min(wanted, num_cols // (2 * WARP_SIZE * NUMBERS_AT_ONCE))
    if warps <= 1:
        return WalkedRow(1, 1)
    return WalkedRow(WARPS_PER_BLOCK, ceil_div(warps, WARPS_PER_BLOCK))
