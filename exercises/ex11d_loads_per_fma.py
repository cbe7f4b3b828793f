"""ex11d · A budget of loads per FMA

out = P V for one tile: p, v and out are (64, 64) float32; p and v are in shared memory already. You
choose how many rows and columns of out a thread has, and write the product.

shape    returns (ROWS, COLS), each a divisor of 64
multiply adds p_tile @ v_tile to acc (ROWS, COLS): acc[i, j] is row ty + i TY, column tx + j TX of
         out, with TY = 64 / ROWS and TX = 64 / COLS
Launch   grid (1,), thread block (TX, TY): at least 32 threads
Budget   at most 0.4 loads from shared memory for each FMA. Par is 0.25.
         At most 96 floats of local arrays in a thread, acc included: they are to stay in registers,
         of which a thread has 255.
Compute  in float32; no load from HBM in multiply, and no shuffle

The score is your loads per FMA; the lesson shows it. About 10 lines. To begin with your ex11b:
fa-numba reset ex11d --from ex11b.
"""

import functools

from numba import cuda, float32


def shape():
    """(ROWS, COLS): rows and columns of out in a thread."""
    # YOUR CODE HERE
    raise NotImplementedError("ex11d: shape")


@functools.cache
def make_pv():
    ROWS, COLS = shape()
    TY, TX = 64 // ROWS, 64 // COLS

    @cuda.jit(device=True)
    def multiply(acc, p_tile, v_tile):
        """Add the product of p_tile and v_tile to this thread's acc, (ROWS, COLS)."""
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        # YOUR CODE HERE
        raise NotImplementedError("ex11d: multiply")

    @cuda.jit
    def kernel(p, v, out):
        """out = p @ v, all three (64, 64)."""
        p_tile = cuda.shared.array((64, 65), float32)  # an odd row length: no bank conflicts
        v_tile = cuda.shared.array((64, 64), float32)
        acc = cuda.local.array((ROWS, COLS), float32)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        for r in range(ty, 64, TY):
            for d in range(tx, 64, TX):
                p_tile[r, d] = p[r, d]
                v_tile[r, d] = v[r, d]
        for i in range(ROWS):
            for j in range(COLS):
                acc[i, j] = float32(0)
        cuda.syncthreads()  # both tiles are complete: safe to read
        multiply(acc, p_tile, v_tile)
        for i in range(ROWS):
            for j in range(COLS):
                out[ty + i * TY, tx + j * TX] = acc[i, j]

    return kernel


# Stub 2ecb7646 of solutions/ex11d_loads_per_fma.py: `fa-numba reset ex11d` brings it back.
