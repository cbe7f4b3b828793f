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


def to_tf32(x):
    """x rounded to 11 significant bits."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + np.uint32(1 << 12)) & np.uint32(0xFFFFE000)).view(np.float32)


def tensor_core(a, b):
    """a @ b as a tensor core computes it: of TF32, summed in float32."""
    return to_tf32(a) @ to_tf32(b)


def split(x):
    """x as the sum of two TF32: big, small."""
    # YOUR CODE HERE
    raise NotImplementedError("ex12d: split")


def product(a, b):
    """a @ b with almost the error of float32."""
    (a_big, a_small), (b_big, b_small) = split(a), split(b)
    # YOUR CODE HERE
    raise NotImplementedError("ex12d: product")


# Stub e3528e11 of solutions/ex12d_split_float32.py: `fa-numba reset ex12d` brings it back.
