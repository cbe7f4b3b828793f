"""The workbook: exercises, their grader, hints and progress.

from fa_numba.workbook import debrief, grade, hint, reset, show, solution, status  # the grader
from fa_numba.workbook import mine  # the learner's own kernel, in a lesson's cells
from fa_numba.workbook import answer, guess  # predictions, before and after the meter

In a notebook, `%load_ext fa_numba.workbook` brings the cell magic `%%trace`.
"""

import importlib

GRADER = ["debrief", "grade", "hint", "reset", "show", "solution", "status"]
HOMES = dict.fromkeys(GRADER, "grader") | {"answer": "guesses", "guess": "guesses", "mine": "own"}
__all__ = [*GRADER, "answer", "guess", "mine"]


def __getattr__(name):  # on demand, so that `python -m fa_numba.workbook.stubs` starts clean
    if name in HOMES:
        return getattr(importlib.import_module(f"{__name__}.{HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(ipython):
    """The hook of `%load_ext fa_numba.workbook`."""
    from fa_numba.microscope import magic

    magic.register(ipython)
