"""ex13d · Who computes which tile

A persistent kernel has one thread block per SM, and each must know its tiles of queries without
asking the others. Under a causal mask tile t sees t + 1 tiles of keys, so the last tiles cost the
most. Deal the tiles out such that no thread block works much longer than the others.

tiles_of(block, num_blocks, num_tiles)   the tiles of thread block `block`, a list of ints, in the
                                         order in which it computes them; block is 0 .. num_blocks-1

Rules    each of the tiles 0 .. num_tiles - 1 belongs to exactly one thread block. A block may have
         none. num_blocks and num_tiles are any ints from 1 on.
Work     of tile t: t + 1. Of a thread block: the sum over its tiles.
Budget   the longest work at most 1.10 times what no order can avoid, which is the mean, or the
         longest single tile. Par is 1.04.

The score is this ratio for 28 tiles and 6 thread blocks; the lesson shows it. About 5 lines.
"""

### KIND: beat a budget
### HINT 1: Deal the tiles out like cards, 0, 1, 2, ... to the thread blocks in turn. Who ends up
### HINT 1: with the most work, and by how much in each round?
### HINT 2: Let the next round run the other way: whoever got the most in one round gets the least
### HINT 2: in the next. And begin with the longest tiles, so that the tiles of the last,
### HINT 2: incomplete round are short.
### HINT 3: Round r has the tiles num_tiles - 1 - r * num_blocks - i for i = 0 .. num_blocks - 1.
### HINT 3: In even rounds block i takes number i, in odd rounds number num_blocks - 1 - i. Leave
### HINT 3: out what is below 0.
### DEBRIEF: This is snake order, which `tile_scheduler` computes with a few integer operations.
### DEBRIEF: The alternative is one counter in global memory, from which each thread block takes its
### DEBRIEF: next tile, longest first: it also balances work that is not known beforehand, and costs
### DEBRIEF: an atomic addition and a wait for each tile. Longest first is the LPT rule of
### DEBRIEF: scheduling theory; Graham proved in 1969 that it takes at most 4/3 of the least time.


def tiles_of(block, num_blocks, num_tiles):
    """The tiles of queries of one thread block."""
    ### BEGIN SOLUTION
    tiles = []
    for first in range(0, num_tiles, num_blocks):
        backwards = first // num_blocks % 2
        tile = num_tiles - 1 - first - (num_blocks - 1 - block if backwards else block)
        tiles += [tile] if tile >= 0 else []
    return tiles
    ### END SOLUTION
