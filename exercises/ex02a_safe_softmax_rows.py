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


@cuda.jit
def safe_softmax_rows(x, y):
    """Softmax of each row of x into y; thread number `row` of the whole grid owns one row."""
    # YOUR CODE HERE
    raise NotImplementedError("ex02a: safe_softmax_rows")


# Stub 17e989ff of solutions/ex02a_safe_softmax_rows.py: `fa-numba reset ex02a` brings it back.
