"""A user's mask and score as vector code: LANES pairs of a query and a key at once.

An expression becomes instructions node by node; what is the same in all lanes is a scalar. It is
the type of an argument without contents, so that Numba compiles a function that calls these
intrinsics anew for another expression, and keeps it on disk under that type.

Arrays and numbers of the user's are in a table of int64, SLOT for each argument: a number's bits,
or an array's address and shape, and last where among the sums of all gradients its own begin. All
arrays are contiguous, of int32 or float32.
"""

import hashlib

from llvmlite import ir
from numba import types
from numba.extending import models, register_model

from fa_numba.cpu import exponential
from fa_numba.cpu.vectors import (
    _BITS,
    _FLOAT,
    _I32,
    _I64,
    _LLVM,
    GIVEN,
    LANES,
    _all,
    _call,
    _like,
    _many,
    _splat,
    instruction,
    vector,
)
from fa_numba.expressions import nodes
from fa_numba.expressions.derivative import ZERO, derivative
from fa_numba.expressions.functions import S
from fa_numba.expressions.nodes import TRUE

SLOT = 8  # numbers of an argument in the table
MOST_AXES = SLOT - 2  # of an array
_I1, _DOUBLE = ir.IntType(1), ir.DoubleType()
# Methods of llvmlite's builder: for integers and truth values, and for floats.
BUILDER = {
    "not": ("not_", None),
    "and": ("and_", None),
    "or": ("or_", None),
    "xor": ("xor", None),
    "add": ("add", "fadd"),
    "sub": ("sub", "fsub"),
    "mul": ("mul", "fmul"),
    "neg": ("neg", "fneg"),
    "div": (None, "fdiv"),
    "where": ("select", "select"),
}


class ExpressionsType(types.Type):
    """Numba's type of one mask and score: equal for expressions of equal text."""

    def __init__(self, expressions):
        self.expressions = expressions
        digest = hashlib.sha256(repr(expressions).encode()).hexdigest()[:24]
        super().__init__(name=f"Expressions({digest})")


register_model(ExpressionsType)(models.OpaqueModel)


# --- nodes -----------------------------------------------------------------------------------


class _Code:
    """Emits the instructions of expressions.

    Parameters
    ----------
    context, builder
        Numba's and llvmlite's.
    table : ir.Value
        Pointer to the table of arguments.
    variables : dict of str to ir.Value
        b, h, m and n as int32, s as float; scalars or vectors.
    exists : ir.Value
        Of each lane a truth value.
    """

    def __init__(self, context, builder, table, variables, exists):
        self.context, self.builder, self.table = context, builder, table
        self.variables, self.exists, self.found = variables, exists, {}

    def of(self, node):
        for x in nodes.walk(node):
            if x not in self.found:
                self.found[x] = self._one(x, [self.found[y] for y in nodes.children(x)])
        return self.found[node]

    def in_lanes(self, node):
        y = self.of(node)
        return y if _many(y) else _splat(self.builder, y)

    def sees(self, mask):
        """Which lanes exist and are seen."""
        sees = self.of(TRUE if mask is None else nodes.as_bool(mask))
        return self.builder.and_(
            self.exists, sees if _many(sees) else _in_all_lanes(self.builder, sees)
        )

    def _one(self, node, args):
        if node.op == "const":
            kind = {"bool": _I1, "int": _I32, "float": _FLOAT}[node.kind]
            return ir.Constant(kind, node.args[0] if node.kind != "bool" else int(node.args[0]))
        if node.op == "var":
            return self._variable(node)
        if node.op == "load":
            return self._load(node, args)
        if node.op == "div" and _many(args[0]) and not _many(args[1]):  # one division for all lanes
            args = args[0], self.builder.fdiv(ir.Constant(_FLOAT, 1.0), args[1])
            return self.builder.fmul(*_alike(self.builder, args))
        args = _alike(self.builder, args)
        float_in = nodes.children(node)[-1].kind == "float"
        if node.op in BUILDER:
            return getattr(self.builder, BUILDER[node.op][float_in])(*args)
        if node.op in nodes.COMPARISONS:
            return self._compared(nodes.SIGNS[node.op], float_in, *args)
        if node.op in ("copysign", "sqrt"):
            return _call(self.builder, node.op, *args)
        if node.op in ("exp", "log", "tanh"):
            return self._by(getattr(exponential, node.op), *args)
        return getattr(self, f"_{node.op}")(node, float_in, *args)

    def _variable(self, node):
        (name,) = node.args
        if not name.startswith("arg"):
            return self.variables[name]
        bits = self.builder.trunc(self.word(int(name[3:]), 0), _I32)
        return self._typed(bits, node.kind)

    def _typed(self, bits, kind):
        if kind == "float":
            return self.builder.bitcast(bits, _like(bits, _FLOAT))
        return bits if kind == "int" else self.builder.icmp_signed("!=", bits, _zero(bits))

    def word(self, argument, at):
        return self._read(self.builder.gep(self.table, [_I64(argument * SLOT + at)]))

    def _read(self, pointer):
        """A load of what nobody writes, so that the compiler may take it out of a loop."""
        value = self.builder.load(pointer)
        value.set_metadata("invariant.load", self.builder.module.add_metadata([]))
        return value

    def _load(self, node, indices):
        builder, flat = self.builder, self.flat_index(node, indices)
        data = builder.inttoptr(self.word(node.args[0], 0), _I32.as_pointer())
        if not _many(flat):
            return self._typed(self._read(builder.gep(data, [flat])), node.kind)
        bits = ir.Constant(_BITS, ir.Undefined)
        for lane in range(LANES):
            i = builder.extract_element(flat, _I32(lane))
            one = self._read(builder.gep(data, [i]))
            bits = builder.insert_element(bits, one, _I32(lane))
        return self._typed(bits, node.kind)

    def flat_index(self, node, indices):
        """Which number of an array. Hidden pairs ask too, so each index is brought into range."""
        builder, argument, flat = self.builder, node.args[0], None
        for axis, i in enumerate(indices):
            size = builder.trunc(self.word(argument, 1 + axis), _I32)
            last, i = _alike(builder, (builder.sub(size, _I32(1)), i))
            i = builder.select(builder.icmp_signed("<", i, last), i, last)
            i = builder.select(builder.icmp_signed(">", i, _zero(i)), i, _zero(i))
            if flat is not None:
                flat, size, i = _alike(builder, (flat, size, i))
                i = builder.add(builder.mul(flat, size), i)
            flat = i
        return flat

    def _lshift(self, node, float_in, x, y):
        return self.builder.shl(x, self.builder.and_(y, _all(y, 31)))

    def _rshift(self, node, float_in, x, y):
        return self.builder.ashr(x, self.builder.and_(y, _all(y, 31)))

    def _compared(self, sign, float_in, x, y):
        if not float_in:
            return self.builder.icmp_signed(sign, x, y)
        of = self.builder.fcmp_unordered if sign == "!=" else self.builder.fcmp_ordered
        return of(sign, x, y)

    def _abs(self, node, float_in, x):
        if float_in:
            return _call(self.builder, "fabs", x)
        negative = self.builder.icmp_signed("<", x, _zero(x))
        return self.builder.select(negative, self.builder.neg(x), x)

    def _min(self, node, float_in, x, y):
        return self.builder.select(self._compared("<", float_in, y, x), y, x)

    def _max(self, node, float_in, x, y):
        return self.builder.select(self._compared(">", float_in, y, x), y, x)

    def _floordiv(self, node, float_in, x, y):
        """A shift, or multiplications, for a constant; else by float64, which is exact.

        It multiplies by 1 / y, which leaves the loops over keys. (x + ½) / y is at least ½ / |y|
        away from an integer, many times what is lost by rounding twice.
        """
        builder, divisor = self.builder, nodes.children(node)[1]
        if divisor.op == "const" and divisor.args[0] > 0:
            (divisor,) = divisor.args
            if divisor & (divisor - 1) == 0:
                return builder.ashr(x, _all(x, divisor.bit_length() - 1))
            quotient = builder.sdiv(x, y)
            rest = builder.sub(x, builder.mul(quotient, y))
            negative = builder.icmp_signed("<", rest, _zero(x))
            return builder.add(quotient, builder.sext(negative, x.type))
        wide, by = (builder.sitofp(a, _like(a, _DOUBLE)) for a in (x, y))
        half = builder.select(builder.icmp_signed("<", y, _zero(y)), _all(by, -0.5), _all(by, 0.5))
        quotient = builder.fmul(builder.fadd(wide, half), builder.fdiv(_all(by, 1.0), by))
        return builder.fptosi(_call(builder, "floor", quotient), x.type)

    def _mod(self, node, float_in, x, y):
        divisor = nodes.children(node)[1]
        if divisor.op == "const" and divisor.args[0] > 0:
            (divisor,) = divisor.args
            if divisor & (divisor - 1) == 0:
                return self.builder.and_(x, _all(x, divisor - 1))
        quotient = self._floordiv(node, float_in, x, y)
        return self.builder.sub(x, self.builder.mul(quotient, y))

    def _float(self, node, float_in, x):
        return self.builder.sitofp(x, _like(x, _FLOAT))

    def _by(self, function, x):
        """A function of vectors that is written in Python."""
        many = _many(x)
        x = x if many else _splat(self.builder, x)
        y = self.context.compile_internal(self.builder, function.py_func, vector(vector), [x])
        return y if many else self.builder.extract_element(y, _I32(0))


def _zero(x):
    return _all(x, 0)


def _alike(builder, args):
    """All scalars, or all vectors."""
    if not any(map(_many, args)):
        return args
    return [x if _many(x) else _in_all_lanes(builder, x) for x in args]


def _in_all_lanes(builder, x):
    """A scalar as a vector.

    Of a truth value that the compiler knows to be one scalar, it makes single bits, and packs all
    other truth values to match: four times as many instructions. The fence hides it.
    """
    if x.type != _I1 or isinstance(x, ir.Constant):
        return _splat(builder, x)
    bits = builder.bitcast(_splat(builder, builder.sext(x, _I32)), _LLVM)
    fenced = builder.bitcast(_call(builder, "arithmetic.fence", bits), _BITS)
    return builder.icmp_signed("<", fenced, _zero(fenced))


# --- functions that a worker calls -----------------------------------------------------------


def _of_pairs(lanes_along, result, *kinds):
    """Decorate ``emit(code, expressions, *operands)``: a function of LANES pairs for a worker.

    It takes expressions, table, b, h, m, n, last, and operands of these kinds. Lanes are queries
    (m), or keys (n). m, a position, and n are those of lane 0; `last` is the last index along the
    lanes that exists. Lanes beyond it are not seen.
    """

    def decorate(emit):
        def of_pairs(context, builder, signature, _, table, b, h, m, n, last, *operands):
            b, h, m, n, last = (builder.trunc(x, _I32) for x in (b, h, m, n, last))
            first, last = (_splat(builder, x) for x in (m if lanes_along == "m" else n, last))
            index = builder.add(first, ir.Constant(_BITS, list(range(LANES))))
            exists = builder.icmp_signed("<=", index, last)
            index = builder.select(exists, index, last)
            variables = {"b": b, "h": h, "m": m, "n": n, lanes_along: index}
            code = _Code(context, builder, table, variables, exists)
            return emit(code, signature.args[0].expressions, *operands)

        pair = GIVEN, GIVEN, *(types.int64,) * 5
        return instruction(result, *pair, *kinds, whole=True)(of_pairs)

    return decorate


def _make(lanes_along):
    @_of_pairs(lanes_along, types.boolean)
    def any_seen(code, expressions):
        """Whether some lane is seen."""
        bits = code.builder.bitcast(code.sees(expressions.mask), ir.IntType(LANES))
        return code.builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))

    @_of_pairs(lanes_along, vector, vector, vector)
    def where_seen(code, expressions, x, other):
        """x in the lanes that are seen, else `other`."""
        return code.builder.select(code.sees(expressions.mask), x, other)

    @_of_pairs(lanes_along, vector, vector)
    def score(code, expressions, s):
        code.variables["s"] = s
        return code.in_lanes(nodes.as_float(expressions.score or S))

    @_of_pairs(lanes_along, vector, vector)
    def slope(code, expressions, s):
        code.variables["s"] = s
        return code.in_lanes(derivative(expressions.score or S))

    return any_seen, where_seen, score, slope


@_of_pairs("m", types.void, vector, vector, GIVEN)
def add_gradients(code, expressions, s, ds, sums):
    """Add those of all floats in arrays that the score reads: ds · d score / d a[i] to a's sums.

    Parameters
    ----------
    s, ds : vector
        softmax_scale · q·k, and the gradient of the score.
    sums : pointer to float64
    """
    builder, sees = code.builder, code.sees(expressions.mask)
    code.variables["s"] = s
    for x in nodes.walk(expressions.score):
        by = derivative(expressions.score, x)
        if x.op != "load" or x.kind != "float" or by == ZERO:
            continue
        terms = builder.select(sees, builder.fmul(ds, code.in_lanes(by)), _zero(ds))
        terms = builder.fpext(terms, _like(terms, _DOUBLE))
        flat = code.flat_index(x, [code.of(i) for i in nodes.children(x)])
        begin = code.word(x.args[0], SLOT - 1)
        for lane in range(LANES):
            i = builder.extract_element(flat, _I32(lane)) if _many(flat) else flat
            at = builder.gep(sums, [builder.add(begin, builder.sext(i, _I64))])
            term = builder.extract_element(terms, _I32(lane))
            builder.store(builder.fadd(builder.load(at), term), at)


any_seen, where_seen, score, slope = _make("m")
_, where_key_seen, score_of_keys, _ = _make("n")
