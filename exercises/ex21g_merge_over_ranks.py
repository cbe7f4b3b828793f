"""ex21g · Merge over ranks: a maximum and a sum

One query per head, the same on every rank; the keys are on W ranks. Each rank has attended to its
own keys. All ranks get the merged state by two all_reduce, with a kernel of yours before the second
one and one after it:

    m = all_reduce(lse, "max")                                   the maximum over ranks, by row
    weigh[rows, threads](out, lse, m, packed)
    total = all_reduce(packed, "sum")                            the sum over ranks
    finish[rows, threads](total, m, out, lse)

out, lse        (rows, head_dim), (rows,) float32: a row per head; of this rank for weigh, of all
                ranks after finish. lse is the natural logarithm of the sum of e^score
m               (rows,) float32
packed, total   (rows, head_dim + 1) float32: what is in it is yours to choose, but the sum over
                ranks must be all that finish needs

- lse may be 1e4 or -1e4: e^89 is more than float32 holds.
- A rank without a key for a row has lse = -inf and out = 0 there. If no rank has a key, the result
  is the same: out = 0, lse = -inf, and nothing may be NaN.
- Any number of threads. Each number of out, packed and total is loaded or stored once, by
  neighbouring threads. In float32 throughout.

About 8 lines each.
"""

import math

from numba import cuda, float32


@cuda.jit
def weigh(out, lse, m, packed):
    """What this rank gives to the sum over ranks, a thread block for each row."""
    # YOUR CODE HERE
    raise NotImplementedError("ex21g: weigh")


@cuda.jit
def finish(total, m, out, lse):
    """The state over the keys of all ranks, a thread block for each row."""
    # YOUR CODE HERE
    raise NotImplementedError("ex21g: finish")


# Stub 28a4e9f6 of solutions/ex21g_merge_over_ranks.py: `fa-numba reset ex21g` brings it back.
