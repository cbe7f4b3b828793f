"""A failed check that says why, so that the report can count the checks that one mistake breaks."""

import contextlib

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

    def __init__(self, message, *, causes=(), where=""):
        super().__init__(message)
        self.causes, self.where = [cause for cause in causes if cause], where
