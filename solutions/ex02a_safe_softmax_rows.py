"""ex02a · Safe softmax, one thread per row

Turn every row of a matrix into probabilities,

    y[row, n] = exp(x[row, n] - m) / l,    m = max_n x[row, n],    l = sum_n exp(x[row, n] - m),

in three passes over the row: the maximum, the sum, the quotient.

x, y      (num_rows, num_cols) float32 in HBM; any num_cols >= 1; rows may be views of longer rows
launch    safe_softmax_rows[grid, threads](x, y), with grid * threads >= num_rows: the last thread
          block has threads without a row, and they must touch nothing. Each row has its thread
returns   nothing: writes every element of y, nothing else, and leaves x alone
-inf      stands for "this column is masked": its probability is 0. A row of -inf only has nothing
          to share out: it becomes a row of 0, never NaN. Any finite score counts, -3e38 as well
memory    registers only: no shared memory, no local array, and y is no scratch pad. Each element
          of x is read at most three times (m starts at -inf, not at x[row, 0]) and each element
          of y written once
dtype     float32 throughout: a bare 0.0 is a float64 to Numba, float32(0.0) is not

About 15 lines.
"""

import math

from numba import cuda, float32

### HINT 1: Which row is yours? `row = cuda.grid(1)` counts the threads of all thread blocks. What
### must a thread do whose number is not below x.shape[0]?
### HINT 2: Three loops over `range(x.shape[1])`, one after the other, with two scalars kept between
### them: m_i (starts at float32(-math.inf)) and l_i (starts at float32(0.0)). What is
### -inf - -inf, and which rows would compute it?
### HINT 3: if row >= x.shape[0]: return
### for n in range(x.shape[1]): m_i = max(m_i, x[row, n])
### if m_i == -math.inf: m_i = float32(0.0)     # exp(-inf - 0) is 0, which is what we want
### for n in range(x.shape[1]): l_i += math.exp(x[row, n] - m_i)
### scale = float32(1.0) / l_i where l_i > 0, else 0; then the third loop writes exp(...) * scale.
### DEBRIEF: The guard `row >= num_rows` and the subtraction of the maximum are in every kernel of
### this workbook from here on. What this one does badly: neighbouring threads read
### addresses a whole row apart, so a warp's load touches 32 different sectors to use four
### bytes of each, and 4096 rows keep just 4096 threads busy. ex02b gives a thread block
### to each row and mends both.


@cuda.jit
def safe_softmax_rows(x, y):
    """Softmax of each row of x into y; thread number `row` of the whole grid owns one row."""
    ### BEGIN SOLUTION
    row = cuda.grid(1)
    if row >= x.shape[0]:
        return

    m_i = float32(-math.inf)
    for n in range(x.shape[1]):
        m_i = max(m_i, x[row, n])
    if m_i == -math.inf:  # every column masked: -inf - -inf would be NaN
        m_i = float32(0.0)

    l_i = float32(0.0)
    for n in range(x.shape[1]):
        l_i += math.exp(x[row, n] - m_i)
    scale = float32(0.0)
    if l_i > 0:
        scale = float32(1.0) / l_i

    for n in range(x.shape[1]):
        y[row, n] = math.exp(x[row, n] - m_i) * scale
    ### END SOLUTION
