"""ex14e · 2^x by a polynomial

power_of_2(x), a device function, returns 2^x for a float32 x <= 127 by multiplications and
additions alone:

    x = n + f             n a whole number, 0 <= f < 1
    2^f = 1 + C1 f + C2 f^2 + C3 f^3        relative error below 8.6e-5 for 0 <= f <= 1
    2^x = 2^n 2^f         n is added to the exponent of 2^f, the bits 23 to 30 of a float32

error     at most 1e-4, relative, for every x from -126 to 127; a whole x gives exactly 2^x
hidden    the score of a hidden key is -inf, others lie far below the maximum: for every x <= -127
          the result is exactly 0
cost      at most 8 floating-point operations for an element, all float32. An fma, a * b + c in one
          expression, counts two; floor, max, conversions and operations on integers are free
not       exp, exp2, pow, ldexp, a division, a table

`libdevice.float_as_int(p)` is the int32 with the bits of p, `libdevice.int_as_float(i)` the way
back. The kernel is given. About 5 lines.
"""

from numba import cuda, float32, int32
from numba.cuda import libdevice

C1, C2, C3 = 0.6951166391372681, 0.22764497995376587, 0.07706724107265472
FRACTION_BITS = 23  # of a float32: the exponent begins above them


@cuda.jit(device=True)
def power_of_2(x):
    """2^x of a float32."""
    # YOUR CODE HERE
    raise NotImplementedError("ex14e: power_of_2")


@cuda.jit
def kernel(x, y):
    """y[i] = 2^x[i]; threads (NUM_THREADS,), one for each element."""
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = power_of_2(x[i])


# Stub f0000726 of solutions/ex14e_power_of_2.py: `fa-numba reset ex14e` brings it back.
