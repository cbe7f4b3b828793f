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

### KIND: fill a loop
### HINT 1: Walk along K in steps of TILE. Each step: load one tile of a and one of b, wait,
### multiply the two tiles, wait. Every thread loads one element of each tile, also a thread whose
### element of c lies outside: its neighbours need what it loads.
### HINT 2: Thread (ty, tx) loads a[row, k_start + tx] and b[k_start + ty, col], each behind its own
### bounds test, with 0 where the test fails. So no thread may return early.
### HINT 3: acc = float32(0); for k_start in range(0, a.shape[1], TILE): load, cuda.syncthreads(),
### for k in range(TILE): acc += a_tile[ty, k] * b_tile[k, tx]; cuda.syncthreads() again, for the
### next iteration overwrites the tiles. At the end store behind the bounds test of c.
### DEBRIEF: A tile of side T divides the traffic of both inputs by T: with T = 32, 32 times less
### moves than when each thread reads its own row and column from HBM. FlashAttention is this loop
### with a softmax between two products, and its barriers are the ones that you just placed.


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
        ### BEGIN SOLUTION
        for k_start in range(0, a.shape[1], TILE):
            inside = row < a.shape[0] and k_start + tx < a.shape[1]
            a_tile[ty, tx] = a[row, k_start + tx] if inside else float32(0)
            inside = k_start + ty < b.shape[0] and col < b.shape[1]
            b_tile[ty, tx] = b[k_start + ty, col] if inside else float32(0)
            cuda.syncthreads()  # both tiles are complete: safe to read
            for k in range(TILE):
                acc += a_tile[ty, k] * b_tile[k, tx]
            cuda.syncthreads()  # every thread is done reading: safe to overwrite
        if row < c.shape[0] and col < c.shape[1]:
            c[row, col] = acc
        ### END SOLUTION

    return kernel
