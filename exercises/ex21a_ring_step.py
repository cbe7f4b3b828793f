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


@cuda.jit(device=True)
def owner(rank, step, world_size):
    """Whose keys this rank has in this step."""
    # YOUR CODE HERE
    raise NotImplementedError("ex21a: owner")


@functools.cache
def make_kernel(HEAD_DIM):
    """The kernel for one head_dim, a compile-time constant."""

    @cuda.jit
    def kernel(q, k, v, out, lse, rank, step, world_size, softmax_scale):
        """Attend to the keys of this step, and merge them into the state."""
        acc = cuda.local.array(HEAD_DIM, float32)
        # YOUR CODE HERE
        raise NotImplementedError("ex21a: kernel")

    return kernel


# Stub 8264be73 of solutions/ex21a_ring_step.py: `fa-numba reset ex21a` brings it back.
