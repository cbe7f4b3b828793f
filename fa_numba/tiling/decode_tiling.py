"""How `flash_decode_wide` divides its work.

A group of lanes owns the columns of a key, a warp has as many groups as fit, each of them takes
`turn` keys at a time, and four warps take turns in the keys of a split.
"""

from typing import NamedTuple

from fa_numba.constants import WARP_SIZE
from fa_numba.tiling.block_sizes import ceil_div

WARPS = 4
MAX_ROWS = 8  # of a tile: queries of one K/V head
MAX_COMBINE_WARPS = 8
AT_ONCE = 4  # partial results that a warp of combine has on the way


class DecodeTiling(NamedTuple):
    """Constants of a kernel.

    Attributes
    ----------
    rows : int
        Queries of one K/V head, of a thread block.
    cols : int
        Columns of K, V, Q and out that a lane owns.
    turn : int
        Keys of a group of lanes at a time.
    blocks_per_sm : int
        Thread blocks for which there must be registers.
    lanes : int
        Of a group.
    """

    rows: int
    cols: int
    turn: int
    blocks_per_sm: int
    lanes: int

    @property
    def warp_keys(self):
        """Keys of a warp's turn."""
        return WARP_SIZE // self.lanes * self.turn

    @property
    def block_n(self):
        """Keys of a thread block's turn."""
        return WARPS * self.warp_keys


def tile_rows(num_rows):
    """Rows of a tile, a power of 2, for so many queries of each K/V head."""
    return min(MAX_ROWS, 1 << (max(1, num_rows) - 1).bit_length())


def decode_tiling(num_rows, head_dim, wide):
    """The tiling for so many queries of each K/V head; with more rows a lane has less of each."""
    rows = tile_rows(num_rows)
    if rows == 1:
        cols, turn, blocks_per_sm = 16, 2, 3
    elif head_dim > 128 and rows <= 4:
        cols, turn, blocks_per_sm = 16, 1, 2
    else:
        cols, turn, blocks_per_sm = (8, 2, 3) if rows <= 4 else (8, 1, 2)
    lanes = 1 << (ceil_div(head_dim, cols) - 1).bit_length()
    return DecodeTiling(rows, cols, turn, blocks_per_sm, lanes)


def combine_warps(num_splits):
    """Warps that share the splits of a row."""
    return min(MAX_COMBINE_WARPS, 1 << (ceil_div(num_splits, AT_ONCE) - 1).bit_length())
