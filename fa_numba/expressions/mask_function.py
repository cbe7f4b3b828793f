"""A mask with its arguments, in one object that `&`, `|` and `~` combine."""

from __future__ import annotations

import functools
import inspect

import numpy as np


class MaskFunction:
    """A mask for the argument ``mask`` of every function, which then has no ``mask_args``.

    Parameters
    ----------
    function : callable
        ``function(b, h, m, n, *args)``: whether the query at position m sees key n.
    *args : arrays and numbers
        In a call, arrays must be of the library of q.

    Notes
    -----
    ``x & y`` sees what both see, ``x | y`` what one of them sees, ``~x`` what x does not. The other
    side may be a function of (b, h, m, n).
    """

    def __init__(self, function, *args):
        if not callable(function) or isinstance(function, MaskFunction):
            raise TypeError(
                f"function must be a function of b, h, m, n, got {type(function).__name__}"
            )
        functools.update_wrapper(self, function)
        self.function, self.args = function, args

    def __call__(self, b, h, m, n):
        """Whether the query at position m sees key n, for one pair."""
        return self.function(b, h, m, n, *self.args)

    def __repr__(self):
        args = "".join(f", {_short(x)}" for x in self.args)
        name = self.function.__qualname__.removesuffix(".<locals>.<lambda>")
        return f"MaskFunction({name.rpartition('.')[2]}{args})"

    def __and__(self, other):
        return _both(self, other, lambda x, y: np.logical_and(x, y), "&")

    def __or__(self, other):
        return _both(self, other, lambda x, y: np.logical_or(x, y), "|")

    def __rand__(self, other):
        return as_mask_function(other, "&") & self

    def __ror__(self, other):
        return as_mask_function(other, "|") | self

    def __invert__(self):
        sees = self.function

        def not_seen(b, h, m, n, *args):
            return np.logical_not(sees(b, h, m, n, *args))

        return MaskFunction(not_seen, *self.args)


def as_mask_function(x, sign) -> MaskFunction:
    """A side of an operator: a `MaskFunction`, or a function of (b, h, m, n)."""
    if isinstance(x, MaskFunction):
        return x
    if not inspect.isfunction(x):
        raise TypeError(
            f"both sides of {sign} must be masks or functions of b, h, m, n, got {type(x).__name__}"
        )
    return MaskFunction(x)


def written(mask, mask_args) -> tuple:
    """The function and the arguments of a mask as a call was given it."""
    if not isinstance(mask, MaskFunction):
        return mask, mask_args
    if len(mask_args):
        raise ValueError(
            "mask_args must be empty for a mask that has its arguments with it, got "
            f"{len(mask_args)} beside {mask!r}"
        )
    return mask.function, mask.args


def _both(x, y, of, sign):
    y = as_mask_function(y, sign)
    first, second, count = x.function, y.function, len(x.args)

    def sees(b, h, m, n, *args):
        return of(first(b, h, m, n, *args[:count]), second(b, h, m, n, *args[count:]))

    return MaskFunction(sees, *x.args, *y.args)


def _short(x):
    return f"array of shape {x.shape}" if getattr(x, "shape", ()) else repr(x)
