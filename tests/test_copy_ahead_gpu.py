"""Register tiles that are copied ahead, on a real GPU: `pytest -m gpu`."""

import itertools

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

from fa_numba import flash_attn_bwd_simt, flash_attn_simt, reference  # noqa: E402
from fa_numba.kernels import chunks, register_tiles  # noqa: E402
from fa_numba.kernels.flash_attn_bwd_simt_chunks import write_delta  # noqa: E402

CASES = [  # batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim, options
    (2, 200, 333, 4, 2, 64, {}),
    (1, 333, 200, 2, 2, 64, {"causal": True}),
    (1, 500, 10, 2, 1, 128, {"causal": True}),
    (2, 300, 411, 4, 1, 128, {"causal": True}),
    (1, 257, 130, 2, 1, 44, {"window_size": (50, 20)}),
    (1, 257, 130, 2, 1, 100, {"softcap": 3.0}),
    (1, 2048, 2048, 2, 2, 128, {}),
    (1, 1100, 1500, 2, 1, 128, {"causal": True}),
    (1, 2048, 2048, 2, 2, 64, {"causal": True}),
    (1, 1, 1, 1, 1, 128, {}),
    (1, 257, 330, 2, 1, 128, {"window_size": (50, 20)}),
    (1, 130, 257, 4, 2, 128, {"alibi_slopes": np.array([0.5, 0.1, 0.02, 0.3], np.float32)}),
    (1, 200, 64, 2, 2, 64, {"softcap": 2.0, "softmax_scale": -0.3}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case[:6])))
def test_forward_and_backward(case):
    batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim, options = case
    rng = np.random.default_rng(0)
    shapes = 2 * [(seqlen_q, num_heads)] + 2 * [(seqlen_k, num_kv_heads)]
    inputs = [rng.standard_normal((batch, *shape, head_dim), np.float32) for shape in shapes]
    want, plain = (
        (
            *reference.attention(*inputs[1:], dtype=dtype, **options),
            *reference.attention_bwd(*inputs, dtype=dtype, **options),
        )
        for dtype in (np.float64, np.float32)
    )
    dout, q, k, v = map(cupy.asarray, inputs)
    assert register_tiles.can_copy_ahead(k, v) and register_tiles.can_copy_ahead(q, dout)
    if "alibi_slopes" in options:
        options = options | {"alibi_slopes": cupy.asarray(options["alibi_slopes"])}
    got = None
    for _ in range(20):
        out, lse = flash_attn_simt(q, k, v, **options)
        again = (out, lse, *flash_attn_bwd_simt(dout, q, k, v, out, lse, **options))
        for i, x in enumerate(again):
            assert got is None or i == 2 or (x.view(np.uint32) == got[i].view(np.uint32)).all()
        got = again
    np.testing.assert_allclose(got[1].get(), want[1], rtol=1e-5, atol=1e-5)
    for times, i in ((2, 0), (3, 2), (3, 3), (3, 4)):
        error = np.abs(got[i].get().astype(np.float64) - want[i]).max()
        assert error <= times * np.abs(plain[i].astype(np.float64) - want[i]).max() + 1e-6


@pytest.mark.parametrize("head_dim", [64, 128])
def test_deterministic(head_dim):
    rng = np.random.default_rng(1)
    shape = (2, 300, 4, head_dim)
    inputs = [rng.standard_normal(shape, np.float32) for _ in range(4)]
    dout, q, k, v = map(cupy.asarray, inputs)
    out, lse = flash_attn_simt(q, k, v, causal=True)
    want = reference.attention_bwd(*inputs, dtype=np.float64, causal=True)
    plain = reference.attention_bwd(*inputs, dtype=np.float32, causal=True)
    runs = [
        flash_attn_bwd_simt(dout, q, k, v, out, lse, causal=True, deterministic=True)
        for _ in range(20)
    ]
    for got, again in itertools.pairwise(runs):
        for x, y in zip(got, again, strict=True):
            assert (x.view(np.uint32) == y.view(np.uint32)).all()
    for x, exact, rounded in zip(runs[0], want, plain, strict=True):
        error = np.abs(x.get().astype(np.float64) - exact).max()
        assert error <= 3 * np.abs(rounded.astype(np.float64) - exact).max() + 1e-6


@pytest.mark.parametrize("head_dim", [44, 64, 100, 128])
def test_small_kernels(head_dim):
    """K and V turned, zeros around them; delta."""
    rng = np.random.default_rng(2)
    width = 64 if head_dim <= 64 else 128
    x, y = (cupy.asarray(rng.standard_normal((2, 70, 3, head_dim), np.float32)) for _ in range(2))
    turned = cupy.asnumpy(chunks.turn(x, width))
    want = np.zeros((2, 3, width, 128), np.float32)
    want[:, :, :head_dim, :70] = x.get().transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(turned, want)

    delta = cupy.full((2, 3, 70), cupy.nan, np.float32)
    write_delta(x, y, delta)
    want = (x.get().astype(np.float64) * y.get()).sum(-1).transpose(0, 2, 1)
    np.testing.assert_allclose(delta.get(), want, rtol=1e-5, atol=1e-5)
