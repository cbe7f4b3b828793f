"""ex22d · Find the bug: the model learns all the same

Rotary embedding turns pairs of columns of q and k by an angle that grows with the position:

    left'  = left cos - right sin            left   column i of the first half of a head
    right' = right cos + left sin            right  the same column of the second half

Then the product of a query and a key depends on their distance alone, not on where they are.
`broken_kernel` below does it in place. Its model trains, and its loss falls. It is wrong.

Write `kernel`, in place too, and `grad_kernel`, its backward pass: it gets the gradient of the
result and turns it, in place, into the gradient of the input. About 8 lines and 8 lines.

launch    kernel[(rows, heads), NUM_THREADS](x, positions, cos, sin), grad_kernel likewise with dx
arrays    x, dx (rows, heads, head_dim) float32, changed in place; head_dim is even
          positions (rows,) int32, from 0: the position of each row in its sequence
          cos, sin (context, head_dim / 2) float32: of the angle of each position and pair
HBM       x is loaded once and stored once; no shared memory
"""

from numba import cuda

NUM_THREADS = 64

### KIND: find the bug
### HINT 1: Give `broken_kernel` one row with head_dim 2, x = (1, 0), and an angle of 90 degrees.
### HINT 1: The result should be (0, 1). What is the length of the result that you get?
### HINT 2: When the last line reads the left column, what is in it? For the gradient: y = R x has
### HINT 2: dx = R^T dy, and R is a rotation.
### HINT 3: left, right = x[row, head, i], x[row, head, half + i] before anything is stored. The
### HINT 3: transpose of a rotation turns by the opposite angle: the same with -s for s.
### DEBRIEF: Position 0 has angle 0 and is right, and small angles are nearly right: slow pairs and
### DEBRIEF: early positions hide the bug. A test that lengths stay the same finds it at once; a
### DEBRIEF: test that scores depend on the distance alone finds every bug of a rotary embedding.
### DEBRIEF: The other well-known bug is of another kind: pairs (0, 1), (2, 3), ... in place of
### DEBRIEF: halves. Both are rotary embeddings, but weights trained with one are wrong with the
### DEBRIEF: other. No thread reads what another writes: a pair belongs to one thread, so "in place"
### DEBRIEF: needs no barrier, only a register.


@cuda.jit
def broken_kernel(x, positions, cos, sin):
    """The rotation with the bug, to read and to run. Leave it as it is."""
    row, head = cuda.blockIdx.x, cuda.blockIdx.y
    half = x.shape[2] // 2
    for i in range(cuda.threadIdx.x, half, NUM_THREADS):
        c, s = cos[positions[row], i], sin[positions[row], i]
        x[row, head, i] = x[row, head, i] * c - x[row, head, half + i] * s
        x[row, head, half + i] = x[row, head, half + i] * c + x[row, head, i] * s


@cuda.jit
def kernel(x, positions, cos, sin):
    """Turn each pair of columns by the angle of its position, in place."""
    ### BEGIN SOLUTION
    row, head = cuda.blockIdx.x, cuda.blockIdx.y
    half = x.shape[2] // 2
    for i in range(cuda.threadIdx.x, half, NUM_THREADS):
        c, s = cos[positions[row], i], sin[positions[row], i]
        left, right = x[row, head, i], x[row, head, half + i]
        x[row, head, i] = left * c - right * s
        x[row, head, half + i] = right * c + left * s
    ### END SOLUTION


@cuda.jit
def grad_kernel(dx, positions, cos, sin):
    """The gradient of the result becomes that of the input, in place."""
    ### BEGIN SOLUTION
    row, head = cuda.blockIdx.x, cuda.blockIdx.y
    half = dx.shape[2] // 2
    for i in range(cuda.threadIdx.x, half, NUM_THREADS):
        c, minus_s = cos[positions[row], i], -sin[positions[row], i]
        left, right = dx[row, head, i], dx[row, head, half + i]
        dx[row, head, i] = left * c - right * minus_s
        dx[row, head, half + i] = right * c + left * minus_s
    ### END SOLUTION
