"""Fixtures of the tests."""

import gc
import os
import re

# One thread of BLAS for each of many workers: with one per core, 16 workers take twice the time.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest

from fa_numba import simt

# Tests of ten seconds and more. They begin first, so that no worker waits at the end for one.
LONG = re.compile(
    r"test_(wrong_answers|exercises)\.py|test_notebooks\.py::test_(runs|every_exercise)"
    r"|test_classroom\.py::test_(students|a_hanging)|test_features\.py::test_the_page"
    r"|test_(handout|hostile_answers|tour)\.py"
)


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: not LONG.search(item.nodeid))


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
