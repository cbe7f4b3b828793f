"""The learner's own answers in a lesson: a function or kernel of an exercise once it is passed."""

from __future__ import annotations

import importlib.util
import linecache
import sys
import types
from pathlib import Path

from fa_numba.workbook import progress, stubs
from fa_numba.workbook.catalog import Exercise, find_one


def passed(name: str, attribute: str, root: Path | None = None):
    """The learner's function or kernel `attribute`, if the exercise is passed.

    None as long as it is not passed; also after a change that was not graded yet.
    """
    exercise = find_one(name, root)
    return getattr(load(exercise), attribute) if progress.is_passed(exercise) else None


def given(name: str, attribute: str, root: Path | None = None):
    """A function or kernel that an exercise gives, such as one with a bug, as it was given.

    From the stub as it is generated, whatever the learner has made of it.
    """
    exercise = find_one(name, root)
    text = stubs.read(exercise).stub
    module = types.ModuleType(f"given_{exercise.short}")
    module.__file__ = f"<given {exercise.short}>"
    lines = text.splitlines(keepends=True)
    linecache.cache[module.__file__] = len(text), None, lines, module.__file__  # for its source
    exec(compile(text, module.__file__, "exec"), module.__dict__)
    if not hasattr(module, attribute):
        raise ValueError(f"attribute must be a name that {exercise.short} gives, got {attribute!r}")
    return getattr(module, attribute)


def load(exercise: Exercise, *, ours: bool = False):
    """The learner's file, or our solution, imported anew."""
    name = f"{'our' if ours else 'your'}_{exercise.short}"
    file = exercise.solution if ours else exercise.stub
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # a dataclass in it looks there
    spec.loader.exec_module(module)
    return module
