"""ex05b · Matrix product by tiles

c = a @ b, with a (M, K), b (K, N) and c (M, N), float32, any sizes: none needs to be a multiple of
the tile.

Launch   grid (ceil(N / TILE), ceil(M / TILE)), thread block (TILE, TILE): the thread block owns one
         TILE x TILE tile of c, thread (ty, tx) one element of it. TILE divides 32.
Memory   two shared tiles, a_tile and b_tile, both (TILE, TILE) float32, and one running sum per
         thread; nothing else. c is written once, and may hold anything before (NaN, too).
HBM      a and b are read through the tiles and nothing else: each element of a is loaded
         ceil(N / TILE) times in all, each element of b ceil(M / TILE) times. Outside the matrices
         nothing is loaded: put 0 into the tile there.
Access   neighbouring threads (tx) touch neighbouring floats, in HBM and in shared memory: every
         sector is used whole, and at TILE = 32, where a warp is a row of the tile, no two threads
         of a warp meet in a bank.
Compute  in float32: a bare 0.0 is float64 to Numba, float32(0) is not.

Barriers go where one thread reads what another wrote, or overwrites what another reads.
About 14 lines.
"""

import functools

from numba import cuda, float32


@functools.cache
def make_tiled_matmul(TILE):
    @cuda.jit
    def kernel(a, b, c):
        """c = a @ b by TILE x TILE tiles in shared memory."""
        # YOUR CODE HERE
        raise NotImplementedError("ex05b: kernel")

    return kernel


# Stub 961d08c0 of solutions/ex05b_tiled_matmul.py: `fa-numba reset ex05b` brings it back.
