"""Fixtures of the tests."""

import gc

import numpy as np
import pytest

from fa_numba import simt


def pytest_collection_finish():
    """Modules and test cases stay: Python's garbage collector need not look through them again.

    Compiling a kernel makes enough objects for it to do so often. That is an eighth of the time.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def checked():
    """Check the launches of the package's own functions for races and uninitialised reads."""
    with simt.options(package=True):
        yield
