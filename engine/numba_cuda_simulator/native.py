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


def operator(ufunc, build):
    """Return an intrinsic of two numbers whose result has the type of the engine's rule."""

    @intrinsic
    def operation(typing, a, b):
        x, y = dtype_of(a), dtype_of(b)
        dtype = result_dtype(ufunc, [x, y])
        refuse(
            BOOL in (x, y) and dtype.kind == "f", "the engine decides by where a bool comes from"
        )
        refuse(dtype.kind == "f" and (ufunc in BITWISE or ufunc in SHIFTS), "bits of a float")
        amount = dtype if ufunc not in SHIFTS else INT64
        refuse(ufunc in SHIFTS and y.kind not in "iu", "a shift by no integer")

        def generate(context, builder, signature, args):
            left = convert(builder, args[0], x, dtype)
            return build(builder, dtype, left, convert(builder, args[1], y, amount))

        return numba_type(dtype)(a, b), generate

    return operation


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

    @intrinsic
    def operation(typing, c, a, b):
        x, y = dtype_of(a), dtype_of(b)
        dtype = result_dtype(ufunc, [x, y])
        refuse(
            BOOL in (x, y) and dtype.kind == "f", "the engine decides by where a bool comes from"
        )

        def generate(context, builder, signature, args):
            left, right = convert(builder, args[1], x, dtype), convert(builder, args[2], y, dtype)
            if dtype.kind == "f":
                return call_loop(context, builder, ufunc, dtype, [left, right])
            zero, one = ir.Constant(left.type, 0), ir.Constant(left.type, 1)
            nothing = builder.icmp_signed("==", right, zero)
            raise_flag(builder, flags_of(builder, args[0]), nothing)
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

        return numba_type(dtype)(c, a, b), generate

    return operation


def comparison(symbol):
    @intrinsic
    def operation(typing, a, b):
        x, y = dtype_of(a), dtype_of(b)
        one, other = (v.dtype for v in as_one_type(np.zeros(1, x), np.zeros(1, y)))
        dtype = np.result_type(one, other)

        def generate(context, builder, signature, args):
            left, right = convert(builder, args[0], x, dtype), convert(builder, args[1], y, dtype)
            if dtype.kind == "f":
                ordered = builder.fcmp_unordered if symbol == "!=" else builder.fcmp_ordered
                return ordered(symbol, left, right)
            compare = builder.icmp_signed if dtype.kind == "i" else builder.icmp_unsigned
            return compare(symbol, left, right)

        return types.boolean(a, b), generate

    return operation


def extreme(symbol):
    """Return max or min of two numbers; of a number and NaN it is the number."""

    @intrinsic
    def operation(typing, a, b):
        x, y = dtype_of(a), dtype_of(b)
        refuse(BOOL in (x, y), "max of truth values")
        dtype = np.result_type(x, y)
        refuse(dtype.kind == "f" and "f" not in (x.kind, y.kind), "int64 beside uint64")

        def generate(context, builder, signature, args):
            left, right = convert(builder, args[0], x, dtype), convert(builder, args[1], y, dtype)
            if dtype.kind == "f":
                better = builder.fcmp_ordered(symbol, left, right)
                better = builder.or_(better, builder.fcmp_unordered("uno", right, right))
            else:
                compare = builder.icmp_signed if dtype.kind == "i" else builder.icmp_unsigned
                better = compare(symbol, left, right)
            return builder.select(better, left, right)

        return numba_type(dtype)(a, b), generate

    return operation


def unary_operator(build, widens):
    """Return an intrinsic of one number, computed at its own width and then widened."""

    @intrinsic
    def operation(typing, a):
        x = own = dtype_of(a)
        if widens:
            own = INT64 if x == BOOL and widens != "bits" else x
            dtype = result_dtype(np.invert if widens == "bits" else np.negative, [own])
            refuse(dtype.kind == "f" and widens == "bits", "bits of a float")
        else:
            refuse(x == BOOL, "abs of a truth value")
            dtype = x

        def generate(context, builder, signature, args):
            value = build(builder, own, convert(builder, args[0], x, own))
            return convert(builder, value, own, dtype)

        return numba_type(dtype)(a), generate

    return operation


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


@intrinsic
def truth(typing, a):
    x = dtype_of(a)
    return types.boolean(a), lambda context, builder, _, args: convert(builder, args[0], x, BOOL)


@intrinsic
def only_truth(typing, a):
    """A truth value; of others `and` and `or` return one of the two, whose type differs."""
    refuse(dtype_of(a) != BOOL, "and, or of numbers")
    return types.boolean(a), lambda context, builder, _, args: args[0]


@intrinsic
def negation(typing, a):
    x = dtype_of(a)

    def generate(context, builder, _, args):
        return builder.not_(convert(builder, args[0], x, BOOL))

    return types.boolean(a), generate


@intrinsic
def whole(typing, a):
    """An integer as int64: an index, or a bound of range()."""
    x = dtype_of(a)
    refuse(x.kind not in "iub", "no integer")
    return types.int64(a), lambda context, builder, _, args: convert(builder, args[0], x, INT64)


def caster(rule):
    """Return an intrinsic that converts to the type that `rule` gives for a NumPy type."""

    @intrinsic
    def operation(typing, c, a):
        x = dtype_of(a)
        dtype = rule(x)
        refuse(dtype not in KNOWN, f"{dtype}")

        def generate(context, builder, signature, args):
            flags = flags_of(builder, args[0])
            return checked_convert(builder, args[1], x, dtype, flags)

        return numba_type(dtype)(c, a), generate

    return operation


CASTS = {dtype: caster(lambda _, dtype=dtype: dtype) for dtype in KNOWN}
to_int = caster(lambda x: x if x.kind in "iu" else INT64)
to_float = caster(lambda x: x if x.kind == "f" else FLOAT64)


@intrinsic
def widen(typing, a, b):
    """One side of a conditional expression in the type that both sides have together."""
    x = dtype_of(a)
    dtype = np.result_type(x, dtype_of(b))
    refuse(UINT64 in (x, dtype_of(b)) and dtype.kind == "f" and x.kind != "f", "int64 and uint64")

    def generate(context, builder, signature, args):
        return convert(builder, args[0], x, dtype)

    return numba_type(dtype)(a, b), generate


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


def call_loop(context, builder, ufunc, dtype, values):
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

    def typed(*operands):
        dtypes = [d if d.kind == "f" else FLOAT64 for d in map(dtype_of, operands)]
        dtype = np.result_type(*dtypes)
        tests = name in ("isnan", "isinf", "isfinite")
        refuse(not tests and f"{'f' * ufunc.nin}->f" not in ufunc.types, f"math.{name}")

        def generate(context, builder, signature, args):
            values = []
            for value, operand in zip(args, operands, strict=True):
                values.append(convert(builder, value, dtype_of(operand), dtype))
            if tests:
                return test_float(builder, name, values[0])
            if name in EXACT:
                return builder.call(llvm_function(builder, EXACT[name], values[0].type), values)
            return call_loop(context, builder, ufunc, dtype, values)

        return numba_type(BOOL if tests else dtype)(*operands), generate

    if ufunc.nin == 1:

        @intrinsic
        def operation(typing, a):
            return typed(a)
    else:

        @intrinsic
        def operation(typing, a, b):
            return typed(a, b)

    return operation


def test_float(builder, name, value):
    if name == "isnan":
        return builder.fcmp_unordered("uno", value, value)
    size = builder.call(llvm_function(builder, "llvm.fabs", value.type), [value])
    infinity = ir.Constant(value.type, math.inf)
    symbol = "==" if name == "isinf" else "<"
    return builder.fcmp_ordered(symbol, size, infinity)


@intrinsic
def fma(typing, a, b, c):
    """Round once: a float32 by way of float64, as the engine does."""
    dtype = np.result_type(*(dtype_of(x) for x in (a, b, c)))
    refuse(dtype.kind != "f", "fma of integers")

    def generate(context, builder, signature, args):
        x, y, z = (
            convert(builder, v, dtype_of(t), FLOAT64) for v, t in zip(args, (a, b, c), strict=True)
        )
        return convert(builder, builder.fadd(builder.fmul(x, y), z), FLOAT64, dtype)

    return numba_type(dtype)(a, b, c), generate


def power_of(count):
    """Return x ** 2 or x ** 3, which are products."""

    @intrinsic
    def operation(typing, a):
        x = dtype_of(a)
        refuse(x == BOOL, "the power of a truth value")
        dtype = result_dtype(np.multiply, [x])

        def generate(context, builder, signature, args):
            value = product = convert(builder, args[0], x, dtype)
            for _ in range(count - 1):
                multiply = builder.fmul if dtype.kind == "f" else builder.mul
                product = multiply(product, value)
            return product

        return numba_type(dtype)(a), generate

    return operation


@intrinsic
def power(typing, a, b):
    """a ** b of a float and a float, or an integer that stands in the source."""
    x, y = dtype_of(a), dtype_of(b)
    refuse("f" not in (x.kind, y.kind), "an integer to a power")
    dtype = x if y.kind in "iu" else np.result_type(x, y)

    def generate(context, builder, signature, args):
        values = [convert(builder, v, d, dtype) for v, d in zip(args, (x, y), strict=True)]
        return call_loop(context, builder, np.power, dtype, values)

    return numba_type(dtype)(a, b), generate


FUNCTIONS = {
    name: function(name, ufunc)
    for name, ufunc in {**UNARY, **BINARY}.items()
    if isinstance(ufunc, np.ufunc) and ufunc.nout == 1
}
# What the generated source calls, by the name that it has there.
OPERATORS = {
    "Add": operator(np.add, arithmetic("add")),
    "Sub": operator(np.subtract, arithmetic("sub")),
    "Mult": operator(np.multiply, arithmetic("mul")),
    "Div": operator(np.true_divide, arithmetic("div")),
    "BitAnd": operator(np.bitwise_and, lambda builder, dtype, a, b: builder.and_(a, b)),
    "BitOr": operator(np.bitwise_or, lambda builder, dtype, a, b: builder.or_(a, b)),
    "BitXor": operator(np.bitwise_xor, lambda builder, dtype, a, b: builder.xor(a, b)),
    "LShift": operator(np.left_shift, lambda *parts: shift(*parts, left=True)),
    "RShift": operator(np.right_shift, lambda *parts: shift(*parts, left=False)),
    "FloorDiv": divided("quotient"),
    "Mod": divided("rest"),
    "Pow": power,
    "square": power_of(2),
    "cube": power_of(3),
    "USub": unary_operator(negative, widens="number"),
    "UAdd": unary_operator(lambda builder, dtype, a: a, widens="number"),
    "Invert": unary_operator(lambda builder, dtype, a: builder.not_(a), widens="bits"),
    "Eq": comparison("=="),
    "NotEq": comparison("!="),
    "Lt": comparison("<"),
    "LtE": comparison("<="),
    "Gt": comparison(">"),
    "GtE": comparison(">="),
    "max": extreme(">"),
    "min": extreme("<"),
    "abs": unary_operator(magnitude, widens=None),
    "Not": negation,
    "truth": truth,
    "only_truth": only_truth,
    "whole": whole,
    "int": to_int,
    "float": to_float,
    "widen": widen,
    "fma": fma,
}
