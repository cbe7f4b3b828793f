"""A CPU's vector registers in Numba: a type that holds LANES float32, and its operations.

A compiler makes vector code of a scalar loop where it can prove that it may. Here nothing is left
to such a proof. A value of the type `vector` lies in one register, `acc` in a tuple of registers,
and each function below is one instruction, or as many as it says.

LANES is 16 with AVX-512, 8 with AVX, else 4. A machine with 32 vector registers keeps
8 x 2 of them as a tile of accumulators, one with 16 keeps 4 x 2. Two vectors of B and one number
of A feed two multiply-adds, so 8 x 2 takes 10 loads for 16 of them, and the loads are hidden.
"""

import functools
import inspect
import operator

import numpy as np
from llvmlite import binding, ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, lower_builtin, models, register_model, type_callable

from fa_numba.cpu import inlined

OPTIONS = {"error_model": "numpy", "no_cfunc_wrapper": True, "_nrt": False}  # no counted references
worker = functools.partial(njit, nogil=True, **OPTIONS)  # for `threads.run`
inner = functools.partial(njit, no_cpython_wrapper=True, pipeline_class=inlined.Compiler, **OPTIONS)

_FEATURES = {name for name, has in binding.get_host_cpu_features().items() if has}
_X86 = binding.get_process_triple().startswith(("x86_64", "i686"))
LANES = 16 if "avx512f" in _FEATURES else 8 if "avx" in _FEATURES else 4
ROWS = 8 if LANES == 16 or not _X86 else 4  # of a tile of accumulators
COLUMNS = 2  # vectors in a row of it

_FLOAT, _HALF = ir.FloatType(), ir.HalfType()
_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_LLVM = ir.VectorType(_FLOAT, LANES)
_BITS = ir.VectorType(_I32, LANES)


class Vector(types.Type):
    """Numba's type of LANES float32 in one register."""

    def __init__(self):
        super().__init__(name=f"float32x{LANES}")


GIVEN = object()  # in place of an operand's type, for `instruction`
vector = Vector()
accumulators = types.UniTuple(vector, ROWS * COLUMNS)
lane_sums = types.UniTuple(vector, LANES)


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager, numba_type):
        super().__init__(manager, numba_type, _LLVM)


def _many(x):
    return isinstance(x.type, ir.VectorType)


def _like(x, scalar):
    """A scalar type, or that of LANES of it where x is a vector."""
    return ir.VectorType(scalar, LANES) if _many(x) else scalar


def _constant(llvm_type, value):
    """A number, or LANES times the same one."""
    many = isinstance(llvm_type, ir.VectorType)
    return ir.Constant(llvm_type, [value] * LANES if many else value)


def _all(x, value):
    return _constant(x.type, value)


def _splat(builder, scalar):
    vector_type = ir.VectorType(scalar.type, LANES)
    one = builder.insert_element(ir.Constant(vector_type, ir.Undefined), scalar, _I32(0))
    return builder.shuffle_vector(one, ir.Constant(vector_type, ir.Undefined), _constant(_BITS, 0))


def _call(builder, name, *operands):
    """An LLVM intrinsic, on operands of one type: floats, or vectors of them."""
    kind = operands[0].type
    suffix = f"v{LANES}{kind.element.intrinsic_name}" if _many(operands[0]) else kind.intrinsic_name
    function_type = ir.FunctionType(kind, [kind] * len(operands))
    function = cgutils.get_or_insert_function(
        builder.module, function_type, f"llvm.{name}.{suffix}"
    )
    return builder.call(function, operands)


def _load(builder, pointer, llvm_type=_LLVM, align=4):
    return builder.load(builder.bitcast(pointer, llvm_type.as_pointer()), align=align)


def _store(builder, x, pointer, align=4):
    builder.store(x, builder.bitcast(pointer, x.type.as_pointer()), align=align)


def instruction(result, *kinds, whole=False):
    """Decorate ``emit(builder, *operands)``: it becomes a function for compiled code.

    Parameters
    ----------
    result : type of Numba
        ``emit`` returns a value of it, of a tuple its elements, of `void` nothing.
    *kinds : types of Numba, or GIVEN
        Those of the operands. GIVEN is any type; of an array ``emit`` gets the address of the first
        element.
    whole : bool, default=False
        ``emit`` gets Numba's context and signature too, before and after the builder.
    """

    def decorate(emit):
        def typed(typingctx, *given):
            kept = [one if kind is GIVEN else kind for kind, one in zip(kinds, given, strict=True)]
            return result(*kept), generate

        def generate(context, builder, signature, args):
            operands = [
                cgutils.create_struct_proxy(kind)(context, builder, x).data
                if isinstance(kind, types.Array)
                else x
                for kind, x in zip(signature.args, args, strict=True)
            ]
            before = (context, builder, signature) if whole else (builder,)
            made = emit(*before, *operands)
            if isinstance(result, types.UniTuple):
                return context.make_tuple(builder, result, made)
            return context.get_dummy_value() if result == types.void else made

        functools.update_wrapper(typed, emit)
        names = "typingctx", *(f"x{i}" for i in range(len(kinds)))  # Numba counts them
        parameters = [inspect.Parameter(x, inspect.Parameter.POSITIONAL_ONLY) for x in names]
        typed.__signature__ = inspect.Signature(parameters)
        return intrinsic(typed)

    return decorate


# --- memory ----------------------------------------------------------------------------------


@instruction(vector, GIVEN, types.intp)
def load(builder, array, index):
    """Elements index to index + LANES − 1 of a flat float32 array."""
    return _load(builder, builder.gep(array, [index]))


@instruction(types.void, GIVEN, types.intp, vector)
def store(builder, array, index, value):
    """Write a vector to elements index to index + LANES − 1."""
    _store(builder, value, builder.gep(array, [index]))


def _widen(builder, bits, kind):
    """float32 of 16 bits, one or a vector of them, that are a float16 or a bfloat16."""
    if kind == "float16":
        return builder.fpext(builder.bitcast(bits, _like(bits, _HALF)), _like(bits, _FLOAT))
    wide = builder.zext(bits, _like(bits, _I32))
    return builder.bitcast(builder.shl(wide, _all(wide, 16)), _like(bits, _FLOAT))


def _narrow(builder, x, kind):
    """The 16 bits of the nearest float16 or bfloat16, of two the even one; one or a vector."""
    if kind == "float16":
        return builder.bitcast(builder.fptrunc(x, _like(x, _HALF)), _like(x, _I16))
    bits = builder.bitcast(x, _like(x, _I32))
    is_odd = builder.and_(builder.lshr(bits, _all(bits, 16)), _all(bits, 1))
    rounded = builder.add(bits, builder.add(is_odd, _all(bits, 0x7FFF)))
    is_nan = builder.fcmp_unordered("uno", x, x)  # it could round to infinity
    rounded = builder.select(is_nan, _all(bits, 0x7FC00000), rounded)
    return builder.trunc(builder.lshr(rounded, _all(bits, 16)), _like(x, _I16))


def _e4m3(builder, bytes):
    """float32 of bytes of e4m3: their bits as those of a float16, whose bias is 8 more."""
    bits = builder.zext(bytes, _like(bytes, _I16))
    sign = builder.shl(builder.and_(bits, _all(bits, 0x80)), _all(bits, 8))
    rest = builder.and_(bits, _all(bits, 0x7F))
    is_nan = builder.icmp_unsigned("==", rest, _all(bits, 0x7F))
    half = builder.or_(sign, builder.shl(rest, _all(bits, 7)))
    half = builder.select(is_nan, _all(bits, 0x7E00), half)
    x = _widen(builder, half, "float16")
    return builder.fmul(x, _all(x, 256.0))


def _read(builder, address, kind, many=True):
    """One number or LANES of them from an address, as float32."""
    if kind == "e4m3":
        stored = ir.VectorType(_I8, LANES) if many else _I8
        pointer = builder.inttoptr(address, _I64.as_pointer())
        return _e4m3(builder, _load(builder, pointer, stored, 1))
    stored = _FLOAT if kind == "float32" else _I16
    align = 4 if kind == "float32" else 2
    stored = ir.VectorType(stored, LANES) if many else stored
    value = _load(builder, builder.inttoptr(address, _I64.as_pointer()), stored, align)
    return value if kind == "float32" else _widen(builder, value, kind)


def _reader(kind, many):
    """A function that reads one number or LANES of them from an address."""

    @instruction(vector if many else types.float32, types.int64)
    def read(builder, address):
        return _read(builder, address, kind, many)

    return read


def _writer(kind, many):
    """A function that rounds one float32 or LANES of them and writes them to an address."""

    @instruction(types.void, types.int64, vector if many else types.float32)
    def write(builder, address, value):
        value = value if kind == "float32" else _narrow(builder, value, kind)
        pointer = builder.inttoptr(address, value.type.as_pointer())
        builder.store(value, pointer, align=4 if kind == "float32" else 2)

    return write


READ = "float32", "float16", "bfloat16", "e4m3"
read_float32, read_float16, read_bfloat16, read_e4m3 = (_reader(kind, many=True) for kind in READ)
read_one_float32, read_one_float16, read_one_bfloat16, read_one_e4m3 = (
    _reader(kind, many=False) for kind in READ
)
write_float32, write_float16, write_bfloat16 = (
    _writer(kind, many=True) for kind in ("float32", "float16", "bfloat16")
)
write_one_float32, write_one_float16, write_one_bfloat16 = (
    _writer(kind, many=False) for kind in ("float32", "float16", "bfloat16")
)


@instruction(types.void, types.int64)
def prefetch(builder, address):
    """Begin to read a cache line into L1; no error where no memory is."""
    byte = _I8.as_pointer()
    function_type = ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32])
    function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0i8")
    read, keep, data = _I32(0), _I32(3), _I32(1)
    builder.call(function, [builder.inttoptr(address, byte), read, keep, data])


@instruction(types.int64, GIVEN)
def address_of(builder, array):
    """Address of the first element."""
    return builder.ptrtoint(array, _I64)


@instruction(types.int64, GIVEN, types.int64)
def fetch_add(builder, counter, amount):
    """Add to the only element of an int64 array, as one step for all threads; what it was."""
    return builder.atomic_rmw("add", counter, amount, "monotonic")


# --- arithmetic ------------------------------------------------------------------------------


@instruction(vector, types.float32)
def broadcast(builder, x):
    """The same number in every lane."""
    return _splat(builder, x)


@instruction(vector)
def lane_numbers(builder):
    """0, 1, 2, … LANES − 1."""
    return ir.Constant(_LLVM, [float(lane) for lane in range(LANES)])


def _operator(operation, build):
    @type_callable(operation)
    def of_types(context):
        return lambda x, y: vector if x == y == vector else None

    @lower_builtin(operation, vector, vector)
    def emit(context, builder, signature, args):
        return build(builder, *args)


_operator(operator.add, lambda builder, x, y: builder.fadd(x, y))
_operator(operator.sub, lambda builder, x, y: builder.fsub(x, y))
_operator(operator.mul, lambda builder, x, y: builder.fmul(x, y))
_operator(operator.truediv, lambda builder, x, y: builder.fdiv(x, y))


@instruction(vector, vector, vector)
def maximum(builder, x, y):
    """x where x > y, else y: one instruction. y where x is NaN, and NaN where y is."""
    return builder.select(builder.fcmp_ordered(">", x, y), x, y)


@instruction(vector, vector, vector)
def minimum(builder, x, y):
    """x where x < y, else y: as `maximum`."""
    return builder.select(builder.fcmp_ordered("<", x, y), x, y)


@instruction(vector, vector, vector, vector)
def multiply_add(builder, x, y, z):
    """x y + z, rounded once."""
    return _call(builder, "fma", x, y, z)


@instruction(vector, vector, vector, vector)
def multiply_subtract(builder, x, y, z):
    """x y − z, rounded once."""
    return _call(builder, "fma", x, y, builder.fneg(z))


@instruction(vector, vector)
def absolute(builder, x):
    """|x|."""
    return _call(builder, "fabs", x)


@instruction(vector, vector, vector, vector, vector)
def where_less(builder, x, y, yes, no):
    """`yes` in the lanes where x < y, else `no`; a NaN is not less."""
    return builder.select(builder.fcmp_ordered("<", x, y), yes, no)


@instruction(vector, vector)
def exponent_bits(builder, x):
    """A float32 whose exponent and sign are the lowest nine bits of x, and its mantissa 0."""
    return builder.bitcast(builder.shl(builder.bitcast(x, _BITS), _constant(_BITS, 23)), _LLVM)


@instruction(vector, vector)
def exponent(builder, x):
    """The exponent of each float32, as a float32."""
    bits = builder.lshr(builder.bitcast(x, _BITS), _constant(_BITS, 23))
    return builder.sitofp(builder.sub(bits, _constant(_BITS, 127)), _LLVM)


@instruction(vector, vector)
def mantissa(builder, x):
    """The float32 from 1 to 2 that has the digits of x."""
    bits = builder.and_(builder.bitcast(x, _BITS), _constant(_BITS, 0x7FFFFF))
    return builder.bitcast(builder.or_(bits, _constant(_BITS, 0x3F800000)), _LLVM)


# --- tiles of registers ----------------------------------------------------------------------


@instruction(accumulators)
def zeros(builder):
    """Accumulators: ROWS rows of COLUMNS vectors of 0."""
    return [_constant(_LLVM, 0.0)] * (ROWS * COLUMNS)


@instruction(accumulators, accumulators, GIVEN, *(types.int64,) * 2, GIVEN, types.int64)
def rank_one_update(builder, acc, a, a_index, a_row, b, b_index):
    """Add a column of A times a row of B to the accumulators.

    The column is a[a_index + i · a_row] for i < ROWS, the row begins at b[b_index]: ROWS + COLUMNS
    loads and ROWS · COLUMNS multiply-adds.
    """
    a, b = builder.gep(a, [a_index]), builder.gep(b, [b_index])
    row = [_load(builder, builder.gep(b, [_I64(j * LANES)])) for j in range(COLUMNS)]
    sums = []
    for i in range(ROWS):
        x = _splat(builder, builder.load(builder.gep(a, [builder.mul(a_row, _I64(i))])))
        for j in range(COLUMNS):
            total = builder.extract_value(acc, i * COLUMNS + j)
            sums.append(_call(builder, "fma", x, row[j], total))
    return sums


def _load_rows(builder, pointer, row):
    """LANES vectors, `row` numbers apart."""
    places = (builder.gep(pointer, [builder.mul(row, _I64(i))]) for i in range(LANES))
    return [_load(builder, place) for place in places]


def _shuffled(builder, vectors):
    """Vectors i and i + half, for each i, as two halves of a pack of cards: vectors 2i, 2i + 1."""
    pack = [i // 2 + (i % 2) * LANES for i in range(2 * LANES)]
    parts = [ir.Constant(_BITS, part) for part in (pack[:LANES], pack[LANES:])]
    half = len(vectors) // 2
    return [
        builder.shuffle_vector(x, y, part)
        for x, y in zip(vectors[:half], vectors[half:], strict=True)
        for part in parts
    ]


@instruction(types.void, GIVEN, *(types.int64,) * 2, GIVEN, *(types.int64,) * 2)
def transpose(builder, x, x_index, x_row, y, y_index, y_row):
    """Write LANES x LANES numbers of x to y, rows as columns, in log₂ LANES rounds of shuffling.

    Row i begins at x[x_index + i · x_row].
    """
    x, y = builder.gep(x, [x_index]), builder.gep(y, [y_index])
    rows = _load_rows(builder, x, x_row)
    for _ in range(LANES.bit_length() - 1):
        rows = _shuffled(builder, rows)
    for i, row in enumerate(rows):
        _store(builder, row, builder.gep(y, [builder.mul(y_row, _I64(i))]))


# --- across lanes ----------------------------------------------------------------------------


def _folded(combine):
    """A function that combines the lanes of a vector, half with half, until one is left."""

    @instruction(types.float32, vector)
    def fold(builder, x):
        half = LANES // 2
        while half:
            lanes = [(lane + half) % LANES for lane in range(LANES)]
            x = combine(builder, builder.shuffle_vector(x, x, ir.Constant(_BITS, lanes)), x)
            half //= 2
        return builder.extract_element(x, _I32(0))

    return fold


total = _folded(lambda builder, x, y: builder.fadd(x, y))
largest = _folded(lambda builder, x, y: builder.select(builder.fcmp_ordered(">", x, y), x, y))


@instruction(types.int64, vector, vector)
def lanes_above(builder, x, y):
    """An integer whose bit i is 1 where lane i of x is greater than that of y."""
    bits = builder.bitcast(builder.fcmp_ordered(">", x, y), ir.IntType(LANES))
    return builder.zext(bits, _I64)


@instruction(types.int64, types.int64)
def lowest_bit(builder, bits):
    """The number of the lowest bit that is 1, of an integer other than 0."""
    return builder.cttz(bits, ir.Constant(ir.IntType(1), 1))


@instruction(types.float32, vector)
def first_lane(builder, x):
    """The number in lane 0."""
    return builder.extract_element(x, _I32(0))


@instruction(lane_sums)
def no_sums(builder):
    """LANES vectors of 0, for `add_products`."""
    return [_constant(_LLVM, 0.0)] * LANES


@instruction(lane_sums, GIVEN, types.int64, types.int64)
def load_sums(builder, array, index, step):
    """LANES vectors: elements of a flat float32 array from `index`, `index` + `step`, … on."""
    return _load_rows(builder, builder.gep(array, [index]), step)


@instruction(lane_sums, lane_sums, types.int64, types.int64, vector)
def add_products(builder, sums, address, row_bytes, x):
    """Add the products of x and each of LANES rows of float32, at an address."""
    added = []
    for i in range(LANES):
        row = _read(builder, builder.add(address, builder.mul(row_bytes, _I64(i))), "float32")
        added.append(_call(builder, "fma", row, x, builder.extract_value(sums, i)))
    return added


@instruction(vector, lane_sums)
def sum_each(builder, sums):
    """A vector whose lane i is the sum of vector i.

    In each of log₂ LANES rounds, two vectors are shuffled, and the two results are added: half as
    many vectors, of sums of twice as many.
    """
    vectors = [builder.extract_value(sums, i) for i in range(LANES)]
    while len(vectors) > 1:
        shuffled = iter(_shuffled(builder, vectors))
        vectors = [builder.fadd(x, y) for x, y in zip(shuffled, shuffled, strict=True)]
    return vectors[0]


FLOAT32, FLOAT16, BFLOAT16, E4M3 = range(4)  # the kind of number at an address
BYTES = np.array([4, 2, 2, 1])


@functools.cache
def kind_of(dtype):
    """Which of the three a dtype of NumPy is."""
    return ("float32", "float16", "bfloat16").index(dtype.name)
