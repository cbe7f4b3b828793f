"""flash_attn_mma on a real GPU, where its softmax differs from the others': `pytest -m gpu`."""

import numpy as np
import pytest
from gpu_cases import ON_A_GPU, cupy_on_a_gpu

cupy = cupy_on_a_gpu()
pytestmark = ON_A_GPU

from fa_numba import reference  # noqa: E402
from fa_numba.tensor_core.flash_attn_mma import flash_attn_mma  # noqa: E402


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("step", [0.01, 0.1, 1.0, -0.1])
def test_scores_that_rise_along_the_keys(rng, step, head_dim):
    """The maximum rises a little in each tile, or a lot: m_i stays below it, or is raised."""
    n = 700
    q, k, v = (rng.standard_normal((1, n, 2, head_dim)).astype(np.float16) for _ in range(3))
    q[..., 0] = 1
    k[..., 0] = step * np.arange(n)[:, None]
    options = {"causal": True, "softmax_scale": 1.0}
    out_ref, lse_ref = reference.attention(q, k, v, **options)
    out, lse = flash_attn_mma(*map(cupy.asarray, (q, k, v)), **options)
    assert np.abs(out.get().astype(np.float64) - out_ref).max() <= 5e-3
    np.testing.assert_allclose(lse.get(), lse_ref, rtol=1e-5, atol=1e-4)


def test_every_number_is_written(rng, poisoned):
    """Results begin as NaN, in rows that see no key too."""
    shapes = (1, 300, 4, 96), (1, 130, 2, 96), (1, 130, 2, 96)
    q, k, v = (rng.standard_normal(shape).astype(np.float16) for shape in shapes)
    out_ref, lse_ref = reference.attention(q, k, v, causal=True)
    out, lse = flash_attn_mma(*map(cupy.asarray, (q, k, v)), causal=True)
    np.testing.assert_allclose(out.get(), out_ref, atol=5e-3)
    np.testing.assert_allclose(lse.get(), lse_ref, rtol=1e-5, atol=1e-4)


MASKED = ("window", "causal-window", "diagonal", "softcap", "alibi", "all", "causal-all")


@pytest.mark.parametrize("number", [2, 4])  # rows that see no key; head_dim 128 and 64
@pytest.mark.parametrize("mask", MASKED)
def test_masks(rng, mask, number):
    import test_tensor_core_masks_gpu as of_masks  # skips where there is no Hopper GPU

    shape = of_masks.SHAPES[number]
    qkv, options = of_masks.make_inputs(rng, shape, **of_masks.MASKS[mask])
    on_gpu = {name: of_masks.on_gpu(x) for name, x in options.items()}
    got = flash_attn_mma(*map(of_masks.on_gpu, qkv), **on_gpu)
    of_masks.assert_right(got, qkv, options)
    for _ in range(20):
        again = flash_attn_mma(*map(of_masks.on_gpu, qkv), **on_gpu)
        for x, y in zip(got, again, strict=True):
            assert (x.view(np.uint8) == y.view(np.uint8)).all()
