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

### HINT 1: The invariant for the new maximum: l_new = sum of exp(s_j - m_new), old scores and
### new. What turns exp(s_j - m_i) into exp(s_j - m_new)?
### HINT 2: exp(s_j - m_new) = exp(s_j - m_i) * exp(m_i - m_new): one factor for all old scores, so
### for their sum. The new score adds exp(s - m_new). For merge, each side has a factor.
### HINT 3: m_new = max(m_i, s); if m_new == -math.inf: return m_new, l_i, float32(1.0)
### alpha = math.exp(m_i - m_new); l_new = l_i * alpha + math.exp(s - m_new)
### merge: m = max(m_a, m_b), the same guard, then l_a exp(m_a - m) + l_b exp(m_b - m)
### DEBRIEF: online_update(m, l, s) is merge(m, l, s, 1): a single score is a part of the row whose
### maximum is s and whose sum is exp(s - s) = 1. merge is associative and commutative with
### (-inf, 0) as its zero, so any tree of threads may fold a row: warps here, splits of a
### long context in Flash-Decoding, GPUs in ring attention. All of them run these four lines.


@cuda.jit(device=True)
def online_update(m_i, l_i, s):
    """Return (m_new, l_new, alpha) after one more score s."""
    ### BEGIN SOLUTION
    m_new = max(m_i, s)
    if m_new == -math.inf:  # only masked scores so far: -inf - -inf would be NaN
        return m_new, l_i, float32(1.0)
    alpha = math.exp(m_i - m_new)
    return m_new, l_i * alpha + math.exp(s - m_new), alpha
    ### END SOLUTION


@cuda.jit(device=True)
def merge(m_a, l_a, m_b, l_b):
    """Return (m, l) of the two parts together."""
    ### BEGIN SOLUTION
    m = max(m_a, m_b)
    if m == -math.inf:  # two empty parts make an empty one
        return m, float32(0.0)
    return m, l_a * math.exp(m_a - m) + l_b * math.exp(m_b - m)
    ### END SOLUTION
