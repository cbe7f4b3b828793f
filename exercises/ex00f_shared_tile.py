"""ex00f · Shared memory: look at the whole tile

A thread block owns a tile, TILE neighbouring elements of x. From each element subtract the
largest of its tile. Every thread must see all elements of the tile, but each element is read from x
only once: one thread puts it into shared memory, where all threads of the thread block find it.

    out[i] = x[i] - max(tile of i)

Launch   grid (n / TILE,), thread blocks (TILE,); n is a multiple of TILE = 64
Arrays   x, out (n,) float32
Shared   tile (TILE,) float32, as given
Rules    x is read once per element; no thread reads tile before every thread has filled its element

About 6 lines.
"""

from numba import cuda, float32

TILE = 64


@cuda.jit
def below_largest(x, out):
    """Each element minus the largest of its tile."""
    tile = cuda.shared.array(TILE, float32)
    t = cuda.threadIdx.x
    i = cuda.blockIdx.x * TILE + t
    # YOUR CODE HERE
    raise NotImplementedError("ex00f: below_largest")


# Stub 0f3e82bf of solutions/ex00f_shared_tile.py: `fa-numba reset ex00f` brings it back.
