"""Products by tiles with several sums in a thread: comparison, loads from shared memory, types."""

import numpy as np

from fa_numba.workbook.graders.causes import Wrong


def matrices(*shapes, seed=0):
    """Standard normal float32 matrices."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape, np.float32) for shape in shapes]


def expect_product(got, a, b, what, *, causes=None):
    """Fail unless got is a @ b; allowed is twice the error of a float32 loop over k.

    Parameters
    ----------
    got : (M, N) array
    a, b : (M, K) and (K, N) arrays
    what : str
        The case, in words.
    causes : function, optional
        Of the wrong places, (number, 2): a list of likely causes.
    """
    want = a.astype(np.float64) @ b.astype(np.float64)
    plain = np.zeros(want.shape, np.float32)
    for k in range(a.shape[1]):
        plain += np.outer(a[:, k], b[k])
    tolerance = 2 * np.abs(plain - want).max() + 1e-6
    wrong = np.argwhere(~(np.abs(got - want) <= tolerance))
    if len(wrong):
        row, col = wrong[0]
        raise Wrong(
            f"{what}: {len(wrong)} of {want.size} elements are wrong, first [{row}, {col}]: want "
            f"{want[row, col]:.6g}, got {got[row, col]:.6g} (allowed error {tolerance:.1e})",
            causes=[] if causes is None else causes(wrong),
            where=f"element [{row}, {col}]",
        )


def shared_loads(trace, *, most, products, rule):
    """Loads from shared memory of a launch; fail if there are too many.

    Parameters
    ----------
    trace : simt.Trace
    most : int
        Allowed loads.
    products : int
        FMAs of the product.
    rule : str
        The statement's budget, in words.

    Returns
    -------
    int
    """
    loads = {name: array.loads for name, array in trace.shared.items()}
    total = sum(loads.values())
    if total > most:
        each = ", ".join(f"{name} {number:,}" for name, number in loads.items())
        name = max(loads, key=loads.get)
        raise Wrong(
            f"{total:,} loads from shared memory ({each}) for {products:,} FMAs are "
            f"{total / products:.3g} for each FMA, allowed are {most / products:.3g}: {rule}",
            causes=[
                f"{name} is loaded most often: load a number into a register once, and use it for "
                "every product that needs it."
            ],
        )
    assert total, "nothing is loaded from shared memory: the tiles are there for the product"
    return total


def expect_float32(trace):
    """Fail with the lines of a launch that compute in float64."""
    lines = [line for line, number in trace.flops.of("float64").by_line.items() if number]
    if lines:
        numbers = " and ".join(f"line {line}" for line in sorted(lines))
        raise Wrong(
            f"{trace.flops.by_dtype['float64']:,} operations are on float64, in {numbers}",
            causes=[f"the first line that computes in float64 is line {min(lines)}."],
            where=f"line {min(lines)}",
        )
