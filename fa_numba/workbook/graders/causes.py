"""A failed check that says why, so that the report can count the checks that one mistake breaks."""

import contextlib

import numpy as np

diagnosing = []  # not empty while a grader calls the answer only to explain a failure


@contextlib.contextmanager
def diagnosis():
    """The calls and launches in here are no part of the check: they look for its cause."""
    diagnosing.append(True)
    try:
        yield
    finally:
        diagnosing.pop()


class Wrong(AssertionError):
    """A wrong answer, with its likely causes.

    Attributes
    ----------
    causes : list of str
        Sentences, the likeliest first. Each explains this failure by itself.
    where : str
        The first wrong place, such as ``"out[1, 0] (query 1, in tile 0)"``.
    """

    def __init__(self, message, *, causes=(), where="", wrong=None, axes=()):
        """`wrong` are all wrong places, a mask; `axes` are words for its axes."""
        said = "" if wrong is None else only_in(wrong, axes)
        stop = "." if said and message.rstrip()[-1:].isalnum() else ""
        super().__init__(f"{message.rstrip()}{stop} {said}".rstrip())
        self.causes = [cause for cause in causes if cause] or [said] * bool(said)
        self.where = where


def only_in(wrong, axes):
    """A sentence on the part of an array that has all wrong places; "" if they are all over it.

    `axes` has a word for each axis: "head", "row".
    """
    parts = []
    for axis, name in enumerate(axes):
        others = tuple(i for i in range(wrong.ndim) if i != axis)
        places = np.flatnonzero(wrong.any(axis=others))
        first, last, length = int(places[0]), int(places[-1]), wrong.shape[axis]
        if len(places) == length or last - first + 1 > len(places):
            continue
        if first == last:
            parts.append(f"{name} {first}")
        elif last == length - 1:
            parts.append(f"{name} {first} and later")
        else:
            names = f"{name[:-1]}ies" if name.endswith("ry") else f"{name}s"  # queries, rows
            parts.append(f"{names} {first} to {last}")
    return f"Wrong only in {', '.join(parts)}." if parts else ""
