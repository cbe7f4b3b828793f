"""Zero-padded rows, for a head_dim that TMA does not take."""

import numpy as np
import pytest
from fake_libraries import CupyArray
from numba import types

pytest.importorskip("numba.cuda.extending", reason="needs numba-cuda")

from fa_numba.analysis.machine_code import compile_kernel, disassembler_available
from fa_numba.runtime import arrays
from fa_numba.tensor_core.flash_attn_padded import (
    copy_columns,
    flash_attn_padded,
    make_copy_columns,
)


@pytest.mark.parametrize("num_cols", [1, 7, 8, 16])
def test_columns_are_kept_and_the_others_are_zero(rng, num_cols):
    x = rng.standard_normal((2, 5, 3, 7)).astype(np.float16)
    padded = np.concatenate([x, np.zeros((2, 5, 3, 9), np.float16)], axis=3)
    np.testing.assert_array_equal(copy_columns(x, num_cols), padded[..., :num_cols])


def test_views_are_copied_too(rng):
    x = rng.standard_normal((3, 2, 4, 5)).astype(np.float16)
    view = x.transpose(1, 2, 0, 3)[:, ::2]
    np.testing.assert_array_equal(copy_columns(view, 8)[..., :5], view)


@pytest.mark.skipif(not disassembler_available(), reason="needs NVVM, NVRTC, ptxas and nvdisasm")
@pytest.mark.parametrize("cols, new_cols", [(59, 64), (64, 59)])
def test_compiles(cols, new_cols):
    args = types.Array(types.float16, 4, "A"), types.Array(types.float16, 4, "C")
    code = compile_kernel(make_copy_columns(cols, new_cols), args, cc=(9, 0, "a"))
    assert code.spill_bytes == code.local_bytes == code.float64_instructions == 0


@pytest.fixture
def hopper(monkeypatch):
    monkeypatch.setattr(arrays, "gpu_available", lambda: True)
    monkeypatch.setattr(arrays, "compute_capability", lambda x: (9, 0))


def fake(*shape, dtype=np.float16):
    return CupyArray(np.zeros(shape, dtype))


@pytest.mark.parametrize(
    "error, head_dim, dtype, changed, message",
    [
        (ValueError, 264, np.float16, {}, "head_dim .*256.*got 264"),
        (TypeError, 59, np.float32, {}, "float16 or bfloat16 for flash_attn_padded, got float32"),
        (ValueError, 59, np.float16, {"softmax_scale": -1}, "softmax_scale must be positive"),
    ],
)
def test_refused(hopper, error, head_dim, dtype, changed, message):
    x = fake(1, 4, 1, head_dim, dtype=dtype)
    with pytest.raises(error, match=message):
        flash_attn_padded(x, x, x, **changed)


def test_refused_on_another_gpu(hopper, monkeypatch):
    monkeypatch.setattr(arrays, "compute_capability", lambda x: (8, 0))
    x = fake(1, 5, 1, 59)
    with pytest.raises(RuntimeError, match="needs a GPU of compute capability 9.x, got 8.0"):
        flash_attn_padded(x, x, x)
