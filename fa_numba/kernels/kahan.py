"""Kahan's sum, for sums of thousands of terms: its error does not grow with their number.

It costs three more operations per term. A sum that overflows ends as NaN.

Paper: Kahan 1965, Further remarks on reducing truncation errors, Communications of the ACM 8(1).
"""

from numba import cuda


@cuda.jit(device=True, inline="always")
def kahan_add(total, rounded_up, x):
    """Add x to total, minus the amount that rounding added to total before.

    Returns the new (total, rounded_up); both start at 0.
    """
    x -= rounded_up
    new_total = total + x
    return new_total, (new_total - total) - x
