"""Dropout on tensor cores, on a real GPU: `pytest -m gpu`."""

import ml_dtypes
import numpy as np
import pytest
from few_cases import pairs
from gpu_cases import ON_A_GPU, cupy_on_a_gpu

cupy = cupy_on_a_gpu(hopper=True)
pytestmark = ON_A_GPU

import tensor_core_kernels as kernels  # noqa: E402

import fa_numba  # noqa: E402
from fa_numba import reference  # noqa: E402
from fa_numba.kernels.flash_attn_bwd import flash_attn_bwd  # noqa: E402
from fa_numba.kernels.flash_attn_v2 import flash_attn_v2  # noqa: E402
from fa_numba.tensor_core.flash_attn_bwd_persistent import flash_attn_bwd_persistent  # noqa: E402
from fa_numba.tensor_core.flash_attn_persistent import flash_attn_persistent  # noqa: E402

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
SEEDS = [0, 2**32, 2**64 - 1]


@pytest.mark.parametrize("limit", [0, 1, 0x3FF, 0x400, 0x3C00, 0x7BFF, 0x7C00])
def test_halves_are_compared_as_integers(limit):
    every = np.arange(2**16, dtype=np.uint32)  # each pattern of 16 bits, in both halves
    for start in range(0, 2**16, 1024):
        low = every[start : start + 1024]
        x = low | low[::-1] << 16
        y = cupy.zeros(6 * 1024, np.uint32)
        limits = cupy.asarray(np.uint32([limit << 16 | limit]))
        kernels.halves_kernel[1, 1024](cupy.asarray(x), limits, y)
        kept = np.where(x & 0x7FFF >= limit, 0xFFFF, 0)
        kept |= np.where(x >> 16 & 0x7FFF >= limit, 0xFFFF0000, 0)
        pair, mask, permuted, word, of_columns, low = y.get().reshape(6, 1024)
        np.testing.assert_array_equal(mask, kept)
        np.testing.assert_array_equal(pair, kept & 0x12345678)
        neighbour = x.reshape(-1, 2)[:, ::-1].ravel()
        np.testing.assert_array_equal(permuted, neighbour >> 16 | (x & 0xFFFF0000))
        np.testing.assert_array_equal(word, x)
        np.testing.assert_array_equal(of_columns, np.tile(x.reshape(-1, 32)[:, 4:8], 8).ravel())
        np.testing.assert_array_equal(low, [2 ** min(i % 64, 32) - 1 for i in range(1024)])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("p", [2e-5, 0.01, 0.3, 31 / 32])
@pytest.mark.parametrize("batch, seqlen_q, seqlen_k, num_heads", [(2, 200, 128, 3), (1, 1, 1, 1)])
def test_the_mask_is_that_of_the_definition(seed, p, batch, seqlen_q, seqlen_k, num_heads):
    """Scores are 0 and rows of V, or of dout, are unit vectors: out is P ∘ Z, dv its transpose."""
    head_dim = 128
    want = reference.dropout_mask(seed, p, batch, num_heads, seqlen_q, seqlen_k)
    q = cupy.zeros((batch, seqlen_q, num_heads, head_dim), np.float16)
    k = cupy.zeros((batch, seqlen_k, num_heads, head_dim), np.float16)
    units = cupy.asarray(np.eye(256, head_dim, dtype=np.float16)[None, :, None])
    v = k + units[:, :seqlen_k]
    out, lse = flash_attn_persistent(q, k, v, dropout_p=p, seed=seed)
    drawn = (out.get() > 0).transpose(0, 2, 1, 3)[..., :seqlen_k]
    np.testing.assert_array_equal(drawn, want)
    rows = min(seqlen_q, head_dim)
    dout = q + units[:, :seqlen_q]
    _, _, dv = flash_attn_bwd_persistent(dout, q, k, k, q, lse, dropout_p=p, seed=seed)
    drawn = (dv.get() > 0).transpose(0, 2, 3, 1)[:, :, :rows]
    np.testing.assert_array_equal(drawn, want[:, :, :rows])


def relative_error(got, want):
    size = np.linalg.norm(want)
    return np.linalg.norm(got.get().astype(np.float64) - want) / (size if size else 1)


MASKS = {
    "full": {},
    "causal": {"causal": True},
    "all": {"causal": True, "window_size": (90, -1), "softcap": 15.0, "alibi_slopes": True},
}
SHAPES = [
    (200, 333, 4, 2, 64, "bfloat16"),
    (700, 700, 2, 2, 128, "float16"),
    (333, 200, 2, 1, 72, "float16"),  # causal: rows that see no key
    (1, 500, 2, 1, 128, "float16"),
]


@pytest.mark.few(lambda shape, mask, p: [shape, *pairs(p, mask)])
@pytest.mark.parametrize("p", [0.1, 0.9])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda x: "x".join(map(str, x)))
def test_results_and_gradients(rng, shape, mask, p):
    seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim, dtype = shape
    sizes = (seqlen_q, num_heads), (seqlen_k, num_kv_heads), (seqlen_k, num_kv_heads)
    q, k, v, dout = (
        rng.standard_normal((2, n, heads, head_dim)).astype(DTYPES[dtype])
        for n, heads in (*sizes, sizes[0])
    )
    options = mask | {"dropout_p": p, "seed": 2**63 + 7}
    if "alibi_slopes" in mask:
        options["alibi_slopes"] = np.float32([0.3, -0.05, 0.02, 0.1])[:num_heads]
    want, lse_want = reference.attention(q, k, v, **options)
    gradients = reference.attention_bwd(dout, q, k, v, **options)
    on = {name: cupy.asarray(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    q, k, v, dout = map(cupy.asarray, (q, k, v, dout))
    out, lse = flash_attn_persistent(q, k, v, **on)
    assert relative_error(out, want) <= 4 * ROUNDING[dtype]
    np.testing.assert_allclose(lse.get(), lse_want, rtol=1e-5, atol=1e-4)
    for deterministic in (False, True):
        got = flash_attn_bwd_persistent(dout, q, k, v, out, lse, **on, deterministic=deterministic)
        for x, y in zip(got, gradients, strict=True):
            assert relative_error(x, y) <= 6 * ROUNDING[dtype]
    again = flash_attn_bwd_persistent(dout, q, k, v, out, lse, **on, deterministic=True)
    for x, y in zip(got, again, strict=True):
        assert (x.view(np.uint8) == y.view(np.uint8)).all()


@pytest.mark.parametrize("head_dim", [192, 256])
def test_wide_heads(rng, head_dim):
    q, k, v = (rng.standard_normal((2, n, 2, head_dim)).astype("f2") for n in (200, 333, 333))
    options = {"dropout_p": 0.3, "seed": 9}
    want, _ = reference.attention(q, k, v, **options)
    out, _ = flash_attn_persistent(*map(cupy.asarray, (q, k, v)), **options)
    assert relative_error(out, want) <= 4 * ROUNDING["float16"]


def test_the_lesson_kernels_drop_the_same_entries_and_the_jobs_choose_these(rng):
    q, k, v, dout = (
        cupy.asarray(rng.standard_normal((1, 300, 2, 64)).astype("f2")) for _ in range(4)
    )
    options = {"causal": True, "dropout_p": 0.4, "seed": 11}
    out, lse = fa_numba.flash_attn(q, k, v, **options)
    want, _ = flash_attn_v2(q, k, v, **options)
    assert relative_error(out, want.get().astype(np.float64)) <= 4 * ROUNDING["float16"]
    got = fa_numba.flash_attn_grad(dout, q, k, v, out, lse, **options)
    want = flash_attn_bwd(dout, q, k, v, out, lse, **options)
    for x, y in zip(got, want, strict=True):
        assert relative_error(x, y.get().astype(np.float64)) <= 6 * ROUNDING["float16"]
    assert fa_numba.which("flash_attn", q, k, v, **options).kernel == "flash_attn_persistent"
    arrays = dout, q, k, v, out, lse
    choice = fa_numba.which("flash_attn_grad", *arrays, **options)
    assert choice.kernel == "flash_attn_bwd_persistent"
    options["dropout_p"] = 0.99
    assert fa_numba.which("flash_attn", q, k, v, **options).kernel == "flash_attn_v2"


def test_another_seed_or_probability_compiles_nothing(rng):
    q, k, v = (cupy.asarray(rng.standard_normal((1, 100, 1, 128)).astype("f2")) for _ in range(3))
    flash_attn_persistent(q, k, v, dropout_p=0.1, seed=1)
    from fa_numba.tensor_core.flash_attn_persistent import make_flash_attn_persistent

    kernels = make_flash_attn_persistent.cache_info().currsize
    outs = [
        flash_attn_persistent(q, k, v, dropout_p=p, seed=seed)[0]
        for p, seed in ((0.1, 1), (0.1, 2), (0.2, 1))
    ]
    assert make_flash_attn_persistent.cache_info().currsize == kernels
    assert not (outs[0] == outs[1]).all() and not (outs[0] == outs[2]).all()
