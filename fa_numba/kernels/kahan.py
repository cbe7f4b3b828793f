"""Kahan's sum, for sums of thousands of terms: its error does not grow with their number.

Three more operations a term. A sum that becomes infinite ends as NaN.

Paper: Kahan 1965, Further remarks on reducing truncation errors, Communications of the ACM 8(1).
"""

from numba import cuda


@cuda.jit(device=True, inline="always")
def kahan_add(total, rounded_up, x):
    """Add x to total, and take off it what rounding has added to the total before.

    Both begin as 0; returned are the new two.
    """
    x -= rounded_up
    new_total = total + x
    return new_total, (new_total - total) - x
