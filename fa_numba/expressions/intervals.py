"""Which values can an expression have, when its variables lie in intervals?

The answer contains every value that it has, and may contain more: x - x for x in [0, 1] gives
[-1, 1]. So a mask that is surely true, or surely false, in a tile is known without a look at the
pairs in it; "maybe" costs time and never an error. (Moore, Interval Analysis, 1966.)

A number's interval is a pair (low, high), a truth value's a pair (may be false, may be true). The
ends are arrays, with an element for each tile. Integers are exact, in int64; floats are computed in
float64 and then widened by more than the error of float32, in which a kernel computes them.
"""

from __future__ import annotations

import numpy as np

from fa_numba.expressions import nodes
from fa_numba.expressions.nodes import described
from fa_numba.expressions.ranges import Ranges

INT32 = np.iinfo(np.int32)
WIDER = 2.0**-18  # relative; float32's functions are right to a few units of 2**-24
SMALLEST = 2.0**-126
MOST_ROWS = 16  # of an array with several ranges, that are looked at one by one


class Intervals:
    """Intervals of expressions, for some variables and arrays.

    Parameters
    ----------
    variables : dict of str to (low, high)
        Each end a number or an array; they are broadcast.
    arrays : list of ndarray or None
        The user's arguments, None for numbers.
    name : str
        "mask" or "score", for errors.
    first : int, default=0
        The number of its first argument, for errors.
    """

    def __init__(self, variables, arrays=(), name="mask", first=0):
        self.variables, self.arrays, self.name, self.first = variables, arrays, name, first
        self._ranges = {}  # of arrays along the axes that were asked for

    def of(self, node):
        """The interval of an expression."""
        found = {}
        for x in nodes.walk(node):
            with np.errstate(all="ignore"):
                found[x] = self._one(x, [found[y] for y in nodes.children(x)])
        return found[node]

    def truth(self, node):
        """(may be false, may be true) of an expression, a number as whether it is not 0."""
        return self.of(nodes.as_bool(node))

    def _one(self, node, args):
        op = node.op
        if op == "const":
            (value,) = node.args
            return (not value, value) if node.kind == "bool" else (value, value)
        if op == "var":
            return self.variables[node.args[0]]
        if op == "load":
            return self._load(node, args)
        if op == "where":
            return self._where(node, *args)
        interval = getattr(self, f"_{op}")(node, *args)
        if node.kind == "int":
            self._fits(node, interval)
        elif node.kind == "float" and op not in ("neg", "abs", "min", "max", "copysign"):
            interval = _wider(*interval)
        return interval

    def _fits(self, node, interval):
        low, high = np.min(interval[0]), np.max(interval[1])
        if low < INT32.min or high > INT32.max:
            raise ValueError(
                f"{self.name} must compute with integers of 32 bits, got {described(node)} from "
                f"{low} to {high}"
            )

    # --- loads

    def _load(self, node, args):
        position, x = node.args[0], self.arrays[node.args[0]]
        self.require_indices(node, x.shape, args)
        ranged = [i for i, (low, high) in enumerate(args) if np.any(np.not_equal(low, high))]
        if not ranged:
            value = x[tuple(np.broadcast_arrays(*(low for low, _ in args)))]
            low = high = value
        elif len(ranged) == 1:
            (axis,) = ranged
            rows = [low for i, (low, _) in enumerate(args) if i != axis]
            low, high = self._along(position, axis).over(rows, *map(np.asarray, args[axis]))
        else:
            low, high = self._of_rows(position, ranged, args)
        if node.kind == "bool":
            return np.logical_not(low), np.asarray(high, bool)
        if node.kind == "int":
            return np.asarray(low, np.int64), np.asarray(high, np.int64)
        return np.asarray(low, np.float64), np.asarray(high, np.float64)

    def _along(self, position, axis):
        if (position, axis) not in self._ranges:
            x = np.moveaxis(self.arrays[position], axis, -1)
            self._ranges[position, axis] = Ranges(x)
        return self._ranges[position, axis]

    def _of_rows(self, position, ranged, args):
        """Of an array with several ranges: row by row where they are few, else the whole array."""
        x, (*others, last) = self.arrays[position], ranged
        spans = [int(np.max(args[axis][1] - args[axis][0])) + 1 for axis in others]
        if np.prod(spans) > MOST_ROWS:
            return x.min(), x.max()
        found, table = [], self._along(position, last)
        for steps in np.ndindex(*spans):
            row = dict(enumerate(args))
            for axis, step in zip(others, steps, strict=True):
                at = np.minimum(args[axis][0] + step, args[axis][1])
                row[axis] = at, at
            rows = [low for axis, (low, _) in row.items() if axis != last]
            found.append(table.over(rows, *map(np.asarray, args[last])))
        lows, highs = zip(*found, strict=True)
        return _least(lows), _most(highs)

    def require_indices(self, node, shape, indices):
        """Raise unless an array of this shape has all these indices, the intervals of a load."""
        for axis, (low, high) in enumerate(indices):
            if np.min(low) < 0 or np.max(high) >= shape[axis]:
                raise ValueError(
                    f"{self.name}_args[{node.args[0] - self.first}] must have more than "
                    f"{np.max(high)} elements along axis {axis}, and its index be 0 or more, got "
                    f"{shape[axis]} and an index from {np.min(low)} to {np.max(high)}: "
                    f"{described(node)}"
                )

    def _where(self, node, condition, x, y):
        may_not, may = condition
        if node.kind == "bool":
            return (may & x[0]) | (may_not & y[0]), (may & x[1]) | (may_not & y[1])
        low = np.where(may, np.where(may_not, np.minimum(x[0], y[0]), x[0]), y[0])
        high = np.where(may, np.where(may_not, np.maximum(x[1], y[1]), x[1]), y[1])
        return low, high

    # --- truth values

    def _not(self, node, x):
        return x[1], x[0]

    def _and(self, node, x, y):
        if node.kind == "bool":
            return x[0] | y[0], x[1] & y[1]
        low, high = _of_bits(np.bitwise_and, x, y)
        for a in (x, y):
            natural = np.asarray(a[0]) >= 0
            low, high = (
                np.where(natural, np.maximum(low, 0), low),
                np.where(natural, np.minimum(high, a[1]), high),
            )
        return low, high

    def _or(self, node, x, y):
        if node.kind == "bool":
            return x[0] & y[0], x[1] | y[1]
        low, high = _of_bits(np.bitwise_or, x, y)
        natural = (np.asarray(x[0]) >= 0) & (np.asarray(y[0]) >= 0)
        return np.where(natural, np.maximum(low, np.maximum(x[0], y[0])), low), high

    def _xor(self, node, x, y):
        return _of_bits(np.bitwise_xor, x, y)

    def _lt(self, node, x, y):
        return np.greater_equal(x[1], y[0]), np.less(x[0], y[1])

    def _le(self, node, x, y):
        return np.greater(x[1], y[0]), np.less_equal(x[0], y[1])

    def _eq(self, node, x, y):
        meet = np.less_equal(x[0], y[1]) & np.less_equal(y[0], x[1])
        same = np.equal(x[0], x[1]) & np.equal(y[0], y[1]) & np.equal(x[0], y[0])
        return ~same, meet

    def _ne(self, node, x, y):
        may_not, may = self._eq(node, x, y)
        return may, may_not

    # --- numbers

    def _add(self, node, x, y):
        return np.add(x[0], y[0]), np.add(x[1], y[1])

    def _sub(self, node, x, y):
        return np.subtract(x[0], y[1]), np.subtract(x[1], y[0])

    def _neg(self, node, x):
        return np.negative(x[1]), np.negative(x[0])

    def _mul(self, node, x, y):
        ends = [np.multiply(a, b) for a in x for b in y]
        if node.kind == "float":  # 0 times infinity
            ends = [np.where(np.isnan(e), 0.0, e) for e in ends]
        return _least(ends), _most(ends)

    def _div(self, node, x, y):
        zero = (np.asarray(y[0]) <= 0) & (np.asarray(y[1]) >= 0)
        ends = [np.divide(a, b) for a in x for b in y]
        unknown = zero | np.any([np.isnan(e) for e in np.broadcast_arrays(*ends)], axis=0)
        return np.where(unknown, -np.inf, _least(ends)), np.where(unknown, np.inf, _most(ends))

    def _floordiv(self, node, x, y):
        self._not_zero(node, y)
        ends = [np.floor_divide(a, b) for a in x for b in y]
        return _least(ends), _most(ends)

    def _mod(self, node, x, y):
        self._not_zero(node, y)
        one = np.equal(y[0], y[1])  # divisor
        quotients = [np.floor_divide(a, y[0]) for a in x]
        one &= np.equal(*quotients)  # the same multiple of it below
        low = np.where(one, np.minimum(*(np.mod(a, y[0]) for a in x)), np.minimum(y[0] + 1, 0))
        high = np.where(one, np.maximum(*(np.mod(a, y[0]) for a in x)), np.maximum(y[1] - 1, 0))
        natural = np.asarray(x[0]) >= 0  # a number below the divisor is its own remainder
        return low, np.where(natural & (np.asarray(y[0]) > 0), np.minimum(high, x[1]), high)

    def _not_zero(self, node, y):
        if np.any((np.asarray(y[0]) <= 0) & (np.asarray(y[1]) >= 0)):
            raise ValueError(
                f"{self.name} must not divide by 0, got a divisor from {np.min(y[0])} to "
                f"{np.max(y[1])}: {described(node)}"
            )

    def _lshift(self, node, x, y):
        self._a_shift(node, y)
        ends = [np.left_shift(a, b) for a in map(np.int64, x) for b in y]
        return _least(ends), _most(ends)

    def _rshift(self, node, x, y):
        self._a_shift(node, y)
        ends = [np.right_shift(a, b) for a in map(np.int64, x) for b in y]
        return _least(ends), _most(ends)

    def _a_shift(self, node, y):
        if np.min(y[0]) < 0 or np.max(y[1]) > 31:
            raise ValueError(
                f"{self.name} must shift by 0 to 31 bits, got {np.min(y[0])} to {np.max(y[1])}: "
                f"{described(node)}"
            )

    def _abs(self, node, x):
        ends = np.abs(x[0]), np.abs(x[1])
        zero = (np.asarray(x[0]) <= 0) & (np.asarray(x[1]) >= 0)
        return np.where(zero, 0, np.minimum(*ends)), np.maximum(*ends)

    def _min(self, node, x, y):
        return np.minimum(x[0], y[0]), np.minimum(x[1], y[1])

    def _max(self, node, x, y):
        return np.maximum(x[0], y[0]), np.maximum(x[1], y[1])

    def _float(self, node, x):
        return tuple(np.asarray(end, np.float64) for end in x)

    def _exp(self, node, x):
        return np.exp(x[0]), np.exp(x[1])

    def _tanh(self, node, x):
        return np.tanh(x[0]), np.tanh(x[1])

    def _log(self, node, x):
        return self._from_zero(np.log, x)

    def _sqrt(self, node, x):
        return self._from_zero(np.sqrt, x)

    def _from_zero(self, of, x):
        """Below 0 the value is NaN, of which nothing is known."""
        low, high = (of(np.maximum(end, 0.0)) for end in x)
        nan = np.asarray(x[0]) < 0
        return np.where(nan, -np.inf, low), np.where(nan, np.inf, high)

    def _copysign(self, node, x, y):
        most = np.maximum(np.abs(x[0]), np.abs(x[1]))
        return np.negative(most), most


def _least(ends):
    return np.minimum.reduce(np.broadcast_arrays(*ends))


def _most(ends):
    return np.maximum.reduce(np.broadcast_arrays(*ends))


def _of_bits(of, x, y):
    """Bits above the highest one in which the ends of an interval differ are those of both ends."""
    ends = x0, x1, y0, y1 = np.broadcast_arrays(*map(np.int64, (*x, *y)))
    differ = (x0 ^ x1) | (y0 ^ y1)
    of_any_sign = differ < 0
    differ = np.where(
        of_any_sign, np.maximum.reduce([np.maximum(end, ~end) for end in ends]), differ
    )
    ones = (np.int64(1) << np.frexp(differ.astype(np.float64))[1]) - 1
    known = of(x0, y0) & ~ones
    return np.where(of_any_sign, ~ones, known), np.where(of_any_sign, ones, known | ones)


def _wider(low, high):
    """The interval with room for the errors of float32, which also flushes tiny numbers to 0."""
    by = WIDER * np.maximum(np.abs(low), np.abs(high)) + SMALLEST
    by = np.where(np.isfinite(by), by, 0.0)
    nan = np.isnan(low) | np.isnan(high)
    return np.where(nan, -np.inf, low - by), np.where(nan, np.inf, high + by)
