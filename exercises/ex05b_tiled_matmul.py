"""ex05b · Matrix product by tiles

c = a @ b, with a (M, K), b (K, N) and c (M, N), float32, any sizes: none needs to be a multiple of
the tile.

Launch   grid (ceil(N / TILE), ceil(M / TILE)), thread block (TILE, TILE): the thread block owns one
         TILE x TILE tile of c, thread (ty, tx) one element of it. TILE divides 32.
Memory   the two tiles and acc, nothing else. c is written once, and may hold NaN before.
HBM      a and b are read through the tiles alone: each element of a is loaded ceil(N / TILE) times
         in all, each element of b ceil(M / TILE) times. Outside the matrices nothing is loaded: put
         0 into the tile there.
Access   threads that are neighbours in tx touch neighbouring floats, in HBM and in the tiles. (The
         next two steps of the lesson give the reasons: whole sectors, no bank conflicts.)
Compute  in float32: a bare 0.0 is float64 to Numba, float32(0) is not.

Tiles, indices and the sum are given; write the loop over the tiles and the store. Barriers go where
one thread reads what another wrote, or overwrites what another reads. About 12 lines.
"""

import functools

from numba import cuda, float32


@functools.cache
def make_tiled_matmul(TILE):
    @cuda.jit
    def kernel(a, b, c):
        """c = a @ b by TILE x TILE tiles in shared memory."""
        a_tile = cuda.shared.array((TILE, TILE), float32)
        b_tile = cuda.shared.array((TILE, TILE), float32)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        row = cuda.blockIdx.y * TILE + ty  # of a and c
        col = cuda.blockIdx.x * TILE + tx  # of b and c
        acc = float32(0)
        # YOUR CODE HERE
        raise NotImplementedError("ex05b: kernel")

    return kernel


# Stub bf4e302a of solutions/ex05b_tiled_matmul.py: `fa-numba reset ex05b` brings it back.
