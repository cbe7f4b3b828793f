"""The kernels that merge into a running state and that round: on the engine, and compiled."""

import re

import numpy as np
import pytest
from cases import random
from numba import types

from fa_numba.analysis.machine_code import compile_kernel, compiler_available
from fa_numba.distributed.merge import merge_into
from fa_numba.on_cuda_cores import running_state

FAR = np.array([-np.inf, -1e4, -3.0, 0.0, 2.5, 1e4])
ULP = 1.2e-7


def states(rng, shape, rows):
    """(out, lse, out_b, lse_b) with rows far apart, and empty ones; `rows` cuts the queries."""
    batch, seqlen, heads, _ = shape
    lse, lse_b = (rng.choice(FAR, (batch, heads, seqlen)) for _ in range(2))
    out, out_b = random(rng, *shape), random(rng, *shape)
    out[np.isinf(lse).transpose(0, 2, 1)] = 0
    return out[:, rows], lse[:, :, rows], out_b[:, rows], lse_b[:, :, rows].astype(np.float32)


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize(
    "shape, rows",
    [
        ((1, 9, 2, 40), slice(None)),
        ((2, 6, 3, 8), slice(1, 5)),
        ((1, 1, 1, 1), slice(None)),
        ((1, 4, 1, 33), slice(0, 4)),
    ],
)
def test_the_kernel_merges_as_numpy_does(rng, shape, rows):
    out, lse, out_b, lse_b = states(rng, shape, rows)
    want, lse_want = out.copy(), lse.copy()
    zeroed = np.where(np.isinf(lse_b).transpose(0, 2, 1)[..., None], np.float32(0), out_b)
    merge_into(want, lse_want, zeroed, lse_b)
    running_state.merge_into(out, lse, out_b, lse_b)
    np.testing.assert_allclose(out, want, atol=2 * ULP)
    np.testing.assert_allclose(lse, lse_want, rtol=ULP, atol=ULP)


def test_an_empty_part_is_not_read(rng):
    out, lse, out_b, lse_b = states(rng, (1, 5, 2, 8), slice(None))
    lse_b[:], out_b[:] = -np.inf, np.nan
    before, lse_before = out.copy(), lse.copy()
    running_state.merge_into(out, lse, out_b, lse_b)
    np.testing.assert_array_equal(out, before)
    np.testing.assert_array_equal(lse, lse_before)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounding_is_that_of_numpy(rng, dtype):
    x = random(rng, 3, 100, 2)[:, ::2]
    got = running_state.convert(x, np.dtype(dtype))
    np.testing.assert_array_equal(got, x.astype(dtype), strict=True)
    back = running_state.convert(got, np.dtype("float32"))
    np.testing.assert_array_equal(back, got.astype(np.float32), strict=True)
    assert running_state.convert(x, np.dtype("float32")) is x


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_packed_state_is_read_again(rng, dtype):
    out, lse, *_ = states(rng, (2, 6, 3, 40), slice(1, 5))
    packed = running_state.pack(out, lse)
    seen, lse_seen = running_state.views_of(packed)
    np.testing.assert_array_equal(seen, out)
    np.testing.assert_array_equal(lse_seen, lse.astype(np.float32))
    got, lse_got = running_state.unpack(packed, np.dtype(dtype))
    np.testing.assert_array_equal(got, out.astype(dtype), strict=True)
    np.testing.assert_array_equal(lse_got, lse.astype(np.float32), strict=True)


def test_packed_states_merge_in_place(rng):
    out, lse, out_b, lse_b = states(rng, (1, 9, 2, 40), slice(None))
    want, lse_want = out.copy(), lse.copy()
    running_state.merge_into(want, lse_want, out_b, lse_b)
    packed = running_state.pack(out, lse)
    state = running_state.views_of(packed)
    running_state.merge_into(*state, *running_state.views_of(running_state.pack(out_b, lse_b)))
    np.testing.assert_allclose(packed[..., :-1], want, atol=2 * ULP)
    np.testing.assert_allclose(state[1], lse_want, rtol=4 * ULP, atol=4 * ULP)


@pytest.mark.skipif(not compiler_available(), reason="needs NVVM and NVRTC")
@pytest.mark.parametrize("head_dim", [40, 128, 256])
def test_within_the_stated_budget(head_dim):
    f32 = [types.Array(types.float32, ndim, "C") for ndim in (1, 3, 4)]
    strided = types.Array(types.float64, 3, "A")
    for kernel, arguments in (
        (running_state.make_merge_into(head_dim), (f32[2], strided, f32[2], f32[1])),
        (running_state.convert_kernel, (f32[0], types.Array(types.float16, 1, "C"))),
        (running_state.make_pack(head_dim, False), (f32[2], f32[2], strided)),
        (running_state.make_pack(head_dim, True), (f32[2], f32[2], f32[1])),
    ):
        code = compile_kernel(kernel, arguments, cc=(9, 0, "a"))
        assert code.spill_bytes == code.local_bytes == code.shared_bytes == 0
        stated = re.search(r"budget +(\d+) registers", kernel.py_func.__doc__)[1]
        assert code.registers <= int(stated), code.registers
