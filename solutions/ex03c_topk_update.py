"""ex03c · Softmax and the k largest, in one pass

A language model that samples its next token wants the k largest probabilities of a row, and which
columns they are. Softmax keeps the order of a row, so these are the columns of its k largest
scores, and they can be found in the same pass as m and l: each thread keeps a list of the k best.

ranks_before(x_a, col_a, x_b, col_b) -> bool
    the order of the list: the larger x first; of equal x the smaller column, any int32. -inf is a
    score like any other; there is no NaN and no +inf.
topk_update(x_best, col_best, x_j, col)
    one more score. x_best (k,) float32 and col_best (k,) int32 hold the k best so far, best first,
    and are changed in place; the last one drops out when a better one comes. Columns may come in
    any order, none twice. An empty place holds (-inf, NO_COLUMN), which ranks behind every column.
make_topk(K) -> kernel(x, values, columns)
    for each row of x (num_rows, num_cols): values (num_rows, K) float32, the K largest of its
    softmax, largest first; columns (num_rows, K) int32, where they are.
    launch    kernel[ceil(num_rows / 32), 32](x, values, columns): thread cuda.grid(1) owns a row
    short     a row of fewer than K columns leaves value 0 and column -1 in the places left over
    -inf      a masked column has value 0; a row of -inf only has value 0 everywhere
    memory    each element of x is read ONCE; values and columns are written once, and not read; a
              thread keeps two local arrays of K, float32 and int32, and no shared memory
accesses(num_rows, num_cols, k) -> (fused, separate), both int
    predict: how many elements that kernel reads and writes, with k <= num_cols; and how many it
    takes if online softmax (ex03b) writes y, and then a kernel like yours reads y instead of x.
    Compared with the engine's meter.

About 1, 7, 25 and 2 lines. Write float32(0.0) and int32(col): a bare number is a wider type to
Numba.
"""

import functools
import math

from numba import cuda, float32, int32

NO_COLUMN = 2**31 - 1

### HINT 1: In topk_update look at the last place first: if the newcomer does not rank before it,
### nothing changes. Most elements of a long row end there.
### HINT 2: Otherwise the newcomer takes the last place, and then climbs: as long as it ranks before
### the one in front of it, the two change places. For the kernel, m and l are those of
### online_update; what is in the list is divided only after the loop over the columns.
### HINT 3: last = x_best.shape[0] - 1; if ranks_before(x_j, col, x_best[last], col_best[last]):
### x_best[last] = x_j; col_best[last] = col; for i in range(last, 0, -1): swap places i - 1 and i
### if ranks_before(x_best[i], col_best[i], x_best[i - 1], col_best[i - 1]).
### At the end value i is exp(x_best[i] - m_i) / l_i, and 0 where l_i is 0 or there is no column.
### fused is num_rows * num_cols + 2 * num_rows * k; the softmax before it costs 3 an element.
### DEBRIEF: For a vocabulary of 128,000 and k = 5 that is a quarter of the accesses, and a fifth of
### what safe softmax would need: the row is read once, and none of its probabilities is written.
### fa_numba/kernels/softmax_topk.py has a thread block per row instead of a thread, so that warps
### read neighbouring columns: each thread keeps such a list of its own columns. Then k rounds
### follow. In each round the block takes the best first entry of all lists. This is right because
### the order depends on the entries alone: the larger first, then the smaller column.


@cuda.jit(device=True)
def ranks_before(x_a, col_a, x_b, col_b):
    """Whether (x_a, col_a) stands before (x_b, col_b) in the list."""
    ### BEGIN SOLUTION
    return x_a > x_b or (x_a == x_b and col_a < col_b)
    ### END SOLUTION


@cuda.jit(device=True)
def topk_update(x_best, col_best, x_j, col):
    """Let (x_j, col) into the list, in its place, if it is one of the k best."""
    ### BEGIN SOLUTION
    last = x_best.shape[0] - 1
    if ranks_before(x_j, col, x_best[last], col_best[last]):
        x_best[last] = x_j
        col_best[last] = col
        for i in range(last, 0, -1):
            if ranks_before(x_best[i], col_best[i], x_best[i - 1], col_best[i - 1]):
                x_best[i - 1], x_best[i] = x_best[i], x_best[i - 1]
                col_best[i - 1], col_best[i] = col_best[i], col_best[i - 1]
    ### END SOLUTION


@functools.cache
def make_topk(K):
    """The kernel for the K largest, a compile-time constant."""

    @cuda.jit
    def kernel(x, values, columns):
        """Softmax of each row of x, its K largest alone; a thread owns a row."""
        ### BEGIN SOLUTION
        x_best = cuda.local.array(K, float32)
        col_best = cuda.local.array(K, int32)
        row = cuda.grid(1)
        if row >= x.shape[0]:
            return
        for i in range(K):
            x_best[i] = float32(-math.inf)
            col_best[i] = int32(NO_COLUMN)
        m_i = float32(-math.inf)
        l_i = float32(0.0)
        for col in range(x.shape[1]):
            x_j = x[row, col]
            topk_update(x_best, col_best, x_j, int32(col))
            if x_j > -math.inf:  # a masked score adds nothing; -inf - -inf would be NaN
                m_new = max(m_i, x_j)
                l_i = l_i * math.exp(m_i - m_new) + math.exp(x_j - m_new)
                m_i = m_new
        for i in range(K):
            value = float32(0.0)
            if l_i > 0:
                value = math.exp(x_best[i] - m_i) / l_i
            values[row, i] = value
            columns[row, i] = col_best[i] if col_best[i] != NO_COLUMN else int32(-1)
        ### END SOLUTION

    return kernel


def accesses(num_rows, num_cols, k):
    """Elements read and written: by this kernel alone, and by online softmax and then this."""
    ### BEGIN SOLUTION
    fused = num_rows * num_cols + 2 * num_rows * k  # every x once; a value and a column each
    return fused, 3 * num_rows * num_cols + fused  # softmax: two reads and a write before it
    ### END SOLUTION
