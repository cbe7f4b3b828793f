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

### KIND: write
### HINT 1: With x = -2.25, n is -3 and f is 0.75: n = floor(x), not the nearest whole number and
### HINT 1: not the one nearer to 0, for which f leaves the range of the polynomial.
### HINT 2: Horner's form needs one fma for each degree: p = C3; p = p * f + C2; and so on to 1.
### HINT 2: The constants are to be float32: float32(C3), or the whole sum is float64.
### HINT 3: x = max(x, -127) first; n = libdevice.floorf(x); f = x - n; Horner; then the bits of p
### HINT 3: plus int32(n) << FRACTION_BITS, as a float again. Why is 2^-127 then exactly 0?
### DEBRIEF: Three fma and a subtraction, 7 operations. At -127 f is 0 and p is 1: the exponent's
### DEBRIEF: bits are 127 - 127 = 0, and so is the number. The error of 8.6e-5 is a 23rd of
### DEBRIEF: bfloat16's, 2^-9, to which P is rounded anyway. The units that multiply do 128 such
### DEBRIEF: steps per clock and SM, the special function unit 16 exponentials. FlashAttention-4
### DEBRIEF: gives a part of each row to the one and the rest to the other, so that both work.


@cuda.jit(device=True)
def power_of_2(x):
    """2^x of a float32."""
    ### BEGIN SOLUTION
    x = max(x, float32(-127.0))  # 2^-127 becomes exactly 0 below
    n = libdevice.floorf(x)
    f = x - n
    p = float32(C3) * f + float32(C2)
    p = p * f + float32(C1)
    p = p * f + float32(1.0)
    return libdevice.int_as_float(libdevice.float_as_int(p) + (int32(n) << FRACTION_BITS))
    ### END SOLUTION


@cuda.jit
def kernel(x, y):
    """y[i] = 2^x[i]; threads (NUM_THREADS,), one for each element."""
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = power_of_2(x[i])
