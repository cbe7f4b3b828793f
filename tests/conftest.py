"""Fixtures of the tests."""

import numpy as np
import pytest

from fa_numba import simt


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def checked():
    """Check the launches of the package's own functions for races and uninitialised reads."""
    with simt.options(package=True):
        yield
