"""The workbook: exercises, their grader, hints and progress.

from fa_numba.workbook import debrief, grade, hint, reset, show, solution, status

In a notebook, `%load_ext fa_numba.workbook` brings the cell magic `%%trace`.
"""

__all__ = ["debrief", "grade", "hint", "reset", "show", "solution", "status"]


def __getattr__(name):  # on demand, so that `python -m fa_numba.workbook.stubs` starts clean
    if name in __all__:
        from fa_numba.workbook import grader

        return getattr(grader, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(ipython):
    """The hook of `%load_ext fa_numba.workbook`."""
    from fa_numba.microscope import magic

    magic.register(ipython)
