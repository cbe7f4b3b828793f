"""Float32 on tensor cores where there is no GPU: how a float32 splits, machine code, refusals."""

import sys

import expression_cases
import numpy as np
import pytest
from cases import thorough
from machine_code_cases import needs_compiler
from numba import cuda, float32, typeof, types, uint32

pytest.importorskip("cuda.bindings", reason="needs cuda-bindings")

from fa_numba import checks
from fa_numba.analysis.machine_code import compile_kernel
from fa_numba.checks import hardware
from fa_numba.ptx.tf32 import HALF, mma_m16n8k8_tf32x3, split_tf32
from fa_numba.runtime import arrays
from fa_numba.tensor_core import flash_attn_bwd_tf32x3 as backward
from fa_numba.tensor_core import flash_attn_tf32x3 as forward

AMPERE, HOPPER = (8, 0), (9, 0, "a")
RTX_3090, A100, H200 = 99 * 1024, 163 * 1024, 227 * 1024  # shared memory of a thread block
NONE = types.Tuple(())  # no sinks, runs or arguments of a mask
array = {n: types.Array(types.float32, n, "A") for n in (3, 4)}


def compile_forward(head_dim, tiles, causal, cc):
    kernel = forward.make_flash_attn_tf32x3(head_dim, tiles, causal)
    arguments = *4 * (array[4],), array[3], *2 * (types.float32,), NONE, NONE, NONE
    return compile_kernel(kernel, arguments, cc=cc)


def split(x):
    """split_tf32 in NumPy; mma reads the first 11 bits of `small`."""
    big = (x.view(np.uint32) + np.uint32(HALF) & np.uint32(0xFFFFE000)).view(np.float32)
    small = x - big
    return big, small, (small.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def test_a_float32_is_almost_two_tf32(rng):
    x = np.ldexp(rng.standard_normal(100_000), rng.integers(-60, 60, 100_000)).astype(np.float32)
    big, small, taken = split(x)
    assert (big.astype(np.float64) + small == x).all()
    assert (np.abs(small) <= 2.0**-11 * np.abs(x)).all()
    assert (np.abs(small - taken) <= 2.0**-22 * np.abs(x)).all()


@pytest.mark.parametrize("x", [0.0, -0.0, 1.0, -(2.0**-126), 1 + 2.0**-11, 3.0e38])
def test_split_of_the_unusual(x):
    x = np.array([x], np.float32)
    big, small, _ = split(x)
    assert np.isfinite(big).all() and (big + small == x).all()


@needs_compiler
def test_a_product_is_three():
    @cuda.jit
    def kernel(x, y):
        a = cuda.local.array(4, float32)
        d = cuda.local.array(4, float32)
        big = cuda.local.array(4, uint32)
        small = cuda.local.array(4, uint32)
        for i in range(4):
            a[i], d[i] = x[4 * cuda.threadIdx.x + i], float32(0)
        split_tf32(big, small, a, HALF, 4)
        mma_m16n8k8_tf32x3(d, big, small, big[0], big[1], small[0], small[1])
        for i in range(4):
            y[4 * cuda.threadIdx.x + i] = d[i]

    x = types.Array(types.float32, 1, "C")
    code = compile_kernel(kernel, (x, x), cc=AMPERE)
    assert code.counts["HMMA.1688.F32.TF32"] == 3
    assert code.spill_bytes == code.local_bytes == code.float64_instructions == 0


@needs_compiler
@pytest.mark.parametrize("head_dim, causal, cc", [thorough(64, True, AMPERE), (128, False, HOPPER)])
def test_forward_stays_in_registers(head_dim, causal, cc):
    code = compile_forward(head_dim, forward.tile_sizes(head_dim), causal, cc)
    assert code.spill_bytes == code.local_bytes == code.float64_instructions == 0


@needs_compiler
@pytest.mark.parametrize(
    "head_dim, causal, cc, shared_memory",
    [
        thorough(160, True, AMPERE, RTX_3090),
        thorough(224, False, HOPPER, H200),
        thorough(256, True, AMPERE, A100),
        (256, True, HOPPER, H200),
    ],
)
def test_a_wide_out_stays_in_registers(head_dim, causal, cc, shared_memory):
    """A few other numbers are in local memory; all of acc would take 2 · head_dim bytes."""
    tiles = forward.tile_sizes(head_dim, shared_memory)
    code = compile_forward(head_dim, tiles, causal, cc)
    assert code.local_bytes <= 64 and code.float64_instructions == 0


@needs_compiler
def test_backward_stays_in_registers():
    rows, scalars = 2 * (array[3],), 2 * (types.float32,)
    for kernel, results in (
        (backward.make_flash_attn_bwd_tf32x3(64, False), 3),
        (backward.make_dq_tf32x3(64, True), 1),
    ):
        args = (*4 * (array[4],), *rows, *results * (array[4],), *scalars, NONE, NONE)
        code = compile_kernel(kernel, args, cc=HOPPER)
        assert code.spill_bytes == code.local_bytes == code.float64_instructions == 0


@needs_compiler
@pytest.mark.parametrize(
    "which, name, head_dim, cc",
    [
        thorough("forward", "a score and a mask", 64, AMPERE),
        thorough("forward", "documents", 128, HOPPER),
        thorough("forward", "sinks and a mask", 256, HOPPER),
        ("backward", "a score and a mask", 64, AMPERE),
        thorough("backward", "documents", 128, HOPPER),
        thorough("dq", "a score and a mask", 64, HOPPER),
        thorough("dq", "T5", 128, AMPERE),
    ],
)
def test_functions_of_the_user_stay_in_registers(which, name, head_dim, cc):
    expressions, arguments, _ = expression_cases.given_of(name)
    runs, args = expression_cases.runs_type(expressions), typeof(tuple(arguments))
    scalars, inputs = 2 * (types.float32,), (*4 * (array[4],), *2 * (array[3],))
    if which == "forward":
        sinks = types.Tuple((types.Array(types.float32, 1, "C"),)) if "sinks" in name else NONE
        tiles = forward.tile_sizes(head_dim)
        kernel = forward.make_flash_attn_tf32x3(
            head_dim, tiles, False, EXPRESSIONS=expressions, SINKS="sinks" in name
        )
        arguments = *4 * (array[4],), array[3], *scalars, sinks, runs, args
    elif which == "backward":
        kernel = backward.make_flash_attn_bwd_tf32x3(
            head_dim, False, RED_X4=cc == HOPPER, EXPRESSIONS=expressions
        )
        runs = types.Array(types.int32, 5, "C")
        arguments = *inputs, *3 * (array[4],), *scalars, runs, args
    else:
        kernel = backward.make_dq_tf32x3(head_dim, False, EXPRESSIONS=expressions)
        arguments = *inputs, array[4], *scalars, runs, args
    code = compile_kernel(kernel, arguments, cc=cc)
    # As with a window, or with a softcap.
    most = 0 if which == "dq" else 16 if which == "forward" else 160 if "score" in name else 72
    most += 16 if most == 160 and sys.version_info >= (3, 14) else 0  # of other bytecode
    assert code.local_bytes <= most and code.float64_instructions == 0


def test_tiles_fit_every_head_dim():
    for head_dim in range(4, 257, 4):
        tiles_fit(head_dim)


def tiles_fit(head_dim):
    tiles = forward.tile_sizes(head_dim)
    if head_dim <= 128:  # two thread blocks on an SM
        assert -(-head_dim // 32) % tiles.panels_at_once == 0
        assert 2 * (forward.shared_bytes(head_dim, tiles) + 1024) <= 228 * 1024
    for shared_memory in (RTX_3090, A100, H200):
        tiles = forward.tile_sizes(head_dim, shared_memory)
        assert forward.shared_bytes(head_dim, tiles) <= shared_memory
        assert tiles.block_n % (tiles.threads // 8) == 0  # the rows that `copy_tile` copies at once
    if head_dim <= checks.MAX_BWD_HEAD_DIM:
        assert backward.shared_bytes(head_dim) <= H200
        assert backward.dq_shared_bytes(head_dim) <= backward.shared_bytes(head_dim)


def test_numpy_arrays_are_refused_with_a_way_out():
    x, lse = np.zeros((1, 4, 1, 64), np.float32), np.zeros((1, 1, 4), np.float32)
    with pytest.raises(TypeError, match="flash_attn_tf32x3 is made of PTX.*flash_attn_registers"):
        forward.flash_attn_tf32x3(x, x, x)
    with pytest.raises(TypeError, match="flash_attn_bwd_tf32x3 is.* PTX.*flash_attn_bwd_registers"):
        backward.flash_attn_bwd_tf32x3(x, x, x, x, x, lse)


X = np.zeros((1, 4, 2, 64), np.float32)


def pretend(monkeypatch, cc):
    """Pretend that NumPy arrays are in the memory of a GPU of this compute capability."""
    monkeypatch.setattr(hardware, "_require_gpu_arrays", lambda *args: None)
    monkeypatch.setattr(arrays, "compute_capability", lambda x: cc)


@pytest.mark.parametrize(
    "q, k, cc, error, message",
    [
        (*[X.astype(np.float16)] * 2, (8, 0), TypeError, "must be float32 for f, got float16"),
        (X[..., :6], X[..., :6], (8, 0), ValueError, "multiple of 4 up to 256 for f, got 6"),
        (X, X[..., :60], (8, 0), ValueError, "k and v must have the head_dim of q, 64, got 60"),
        (X[..., :12], X[:, :, :1, ::-1][..., :12], (8, 0), ValueError, "contiguous"),
        (np.zeros((1, 4, 2, 66), np.float32)[..., :64],) * 2
        + ((8, 0), ValueError, "q must have strides that are multiples of 16 bytes for f"),
        (X, X, (7, 5), RuntimeError, "f needs a GPU of compute capability 8.0 or later, got 7.5; "
         "flash_attn_registers runs on it"),
    ],
)  # fmt: skip
def test_bad_input(monkeypatch, q, k, cc, error, message):
    pretend(monkeypatch, cc)
    with pytest.raises(error, match=message):
        checks.TensorCores("f", AMPERE, float32=True).check(q, k, k)


def test_good_input(monkeypatch):
    pretend(monkeypatch, (12, 0))
    checks.TensorCores("f", AMPERE, float32=True).check(X, X, X)
