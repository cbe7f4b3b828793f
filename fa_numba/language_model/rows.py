"""Functions of rows, and their gradients: norm, rotary embedding, squared ReLU, cross-entropy.

Sums are computed in float32, and results have the dtype of x. Each gradient takes dy, the gradient
of the loss with respect to the function's result, and the function's input.
"""

import numpy as np

from fa_numba.runtime import arrays

EPSILON = 1e-5  # added to the mean square, so that a row of zeros has a finite norm
SMALLEST = np.float32(1e-37)  # a probability that is 0 in float32 has a finite logarithm


def normalize(x):
    """RMSNorm: y = x / √(mean(x²) + ε), for each row of an array (rows, width)."""
    return (x * _inverse_rms(x)).astype(x.dtype, copy=False)


def normalize_grad(dy, x):
    """dx = (dy − y · mean(dy ∘ y)) / √(mean(x²) + ε), with y = normalize(x)."""
    inverse_rms = _inverse_rms(x)
    y = x * inverse_rms
    return ((dy - y * _mean_of_product(dy, y)) * inverse_rms).astype(x.dtype, copy=False)


def _inverse_rms(x):
    return 1 / arrays.module_of(x).sqrt(_mean_of_product(x, x) + np.float32(EPSILON))


def _mean_of_product(x, y):
    """Means of rows of x ∘ y, (rows, 1), float32."""
    if isinstance(x, np.ndarray):
        return (np.vecdot(x, y) / np.float32(x.shape[1]))[:, None]
    return (x.astype(np.float32) * y).mean(-1, keepdims=True)


def rotate(x, positions, cos, sin):
    """Rotary embedding, in place: turn the pairs (x[d], x[d + head_dim / 2]).

    Parameters
    ----------
    x : array of shape (rows, heads, head_dim)
    positions : array of shape (rows,), int32
    cos, sin : arrays of shape (context, head_dim / 2), float32
        Of the angle of each position and pair. With −sin this is the gradient: the transpose of a
        rotation is its inverse.
    """
    half = x.shape[2] // 2
    cos, sin = cos[positions][:, None], sin[positions][:, None]
    left, right = x[:, :, :half], x[:, :, half:]
    turned_left = left * cos - right * sin
    right[:] = right * cos + left * sin
    left[:] = turned_left


def square_relu(x):
    """y = max(x, 0)²."""
    y = arrays.module_of(x).maximum(x, 0)
    y *= y
    return y


def square_relu_grad(dy, x):
    """dx = 2 · max(x, 0) · dy."""
    dx = arrays.module_of(x).maximum(x, 0)
    dx *= dy
    dx *= 2
    return dx


def cross_entropy(logits, targets, *, softmax, scale):
    """Cross-entropy of the targets, and its gradient.

    Parameters
    ----------
    logits : array of shape (rows, vocabulary)
    targets : array of shape (rows,), integers
    softmax : callable
        ``softmax(x)`` of a float32 array (rows, cols), as `fa_numba.softmax`.
    scale : float
        Factor of the gradient.

    Returns
    -------
    loss : array of shape (), float32
        Mean over the rows, in nats.
    dlogits : array of the shape and dtype of logits
        (p − one-hot(target)) · scale / rows.
    """
    xp = arrays.module_of(logits)
    p = softmax(logits.astype(np.float32, copy=False))
    each = xp.arange(len(targets)), targets
    loss = -xp.log(xp.maximum(p[each], SMALLEST)).mean()
    p[each] -= 1
    p *= np.float32(scale / len(targets))
    return loss, p.astype(logits.dtype, copy=False)


def one_hot(tokens, vocabulary, dtype):
    """1 in the column of each row's token, else 0: (rows, vocabulary)."""
    return (tokens[:, None] == arrays.module_of(tokens).arange(vocabulary)).astype(dtype)
