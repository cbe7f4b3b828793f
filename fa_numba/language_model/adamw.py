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
PIECE = 2**16  # numbers that NumPy works on at a time: they fit the processor's cache
NUM_NUMBERS = 6


def numbers_of(step, recipe):
    """The numbers that a step needs.

    Parameters
    ----------
    step : int
        Number of steps before this one.
    recipe : Recipe

    Returns
    -------
    array of shape (NUM_NUMBERS,), float32
        β₁, β₂, rate / (1 − β₁ᵗ), 1 / (1 − β₂ᵗ), 1 − rate · weight_decay, clip.
    """
    rate = recipe.learning_rate_at(step)
    unbias1, unbias2 = (1 / (1 - beta ** (step + 1)) for beta in (recipe.beta1, recipe.beta2))
    kept = 1 - rate * recipe.weight_decay
    numbers = recipe.beta1, recipe.beta2, rate * unbias1, unbias2, kept, recipe.clip
    return np.array(numbers, np.float32)


def update(weights, averages, squares, grads, numbers):
    """Update the weights and the two averages in place.

    Parameters
    ----------
    weights, averages, squares, grads : arrays of shape (num_weights,), float32
        `grads` is used up.
    numbers : array of shape (NUM_NUMBERS,), float32
        As from `numbers_of`, of the library of the weights.
    """
    if not isinstance(weights, np.ndarray):
        update_by_kernels(weights, averages, squares, grads, numbers)
        return
    keep1, keep2, rate, unbias, kept, clip = numbers
    norm = np.sqrt(np.dot(grads, grads))
    factor = np.minimum(np.float32(1), clip / (norm + EPSILON))
    for start in range(0, len(weights), PIECE):
        w, m, s, g = (x[start : start + PIECE] for x in (weights, averages, squares, grads))
        g *= factor
        m += (1 - keep1) * (g - m)
        g *= g
        s += (1 - keep2) * (g - s)
        w *= kept
        w -= rate * m / (np.sqrt(s * unbias) + EPSILON)


def update_by_kernels(weights, averages, squares, grads, numbers):
    """`update`, by two kernels, which do not wait for the norm of the gradients."""
    parts = arrays.module_of(grads).empty(row_kernels.PARTS, np.float32)
    grid, block = (row_kernels.PARTS,), (row_kernels.THREADS,)
    arrays.launch(row_kernels.sum_of_squares_kernel, grid, block, grads, parts)
    arguments = weights, averages, squares, grads, parts.sum().reshape(1), numbers, EPSILON
    grid = (ceil_div(len(weights), row_kernels.THREADS),)
    arrays.launch(row_kernels.adamw_kernel, grid, block, *arguments)
