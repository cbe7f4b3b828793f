"""Numba's errors: nothing raises them here."""


class NumbaError(Exception):
    pass


class NumbaWarning(Warning):
    pass


class NumbaPerformanceWarning(NumbaWarning):
    pass
