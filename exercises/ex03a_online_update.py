"""ex03a · One score more, and two halves into one

A thread that has read a part of a row, in any order, knows two numbers about it:

    m = the largest score seen,    l = sum of exp(s - m) over the scores seen;

nothing seen, or only masked scores (-inf) seen, is (m, l) = (-inf, 0). Write the two functions that
keep this true. Both are device functions: kernels call them, each thread for itself, on scalars.

online_update(m_i, l_i, s) -> (m_new, l_new, alpha)
    one more score s. alpha = exp(m_i - m_new) is the factor, at most 1, by which everything that
    was summed under the old maximum shrinks: l_i here, and a whole output row in lesson 06. While
    no finite score has come, alpha may be any finite number, for there is nothing to shrink.
merge(m_a, l_a, m_b, l_b) -> (m, l)
    two parts of a row, read by two threads (or warps, or thread blocks), become one.

scalars   float32 in, float32 out; any score may be -inf, none is +inf or NaN; any finite one
          counts, -3e38 as well
no NaN    -inf - -inf is NaN: guard it
memory    registers only: no shared memory, no local arrays

About 5 lines and 4 lines.
"""

import math

from numba import cuda, float32


@cuda.jit(device=True)
def online_update(m_i, l_i, s):
    """Return (m_new, l_new, alpha) after one more score s."""
    # YOUR CODE HERE
    raise NotImplementedError("ex03a: online_update")


@cuda.jit(device=True)
def merge(m_a, l_a, m_b, l_b):
    """Return (m, l) of the two parts together."""
    # YOUR CODE HERE
    raise NotImplementedError("ex03a: merge")


# Stub 5b8143f8 of solutions/ex03a_online_update.py: `fa-numba reset ex03a` brings it back.
