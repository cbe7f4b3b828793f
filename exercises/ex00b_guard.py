"""ex00b · Guard: find the bug

`broken_kernel` computes the differences of neighbours:

    out[i] = x[i + 1] - x[i]        for i = 0 ... n - 2

There are more threads than differences, so it has a guard: an `if` that stops the threads
without an element. The guard lets one thread too many through. Copy broken_kernel's lines into
`kernel`, grade it, read what the engine says, and mend it; one line changes.

Launch   grid (1,), thread block (64,): n is at most 65, so out has at most 64 elements
Arrays   x (n,), out (n - 1,), float32
Rules    x and out are read and written inside of their shapes, whatever n is; a thread reads two
         elements of x and writes one of out
"""

from numba import cuda


@cuda.jit
def broken_kernel(x, out):
    """Differences of neighbours, by a thread too many."""
    i = cuda.threadIdx.x
    if i < x.shape[0]:
        out[i] = x[i + 1] - x[i]


@cuda.jit
def kernel(x, out):
    """out[i] = x[i + 1] - x[i], one thread per difference."""
    # YOUR CODE HERE
    raise NotImplementedError("ex00b: kernel")


# Stub bcd4e7c7 of solutions/ex00b_guard.py: `fa-numba reset ex00b` brings it back.
