"""Functions of rows, and their gradients: norm, rotary embedding, squared ReLU, cross-entropy.

NumPy arrays are computed with NumPy, those of a GPU by the kernels of `row_kernels`. Sums are
computed in float32, and results have the dtype of x. Each gradient takes dy, the gradient of the
loss with respect to the function's result, and the function's input.
"""

import numpy as np

from fa_numba.language_model import row_kernels
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import ceil_div

EPSILON = np.float32(1e-5)  # added to the mean square, so that a row of zeros has a finite norm
SMALLEST = np.float32(1e-37)  # a probability that is 0 in float32 has a finite logarithm


def normalize(x):
    """RMSNorm: y = x / √(mean(x²) + ε), for each row of an array (rows, width)."""
    if isinstance(x, np.ndarray):
        return x * _inverse_rms(x)
    y = arrays.module_of(x).empty(x.shape, x.dtype)
    _launch_rows(row_kernels.normalize_kernel, x, y, EPSILON)
    return y


def normalize_grad(dy, x, added):
    """dx = added + (dy − y · mean(dy ∘ y)) / √(mean(x²) + ε), with y = normalize(x).

    `added` is the gradient that reaches x past the norm: (rows, width).
    """
    if isinstance(x, np.ndarray):
        inverse_rms = _inverse_rms(x)
        y = x * inverse_rms
        dx = dy - y * _mean_of_product(dy, y)
        dx *= inverse_rms
        dx += added
        return dx
    dx = arrays.module_of(x).empty(x.shape, x.dtype)
    _launch_rows(row_kernels.normalize_grad_kernel, dy, x, added, dx, EPSILON)
    return dx


def _inverse_rms(x):
    return 1 / np.sqrt(_mean_of_product(x, x) + EPSILON)


def _mean_of_product(x, y):
    """Means of rows of x ∘ y, (rows, 1)."""
    return (np.vecdot(x, y) / np.float32(x.shape[1]))[:, None]


def rotate(x, positions, cos, sin, *, out=None, back=False):
    """Rotary embedding: turn the pairs (x[d], x[d + head_dim / 2]).

    Parameters
    ----------
    x : array of shape (rows, heads, head_dim)
    positions : array of shape (rows,), int32
    cos, sin : arrays of shape (context, head_dim / 2), float32
        Of the angle of each position and pair.
    out : array of the shape and dtype of x, optional
        By default x itself is changed.
    back : bool, default=False
        Turn the other way. That is the gradient: a rotation's transpose is its inverse.
    """
    sign, out = np.float32(-1 if back else 1), x if out is None else out
    if not isinstance(x, np.ndarray):
        arguments = x, out, positions, cos, sin, sign
        arrays.launch(row_kernels.rotate_kernel, (len(x),), row_kernels.BLOCK, *arguments)
        return
    half = x.shape[2] // 2
    cos, sin = cos[positions][:, None], (sign * sin)[positions][:, None]
    left, right = x[:, :, :half], x[:, :, half:]
    turned_left = left * cos - right * sin
    out[:, :, half:] = right * cos + left * sin
    out[:, :, :half] = turned_left


def square_relu(x):
    """y = max(x, 0)²."""
    if isinstance(x, np.ndarray):
        y = np.maximum(x, 0)
        y *= y
        return y
    y = arrays.module_of(x).empty(x.shape, x.dtype)
    _launch_numbers(row_kernels.square_relu_kernel, x.size, x.reshape(-1), y.reshape(-1))
    return y


def square_relu_grad(dy, x):
    """dx = 2 · max(x, 0) · dy."""
    if isinstance(x, np.ndarray):
        dx = np.maximum(x, 0)
        dx *= dy
        dx *= 2
        return dx
    dx = arrays.module_of(x).empty(x.shape, x.dtype)
    flat = dy.reshape(-1), x.reshape(-1), dx.reshape(-1)
    _launch_numbers(row_kernels.square_relu_grad_kernel, x.size, *flat)
    return dx


def _launch_rows(kernel, x, *args):
    grid = (ceil_div(len(x), row_kernels.ROWS),)
    arrays.launch(kernel, grid, row_kernels.BLOCK, x, *args)


def _launch_numbers(kernel, number, *args):
    grid = (ceil_div(number, row_kernels.THREADS * row_kernels.EACH),)
    arrays.launch(kernel, grid, (row_kernels.THREADS,), *args)


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
