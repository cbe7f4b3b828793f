"""The sequence of a tile in a packed batch: a device function for every packed kernel.

cu_seqlens holds the first token of each sequence: sequence b is tokens cu_seqlens[b] to
cu_seqlens[b + 1]. To number the tiles without gaps, a kernel would have to sum ⌈length / BLOCK⌉
over all sequences before b, and the host would need the lengths for the size of the grid. Instead
the tiles of sequence b are numbered from cu_seqlens[b] // BLOCK + b on. That needs no sum, and a
grid of num_tokens // BLOCK + batch thread blocks.

These numbers are enough, because ⌊y / B⌋ − ⌊x / B⌋ + 1 >= ⌈(y − x) / B⌉. At most one per sequence
is unused, and they increase with b, so a binary search finds the sequence.
"""

import functools

from numba import cuda


@functools.cache
def make_sequence_of(BLOCK):
    """sequence_of(tile, cu_seqlens): (b, its first token, its length, the tile's first row in it).

    The first row of an unused tile is past the end of its sequence.
    """

    @cuda.jit(device=True)
    def sequence_of(tile, cu_seqlens):
        b, b_end = 0, cu_seqlens.shape[0] - 1
        while b_end - b > 1:  # the last sequence whose first tile is <= tile
            middle = (b + b_end) // 2
            if cu_seqlens[middle] // BLOCK + middle <= tile:
                b = middle
            else:
                b_end = middle
        start = cu_seqlens[b]
        return b, start, cu_seqlens[b + 1] - start, (tile - start // BLOCK - b) * BLOCK

    return sequence_of
