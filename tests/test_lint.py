"""analysis.lint: a kernel with one fault gives that finding on that line; mended, it gives none.

The faulty line of each kernel ends in the comment "fault"; `mend` is text of it and what takes its
place. Mending must not only silence the lint: the machine code must have fewer of the instructions
that the fault was made of.
"""

import inspect
import linecache
import math
import textwrap

import numpy as np
import pytest
from cases import thorough
from numba import cuda, float32, int64, types, uint32, uint64, void

from fa_numba import analysis
from fa_numba.analysis.machine_code import compile_ptx, disassembler_available

pytestmark = pytest.mark.skipif(
    not disassembler_available(), reason="needs NVVM, NVRTC, ptxas and nvdisasm"
)

X = np.zeros(4096, np.float32)
MATRIX = np.zeros((8, 8), np.float32)
float16 = types.float16
HALF = types.Array(float16, 1, "C")
SCALE = 0.1  # a Python float, and no float32
SCALE32 = np.float32(0.1)
DIVISOR = 7


@cuda.jit(device=True)
def tenth(a):
    return a * 0.1  # fault


@cuda.jit(device=True)
def tenth_mended(a):
    return a * float32(0.1)


class NegativeIndexOfSharedTile:
    kind, args = "negative index", (X, X)
    mend = {"row * 64 + d + e": "uint64(row * 64 + d + e)"}

    @cuda.jit
    def faulty(x, y):
        tile = cuda.shared.array(1024, float32)
        tid = uint64(cuda.threadIdx.x)
        row = cuda.threadIdx.x
        tile[tid] = x[tid]
        cuda.syncthreads()
        total = float32(0.0)
        for d in range(0, 64, 4):
            for e in range(4):
                total += tile[row * 64 + d + e]  # fault
        y[tid] = total


class NegativeIndexInTwoDimensions:
    kind, args = "negative index", (MATRIX, MATRIX)
    mend = {"x[row,": "x[uint64(row),"}

    @cuda.jit
    def faulty(x, y):
        row, col = cuda.grid(2)
        y[uint64(row), uint64(col)] = x[row, uint64(col)]  # fault


class Float64RunningSum:
    kind, args = "float64", (X, X)
    mend = {"0.0": "float32(0.0)"}

    @cuda.jit
    def faulty(x, y):
        total = 0.0  # fault
        for j in range(8):
            total += x[j]
        y[0] = total


class Float64Literal:
    kind, args = "float64", (X, X)
    mend = {"* 0.1": "* float32(0.1)"}

    @cuda.jit
    def faulty(x, y):
        y[1] = -1.5  # stored as float32: no fault
        y[0] = x[0] * 0.1  # fault


class Float64Comparison:
    kind, args = "float64", (X, X)
    mend = {"> 0.1": "> float32(0.1)"}

    @cuda.jit
    def faulty(x, y):
        if x[0] > 0.1:  # fault
            y[0] = x[1]


class Float64Closure:
    kind, args = "float64", (X, X)
    mend = {"SCALE": "SCALE32"}

    @cuda.jit
    def faulty(x, y):
        y[0] = x[0] * x[1] + SCALE  # fault


class Float64OfIntegers:
    kind, args = "float64", (X, X, 3)
    mend = {"/ n": "/ float32(n)"}

    @cuda.jit
    def faulty(x, y, n):
        mean = x[0] / n  # fault
        y[0] = mean


class Float64Function:
    kind, args = "float64", (X, X, 3)
    mend = {"sqrt(n)": "sqrt(float32(n))"}

    @cuda.jit
    def faulty(x, y, n):
        norm = math.sqrt(n)  # fault
        y[0] = x[0] * norm


class Float64Power:
    kind, args = "float64", (X, X, 3)
    mend = {"** n": "** float32(n)"}

    @cuda.jit
    def faulty(x, y, n):
        y[0] = x[0] ** n  # fault


class Float64InDeviceFunction:
    kind, args = "float64", (X, X)
    mend = {"tenth": "tenth_mended"}

    @cuda.jit
    def faulty(x, y):
        y[0] = tenth(x[0]) + x[1]


class DivisionByArgument:
    kind, args = "division", (X, X, 3)
    mend = {"i // n": "uint32(i) // uint32(DIVISOR)"}

    @cuda.jit
    def faulty(x, y, n):
        i = cuda.grid(1)
        row = i // n  # fault
        y[uint64(i)] = x[uint64(row)]


class ModuloByArgument:
    kind, args = "division", (X, X, np.uint32(3))
    mend = {"% n": "% uint32(DIVISOR)"}

    @cuda.jit
    def faulty(x, y, n):
        i = uint32(cuda.threadIdx.x)
        y[i] = x[i % n]  # fault


class DivisionByRange:
    kind, args = "division", (X, X)

    @cuda.jit
    def faulty(x, y):
        for i in range(cuda.threadIdx.x, x.size, cuda.blockDim.x):  # fault
            y[uint64(i)] = x[uint64(i)]

    @cuda.jit
    def mended(x, y):
        i = cuda.threadIdx.x
        while i < x.size:
            y[uint64(i)] = x[uint64(i)]
            i += cuda.blockDim.x


class SignedDivision:
    kind, args = "signed division", (X, X)
    mend = {"% 32": "& 31"}

    @cuda.jit
    def faulty(x, y):
        tid = cuda.threadIdx.x
        lane = tid % 32  # fault
        y[uint64(tid)] = x[uint64(lane)]


class LocalMemoryRunTimeIndex:
    kind, args = "local memory", (X, X)
    mend = {"local": "shared"}

    @cuda.jit
    def faulty(x, y):
        bins = cuda.local.array(32, float32)
        for c in range(32):
            bins[c] = float32(0.0)
        for j in range(32):
            bins[uint64(x[j])] += float32(1.0)  # fault
        for c in range(32):
            y[c] = bins[c]


class LocalMemoryLongLoop:
    kind, args = "local memory", (X, X)
    mend = {"512": "64", "511": "63"}

    @cuda.jit
    def faulty(x, y):
        acc = cuda.local.array(512, float32)  # fault
        for c in range(512):
            acc[uint64(c)] = x[uint64(c)]
        total = float32(0.0)
        for c in range(512):
            total = total * acc[uint64(511 - c)]
        y[0] = total


class LocalMemoryOfFloat16:
    kind, args = "local memory", (HALF, HALF)
    mend = {"x[0] * x[1]": "float16(float32(x[0]) * float32(x[1]))"}

    @cuda.jit
    def faulty(x, y):
        y[0] = x[0] * x[1]  # fault


class Spill:
    kind, args = "spill", (X, X)
    mend = {"96": "24", "95": "23"}

    @cuda.jit(launch_bounds=1024)
    def faulty(x, y):
        tid = uint64(cuda.threadIdx.x)
        acc = cuda.local.array(96, float32)
        for c in range(96):
            acc[c] = x[uint64(tid + uint64(c * 1024))]  # fault
        cuda.syncthreads()
        for c in range(96):
            y[uint64(tid + uint64(c * 1024))] = acc[95 - c]


CASES = [
    NegativeIndexOfSharedTile, NegativeIndexInTwoDimensions, Float64RunningSum, Float64Literal,
    Float64Comparison, Float64Closure, Float64OfIntegers, Float64Function,
    Float64InDeviceFunction, DivisionByArgument, ModuloByArgument, DivisionByRange,
    SignedDivision, LocalMemoryRunTimeIndex, LocalMemoryLongLoop, LocalMemoryOfFloat16, Spill,
]  # fmt: skip


def mended_of(case):
    """The kernel with its fault mended, as if it stood in a file."""
    if not hasattr(case, "mend"):
        return case.mended
    text, name = textwrap.dedent(inspect.getsource(case.faulty.py_func)), f"mended {case.__name__}"
    for faulty, right in case.mend.items():
        text = text.replace(faulty, right)
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    exec(compile(text, name, "exec"), names := dict(globals()))
    return names["faulty"]


def marked_line(function):
    lines, first = inspect.getsourcelines(function)
    return first + next(n for n, line in enumerate(lines) if line.rstrip().endswith("# fault"))


def of_the_fault(kind, code):
    """How many instructions of a kernel are of the sort that the fault is made of."""
    if kind == "float64":
        return code.kinds["float64"]
    if kind in ("local memory", "spill"):
        return code.kinds["local"]
    return len(code.instructions)


def check_fault(case):
    findings = analysis.lint(case.faulty, case.args, device="A100-80GB")
    guilty = tenth if case is Float64InDeviceFunction else case.faulty
    assert [(f.kind, f.line) for f in findings] == [(case.kind, marked_line(guilty.py_func))]
    assert findings[0].source.endswith("# fault")
    return findings


FIRST = {case.kind: case for case in reversed(CASES)}  # of each kind
OTHERS = [case for case in CASES if case not in FIRST.values()]


@pytest.mark.parametrize("case", OTHERS, ids=lambda case: case.__name__)
def test_one_fault_one_finding(case):
    check_fault(case)


@pytest.mark.parametrize(
    "case", [*FIRST.values(), *map(thorough, OTHERS)], ids=lambda case: case.__name__
)
def test_a_mended_kernel_has_less_of_the_fault(case):
    findings = check_fault(case)
    mended = analysis.lint(mended_of(case), case.args, device="A100-80GB")
    assert list(mended) == []
    before, after = (of_the_fault(case.kind, found.code) for found in (findings, mended))
    assert after < before
    if case.kind in ("float64", "local memory", "spill"):
        assert after == 0
    if case.kind == "division":
        assert not [label for label in mended.code.counts if label.startswith("CALL")]
    if case is NegativeIndexOfSharedTile:  # its loads merge
        before, after = (found.code.counts for found in (findings, mended))
        assert before["LDS.128"] == after["LDS.32"] == 0
        assert f"LDS.128 0 → {after['LDS.128']}" in findings.gain


@cuda.jit
def scaled(x, y, scale):  # fault
    y[0] = x[0] * scale


def test_a_python_float_as_argument():
    (finding,) = analysis.lint(scaled, (X, X, 0.5))
    lines, first = inspect.getsourcelines(scaled.py_func)
    assert (finding.kind, finding.line) == ("float64", first)
    assert finding.mend == "pass np.float32(scale)"
    assert not analysis.lint(scaled, (X, X, np.float32(0.5)))


def test_float64_arrays_ask_for_float64():
    x = X.astype(np.float64)
    assert not analysis.lint(scaled, (x, x, 0.5))


def test_a_signature_will_do():
    signature = void(float32[::1], float32[::1], int64)
    (finding,) = analysis.lint(Float64Function.faulty, signature, device=(7, 5))
    assert finding.kind == "float64"


@cuda.jit
def two_faults(x, y):
    i = cuda.threadIdx.x
    y[i] = x[i] * 0.1


def test_report():
    findings = analysis.lint(two_faults, (X, X))
    assert [f.kind for f in findings] == ["float64", "negative index"]
    text, page = str(findings), findings._repr_html_()
    for report in (text, page):
        assert "float32(0.1)" in report and "uint64(i)" in report
        assert "y[i] = x[i] * 0.1" in report
        assert "without the tests for negative indices" in report
    assert str(analysis.lint(mended_of(Float64Literal), (X, X))) == "nothing found"


def test_lint_leaves_no_trace():
    # The probed compilation must not serve a launch: device functions are kept once compiled.
    kernel, args = Float64InDeviceFunction.faulty, (X, X)
    before = compile_ptx(kernel, args)
    kept = list(tenth.overloads.values())
    analysis.lint(kernel, args)
    assert compile_ptx(kernel, args) == before or "probe" not in compile_ptx(kernel, args)
    assert all(a is b for a, b in zip(kept, tenth.overloads.values(), strict=True))
