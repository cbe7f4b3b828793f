"""Operators and builtins whose meaning differs from NumPy's, or depends on who runs."""

import operator

import numpy as np

from .dtypes import as_bool, as_one_type, cast, select
from .errors import KernelZeroDivisionError, UnsupportedError, thread_name
from .lanes import ALL, NOBODY, is_member, is_truth, is_value, lane_dtype, like, type_name

OF_TUPLES = {"add": operator.add, "subtract": operator.sub, "multiply": operator.mul}
OF_TUPLES |= {"negative": operator.neg, "positive": operator.pos}


class Operators:
    """The operators of a launch's threads."""

    def __init__(self, lanes):
        self.lanes = lanes

    def not_(self, a):
        return np.logical_not(a)

    def truth(self, value):
        return as_bool(value) if isinstance(value, (np.ndarray, np.generic)) else bool(value)

    def and_values(self, a, b):
        """`a and b` of two values that are there already."""
        if is_truth(a) and is_truth(b):
            return np.logical_and(a, b)
        return self.and_(a, lambda: b)

    def or_values(self, a, b):
        if is_truth(a) and is_truth(b):
            return np.logical_or(a, b)
        return self.or_(a, lambda: b)

    def and_(self, a, b):
        """`a and b`: b is evaluated only for the threads where a holds."""
        if not isinstance(a, np.ndarray):
            return b() if a else a
        yes, no = self.lanes.split(a)
        if yes is NOBODY:
            return a
        value = self.lanes.under(yes, b)
        return value if no is NOBODY else select(self.truth(a), value, a)

    def or_(self, a, b):
        if not isinstance(a, np.ndarray):
            return a if a else b()
        yes, no = self.lanes.split(a)
        if no is NOBODY:
            return a
        value = self.lanes.under(no, b)
        return value if yes is NOBODY else select(self.truth(a), a, value)

    def choose(self, test, yes_thunk, no_thunk, literal, *variables):
        """`a if test else b`: each side is evaluated for its own threads only.

        The result has the type of both sides together, as in Numba; of a side that no thread
        takes, it is known if that is a literal or a variable.
        """
        yes, no = self.lanes.split(test)
        if no is NOBODY:
            result = self.lanes.under(yes, yes_thunk)
        elif yes is NOBODY:
            result = self.lanes.under(no, no_thunk)
        else:
            a, b = self.lanes.under(yes, yes_thunk), self.lanes.under(no, no_thunk)
            if isinstance(a, tuple):
                test = self.truth(test)
                return like(a, [select(test, x, y) for x, y in zip(a, b, strict=True)])
            if hasattr(a, "shares") and type(a) is type(b) and a.shares(b):
                return a.blend_with(b, self.truth(test))
            if is_member(a) and is_member(b):
                return a.blend_with(b, self.truth(test))
            if not (is_value(a) and is_value(b)):
                if a is b:
                    return a
                raise UnsupportedError(f"threads choose between {type_name(a)} and {type_name(b)}")
            result = select(self.truth(test), a, b)
        return self.widened(result, literal, *variables)

    def widened(self, result, literal, *variables):
        """Return one side of a conditional expression in the type of both, as far as is known."""
        if (literal or variables) and isinstance(result, (np.ndarray, np.generic)):
            dtypes = [v.dtype for v in variables if isinstance(v, (np.ndarray, np.generic))]
            wide = np.result_type(result.dtype, *dtypes, *[literal] * bool(literal))
            result = result if result.dtype == wide else cast(result, wide)
        return result

    def member(self, value, container):
        if not isinstance(container, tuple):
            raise UnsupportedError("'in' needs a tuple inside a kernel")
        result = np.False_
        for element in container:
            result = np.logical_or(result, value == element)
        return result

    def same(self, a, b):
        """`a is b`: Numba compares values, of one type; other things are one object or not."""
        if is_truth(a) and is_truth(b):
            return np.equal(a, b)
        if is_value(a) and is_value(b):
            one_type = lane_dtype(a) == lane_dtype(b)
            return np.equal(a, b) if one_type else np.False_
        return a == b if is_member(a) or is_member(b) else np.bool_(a is b)

    def enum_value(self, x):
        """x.value; a member of an IntEnum is its value already."""
        return x if isinstance(x, (np.ndarray, np.generic)) else x.value

    def arithmetic(self, name, *operands):
        """+, - or * of what may be truth values, which count as int64 in Numba."""
        if any(isinstance(x, tuple) for x in operands):  # numba-cuda-mlir's vectors, for one
            return OF_TUPLES[name](*operands)
        operands = [self.number(x) for x in operands]
        return getattr(np, name)(*operands)

    def number(self, value):
        if isinstance(value, (bool, np.bool_)):
            return np.int64(value)
        if isinstance(value, np.ndarray) and value.dtype == bool:
            return value.astype(np.int64)
        return value

    def wide(self, value):
        """Return a number; a float16 as float32, in which Numba computes //, % and **."""
        value = self.number(value)
        return value.astype(np.float32) if value.dtype == np.float16 else value

    def divisible(self, a, b):
        """Return two numbers, of integers the second without a zero."""
        a, b = self.wide(a), self.wide(b)
        return a, self.nonzero(b) if a.dtype.kind in "iu" and b.dtype.kind in "iu" else b

    def floordiv(self, a, b):
        if isinstance(a, tuple):
            raise TypeError("a tuple cannot be divided")
        a, b = self.divisible(a, b)
        return a // b

    def mod(self, a, b):
        if isinstance(a, str):
            raise UnsupportedError("strings cannot be formatted in a kernel")
        a, b = self.divisible(a, b)
        return a % b

    def nonzero(self, divisor):
        """Return a divisor that is safe for masked threads; an active zero raises."""
        zero = divisor == 0
        if not np.any(zero):
            return divisor
        bad = zero if self.lanes.mask is ALL else zero & self.lanes.mask
        if np.any(bad):
            self.lanes.fail(bad, KernelZeroDivisionError, "integer division by zero")
        return select(zero, divisor.dtype.type(1), divisor)

    def power(self, a, b):
        a, b = self.wide(a), self.wide(b)
        if a.dtype.kind == "f" and b.dtype.kind in "iu":
            if not isinstance(b, np.ndarray):
                if b == 2:
                    return a * a
                if b == 3:
                    return a * a * a
            return np.power(a, b.astype(a.dtype))
        if a.dtype.kind in "iu" and b.dtype.kind in "iu":
            if not isinstance(b, np.ndarray) and b == 2 and a.dtype == b.dtype:
                return a * a
            # Numba computes int ** negative int in integers too: 0, unless the base is 1 or -1.
            inverse = select(np.abs(a) == 1, a, a * np.int64(0))
            magnitude = np.power(a, np.maximum(b, 0))
            odd = select(b % np.int64(2) == 0, inverse * inverse, inverse)
            return select(b < 0, odd, magnitude) if np.any(b < 0) else magnitude
        return np.power(a, b)

    def shift_left(self, a, b):
        return np.left_shift(self.number(a), self.number(b))

    def shift_right(self, a, b):
        return np.right_shift(self.number(a), self.number(b))

    def assert_(self, test, message):
        _, failed = self.lanes.split(test)
        if failed is NOBODY:
            return
        thread, block, more = self.lanes.culprit(failed)
        text = message()
        text = f"{text}: " if isinstance(text, str) and text else ""
        raise AssertionError(f"{text}fails in {thread_name(thread, block)}{more}")

    def divmod(self, a, b):
        a, b = self.number(a), self.number(b)
        if b.dtype.kind in "iu" and a.dtype.kind in "iu":
            a, b = as_one_type(a, self.nonzero(b))
        return self.floordiv(a, b), self.mod(a, b)

    def print(self, *values):
        """Print for each active thread, one line each."""
        for v in values:
            if not isinstance(v, str) and not is_value(v):
                raise UnsupportedError(
                    f"print() cannot show {type_name(v)}", hint="Print single numbers."
                )
        active = self.lanes.active().T
        columns = [v if isinstance(v, str) else self.lanes.full(v).T[active] for v in values]
        for i in range(int(active.sum())):
            print(*(c if isinstance(c, str) else c[i] for c in columns))
