"""flash_attn_split on a real GPU: `pytest -m gpu`; `-k small` is small enough for the sanitizer."""

import numpy as np
import pytest
from few_cases import pairs
from gpu_cases import ON_A_GPU, cupy_on_a_gpu

cupy = cupy_on_a_gpu(hopper=True)
pytestmark = ON_A_GPU

from test_tensor_core_masks_gpu import (  # noqa: E402
    MASKS,
    UNBENT,
    assert_right,
    make_inputs,
    on_gpu,
    plain_attention,
)

from fa_numba import reference  # noqa: E402
from fa_numba.runtime import arrays  # noqa: E402
from fa_numba.tensor_core.flash_attn_split import flash_attn_split  # noqa: E402

# seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim, dtype
SHAPES = {
    "small": (1, 1, 1, 1, 64, "float16"),
    "small-four_heads_in_a_tile": (17, 400, 8, 2, 128, "float16"),
    "small-eight_heads_in_a_tile": (16, 300, 8, 1, 128, "bfloat16"),
    "small-two_heads_in_a_tile": (40, 500, 4, 2, 64, "bfloat16"),
    "one_warpgroup": (64, 3000, 2, 2, 128, "float16"),
    "two_thread_blocks_in_an_sm": (50, 3000, 3, 3, 64, "float16"),
    "two_warpgroups": (128, 2000, 2, 1, 128, "float16"),
    "three_warpgroups": (333, 1500, 16, 4, 64, "float16"),
    "more_queries_than_keys": (333, 200, 2, 1, 128, "float16"),
    "head_dim_72": (130, 700, 2, 1, 72, "float16"),
    "head_dim_192": (100, 700, 2, 1, 192, "bfloat16"),
    "head_dim_256": (20, 900, 4, 1, 256, "float16"),
}


@pytest.mark.few(
    lambda shape, mask, num_splits: [
        shape,
        *pairs(shape[-2] // 64, num_splits > 1),
        *pairs(mask, shape[-2] // 64),
        *pairs(mask, num_splits),
    ]
)
@pytest.mark.parametrize("num_splits", [0, 1, 2, 5, 40])  # 40: more than tiles of keys
@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_splits(rng, shape, mask, num_splits):
    qkv, options = make_inputs(rng, shape, **UNBENT[mask])
    arguments = list(map(on_gpu, qkv))
    got = flash_attn_split(*arguments, num_splits=num_splits, **options)
    assert_right(got, qkv, options)
    again = flash_attn_split(*arguments, num_splits=num_splits, **options)
    for x, y in zip(got, again, strict=True):  # the same bits in every run
        assert (x.view(np.uint8) == y.view(np.uint8)).all()


@pytest.mark.few(
    lambda shape, mask, num_splits: [mask, *pairs(shape, num_splits, "causal" in mask)]
)
@pytest.mark.parametrize("num_splits", [0, 3])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", ["small-four_heads_in_a_tile", "three_warpgroups"])
def test_masks(rng, mask, shape, num_splits):
    qkv, options = make_inputs(rng, SHAPES[shape], **MASKS[mask])
    on = {name: on_gpu(x) for name, x in options.items()}
    got = flash_attn_split(*map(on_gpu, qkv), num_splits=num_splits, **on)
    assert_right(got, qkv, options)


@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_out_in_float32(rng, dtype, num_splits):
    """Its error is that of P, which is rounded to 16 bits; that of the rounding of out is gone."""
    qkv, _ = make_inputs(rng, (200, 700, 4, 2, 64, dtype))
    options = {"causal": True, "num_splits": num_splits}
    out, lse = flash_attn_split(*map(on_gpu, qkv), out_dtype="float32", **options)
    rounded, same = flash_attn_split(*map(on_gpu, qkv), **options)
    assert out.dtype == np.float32 and (lse == same).all()
    assert (arrays.to_numpy(out).astype(qkv[0].dtype) == arrays.to_numpy(rounded)).all()
    want, lse_want = reference.attention(*qkv, causal=True)
    plain = plain_attention(*qkv, causal=True).astype(np.float64)
    error = abs(out.get() - want)
    assert error.max() <= 2 * abs(plain - want).max()
    assert error.mean() < abs(arrays.to_numpy(rounded).astype(np.float64) - want).mean()
    np.testing.assert_allclose(lse.get(), lse_want, rtol=1e-5, atol=1e-4)
    empty, lse = flash_attn_split(
        *(on_gpu(x) for x in (qkv[0], qkv[1][:, :0], qkv[2][:, :0])), out_dtype="float32"
    )
    assert empty.dtype == np.float32 and not empty.any() and (lse == -np.inf).all()


def test_parts_of_the_keys_merge(rng):
    """The states of two parts of the keys are those that rings of several GPUs exchange."""
    qkv, _ = make_inputs(rng, (60, 900, 4, 2, 128, "float16"))
    q, k, v = map(on_gpu, qkv)
    halves = slice(0, 500), slice(500, 900)
    states = [flash_attn_split(q, k[:, x], v[:, x], out_dtype="float32") for x in halves]
    (out_a, lse_a), (out_b, lse_b) = ((out.get(), lse.get()) for out, lse in states)
    lse = np.logaddexp(lse_a, lse_b)
    weights = (np.exp(x - lse).swapaxes(1, 2)[..., None] for x in (lse_a, lse_b))
    out = sum(w * x for w, x in zip(weights, (out_a, out_b), strict=True))
    want, lse_want = reference.attention(*qkv)
    plain = plain_attention(*qkv).astype(np.float64)
    assert abs(out - want).max() <= 2 * abs(plain - want).max()
    np.testing.assert_allclose(lse, lse_want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("page_size, pages", [(16, 45), (24, 11), (256, 3)])
@pytest.mark.parametrize("seqlen_q, head_dim", [(17, 128), (130, 64)])
def test_pages(rng, page_size, pages, seqlen_q, head_dim):
    """The same bits as from keys one after the other; no page is read that is not in the table."""
    qkv, _ = make_inputs(rng, (seqlen_q, page_size * pages, 4, 2, head_dim, "float16"))
    q, k, v = map(on_gpu, qkv)
    order = rng.permutation(2 * len(k) * pages)[: len(k) * pages].astype(np.int32)
    shape = 2 * order.size, page_size, *k.shape[2:]
    caches = [cupy.full(shape, np.nan, np.float16) for _ in "kv"]
    for cache, x in zip(caches, (k, v), strict=True):
        cache[cupy.asarray(order)] = x.reshape(-1, *shape[1:])
    table = cupy.asarray(order.reshape(len(k), pages))
    got = flash_attn_split(q, *caches, block_table=table, num_splits=2)
    want = flash_attn_split(q, k, v, num_splits=2)
    for x, y in zip(got, want, strict=True):
        assert (x == y).all()


def test_strided_arrays_and_nan_past_the_end(rng):
    """Heads before tokens; keys past the end and rows of other heads are never read."""
    wide = rng.standard_normal((2, 3, 4, 300, 64)).astype(np.float16)
    wide[:, :, :, 250:] = np.nan
    x = cupy.asarray(wide)
    q, k, v = (x[:, i].transpose(0, 2, 1, 3)[:, :250] for i in range(3))
    q = q[:, 230:]
    packed = [cupy.ascontiguousarray(y) for y in (q, k, v)]
    got, want = flash_attn_split(q, k, v), flash_attn_split(*packed)
    for x, y in zip(got, want, strict=True):
        assert (x == y).all() and cupy.isfinite(x).all()


def test_large_scores(rng):
    qkv, _ = make_inputs(rng, (20, 600, 4, 1, 64, "float16"))
    for scale in (1e-6, 0.3, 40.0):
        out_ref, lse_ref = reference.attention(*qkv, softmax_scale=scale)
        out, lse = flash_attn_split(*map(on_gpu, qkv), softmax_scale=scale, num_splits=3)
        np.testing.assert_allclose(out.get(), out_ref, atol=2e-3)
        np.testing.assert_allclose(lse.get(), lse_ref, rtol=1e-5, atol=1e-4)


def test_the_choice_of_splits_agrees_with_one_split(rng):
    qkv, _ = make_inputs(rng, (17, 20000, 4, 1, 128, "float16"))
    arguments = list(map(on_gpu, qkv))
    out, lse = flash_attn_split(*arguments)
    one, lse_one = flash_attn_split(*arguments, num_splits=1)
    np.testing.assert_allclose(out.get().astype(float), one.get().astype(float), atol=3e-4)
    np.testing.assert_allclose(lse.get(), lse_one.get(), rtol=1e-6, atol=1e-5)
