"""The floating-point operations of a launch, counted as a traced kernel executes them.

One operation of one thread that is active counts one, under its kind (add, mul, exp, ...), the
type that it is computed in, and its line. A subtraction is an add. A sum with a product among its
two operands, as in `acc += a * b`, is one fma of both, as the compilers make it; what they
contract beyond one expression changes the kinds, but not add + mul + 2 fma.

Integers, conversions, complex numbers and what atomics add are not counted.
"""

from collections import Counter
from functools import cached_property

import numpy as np

from .dtypes import result_dtype
from .intrinsics import CONSTANT_INTRINSICS
from .lanes import ALL, ByMask
from .mathematics import BUILTINS, HALF, MATH, NUMPY_FUNCTIONS

# These choose a number, flip its sign or drop its fraction; FLOPs are those that compute one.
FREE = {"compare", "max", "min", "neg", "abs", "copysign", "ceil", "floor", "rint", "trunc"}
FLOPS = {"fma": 2} | dict.fromkeys(FREE, 0)  # of one operation; 1 of any other kind

COMPARISONS = """isfinite isinf isnan heq hge hgt hle hlt hne equal greater greater_equal less
    less_equal logical_and logical_not logical_or logical_xor not_equal""".split()
KINDS = {name: "compare" for name in COMPARISONS}
KINDS |= {"fabs": "abs", "maximum": "max", "minimum": "min", "sub": "add"}
KINDS |= {"fmax": "max", "fmin": "min", "divide": "div", "true_divide": "div", "conjugate": "neg"}


def kinds_of_functions():
    """Return {id(function): kind} of the functions of floats that kernels call."""
    kinds = {}
    for table in (MATH, NUMPY_FUNCTIONS):
        kinds |= {f: name.replace("arc", "a") for name, f in table.items() if callable(f)}
    kinds |= {BUILTINS[name]: name for name in ("abs", "max", "min", "round")}
    kinds |= {CONSTANT_INTRINSICS[name]: name for name in ("cbrt", "fma")}
    kinds |= {f: name if name in KINDS else name[1:] for name, f in HALF.items()}
    return {id(f): KINDS.get(kind, kind) for f, kind in kinds.items()}


FUNCTIONS = kinds_of_functions()


class FlopMeter:
    """Counts the operations of one launch; the rewritten kernel calls it (see transform.py)."""

    def __init__(self):
        self.totals = Counter()  # (kind, dtype, line) -> operations

    def start_launch(self, lanes, power):
        self.lanes = lanes
        self.functions = {**FUNCTIONS, id(power): "pow"}

    def start_batch(self):
        self.active = ByMask(self.active_threads)

    def active_threads(self, mask):
        threads = self.lanes.num_threads * self.lanes.num_blocks
        return threads if mask is ALL else int(np.count_nonzero(mask)) * (threads // mask.size)

    def add(self, kind, dtype, line, times=1):
        if dtype is not None and dtype.kind == "f":
            self.totals[kind, dtype, line] += times * self.active(self.lanes.mask)

    def count(self, kind, line, result):
        """Count an operation, by the type of its result, which is returned."""
        self.add(kind, getattr(result, "dtype", None), line)
        return result

    def count_fma(self, line, result, product):
        """Count a sum of a product and something: an fma if both are of one type."""
        if product.dtype == result.dtype:
            self.add("fma", result.dtype, line)
        else:
            self.add("mul", product.dtype, line)
            self.add("add", result.dtype, line)
        return result

    def count_compare(self, line, result, *operands):
        """Count a comparison, by the type of its operands."""
        if all(hasattr(x, "dtype") for x in operands):
            self.add("compare", result_dtype(np.add, [x.dtype for x in operands]), line)
        return result

    def count_call(self, line, function, *arguments, **keywords):
        """Call a function; count it if it is one of floats."""
        result = function(*arguments, **keywords)
        kind = self.functions.get(id(function))
        if kind == "compare":
            return self.count_compare(line, result, *arguments)
        if kind is not None:
            values = arguments[0] if isinstance(arguments[0], tuple) else arguments
            times = len(values) - 1 if kind in ("max", "min") else 1
            self.add(kind, getattr(result, "dtype", None), line, times)
        return result


class Flops:
    """The floating-point operations of one launch.

    Parameters
    ----------
    operations : dict of (kind, dtype, line) to int
        How often a thread did what, in which type, at which line.
    """

    def __init__(self, operations):
        self.operations = {(k, str(dtype), line): n for (k, dtype, line), n in operations.items()}

    @cached_property
    def total(self):
        """FLOPs: an fma is two, a choice none (`FREE`), any other operation, exp too, one."""
        return sum(self._sums(1, FLOPS).values())

    @cached_property
    def by_kind(self):
        """{kind: operations}, every kind of them, an fma as one."""
        return self._sums(0)

    @cached_property
    def by_dtype(self):
        """{dtype name: FLOPs}."""
        return self._sums(1, FLOPS)

    @cached_property
    def by_line(self):
        """{line of the source: FLOPs}."""
        return dict(sorted(self._sums(2, FLOPS).items()))

    def of(self, dtype):
        """The operations in one type."""
        name = np.dtype(dtype).name
        return Flops({key: n for key, n in self.operations.items() if key[1] == name})

    def _sums(self, part, weights=None):
        sums = Counter()
        for key, n in self.operations.items():
            sums[key[part]] += n if weights is None else n * weights.get(key[0], 1)
        return dict(sums)

    def table(self):
        """Return head and rows: the operations of each kind, and the FLOPs, by type."""
        kinds = sorted(self.by_kind, key=lambda kind: (kind in FREE, -self.by_kind[kind]))
        rows = []
        for dtype, flops in self.by_dtype.items():
            counted = self.of(dtype).by_kind
            rows.append([dtype, *(counted.get(kind, 0) for kind in kinds), flops])
        return ["type", *kinds, "FLOPs"], rows

    def __repr__(self):
        return f"<{self.total:,} FLOPs: {self.by_kind}>"
