"""Settings of the engine's tests."""

import os
import signal

import pytest

import numba_cuda_simulator as simt
from numba_cuda_simulator import without_numba
from numba_cuda_simulator.without_numba.missing import NameMissingError

os.environ["SIMT_CACHE"] = ""  # what a test compiles is not kept

if not simt.has_gpu():
    simt.enable()  # before a test file is imported that compiles for a signature

# A shell starts `make test &` with Ctrl-C ignored, and so would be every process of the tests.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def engine():
    """The engine is on, and afterwards as it was: with a GPU it need not be."""
    enabled = simt.is_enabled()
    simt.enable()
    yield
    if not enabled:
        simt.disable()


OPTIONAL = {"greenlet", "IPython", "ml_dtypes", "z3"}


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Skip a test file that imports an optional module, itself or by a helper, that is missing."""
    report = yield
    missing = report.call.excinfo and report.call.excinfo.value.__cause__
    if not isinstance(missing, ImportError):
        return report
    name = missing.name or ""
    if without_numba.is_installed() and (
        isinstance(missing, NameMissingError) or name.startswith("numba.")
    ):
        name = "numba"
    if name in OPTIONAL | {"numba"}:
        report.outcome = "skipped"
        report.longrepr = str(collector.path), 1, f"Skipped: needs {name}"
    return report
