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
    xp, f = arrays.module_of(weights), np.float32
    rate = recipe.learning_rate_at(step)
    rate_of_averages = f(rate / (1 - recipe.beta1 ** (step + 1)))
    unbias_squares = f(1 / (1 - recipe.beta2 ** (step + 1)))
    kept = f(1 - rate * recipe.weight_decay)
    norm = xp.sqrt(xp.dot(grads, grads))
    factor = xp.minimum(f(1), f(recipe.clip) / (norm + EPSILON))
    keep1, keep2 = f(recipe.beta1), f(recipe.beta2)
    if xp is not np:
        factor = factor.reshape(1)
        numbers = factor, keep1, keep2, rate_of_averages, unbias_squares, kept, EPSILON
        grid, block = (ceil_div(len(weights), row_kernels.THREADS),), (row_kernels.THREADS,)
        state = weights, averages, squares, grads
        arrays.launch(row_kernels.adamw_kernel, grid, block, *state, *numbers)
        return
    for start in range(0, len(weights), PIECE):
        w, m, s, g = (x[start : start + PIECE] for x in (weights, averages, squares, grads))
        g *= factor
        m += (1 - keep1) * (g - m)
        g *= g
        s += (1 - keep2) * (g - s)
        w *= kept
        w -= rate_of_averages * m / (np.sqrt(s * unbias_squares) + EPSILON)
