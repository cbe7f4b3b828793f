"""ex00f · Shared memory: look at the whole tile

A thread block owns a tile, TILE neighbouring elements of x. From each element subtract the
largest of its tile. Every thread must see all elements of the tile, but each element is read from x
only once: one thread puts it into shared memory, where all threads of the thread block find it.

    out[i] = x[i] - max(tile of i)

Launch   grid (n / TILE,), thread blocks (TILE,); n is a multiple of TILE = 64
Arrays   x, out (n,) float32
Shared   tile (TILE,) float32, as given
Rules    x is read once per element; no thread reads tile before every thread has filled its element

About 6 lines.
"""

from numba import cuda, float32

TILE = 64

### KIND: fill a loop
### HINT 1: Three steps: fill, wait, look. Thread t fills tile[t]; then all wait; then each thread
###   looks at all TILE elements.
### HINT 2: cuda.syncthreads() is the waiting: no thread passes it before all threads of its thread
###   block have arrived. After it, a loop over j in range(TILE) keeps the larger of two numbers.
### HINT 3: largest = tile[0]; in the loop largest = max(largest, tile[j]); behind the loop out[i]
###   is tile[t] - largest. Read x in the first line only.
### DEBRIEF: The call of cuda.syncthreads() is a **barrier**. Without it a fast warp reads numbers
###   that a slow one has not stored: a **race**. The engine reports it with both lines; a GPU gives
###   a right answer most of the time. And every thread here does the same 63 comparisons: lesson 02
###   shares them among the threads, and the maximum of 64 elements takes 6 steps.


@cuda.jit
def below_largest(x, out):
    """Each element minus the largest of its tile."""
    tile = cuda.shared.array(TILE, float32)
    t = cuda.threadIdx.x
    i = cuda.blockIdx.x * TILE + t
    ### BEGIN SOLUTION
    tile[t] = x[i]
    cuda.syncthreads()
    largest = tile[0]
    for j in range(1, TILE):
        largest = max(largest, tile[j])
    out[i] = tile[t] - largest
    ### END SOLUTION
