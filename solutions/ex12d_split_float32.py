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

### KIND: write
### HINT 1: What is left of x once big is taken away? A float32 subtraction of two numbers this near
### HINT 1: each other has no error at all.
### HINT 2: small is a float32 with up to 13 bits, and the tensor core takes 11: round it, too. Of
### HINT 2: the four terms the two mixed ones are the smaller ones.
### HINT 3: big = to_tf32(x); small = to_tf32(x - big). In add_product four local arrays: a_big[i],
### HINT 3: a_small[i] = split(a[i]) for i in range(4), and b's for 2. Then mma_tf32(d, a_small,
### HINT 3: b_big), mma_tf32(d, a_big, b_small), mma_tf32(d, a_big, b_big).
### DEBRIEF: Three products for one, and each is half as fast as one of float16: on an A100 or H100
### DEBRIEF: still more than twice what the CUDA cores can do. flash_attn_tf32x3 does the split in
### DEBRIEF: registers, by an addition, an AND and a subtraction. The Ozaki scheme goes further in
### DEBRIEF: the same spirit: it cuts float64 into many small pieces, whose products are exact.


@cuda.jit(device=True)
def split(x):
    """x as the sum of two TF32: big, small."""
    ### BEGIN SOLUTION
    big = to_tf32(x)
    return big, to_tf32(x - big)
    ### END SOLUTION


@cuda.jit(device=True)
def add_product(d, a, b):
    """d += a b for one lane's fragments, with almost the error of float32."""
    a_big = cuda.local.array(4, float32)
    a_small = cuda.local.array(4, float32)
    b_big = cuda.local.array(2, float32)
    b_small = cuda.local.array(2, float32)
    ### BEGIN SOLUTION
    for i in range(4):
        a_big[i], a_small[i] = split(a[i])
    for i in range(2):
        b_big[i], b_small[i] = split(b[i])
    mma_tf32(d, a_small, b_big)
    mma_tf32(d, a_big, b_small)
    mma_tf32(d, a_big, b_big)
    ### END SOLUTION


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
