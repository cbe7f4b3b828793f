"""ex11a · Find the float64

`broken_kernel` adds up a causal row of softmax weights with ALiBi's penalty for distant keys:

    total[m] = sum over n = 0 ... m of 2^(LOG2_E · (s[m, n] / 8 - slope · (m - n)))

It is right, all its arrays are float32, and it computes in float64: an H200 does that at half the
speed, a graphics card at a 64th. In Numba a type spreads:

- a bare literal, and a global number, with a point is float64
- float32 with float64 gives float64
- float32 with an int64 gives float64, too, and every bare integer and every index is an int64

Write `kernel`, the same in float32 throughout. Copy broken_kernel and mend it; four lines change.

Launch   grid (ceil(N / 64),), thread block (64,): thread m of the grid owns row m
Arrays   s (N, N), slope (1,), total (N,), all float32
Types    no operation on float64, and no more exponentials than broken_kernel has
"""

import math

from numba import cuda, float32

LOG2_E = 1.4426950408889634

### KIND: find the bug
### HINT 1: Ask the meter: simt.trace(broken_kernel, ...).flops.of("float64").by_line names the
### HINT 1: lines that compute in float64.
### HINT 2: It starts in four places: the literal 0.0, the global LOG2_E, and two bare integers.
### HINT 2: One of the integers is the 8; the other is a difference of two indices.
### HINT 3: float32(0.0), float32(LOG2_E), s[m, n] * float32(0.125) and slope[0] * float32(m - n).
### DEBRIEF: One literal is enough: what it touches becomes float64, and what that touches, too.
### DEBRIEF: The result is right, to more digits than you asked for, so no test of values finds it.
### DEBRIEF: Ask the meter or the linter (`fa_numba.analysis.lint`) for types. The difference of
### DEBRIEF: two indices is the form that survives most reviews: there is no literal in it.


@cuda.jit
def broken_kernel(s, slope, total):
    """Sums of the weights of each row, computed in float64."""
    m = cuda.grid(1)
    if m < s.shape[0]:
        acc = 0.0
        for n in range(m + 1):
            penalty = slope[0] * (m - n)
            score = s[m, n] / 8 - penalty
            acc += math.exp2(score * LOG2_E)
        total[m] = acc


@cuda.jit
def kernel(s, slope, total):
    """Sums of the weights of each row, computed in float32."""
    ### BEGIN SOLUTION
    m = cuda.grid(1)
    if m < s.shape[0]:
        acc = float32(0.0)
        for n in range(m + 1):
            penalty = slope[0] * float32(m - n)
            score = s[m, n] * float32(0.125) - penalty
            acc += math.exp2(score * float32(LOG2_E))
        total[m] = acc
    ### END SOLUTION
