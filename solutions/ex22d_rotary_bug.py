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

### KIND: find the bug
### HINT 1: Give `published` one row with head_dim 2, x = (1, 0), and an angle of 90 degrees. The
### HINT 1: result should be (0, 1). What is the length of the result that you get?
### HINT 2: left and right are views of x. When the second line reads left, what is in it? For the
### HINT 2: gradient: y = R x has dx = R^T dy, and R is a rotation.
### HINT 3: Compute the new left into a variable, write right, then write left. The transpose of a
### HINT 3: rotation turns by the opposite angle: mended(dx, positions, cos, -sin).
### DEBRIEF: Position 0 has angle 0 and is right, and small angles are nearly right: slow pairs and
### DEBRIEF: early positions hide the bug. A test that lengths stay the same finds it at once; a
### DEBRIEF: test that scores depend on the distance alone finds every bug of a rotary embedding.
### DEBRIEF: The other well-known bug is of another kind: pairs (0, 1), (2, 3), ... in place of
### DEBRIEF: halves. Both are rotary embeddings, but weights trained with one are wrong with the
### DEBRIEF: other.


def published(x, positions, cos, sin):
    """The rotation with the bug, to read and to run. Leave it as it is."""
    half = x.shape[2] // 2
    left, right = x[:, :, :half], x[:, :, half:]
    c, s = cos[positions][:, None], sin[positions][:, None]  # the same for all heads
    left[:] = left * c - right * s
    right[:] = right * c + left * s


def mended(x, positions, cos, sin):
    """Turn each pair of columns by the angle of its position, in place."""
    ### BEGIN SOLUTION
    half = x.shape[2] // 2
    left, right = x[:, :, :half], x[:, :, half:]
    c, s = cos[positions][:, None], sin[positions][:, None]  # the same for all heads
    turned = left * c - right * s
    right[:] = right * c + left * s
    left[:] = turned
    ### END SOLUTION


def mended_grad(dx, positions, cos, sin):
    """The gradient of the result becomes that of the input, in place."""
    ### BEGIN SOLUTION
    mended(dx, positions, cos, -sin)
    ### END SOLUTION
