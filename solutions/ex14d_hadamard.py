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

### HINT 1: For d = 2 the row (a, b) becomes (a + b, a − b). What are, for d = 4, the two halves of
### the result in terms of the two halves of x?
### HINT 2: x = (left, right): x H = (left H + right H, left H − right H), by halves of size d / 2.
### Do the small ones first: pairs of neighbours, then pairs of pairs, ...
### HINT 3: For h = 1, 2, 4, ... < d: pairs = x.reshape(..., d // (2 * h), 2, h); a = pairs[...,
### 0, :]; b = pairs[..., 1, :]; the next x is np.stack([a + b, a - b], axis=-2) in the shape of
### x. At the end divide by √d. That is its own inverse, so unrotate is hadamard first, the
### signs after.
### DEBRIEF: Q and K rotated by the same signs give the same scores: (Q M)(K M)ᵀ = Q M Mᵀ Kᵀ = Q Kᵀ.
### In 8 bits they do not: a score that one large product made had all of that product's rounding
### error; as a sum of d products of like size it has an average. The signs matter where the numbers
### have a pattern: H alone maps a constant row onto a single outlier.


def hadamard(x):
    """x H / √d along the last axis."""
    ### BEGIN SOLUTION
    shape, d = x.shape, x.shape[-1]
    h = 1
    while h < d:
        pairs = x.reshape(*shape[:-1], d // (2 * h), 2, h)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        x = np.stack([a + b, a - b], axis=-2).reshape(shape)
        h *= 2
    return x / x.dtype.type(np.sqrt(d))
    ### END SOLUTION


def rotate(x, signs):
    """x diag(signs) H / √d."""
    ### BEGIN SOLUTION
    return hadamard(x * signs.astype(x.dtype))
    ### END SOLUTION


def unrotate(y, signs):
    """What rotate made y of."""
    ### BEGIN SOLUTION
    return hadamard(y) * signs.astype(y.dtype)
    ### END SOLUTION
