"""Views with negative strides and with strides of 0, on a real GPU: `pytest -m gpu`.

CuPy has both, PyTorch strides of 0. flash_attn and its kin take them; a kernel that loads by tensor
maps takes no negative stride, for a tensor map has none, and says so.
"""

import cases
import dtype_cases
import ml_dtypes
import numpy as np
import pytest
from gpu_cases import ON_A_GPU
from numba import cuda

import fa_numba
from fa_numba import reference
from fa_numba.runtime import arrays

cupy = pytest.importorskip("cupy", reason="needs CuPy")
pytestmark = ON_A_GPU

DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
BACKWARDS = {
    "batch": np.s_[::-1],
    "seqlen": np.s_[:, ::-1],
    "heads": np.s_[:, :, ::-1],
    "all": np.s_[::-1, ::-1, ::-1],
}
VIEWS = {**BACKWARDS, "one-token": np.s_[:, :1], "one-head": np.s_[:, :, :1]}  # these broadcast
SHAPE = (2, 150, 4, 64)
each_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
each_view = pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
each_mask = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


def on_gpu(x):
    return arrays.from_numpy(cupy.empty(0), x)


def viewed(x, view):
    """A view of an array, NumPy's or CuPy's, which has its shape again."""
    library = np if isinstance(x, np.ndarray) else cupy
    return library.broadcast_to(x[view], x.shape)


def make_inputs(dtype, view):
    """dout, q, k, v, of one view each: on the GPU, and what they hold."""
    inputs = dtype_cases.make_inputs(np.random.default_rng(0), (2, 150, 150, 4, 4, 64), dtype)
    return [viewed(on_gpu(x), view) for x in inputs], [viewed(x, view) for x in inputs]


@each_mask
@each_dtype
@each_view
def test_flash_attn_and_its_gradients_small(view, dtype, causal):
    (dout, *qkv), host = make_inputs(dtype, view)
    want, lse_want = reference.attention(*host[1:], causal=causal)
    plain, _ = reference.attention(*host[1:], causal=causal, dtype=dtype)
    for _ in range(2):  # the second is a replay
        out, lse = fa_numba.flash_attn(*qkv, causal=causal)
        cases.assert_close(out, want, plain, name="out")
        dtype_cases.check_lse(lse, lse_want)
    inputs = dout, *qkv, viewed(out[VIEWS["all"]], VIEWS["all"]), lse
    want, plain = (
        reference.attention_bwd(*host, causal=causal, dtype=kind) for kind in (np.float64, dtype)
    )
    for _ in range(2):
        got = fa_numba.flash_attn_grad(*inputs, causal=causal)
        for name, *x in zip(("dq", "dk", "dv"), got, want, plain, strict=True):
            cases.assert_close(*x, factor=3, name=name)


@each_dtype
@each_view
def test_one_query_small(view, dtype):
    (_, q, k, v), (_, *host) = make_inputs(dtype, view)
    want, lse_want = reference.attention(host[0][:, :1], *host[1:])
    plain, _ = reference.attention(host[0][:, :1], *host[1:], dtype=dtype)
    out, lse = fa_numba.flash_attn(q[:, :1], k, v)
    cases.assert_close(out, want, plain, name="out")
    dtype_cases.check_lse(lse, lse_want)


@pytest.mark.skipif(
    not cuda.is_available() or cuda.get_current_device().compute_capability[0] != 9,
    reason="needs a Hopper GPU",
)
@pytest.mark.parametrize("view", BACKWARDS.values(), ids=BACKWARDS)
def test_kernels_with_tensor_maps_refuse_negative_strides_small(view):
    from fa_numba.tensor_core.flash_attn_bwd_persistent import flash_attn_bwd_persistent
    from fa_numba.tensor_core.flash_attn_fp8 import flash_attn_fp8
    from fa_numba.tensor_core.flash_attn_persistent import flash_attn_persistent
    from fa_numba.tensor_core.flash_attn_persistent_varlen import flash_attn_persistent_varlen
    from fa_numba.tensor_core.flash_attn_split import flash_attn_split
    from fa_numba.tensor_core.flash_attn_wgmma import flash_attn_wgmma
    from fa_numba.tensor_core.flash_attn_ws import flash_attn_ws

    (dout, q, k, v), _ = make_inputs(np.float16, view)
    good = cupy.ascontiguousarray(q)
    for name, arguments in {"q": (q, good, good), "k": (good, k, k), "v": (good, good, v)}.items():
        for function in (
            flash_attn_wgmma,
            flash_attn_ws,
            flash_attn_persistent,
            flash_attn_split,
            flash_attn_fp8,
        ):
            with pytest.raises(ValueError, match=f"{name} must have no negative stride for flash"):
                function(*arguments)
    out, lse = flash_attn_persistent(good, good, good)
    with pytest.raises(ValueError, match="dout must have no negative stride for flash"):
        flash_attn_bwd_persistent(dout, good, good, good, out, lse)
    with pytest.raises(ValueError, match="k must have no negative stride for flash"):
        flash_attn_bwd_persistent(good, good, k, v, out, lse)
    if k.strides[1] < 0:
        starts = cupy.asarray([0, 150], np.int32)
        with pytest.raises(ValueError, match="k must have no negative stride for flash"):
            flash_attn_persistent_varlen(good[0], k[0], v[0], starts, starts)


@each_view
def test_decoding_from_gathered_rows_small(view):
    """flash_decode_gather finds each row by its strides."""
    if cuda.get_current_device().compute_capability[0] != 9:
        pytest.skip("needs a Hopper GPU")
    from fa_numba.tensor_core.flash_decode_gather import flash_decode_gather

    (_, q, k, v), (_, *host) = make_inputs(np.float16, view)
    want, lse_want = reference.attention(host[0][:, :1], *host[1:])
    plain, _ = reference.attention(host[0][:, :1], *host[1:], dtype=np.float16)
    out, lse = flash_decode_gather(q[:, :1], k, v, cupy.full(2, 150, np.int32))
    cases.assert_close(out, want, plain, name="out")
    dtype_cases.check_lse(lse, lse_want)
