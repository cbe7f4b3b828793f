"""ex00a · Map: which element is mine?

Write a kernel that multiplies every element of a vector by a factor. All threads of the thread
block run the same function. A thread differs from the others in its number, `cuda.threadIdx.x`, so
let it take the element of that number.

    out[i] = factor * x[i]        for i = 0 ... n - 1

Launch   grid (1,), thread block (n,): as many threads as elements
Arrays   x, out (n,) float32; factor is a float32 number
Rules    no loop: a thread reads one element of x, writes one element of out, and that is all

About 2 lines. Save the file, then run grade("ex00a") in the lesson, or `fa-numba check ex00a` in a
terminal. `fa-numba watch` grades a file whenever you save it.
"""

from numba import cuda


@cuda.jit
def scale_vector(x, out, factor):
    """out[i] = factor * x[i], one thread per element."""
    # YOUR CODE HERE
    raise NotImplementedError("ex00a: scale_vector")


# Stub 17e6156e of solutions/ex00a_thread_index.py: `fa-numba reset ex00a` brings it back.
