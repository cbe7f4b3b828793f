"""ex12d · Two TF32 for one float32

A tensor core takes float32 only as TF32: 11 significant bits of 24. Multiply float32 matrices with
it all the same, by three products in place of one, with the error of float32.

to_tf32(x)            given: float32 x rounded to the nearest TF32, still stored as float32
tensor_core(a, b)     given: a product as it is made of TF32, summed in float32
split(x)              (big, small), two TF32 stored as float32, with x = big + small to 2^-22 of x
product(a, b)         a @ b for a (M, K) and b (K, N) float32, by three calls of tensor_core

With a = a_big + a_small, and b likewise, a b has four terms. The smallest of them is some 2^-22 of
a b, which is too little to pay for: leave it out. Add the smaller terms first. About 2 lines and 2.
"""

import numpy as np

### KIND: fill a line
### HINT 1: What is left of x once big is taken away? A float32 subtraction of two numbers this near
### HINT 1: each other has no error at all.
### HINT 2: small is a float32 with up to 13 bits, and the tensor core takes 11: round it, too. Of
### HINT 2: the four terms the two mixed ones are the smaller ones.
### HINT 3: big = to_tf32(x); small = to_tf32(x - big). The mixed terms are tensor_core(a_small,
### HINT 3: b_big) and tensor_core(a_big, b_small); the large one comes last.
### DEBRIEF: Three products for one, and each is half as fast as one of float16: on an A100 or H100
### DEBRIEF: still more than twice what the CUDA cores can do. flash_attn_tf32x3 does the split in
### DEBRIEF: registers, by an addition, an AND and a subtraction. The Ozaki scheme goes further in
### DEBRIEF: the same spirit: it cuts float64 into many small pieces, whose products are exact.


def to_tf32(x):
    """x rounded to 11 significant bits."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + np.uint32(1 << 12)) & np.uint32(0xFFFFE000)).view(np.float32)


def tensor_core(a, b):
    """a @ b as a tensor core computes it: of TF32, summed in float32."""
    return to_tf32(a) @ to_tf32(b)


def split(x):
    """x as the sum of two TF32: big, small."""
    ### BEGIN SOLUTION
    big = to_tf32(x)
    return big, to_tf32(x - big)
    ### END SOLUTION


def product(a, b):
    """a @ b with almost the error of float32."""
    (a_big, a_small), (b_big, b_small) = split(a), split(b)
    ### BEGIN SOLUTION
    mixed = tensor_core(a_small, b_big) + tensor_core(a_big, b_small)
    return mixed + tensor_core(a_big, b_big)
    ### END SOLUTION
