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
    # YOUR CODE HERE
    raise NotImplementedError("ex22d: kernel")


@cuda.jit
def grad_kernel(dx, positions, cos, sin):
    """The gradient of the result becomes that of the input, in place."""
    # YOUR CODE HERE
    raise NotImplementedError("ex22d: grad_kernel")


# Stub 6134e380 of solutions/ex22d_rotary_bug.py: `fa-numba reset ex22d` brings it back.
