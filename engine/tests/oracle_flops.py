"""Floating-point operations, counted by the numbers themselves.

In the greenlet oracle each thread computes with single numbers. Here they are floats that note
what is done to them: nothing is rewritten, nothing is broadcast, and nothing knows of masks.
"""

import contextlib
import operator
from collections import Counter
from types import SimpleNamespace
from unittest import mock

import greenlet_oracle
import numpy as np

OPERATORS = {
    "add": "add", "sub": "add", "mul": "mul", "truediv": "div", "floordiv": "floordiv",
    "mod": "mod", "pow": "pow", "neg": "neg", "abs": "abs",
} | {name: "compare" for name in ("lt", "le", "gt", "ge", "eq", "ne")}  # fmt: skip


@contextlib.contextmanager
def counting():
    """Count what the oracle's threads do: yields a Counter of (kind, dtype name).

    A fused operation counts as what it is made of, one mul and one add.
    """
    totals, busy = Counter(), []

    def note(kind, function, *values):
        values = [plain(value) for value in values]
        result = function(*values)
        dtype = np.result_type(*values) if kind == "compare" else result.dtype
        if dtype.kind == "f" and not busy:
            totals[kind, dtype.name] += 1
        return noting(result)

    def plain(value):
        return value.value if isinstance(value, Noting) else value

    def noting(value):
        return Noting(value) if isinstance(value, np.floating) else value

    class Noting:
        """A float; NumPy's own scalars leave what is done with it to the methods added below."""

        __array_ufunc__ = None

        def __init__(self, value):
            self.value, self.dtype = value, value.dtype

        def __array__(self, dtype=None, copy=None):
            return np.asarray(self.value, dtype)

        def __bool__(self):
            return bool(self.value)

    def method(kind, function):
        return lambda self, *other: note(kind, function, self, *other)

    def reflected(kind, function):
        return lambda self, other: note(kind, function, other, self)

    for name, kind in OPERATORS.items():
        function = getattr(operator, name)
        setattr(Noting, f"__{name}__", method(kind, function))
        setattr(Noting, f"__r{name}__", reflected(kind, function))

    def of_two(kind, function):
        def fold(*values):
            result = values[0]
            for value in values[1:]:
                result = note(kind, function, result, value)
            return result

        return fold

    def constant_or_function(name, member):
        if not callable(member):
            return noting(member)
        return lambda *values: note(name, member, *values)

    def quietly(function):
        """What atomics add is not counted: it is done where the memory is."""

        def call(*args):
            busy.append(True)
            result = function(*args)
            busy.pop()
            return result

        return call

    oracle, typed, widened = greenlet_oracle, greenlet_oracle.typed, greenlet_oracle.widened
    members = vars(oracle._MATH).items()
    with (
        mock.patch.object(oracle._CudaModule, "fma", lambda self, a, b, c: a * b + c),
        mock.patch.object(oracle.Memory, "atomic", quietly(oracle.Memory.atomic)),
        mock.patch.multiple(
            oracle,
            typed=lambda value: noting(typed(value)),
            widened=lambda value: noting(widened(value)),
            _BUILTINS=oracle._BUILTINS
            | {"max": of_two("max", np.fmax), "min": of_two("min", np.fmin)},
            _MATH=SimpleNamespace(**{n: constant_or_function(n, member) for n, member in members}),
        ),
    ):
        yield totals
