"""ex11b · Sixteen sums in each thread

ex05b's product c = a @ b, where a thread computes 4 x 4 elements of c in place of one. Loads from
HBM are given. Fill in the product of two tiles, and the store.

Launch   grid (ceil(N / BLOCK), ceil(M / BLOCK)), BLOCK = 4 TX; thread block (TX, TX)
Owner    thread (ty, tx) has the rows ty, ty + TX, ty + 2 TX, ty + 3 TX of the tile of c, and the
         columns tx, tx + TX, tx + 2 TX, tx + 3 TX: acc[i, j] is row ty + i TX, column tx + j TX
Tiles    a_tile (BLOCK, TX), b_tile (TX, BLOCK): TX values of k at a time
multiply adds the product of the two tiles to acc. Budget: 8 loads from shared memory for 16
         products, so each number that is loaded is used four times. At most 8 floats of local
         array beside acc.
store    writes acc to c, behind a bounds test for each element
Compute  in float32

About 13 lines in all.
"""

import functools

from numba import cuda, float32

### KIND: fill a loop
### HINT 1: For one k: four numbers of a_tile's column k and four of b_tile's row k. Each of the
### HINT 1: one meets each of the other.
### HINT 2: Put the four numbers of a_tile into a local array first: column = cuda.local.array(4,
### HINT 2: float32). Then each number of b_tile needs one load, and four products follow it.
### HINT 3: for k in range(TX): for i in range(4): column[i] = a_tile[ty + i * TX, k]; then for j
### HINT 3: in range(4): x = b_tile[k, tx + j * TX], and for i in range(4): acc[i, j] += column[i]
### HINT 3: * x.
### DEBRIEF: A half load for each FMA, where ex05b has two. No load from HBM was saved by this,
### DEBRIEF: none is in the inner loop: it is shared memory that was too slow. cuda.local.array has
### DEBRIEF: become registers, since every index into it is known when the loops are unrolled.


@functools.cache
def make_matmul_4x4(TX):
    BLOCK = 4 * TX

    @cuda.jit(device=True)
    def multiply(acc, a_tile, b_tile):
        """Add the product of a_tile and b_tile to this thread's acc, (4, 4)."""
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        ### BEGIN SOLUTION
        column = cuda.local.array(4, float32)
        for k in range(TX):
            for i in range(4):
                column[i] = a_tile[ty + i * TX, k]
            for j in range(4):
                x = b_tile[k, tx + j * TX]
                for i in range(4):
                    acc[i, j] += column[i] * x
        ### END SOLUTION

    @cuda.jit(device=True)
    def store(acc, c, first_row, first_col):
        """Write acc to c: acc[0, 0] is c[first_row, first_col]."""
        ### BEGIN SOLUTION
        for i in range(4):
            for j in range(4):
                row, col = first_row + i * TX, first_col + j * TX
                if row < c.shape[0] and col < c.shape[1]:
                    c[row, col] = acc[i, j]
        ### END SOLUTION

    @cuda.jit
    def kernel(a, b, c):
        """c = a @ b, with 4 x 4 elements of c in each thread."""
        a_tile = cuda.shared.array((BLOCK, TX), float32)
        b_tile = cuda.shared.array((TX, BLOCK), float32)
        acc = cuda.local.array((4, 4), float32)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        first_row = cuda.blockIdx.y * BLOCK + ty
        first_col = cuda.blockIdx.x * BLOCK + tx
        for i in range(4):
            for j in range(4):
                acc[i, j] = float32(0)
        for k_start in range(0, a.shape[1], TX):
            for i in range(4):
                row, col = first_row + i * TX, first_col + i * TX
                inside = row < a.shape[0] and k_start + tx < a.shape[1]
                a_tile[ty + i * TX, tx] = a[row, k_start + tx] if inside else float32(0)
                inside = k_start + ty < b.shape[0] and col < b.shape[1]
                b_tile[ty, tx + i * TX] = b[k_start + ty, col] if inside else float32(0)
            cuda.syncthreads()  # both tiles are complete: safe to read
            multiply(acc, a_tile, b_tile)
            cuda.syncthreads()  # every thread is done reading: safe to overwrite
        store(acc, c, first_row, first_col)

    return kernel
