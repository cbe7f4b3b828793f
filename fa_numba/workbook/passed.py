"""The learner's own answers in a lesson: a function or kernel of an exercise once it is passed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from fa_numba.workbook import progress
from fa_numba.workbook.catalog import find_one


def passed(name: str, attribute: str, root: Path | None = None):
    """What the learner has written, if the exercise is passed.

    Parameters
    ----------
    name : str
        Of an exercise, such as ``"ex17a"``.
    attribute : str
        The name of a function or kernel in its file.
    root : path, optional
        The checkout; by default the one around the working directory.

    Returns
    -------
    object or None
        None as long as the exercise is not passed; also after a change that was not graded yet.
    """
    exercise = find_one(name, root)
    return _attribute(exercise, attribute) if progress.is_passed(exercise) else None


def given(name: str, attribute: str, root: Path | None = None):
    """What an exercise brings along, such as the kernel with a bug in it, from the learner's file.

    Parameters
    ----------
    name : str
        Of an exercise, such as ``"ex05a"``.
    attribute : str
        The name of a function or kernel in its file.
    root : path, optional
        The checkout; by default the one around the working directory.

    Returns
    -------
    object
    """
    return _attribute(find_one(name, root), attribute)


def _attribute(exercise, attribute):
    spec = importlib.util.spec_from_file_location(exercise.name, exercise.stub)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, attribute)
