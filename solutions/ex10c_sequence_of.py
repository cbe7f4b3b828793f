"""ex10c · Whose tile is it?

A thread block gets the number of a tile of queries. Tiles of sequence b are numbered from

    cu_seqlens[b] // BLOCK + b

on. So the tile belongs to the last sequence whose first number is not larger than the tile's. Find
that sequence, in a loop: the two ends of the search are given, b may still be it, b_end is
certainly not.

Called    by every thread of a thread block, with tile >= 0
Arrays    cu_seqlens (batch + 1,), int32, batch >= 1; sequences may be empty
Returns   b, an integer: 0 <= b < batch
Budget    at most ceil(log2(batch)) loads of cu_seqlens in each thread, by the meter

About 6 lines.
"""

from numba import cuda

### KIND: fill a loop
### HINT 1: A binary search: as long as more than one sequence is left, look at the middle one. Does
### HINT 1: it begin at this tile or before?
### HINT 2: while b_end - b > 1: middle = (b + b_end) // 2. If its first number is <= tile, b =
### HINT 2: middle, else b_end = middle.
### HINT 3: The first number of the middle one: cu_seqlens[middle] // BLOCK + middle.
### DEBRIEF: The numbers have gaps, at most one for each sequence, so that nobody sums up rounded
### DEBRIEF: lengths: neither the host, which would have to read them from the GPU, nor 100,000
### DEBRIEF: thread blocks. The + b makes them grow from sequence to sequence even where one is
### DEBRIEF: empty, and a binary search needs that. FlashAttention launches tiles for the longest
### DEBRIEF: sequence in each sequence instead, and most of these thread blocks return at once if
### DEBRIEF: lengths differ much.


def make_sequence_of(BLOCK):
    """The search for tiles of BLOCK rows."""

    @cuda.jit(device=True)
    def sequence_of(tile, cu_seqlens):
        """The number of the sequence that a tile belongs to."""
        b, b_end = 0, cu_seqlens.shape[0] - 1
        ### BEGIN SOLUTION
        while b_end - b > 1:
            middle = (b + b_end) // 2
            if cu_seqlens[middle] // BLOCK + middle <= tile:
                b = middle
            else:
                b_end = middle
        return b
        ### END SOLUTION

    return sequence_of
