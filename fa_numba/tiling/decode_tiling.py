"""Rows, lanes and keys of `flash_decode_wide`: how it divides its work among threads.

A lane group holds the columns of a key. A warp has as many lane groups as fit, and each loads
`keys` keys at a time. Four warps divide the keys of a split, tile by tile.
"""

from typing import NamedTuple

from fa_numba.constants import WARP_SIZE
from fa_numba.tiling.block_sizes import ceil_div

WARPS = 4
MAX_ROWS = 8  # of a tile: queries of one K/V head
MAX_COMBINE_WARPS = 8
IN_FLIGHT = 4  # partial results whose loads a warp of combine has in flight


class DecodeTiling(NamedTuple):
    """Compile-time constants of the kernel."""

    rows: int  # query rows of one K/V head that a thread block computes
    cols: int  # columns of K, V, Q and out that a lane holds
    keys: int  # keys that a lane group loads at a time
    blocks_per_sm: int  # thread blocks whose registers must fit in an SM
    lanes: int  # lanes per key: a lane group

    @property
    def warp_keys(self):
        """Keys that a warp loads at a time."""
        return WARP_SIZE // self.lanes * self.keys

    @property
    def block_n(self):
        """Keys that a thread block loads at a time: a tile."""
        return WARPS * self.warp_keys


def tile_rows(num_rows):
    """Rows of a tile, a power of 2, for num_rows queries of each K/V head."""
    return min(MAX_ROWS, 1 << (max(1, num_rows) - 1).bit_length())


def decode_tiling(num_rows, head_dim):
    """The tiling for num_rows query rows per K/V head; with many rows a lane holds few columns.

    Above 256 columns a lane must hold 16, for which 8 rows would not fit in its registers.
    """
    rows = min(tile_rows(num_rows), 4 if head_dim > 256 else MAX_ROWS)
    if rows == 1:
        cols, keys, blocks_per_sm = 16, 2, 3
    elif head_dim > 128 and rows <= 4:
        cols, keys, blocks_per_sm = 16, 1, 2
    else:
        cols, keys, blocks_per_sm = (8, 2, 3) if rows <= 4 else (8, 1, 2)
    lanes = 1 << (ceil_div(head_dim, cols) - 1).bit_length()
    return DecodeTiling(rows, cols, keys, blocks_per_sm, lanes)


def combine_warps(num_splits):
    """Warps of combine that share the splits of a row."""
    return min(MAX_COMBINE_WARPS, 1 << (ceil_div(num_splits, IN_FLIGHT) - 1).bit_length())
