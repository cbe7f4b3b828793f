"""The CPU engine computes in Numba's types, asked of Numba's own compiler, which needs no GPU.

Each expression is compiled as a device function and run on the engine; the type that Numba infers
must be the dtype that the engine's value has. Precision is what a learner sees of types: a kernel
that says `s * 2.0` runs in float64 on a GPU, and must do so here.
"""

import cmath
import math

import numpy as np
import pytest
from collection import EVERY
from compiled import compile_ptx, compiler_available
from numba import cuda, from_dtype, typeof, types
from numba.core.errors import TypingError
from sources import run_text

import numba_cuda_simulator as simt
from numba_cuda_simulator.memory import Memory

pytestmark = pytest.mark.skipif(not compiler_available(), reason="libNVVM is not installed")

NAMES = "boolean complex64 float16 float32 float64 int8 int32 int64 uint8 uint32".split()
WORLD = {name: getattr(types, name) for name in NAMES}
WORLD |= dict(cmath=cmath, cuda=cuda, math=math, np=np)
SCALARS = {
    "b": "bool", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8",
    "u16": "uint16", "u32": "uint32", "u64": "uint64", "f32": "float32", "f64": "float64",
    "f16": "float16", "c64": "complex64", "c128": "complex128",
}  # fmt: skip

INTEGERS = """
i8 + i8 ; i16 * i16 ; i32 + i32 ; i32 - i64 ; i64 * i64 ; u8 + u8 ; u8 - u16 ; u32 * u32 ; u64 + u64
u8 + i8 ; u16 - i16 ; u32 + i32 ; u32 - 1 ; u32 + i64 ; u8 * 2 ; i8 * 2 ; 2 * 3 ; i32 + 1 ; u64 + 1
u64 + i64 ; u64 - i32 ; -i8 ; -i32 ; -u8 ; -u32 ; +i16 ; ~i8 ; ~i32 ; ~u8 ; ~u32 ; ~i64 ; abs(i64)
abs(i32) ; abs(i8) ; abs(u8) ; abs(u32) ; i32 // i32 ; u32 // u32 ; u8 // 2 ; i32 % 7 ; u32 % u32
u8 % i8 ; i64 // 4 ; i32 << 2 ; u32 << 2 ; i8 << i8 ; u32 >> 1 ; i32 >> u8 ; u8 >> 1 ; i64 >> i8
1 << i32 ; i32 & 255 ; i32 | u8 ; b | i8 ; u32 & 255 ; u32 & u32 ; u8 & u8 ; i8
u8 ^ i8 ; i32 ^ u32 ; i8 & i8 ; u32 ^ (u32 << 13) ; i32 ** 2 ; u32 ** 2 ; i64 ** 3 ; i8 ** 2
"""
FLOATS = """
f32 + f32 ; f32 * f64 ; f32 * 2.0 ; f32 * 2 ; 2 * f32 ; f32 + 0.5 ; -f32 ; abs(f32) ; abs(f64)
f32 + i8 ; f32 + u8 ; f32 + i16 ; f32 + u16 ; f32 * i32 ; f32 * u32 ; f32 * i64 ; f32 + u64
f32 + b ; f64 + i8
i32 / i32 ; i8 / i8 ; u8 / 2 ; i64 / i64 ; f32 / f32 ; f32 / 2 ; f32 / 2.0 ; f32 / i32
f32 / i8 ; 1 / f32 ; 1.0 / f32 ; f32 // f32 ; f32 // 2 ; f32 % f32 ; f32 % 2 ; f64 % 2 ; f32 ** f32
f32 ** 2 ; f32 ** 2.0 ; f32 ** i32 ; f32 ** 0.5 ; f64 ** 2 ; i32 ** -1 ; i32 ** f32 ; 2 ** f32
2.0 ** f32 ; i32 ** i32
"""
TRUTH = """
f32 < f32 ; i32 == u8 ; not f32 ; not i32 ; not b ; b and b ; b or b ; b & b ; b ; b ^ b ; b + b
b * b ; b - b ; b + 1 ; b * 2.5 ; -b ; ~b ; b < i32 ; i8 < f32 ; 1 < i32 < 3 ; (i32 < 2) + (i32 > 1)
"""
CHOICES = """
f32 if b else 0 ; f32 if b else 0.0 ; f32 if b else f32 ; i32 if b else 0 ; f32 if b else i8
f32 if b else float32(0) ; i32 if b else 0.0 ; 1 if b else 2 ; 1.0 if b else 2 ; u32 if b else 0
b if b else 0 ; i8 if b else i16 ; f32 if b else f64 ; f32 if not b else f64 ; i16 if b else f64
min(f32, f32) ; max(f32, 0) ; max(f32, 0.0)
min(i32, i32) ; min(i32, 3) ; max(i8, i16) ; max(u32, u32) ; max(u8, 1) ; min(i64, f32)
max(f32, f64) ; max(f32, i8) ; max(i32, i64, 3) ; min(f32, f32, f32)
"""
CASTS = """
float32(f64) ; float32(3) ; float32(i32) * f32 ; float64(f32) ; int32(f32) ; int32(i64) ; int64(i32)
int32(i32) + int32(i32) ; uint32(i64) ; uint32(i32) * uint32(i32) ; int8(i64) ; uint8(i32)
np.float32(f64) ; np.float64(2) ; np.int32(f32) ; np.uint8(i32) ; np.float32(1) / 3 ; int(f32)
int(i32) ; int(u32) ; float(f32) ; float(i32) ; float(f64) ; bool(i32) ; bool(f32) ; boolean(i32)
round(f32) ; round(f64) ; int(f64) ; float32(b)
"""
MATH = """
math.exp(f32) ; math.exp(f64) ; math.exp(i32) ; math.exp(2) ; math.exp(u8) ; math.log(f32)
math.sqrt(f32) ; math.sqrt(i64) ; math.sin(f32) ; math.tanh(f32) ; math.floor(f32) ; math.floor(f64)
math.ceil(f32) ; math.ceil(f64) ; math.floor(i32) ; math.trunc(f32) ; math.fabs(f32)
math.fabs(f32) * 2 ; math.pow(f32, f32) ; math.pow(f32, 2) ; math.pow(f32, 2.0) ; math.pow(f64, f32)
math.pow(i32, i32) ; math.fmod(f32, f32) ; math.atan2(f32, f32) ; math.hypot(f32, f32)
math.copysign(f32, f32) ; math.erf(f32) ; math.log2(f32) ; math.log1p(f32) ; math.isnan(f32)
math.isinf(f32) ; math.inf ; math.pi * f32 ; -math.inf ; math.exp(f32 - f32) * f32
math.exp(f32 * 1.5) ; f32 * math.log(2)
"""
CUDA = """
cuda.threadIdx.x ; cuda.threadIdx.x + 1 ; cuda.blockIdx.x * cuda.blockDim.x ; cuda.gridDim.x
cuda.grid(1) ; cuda.gridsize(1) ; cuda.laneid ; cuda.threadIdx.x // 32
cuda.threadIdx.x * f32 ; cuda.laneid * f32 ; cuda.grid(1) * f32 ; cuda.blockDim.x * 0.5
cuda.popc(u32) ; cuda.popc(i64) ; cuda.popc(i32) ; cuda.ballot_sync(-1, b) ; cuda.any_sync(-1, b)
cuda.all_sync(-1, b) ; cuda.shfl_sync(-1, f32, 0) ; cuda.shfl_sync(-1, f64, 0)
cuda.shfl_down_sync(-1, i32, 1) ; cuda.shfl_xor_sync(-1, i64, 1)
cuda.shfl_up_sync(-1, f32, 1) * f32 ; cuda.syncthreads_count(i32)
cuda.syncthreads_and(i32) ; cuda.syncthreads_or(i32)
cuda.fma(f32, f32, f32) ; cuda.fma(f64, f64, f64) ; cuda.selp(b, f32, f32) ; cuda.selp(b, i32, i32)
cuda.atomic.add(shared_i32, 0, 1) ; cuda.atomic.add(shared_f32, 0, f32)
cuda.atomic.max(shared_i64, 0, 1) ; cuda.atomic.exch(shared_i32, 0, 3)
cuda.atomic.cas(shared_i64, 0, 1, 2) ; cuda.clz(i32) ; cuda.brev(u32) ; cuda.ffs(i32)
"""
ARRAYS = """
shared_f32[0] ; shared_f32[0] * f32 ; shared_i32[0] + 1 ; shared_i32[0] * f32 ; local_f32[0] + f32
local_f32[0] * 2.0 ; shared_f32.shape[0] ; len(local_f32) ; shared_f32.size ; local_f32[i32] * i8
"""
COUNTERS = """
k ; k * f32 ; k + 1 ; f32 * (k + 1) ; k // 2
"""


HALF = """
f16 + f16 ; f16 * f16 ; f16 * 2 ; f16 * 2.0 ; f16 * f32 ; f16 * f64 ; f16 * i8 ; f16 * i16
f16 * i32 ; f16 * i64 ; f16 * b ; f16 / f16 ; f16 / 2 ; f16 // f16 ; f16 % f16 ; f16 ** 2
f16 ** f16 ; -f16 ; abs(f16) ; max(f16, f16) ; max(f16, f32) ; min(f16, 1) ; float(f16) ; int(f16)
round(f16) ; float32(f16) ; float16(f32) ; float16(i32) ; np.float16(f64) ; f16 < f16 ; f16 >= 2
f16 if b else 0 ; f16 if b else f16 ; f16 * float16(2.0) ; cuda.fp16.hadd(f16, f16)
cuda.fp16.hfma(f16, f16, f16) ; cuda.fp16.hexp(f16) ; cuda.fp16.hgt(f16, f16)
cuda.fp16.hmax(f16, f16) ; cuda.fp16.hsqrt(f16) ; cuda.fp16.hneg(f16) ; cuda.fp16.hdiv(f16, f16)
"""
COMPLEX = """
c64 + c64 ; c64 * 2 ; c64 * 2.0 ; c64 * f32 ; c64 * f16 ; c64 * i8 ; i8 * c64 ; c64 * i32 ; c64 * 1j
2j * f32 ; c64 * c128 ; c64 / c64 ; c64 / f32 ; c64 ** 2 ; -c64 ; abs(c64) ; abs(c128) ; c64.real
c64.imag * 2 ; c128.real + 1 ; c64.conjugate() ; complex(f32, f32) ; complex(f64, f64)
complex(1, 2) ; complex64(f32) ; complex64(1j) ; np.complex64(c128) ; c64 == c64 ; c64 if b else 0
cmath.exp(c64) ; cmath.sqrt(c128)
"""
MATCHES = """
cuda.match_any_sync(-1, i32) ; cuda.match_all_sync(-1, i32)[0] ; cuda.match_all_sync(-1, i32)[1]
cuda.lanemask_lt() ; cuda.activemask() ; cuda.cbrt(f32) ; cuda.fma(f32, f32, f64)
cuda.eq_sync(-1, b) ; cuda.popc(u8) ; cuda.clz(i64) ; cuda.brev(i64) ; math.isfinite(f32)
math.frexp(f32)[0] ; math.frexp(f32)[1] ; math.modf(f32)[0] ; math.ldexp(f32, i32)
math.gamma(f32) ; divmod(i32, 3)[0] ; u64 // u32 ; u64 % 2
"""


COMPARED = dict(
    half=HALF, complex=COMPLEX, matches=MATCHES,
    integers=INTEGERS, floats=FLOATS, truth=TRUTH, choices=CHOICES, casts=CASTS, math=MATH,
    cuda=CUDA, arrays=ARRAYS, counters=COUNTERS,
)  # fmt: skip
GROUPS = {
    name: [expression.strip() for expression in text.strip().replace("\n", ";").split(";")]
    for name, text in COMPARED.items()
}
EXPRESSIONS = [expression for group in GROUPS.values() for expression in group]

# Integers that Numba holds in 32 bits or fewer and the engine in 64. All of them are small, and
# all arithmetic on them is in 64 bits in both, so that no kernel can tell.
HELD_AS_INT64 = {
    "cuda.threadIdx.x", "cuda.gridDim.x", "cuda.laneid", "cuda.syncthreads_count(i32)",
    "cuda.syncthreads_and(i32)", "cuda.syncthreads_or(i32)",
}  # fmt: skip

# Statements, then the expression whose type is asked for.
STATEMENTS = {
    "literal accumulator": ("s = 0.0", "for k in range(3):", "    s += f32 * f32", "s"),
    "typed accumulator": ("s = float32(0)", "for k in range(3):", "    s += f32 * f32", "s"),
    "integer accumulator": ("s = 0", "for k in range(3):", "    s += f32", "s"),
    "times int": ("s = f32", "for k in range(3):", "    s *= 2", "s"),
    "times float": ("s = f32", "for k in range(3):", "    s *= 2.0", "s"),
    "literal infinity": ("s = -math.inf", "for k in range(3):", "    s = max(s, f32)", "s"),
    "typed infinity": ("s = float32(-math.inf)", "s = max(s, f32)", "s"),
    "branches meet": ("s = f32", "if cuda.laneid < 7:", "    s = 0.0", "s"),
    "integer and float meet": ("s = i32", "if cuda.laneid < 7:", "    s = f32", "s"),
    "new value, new type": ("s = f32", "s = s * 2.0", "s = f32", "s"),
    "tuple": ("s, n = f32, i32", "s, n = n, s", "s * f32"),
}


def compiled(source):
    """The function or kernel `f` that a source text defines."""
    return run_text(source, dict(WORLD))["f"]


def declarations():
    """Source of the shared and local arrays that expressions mention."""
    for memory in ("shared", "local"):
        for name in ("i32", "i64", "f32"):
            array = f"{memory}_{name}"
            yield f"    {array} = cuda.{memory}.array(4, np.{SCALARS[name]})\n"
            yield f"    for k in range(4):\n        {array}[k] = 1\n"


def numba_types(expressions, statements=()):
    """What Numba infers for expressions of the variables in SCALARS."""
    lines = [f"def f({', '.join(SCALARS)}):\n", *declarations(), "    for k in range(2):\n"]
    lines += [f"        {line}\n" for line in statements]
    lines += [f"        e{n} = {expression}\n" for n, expression in enumerate(expressions)]
    lines += ["    return (", *(f"e{n}, " for n in range(len(expressions))), ")\n"]
    signature = tuple(from_dtype(np.dtype(dtype)) for dtype in SCALARS.values())
    _, result = cuda.compile_ptx(compiled("".join(lines)), signature, device=True, cc=(8, 0))
    return [str(types.unliteral(type_)) for type_ in result]


@pytest.fixture
def engine_types(monkeypatch):
    """A function from expressions to the dtypes that the engine stores for them."""
    stored = []
    store = Memory.store

    def spy(memory, array, index, value, site):
        if array.dtype == complex:  # `out`, alone
            stored.append(np.dtype(getattr(value, "dtype", type(value))))
        return store(memory, array, index, value, site)

    monkeypatch.setattr(Memory, "store", spy)

    def of(expressions, statements=()):
        lines = ["@cuda.jit\n", f"def f(out, {', '.join(name + '_' for name in SCALARS)}):\n"]
        lines += [f"    {name} = {name}_[cuda.threadIdx.x]\n" for name in SCALARS]
        lines += [*declarations(), "    for k in range(2):\n"]
        lines += [f"        {line}\n" for line in statements]
        lines += [f"        out[0] = {expression}\n" for expression in expressions]
        args = [np.ones(32, dtype) for dtype in SCALARS.values()]
        simt.run(compiled("".join(lines)), 1, 32, np.zeros(1, complex), *args, checked=False)
        return list(map(str, stored[-len(expressions) :]))

    return of


@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
def test_expressions(group, engine_types):
    ours, numbas = (
        {x: np.dtype(dtype) for x, dtype in zip(group, types_of(group), strict=True)}
        for types_of in (engine_types, numba_types)
    )
    for expression in HELD_AS_INT64.intersection(group):
        assert numbas.pop(expression) == np.int32 and ours.pop(expression) == np.int64
    assert ours == numbas
    assert len(set(EXPRESSIONS)) == len(EXPRESSIONS) >= 100


@pytest.mark.parametrize("name", STATEMENTS)
def test_statements(name, engine_types):
    *statements, expression = STATEMENTS[name]
    assert engine_types([expression], statements) == numba_types([expression], statements)


ATOMICS = """add sub max min nanmax nanmin and_ or_ xor exch inc dec cas
    compare_and_swap""".split()
ELEMENTS = "int8 uint16 int32 uint32 int64 uint64 float16 float32 float64".split()


@pytest.mark.parametrize("name", ATOMICS)
def test_atomics_take_what_numbas_take(name):
    values = {"cas": "0, x[1], x[2]", "compare_and_swap": "x[1], x[2]"}.get(name, "0, x[1]")
    source = f"@cuda.jit\ndef f(x, out):\n    out[0] = cuda.atomic.{name}(x, {values})\n"
    kernel = compiled(source)
    for dtype in ELEMENTS:
        args = np.arange(1, 5).astype(dtype), np.zeros(1)
        try:
            cuda.compile_ptx(kernel.py_func, tuple(map(typeof, args)), cc=(8, 0))
        except TypingError:
            with pytest.raises(simt.errors.UnsupportedError, match=name):
                simt.run(kernel, 1, 1, *args)
        else:
            simt.run(kernel, 1, 1, *args)


@pytest.mark.thorough
@pytest.mark.parametrize("launch", EVERY, ids=[launch.name for launch in EVERY])
def test_they_are_numba_cuda(launch):
    """Every kernel that the tests run on the engine compiles for a GPU."""
    compile_ptx(launch.kernel, launch.arguments())
