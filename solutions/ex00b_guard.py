"""ex00b · Guard: find the bug

`broken_kernel` computes the differences of neighbours:

    out[i] = x[i + 1] - x[i]        for i = 0 ... n - 2

There are more threads than differences, so it has a **guard**: an `if` that stops the threads
without an element. The guard lets a thread too many through. Grade `broken_kernel` under the name
`kernel`, read what the engine says about it, and mend it; one line changes.

Launch   grid (1,), thread block (64,): n is at most 65, so out has at most 64 elements
Arrays   x (n,), out (n - 1,), float32
Rules    x and out are read and written inside of their shapes, whatever n is; a thread reads two
         elements of x and writes one of out
"""

from numba import cuda

### KIND: find the bug
### HINT 1: Copy broken_kernel's lines into kernel and run grade("ex00b"). The message names a
###   thread, an index and a shape.
### HINT 2: n elements have n - 1 differences. Which of the two arrays has as many elements as there
###   are threads with something to do?
### HINT 3: The guard must compare with out's length, not with x's.
### DEBRIEF: A GPU does not check an index. There the thread too many reads the four bytes behind x
###   and overwrites the four behind out: mostly nothing happens, sometimes another array is wrong,
###   rarely the launch fails, and never in this line. The engine stops at the first of them. For
###   the same check on a GPU there is NVIDIA's `compute-sanitizer`.


@cuda.jit
def broken_kernel(x, out):
    """Differences of neighbours, by a thread too many."""
    i = cuda.threadIdx.x
    if i < x.shape[0]:
        out[i] = x[i + 1] - x[i]


@cuda.jit
def kernel(x, out):
    """out[i] = x[i + 1] - x[i], one thread per difference."""
    ### BEGIN SOLUTION
    i = cuda.threadIdx.x
    if i < out.shape[0]:
        out[i] = x[i + 1] - x[i]
    ### END SOLUTION
