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

### KIND: beat a budget
### FROM: ex11b
### HINT 1: A thread with R rows and C columns loads R + C numbers for R · C products, for each r.
### HINT 1: What is (R + C) / (R C) for 4 x 4, for 8 x 4, for 8 x 8, for 16 x 4?
### HINT 2: acc and one column of p are R C + R floats; you may have 96. Of all shapes with so many
### HINT 2: floats the square one loads least.
### HINT 3: return 8, 8. Then ex11b's loops, with ROWS and COLS for its fours, TY in p_tile's index
### HINT 3: and TX in v_tile's.
### DEBRIEF: 8 x 8 is a quarter of a load for each FMA: 32 loads and 128 FMAs in a cycle, which is
### DEBRIEF: exactly what an SM can do. Twice the side would halve the loads again and take 256
### DEBRIEF: registers for the sums alone, one more than a thread has. So this is the end of the
### DEBRIEF: road for one thread, and why libraries stop there, too.


def shape():
    """(ROWS, COLS): rows and columns of out in a thread."""
    ### BEGIN SOLUTION
    return 8, 8
    ### END SOLUTION


@functools.cache
def make_pv():
    ROWS, COLS = shape()
    TY, TX = 64 // ROWS, 64 // COLS

    @cuda.jit(device=True)
    def multiply(acc, p_tile, v_tile):
        """Add the product of p_tile and v_tile to this thread's acc, (ROWS, COLS)."""
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        ### BEGIN SOLUTION
        column = cuda.local.array(ROWS, float32)
        for r in range(64):
            for i in range(ROWS):
                column[i] = p_tile[ty + i * TY, r]
            for j in range(COLS):
                x = v_tile[r, tx + j * TX]
                for i in range(ROWS):
                    acc[i, j] += column[i] * x
        ### END SOLUTION

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
