"""The ledger of the lesson on safe softmax: limits of exp, accesses, and three unfused kernels."""

import math

import numpy as np

import fa_numba
from fa_numba import simt
from fa_numba.figures.overflow import FORMATS
from fa_numba.workbook.ledgers import ledger_row


def ledger(size, moved):
    """The rows of the ledger.

    Parameters
    ----------
    size, moved : int
        Rows of a square matrix, and the floats that a softmax of three kernels reads and writes for
        it, by the meter.

    Returns
    -------
    list of dict
        claim, our number, verdict.
    """
    half, single = FORMATS["float16"], FORMATS["float32"]
    with np.errstate(over="ignore"):
        stored = np.float16(11.09)
        at_limit, below = np.exp(stored), np.exp(np.nextafter(stored, np.float16(0)))
        first_inf = next(s for s in range(200) if np.isinf(np.exp(np.float32(s))))
    naive, safe = accesses(fa_numba.naive_softmax), accesses(fa_numba.safe_softmax)
    claimed = 5 * size**2 + size
    return [
        ledger_row(
            "the largest float16 number is 65504, below e^12 (001)",
            f"largest {half.largest:.0f}, e^12 = {math.exp(12):,.0f}; e^11.09 = "
            f"{math.exp(11.09):,.0f} is already above. float16 stores 11.09 as {float(stored):g}, "
            f"and its exp is {at_limit}; one step below, {below:g}",
            "true, and 12 is generous",
        ),
        ledger_row(
            "exp is infinite from 89 on, in bfloat16 and float32 (002)",
            f"float32: the first whole number is {first_inf}; both end at "
            f"{FORMATS['bfloat16'].exp_limits[1]:.2f}, since bfloat16 has the exponent bits of "
            "float32",
            "true",
        ),
        ledger_row(
            "float32 is in trouble near e^88, as its largest number is about 1.7e38 (003)",
            f"largest {single.largest:.2e}, twice that; e^88 = {np.exp(np.float32(88)):.2e} is "
            "still finite",
            "right about 88, wrong about the largest number: that is 2^128, less a little",
        ),
        ledger_row(
            "naive softmax scans the row twice (002)",
            f"{naive[0]:g} loads and {naive[1]:g} store per element, metered",
            "true",
        ),
        ledger_row(
            "safe softmax makes 4 memory accesses per element (002)",
            f"{safe[0]:g} loads and {safe[1]:g} store, metered",
            "true",
        ),
        ledger_row(
            "softmax in three unfused steps moves 5L² + L floats (002)",
            f"5L² + 2L: at L = {size} the meter says {moved:,}, not {claimed:,}",
            f"wrong by {moved - claimed}, which is L: sums are written and read",
        ),
        ledger_row(
            "reading L² and writing L² is more than 2.5 times faster (002)",
            f"(5L² + 2L) / 2L² = {moved / (2 * size**2):.3f} at L = {size}, counting bytes alone. "
            f"A kernel that reads the row three times gets {moved / (sum(safe) * size**2):.2f}",
            "true if the row stays on the chip between its passes",
        ),
    ]


def accesses(softmax):
    """Loads and stores per element, by the meter."""
    x = np.zeros((2, 300), np.float32)
    with simt.tracing() as traces:
        softmax(x)
    loads = sum(trace.arrays["x"].loads for trace in traces)
    return loads / x.size, sum(trace.arrays["y"].stores for trace in traces) / x.size
