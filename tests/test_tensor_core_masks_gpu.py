"""Masks and packed batches on tensor cores, on a real GPU: `pytest -m gpu`."""

import ml_dtypes
import numpy as np
import pytest
from few_cases import pairs
from gpu_cases import ON_A_GPU, cupy_on_a_gpu

cupy = cupy_on_a_gpu(hopper=True)
pytestmark = ON_A_GPU

from fa_numba import reference  # noqa: E402
from fa_numba.tensor_core.flash_attn_persistent import flash_attn_persistent  # noqa: E402
from fa_numba.tensor_core.flash_attn_persistent_varlen import (  # noqa: E402
    MAX_SORTED,
    flash_attn_persistent_varlen,
)

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
MASKS = {
    "window": {"window_size": (100, 50)},
    "causal-window": {"causal": True, "window_size": (63, -1)},
    "window-512": {"window_size": (511, 0)},  # for half of a tile at either end
    "window-right": {"window_size": (-1, 37)},
    "window-long": {"window_size": (1030, 2)},
    "diagonal": {"window_size": (0, 0)},
    "softcap": {"softcap": 1.5},  # many scores are beyond the range of the polynomial
    "softcap-of-small-scores": {"softcap": 30.0},
    "alibi": {"alibi": True},
    "causal-alibi": {"causal": True, "alibi": True},
    "window-alibi": {"window_size": (150, 90), "alibi": True},
    "left-window-alibi": {"window_size": (300, 0), "alibi": True},
    "all": {"window_size": (130, 200), "softcap": 5.0, "alibi": True},
    "causal-all": {"causal": True, "window_size": (200, -1), "softcap": 5.0, "alibi": True},
}
UNBENT = {"none": {}, "causal": {"causal": True}}
# seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim or that of Q and that of V, dtype
SHAPES = [
    (1, 1, 1, 1, 64, "float16"),
    (200, 333, 4, 2, 64, "float16"),
    (333, 200, 2, 1, 128, "float16"),  # rows that see no key
    (700, 700, 2, 1, 128, "float16"),
    (700, 900, 2, 2, 64, "float16"),
]
CASES = [(mask, shape) for mask in MASKS for shape in SHAPES if mask != "window-long"]
CASES += [
    ("window-long", (1500, 1700, 2, 1, 64, "float16")),
    ("all", (129, 1000, 2, 1, 72, "float16")),
    ("causal-all", (300, 257, 2, 1, 112, "bfloat16")),
    ("all", (300, 300, 3, 1, 128, "bfloat16")),
    ("all", (200, 300, 2, 1, 256, "float16")),
    ("causal-all", (300, 400, 3, 1, 64, "bfloat16")),
    ("none", (200, 333, 4, 2, (192, 128), "float16")),
    ("causal", (700, 900, 2, 1, (192, 128), "bfloat16")),
    ("window", (333, 200, 2, 1, (192, 128), "float16")),  # rows that see no key
    ("all", (129, 500, 2, 2, (192, 128), "float16")),
    ("causal-all", (300, 257, 2, 1, (192, 72), "bfloat16")),
    ("causal", (300, 400, 2, 1, (256, 128), "float16")),
    ("none", (300, 400, 2, 1, (256, 200), "bfloat16")),
    ("causal-alibi", (300, 400, 2, 1, (128, 64), "float16")),
    ("causal", (300, 400, 2, 2, (96, 64), "float16")),
]


def make_inputs(rng, shape, *, alibi=False, **mask):
    """q, k, v, and the options; some slopes are negative."""
    seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim, dtype = shape
    head_dim, head_dim_v = np.broadcast_to(head_dim, 2)
    of_q, of_k = (seqlen_q, num_heads, head_dim), (seqlen_k, num_kv_heads, head_dim)
    sizes = of_q, of_k, (*of_k[:2], head_dim_v)
    qkv = [rng.standard_normal((2, *size)).astype(DTYPES[dtype]) for size in sizes]
    if alibi:
        mask["alibi_slopes"] = rng.uniform(-0.1, 0.5, num_heads).astype(np.float32)
    return qkv, mask


def plain_attention(q, k, v, **mask):
    """P rounded to the dtype before P V, as a library without a fused kernel does it."""
    _, lse = reference.attention(q, k, v, dtype=np.float32, **mask)
    options = {"causal": False, "window_size": (-1, -1), "softcap": 0.0, "alibi_slopes": None}
    q32, k32, v32 = (x.astype(np.float32).swapaxes(1, 2) for x in (q, k, v))
    s, _ = reference._scores(q32, k32, options | mask)
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


@pytest.mark.few(
    lambda mask, shape: [mask, shape, *pairs(shape[-2], "window" in mask, "alibi" in mask)]
)
@pytest.mark.parametrize(
    "mask, shape", CASES, ids=lambda x: x if isinstance(x, str) else "x".join(map(str, x))
)
def test_masks(rng, mask, shape):
    qkv, options = make_inputs(rng, shape, **(MASKS | UNBENT)[mask])
    on = {name: on_gpu(x) for name, x in options.items()}
    q, k, v = map(on_gpu, qkv)
    poison(q), poison(q[..., : v.shape[3]])
    got = flash_attn_persistent(q, k, v, **on)
    assert_right(got, qkv, options)
    for _ in range(20):
        again = flash_attn_persistent(q, k, v, **on)
        for x, y in zip(got, again, strict=True):
            assert (x.view(np.uint8) == y.view(np.uint8)).all()


SLOPES = np.float32([0.6, -0.4, 0, 1e-3, 3, -2.5, 1 / 3, 40])  # for many keys P is 0, of the steep


@pytest.mark.parametrize("seqlen_q, seqlen_k", [(600, 600), (200, 1100), (500, 300)])
@pytest.mark.parametrize("head_dim, dtype", [(64, "float16"), (128, "bfloat16"), (192, "float16")])
@pytest.mark.parametrize("causal", [False, True])
def test_alibi_of_any_slope(rng, causal, head_dim, dtype, seqlen_q, seqlen_k):
    qkv, _ = make_inputs(rng, (seqlen_q, seqlen_k, 8, 2, head_dim, dtype))
    out, lse = flash_attn_persistent(*map(on_gpu, qkv), causal=causal, alibi_slopes=on_gpu(SLOPES))
    mask = {"causal": causal, "alibi_slopes": SLOPES}
    want, lse_want = reference.attention(*qkv, **mask)
    plain = plain_attention(*qkv, **mask).astype(np.float64)
    error = abs(out.get().astype(np.float64) - want).max()
    assert error <= 2 * abs(plain - want).max() + 1e-6
    for head in range(8):
        # float32 holds slope · distance, and loses the score beside it.
        rounding = 1e-4 + 2.0**-22 * abs(SLOPES[head]) * max(seqlen_q, seqlen_k)
        np.testing.assert_allclose(lse.get()[:, head], lse_want[:, head], 1e-5, rounding)


def test_nan_reaches_rows_for_which_it_hardly_counts(rng):
    qkv, _ = make_inputs(rng, (700, 700, 1, 1, 64, "float16"))
    qkv[1][:, 3] = np.nan
    steep = on_gpu(np.float32([8]))
    out, _ = flash_attn_persistent(*map(on_gpu, qkv), causal=True, alibi_slopes=steep)
    out = out.get()
    assert np.isnan(out[:, 3:]).all() and np.isfinite(out[:, :3]).all()


@pytest.mark.parametrize("scale", [1e-6, 0.3, 40.0])
def test_softcap_of_any_size_of_scores(rng, scale):
    qkv, _ = make_inputs(rng, (150, 150, 1, 1, 64, "float16"))
    mask = {"softcap": 20.0, "softmax_scale": scale}
    out_ref, lse_ref = reference.attention(*qkv, **mask)
    out, lse = flash_attn_persistent(*map(on_gpu, qkv), **mask)
    np.testing.assert_allclose(out.get(), out_ref, atol=2e-3)
    np.testing.assert_allclose(lse.get(), lse_ref, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("head_dim, dtype", [(64, "float16"), (128, "bfloat16")])
@pytest.mark.parametrize("spread", [4.0, 30.0, -5.0])
@pytest.mark.parametrize("mask", ["none", "causal", "softcap-of-small-scores", "causal-alibi"])
def test_a_maximum_that_rises(rng, mask, spread, head_dim, dtype):
    qkv, options = make_inputs(rng, (520, 600, 2, 1, head_dim, dtype), **(MASKS | UNBENT)[mask])
    if spread < 0:  # all scores are below 0
        qkv[:2] = (abs(x) for x in qkv[:2])
    qkv[0] = (qkv[0].astype(np.float32) * spread).astype(qkv[0].dtype)
    if "alibi_slopes" in options:
        options["alibi_slopes"] *= np.float32([1, 4])  # far steeper, and float32 loses lse
    on = {name: on_gpu(x) for name, x in options.items()}
    assert_right(flash_attn_persistent(*map(on_gpu, qkv), **on), qkv, options)


# Lengths of the sequences: queries, keys; num_heads, num_kv_heads, head_dim, dtype.
MIXED = (128, 1, 0, 300, 17), (128, 0, 5, 129, 400)
PACKED = [
    ((1,), (1,), 1, 1, 64, "float16"),
    (*MIXED, 4, 2, 64, "float16"),
    (*MIXED, 2, 1, 128, "float16"),
    ((200,) * 40, tuple(range(0, 400, 10)), 2, 2, 128, "float16"),
    ((1,) * 150, (1,) * 150, 2, 1, 64, "float16"),
    ((1000, 3, 70), (1000, 3, 70), 4, 4, 128, "float16"),
]
PACKED_CASES = [(mask, case) for mask in ("none", "causal", "all") for case in PACKED]
PACKED_CASES += [
    ("causal-all", (*MIXED, 2, 2, 72, "bfloat16")),
    ("causal", (*MIXED, 2, 1, 192, "bfloat16")),
    ("none", (*MIXED, 2, 2, 256, "float16")),
    ("causal-all", ((300, 129), (513, 70), 4, 2, 256, "float16")),
    ("causal", ((200, 130), (4096, 50), 32, 32, 64, "float16")),  # more heads than a section has
    ("alibi", (*MIXED, 2, 2, 64, "bfloat16")),
    ("alibi", ((700, 900), (700, 1100), 2, 1, 128, "float16")),
    ("causal-alibi", ((700, 129), (900, 1100), 4, 2, 64, "float16")),
    ("causal-alibi", (*MIXED, 2, 1, 128, "float16")),
    ("causal", (*MIXED, 4, 2, (192, 128), "float16")),
    ("none", (*MIXED, 2, 1, (192, 128), "bfloat16")),
    ("window", (*MIXED, 2, 2, (192, 128), "float16")),
    ("causal-all", (*MIXED, 2, 1, (256, 72), "float16")),
    ("causal", (*MIXED, 2, 1, (128, 64), "bfloat16")),
]


def make_packed(rng, case, *, alibi=False, **mask):
    """q, k, v, cu_seqlens_q, cu_seqlens_k, and the options."""
    lengths_q, lengths_k, num_heads, num_kv_heads, head_dim, dtype = case
    head_dim, head_dim_v = np.broadcast_to(head_dim, 2)
    of_q = sum(lengths_q), num_heads, head_dim
    of_k = sum(lengths_k), num_kv_heads, head_dim
    sizes = of_q, of_k, (*of_k[:2], head_dim_v)
    q, k, v = (rng.standard_normal(size).astype(DTYPES[dtype]) for size in sizes)
    starts = [np.cumsum((0, *lengths), dtype=np.int32) for lengths in (lengths_q, lengths_k)]
    if alibi:
        mask["alibi_slopes"] = rng.uniform(-0.1, 0.5, num_heads).astype(np.float32)
    return (q, k, v, *starts), mask


def poison(like):
    """NaN in the memory that the next array of this size is likely to get."""
    cupy.full(like.nbytes, 0xFF, np.uint8)


@pytest.mark.parametrize("mask, case", PACKED_CASES)
def test_packed_sequences(rng, mask, case):
    packed, options = make_packed(rng, case, **(MASKS | UNBENT)[mask])
    on = {name: on_gpu(x) for name, x in options.items()}
    arguments = [on_gpu(x) for x in packed]
    poison(arguments[0])
    got = out, lse = flash_attn_persistent_varlen(*arguments, **on)
    q, k, v, starts_q, starts_k = packed
    for b in range(len(starts_q) - 1):
        rows, keys = slice(*starts_q[b : b + 2]), slice(*starts_k[b : b + 2])
        if rows.start < rows.stop:
            qkv = q[None, rows], k[None, keys], v[None, keys]
            assert_right((out[None, rows], lse[None, :, rows]), qkv, options)
    for _ in range(20):
        again = flash_attn_persistent_varlen(*arguments, **on)
        for x, y in zip(got, again, strict=True):
            assert (x.view(np.uint8) == y.view(np.uint8)).all()


@pytest.mark.parametrize("mask", ["none", "causal", "causal-alibi"])
def test_a_sequence_of_nan_reaches_no_other(rng, mask):
    packed, options = make_packed(rng, PACKED[1], **(MASKS | UNBENT)[mask])
    (q, k, v, starts_q, starts_k) = packed
    starts, on = (on_gpu(starts_q), on_gpu(starts_k)), {n: on_gpu(x) for n, x in options.items()}
    want = flash_attn_persistent_varlen(*map(on_gpu, (q, k, v)), *starts, **on)
    for b in range(len(starts_q) - 1):
        spoilt = [x.copy() for x in (q, k, v)]
        rows, keys = slice(*starts_q[b : b + 2]), slice(*starts_k[b : b + 2])
        spoilt[0][rows], spoilt[1][keys], spoilt[2][keys] = np.nan, np.nan, np.nan
        out, lse = flash_attn_persistent_varlen(*map(on_gpu, spoilt), *starts, **on)
        others = np.ones(len(q), bool)
        others[rows] = False
        for x, y in ((out, want[0]), (lse.T, want[1].T)):
            np.testing.assert_array_equal(x.get()[others], y.get()[others])
        if mask == "none" and keys.start < keys.stop:
            assert np.isnan(out.get()[rows]).all()


def test_more_sequences_than_are_sorted(rng):
    lengths = (1, 70) * (MAX_SORTED // 2 + 1)
    (q, k, v, starts, _), _ = make_packed(rng, (lengths, lengths, 2, 1, 64, "float16"))
    q, k, v = map(on_gpu, (q, k, v))
    got = flash_attn_persistent_varlen(q, k, v, on_gpu(starts), on_gpu(starts), causal=True)
    half = len(lengths) // 2
    for these in (starts[: half + 1], starts[half:]):
        rows, starts_here = slice(*these[[0, -1]]), on_gpu(these - these[0])
        some = (x[rows] for x in (q, k, v))
        want = flash_attn_persistent_varlen(*some, starts_here, starts_here, causal=True)
        assert (got[0][rows] == want[0]).all() and (got[1][:, rows] == want[1]).all()


def test_packed_arrays_may_be_strided_and_torchs(rng):
    torch = pytest.importorskip("torch")
    packed, _ = make_packed(rng, PACKED[1])
    want, _ = flash_attn_persistent_varlen(*map(on_gpu, packed))
    q, k, v, *starts = (torch.as_tensor(x, device="cuda") for x in packed)
    wide = torch.cat([k, v], dim=-1)
    out, lse = flash_attn_persistent_varlen(q, wide[..., :64], wide[..., 64:], *starts)
    assert isinstance(out, torch.Tensor) and lse.shape == (4, len(q))
    assert (out.cpu().numpy() == want.get()).all()


def test_no_keys_at_all(rng):
    packed, _ = make_packed(rng, ((3, 4), (0, 0), 2, 1, 64, "float16"))
    out, lse = flash_attn_persistent_varlen(*map(on_gpu, packed))
    assert (out == 0).all() and (lse == -np.inf).all() and lse.shape == (2, 7)
