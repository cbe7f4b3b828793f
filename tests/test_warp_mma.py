"""mma.sync as exercises call it: on the CPU engine, for a GPU, and on one."""

import numpy as np
import pytest
from numba import cuda, float32

from fa_numba import simt
from fa_numba.analysis.machine_code import assemble, compile_ptx_for, compiler_available
from fa_numba.ptx.warp_mma import load_a, load_b, load_d, mma_f16, mma_tf32, store_d, to_tf32


@cuda.jit
def f16_kernel(x, y, d_before, out):
    """out = d_before + x y: A (16, 16), B (16, 8) of a warp."""
    a = cuda.local.array(8, np.float16)
    b = cuda.local.array(4, np.float16)
    d = cuda.local.array(4, float32)
    load_a(a, x, 0, 0)
    load_b(b, y, 0, 0)
    load_d(d, d_before, 0, 0)
    mma_f16(d, a, b)
    store_d(out, d, 0, 0)


@cuda.jit
def tf32_kernel(x, y, d_before, out):
    """out = d_before + x y: x (16, 8) rounded to TF32, y (8, 8) as it is."""
    a = cuda.local.array(4, float32)
    b = cuda.local.array(2, float32)
    d = cuda.local.array(4, float32)
    g, c = cuda.threadIdx.x // 4, cuda.threadIdx.x % 4
    for i in range(4):
        a[i] = to_tf32(x[g + i % 2 * 8, c + i // 2 * 4])
    for i in range(2):
        b[i] = y[c + i * 4, g]
    load_d(d, d_before, 0, 0)
    mma_tf32(d, a, b)
    store_d(out, d, 0, 0)


def of_bits(x, added):
    """The first 11 significant bits of x + added, where `added` counts dropped bits."""
    bits = x.view(np.uint32) + np.uint32(added)
    return (bits & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)


def case(name):
    """Kernel, arguments, and the exact result."""
    rng = np.random.default_rng(0)
    before = rng.standard_normal((16, 8), np.float32)
    out = np.zeros((16, 8), np.float32)
    if name == "f16":
        x, y = (rng.standard_normal(s).astype(np.float16) for s in ((16, 16), (16, 8)))
        return f16_kernel, (x, y, before, out), before + x.astype(np.float64) @ y
    x, y = (rng.standard_normal(s, np.float32) for s in ((16, 8), (8, 8)))
    return tf32_kernel, (x, y, before, out), before + of_bits(x, 1 << 12) @ of_bits(y, 0)


EACH = pytest.mark.parametrize("name", ["f16", "tf32"])


@EACH
def test_engine(name):
    """Exact products, a sum that is rounded once."""
    kernel, args, want = case(name)
    simt.run(kernel, 1, 32, *args)
    assert np.array_equal(args[-1], want.astype(np.float32))


def test_all_lanes_must_take_part():
    @cuda.jit
    def half_a_warp(x, y, d_before, out):
        a = cuda.local.array(8, np.float16)
        b = cuda.local.array(4, np.float16)
        d = cuda.local.array(4, float32)
        load_a(a, x, 0, 0)
        load_b(b, y, 0, 0)
        load_d(d, d_before, 0, 0)
        if cuda.laneid < 16:
            mma_f16(d, a, b)
        store_d(out, d, 0, 0)

    _, args, _ = case("f16")
    with pytest.raises(simt.errors.KernelError, match="shfl_sync"):
        simt.run(half_a_warp, 1, 32, *args)


@EACH
@pytest.mark.skipif(not compiler_available(), reason="no compiler")
def test_compiles_to_one_instruction(name):
    kernel, args, _ = case(name)
    (ptx,) = compile_ptx_for(kernel, args, ((8, 0),))
    assert sum("mma.sync" in line for line in ptx.splitlines()) == 1 and "shfl" not in ptx
    code = assemble(kernel, ptx, (8, 0))
    assert code.local_bytes == code.spill_bytes == 0, "fragments are registers"


@EACH
@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # Numba warns of small grids and of host arrays
def test_on_a_gpu(name):
    """A tensor core cuts the bits of each addend below the last one of the sum."""
    kernel, args, want = case(name)
    x, y, before, out = args
    kernel[1, 32](*args)
    addends = np.abs(before) + np.abs(x).astype(np.float64) @ np.abs(y)
    assert (np.abs(out - want) <= (len(y) + 2) * 2.0**-23 * addends).all()
