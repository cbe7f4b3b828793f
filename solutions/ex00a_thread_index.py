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

### KIND: fill a line
### HINT 1: The kernel needs a number i that is different in every thread. Which number does each
###   thread have of its own?
### HINT 2: `i = cuda.threadIdx.x` is a plain integer. Index both arrays with it.
### HINT 3: The second line stores into out[i]: the factor times the element i of x.
### DEBRIEF: There is no loop over i: the launch is the loop. In a program for a CPU you say how the
###   elements follow each other; here you say only what belongs to one of them, and the GPU decides
###   how many run at a time. This pattern is called **map**.


@cuda.jit
def scale_vector(x, out, factor):
    """out[i] = factor * x[i], one thread per element."""
    ### BEGIN SOLUTION
    i = cuda.threadIdx.x
    out[i] = factor * x[i]
    ### END SOLUTION
