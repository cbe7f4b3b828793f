"""ex14d · A rotation that spreads outliers

Let H be the Hadamard matrix of size d, a power of two: H = [1] for d = 1, and twice as large

    H  H
    H −H

H / √d is orthogonal and symmetric. With random signs s (each +1 or −1) the rotation of a row x is

    x diag(s) H / √d

It takes d log2 d additions, not d²: H is never written down.

hadamard(x)           x H / √d along the last axis of x, of any shape (..., d)
rotate(x, signs)      x diag(signs) H / √d; signs: (d,), +1 and −1
unrotate(y, signs)    the x whose rotation is y

x is float32 or float64; results have its shape and dtype. x and signs stay as they are. Memory: a
few times that of x, in particular no (d, d) matrix. About 7, 1 and 1 lines.
"""

import numpy as np


def hadamard(x):
    """x H / √d along the last axis."""
    # YOUR CODE HERE
    raise NotImplementedError("ex14d: hadamard")


def rotate(x, signs):
    """x diag(signs) H / √d."""
    # YOUR CODE HERE
    raise NotImplementedError("ex14d: rotate")


def unrotate(y, signs):
    """What rotate made y of."""
    # YOUR CODE HERE
    raise NotImplementedError("ex14d: unrotate")


# Stub dbf4b887 of solutions/ex14d_hadamard.py: `fa-numba reset ex14d` brings it back.
