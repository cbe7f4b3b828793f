"""AdamW, on all weights at once: they are one array.

    g = gradient · min(1, clip / its norm)
    averages += (1 − β₁) (g − averages)          squares += (1 − β₂) (g² − squares)
    weights −= rate · (averages / (1 − β₁ᵗ) / (√(squares / (1 − β₂ᵗ)) + ε) + weight_decay · weights)

Paper: Loshchilov and Hutter 2019, arXiv:1711.05101, Algorithm 2.
"""

import numpy as np

from fa_numba.language_model import row_kernels
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import ceil_div

EPSILON = np.float32(1e-8)  # for weights whose gradients were all 0
PIECE = 2**16  # numbers that NumPy works on at a time, so that they stay in the processor's cache


def update(weights, averages, squares, grads, step, recipe):
    """Update the weights and the two averages in place.

    Parameters
    ----------
    weights, averages, squares, grads : arrays of shape (num_weights,), float32
        `grads` is used up.
    step : int
        Number of steps before this one.
    recipe : Recipe
    """
    if not isinstance(weights, np.ndarray):
        update_by_kernel(weights, averages, squares, grads, step, recipe)
        return
    factor = _clipping_factor(grads, recipe)
    keep1, keep2, rate, unbias, kept = _numbers(step, recipe)
    for start in range(0, len(weights), PIECE):
        w, m, s, g = (x[start : start + PIECE] for x in (weights, averages, squares, grads))
        g *= factor
        m += (1 - keep1) * (g - m)
        g *= g
        s += (1 - keep2) * (g - s)
        w *= kept
        w -= rate * m / (np.sqrt(s * unbias) + EPSILON)


def update_by_kernel(weights, averages, squares, grads, step, recipe):
    """`update`, by one kernel, which does not wait for the norm of the gradients."""
    grid, block = (ceil_div(len(weights), row_kernels.THREADS),), (row_kernels.THREADS,)
    arguments = weights, averages, squares, grads, _clipping_factor(grads, recipe).reshape(1)
    arguments += (*_numbers(step, recipe), EPSILON)
    arrays.launch(row_kernels.adamw_kernel, grid, block, *arguments)


def _clipping_factor(grads, recipe):
    """min(1, clip / norm), in an array of shape ()."""
    xp = arrays.module_of(grads)
    norm = xp.sqrt(xp.dot(grads, grads))
    return xp.minimum(np.float32(1), np.float32(recipe.clip) / (norm + EPSILON))


def _numbers(step, recipe):
    """β₁, β₂, rate / (1 − β₁ᵗ), 1 / (1 − β₂ᵗ) and 1 − rate · weight_decay."""
    rate = recipe.learning_rate_at(step)
    unbias1, unbias2 = (1 / (1 - beta ** (step + 1)) for beta in (recipe.beta1, recipe.beta2))
    kept = 1 - rate * recipe.weight_decay
    return tuple(map(np.float32, (recipe.beta1, recipe.beta2, rate * unbias1, unbias2, kept)))
