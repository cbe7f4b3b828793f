"""Which sequence of a packed batch a tile belongs to: a device function for every packed kernel.

cu_seqlens says where the sequences begin: sequence b is tokens cu_seqlens[b] to cu_seqlens[b + 1].
Numbered without gaps, its tiles would begin after ⌈length / BLOCK⌉ for each sequence before it: a
sum over the lengths, and for the size of the grid they would be needed on the host. Numbered from
cu_seqlens[b] // BLOCK + b they need neither, and num_tokens // BLOCK + batch thread blocks do.

The numbers suffice, ⌊y / B⌋ − ⌊x / B⌋ + 1 >= ⌈(y − x) / B⌉, and of each sequence at most one is
nobody's. They rise with b, so that a binary search finds b.
"""

import functools

from numba import cuda


@functools.cache
def make_sequence_of(BLOCK):
    """sequence_of(tile, cu_seqlens): (b, its first token, its length, the tile's first row in it).

    A tile that is nobody's has a first row past the end of its sequence.
    """

    @cuda.jit(device=True)
    def sequence_of(tile, cu_seqlens):
        b, b_end = 0, cu_seqlens.shape[0] - 1
        while b_end - b > 1:  # the last sequence whose first tile is not after this one
            middle = (b + b_end) // 2
            if cu_seqlens[middle] // BLOCK + middle <= tile:
                b = middle
            else:
                b_end = middle
        start = cu_seqlens[b]
        return b, start, cu_seqlens[b + 1] - start, (tile - start // BLOCK - b) * BLOCK

    return sequence_of
