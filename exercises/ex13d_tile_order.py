"""ex13d · Who computes which tile

A persistent kernel has one thread block per SM, and each must know its tiles of queries without
asking the others. Under a causal mask tile t sees t + 1 tiles of keys, so the last tiles cost the
most. Deal the tiles out such that no thread block works much longer than the others, and write the
loop of the persistent kernel.

tile_of(block, num_blocks, num_tiles, turn)
         device function, int: the tile that thread block `block` computes in its turn 0, 1, 2, ...;
         -1 when it has no more, and in all later turns. block is 0 .. num_blocks - 1
kernel(v, out)
         out[m] is the mean of v[0] .. v[m]: attention with equal scores, under a causal mask. The
         thread blocks go on until their tiles are done; mean_of_tile computes a tile, and is given

launch   kernel[num_blocks, (32, BLOCK_M)], with any number of thread blocks; num_tiles =
         ceil(rows / BLOCK_M)
arrays   v, out (rows, columns) float32. out is stored once
Rules    each of the tiles 0 .. num_tiles - 1 belongs to exactly one thread block. A block may have
         none. num_blocks and num_tiles are any ints from 1 on
Work     of tile t: t + 1. Of a thread block: the sum over its tiles
Budget   the longest work at most 1.10 times what no order can avoid, which is the mean, or the
         longest single tile. Par is 1.04, for 28 tiles and 6 thread blocks

About 5 lines and 6.
"""

from numba import cuda, float32

BLOCK_M = 8  # rows of a tile


@cuda.jit(device=True)
def mean_of_tile(v, out, tile):
    """Compute the rows of a tile: thread (tx, ty) has the columns tx, tx + 32, ... of row ty."""
    m = tile * BLOCK_M + cuda.threadIdx.y
    if m < out.shape[0]:
        for d in range(cuda.threadIdx.x, out.shape[1], 32):
            total = float32(0.0)
            for n in range(m + 1):
                total += v[n, d]
            out[m, d] = total / float32(m + 1)


@cuda.jit(device=True)
def tile_of(block, num_blocks, num_tiles, turn):
    """The tile of a thread block in one of its turns, or -1."""
    # YOUR CODE HERE
    raise NotImplementedError("ex13d: tile_of")


@cuda.jit
def kernel(v, out):
    """Causal means, by persistent thread blocks."""
    num_tiles = (out.shape[0] + BLOCK_M - 1) // BLOCK_M
    # YOUR CODE HERE
    raise NotImplementedError("ex13d: kernel")


# Stub 8aae2135 of solutions/ex13d_tile_order.py: `fa-numba reset ex13d` brings it back.
