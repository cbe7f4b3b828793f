"""flash_attn_bwd_varlen on a real GPU, its copies first: `pytest -m gpu`.

`-k small` keeps the cases that are small enough for compute-sanitizer.
"""

from unittest.mock import patch

import ml_dtypes
import numpy as np
import pytest
from few_cases import pairs
from gpu_cases import ON_A_GPU, cupy_on_a_gpu
from numba import cuda

cupy = cupy_on_a_gpu(hopper=True)
pytestmark = [*ON_A_GPU, pytest.mark.usefixtures("poisoned")]

from tensor_core_bwd_kernels import copy_windows  # noqa: E402

from fa_numba import reference  # noqa: E402
from fa_numba.ptx import layouts  # noqa: E402
from fa_numba.runtime.tensor_maps import tensor_map  # noqa: E402
from fa_numba.tensor_core import flash_attn_bwd_varlen as varlen  # noqa: E402
from fa_numba.tensor_core import packed_backward  # noqa: E402
from fa_numba.tensor_core.dq_parts import ADDED, BY_ARRIVAL, ORDERED  # noqa: E402
from fa_numba.tensor_core.flash_attn_bwd_persistent import flash_attn_bwd_persistent  # noqa: E402

flash_attn_bwd_varlen = varlen.flash_attn_bwd_varlen
DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
ALL_MASKS = {"window_size": (90, 70), "softcap": 15.0, "alibi": True}
MIXED = (5, 130, 1, 300, 64), (7, 129, 127, 260, 128)
EMPTY = (300, 0, 90, 20, 0), (10, 200, 0, 400, 0)  # rows without keys, no queries, no keys, neither
# lengths of queries, of keys, num_heads, num_kv_heads, head_dim, dtype
SMALL = [
    ({}, (*MIXED, 4, 2, 64, "float16")),
    ({"causal": True}, (*MIXED, 2, 2, 64, "float16")),
    ({"causal": True}, (*EMPTY, 2, 1, 64, "float16")),
    ({}, (*EMPTY, 4, 1, 128, "bfloat16")),
    ({"causal": True}, (*MIXED, 4, 2, 128, "float16")),
    ({"causal": True}, ((2, 1), (3, 1), 1, 1, 128, "float16")),
    ({}, ((0, 0, 3), (3, 0, 0), 1, 1, 128, "bfloat16")),
    ({"window_size": (60, 30)}, (*MIXED, 2, 1, 96, "bfloat16")),
    ({"causal": True, "window_size": (100, -1)}, (*EMPTY, 2, 2, 8, "float16")),
    ({"softcap": 15.0}, (*MIXED, 2, 1, 128, "float16")),
    ({"alibi": True}, (*EMPTY, 2, 1, 128, "float16")),
    (ALL_MASKS, (*MIXED, 4, 2, 64, "float16")),
    ({"causal": True, "alibi": True}, (*MIXED, 4, 1, 128, "bfloat16")),
    ({"causal": True, "softcap": 15.0}, (*MIXED, 4, 2, 128, "float16")),
    ({"causal": True}, (*EMPTY, 8, 1, 96, "bfloat16")),
    ({"window_size": (-1, 40)}, (*MIXED, 4, 2, 80, "float16")),
    ({"causal": True}, (*MIXED, 4, 2, (192, 128), "float16")),
    ({}, (*EMPTY, 2, 1, (136, 72), "bfloat16")),
    ({}, (*EMPTY, 2, 2, (72, 56), "float16")),
]
LARGE = [
    ({}, ((700, 1, 400, 900), (900, 300, 400, 500), 6, 3, 64, "float16")),
    ({"causal": True}, ((700, 129, 1300), (900, 1100, 600), 4, 2, 128, "float16")),
    ({"causal": True}, ((33,) * 300, (50,) * 300, 2, 1, 64, "bfloat16")),
]


def make_packed(rng, case, *, alibi=False, **mask):
    """Arguments, the definition's gradients, those of plain code, and options."""
    lengths_q, lengths_k, num_heads, num_kv_heads, head_dim, dtype = case
    kind, starts = (
        DTYPES[dtype],
        [np.cumsum((0, *n), dtype=np.int32) for n in (lengths_q, lengths_k)],
    )
    dims = np.broadcast_to(head_dim, 2)
    q, dout = (rng.standard_normal((starts[0][-1], num_heads, d)) for d in dims)
    k, v = (rng.standard_normal((starts[1][-1], num_kv_heads, d)) for d in dims)
    dout, q, k, v = (x.astype(kind) for x in (dout, q, k, v))
    if "softcap" in mask:
        q *= kind(8)  # scores that a cap changes
    if alibi:
        mask["alibi_slopes"] = np.float32(2) ** -np.arange(1, num_heads + 1, dtype=np.float32)
    out, lse = reference.varlen_attention(q, k, v, *starts, **mask, dtype=kind)
    args = dout, q, k, v, out, lse.astype(np.float32), *starts
    definition = dout, q, k, v, *starts
    want = reference.varlen_attention_bwd(*definition, **mask)
    plain = reference.varlen_attention_bwd(*definition, **mask, dtype=kind)
    return args, want, plain, mask


def gradients(args, options, order=ADDED):
    """dq, dk and dv, computed into memory full of NaN, the parts of dQ summed in this order."""
    args = [cupy.asarray(x) for x in args]
    options = {n: cupy.asarray(x) if n == "alibi_slopes" else x for n, x in options.items()}
    options["deterministic"] = order == ORDERED
    with patch.object(varlen, "fastest_order", lambda *_: order):
        return flash_attn_bwd_varlen.__wrapped__(*args, **options)


def errors(got, want, plain):
    """(name, largest error, allowed) of dq, dk and dv."""
    for name, x, y, z in zip(("dq", "dk", "dv"), got, want, plain, strict=True):
        error = np.abs(x.get().astype(np.float64) - y).max(initial=0)
        yield name, error, 3 * np.abs(z.astype(np.float64) - y).max(initial=0) + 1e-6


def assert_right(got, want, plain):
    for name, error, allowed in errors(got, want, plain):
        assert error <= allowed, f"{name}: {error} > {allowed}"


@pytest.mark.parametrize("num_tokens, stride", [(1, 64), (40, 64), (300, 320)])
def test_copies_end_at_the_end_of_a_window_small(rng, num_tokens, stride):
    """Loads are zero-padded from there on, and stores do not touch what follows."""
    values = rng.integers(1, 1 << 15, (num_tokens, 1, stride)).astype(np.uint16)
    x = cupy.asarray(values).view(np.float16)[..., :64]
    y = cupy.full((num_tokens, 1, 64), 7, np.uint16).view(np.float16)
    starts = np.array([n for n in (0, 3, 21, 37, 100, 280) if n < num_tokens], np.int32)
    ends = np.minimum([2, 19, 36, 39, 117, 300][: len(starts)], num_tokens).astype(np.int32)
    tiles = cupy.zeros((len(starts), 16 * 64), np.uint16)
    maps = (tensor_map(array, 16, windows=True) for array in (x, y))
    copy_windows[1, 32, cuda.default_stream(), 4096](
        *maps, cupy.asarray(starts), cupy.asarray(ends), tiles
    )
    want, row, col = np.full((num_tokens, 64), 7), *np.mgrid[:16, :64]
    for start, end, tile in zip(starts, ends, tiles.get(), strict=True):
        rows = values[start : min(end, start + 16), 0, :64]
        want[start : start + len(rows)] = rows
        loaded = tile[layouts.tile_offset(row, col, 16) // 2]
        np.testing.assert_array_equal(loaded, np.pad(rows, ((0, 16 - len(rows)), (0, 0))))
    np.testing.assert_array_equal(y.view(np.uint16).get()[:, 0], want)


def name_of(x):
    return "-".join(map(str, x)) if isinstance(x, (tuple, dict)) else str(x)


each_order = pytest.mark.parametrize("order", [ADDED, BY_ARRIVAL, ORDERED])


@pytest.mark.few(
    lambda mask, case, order: [
        (mask, case),
        *pairs(order, case[-2], bool(mask)),
        *pairs(order, case[-1]),
    ]
)
@each_order
@pytest.mark.parametrize("mask, case", SMALL, ids=name_of)
def test_packed_gradients_small(rng, mask, case, order):
    args, want, plain, options = make_packed(rng, case, **mask)
    assert_right(gradients(args, options, order), want, plain)


@pytest.mark.few(lambda mask, case, order: [(mask, case), order, *pairs(order, case[-2])])
@each_order
@pytest.mark.parametrize("mask, case", LARGE, ids=name_of)
def test_packed_gradients_large(rng, mask, case, order):
    args, want, plain, options = make_packed(rng, case, **mask)
    got = gradients(args, options, order)
    assert_right(got, want, plain)
    for _ in range(10):
        again = gradients(args, options, order)
        for x, y in list(zip(got, again, strict=True))[0 if order == ORDERED else 1 :]:
            assert (x.view(np.uint16) == y.view(np.uint16)).all()


# Without groups: the padded kernel may divide the heads of a group (`group_parts`).
@pytest.mark.parametrize("head_dim", [64, 128])
def test_each_sequence_has_the_bits_of_the_padded_kernel_small(rng, head_dim):
    case = (*MIXED, 4, 4, head_dim, "float16")
    args, _, _, _ = make_packed(rng, case, causal=True)
    _, dk, dv = gradients(args, {"causal": True})
    dout, q, k, v, out, lse, cu_q, cu_k = args
    for b in range(len(cu_q) - 1):
        rows, keys = slice(*cu_q[b : b + 2]), slice(*cu_k[b : b + 2])
        one = dout[rows], q[rows], k[keys], v[keys], out[rows], lse[:, rows]
        one = [cupy.asarray(np.ascontiguousarray(x)[None]) for x in one]
        _, *want = flash_attn_bwd_persistent(*one, causal=True)
        for x, y in zip((dk, dv), want, strict=True):
            assert (x[keys].view(np.uint16) == y[0].view(np.uint16)).all()


@pytest.mark.parametrize("causal, order", [(False, ADDED), (True, ADDED), (True, BY_ARRIVAL)])
def test_a_sequence_of_nan_reaches_no_other_small(rng, causal, order):
    args, want, plain, options = make_packed(rng, (*MIXED, 4, 2, 64, "float16"), causal=causal)
    cu_q, cu_k = args[-2:]
    for b in range(len(cu_q) - 1):
        spoilt = [x.copy() for x in args]
        rows, keys = slice(*cu_q[b : b + 2]), slice(*cu_k[b : b + 2])
        for x, part in zip(spoilt[:5], (rows, rows, keys, keys, rows), strict=True):
            x[part] = np.nan
        got, others = gradients(spoilt, options, order), []
        for x, part in zip(got, (rows, keys, keys), strict=True):
            assert cupy.isnan(x[part]).any()
            others.append(np.setdiff1d(np.arange(len(x)), np.r_[part]))
        kept = [[x[o] for x, o in zip(xs, others, strict=True)] for xs in (got, want, plain)]
        assert_right(*kept)


def test_more_sequences_than_are_sorted(rng):
    lengths = (1, 70) * (packed_backward.MAX_SORTED // 2 + 1)
    args, want, plain, _ = make_packed(rng, (lengths, lengths, 2, 1, 64, "float16"), causal=True)
    assert_right(gradients(args, {"causal": True}), want, plain)


def test_softmax_scale_small(rng):
    args, want, plain, options = make_packed(
        rng, (*MIXED, 2, 1, 64, "float16"), causal=True, softmax_scale=0.3
    )
    assert_right(gradients(args, options), want, plain)


def test_arrays_may_be_strided_and_torchs_small(rng):
    torch = pytest.importorskip("torch")
    args, want, plain, _ = make_packed(rng, (*MIXED, 4, 4, 64, "float16"), causal=True)
    dout, q, k, v, out, lse, *starts = (torch.as_tensor(x, device="cuda") for x in args)
    kv = torch.cat([k, v], dim=-1)
    dout, q, out = (x.transpose(0, 1).contiguous().transpose(0, 1) for x in (dout, q, out))
    got = flash_attn_bwd_varlen(dout, q, kv[..., :64], kv[..., 64:], out, lse, *starts, causal=True)
    assert all(isinstance(x, torch.Tensor) and x.is_contiguous() for x in got)
    assert_right([cupy.asarray(x) for x in got], want, plain)


@pytest.mark.parametrize("tokens_q, tokens_k", [(0, 20), (20, 0), (0, 0)])
def test_nothing_to_see_small(tokens_q, tokens_k):
    q, k = (cupy.ones((n, 2, 64), np.float16) for n in (tokens_q, tokens_k))
    lse = cupy.full((2, tokens_q), -np.inf, np.float32)
    cu_q, cu_k = (cupy.asarray(np.array([0, 0, n], np.int32)) for n in (tokens_q, tokens_k))
    for x, y in zip(flash_attn_bwd_varlen(q, q, k, k, q, lse, cu_q, cu_k), (q, k, k), strict=True):
        assert x.shape == y.shape and not x.any()


@pytest.mark.parametrize(
    "wrong, error, message",
    [
        ({"softmax_scale": 0.0}, ValueError, "softmax_scale must"),
        ({"deterministic": 1}, TypeError, "deterministic must be"),
        ({"head_dim": 136}, ValueError, "head_dim"),
        ({"head_dim": 68}, ValueError, "head_dim"),
        ({"lse": (8, 4)}, ValueError, "lse must"),
    ],
)
def test_bad_input_small(wrong, error, message):
    head_dim, lse = wrong.pop("head_dim", 64), wrong.pop("lse", (4, 8))
    q = cupy.ones((8, 4, head_dim), np.float16)
    starts = cupy.asarray(np.array([0, 8], np.int32))
    lse = cupy.ones(lse, np.float32)
    with pytest.raises(error, match=message):
        flash_attn_bwd_varlen(q, q, q, q, q, lse, starts, starts, **wrong)
