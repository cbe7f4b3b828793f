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

### KIND: find the bug
### HINT 1: Grade broken_kernel's lines as they are. The message names a thread, an index and a
###   shape.
### HINT 2: n elements have n - 1 differences. Which of the two arrays has as many elements as there
###   are threads with something to do?
### HINT 3: The guard must compare with out's length, not with x's.
### DEBRIEF: A GPU does not check an index. There the extra thread reads the four bytes behind x
###   and overwrites the four behind out: mostly nothing happens, sometimes another array is wrong,
###   rarely the launch fails, and never in this line. The engine stops at the first such access. On
###   a GPU NVIDIA's `compute-sanitizer` makes the same check.


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
