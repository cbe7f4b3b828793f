"""ex12d · Two TF32 for one float32

A tensor core takes float32 only as TF32: 11 significant bits of 24. Multiply float32 matrices with
it all the same, by three products in place of one, with the error of float32.

to_tf32(x)            given: float32 x rounded to the nearest TF32, still a float32
mma_tf32(d, a, b)     given: d += a b for the fragments of A (16, 8), B (8, 8) and D (16, 8), local
                      arrays of 4, 2 and 4 float32. It reads 11 bits of a and b, and drops others
split(x)              device function: (big, small), two TF32 with x = big + small to 2^-22 of x
add_product(d, a, b)  device function: d += a b by three calls of mma_tf32, with almost the error of
                      float32

With a = a_big + a_small, and b likewise, a b has four terms. The smallest of them is some 2^-22 of
a b, which is too little to pay for: leave it out. Add the smaller terms first. a and b stay as they
are. The kernel that calls add_product is given; its launch is that of ex12a, for x (rows, inner)
and y (inner, columns), both float32, rows a multiple of 16, inner and columns of 8. No shared
memory. In float32 throughout. About 2 lines and 9.
"""

from numba import cuda, float32

from fa_numba.ptx.warp_mma import mma_tf32, store_d, to_tf32


@cuda.jit(device=True)
def split(x):
    """x as the sum of two TF32: big, small."""
    # YOUR CODE HERE
    raise NotImplementedError("ex12d: split")


@cuda.jit(device=True)
def add_product(d, a, b):
    """d += a b for one lane's fragments, with almost the error of float32."""
    a_big = cuda.local.array(4, float32)
    a_small = cuda.local.array(4, float32)
    b_big = cuda.local.array(2, float32)
    b_small = cuda.local.array(2, float32)
    # YOUR CODE HERE
    raise NotImplementedError("ex12d: add_product")


@cuda.jit
def kernel(x, y, out):
    """out = x y, a warp for each 16 rows and 8 columns."""
    a = cuda.local.array(4, float32)
    b = cuda.local.array(2, float32)
    d = cuda.local.array(4, float32)
    g, c = cuda.threadIdx.x // 4, cuda.threadIdx.x % 4
    row, col = 16 * cuda.blockIdx.y, 32 * cuda.blockIdx.x + 8 * cuda.threadIdx.y
    if col >= out.shape[1]:
        return  # the whole warp does
    for i in range(4):
        d[i] = float32(0.0)
    for k in range(0, x.shape[1], 8):
        for i in range(4):
            a[i] = x[row + g + i % 2 * 8, k + c + i // 2 * 4]
        for i in range(2):
            b[i] = y[k + c + i * 4, col + g]
        add_product(d, a, b)
    store_d(out, d, row, col)


# Stub 76121f33 of solutions/ex12d_split_float32.py: `fa-numba reset ex12d` brings it back.
