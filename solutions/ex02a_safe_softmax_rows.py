"""ex02a · Safe softmax, one thread per row

Compute the maximum and the sum of one row, so that the kernel below turns every row into its safe
softmax,

    y[row, n] = exp(x[row, n] - m) / l,    m = max_n x[row, n],    l = sum_n exp(x[row, n] - m).

x         (num_rows, num_cols) float32 in HBM; any num_cols >= 1
returns   row_statistics returns (m, l), two float32 scalars
-inf      marks a masked column: it adds 0 to l. A row of -inf only has l = 0, never NaN: guard
          -inf - -inf. Every finite score counts, -3e38 as well
memory    registers only. Each element of x is read twice: m starts at -inf, not at x[row, 0]
given     the kernel: the guard for threads without a row, and the third pass, which writes y

A bare 0.0 is a float64 to Numba, and float32(0.0) is not. About 8 lines.
"""

import math

from numba import cuda, float32

### KIND: fill a loop
### HINT 1: Two loops over range(x.shape[1]), one after the other. The first finds m. Why can the
### HINT 1: second not start before the first has ended?
### HINT 2: m starts at float32(-math.inf), l at float32(0.0). What is -inf - -inf, and for which
### HINT 2: rows would the second loop compute it?
### HINT 3: for n in range(x.shape[1]): m_i = max(m_i, x[row, n])
### HINT 3: if m_i > -math.inf: the same loop with l_i += math.exp(x[row, n] - m_i)
### HINT 3: return m_i, l_i
### DEBRIEF: The guard `row >= num_rows` and the subtraction of the maximum are in every kernel of
### DEBRIEF: this workbook from here on. Two things are bad about this kernel. Neighbouring threads
### DEBRIEF: read addresses a whole row apart, so that a warp's load touches 32 sectors and uses
### DEBRIEF: four bytes of each; and 4096 rows keep only 4096 threads busy. ex02d gives a thread
### DEBRIEF: block to each row and mends both.


@cuda.jit(device=True)
def row_statistics(x, row):
    """Return (m, l): the maximum of a row, and the sum of exp(x[row, n] - m)."""
    ### BEGIN SOLUTION
    m_i = float32(-math.inf)
    for n in range(x.shape[1]):
        m_i = max(m_i, x[row, n])
    l_i = float32(0.0)
    if m_i > -math.inf:  # else every column is masked, and -inf - -inf would be NaN
        for n in range(x.shape[1]):
            l_i += math.exp(x[row, n] - m_i)
    return m_i, l_i
    ### END SOLUTION


@cuda.jit
def safe_softmax_rows(x, y):
    """Softmax of each row of x into y; thread number `row` of the whole grid owns one row."""
    row = cuda.grid(1)
    if row >= x.shape[0]:
        return
    m_i, l_i = row_statistics(x, row)
    for n in range(x.shape[1]):
        p = float32(0.0)
        if l_i > 0:
            p = math.exp(x[row, n] - m_i) / l_i
        y[row, n] = p
