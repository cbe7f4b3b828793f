"""Atomics whose results are used: every thread finds what the threads before it have left."""

import numpy as np
import pytest

from numba_cuda_simulator.atomics import OTHERS, UFUNCS, in_turns

BITS = "and_", "or_", "xor"
INTEGERS = "int32", "uint32", "int64"
CASES = [
    (name, dtype)
    for name in (*UFUNCS, *OTHERS)
    for dtype in (("uint32",) if name in ("inc", "dec") else (*INTEGERS, "float32", "float64"))
    if not (name in BITS and dtype.startswith("float"))
]


@pytest.mark.parametrize("addresses", [1, 3, 300])
@pytest.mark.parametrize("name, dtype", CASES)
def test_results(name, dtype, addresses):
    """Few addresses are gone through one by one, many by turns: both as a plain loop does it."""
    rng = np.random.default_rng(0)
    places = rng.integers(0, addresses, 400)
    values = rng.integers(0, 2**31, 400).astype(dtype)  # sums of int32 wrap around
    memory = rng.integers(0, 2**31, addresses).astype(dtype)
    step = UFUNCS.get(name) or OTHERS[name]
    expected, found = memory.copy(), []
    with np.errstate(all="ignore"):
        for place, value in zip(places, values, strict=True):
            found.append(expected[place])
            one = slice(place, place + 1)
            expected[one] = step(expected[one], values.dtype.type(value))
        old = in_turns(memory, places, values, step)
    np.testing.assert_array_equal(old, np.array(found, dtype))
    np.testing.assert_array_equal(memory, expected)


def test_nobody():
    assert in_turns(np.zeros(1), np.zeros(0, int), np.zeros(0), np.add).shape == (0,)
