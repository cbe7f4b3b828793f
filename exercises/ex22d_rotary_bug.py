"""ex22d · Find the bug: the model learns all the same

Rotary embedding turns pairs of columns of q and k by an angle that grows with the position:

    left'  = left cos - right sin            left   the first half of a head's columns
    right' = right cos + left sin            right  the second half

Then the product of a query and a key depends on their distance alone, not on where they are.
`published` below does it in place. Its model trains, and its loss falls. It is wrong.

Write `mended`, in place too, and `mended_grad`, its backward pass: it gets the gradient of the
result and turns it, in place, into the gradient of the input. About 6 lines and 1 line.

mended(x, positions, cos, sin), mended_grad(dx, positions, cos, sin): both return None
    x, dx       (rows, heads, head_dim) float32, changed in place; head_dim is even
    positions   (rows,) int32, from 0: the position of each row in its sequence
    cos, sin    (context, head_dim / 2) float32: of the angle of each position and pair
"""


def published(x, positions, cos, sin):
    """The rotation with the bug, to read and to run. Leave it as it is."""
    half = x.shape[2] // 2
    left, right = x[:, :, :half], x[:, :, half:]
    c, s = cos[positions][:, None], sin[positions][:, None]  # the same for all heads
    left[:] = left * c - right * s
    right[:] = right * c + left * s


def mended(x, positions, cos, sin):
    """Turn each pair of columns by the angle of its position, in place."""
    # YOUR CODE HERE
    raise NotImplementedError("ex22d: mended")


def mended_grad(dx, positions, cos, sin):
    """The gradient of the result becomes that of the input, in place."""
    # YOUR CODE HERE
    raise NotImplementedError("ex22d: mended_grad")


# Stub 51dfb293 of solutions/ex22d_rotary_bug.py: `fa-numba reset ex22d` brings it back.
