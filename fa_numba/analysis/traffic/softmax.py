"""Traffic of the softmax kernels."""

from fa_numba.analysis.traffic.counts import Traffic
from fa_numba.constants import WARP_SIZE
from fa_numba.tiling.row_tiling import LONGEST_HELD_ROW, LONGEST_PACKED_ROW, warps_of_row
from numba_cuda_simulator.devices import CHIPS, DEFAULT


def naive_softmax(num_rows, num_cols):
    """Two reads of x: for the sum, for the quotient."""
    return Traffic({"x": 2 * num_rows * num_cols}, {"y": num_rows * num_cols})


def safe_softmax(num_rows, num_cols):
    """Three reads of x: for the maximum, for the sum, for the quotient."""
    return Traffic({"x": 3 * num_rows * num_cols}, {"y": num_rows * num_cols})


def online_softmax(num_rows, num_cols):
    """Two reads of x: for maximum and sum together, for the quotient."""
    return Traffic({"x": 2 * num_rows * num_cols}, {"y": num_rows * num_cols})


def softmax_registers(num_rows, num_cols, packs=False):
    """One read of x where a row fits in registers, else two.

    With `packs` x has 16 bits and is on a GPU from Ampere on: two numbers fit in a register.
    """
    reads = 1 if num_cols <= (LONGEST_PACKED_ROW if packs else LONGEST_HELD_ROW) else 2
    return Traffic({"x": reads * num_rows * num_cols}, {"y": num_rows * num_cols})


def softmax_topk(num_rows, num_cols, k):
    """One read of x; k values and columns of each row are stored."""
    kept = num_rows * k
    return Traffic({"x": num_rows * num_cols}, {"values": kept, "columns": kept})


def softmax_topk_warps(num_rows, num_cols, k, num_sms=CHIPS[DEFAULT].num_sms):
    """One read of x, and the partial results of split rows.

    Each lane of a warp reads m_split and l_split.
    """
    _, num_splits = warps_of_row(num_rows, num_cols, num_sms)
    parts = num_rows * num_splits if num_splits > 1 else 0
    lists = dict.fromkeys(("x_split", "col_split"), parts * k)
    loads = dict.fromkeys(("m_split", "l_split"), parts * WARP_SIZE)
    stores = dict.fromkeys(("m_split", "l_split"), parts)
    kept = dict.fromkeys(("values", "columns"), num_rows * k)
    return Traffic({"x": num_rows * num_cols} | lists | loads, kept | lists | stores)
