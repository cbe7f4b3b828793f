"""flash_attn_bwd_stored on a real GPU: `pytest -m gpu`; `-k small` suits the sanitizer."""

from unittest.mock import patch

import numpy as np
import pytest
from few_cases import pairs
from gpu_cases import ON_A_GPU, cupy_on_a_gpu

cupy = cupy_on_a_gpu(hopper=True)
pytestmark = ON_A_GPU

from test_tensor_core_bwd_gpu import assert_right, make_case, make_masked_case  # noqa: E402

from fa_numba import flash_attn_grad, which  # noqa: E402
from fa_numba.tensor_core import flash_attn_bwd_stored as stored  # noqa: E402
from fa_numba.tensor_core.flash_attn_bwd_stored import flash_attn_bwd_stored  # noqa: E402

# batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim, causal
SHAPES = {
    "small": (1, 1, 1, 1, 1, 512, False),
    "small-group": (2, 200, 333, 4, 2, 512, True),
    "small-no_keys": (1, 333, 200, 2, 2, 320, True),  # rows that see no key
    "small-head_dim_264": (1, 257, 130, 2, 1, 264, False),
    "head_dim_392": (2, 500, 700, 6, 2, 392, False),
    "long": (1, 1500, 2000, 4, 4, 512, True),
    "many_heads": (2, 300, 300, 80, 40, 384, True),
}
MASKS = {"none": {}, "window": {"window_size": (200, 30)}, "softcap": {"softcap": 20.0}}
TILE_BYTES = 128 * 128 * 4  # P and dS of a tile


@pytest.mark.few(lambda shape, mask, dtype, tiles: [*pairs(shape, mask, dtype == "float16"), tiles])
@pytest.mark.parametrize("tiles", [1, 9, 10000])  # in the workspace
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_gradients(shape, mask, dtype, tiles, poisoned):
    args, want, plain = make_masked_case(shape, dtype, tuple(MASKS[mask].items()))
    options = {"causal": shape[-1], **MASKS[mask]}
    with patch.object(stored, "WORKSPACE_BYTES", tiles * TILE_BYTES):
        got = flash_attn_bwd_stored.__wrapped__(*args, **options)
        assert_right(got, want, plain)
        for _ in range(5):  # the same bits in every run
            again = flash_attn_bwd_stored.__wrapped__(*args, **options)
            for x, y in zip(got, again, strict=True):
                assert (x.view(np.uint8) == y.view(np.uint8)).all()


def test_small_flash_attn_grad_takes_it():
    shape = SHAPES["small-group"]
    args, want, plain = make_case(shape, "bfloat16")
    assert "flash_attn_bwd_stored" in str(which(flash_attn_grad, *args, causal=True))
    for _ in range(2):  # the second one is a replay
        assert_right(flash_attn_grad(*args, causal=True), want, plain)


@pytest.mark.parametrize("seqlen_q, seqlen_k", [(0, 20), (20, 0)])
def test_small_nothing_to_see(seqlen_q, seqlen_k):
    q, k = (cupy.ones((1, n, 2, 512), np.float16) for n in (seqlen_q, seqlen_k))
    lse = cupy.full((1, 2, seqlen_q), -np.inf, np.float32)
    for x in flash_attn_bwd_stored(q, q, k, k, q, lse):
        assert not x.any()


def test_small_strided_arrays():
    rng = np.random.default_rng(0)
    x = cupy.asarray(rng.standard_normal((2, 5, 4, 150, 264)).astype(np.float16))
    strided = [x[:, i].transpose(0, 2, 1, 3) for i in range(5)]  # heads before seqlen
    lse = cupy.asarray(rng.standard_normal((2, 4, 150)).astype(np.float32) + 9)
    packed = [cupy.ascontiguousarray(x) for x in strided]
    for x, y in zip(*(flash_attn_bwd_stored(*a, lse) for a in (strided, packed)), strict=True):
        assert (x == y).all()


@pytest.mark.parametrize("head_dim", [256, 260, 520])
def test_small_bad_head_dim(head_dim):
    x, lse = cupy.ones((1, 8, 2, head_dim), np.float16), cupy.ones((1, 2, 8), np.float32)
    with pytest.raises(ValueError, match="head_dim"):
        flash_attn_bwd_stored(x, x, x, x, x, lse)


def test_small_gradients_of_torch():
    torch = pytest.importorskip("torch")
    import fa_numba.torch as fa_torch

    generator = torch.Generator("cuda").manual_seed(0)
    shape = 1, 2, 300, 512
    q, k, v, dout = (
        torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16)
        for _ in range(4)
    )
    results = []
    for module in (fa_torch, torch.nn.functional):
        inputs = [x.clone().requires_grad_() for x in (q, k, v)]
        module.scaled_dot_product_attention(*inputs, is_causal=True).backward(dout)
        results.append([x.grad.float() for x in inputs])
    for x, y in zip(*results, strict=True):
        assert (x - y).norm() <= 0.02 * y.norm()
