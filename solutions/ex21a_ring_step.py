"""ex21a · Whose keys? One step of the ring, in a kernel

W ranks form a ring. The sequence is cut into W equal parts of c tokens; rank r has the queries of
part r, and they stay where they are. Keys and values travel. In every step, each rank r

    1. attends to the keys that it has in this step, and merges the result into its state,
    2. sends them to rank r + 1 and receives the next ones from rank r - 1.

After rank W - 1 comes rank 0. In step 0 every rank has its own keys.

owner(rank, step, world_size)   device function: whose keys this rank has in this step, an int
kernel(q, k, v, out, lse, rank, step, world_size, softmax_scale)   the first of the two, on one rank

launch   kernel[ceil(c / 64), 64], HEAD_DIM a compile-time constant: a thread has a query
arrays   q, k, v, out (c, HEAD_DIM), lse (c,), all float32. k and v are those of this step
state    (out, lse) over the keys of the steps before: before step 0, out = 0 and lse = -inf. After
         the kernel it is the state over this step's keys, too. lse is the natural logarithm of the
         sum of e^score. A query that sees no key of this step keeps its state
mask     causal, by the positions in the whole sequence: query i of rank r is token r c + i, key j
         of owner o is token o c + j
HBM      a key is loaded once by each query that sees it, by no other; out and lse once

1 line and about 22. In float32 throughout.
"""

import functools
import math

from numba import cuda, float32

### KIND: write
### HINT 1: Draw 4 ranks and move the keys by hand: whose keys does rank 0 have in step 1? And in
### HINT 1: step 2? In each step they come from one rank further back.
### HINT 2: A state is one key more: its score is lse, its weight e^lse, its value out. So begin the
### HINT 2: running maximum with m_i = lse[i], l_i = 1 and acc = out[i]; where lse is -inf, l_i = 0.
### HINT 3: owner = (rank - step) % world_size; % of a negative number is already what you want. For
### HINT 3: each key with o * c + j <= rank * c + i: m_new = max(m_i, s); alpha, p = exp(m_i -
### HINT 3: m_new), exp(s - m_new); l_i and acc as in lesson 07. In the end out = acc / l_i, lse =
### HINT 3: m_i + log(l_i), where l_i > 0.
### DEBRIEF: For a fixed step `owner` is a permutation of the ranks, and for a fixed rank it runs
### DEBRIEF: through all of them: W steps are enough, and no key is ever at two ranks. The mask
### DEBRIEF: needs it: a wrong owner is a wrong mask. And the merge ⊕ costs nothing here: the state
### DEBRIEF: goes into the softmax as its first key. The package's ring merges by a kernel of its
### DEBRIEF: own, so that any attention kernel can serve it.


@cuda.jit(device=True)
def owner(rank, step, world_size):
    """Whose keys this rank has in this step."""
    ### BEGIN SOLUTION
    return (rank - step) % world_size
    ### END SOLUTION


@functools.cache
def make_kernel(HEAD_DIM):
    """The kernel for one head_dim, a compile-time constant."""

    @cuda.jit
    def kernel(q, k, v, out, lse, rank, step, world_size, softmax_scale):
        """Attend to the keys of this step, and merge them into the state."""
        acc = cuda.local.array(HEAD_DIM, float32)
        ### BEGIN SOLUTION
        i, c = cuda.grid(1), q.shape[0]
        if i >= c:
            return
        o = owner(rank, step, world_size)
        m_i = lse[i]
        l_i = float32(1.0) if m_i > -math.inf else float32(0.0)
        for d in range(HEAD_DIM):
            acc[d] = out[i, d]
        for j in range(c):
            if o * c + j <= rank * c + i:
                dot = float32(0.0)
                for d in range(HEAD_DIM):
                    dot += q[i, d] * k[j, d]
                s = dot * softmax_scale
                m_new = max(m_i, s)
                alpha, p = math.exp(m_i - m_new), math.exp(s - m_new)
                l_i = alpha * l_i + p
                for d in range(HEAD_DIM):
                    acc[d] = alpha * acc[d] + p * v[j, d]
                m_i = m_new
        if l_i > 0:
            for d in range(HEAD_DIM):
                out[i, d] = acc[d] / l_i
            lse[i] = m_i + math.log(l_i)
        ### END SOLUTION

    return kernel
