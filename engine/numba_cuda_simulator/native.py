"""Operators and functions of the second gear: the engine's rules of types, in machine code.

Numba compiles what these build. The types of results are asked of `dtypes`, as the engine does;
integers wrap around; math functions are NumPy's own loops, so that the last bit is the same too.
What has no rule here is no error: Numba's typing fails, and the engine runs the kernel.
"""

import ctypes
import math

import numpy as np
from llvmlite import ir
from numba import from_dtype, types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

from .dtypes import BITWISE, BOOL, FLOAT64, INT64, SHIFTS, UINT64, as_one_type, result_dtype
from .mathematics import BINARY, UNARY

KNOWN = {np.dtype(code) for code in "?bhilqBHILQfd"}
I64 = ir.IntType(64)
LOOP = "simt_loop."  # begins the name of where the code finds one of NumPy's loops


def dtype_of(type_):
    """Return the NumPy type of a number's Numba type."""
    type_ = types.unliteral(type_)
    if isinstance(type_, types.Boolean):
        return BOOL
    if isinstance(type_, (types.Integer, types.Float)) and np.dtype(type_.name) in KNOWN:
        return np.dtype(type_.name)
    raise TypingError(f"{type_} is no number of the second gear")


def refuse(condition, why):
    if condition:
        raise TypingError(why)


def convert(builder, value, old, new):
    """Build the conversion of a number between two NumPy types; floats to integers are `cast`."""
    if old == new:
        return value
    to = ir.IntType(1) if new == BOOL else ir.IntType(8 * new.itemsize)
    if new.kind == "f":
        to = ir.FloatType() if new.itemsize == 4 else ir.DoubleType()
    if new == BOOL:
        zero = ir.Constant(value.type, 0)
        if old.kind == "f":
            return builder.fcmp_unordered("!=", value, zero)
        return builder.icmp_signed("!=", value, zero)
    if new.kind == "f":
        if old.kind == "f":
            return builder.fpext(value, to) if new.itemsize == 8 else builder.fptrunc(value, to)
        return builder.sitofp(value, to) if old.kind == "i" else builder.uitofp(value, to)
    if old.kind == "f":
        return builder.fptosi(value, to) if new.kind == "i" else builder.fptoui(value, to)
    if old != BOOL and new.itemsize < old.itemsize:
        return builder.trunc(value, to)
    if old != BOOL and new.itemsize == old.itemsize:
        return value
    return builder.sext(value, to) if old.kind == "i" else builder.zext(value, to)


def raise_flag(builder, flags_pointer, bad):
    """Build `if bad: flags[0] = 1`: something that the engine must look at."""
    with builder.if_then(bad, likely=False):
        builder.store(I64(1), flags_pointer)


def flags_of(builder, c):
    """Return where the flag is, from a thread's context."""
    return builder.inttoptr(builder.extract_value(c, 0), I64.as_pointer())


def fits(builder, value, new):
    """Build the test that a float has a value in an integer type."""
    info = np.iinfo(new)
    low, high = float(info.min), float(info.max) + 1.0
    low_test = builder.fcmp_ordered(">=", value, ir.Constant(value.type, low))
    return builder.and_(low_test, builder.fcmp_ordered("<", value, ir.Constant(value.type, high)))


def checked_convert(builder, value, old, new, flags):
    """The same of `convert`; a float beyond an integer type's range raises the flag."""
    if old.kind == "f" and new.kind in "iu":
        good = fits(builder, value, new)
        raise_flag(builder, flags, builder.not_(good))
        value = builder.select(good, value, ir.Constant(value.type, 0.0))
    return convert(builder, value, old, new)


def numba_type(dtype):
    return types.boolean if dtype == BOOL else from_dtype(dtype)


def numbers(count, rule, build, flags=False):
    """Return an intrinsic of so many numbers.

    rule : takes their NumPy types; returns those that they are converted to, and the result's.
    build : takes the builder, the first of those types, the numbers, and before them what `flags`
        asks for: where the flag is. The intrinsic's first parameter is then a thread's context.
    """

    def typed(*given):
        old = list(map(dtype_of, given[flags:]))
        new, result = rule(*old)

        def generate(context, builder, signature, args):
            values = [flags_of(builder, args[0])] if flags else []
            for value, *dtypes in zip(args[flags:], old, new, strict=True):
                values.append(convert(builder, value, *dtypes))
            return build(builder, new[0], *values)

        return numba_type(result)(*given), generate

    def of_one(typing, a):
        return typed(a)

    def of_two(typing, a, b):
        return typed(a, b)

    def of_three(typing, a, b, c):
        return typed(a, b, c)

    return intrinsic((of_one, of_two, of_three)[count + flags - 1])


def operator_rule(ufunc):
    """Return the rule of a ufunc of two numbers, which is the engine's."""

    def rule(x, y):
        dtype, shifts = result_dtype(ufunc, [x, y]), ufunc in SHIFTS
        refuse(
            BOOL in (x, y) and dtype.kind == "f", "the engine decides by where a bool comes from"
        )
        refuse(dtype.kind == "f" and (ufunc in BITWISE or shifts), "bits of a float")
        refuse(shifts and y.kind not in "iu", "a shift by no integer")
        return (dtype, INT64 if shifts else dtype), dtype

    return rule


def operator(ufunc, build):
    return numbers(2, operator_rule(ufunc), build)


def arithmetic(name):
    return lambda builder, dtype, a, b: getattr(builder, "f" * (dtype.kind == "f") + name)(a, b)


def shift(builder, dtype, a, b, left):
    bits = ir.Constant(a.type, 8 * dtype.itemsize)
    inside = builder.icmp_unsigned("<", b, bits)
    amount = builder.select(inside, b, ir.Constant(a.type, 0))
    beyond = ir.Constant(a.type, 0)
    if left:
        shifted = builder.shl(a, amount)
    elif dtype.kind == "u":
        shifted = builder.lshr(a, amount)
    else:
        shifted = builder.ashr(a, amount)
        beyond = builder.ashr(a, ir.Constant(a.type, 8 * dtype.itemsize - 1))
    return builder.select(inside, shifted, beyond)


def divided(want):
    """Return an intrinsic for // or %, of the thread's context and two numbers."""
    ufunc = np.floor_divide if want == "quotient" else np.remainder

    def build(builder, dtype, flags, left, right):
        if dtype.kind == "f":
            return call_loop(builder, ufunc, dtype, [left, right])
        zero, one = ir.Constant(left.type, 0), ir.Constant(left.type, 1)
        nothing = builder.icmp_signed("==", right, zero)
        raise_flag(builder, flags, nothing)
        if dtype.kind == "u":
            right = builder.select(nothing, one, right)
            return (builder.udiv if want == "quotient" else builder.urem)(left, right)
        minus = builder.icmp_signed("==", right, ir.Constant(left.type, -1))
        safe = builder.select(builder.or_(nothing, minus), one, right)
        rest = builder.srem(left, safe)
        opposite = builder.icmp_signed("<", builder.xor(rest, safe), zero)
        moved = builder.and_(opposite, builder.icmp_signed("!=", rest, zero))
        if want == "rest":
            return builder.add(rest, builder.select(moved, safe, zero))
        quotient = builder.sub(builder.sdiv(left, safe), builder.zext(moved, left.type))
        return builder.select(minus, builder.sub(zero, left), quotient)

    return numbers(2, operator_rule(ufunc), build, flags=True)


def compared(builder, dtype, symbol, a, b):
    if dtype.kind == "f":
        return (builder.fcmp_unordered if symbol == "!=" else builder.fcmp_ordered)(symbol, a, b)
    return (builder.icmp_signed if dtype.kind == "i" else builder.icmp_unsigned)(symbol, a, b)


def comparison(symbol):
    def rule(x, y):
        one, other = (v.dtype for v in as_one_type(np.zeros(1, x), np.zeros(1, y)))
        return (np.result_type(one, other),) * 2, BOOL

    return numbers(2, rule, lambda builder, dtype, a, b: compared(builder, dtype, symbol, a, b))


def extreme(symbol):
    """Return max or min of two numbers; of a number and NaN it is the number."""

    def rule(x, y):
        refuse(BOOL in (x, y), "max of truth values")
        dtype = np.result_type(x, y)
        refuse(dtype.kind == "f" and "f" not in (x.kind, y.kind), "int64 beside uint64")
        return (dtype, dtype), dtype

    return numbers(2, rule, lambda *parts: better(*parts, symbol=symbol))


def better(builder, dtype, a, b, symbol):
    """Build the choice of a number that is greater (">") or less, or no NaN."""
    first = compared(builder, dtype, symbol, a, b)
    if dtype.kind == "f":
        first = builder.or_(first, builder.fcmp_unordered("uno", b, b))
    return builder.select(first, a, b)


def unary_operator(build, widens):
    """Return an intrinsic of one number, computed at its own width and then widened."""

    def rule(x):
        refuse(x == BOOL and not widens, "abs of a truth value")
        own = INT64 if x == BOOL and widens == "number" else x
        dtype = own
        if widens:
            dtype = result_dtype(np.invert if widens == "bits" else np.negative, [own])
        refuse(dtype.kind == "f" and widens == "bits", "bits of a float")
        return (own,), dtype

    def widened(builder, own, a):
        return convert(builder, build(builder, own, a), own, rule(own)[1])

    return numbers(1, rule, widened)


def negative(builder, dtype, a):
    return builder.fneg(a) if dtype.kind == "f" else builder.sub(ir.Constant(a.type, 0), a)


def magnitude(builder, dtype, a):
    if dtype.kind == "f":
        return builder.call(llvm_function(builder, "llvm.fabs", a.type), [a])
    if dtype.kind == "u":
        return a
    zero = ir.Constant(a.type, 0)
    return builder.select(builder.icmp_signed("<", a, zero), builder.sub(zero, a), a)


def llvm_function(builder, name, type_):
    return builder.module.declare_intrinsic(name, [type_])


def as_it_is(builder, dtype, a, *others):
    return a


def as_truth(x):
    return (BOOL,), BOOL


def only_truth(x):
    """A truth value; of others `and` and `or` return one of the two, whose type differs."""
    refuse(x != BOOL, "and, or of numbers")
    return (BOOL,), BOOL


def whole(x):
    """An integer as int64: an index, or a bound of range()."""
    refuse(x.kind not in "iub", "no integer")
    return (INT64,), INT64


def widen(x, y):
    """One side of a conditional expression in the type that both sides have together."""
    dtype = np.result_type(x, y)
    refuse(UINT64 in (x, y) and dtype.kind == "f" and x.kind != "f", "int64 and uint64")
    return (dtype, y), dtype


def caster(kind):
    """Return an intrinsic that converts to the type that `kind` gives for a NumPy type."""

    def rule(x):
        refuse(kind(x) not in KNOWN, f"{kind(x)}")
        return (x,), kind(x)

    def build(builder, x, flags, a):
        return checked_convert(builder, a, x, kind(x), flags)

    return numbers(1, rule, build, flags=True)


CASTS = {dtype: caster(lambda _, dtype=dtype: dtype) for dtype in KNOWN}


# ------------------------------------------------------------------ NumPy's loops


class UfuncObject(ctypes.Structure):
    """The beginning of PyUFuncObject, which NumPy's C interface makes public."""

    _fields_ = [
        ("head", ctypes.c_char * object.__basicsize__),
        *((name, ctypes.c_int) for name in ("nin", "nout", "nargs", "identity")),
        ("functions", ctypes.POINTER(ctypes.c_void_p)),
        ("data", ctypes.POINTER(ctypes.c_void_p)),
    ]


def loop_of(ufunc, dtype):
    """Return the addresses of a ufunc's loop over one type, and of its data."""
    found = UfuncObject.from_address(id(ufunc))
    refuse((found.nin, found.nout) != (ufunc.nin, ufunc.nout), "NumPy's ufuncs look different")
    number = ufunc.types.index(f"{dtype.char * ufunc.nin}->{dtype.char}")
    return found.functions[number], found.data[number] or 0


def call_loop(builder, ufunc, dtype, values):
    """Build a call of NumPy's own loop for one element; `machine_code` says where the loop is."""
    loop_of(ufunc, dtype)
    byte = ir.IntType(8).as_pointer()
    pair = ir.ArrayType(byte, 2)
    name = f"{LOOP}{ufunc.__name__}.{dtype.char}"
    place = builder.module.globals.get(name) or ir.GlobalVariable(builder.module, pair, name)
    place.linkage, place.initializer = "common", ir.Constant(pair, None)
    cells = [cgutils.alloca_once(builder, v.type) for v in (*values, values[0])]
    for cell, value in zip(cells, values, strict=False):
        builder.store(value, cell)
    args = cgutils.alloca_once(builder, ir.ArrayType(byte, len(cells)))
    steps = cgutils.alloca_once(builder, ir.ArrayType(I64, len(cells)))
    for i, cell in enumerate(cells):
        builder.store(builder.bitcast(cell, byte), cgutils.gep_inbounds(builder, args, 0, i))
        builder.store(I64(dtype.itemsize), cgutils.gep_inbounds(builder, steps, 0, i))
    count = cgutils.alloca_once_value(builder, I64(1))
    places = [byte.as_pointer(), I64.as_pointer(), I64.as_pointer(), byte]
    kind = ir.FunctionType(ir.VoidType(), places)
    function, data = (builder.load(cgutils.gep_inbounds(builder, place, 0, i)) for i in range(2))
    builder.call(
        builder.bitcast(function, kind.as_pointer()),
        [
            builder.bitcast(args, byte.as_pointer()),
            count,
            builder.bitcast(steps, I64.as_pointer()),
            data,
        ],
    )
    return builder.load(cells[-1])


EXACT = {name: f"llvm.{name}" for name in "sqrt fabs floor ceil trunc".split()}


def function(name, ufunc):
    """Return an intrinsic for one of math.*, of one or two numbers."""

    tests = name in ("isnan", "isinf", "isfinite")

    def rule(*operands):
        dtype = np.result_type(*(d if d.kind == "f" else FLOAT64 for d in operands))
        refuse(not tests and f"{'f' * ufunc.nin}->f" not in ufunc.types, f"math.{name}")
        return (dtype,) * ufunc.nin, BOOL if tests else dtype

    def build(builder, dtype, *values):
        if tests:
            return test_float(builder, name, *values)
        if name in EXACT:
            return builder.call(llvm_function(builder, EXACT[name], values[0].type), values)
        return call_loop(builder, ufunc, dtype, values)

    return numbers(ufunc.nin, rule, build)


def test_float(builder, name, value):
    if name == "isnan":
        return builder.fcmp_unordered("uno", value, value)
    size = builder.call(llvm_function(builder, "llvm.fabs", value.type), [value])
    infinity = ir.Constant(value.type, math.inf)
    symbol = "==" if name == "isinf" else "<"
    return builder.fcmp_ordered(symbol, size, infinity)


def of_floats(*operands):
    dtype = np.result_type(*operands)
    refuse(dtype.kind != "f", "fma of integers")
    return (dtype,) * 3, dtype


def fma(builder, dtype, *values):
    """Round once: a float32 by way of float64, as the engine does."""
    x, y, z = (convert(builder, v, dtype, FLOAT64) for v in values)
    return convert(builder, builder.fadd(builder.fmul(x, y), z), FLOAT64, dtype)


def power_of(count):
    """Return x ** 2 or x ** 3, which are products."""

    def rule(x):
        refuse(x == BOOL, "the power of a truth value")
        dtype = result_dtype(np.multiply, [x])
        return (dtype,), dtype

    def build(builder, dtype, value):
        product, multiply = value, builder.fmul if dtype.kind == "f" else builder.mul
        for _ in range(count - 1):
            product = multiply(product, value)
        return product

    return numbers(1, rule, build)


def power(x, y):
    """a ** b of a float and a float, or an integer that stands in the source."""
    refuse("f" not in (x.kind, y.kind), "an integer to a power")
    dtype = x if y.kind in "iu" else np.result_type(x, y)
    return (dtype, dtype), dtype


FUNCTIONS = {
    name: function(name, ufunc)
    for name, ufunc in {**UNARY, **BINARY}.items()
    if isinstance(ufunc, np.ufunc) and ufunc.nout == 1
}
# What the generated source calls, by the name that it has there.
OPERATORS = {
    "Add": operator(np.add, arithmetic("add")), "Sub": operator(np.subtract, arithmetic("sub")),
    "Mult": operator(np.multiply, arithmetic("mul")),
    "Div": operator(np.true_divide, arithmetic("div")),
    "BitAnd": operator(np.bitwise_and, lambda builder, dtype, a, b: builder.and_(a, b)),
    "BitOr": operator(np.bitwise_or, lambda builder, dtype, a, b: builder.or_(a, b)),
    "BitXor": operator(np.bitwise_xor, lambda builder, dtype, a, b: builder.xor(a, b)),
    "LShift": operator(np.left_shift, lambda *parts: shift(*parts, left=True)),
    "RShift": operator(np.right_shift, lambda *parts: shift(*parts, left=False)),
    "FloorDiv": divided("quotient"), "Mod": divided("rest"),
    "Pow": numbers(2, power, lambda b, dtype, *values: call_loop(b, np.power, dtype, values)),
    "square": power_of(2), "cube": power_of(3), "USub": unary_operator(negative, widens="number"),
    "UAdd": unary_operator(lambda builder, dtype, a: a, widens="number"),
    "Invert": unary_operator(lambda builder, dtype, a: builder.not_(a), widens="bits"),
    "Eq": comparison("=="), "NotEq": comparison("!="), "Lt": comparison("<"),
    "LtE": comparison("<="), "Gt": comparison(">"), "GtE": comparison(">="), "max": extreme(">"),
    "min": extreme("<"), "abs": unary_operator(magnitude, widens=None),
    "Not": numbers(1, as_truth, lambda builder, dtype, a: builder.not_(a)),
    "truth": numbers(1, as_truth, as_it_is), "only_truth": numbers(1, only_truth, as_it_is),
    "whole": numbers(1, whole, as_it_is), "int": caster(lambda x: x if x.kind in "iu" else INT64),
    "float": caster(lambda x: x if x.kind == "f" else FLOAT64),
    "widen": numbers(2, widen, as_it_is), "fma": numbers(3, of_floats, fma),
}  # fmt: skip
