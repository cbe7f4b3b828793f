"""analysis.machine_code: registers, spills, shared bytes and float64 creep, without a GPU."""

import functools
import importlib
import inspect
import math
import operator
import re

import numpy as np
import pytest
from llvmlite import ir
from numba import cuda, float32, int64, types, void
from numba.cuda.compiler import CUDAFlags
from numba.cuda.core import base
from numba.cuda.descriptor import cuda_target
from numba.cuda.extending import overload

from fa_numba import analysis
from fa_numba.analysis.compile_errors import NotForGpuError
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.analysis.machine_code import (
    TARGETS,
    compile_for,
    compile_kernel,
    compile_ptx,
    compute_capability,
    disassembler_available,
    signature_of,
)
from fa_numba.kernels.flash_attn_bwd import make_dkdv

X = np.zeros(32, np.float32)

needs_nvdisasm = pytest.mark.skipif(
    not disassembler_available(), reason="needs NVVM, NVRTC, ptxas and nvdisasm"
)


@cuda.jit(device=True)
def twice(a):
    return a * float32(2)


@cuda.jit
def reverse(x, y):
    tile = cuda.shared.array(32, float32)
    i = cuda.threadIdx.x
    tile[i] = x[i]
    cuda.syncthreads()
    y[i] = twice(math.exp(tile[31 - i]))


@cuda.jit
def creeping(x, y):
    y[0] = x[0] * 0.1  # a float64 literal


@cuda.jit
def spilling(x, y, i):
    scratch = cuda.local.array(512, float32)
    for n in range(512):
        scratch[n] = x[n % 32]
    scratch[i] = x[0]  # a run-time index: the array must live in memory
    total = float32(0)
    for n in range(512):
        total = total * total + scratch[n]
    y[0] = total


@cuda.jit
def uses_list(x, y):
    y[0] = sorted([x[0], x[1]])[0]


@pytest.mark.parametrize("cc", TARGETS)
def test_reports_what_the_kernel_takes(cc):
    code = compile_kernel(reverse, (X, X), cc=cc)
    assert code.shared_bytes == 32 * 4
    assert 4 <= code.registers <= 40
    assert (code.spill_bytes, code.local_bytes, code.float64_instructions) == (0, 0, 0)
    assert f".target sm_{''.join(map(str, cc))}" in code.ptx


def test_several_targets_at_once_are_each_by_itself():
    def without_names(ptx):  # each compilation numbers them anew
        return re.sub(r"_Z[\w$]*|_cudapy_smem_\d+|__BB\d+_|//.*", "", ptx)

    for code, cc in zip(compile_for(reverse, (X, X)), TARGETS, strict=True):
        alone = compile_kernel(reverse, (X, X), cc=cc)
        assert without_names(code.ptx) == without_names(alone.ptx)
        assert (code.cc, code.registers) == (cc, alone.registers)


def test_counts_float64_instructions():
    assert compile_kernel(creeping, (X, X)).float64_instructions > 0
    with pytest.raises(AssertionError, match="float32"):
        gpu_ready(creeping, (X, X))


def test_float64_arguments_may_compute_in_float64():
    x = X.astype(np.float64)
    gpu_ready(creeping, (x, x))


def test_sees_local_memory():
    assert compile_kernel(spilling, (X, X, 3)).local_bytes >= 512 * 4


def test_what_numba_cannot_compile_is_refused_with_its_reason():
    with pytest.raises(NotForGpuError, match=r"(?s)sorted cannot be called.*line \d+: "):
        gpu_ready(uses_list, (X, X))


def test_signature_follows_the_arguments():
    strided = np.zeros((4, 6), np.float32)[:, ::2]
    types = [str(t) for t in signature_of((X, strided, 1, 1.0, np.float32(1), True))]
    assert types[0] == "array(float32, 1d, C)"
    assert types[1] == "array(float32, 2d, A)"
    assert types[2:] == ["int64", "float64", "float32", "bool"]


def test_unknown_arguments_are_named():
    with pytest.raises(TypeError, match="str"):
        signature_of(("text",))


def test_a_signature_says_it_all():
    signature = void(float32[::1], int64)
    assert [str(t) for t in signature_of(signature)] == ["array(float32, 1d, C)", "int64"]
    assert signature_of("void(float32[::1], int64)") == signature_of(signature)


def test_devices_and_compute_capabilities():
    assert compute_capability("T4") == (7, 5)
    assert compute_capability("H100") == (9, 0, "a")
    assert compute_capability((8, 6)) == (8, 6)


@needs_nvdisasm
@pytest.mark.parametrize("device", ["T4", "A100-80GB", "H200"])
def test_counts_what_the_kernel_does(device):
    code = analysis.machine_code(reverse, (X, X), device=device)
    assert (code.registers, code.shared_bytes) == (
        compile_kernel(reverse, (X, X), cc=code.cc).registers,
        128,
    )
    assert [code.counts[label] for label in ("LDG.32", "STS.32", "BAR", "LDS.32", "STG.32")] == (
        [1] * 5
    )
    assert code.counts["MUFU.EX2"] == 1
    assert code.kinds["float64"] == code.kinds["tensor"] == 0
    assert sum(code.counts.values()) == sum(code.kinds.values()) == len(code.instructions)


def line_of(text, function):
    lines, first = inspect.getsourcelines(function)
    return next(first + n for n, line in enumerate(lines) if text in line)


@needs_nvdisasm
def test_maps_instructions_to_source_lines():
    code = analysis.machine_code(reverse, (X, X), device="A100-80GB")
    body = reverse.py_func
    assert code.lines[line_of("tile[i] = x[i]", body)]["LDG.32"] == 1
    assert code.lines[line_of("tile[i] = x[i]", body)]["STS.32"] == 1
    assert code.lines[line_of("syncthreads", body)] == {"BAR": 1}
    assert code.lines[line_of("twice(", body)]["MUFU.EX2"] == 1
    assert code.lines[line_of("return a *", twice.py_func)] == {"FFMA": 1}  # inlined, and fused


@needs_nvdisasm
def test_shows_source_beside_counts():
    code = analysis.machine_code(reverse, (X, X), device="A100-80GB")
    text, page = str(code), code._repr_html_()
    for shown in (text, page):
        assert "reverse for sm_80" in shown and "MUFU.EX2 1" in shown
        assert "tile[i] = x[i]" in shown and "return a * float32(2)" in shown
    row = next(line for line in text.splitlines() if "cuda.syncthreads()" in line)
    assert row.split()[:2] == ["1", "1"]


@needs_nvdisasm
def test_division_routines_are_counted_apart():
    @cuda.jit
    def divide(x, y, n):
        y[0] = x[cuda.threadIdx.x // n]

    code = analysis.machine_code(divide, (X, X, 3), device="A100-80GB")
    assert code.counts["CALL div_s64"] == 1
    routine = [i for i in code.instructions if i.helper == "div_s64"]
    assert len(routine) > 50 and {i.line for i in routine} == {None}
    assert "(div_s64)" in str(code)


@needs_nvdisasm
def test_float64_in_machine_code():
    code = analysis.machine_code(creeping, (X, X), device="A100-80GB")
    assert code.counts["DMUL"] == 1 and code.kinds["float64"] >= 2


@needs_nvdisasm
def test_float16_arithmetic_is_a_call_left_open():
    @cuda.jit
    def square(x, y):
        y[0] = x[0] * x[0]

    half = types.Array(types.float16, 1, "C")
    code = analysis.machine_code(square, (half, half), device="A100-80GB")
    assert code.local_bytes > 0 and code.counts["CALL"] == 1


@needs_nvdisasm
def test_line_numbers_leave_device_functions_as_they_were():
    compile_ptx(reverse, (X, X))
    kept = list(twice.overloads.values())
    analysis.machine_code(reverse, (X, X))
    assert all(a is b for a, b in zip(kept, twice.overloads.values(), strict=True))
    assert ".loc" not in compile_ptx(reverse, (X, X))


@needs_nvdisasm
def test_a_kernel_without_source():
    namespace = {"cuda": cuda}
    exec("@cuda.jit\ndef doubled(x):\n    x[0] = x[0] + x[0]\n", namespace)
    code = analysis.machine_code(namespace["doubled"], (X,), device="A100-80GB")
    assert code.counts["FADD"] == 1 and "FADD 1" in str(code)


@needs_nvdisasm
def test_line_numbers_do_not_change_the_code():
    # The largest of the kernels; also one whose variables libNVVM will not have described.
    kernel = make_dkdv(64, 16, 16, True)
    heads, rows, none = types.Array(float32, 4, "C"), types.Array(float32, 3, "C"), types.Tuple(())
    args = (heads, heads, heads, heads, none, none, rows, rows, heads, heads, float32, float32)
    args += types.uint64, types.int8, none  # seed, classes and arguments of a mask
    with_lines = analysis.machine_code(kernel, args, device="A100-80GB")
    without = compile_kernel(kernel, args, cc=(8, 0))
    assert with_lines.registers == without.registers
    assert with_lines.counts == without.counts
    known = sum(i.line is not None for i in with_lines.instructions if not i.helper)
    assert known >= 0.99 * sum(not i.helper for i in with_lines.instructions)


@needs_nvdisasm
def test_methods_of_numba_that_are_replaced(monkeypatch):
    """All are known in the installed versions, and the code is the same without the new ones."""

    def compiled():
        ptx = compile_ptx(reverse, (X, X)), compile_ptx(spilling, (X, X, 3))
        return [re.sub(r"B\dv\d+|smem_\d+", "", text) for text in ptx]  # numbers of compilations

    with_all = compiled()  # imports it
    quick = importlib.import_module("fa_numba.runtime.quick_compiler")
    assert quick.replaced.keys() == quick.KNOWN.keys()
    monkeypatch.setattr(quick, "MOST_CALL_TYPES", 1)
    monkeypatch.setattr(quick, "call_types", {})
    assert compiled() == with_all and len(quick.call_types) == 1
    for owner, name, old in quick.replaced.values():
        monkeypatch.setattr(owner, name, old)
    assert compiled() == with_all
    monkeypatch.setitem(quick.KNOWN, "numba.core.targetconfig.TargetConfig.values", "another")
    quick.quicken_cpu()
    assert quick.targetconfig.TargetConfig.values is not quick.values


@needs_nvdisasm
def test_what_the_compiler_remembers_is_what_it_would_compute():
    compile_ptx(reverse, (X, X))
    quick = importlib.import_module("fa_numba.runtime.quick_compiler")  # compiling imports it
    remembered = [*quick.call_types.items()][:200]
    assert any(function.typing_key is operator.mul for (function, *_), _ in remembered)
    for (function, context, args), signature in remembered:
        assert quick.get_call_type(function, context, args, {}) == signature
    flags = CUDAFlags()
    flags.fastmath = True
    assert flags.values() == {name: getattr(flags, name) for name in flags.options}
    wraps = functools.wraps(lambda loc: loc)(lambda *args: args)
    for function in (lambda loc: loc, lambda *loc: loc, lambda a: a, wraps, print):
        assert base._has_loc(function) == ("loc" in inspect.signature(function).parameters)
    target = cuda_target.target_context
    for size, known in ((8, ir.IntType(64)), (12, ir.ArrayType(ir.FloatType(), 3))):
        assert [target.get_abi_sizeof(known) for _ in "ab"] == [size, size]


@needs_nvdisasm
def test_what_is_registered_after_a_compilation_is_found():
    def halved(x):
        return x / 2

    @cuda.jit
    def kernel(x, y):
        y[0] = halved(x[0])

    compile_ptx(reverse, (X, X))
    overload(halved)(lambda x: lambda x: x * float32(0.5))
    assert "0f3F000000" in compile_ptx(kernel, (X, X))  # 0.5
