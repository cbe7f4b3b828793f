"""How `flash_decode_wide` divides its work, and what it moves to and from HBM by that.

A group of lanes owns the columns of a key, a warp has as many groups as fit, each of them takes
`turn` keys at a time, and four warps take turns in the keys of a split.
"""

from typing import NamedTuple

from fa_numba.analysis.block_sizes import ceil_div
from fa_numba.analysis.hbm_traffic import Traffic

WARP_SIZE = 32
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


def decode_traffic(seq_lens, seqlen_q, num_heads, num_kv_heads, head_dim, num_splits, *, paged):
    """Traffic of `flash_decode_wide` without a mask, number by number: its one or two kernels.

    Parameters
    ----------
    seq_lens : sequence of int
    seqlen_q, num_heads, num_kv_heads, head_dim, num_splits : int
    paged : bool

    Returns
    -------
    Traffic
        A warp loads K for a turn more than it has: the last ones are not used, and lie in cache.
    """
    tiling = decode_tiling(seqlen_q * (num_heads // num_kv_heads), head_dim, "")
    num_m_tiles = ceil_div(seqlen_q * (num_heads // num_kv_heads), tiling.rows)
    turns = warps = 0  # of the thread blocks of one tile of rows of one K/V head
    for seq_len in seq_lens:
        each, more = divmod(ceil_div(seq_len, tiling.block_n), num_splits)
        n_first = 0
        for split in range(num_splits):
            n_end = min(seq_len, n_first + (each + (split < more)) * tiling.block_n)
            for n_warp in range(n_first, n_first + tiling.block_n, tiling.warp_keys):
                warp_turns = ceil_div(max(0, n_end - n_warp), tiling.block_n)
                turns += warp_turns
                warps += warp_turns > 0
            n_first += (each + (split < more)) * tiling.block_n
    tiles = num_m_tiles * num_kv_heads
    thread_blocks = tiles * num_splits * len(seq_lens)
    rows = len(seq_lens) * num_heads * seqlen_q
    partial = num_splits * rows
    num_groups = WARPS * WARP_SIZE // tiling.lanes
    keys = tiles * tiling.warp_keys * head_dim
    loads = {
        "q": partial * head_dim * num_groups,
        "k_cache": keys * (turns + warps),
        "v_cache": keys * turns,
        "seq_lens": thread_blocks * WARPS * WARP_SIZE,
        "block_table": paged * tiles * WARP_SIZE * tiling.turn * (turns + 2 * warps),
    }
    stores = {"out": rows * head_dim, "lse": rows}
    if num_splits > 1:
        loads["out_partial"] = stores["out_partial"] = partial * head_dim
        loads["lse_partial"] = partial * (2 * combine_warps(num_splits) + WARP_SIZE)
        stores["lse_partial"] = partial
    else:  # the first kernel's out_partial and lse_partial are out and lse
        stores = {"out_partial": rows * head_dim, "lse_partial": rows}
    return Traffic(loads, stores)
