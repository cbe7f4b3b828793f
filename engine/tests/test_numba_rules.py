"""What Numba makes of a kernel's Python, where it differs from Python's or NumPy's own rules.

The oracle is Numba's compiler for CPUs, which shares its rules with the one for GPUs, wherever a
number can be asked for; else the answer follows from Numba's documentation or from the PTX.
"""

import cmath
import collections
import enum
import operator
import warnings

import numpy as np
import pytest
from numba import cuda, float32, float64, int32, njit, void
from sources import ran, run_text

import numba_cuda_simulator as simt
from numba_cuda_simulator import errors


def compiled(source, **names):
    """Return the function `f` of a text, whose source can be found."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's, of `is 3` and `~True`
        return run_text(source, dict(cuda=cuda, np=np, cmath=cmath, **names))["f"]


def assert_same(expressions, *columns):
    """The values of expressions of a, b, ...: Numba's are the engine's, with 1 and n threads.

    expressions : with semicolons between them; all in one function, as Numba compiles for long.
    columns : the values of each variable, one per thread.
    """
    names, expressions = "abc"[: len(columns)], [x.strip() for x in expressions.split(";")]
    wanted = njit(compiled(f"def f({', '.join(names)}):\n    return {', '.join(expressions)},\n"))
    rows = [wanted(*values) for values in zip(*columns, strict=True)]
    want = [np.array(values) for values in zip(*rows, strict=True)]
    lines = [f"    {n} = {n}_[i]\n" for n in names]
    lines += [f"    o{k}[i] = {expression}\n" for k, expression in enumerate(expressions)]
    parameters = ", ".join([f"{n}_" for n in names] + [f"o{k}" for k in range(len(want))])
    kernel = cuda.jit(compiled(f"def f({parameters}):\n    i = cuda.grid(1)\n{''.join(lines)}"))
    for threads in (1, len(rows)):
        got = [np.zeros(threads, x.dtype) for x in want]
        kernel[1, threads](*(c[:threads].copy() for c in columns), *got)
        for expression, x, y in zip(expressions, got, want, strict=True):
            np.testing.assert_array_equal(x, y[:threads], f"{expression}, {threads} threads")


# --- operators, against Numba's compiler --------------------------------------------------------

INTEGERS = {
    "bool": [1, 0], "int8": [-128, -1, 0, 5, 127], "uint8": [255, 0, 1, 200],
    "int16": [-32768, -7, 9], "uint16": [5, 0, 65535], "int32": [-(2**31), -3, 3, 2**31 - 1],
    "uint32": [5, 0, 2**32 - 1], "int64": [-(2**63), -3, 3, 2**63 - 1],
    "uint64": [2**64 - 1, 0, 3, 2**63],
}  # fmt: skip


@pytest.mark.parametrize("dtype", [name for name in INTEGERS if name != "bool"])
def test_narrow_integers_are_inverted_and_negated_before_they_are_widened(dtype):
    expressions = "~a ; -a ; ~a >> 1 ; -a >> 1 ; -(~a) ; ~(-a)"
    assert_same(expressions, np.array(INTEGERS[dtype], dtype))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.filterwarnings("ignore")
def test_is_compares_values_of_one_type(dtype):
    expressions = "a is True ; a is not True ; (a > 1) is True ; (a > 1) is not False ; a is 3"
    assert_same(expressions + " ; a is None", np.array(INTEGERS[dtype], dtype))


@pytest.mark.parametrize("other", INTEGERS)
def test_division_of_integers_goes_through_float64(other):
    b = np.array([x or 1 for x in INTEGERS[other]], other)
    a = np.resize(np.array([2**64 - 1, 2**63, 3], np.uint64), len(b))
    assert_same("a / b ; b / a", a, b)


def test_powers():
    assert_same("a ** 2 + 10 * a ** 3 + 1000 * a ** 5 + 2.0 ** -4", np.array([1.0, 2, 3]))


@pytest.mark.parametrize("other", ["int8", "int32", "uint32", "int64", "uint64"])
def test_signed_integers_beside_uint64(other):
    expressions = """
        a == b ; a != b ; a < b ; a <= b ; a > b ; a >= b ; min(a, b) ; max(a, b) ; a + b ; a - b
        a * b ; a // b ; a % b ; a & b ; divmod(a, b)[0] ; divmod(a, b)[1] ; divmod(a, 3)[0]
        divmod(a, 3)[1] ; a == 9007199254740992
    """.strip().replace("\n", ";")
    a = np.array([2**64 - 1, 2**63, 2**53 + 1, 2**53 + 1, 3], np.uint64)
    b = np.array([2**63 - 1, 3, 2**53, 2**53 + 1, 3]).astype(other)
    b[b == 0] = 1
    assert_same(expressions, a, b)
    assert_same(expressions, b, a)


@pytest.mark.parametrize("result", ["x[0] * 2", "x", "1", "x[0] if x[0] > 5 else 0", "twice(x[0])"])
def test_a_kernel_returns_nothing(result):
    twice = cuda.jit(compiled("def f(a):\n    return 2 * a\n"), device=True)
    kernel = compiled(f"def f(x):\n    if x.size > 0:\n        return {result}\n", twice=twice)
    for threads in (1, 2):
        with pytest.raises(errors.UnsupportedError, match="void return type") as caught:
            cuda.jit(kernel)[1, threads](np.zeros(1))
        assert caught.value.lines == (3,)


@pytest.mark.parametrize("result", ["", "None", "nothing()"])
def test_a_kernel_may_return(result):
    nothing = cuda.jit(compiled("def f():\n    return\n"), device=True)
    kernel = compiled(f"def f(x):\n    return {result}\n", nothing=nothing)
    cuda.jit(kernel)[1, 2](np.zeros(1))


def test_a_device_array_is_no_number():
    with pytest.raises(TypeError, match="copy_to_host"):
        cuda.to_device(np.zeros(3)) + 1


def test_an_outer_name_that_is_only_read():
    outer = 3.0

    @cuda.jit
    def kernel(o):
        nonlocal outer
        o[0] = outer

    out = np.zeros(1)
    kernel[1, 1](out)
    assert out[0] == 3


def test_an_outer_name_that_is_assigned():
    outer = 3.0

    @cuda.jit
    def kernel(o):
        nonlocal outer
        outer = o[0]

    said = "an assignment to a variable of an outer function cannot be used in a CUDA kernel"
    with pytest.raises(TypeError, match=said):
        kernel[1, 1](np.zeros(1))


@pytest.mark.parametrize("dtype", ["int32", "uint8", "float32", "float64", "bool"])
def test_truth_values_are_numbers(dtype):
    assert_same("a + True ; a * (a > 0) - False", np.array([1, 0, 1], dtype))
    assert ran("o[0] = True", o=np.zeros(1, dtype)) == [1]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("digits", [0, 1, 3, 5, 25, -1, -2])
def test_round_to_digits(dtype, digits):
    """By the steps of numba.cuda's round_to_impl, whose round is that of a float64 to an int64."""
    x = np.array([0.3425, 2.5, -1.005, 123.456, 1e15, np.nan, np.inf, -np.inf, 1e30], dtype)

    def numbas(x):
        if np.isinf(x) or np.isnan(x):
            return x
        power, rest = 10.0 ** (digits - 22 if digits > 22 else abs(digits)), 1.0
        rest = 1e22 if digits > 22 else 1.0
        y = float(x) * power * rest if digits >= 0 else float(x) / power
        if np.isinf(y):
            return x
        z = float(np.clip(np.rint(y), -(2.0**63), 2.0**63))
        return x.dtype.type(z / rest / power if digits >= 0 else z * power)

    kernel = cuda.jit(compiled(f"def f(x, out):\n    out[0] = round(x[0], {digits})\n"))
    out = np.zeros(1, dtype)
    with np.errstate(all="ignore"):
        for value in x:
            kernel[1, 1](np.array([value]), out)
            np.testing.assert_array_equal(out[0], numbas(value))


# --- stores beyond the range of a type ----------------------------------------------------------


@pytest.mark.parametrize("dtype", "int8 int16 int32 int64 uint8 uint16 uint32 uint64".split())
@pytest.mark.parametrize("value", [2**40 + 3, -(2**40) - 5, 1e20, -1e20])
def test_one_thread_stores_what_many_store(dtype, value):
    x = np.array([value, value])
    with np.errstate(all="ignore"):
        want = x.astype(dtype).tolist()
    assert ran("o[cuda.grid(1)] = x[cuda.grid(1)]", 2, x=x, o=np.zeros(2, dtype)) == want
    for threads in 1, 32:
        assert ran("o[0] = x[0]", threads, x=x, o=np.zeros(1, dtype)) == want[:1]


# --- explicit signatures ------------------------------------------------------------------------


@cuda.jit("void(float64[:], float32)")
def in_float32(out, a):
    out[0] = a


@cuda.jit([void(int32[:], int32)])
def leading_zeros(out, a):
    out[0] = cuda.clz(a)


@cuda.jit((float32[::1], int32))
def third_of_an_int32(out, a):
    out[0] = a / 3


@cuda.jit("float32(float32)", device=True)
def third(x):
    return x / 3


@cuda.jit(["int32(int32)", float64(float64)], device=True)
def one_more(x):
    return x + 1


@cuda.jit
def call_both(x, out):
    out[0] = third(1.0)
    out[1] = one_more(2.5)
    out[2] = one_more(int32(2**31 - 1))


@cuda.jit([(float32[:], float32), void(float64[:], float64)])
def of_two_types(out, a):
    out[0] = a + 0.1


@cuda.jit("void(UniTuple(float32, 2), float64[:])")
def of_a_tuple(pair, out):
    out[0] = pair[0]


def test_arguments_become_what_the_signature_says():
    out = np.zeros(3)
    in_float32[1, 1](out, 0.1)
    assert out[0] == np.float32(0.1)
    of_a_tuple[1, 1]((0.1, 0.2), out)
    assert out[0] == np.float32(0.1)
    counted = np.zeros(1, np.int32)
    leading_zeros[1, 1](counted, 0x00100000)
    assert counted[0] == 11
    leading_zeros[1, 1](counted, 2**32 + 1)  # as ctypes.c_int32 wraps it
    assert counted[0] == 31


def test_device_functions_convert_arguments_and_result():
    out = np.zeros(3)
    call_both[1, 1](np.zeros(1), out)
    assert out.tolist() == [np.float32(1) / np.float32(3), 3.5, -(2.0**31)]


def test_the_best_of_several_signatures():
    single, double = np.zeros(1, np.float32), np.zeros(1)
    of_two_types[1, 1](single, 0.1)
    of_two_types[1, 1](double, 0.1)
    assert single[0] == np.float32(np.float64(np.float32(0.1)) + 0.1) and double[0] == 0.2


def test_flops_follow_the_signature():
    trace = simt.trace(in_float32, 1, 1, np.zeros(1), 0.1)
    assert trace.flops.total == 0
    kernel = cuda.jit("void(float32[:], float32)")(compiled("def f(o, a):\n    o[0] = a * a\n"))
    assert simt.trace(kernel, 1, 1, np.zeros(1, np.float32), 0.1).flops.by_dtype == {"float32": 1}


def test_an_array_of_the_other_signedness_is_taken_for_the_signatures():
    counted = np.array([2**32 - 1], np.uint32)
    kernel = cuda.jit("void(int32[:], float64[:])")(compiled("def f(x, o):\n    o[0] = x[0]\n"))
    out = np.zeros(1)
    kernel[1, 1](counted, out)
    assert out[0] == -1


@pytest.mark.parametrize("kernel, arguments, words", [
    (leading_zeros, (np.zeros(1, np.int64), 1), r"'out' must be int32\[:\] .* int64\[::1\]"),
    (leading_zeros, (np.zeros(1, np.int32), 2.5), "'a' must be int32 .* got float64"),
    (leading_zeros, (np.zeros((1, 2), np.int32), 2), r"'out' must be int32\[:\] .*\[:, ::1\]"),
    (leading_zeros, (3, 2), r"'out' must be int32\[:\] by the signature, got int64"),
    (leading_zeros, (np.zeros(1, np.int32), np.zeros(2)), "'a' must be int32"),
    (third_of_an_int32, (np.zeros(4, np.float32)[::2], 3), r"must be float32\[::1\]"),
    (of_two_types, (np.zeros(1, np.int8), 0.1), "fits none of the signatures"),
    (of_a_tuple, ((1.0, 2.0, 3.0), np.zeros(1)), "'pair' must be"),
])  # fmt: skip
def test_arguments_that_do_not_fit_a_signature(kernel, arguments, words):
    with pytest.raises(errors.SignatureError, match=words):
        kernel[1, 1](*arguments)


def test_a_wrong_signature_is_refused_where_it_stands():
    with pytest.raises(TypeError, match="void return type"):
        cuda.jit("int32(int32)")(lambda a: a)
    with pytest.raises(NameError):
        cuda.jit("void(flot32)")


# --- indices ------------------------------------------------------------------------------------


def test_a_literal_negative_index_counts_from_the_end():
    body = """
        o[-1] = x[-2, -1]
        o[0] = x.shape[-1]
        o[-2] += 1
        cuda.atomic.add(o, -3, 7)
    """
    assert ran(body, x=np.arange(6.0).reshape(2, 3), o=np.zeros(5)) == [3, 0, 7, 1, 2]


def test_an_array_without_axes():
    x = np.array(3.0)
    assert ran("o[0] = x[()]; x[()] = 4", x=x, o=np.zeros(1)) == [3] and x == 4


def test_reshape_and_strides():
    body = "m = x.reshape((2, -1)); o[0] = m[1, 0] + m.strides[0] + x.ravel().size"
    assert ran(body, x=np.arange(6.0), o=np.zeros(1)) == [3 + 24 + 6]
    with pytest.raises(errors.UnsupportedError, match="cannot be reshaped"):
        ran(body, x=np.arange(12.0)[::2], o=np.zeros(1))
    with pytest.raises(errors.KernelError, match="of 5 elements cannot have the shape"):
        ran(body, x=np.arange(5.0), o=np.zeros(1))


# --- functions ----------------------------------------------------------------------------------


def one_after(g):
    @cuda.jit(device=True)
    def f(x):
        return g(x) + 1

    return f


double = cuda.jit(device=True)(lambda x: 2 * x)
plus, minus = cuda.jit(device=True)(lambda x: x + 1), cuda.jit(device=True)(lambda x: x - 1)
three_more = one_after(one_after(one_after(double)))


@cuda.jit(device=True)
def fibonacci(n):
    if n < 2:
        return n
    return fibonacci(n - 1) + fibonacci(n - 2)


@cuda.jit(device=True)
def apply(function, a, b):
    return function(a, b)


@cuda.jit(device=True)
def update(atomic, x, i):
    return atomic(x, i, 2)


@cuda.jit(device=True)
def first_of_a_tile(n, out):
    tile = cuda.shared.array(n, float32)
    tile[0] = 1
    out[0] = tile[0] + tile.size


SIZE = 8


def test_closures_of_one_factory_and_lambdas():
    body = "i = cuda.grid(1); o[i] = three_more(i) + 10 * plus(i) + 100 * minus(i)"
    want = [2 * i + 3 + 10 * (i + 1) + 100 * (i - 1) for i in range(4)]
    assert ran(body, threads=4, world=globals(), o=np.zeros(4, int)) == want


def test_recursion():
    body = "o[cuda.grid(1)] = fibonacci(cuda.grid(1))"
    want = [0, 1, 1, 2, 3, 5, 8, 13]
    assert ran(body, 4, 2, globals(), o=np.zeros(8, int)) == want


def test_functions_of_the_module_operator():
    body = """
        o[0] = apply(operator.add, x[0], 3) + operator.floordiv(7, x[0]) + operator.neg(x[0])
        o[1] = operator.getitem(x, 0) if operator.lt(x[0], 9) else 0
    """
    world = globals() | {"operator": operator}
    assert ran(body, world=world, x=np.array([2.0]), o=np.zeros(2)) == [2 + 3 + 3 - 2, 2]


def test_an_atomic_as_an_argument():
    body, x = "o[cuda.grid(1)] = update(cuda.atomic.add, x, 0)", np.zeros(1, np.int32)
    assert ran(body, 4, world=globals(), x=x, o=np.zeros(4)) == [0, 2, 4, 6] and x[0] == 8


def test_atomics_on_slices():
    body = """
        i = cuda.grid(1)
        o[i] = cuda.atomic.compare_and_swap(x[i:], 1, 5)
        cuda.atomic.add(x[4:], 0, 10)
    """
    x = np.array([1, 2, 1, 7, 0], np.int32)
    assert ran(body, threads=4, x=x, o=np.zeros(4)) == [1, 2, 1, 7]
    assert x.tolist() == [5, 2, 5, 7, 40]


def test_enumerate_and_zip_of_a_range():
    body = """
        for i, k in enumerate(range(2, 10, 3)):
            o[i] += k
        for k, value in zip(range(3), o):
            o[k] = 100 * value
    """
    assert ran(body, o=np.zeros(3)) == [200, 500, 800]


def test_the_shape_of_an_array_in_a_device_function():
    assert ran("first_of_a_tile(4, o)", world=globals(), o=np.zeros(1)) == [5]
    assert ran("first_of_a_tile(n=SIZE, out=o)", world=globals(), o=np.zeros(1)) == [9]
    with pytest.raises(errors.UnsupportedError, match="constant, but 'n' is an argument"):
        ran("first_of_a_tile(n, o)", world=globals(), n=4, o=np.zeros(1))


# --- values that are no numbers -----------------------------------------------------------------


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Planet(enum.Enum):
    EARTH = (5.97, 6378)
    MARS = (0.64, 3397)


class Step(enum.IntEnum):
    FIRST = 3
    LAST = 4


Point = collections.namedtuple("Point", "x y")
ORIGIN = Point(1, 2.5)


def test_members_of_an_enum():
    body = """
        i = cuda.grid(1)
        mine = Colour.RED
        if x[i] > 1:
            mine = Colour.BLUE
        o[i] = 1 if mine is Colour.RED else 2
        o[i] += 10 * Step.LAST + 100 * mine.value + 1000 * Step.FIRST.value
        if colour == Colour["BLUE"]:
            o[i] += 10000
        if planet != Planet.EARTH:
            o[i] += planet.value[0]
    """
    how = {"threads": 2, "world": globals(), "x": np.array([1, 2])}
    found = ran(body, **how, colour=Colour.BLUE, planet=Planet.MARS, o=np.zeros(2))
    assert found == [13141.64, 13242.64]
    found = ran(body, **how, colour=Colour.RED, planet=Planet.EARTH, o=np.zeros(2))
    assert found == [3141, 3242]


def test_named_tuples():
    body = """
        q = Point(p.x + 1, p.y)
        if cuda.grid(1) == 1:
            q = Point(7, 8.0)
        o[cuda.grid(1)] = 10 * q.x + q.y + 100 * ORIGIN.y
    """
    assert ran(body, 2, world=globals(), p=Point(1, 2.0), o=np.zeros(2)) == [272, 328]


@pytest.mark.parametrize("p, hint", [
    (Point(1, 2), "Its fields are x, y"),
    ((1, 2), "It is a tuple"),
    (3.0, "It is a number here, of type float64"),
    (np.zeros(2), "Arrays have .shape"),
], ids=["named", "tuple", "number", "array"])  # fmt: skip
def test_an_attribute_that_is_not_there(p, hint):
    with pytest.raises(errors.UnsupportedError, match="p.z is not available") as caught:
        ran("o[0] = p.z", p=p, o=np.zeros(1))
    assert hint in caught.value.hint


COMPLEX = """acos acosh asin asinh atan atanh cos cosh exp log log10 sin sinh sqrt tan tanh phase
    isnan isinf isfinite""".split()


@pytest.mark.parametrize("name", COMPLEX)
def test_functions_of_complex_numbers(name):
    for z in (0.5 + 0.25j, -2 + 1j, 3 - 0.5j):
        got = ran(f"o[0] = cmath.{name}(z[0])", z=np.array([z]), o=np.zeros(1, complex))
        np.testing.assert_allclose(got, getattr(cmath, name)(z), rtol=1e-13)


def test_polar_coordinates_and_logarithms():
    body = "r, phi = cmath.polar(z[0]); o[0] = cmath.rect(r, phi); o[1] = cmath.log(z[0], 2.0)"
    z = np.array([1 + 2j])
    got = ran(body, z=z, o=np.zeros(2, complex))
    np.testing.assert_allclose(got, [z[0], cmath.log(z[0], 2)])


# --- launches -----------------------------------------------------------------------------------


@cuda.jit
def with_a_default(out, a, b=3):
    out[0] = a + b


def test_default_arguments():
    out = np.zeros(1)
    with_a_default[1, 1](out, 1)
    assert out[0] == 4
    with_a_default[1, 1](out, 1, 2)
    assert out[0] == 3
    with pytest.raises(errors.LaunchError, match="takes 3 arguments, got 1"):
        with_a_default[1, 1](out)


def test_hints_of_what_is_copied():
    a, b, c = np.ones(2), np.ones(2), np.ones(2)
    kernel = cuda.jit(compiled("def f(a, b, c):\n    b[0] = a[0]; a[0] = 9; c[0] += 1\n"))
    kernel[1, 1](cuda.In(a), cuda.Out(b), cuda.InOut(c))
    assert a.tolist() == [1, 1] and b[0] == 1 and np.isnan(b[1]) and c.tolist() == [2, 1]


SHARED_BY_NAME = None


@cuda.jit
def use_a_global_device_array(out):
    out[0] = SHARED_BY_NAME[1]
    SHARED_BY_NAME[2] = 7


def test_a_device_array_by_its_global_name():
    global SHARED_BY_NAME
    SHARED_BY_NAME = cuda.to_device(np.arange(3.0))
    out = np.zeros(1)
    use_a_global_device_array[1, 1](out)
    assert out[0] == 1 and SHARED_BY_NAME.copy_to_host().tolist() == [0, 1, 7]


def test_device_arrays_like_others():
    like = cuda.device_array_like(np.zeros((2, 3), order="F"))
    assert like.flags == {"C_CONTIGUOUS": False, "F_CONTIGUOUS": True}
    original = cuda.to_device(np.zeros((2, 3)))
    transposed = original.T  # a copy, as Numba's is
    transposed[0, 0] = 5
    assert transposed.shape == (3, 2) and original[0, 0] == 0


def test_no_tasks_are_no_launch():
    third.forall(0)(1.0)


# --- barriers and races -------------------------------------------------------------------------


def test_the_order_of_branches_does_not_matter():
    waits, leaves = "cuda.syncthreads()\n    o[i] = 1", "o[i] = 2\n    return"
    for test, body, other in ("i < n", waits, leaves), ("i >= n", leaves, waits):
        text = f"i = cuda.grid(1)\nif {test}:\n    {body}\nelse:\n    {other}\no[i] += 4"
        assert ran(text, threads=6, n=4, o=np.zeros(6)) == [5, 5, 5, 5, 2, 2]
    with pytest.raises(errors.BarrierDivergenceError):
        ran("i = cuda.grid(1)\nif i < n: cuda.syncthreads()\no[i] = 1", 6, n=4, o=np.zeros(6))


def halves_apart(before, after, blocks=1, **arguments):
    """Run statements before and after each half of a warp synchronises by itself."""
    body = f"""s = cuda.shared.array(32, np.int32)
t, b = cuda.threadIdx.x, cuda.blockIdx.x
{before}
if t < 16: cuda.syncwarp(0x0000FFFF)
else: cuda.syncwarp(0xFFFF0000)
{after}"""
    ran(body, 32, blocks, **arguments)


@pytest.mark.parametrize("array", ["s", "x"])
def test_parts_of_a_warp_that_synchronise_apart(array):
    before = f"{array}[t] = t"
    mine, others = f"o[t] = {array}[t // 16 * 16 + 15 - t % 16]", f"o[t] = {array}[31 - t]"
    how = {"x": np.zeros(32), "o": np.zeros(32)}
    halves_apart(before, mine, **how)
    halves_apart(before, f"cuda.syncwarp(); {others}", **how)
    # The second half hears of the first by way of threads 0 and 16.
    third = "if t % 16 == 0: cuda.syncwarp(0x00010001)\nif t >= 16:\n    cuda.syncwarp(0xFFFF0000)"
    halves_apart(before, f"{third}\n    {others}", **how)
    with pytest.raises(errors.RaceError, match="RAW race"):
        halves_apart(before, others, **how)
    for who in (0, 16):
        with pytest.raises(errors.RaceError, match="WAR race"):
            halves_apart("o[t] = x[0]", f"if t == {who}: x[0] = 5", **how)


def test_they_are_found_where_each_block_is_followed_alone():
    with pytest.raises(errors.RaceError, match="RAW race"):
        halves_apart(
            "s[(t + b) % 32] = t", "o[b, t] = s[(31 - t + b) % 32]", 40, o=np.zeros((40, 32))
        )


def test_one_buffer_under_two_item_sizes():
    wide = np.zeros(32, np.float32)
    how = {"threads": 32, "wide": wide, "narrow": wide.view(np.int8)}
    first = "t = cuda.threadIdx.x\nnarrow[4 * t] = t\n"
    ran(f"{first}wide[t] = 1; narrow[4 * t + 1] = t", **how)
    for racing in "wide[t // 2] = 1", "wide[31 - t] = wide[t]":
        with pytest.raises(errors.RaceError):
            ran(first + racing, **how)
    z = np.zeros(32, np.complex64)
    with pytest.raises(errors.RaceError, match=r"RAW race on real\[31\]|RAW race on real\[62\]"):
        ran("t = cuda.threadIdx.x; z[t] = t; o[t] = real[31 - t]", 32, z=z, real=z.real,
            o=np.zeros(32))  # fmt: skip


def test_an_array_that_begins_before_the_part_that_is_stored_to():
    body, buffer = "late[cuda.threadIdx.x] = early[8 + cuda.threadIdx.x]", np.zeros(64)
    ran(body, 16, early=buffer[:32], late=buffer[32:])
    with pytest.raises(errors.RaceError, match="WAR race|RAW race"):
        ran(body, 16, early=buffer[:32], late=buffer[12:])


# --- customary code that CUDA's rules forbid ----------------------------------------------------


@cuda.jit
def add_by_swapping(x):
    old = x[0]
    while True:
        assumed = old
        old = cuda.atomic.cas(x, 0, assumed, assumed + 1)
        if old == assumed:
            break


def test_a_loop_of_compare_and_swap_is_warned_of():
    x = np.zeros(1, np.int32)
    with pytest.warns(errors.KernelWarning, match="race on x.0.*\n.*customary") as caught:
        add_by_swapping[4, 64](x)
    assert x[0] == 256 and caught[0].filename == __file__
    with pytest.raises(errors.RaceError):
        ran("o[cuda.grid(1)] = x[0]; cuda.atomic.add(x, 0, 1)", 64, x=x, o=np.zeros(64))


COPY_THE_FIRST = "i = cuda.grid(1); x[i] = x[0]"


def test_a_store_of_what_was_loaded_there_is_warned_of():
    with pytest.warns(errors.KernelWarning, match="just loaded there"):
        assert not any(ran(COPY_THE_FIRST, 32, x=np.arange(32.0)))
    with pytest.raises(errors.RaceError):  # all values are equal, but not by the code
        ran("i = cuda.grid(1); x[i] = x[(i + 1) % x.size]", 32, x=np.zeros(32))


def test_so_it_is_in_shared_memory():
    body = """
        tile = cuda.shared.array(32, np.float32)
        t = cuda.threadIdx.x
        tile[t] = x[t]
        cuda.syncwarp()
        tile[t] = tile[0]
        o[t] = tile[t]
    """
    with pytest.warns(errors.KernelWarning, match="just loaded there"):
        assert ran(body, 32, x=np.arange(3.0, 35.0), o=np.zeros(32)) == [3] * 32


def test_reductions():
    """Numba's own kernel synchronises a warp in a branch."""
    total, largest = cuda.reduce(lambda a, b: a + b), cuda.reduce(lambda a, b: max(a, b))
    x = np.arange(1000.0)
    with pytest.warns(errors.KernelWarning, match="syncwarp"):
        assert total(x) == x.sum()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.KernelWarning)
        assert largest(x) == 999 and total(np.arange(40), init=2) == 782
        assert total(cuda.to_device(x), size=700) == x[:700].sum()


@cuda.jit
def smooth(x, n):
    i = cuda.grid(1)
    if i >= n:
        return
    grid = cuda.cg.this_grid()
    for _ in range(3):
        v = x[(i + 1) % n]
        grid.sync()
        x[i] = v + 1
        grid.sync()


def test_a_grid_that_waits_for_itself_after_an_early_return():
    x = np.zeros(10)
    with pytest.warns(errors.KernelWarning, match="which has returned"):
        smooth[3, 4](x, 10)
    assert (x == 3).all()
    with pytest.raises(errors.BarrierDivergenceError, match="thread .0, 0, 0. of block .2, 0, 0."):
        smooth[3, 4](x, 8)  # a whole block is gone: the GPU would hang


def test_warnings_can_be_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error", errors.KernelWarning)
        with pytest.raises(errors.KernelWarning):
            ran(COPY_THE_FIRST, 32, x=np.arange(32.0))
