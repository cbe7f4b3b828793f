"""bfloat16: its conversions, bit for bit those of ml_dtypes, compiled for the CPU; and for GPUs."""

import ctypes

import numpy as np
import pytest
from llvmlite import binding, ir
from numba import cuda, float32, types

from fa_numba.analysis.machine_code import TARGETS, compile_kernel, compiler_available
from fa_numba.runtime import arrays, bfloat16, launching

ml_dtypes = pytest.importorskip("ml_dtypes")
pytest.importorskip("numba.cuda.bf16")


@pytest.fixture(scope="module")
def conversions():
    """widen and narrow as functions of NumPy arrays of bits and of float32."""
    module = ir.Module()
    for name, implementation, source, target in (
        ("widen", bfloat16.widen, ir.IntType(16), ir.FloatType()),
        ("narrow", bfloat16.narrow, ir.FloatType(), ir.IntType(16)),
    ):
        function = ir.Function(module, ir.FunctionType(target, [source]), name)
        builder = ir.IRBuilder(function.append_basic_block())
        builder.ret(implementation(None, builder, None, None, function.args[0]))
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine()
    engine = binding.create_mcjit_compiler(binding.parse_assembly(str(module)), machine)
    engine.finalize_object()
    widen, narrow = (engine.get_function_address(name) for name in ("widen", "narrow"))
    widen = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_uint16)(widen)
    narrow = ctypes.CFUNCTYPE(ctypes.c_uint16, ctypes.c_float)(narrow)
    yield (
        lambda bits: np.array([widen(int(b)) for b in bits], np.float32),
        lambda x: np.array([narrow(float(y)) for y in x], np.uint16).view(ml_dtypes.bfloat16),
    )


def test_every_bfloat16_widens(conversions):
    widen, _ = conversions
    bits = np.arange(2**16, dtype=np.uint16)
    want = bits.view(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(widen(bits), want)


def test_float32_rounds_to_the_nearest_and_ties_to_even(conversions):
    _, narrow = conversions
    # Each bfloat16 with what is just above it, half way to the next, and around half way.
    tails = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    heads = np.arange(0, 2**16, 7, dtype=np.uint32) << 16
    x = (heads[:, None] | tails).ravel().view(np.float32)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        want = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(narrow(x).astype(np.float32), want)


@pytest.mark.parametrize(
    "x, want",
    [(np.nan, np.nan), (np.inf, np.inf), (-np.inf, -np.inf), (3.4e38, np.inf), (-0.0, -0.0)],
)
def test_special_numbers(conversions, x, want):
    """The largest float32 has no neighbour but infinity; a NaN must not become one."""
    _, narrow = conversions
    got = narrow(np.array([x], np.float32)).astype(np.float32)[0]
    np.testing.assert_array_equal(got, np.float32(want))
    assert np.signbit(got) == np.signbit(want) or np.isnan(want)


@pytest.mark.skipif(launching.driver is None, reason="needs numba-cuda")
def test_a_tensor_is_launched_on_by_its_name():
    description = arrays._normalize_layout(((2, 3), (3, 1), "torch.bfloat16"))
    assert description == ((2, 3), (6, 2), np.dtype(ml_dtypes.bfloat16))
    assert launching._type(description) == types.Array(cuda.types.bfloat16, 2, "C")


@cuda.jit
def double(x, y):
    i = cuda.grid(1)
    y[i] = float32(x[i]) * float32(2)


@pytest.mark.skipif(not compiler_available(), reason="needs NVVM and NVRTC")
@pytest.mark.parametrize("cc", TARGETS, ids=lambda cc: "sm_" + "".join(map(str, cc)))
def test_compiles_to_a_few_instructions_without_a_call(cc):
    x = np.zeros(4, ml_dtypes.bfloat16)
    code = compile_kernel(double, (x, x), cc=cc)
    assert "call" not in code.ptx
    assert code.local_bytes == 0
    assert len(code.instructions) < 60
