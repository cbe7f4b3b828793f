"""Masks and packed batches on tensor cores, on a real GPU: `pytest -m gpu`."""

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

cupy = pytest.importorskip("cupy", reason="needs CuPy")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.filterwarnings("ignore"),  # Numba warns of small grids; libraries of each other
]
if not cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)
if cuda.get_current_device().compute_capability[0] != 9:
    pytest.skip("needs a Hopper GPU", allow_module_level=True)

from fa_numba import reference  # noqa: E402
from fa_numba.tensor_core.flash_attn_persistent import flash_attn_persistent  # noqa: E402
from fa_numba.tensor_core.flash_attn_persistent_varlen import (  # noqa: E402
    flash_attn_persistent_varlen,
)

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
MASKS = {
    "window": {"window_size": (100, 50)},
    "causal-window": {"causal": True, "window_size": (63, -1)},
    "window-right": {"window_size": (-1, 37)},
    "diagonal": {"window_size": (0, 0)},
    "softcap": {"softcap": 1.5},  # many scores are beyond what the polynomial takes
    "softcap-of-small-scores": {"softcap": 30.0},
    "alibi": {"alibi": True},
    "causal-alibi": {"causal": True, "alibi": True},
    "all": {"window_size": (130, 200), "softcap": 5.0, "alibi": True},
    "causal-all": {"causal": True, "window_size": (200, -1), "softcap": 5.0, "alibi": True},
}
# seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim, dtype
SHAPES = [
    (1, 1, 1, 1, 64, "float16"),
    (200, 333, 4, 2, 64, "float16"),
    (333, 200, 2, 1, 128, "bfloat16"),  # rows that see no key
    (700, 700, 2, 1, 128, "bfloat16"),
    (700, 900, 2, 2, 64, "float16"),
]
CASES = [(mask, shape) for mask in MASKS for shape in SHAPES]
CASES += [
    ("all", (129, 1000, 2, 1, 72, "float16")),
    ("causal-all", (300, 257, 2, 1, 112, "bfloat16")),
    ("all", (300, 300, 3, 1, 128, "float16")),
    ("causal-all", (300, 400, 3, 1, 64, "bfloat16")),
]


def make_inputs(rng, shape, *, alibi=False, **mask):
    """q, k, v, and the options; some slopes are negative."""
    seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim, dtype = shape
    sizes = (seqlen_q, num_heads), (seqlen_k, num_kv_heads), (seqlen_k, num_kv_heads)
    qkv = [rng.standard_normal((2, n, heads, head_dim)).astype(DTYPES[dtype]) for n, heads in sizes]
    if alibi:
        mask["alibi_slopes"] = rng.uniform(-0.1, 0.5, num_heads).astype(np.float32)
    return qkv, mask


def plain_attention(q, k, v, **mask):
    """P rounded to the dtype before P V, as a library without a fused kernel does it."""
    _, lse = reference.attention(q, k, v, dtype=np.float32, **mask)
    options = {"causal": False, "window_size": (-1, -1), "softcap": 0.0, "alibi_slopes": None}
    q32, k32, v32 = (x.astype(np.float32).swapaxes(1, 2) for x in (q, k, v))
    s, _ = reference._scores(q32, k32, **options | mask, softmax_scale=None)
    p = np.exp(s - np.where(np.isfinite(lse), lse, 0)[..., None]).astype(q.dtype)
    v32 = np.repeat(v32, q.shape[2] // k.shape[2], axis=1)
    return (p.astype(np.float32) @ v32).astype(q.dtype).swapaxes(1, 2)


def on_gpu(x):
    return cupy.asarray(x) if isinstance(x, np.ndarray) else x


def assert_right(got, qkv, mask):
    (out, lse), (want, lse_want) = got, reference.attention(*qkv, **mask)
    plain = plain_attention(*qkv, **mask).astype(np.float64)
    error = np.abs(out.get().astype(np.float64) - want).max(initial=0)
    assert error <= 2 * np.abs(plain - want).max(initial=0) + 1e-6
    np.testing.assert_allclose(lse.get(), lse_want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "mask, shape", CASES, ids=lambda x: x if isinstance(x, str) else "x".join(map(str, x))
)
def test_masks(rng, mask, shape):
    qkv, options = make_inputs(rng, shape, **MASKS[mask])
    on = {name: on_gpu(x) for name, x in options.items()}
    got = flash_attn_persistent(*map(on_gpu, qkv), **on)
    assert_right(got, qkv, options)
    for _ in range(20):
        again = flash_attn_persistent(*map(on_gpu, qkv), **on)
        for x, y in zip(got, again, strict=True):
            assert (x.view(np.uint8) == y.view(np.uint8)).all()


@pytest.mark.parametrize("scale", [1e-6, 0.3, 40.0])
def test_softcap_of_any_size_of_scores(rng, scale):
    qkv, _ = make_inputs(rng, (150, 150, 1, 1, 64, "float16"))
    mask = {"softcap": 20.0, "softmax_scale": scale}
    out_ref, lse_ref = reference.attention(*qkv, **mask)
    out, lse = flash_attn_persistent(*map(on_gpu, qkv), **mask)
    np.testing.assert_allclose(out.get(), out_ref, atol=2e-3)
    np.testing.assert_allclose(lse.get(), lse_ref, rtol=1e-5, atol=1e-4)
