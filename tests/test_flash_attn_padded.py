"""Zero-padded rows, for a head_dim that TMA does not take."""

import expression_cases
import ml_dtypes
import numpy as np
import pytest
from cases import thorough
from fake_libraries import CupyArray
from machine_code_cases import in_registers
from numba import types

from fa_numba import reference
from fa_numba.analysis.machine_code import disassembler_available
from fa_numba.checks import hardware
from fa_numba.kernels.flash_attn_bwd import flash_attn_bwd
from fa_numba.kernels.flash_attn_v2 import flash_attn_v2
from fa_numba.runtime import arrays
from fa_numba.tensor_core.flash_attn_bwd_padded import flash_attn_bwd_padded
from fa_numba.tensor_core.flash_attn_padded import flash_attn_padded
from fa_numba.tensor_core.padded_rows import (
    first_columns,
    make_for_each_array,
    make_pad,
    make_unpad,
    pad_rows,
    padded_cols,
)

DTYPES = [np.float16, ml_dtypes.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols", [1, 3, 7, 9, 59, 111, 250])
def test_columns_are_kept_and_the_others_are_zero(rng, cols, dtype):
    shapes = [(2, 5, 3, cols), (2, 40, 1, cols), (2, 1, 4, cols)]
    xs = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    for x, y in zip(xs, padded := pad_rows(*xs), strict=True):
        assert y.dtype == dtype and y.shape == (*x.shape[:3], padded_cols(cols))
        np.testing.assert_array_equal(y[..., :cols], x)
        assert not y[..., cols:].astype(np.float32).any()
    for x, y in zip(xs, first_columns(cols, *padded), strict=True):
        assert y.dtype == dtype
        np.testing.assert_array_equal(y, x)


def test_rows_begin_at_multiples_of_so_many_columns(rng):
    x, wide = (rng.standard_normal((2, 5, 3, cols)).astype(np.float16) for cols in (72, 128))
    y, kept = pad_rows(x, wide[..., :72], multiple=64)
    assert y.shape == (2, 5, 3, 128) and kept.shape == (2, 5, 3, 72)  # as wide's rows begin
    np.testing.assert_array_equal(y[..., :72], x)
    assert not y[..., 72:].any()


def test_every_number_of_16_bits_is_kept():
    x = np.arange(65536, dtype=np.uint16).view(np.float16).reshape(2, 8192, 1, 4)
    (padded,) = pad_rows(x)
    (back,) = first_columns(4, padded)
    np.testing.assert_array_equal(padded[..., :4].view(np.uint16), x.view(np.uint16))
    np.testing.assert_array_equal(back.view(np.uint16), x.view(np.uint16))


def test_views_are_copied_and_arrays_that_tma_takes_are_not(rng):
    x = rng.standard_normal((3, 2, 4, 8)).astype(np.float16)
    view, reversed_view = x[..., 1:6].transpose(1, 2, 0, 3)[:, ::2], x[:, ::-1]
    (copy,) = pad_rows(view)
    np.testing.assert_array_equal(copy[..., :5], view)
    kept, copy = pad_rows(x, reversed_view)
    assert kept is x
    np.testing.assert_array_equal(copy, reversed_view)
    assert first_columns(8, kept)[0] is x


def test_no_rows_need_no_launch():
    x, empty = np.ones((1, 3, 2, 5), np.float16), np.ones((1, 0, 2, 5), np.float16)
    for y in pad_rows(x, empty):
        assert y.shape[3] == 8
    assert pad_rows(empty)[0].shape == (1, 0, 2, 8)
    assert first_columns(5, *pad_rows(empty, x))[1].shape == x.shape


@pytest.mark.skipif(not disassembler_available(), reason="needs NVVM, NVRTC, ptxas and nvdisasm")
@pytest.mark.parametrize("cols", [thorough(59), 111, thorough(250)])
@pytest.mark.parametrize("make_copy", [make_pad, make_unpad])
def test_copies_store_16_bytes_and_stay_in_registers(cols, make_copy):
    flat = types.Array(types.int16, 1, "C")
    x = types.Array(types.int16, 4, "A") if make_copy is make_pad else flat
    kernel = make_for_each_array(make_copy(cols, True))
    code = in_registers(kernel, 5 * (x,) + 5 * (flat,))
    assert code.counts["STG.128"] == 5 and code.counts["LDG.16"] == 40


@pytest.fixture
def hopper(monkeypatch):
    monkeypatch.setattr(arrays, "gpu_available", lambda: True)
    monkeypatch.setattr(arrays, "compute_capability", lambda x: (9, 0))


@pytest.mark.parametrize("head_dim, name", [(59, "sinks and a mask"), (131, "a score and a mask")])
def test_functions_of_the_user(rng, monkeypatch, head_dim, name):
    """The engine's kernels take the padded rows in place of those for Hopper."""

    def same_bits_anyway(*inputs, deterministic, **options):
        return flash_attn_bwd(*inputs, **options)

    monkeypatch.setattr(hardware, "_require_gpu_arrays", lambda *args: None)
    monkeypatch.setattr(arrays, "compute_capability", lambda x: (9, 0))
    room = "fa_numba.tensor_core"
    monkeypatch.setattr(f"{room}.flash_attn_padded.flash_attn_persistent", flash_attn_v2)
    taken = "flash_attn_bwd_persistent" if head_dim <= 128 else "flash_attn_bwd_wide"
    monkeypatch.setattr(f"{room}.flash_attn_bwd_padded.{taken}", same_bits_anyway)
    dout, q, k, v = (
        rng.standard_normal((1, seqlen, heads, head_dim)).astype(np.float16)
        for seqlen, heads in ((9, 2), (9, 2), (20, 1), (20, 1))
    )
    options, definition = expression_cases.options_of(name, 2, 20)
    out, lse = flash_attn_padded(q, k, v, **options)
    want, want_lse = reference.attention(q, k, v, **definition)
    np.testing.assert_allclose(out, want, atol=4e-3)
    np.testing.assert_allclose(lse, want_lse, atol=1e-4)
    got = flash_attn_bwd_padded(dout, q, k, v, out, lse, deterministic=True, **options)
    want = reference.attention_bwd(dout, q, k, v, **definition)
    for x, y in zip(got, want, strict=True):
        assert x.shape == y.shape
        np.testing.assert_allclose(x, y, atol=8e-3 * max(1, abs(y).max()))


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


@pytest.mark.parametrize(
    "error, head_dim, dtype, changed, message",
    [
        (ValueError, 264, np.float16, {}, "head_dim .*256.*got 264"),
        (TypeError, 59, np.float32, {}, "float16 or bfloat16 for flash_attn_bwd_padded"),
        (ValueError, 59, np.float16, {"softmax_scale": -1}, "softmax_scale must be positive"),
        (TypeError, 59, np.float16, {"deterministic": 1}, "deterministic must be True or False"),
        (ValueError, 130, np.float16, {"dropout_p": 0.1}, "dropout_p must be 0 .*above 128"),
    ],
)
def test_refused_backward(hopper, error, head_dim, dtype, changed, message):
    x, lse = fake(1, 4, 1, head_dim, dtype=dtype), fake(1, 1, 4, dtype=np.float32)
    with pytest.raises(error, match=message):
        flash_attn_bwd_padded(x, x, x, x, x, lse, **changed)
