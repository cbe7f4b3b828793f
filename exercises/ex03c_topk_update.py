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


@cuda.jit(device=True)
def ranks_before(x_a, col_a, x_b, col_b):
    """Whether (x_a, col_a) stands before (x_b, col_b) in the list."""
    # YOUR CODE HERE
    raise NotImplementedError("ex03c: ranks_before")


@cuda.jit(device=True)
def topk_update(x_best, col_best, x_j, col):
    """Let (x_j, col) into the list, in its place, if it is one of the k best."""
    # YOUR CODE HERE
    raise NotImplementedError("ex03c: topk_update")


@functools.cache
def make_topk(K):
    """The kernel for the K largest, a compile-time constant."""

    @cuda.jit
    def kernel(x, values, columns):
        """Softmax of each row of x, its K largest alone; a thread owns a row."""
        # YOUR CODE HERE
        raise NotImplementedError("ex03c: kernel")

    return kernel


def accesses(num_rows, num_cols, k):
    """Elements read and written: by this kernel alone, and by online softmax and then this."""
    # YOUR CODE HERE
    raise NotImplementedError("ex03c: accesses")


# Stub cfa2e2d2 of solutions/ex03c_topk_update.py: `fa-numba reset ex03c` brings it back.
