"""fa_numba.torch on tensors in CPU memory, beside PyTorch's own attention."""

import inspect
import re
from functools import partial
from pathlib import Path
from unittest import mock

import numba
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")

from torch_attention import compare, plain, tensors  # noqa: E402

from benchmarks.small_gpt import Training  # noqa: E402
from fa_numba.runtime import arrays  # noqa: E402
from fa_numba.torch import (  # noqa: E402
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    operators,
    scaled_dot_product_attention,
)

F = torch.nn.functional


@pytest.mark.parametrize("packed", [False, True])
def test_sinks(packed):
    """s_aux: one more score of each head, without a value, and with a gradient."""
    inputs = tensors((1, 9, 4, 8), (1, 9, 2, 8), (1, 9, 2, 8), (4,))
    (dout,) = tensors((1, 9, 4, 8), requires_grad=False, seed=1)

    def ours(q, k, v, sinks):
        if not packed:
            return flash_attn_func(q, k, v, causal=True, window_size=(3, 0), s_aux=sinks)
        starts = torch.tensor([0, 9], dtype=torch.int32)
        options = {"causal": True, "window_size": (3, 0), "s_aux": sinks}
        return flash_attn_varlen_func(q[0], k[0], v[0], starts, starts, 9, 9, **options)[None]

    def theirs(q, k, v, sinks):
        k, v = (x.repeat_interleave(2, 2) for x in (k, v))
        s = torch.einsum("bmhd,bnhd->bhmn", q, k) * 8**-0.5
        away = torch.arange(9)[:, None] - torch.arange(9)
        s = s.masked_fill((away < 0) | (away > 3), -torch.inf)
        s = torch.cat([s, sinks.view(1, -1, 1, 1).expand(1, 4, 9, 1)], -1)
        return torch.einsum("bhmn,bnhd->bmhd", torch.softmax(s, -1)[..., :-1], v)

    compare(ours, theirs, inputs, dout)


# PyTorch's function


# lengths of the queries and keys, heads of k, head_dims of k and v, dtype, options
SDPA = [
    *(
        ((m, n), 4, (8, 8), "float32", {"is_causal": causal})  # aligned top left, unlike others
        for m, n in ((9, 9), (9, 17), (17, 9), (1, 5), (5, 1))
        for causal in (False, True)
    ),
    *(
        ((9, 9), 2, head_dims, "float32", {"enable_gqa": True, "is_causal": causal})
        for head_dims in ((8, 5), (192, 128), (40, 320))
        for causal in (False, True)
    ),
    *(
        ((9, 9), 2, (8, 8), dtype, {"scale": 0.2, "enable_gqa": True, "is_causal": True})
        for dtype in ("float32", "float16", "bfloat16")
    ),
]


@pytest.mark.parametrize("seqlens, kv_heads, head_dims, dtype, options", SDPA, ids=str)
def test_sdpa_is_that_of_pytorch(seqlens, kv_heads, head_dims, dtype, options):
    (seqlen_q, seqlen_k), (head_dim, head_dim_v) = seqlens, head_dims
    dtype, keys = getattr(torch, dtype), (2, kv_heads, seqlen_k)
    inputs = tensors(
        (2, 4, seqlen_q, head_dim), (*keys, head_dim), (*keys, head_dim_v), dtype=dtype
    )
    (dout,) = tensors((2, 4, seqlen_q, head_dim_v), dtype=dtype, requires_grad=False, seed=1)
    ours, theirs = (
        partial(function, **options)
        for function in (scaled_dot_product_attention, F.scaled_dot_product_attention)
    )
    compare(ours, theirs, inputs, dout)


@pytest.mark.parametrize("seqlen_q, seqlen_k", [(9, 17), (17, 9)])
def test_the_top_left_mask_by_definition(seqlen_q, seqlen_k):
    """Of the reference with which test_torch_gpu compares."""
    inputs = tensors((2, 4, seqlen_q, 8), (2, 4, seqlen_k, 8), (2, 4, seqlen_k, 8))
    q, k, v = (x.transpose(1, 2) for x in inputs)
    want = F.scaled_dot_product_attention(*inputs, is_causal=True).transpose(1, 2)
    torch.testing.assert_close(plain(q, k, v, causal=True, top_left=True), want)


def test_sdpa_without_an_axis_of_heads():
    q, k, v = tensors((2, 9, 8), (2, 7, 8), (2, 7, 8))
    out = scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v))


def test_sdpa_of_views():
    """A transposed projection, as models make it, and a gradient that was expanded."""
    (x,) = tensors((2, 9, 3 * 4 * 8))

    def call(function):
        q, k, v = (y.view(2, 9, 4, 8).transpose(1, 2) for y in x.split(4 * 8, 2))
        x.grad = None
        function(q, k, v, is_causal=True).sum().backward()
        return x.grad

    torch.testing.assert_close(
        call(scaled_dot_product_attention), call(F.scaled_dot_product_attention)
    )
    q = x.detach().view(2, 3, 4, 8, 9).transpose(3, 4).requires_grad_()  # gaps along head_dim
    out = scaled_dot_product_attention(*q.unbind(1))
    torch.testing.assert_close(out, F.scaled_dot_product_attention(*q.unbind(1)))


def padded(batch, seqlen_k, side):
    """A mask of keys: lengths from none to all; or any keys, and no run of them."""
    n, lengths = torch.arange(seqlen_k), torch.tensor([0, 4, seqlen_k])[:batch, None]
    if side == "any":
        return n * n % 7 < lengths
    return n >= seqlen_k - lengths if side == "left" else n < lengths


@pytest.mark.parametrize("side", ["left", "right", "any"])
@pytest.mark.parametrize("seqlen_q, seqlen_k", [(9, 9), (5, 9), (1, 9), (9, 5)])
@pytest.mark.parametrize("kind", ["keys", "expanded", "copied", "causal", "causal, none after"])
def test_masks_of_padding(seqlen_q, seqlen_k, side, kind):
    """Exactly PyTorch's, with gradients, or an error; also for queries that are padding."""
    keys = padded(3, seqlen_k, side)
    mask = keys[:, None, None]
    if kind != "keys":
        mask = mask.expand(3, 1, seqlen_q, seqlen_k)
    if "causal" in kind:
        p = torch.arange(seqlen_k - seqlen_q, seqlen_k)[:, None]
        mask = mask & (torch.arange(seqlen_k) <= p)
        if "after" in kind:
            mask = mask & (
                p <= torch.where(keys, torch.arange(seqlen_k), -1).amax(1)[:, None, None, None]
            )
    inputs = tensors((3, 4, seqlen_q, 8), (3, 2, seqlen_k, 8), (3, 2, seqlen_k, 8))
    (dout,) = tensors((3, 4, seqlen_q, 8), requires_grad=False, seed=1)
    mask = mask.clone() if kind == "copied" else mask

    def call(function):
        return lambda q, k, v: function(q, k, v, attn_mask=mask, enable_gqa=True, scale=0.3)

    ours, theirs = call(scaled_dot_product_attention), call(F.scaled_dot_product_attention)
    if "causal" in kind and seqlen_q > 1 and side == "any":
        with pytest.raises(ValueError, match="attn_mask must be None, or .*_varlen_func"):
            ours(*inputs)
    else:
        compare(ours, theirs, inputs, dout)


def test_shapes_of_masks():
    """Those that PyTorch broadcasts; one of heads that differ is refused."""
    q, k, v = tensors((3, 4, 5, 8), (3, 4, 9, 8), (3, 4, 9, 8))
    keys = padded(3, 9, "right")
    for mask in (
        keys[1:2],
        keys[1:2, None],
        keys[1:2, None, None],
        keys[:, None, None].expand(3, 4, 5, 9),
    ):
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask)
        torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v, attn_mask=mask))
    q, k, v, mask = q[:, 0], k[:, 0], v[:, 0], keys[:, None]
    out = scaled_dot_product_attention(q, k, v, attn_mask=mask)
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v, attn_mask=mask))
    wrong = tensors((3, 4, 5, 8), (3, 4, 9, 8), (3, 4, 9, 8))
    for shape in ((3, 4, 1, 9), (2, 1, 1, 9), (3, 1, 1, 8), (3, 1, 4, 9), (1, 3, 1, 1, 9), ()):
        with pytest.raises(ValueError, match="attn_mask must be None, or .*_varlen_func"):
            scaled_dot_product_attention(*wrong, attn_mask=torch.ones(shape, dtype=bool))


def test_a_mask_of_keys_is_compiled_without_a_graph_break():
    """Also for sizes that are not known when it is traced."""
    compiled = torch.compile(scaled_dot_product_attention, fullgraph=True, backend="aot_eager")
    for seqlen in (9, 10, 12):
        inputs = tensors(*[(3, 2, seqlen, 8)] * 3)
        mask = padded(3, seqlen, "left")[:, None, None]
        want = F.scaled_dot_product_attention(*inputs, attn_mask=mask)
        torch.testing.assert_close(compiled(*inputs, attn_mask=mask), want)


@pytest.mark.parametrize("shape", [(2, 0, 3), (2, 3, 0), (0, 3, 3)], ids=str)
def test_no_queries_no_keys_no_batch(shape):
    batch, seqlen_q, seqlen_k = shape
    inputs = tensors((batch, seqlen_q, 2, 8), *[(batch, seqlen_k, 2, 8)] * 2)
    out = flash_attn_func(*inputs)
    out.sum().backward()
    assert out.shape == inputs[0].shape and (out == 0).all()
    assert all(x.grad.shape == x.shape and (x.grad == 0).all() for x in inputs)


# flash-attention's functions

MASKS = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window_size": (3, 2)},
    "causal_window": {"causal": True, "window_size": (4, 0)},
    "softcap": {"softcap": 2.0, "causal": True},
    "alibi": {"slopes": torch.tensor([0.5, 0.25, 0.125, 0.0625]), "causal": True},
    "scale": {"scale": 0.3},
}


def ours_by(options):
    names = {"slopes": "alibi_slopes", "scale": "softmax_scale"}
    return {names.get(name, name): x for name, x in options.items()}


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)], ids=["mha", "gqa", "mqa"])
@pytest.mark.parametrize("mask", MASKS)
def test_flash_attn_func(mask, heads):
    shapes = (2, 9, heads[0], 8), (2, 12, heads[1], 8), (2, 12, heads[1], 8)
    (dout,) = tensors(shapes[0], requires_grad=False, seed=1)
    options = MASKS[mask]
    compare(
        lambda *x: flash_attn_func(*x, **ours_by(options)),
        lambda *x: plain(*x, **options),
        tensors(*shapes),
        dout,
    )


def test_rows_without_keys_are_zero():
    q, k, v = tensors((1, 5, 1, 8), (1, 3, 1, 8), (1, 3, 1, 8))
    out, lse, probs = flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    assert (out[:, :2] == 0).all() and (out[:, 2:] != 0).all()
    assert torch.isneginf(lse[..., :2]).all() and lse[..., 2:].isfinite().all()
    out.sum().backward()
    assert (q.grad[:, :2] == 0).all() and q.grad.isfinite().all()
    assert probs.numel() == 0 and not lse.requires_grad


@pytest.mark.parametrize("mask", MASKS)
def test_flash_attn_varlen_func(mask):
    lengths_q, lengths_k, options = [5, 0, 3, 9], [7, 4, 0, 9], MASKS[mask]
    starts = [torch.tensor(np.cumsum([0, *x]), dtype=torch.int32) for x in (lengths_q, lengths_k)]
    inputs = tensors((17, 4, 8), (20, 2, 8), (20, 2, 8))
    (dout,) = tensors((17, 4, 8), requires_grad=False, seed=1)

    def one_by_one(q, k, v):
        cut = [x.split(n) for x, n in ((q, lengths_q), (k, lengths_k), (v, lengths_k))]
        return torch.cat([plain(*(x[None] for x in one), **options)[0] for one in zip(*cut)])  # noqa: B905

    compare(
        lambda *x: flash_attn_varlen_func(*x, *starts, 9, 9, **ours_by(options)),
        one_by_one,
        inputs,
        dout,
    )
    out, lse, _ = flash_attn_varlen_func(*inputs, *starts, 9, 9, return_attn_probs=True)
    assert out.shape == (17, 4, 8) and lse.shape == (4, 17)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("page_size", [None, 4])
@pytest.mark.parametrize("seqlen_new", [0, 2])
def test_flash_attn_with_kvcache(mask, page_size, seqlen_new):
    lengths, options = torch.tensor([7, 10], dtype=torch.int32), MASKS[mask]
    q, k, v = tensors((2, 3, 4, 8), *[(2, seqlen_new, 2, 8)] * 2, requires_grad=False)
    if page_size:
        caches = tensors((9, page_size, 2, 8), (9, page_size, 2, 8), requires_grad=False, seed=1)
        pages = torch.tensor([[3, 1, 8], [5, 0, 4]], dtype=torch.int32)
    else:
        caches, pages = tensors((2, 12, 2, 8), (2, 12, 2, 8), requires_grad=False, seed=1), None
    before = [x.clone() for x in caches]

    def tokens(cache, b):
        return cache[b] if pages is None else cache[pages[b].long()].flatten(0, 1)

    new = (k, v) if seqlen_new else (None, None)
    out, lse = flash_attn_with_kvcache(
        *(q, *caches, *new),
        cache_seqlens=lengths,
        block_table=pages,
        return_softmax_lse=True,
        **ours_by(options),
    )
    assert lse.shape == (2, 4, 3)
    for b, length in enumerate(lengths.tolist()):
        keys, values = (
            torch.cat([tokens(old, b)[:length], x[b]])
            for old, x in zip(before, (k, v), strict=True)
        )
        want = plain(q[b, None], keys[None], values[None], **options)
        torch.testing.assert_close(out[b, None], want, atol=1e-5, rtol=1e-5)
        for cache, old, x in zip(caches, before, (k, v), strict=True):
            end = length + seqlen_new
            assert torch.equal(tokens(cache, b)[length:end], x[b])
            for kept in (slice(0, length), slice(end, None)):
                assert torch.equal(tokens(cache, b)[kept], tokens(old, b)[kept])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("page_size", [None, 4])
@pytest.mark.parametrize("form", ["head", "token"])
def test_caches_of_float8_e4m3fn(form, page_size, dtype):
    lengths, shape = torch.tensor([7, 10], dtype=torch.int32), (9, 4, 2, 8) if page_size else None
    q, *caches = tensors((2, 3, 4, 8), *[shape or (2, 12, 2, 8)] * 2, requires_grad=False)
    pages = torch.tensor([[3, 1, 8], [5, 0, 4]], dtype=torch.int32) if page_size else None
    scales = [x.abs().amax(-1) / 448 for x in caches]
    if form == "head":
        scales = [x.flatten(0, 1).amax(0) for x in scales]
    e4m3 = [(x / s[..., None]).to(torch.float8_e4m3fn) for x, s in zip(caches, scales, strict=True)]
    exact = [x.float() * s[..., None] for x, s in zip(e4m3, scales, strict=True)]
    options = {"cache_seqlens": lengths, "block_table": pages, "causal": True}
    want = flash_attn_with_kvcache(q.to(dtype).float(), *exact, **options)
    options |= dict(zip(("k_scale", "v_scale"), scales, strict=True))
    got = flash_attn_with_kvcache(q.to(dtype), *e4m3, **options)
    assert got.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(got.float(), want, atol=tolerance, rtol=tolerance)
    again = flash_attn_with_kvcache(q.to(dtype), *[x.view(torch.uint8) for x in e4m3], **options)
    assert torch.equal(again, got)


def test_sinks_of_a_cache():
    shapes = (2, 3, 4, 8), (2, 12, 2, 8), (2, 12, 2, 8), (4,)
    q, k, v, sinks = tensors(*shapes, requires_grad=False)
    options = {"causal": True, "s_aux": sinks.half()}
    want = flash_attn_func(q, k, v, return_attn_probs=True, **options)[:2]
    got = flash_attn_with_kvcache(q, k, v, return_softmax_lse=True, **options)
    torch.testing.assert_close(got, want)
    options["block_table"] = torch.arange(6, dtype=torch.int32).view(2, 3)
    e4m3 = [x.view(6, 4, 2, 8).to(torch.float8_e4m3fn) for x in (k, v)]
    want = flash_attn_with_kvcache(q, *[x.float() for x in e4m3], **options)
    torch.testing.assert_close(flash_attn_with_kvcache(q, *e4m3, **SCALES, **options), want)


def test_lengths_of_a_cache_as_a_number_and_by_default():
    q, k, v = tensors((2, 1, 2, 8), (2, 6, 2, 8), (2, 6, 2, 8), requires_grad=False)
    for lengths, given in (([6, 6], None), ([4, 4], 4)):
        want = flash_attn_with_kvcache(
            q, k, v, cache_seqlens=torch.tensor(lengths, dtype=torch.int32)
        )
        assert torch.equal(flash_attn_with_kvcache(q, k, v, cache_seqlens=given), want)
    pages = torch.tensor([[0], [1]], dtype=torch.int32)
    want = flash_attn_with_kvcache(q, k, v)
    assert torch.equal(flash_attn_with_kvcache(q, k, v, block_table=pages), want)


# Inside of PyTorch

NUMBERS = (True, (3, -1), 0.0, None, False)


def operator_cases():
    q, k, v = tensors((2, 5, 4, 8), (2, 6, 2, 8), (2, 6, 2, 8))
    packed = tensors((5, 4, 8), (6, 2, 8), (6, 2, 8))
    starts = torch.tensor([0, 2, 5], dtype=torch.int32), torch.tensor([0, 6, 6], dtype=torch.int32)
    lengths, pages = torch.tensor([6, 3], dtype=torch.int32), torch.tensor([[1], [0]]).int()
    slopes, seed = torch.tensor([0.5, 0.2, 0.1, 0.05]), torch.tensor(5)
    attention, varlen = (None, None, *NUMBERS, 0.0), (*starts, None, *NUMBERS)
    with torch.no_grad():
        out, lse = operators.flash_attn(q, k, v, *attention)
        packed_out, packed_lse = operators.flash_attn_varlen(*packed, *varlen)
    q0, k0, v0, *packed0 = (x.detach() for x in (q, k, v, *packed))
    others = False, (-1, -1), 2.0, 0.5, True
    return {
        "flash_attn": (q, k, v, *attention),
        "flash_attn-alibi": (q, k, v, slopes, None, *others, 0.0),
        "flash_attn-dropout": (q, k, v, None, seed, *NUMBERS, 0.5),
        "flash_attn_grad": (q0, out, lse, q0, k0, v0, *attention),
        "flash_attn_varlen": (*packed, *varlen),
        "flash_attn_varlen_grad": (packed0[0], packed_out, packed_lse, *packed0, *varlen),
        "flash_decode": (q0, k0, v0, None, lengths, None, *NUMBERS[:-1]),
        "flash_decode-paged": (q0, k0, v0, pages, lengths, slopes, *others[:-1]),
    }


@pytest.mark.parametrize("case", operator_cases())
def test_operators_are_registered_well(case):
    operator = getattr(operators, case.partition("-")[0])
    torch.library.opcheck(operator, operator_cases()[case])


def models():
    """Functions of tensors that call ours, and the shapes of their tensors."""
    starts = torch.tensor([0, 4, 9], dtype=torch.int32)
    lengths = torch.tensor([2, 3], dtype=torch.int32)

    def cached(q, k, v):
        k_cache, v_cache = torch.zeros(2, 2, 8, 2, 8).unbind()
        new = k[:, :2], v[:, :2]
        out = flash_attn_with_kvcache(q, k_cache, v_cache, *new, cache_seqlens=lengths)
        return out + k_cache.sum()

    four = (2, 9, 2, 8)
    return {
        "sdpa": (
            lambda q, k, v: scaled_dot_product_attention(q * 2, k, v, is_causal=True).sin(),
            (four,) * 3,
        ),
        "sdpa_other_lengths": (
            lambda q, k, v: scaled_dot_product_attention(
                q, k[:, :, :5], v[:, :, :5], is_causal=True
            ),
            (four,) * 3,
        ),
        "func": (
            lambda q, k, v: flash_attn_func(q, k, v, window_size=(3, 0), softcap=1.0) * 2,
            (four,) * 3,
        ),
        "v_of_another_head_dim": (lambda q, k, v: flash_attn_func(q, k, v[..., :5]), (four,) * 3),
        "func_probs": (
            lambda q, k, v: sum(x.sum() for x in flash_attn_func(q, k, v, return_attn_probs=True)),
            (four,) * 3,
        ),
        "varlen": (
            lambda q, k, v: flash_attn_varlen_func(q, k, v, starts, starts, 5, 5, causal=True),
            ((9, 2, 8),) * 3,
        ),
        "dropout": (
            lambda q, k, v: scaled_dot_product_attention(q, k, v, dropout_p=0.5),
            (four,) * 3,
        ),
        "kvcache": (torch.no_grad()(cached), (four,) * 3),
    }


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", models())
def test_torch_compile_makes_no_graph_break(name, dynamic):
    """`fullgraph` raises at a break; "aot_eager" traces gradients too, without a C++ compiler."""
    torch._dynamo.reset()
    function, shapes = models()[name]
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    inputs = tensors(*shapes)
    torch.manual_seed(0)
    want = function(*inputs)
    torch.manual_seed(0)
    got = compiled(*inputs)
    assert torch.equal(got, want)
    if want.requires_grad:
        for x, y in zip(
            torch.autograd.grad(got.sum(), inputs),
            torch.autograd.grad(want.sum(), inputs),
            strict=True,
        ):
            assert torch.equal(x, y)
    else:
        assert name == "kvcache" and not got.requires_grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast(dtype):
    q, k, v = tensors((2, 9, 2, 8), (2, 9, 2, 8), (2, 9, 2, 8))
    with torch.autocast("cpu", dtype):
        ours, theirs = (
            f(q, k.bfloat16(), v, is_causal=True)
            for f in (scaled_dot_product_attention, F.scaled_dot_product_attention)
        )
        assert ours.dtype == theirs.dtype == dtype
        assert flash_attn_func(q, k, v).dtype == dtype
        starts = torch.tensor([0, 4, 9], dtype=torch.int32)
        packed = (x[0] for x in (q, k, v))
        assert flash_attn_varlen_func(*packed, starts, starts, 5, 5).dtype == dtype
        caches = k.detach().to(dtype), v.detach().to(dtype)
        assert flash_attn_with_kvcache(q.detach(), *caches).dtype == dtype
        (gradient,) = torch.autograd.grad(ours.sum(), q)  # float32, as q
    torch.testing.assert_close(ours, theirs, atol=2e-2, rtol=2e-2)
    assert gradient.dtype == torch.float32
    assert scaled_dot_product_attention(q, k, v).dtype == torch.float32


def test_dropout_follows_the_generator_of_pytorch():
    """The gradients drop what the forward pass dropped: out is linear in v."""
    q, k, v, dout = tensors(*[(2, 9, 2, 8)] * 4)

    def call(seed):
        torch.manual_seed(seed)
        return flash_attn_func(q, k, v, dropout_p=0.5)

    out = call(0)
    assert torch.equal(out, call(0)) and not torch.equal(out, call(1))
    torch.manual_seed(0)
    assert not torch.equal(*(flash_attn_func(q, k, v, dropout_p=0.5) for _ in range(2)))
    (dv,) = torch.autograd.grad(out, v, dout)
    torch.testing.assert_close((dv * v).sum(), (out * dout).sum())
    means = torch.stack([call(seed) for seed in range(100)]).mean(0)
    torch.testing.assert_close(means, flash_attn_func(q, k, v), atol=0.4, rtol=0)


def test_checkpointing_and_inference_mode():
    """A recomputed forward pass draws the same dropout."""
    q, k, v = tensors(*[(2, 9, 2, 8)] * 3)

    def call(q, k, v):
        return flash_attn_func(q, k, v, dropout_p=0.5).square()

    torch.manual_seed(0)
    want = torch.autograd.grad(call(q, k, v).sum(), (q, k, v))
    torch.manual_seed(0)
    out = torch.utils.checkpoint.checkpoint(call, q, k, v, use_reentrant=False)
    got = torch.autograd.grad(out.sum(), (q, k, v))
    assert all(torch.equal(x, y) for x, y in zip(got, want, strict=True))
    with torch.inference_mode():
        torch.manual_seed(0)
        assert torch.equal(call(q, k, v), out)


def test_no_more_threads_than_pytorch_has():
    q, k, v = tensors((1, 5, 2, 8), (1, 5, 2, 8), (1, 5, 2, 8))
    seen, before = [], (torch.get_num_threads(), numba.get_num_threads())

    def job(*arrays, **options):
        seen.append(numba.get_num_threads())
        return arrays[0], np.zeros((1, 2, 5), np.float32)

    with mock.patch.object(operators.jobs, "flash_attn", job):
        try:
            for threads in (1, 64):
                torch.set_num_threads(threads)
                flash_attn_func(q, k, v)
        finally:
            torch.set_num_threads(before[0])
    assert seen == [1, before[1]] and numba.get_num_threads() == before[1]


def test_a_call_recorded_without_gradients_is_not_replayed_with_them():
    layout = arrays._LIBRARIES["torch"].layout
    (x,), y = tensors((2, 3)), torch.zeros(2, 3)
    assert layout(x) != layout(y)
    with torch.no_grad():
        assert layout(x) == layout(y)


def test_second_derivatives_are_refused():
    q, k, v = tensors((1, 5, 2, 8), (1, 5, 2, 8), (1, 5, 2, 8))
    (gradient,) = torch.autograd.grad(flash_attn_func(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="computes no gradients of gradients"):
        gradient.sum().backward()


def test_transforms_of_torch_func():
    """vmap is a loop; a gradient by a transform is refused."""
    q, k, v = (x.detach() for x in tensors((3, 1, 5, 2, 8), (3, 1, 5, 2, 8), (3, 1, 5, 2, 8)))
    torch.testing.assert_close(
        torch.vmap(flash_attn_func)(q, k, v)[:, 0], flash_attn_func(q[:, 0], k[:, 0], v[:, 0])
    )
    for transform in (torch.func.grad, torch.func.jacrev):
        with pytest.raises(RuntimeError, match="computes no gradients by torch.func.grad"):
            transform(lambda x: flash_attn_func(x, k[0], v[0]).sum())(q[0])


def test_inputs_changed_before_the_backward_pass_are_noticed():
    q, k, v = tensors((1, 5, 2, 8), (1, 5, 2, 8), (1, 5, 2, 8))
    keys = k * 1
    out = flash_attn_func(q, keys, v)
    keys.data.add_(0)
    with torch.no_grad():
        keys.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_deterministic_gradients_ask_for_kernels_that_are():
    q, k, v = tensors((1, 5, 2, 8), (1, 5, 2, 8), (1, 5, 2, 8))
    seen = []

    def grad(dout, q, k, v, out, lse, *, deterministic, **_):
        seen.append(deterministic)
        return q.copy(), k.copy(), v.copy()

    with mock.patch.object(operators.jobs, "flash_attn_grad", grad):
        for deterministic in (False, True):
            flash_attn_func(q, k, v, deterministic=deterministic).sum().backward()
    assert seen == [False, True]


# What is refused

X, PACKED = torch.ones(2, 5, 2, 8), torch.ones(5, 2, 8)
STARTS = torch.tensor([0, 2, 5], dtype=torch.int32)
CACHE, TABLE = torch.ones(2, 6, 2, 8), torch.tensor([[0], [1]], dtype=torch.int32)
MASK = torch.ones(5, 5)  # numbers to add
GOOD = {
    scaled_dot_product_attention: {"query": X, "key": X, "value": X},
    flash_attn_func: {"q": X, "k": X, "v": X},
    flash_attn_varlen_func: {"q": PACKED, "k": PACKED, "v": PACKED}
    | {"cu_seqlens_q": STARTS, "cu_seqlens_k": STARTS, "max_seqlen_q": 3, "max_seqlen_k": 3},
    flash_attn_with_kvcache: {"q": X[:, :1], "k_cache": CACHE, "v_cache": CACHE.clone()},
}
NEW = {"k": X[:, :1], "v": X[:, :1], "cache_seqlens": 3}
E4M3 = {name: CACHE.to(torch.float8_e4m3fn) for name in ("k_cache", "v_cache")}
SCALES = {name: torch.ones(2) for name in ("k_scale", "v_scale")}
REFUSED = [
    (scaled_dot_product_attention, {"attn_mask": MASK}, "attn_mask must be None, or .*varlen_func"),
    (scaled_dot_product_attention, {"dropout_p": 1.0}, "dropout_p must be at least 0 and less tha"),
    (scaled_dot_product_attention, {"dropout_p": None}, "dropout_p must be a number, got NoneType"),
    (scaled_dot_product_attention, {"is_causal": 1}, "is_causal must be True or False, got 1"),
    (scaled_dot_product_attention, {"scale": "1"}, "scale must be a number, got str"),
    (scaled_dot_product_attention, {"scale": float("nan")}, "scale must be finite in float32, got"),
    (
        scaled_dot_product_attention,
        {"attn_mask": True},
        "attn_mask must be None, or .*, got a bool: flash_attn_varlen_func",
    ),
    (
        scaled_dot_product_attention,
        {"attn_mask": MASK > 0, "is_causal": True},
        "is_causal must be False with attn_mask",
    ),
    (
        scaled_dot_product_attention,
        {"attn_mask": MASK > 0, "dropout_p": 0.1},
        "dropout_p must be 0 with attn_mask, got 0.1",
    ),
    (
        scaled_dot_product_attention,
        {"causal": True},
        "no argument 'causal': .* called is_causal he",
    ),
    (
        scaled_dot_product_attention,
        {"window_size": (1, 0)},
        "'window_size': flash_attn_func has it",
    ),
    (scaled_dot_product_attention, {"query": X[:, :0]}, "query must have at least one head, got"),
    (scaled_dot_product_attention, {"query": X.numpy()}, "query must be a PyTorch tensor, got nd"),
    (scaled_dot_product_attention, {"query": X.double()}, "query must be float32.*, got float64"),
    (scaled_dot_product_attention, {"key": X.half()}, "must be of one dtype, got query: fl"),
    (scaled_dot_product_attention, {"query": X[0, 0]}, r"axes \(batch, .*got query of shape \(2"),
    (scaled_dot_product_attention, {"value": X[:, :, :1]}, "value must have the shape of key"),
    (scaled_dot_product_attention, {"value": X[..., :0]}, "value must have head_dim from 1 to 512"),
    (scaled_dot_product_attention, {"query": X[:1]}, "the batch of query, 1, got 2"),
    (scaled_dot_product_attention, {"query": X[..., :4]}, "the head_dim of query, 4, got 8"),
    (scaled_dot_product_attention, {"query": X[:, :4]}, "unless enable_gqa=True, got 5"),
    (
        scaled_dot_product_attention,
        {"query": X[:, :4], "enable_gqa": True},
        r"key and value must divide the heads of query .*=5 for num_heads=4",
    ),
    (scaled_dot_product_attention, {"key": X.to_sparse()}, "key must be a dense tensor"),
    (scaled_dot_product_attention, {"key": X.to("meta")}, "key must be on a CUDA GPU or in CPU"),
    (
        flash_attn_func,
        {"dropout_p": -0.1},
        "dropout_p must be at least 0 and less than 1, got -0.1",
    ),
    (
        flash_attn_func,
        {"dropout_p": 0.1, "return_attn_probs": True},
        "return_attn_probs must be False with dropout_p=0.1, got True",
    ),
    (flash_attn_func, {"causal": 1}, "causal must be True or False, got 1"),
    (flash_attn_func, {"window_size": 3}, r"window_size must be a tuple \(left, right\), got 3"),
    (flash_attn_func, {"softcap": None}, "softcap must be a number, got NoneType"),
    (flash_attn_func, {"softcap": -1.0}, "softcap must be 0, or positive"),
    (flash_attn_func, {"softcap": 1e39}, "softcap must be 0, or positive and finite in float32"),
    (flash_attn_func, {"softcap": 1e-60}, "softcap must be 0, or positive and finite in float32"),
    (flash_attn_func, {"softmax_scale": "1"}, "softmax_scale must be a number, got str"),
    (flash_attn_func, {"alibi_slopes": [1, 2]}, "alibi_slopes must be a tensor or None, got list"),
    (flash_attn_func, {"alibi_slopes": torch.ones(2, 2)}, r"alibi_slopes must have shape \(num_h"),
    (flash_attn_func, {"alibi_slopes": torch.ones(2).half()}, "alibi_slopes must be float32, got"),
    (
        flash_attn_func,
        {"alibi_slopes": torch.ones(2, requires_grad=True)},
        "alibi_slopes must not require a gradient",
    ),
    (flash_attn_func, {"deterministic": None}, "deterministic must be True or False, got None"),
    (flash_attn_func, {"return_attn_probs": 1}, "return_attn_probs must be True or False, got 1"),
    (flash_attn_func, {"q": X[0]}, r"q must have axes \(batch, .*got shape \(5, 2, 8\)"),
    (flash_attn_func, {"q": X.double()}, "q must be float32, float16 or bfloat16, got float64: "),
    (flash_attn_func, {"k": X.half()}, "q, k, v must be of one dtype, got q: float32, k: fl"),
    (flash_attn_func, {"q": X.to(torch.float8_e4m3fn)}, "q must be float32, .* got float8"),
    (flash_attn_func, {"is_causal": True}, "no argument 'is_causal': it is called causal here. It"),
    (flash_attn_func, {"scale": 1.0}, "no argument 'scale': it is called softmax_scale here$"),
    (flash_attn_func, {"mask_mod": X}, "no argument 'mask_mod': flex_attention has it$"),
    (
        flash_attn_func,
        {"s_aux": X},
        r"s_aux must have shape \(num_heads,\) = \(2,\), got \(2, 5, 2, 8",
    ),
    (flash_attn_with_kvcache, {"s_aux": STARTS}, "s_aux must be float32, .*got int32"),
    (
        flash_attn_with_kvcache,
        {"s_aux": torch.ones(2, requires_grad=True)},
        "s_aux must not require",
    ),
    (flash_attn_func, {"sinks": X}, "no argument 'sinks': it is called s_aux here$"),
    (flash_attn_func, {"qv": X}, "no argument 'qv': it has alibi_slopes, causal, .* window_size$"),
    (flash_attn_varlen_func, {"dropout_p": 0.5}, "dropout_p must be 0, got 0.5: packed"),
    (flash_attn_varlen_func, {"block_table": TABLE}, "block_table must be None.*_with_kvcache"),
    (
        flash_attn_varlen_func,
        {"cu_seqlens_q": STARTS.long()},
        "cu_seqlens_q must be int32, got int64: .*int32",
    ),
    (flash_attn_varlen_func, {"cu_seqlens_q": [0, 2, 5]}, "cu_seqlens_q must be a PyTorch tensor"),
    (flash_attn_varlen_func, {"cu_seqlens_k": STARTS + 1}, r"cu_seqlens_k\[0\] must be 0"),
    (
        flash_attn_with_kvcache,
        NEW | {"k_cache": CACHE, "v_cache": CACHE},
        "v_cache must be another tensor than k_cache, got one for both",
    ),
    (flash_attn_with_kvcache, E4M3, "k_scale must be a float32 tensor, because k_cache and v_cac"),
    (flash_attn_with_kvcache, E4M3 | SCALES | {"v_scale": 1.0}, "v_scale must be a float32 tensor"),
    (flash_attn_with_kvcache, SCALES, "k_cache must be float8_e4m3fn, or uint8 .* got float32"),
    (
        flash_attn_with_kvcache,
        E4M3 | SCALES | {"v_cache": CACHE.to(torch.float8_e5m2)},
        "v_cache must be float8_e4m3fn, or uint8 .* got float8_e5m2",
    ),
    (flash_attn_with_kvcache, E4M3 | SCALES | NEW, "k must be None, because .*reshape_and_cache"),
    (
        flash_attn_with_kvcache,
        E4M3 | SCALES | {"k_scale": torch.ones(3)},
        r"k_scale must have a scale for each head, shape \(2,\), or .* got \(3,\)",
    ),
    (flash_attn_with_kvcache, {"rotary_cos": X}, "rotary_cos must be None, got a Tensor: rotate"),
    (flash_attn_with_kvcache, {"rotary_sin": X}, "rotary_sin must be None"),
    (flash_attn_with_kvcache, {"cache_batch_idx": STARTS}, "cache_batch_idx must be None"),
    (flash_attn_with_kvcache, {"cache_leftpad": STARTS}, "cache_leftpad must be None"),
    (flash_attn_with_kvcache, {"num_splits": 2}, "num_splits must be 0, got 2"),
    (flash_attn_with_kvcache, NEW | {"v": None}, "v must be a PyTorch tensor, got NoneType"),
    (flash_attn_with_kvcache, NEW | {"cache_seqlens": None}, "cache_seqlens must say where k and"),
    (flash_attn_with_kvcache, NEW | {"k": X[:, :2]}, "v must have the shape of k"),
    (flash_attn_with_kvcache, NEW | {"k": X[:1], "v": X[:1]}, "k must have shape .batch, seqlen_n"),
    (flash_attn_with_kvcache, {"k_cache": CACHE.half()}, "q, k_cache, v_cache must be of one"),
    (flash_attn_with_kvcache, {"k_cache": X}, "v_cache must have the shape of k_cache"),
    (flash_attn_with_kvcache, {"q": X[..., :4]}, "k_cache must have the head_dim of q, 4, got 8"),
    (flash_attn_with_kvcache, {"k_cache": CACHE[0]}, "k_cache must have 4 axes, got"),
    (flash_attn_with_kvcache, {"cache_seqlens": 2.0}, "cache_seqlens must be an integer, got 2.0"),
    (flash_attn_with_kvcache, {"cache_seqlens": STARTS}, "cache_seqlens must have one .* 2 seq"),
    (flash_attn_with_kvcache, {"cache_seqlens": STARTS[:2].long()}, "cache_seqlens must be int32"),
    (flash_attn_with_kvcache, {"cache_seqlens": 7}, "cache_seqlens must be from 0 to 6, the tok"),
    (flash_attn_with_kvcache, NEW | {"cache_seqlens": 6}, "from 0 to 5, .* those of k, got 6"),
    (flash_attn_with_kvcache, {"cache_seqlens": -STARTS[1:]}, r"cache_seqlens\[0\] must be from 0"),
    (flash_attn_with_kvcache, {"seq_lens": 3}, "'seq_lens': it is called cache_seqlens here. It d"),
    (flash_attn_with_kvcache, {"page_table": TABLE}, "'page_table': it is called block_table here"),
    (flash_attn_with_kvcache, {"q": X.numpy()}, "q must be a PyTorch tensor, got ndarray"),
    (
        flash_attn_with_kvcache,
        {"block_table": TABLE + 1},
        r"block_table\[1, 0\] must be a page from",
    ),
    (flash_attn_with_kvcache, {"block_table": TABLE[:1]}, "block_table must have one row"),
    (
        flash_attn_with_kvcache,
        {"q": X[:, :1].clone().requires_grad_()},
        "q must not require a gradient.*flash_attn_func",
    ),
]


@pytest.mark.parametrize(
    "function, changed, message",
    REFUSED,
    ids=[f"{f.__name__}: {text:.40}" for f, _, text in REFUSED],
)
def test_refused(function, changed, message):
    with pytest.raises((TypeError, ValueError), match=message):
        function(**GOOD[function] | changed)


@pytest.mark.parametrize("function", GOOD)
def test_what_the_rows_change_is_good(function):
    function(**GOOD[function])


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"cache_seqlens": torch.tensor([2, 6]).int()}, r"cache_seqlens\[1\] must be from 0 to 5"),
        (
            {name: CACHE[:, :, :0] for name in ("k_cache", "v_cache")},
            r"heads of q .*num_kv_heads=0 for num_heads=2",
        ),
        ({name: CACHE[:1] for name in ("k_cache", "v_cache")}, "have the batch of q, 2, got 1"),
        ({"cache_seqlens": torch.tensor([2, -1]).int()}, r"cache_seqlens\[1\] must be from 0 to 5"),
        ({"block_table": TABLE - 1}, r"block_table\[0, 0\] must be a page from 0 to 1, .* got -1"),
        ({"block_table": TABLE + 1}, r"block_table\[1, 0\] must be a page .* has 4 tokens, got 2"),
        (
            {"softcap": float("inf")},
            "softcap must be 0, or positive and finite in float32, got inf",
        ),
        (
            {"softcap": float("nan")},
            "softcap must be 0, or positive and finite in float32, got nan",
        ),
    ],
)
def test_new_tokens_that_do_not_fit_the_cache_are_refused(changed, message):
    given = {"k_cache": CACHE.clone(), "v_cache": CACHE.clone(), **NEW} | changed
    given |= {"q": X[:, :1], "k": 2 * X[:, :1], "v": 2 * X[:, :1]}
    with pytest.raises(ValueError, match=message):
        flash_attn_with_kvcache(**given)
    assert (given["k_cache"] == 1).all() and (given["v_cache"] == 1).all()  # nothing was written


@pytest.mark.parametrize(
    "shape, dtype, message",
    [
        ((2, 1, 2, 8), torch.float64, "q must be float32, float16 or bfloat16, got float64"),
        ((2, 1, 2, 8), torch.int32, "q must be float32, float16 or bfloat16, got int32"),
        ((2, 1, 2, 513), torch.float32, "q must have head_dim from 1 to 512, got 513"),
        ((2, 1, 2, 0), torch.float32, "q must have head_dim from 1 to 512, got 0"),
        ((65536, 1, 1, 1), torch.float32, "batch must be at most 65535, got 65536"),
    ],
)
def test_new_tokens_are_not_written_if_decoding_is_impossible(shape, dtype, message):
    batch, _, num_heads, head_dim = shape
    new = torch.ones(shape, dtype=dtype)
    caches = [torch.zeros(batch, 6, num_heads, head_dim, dtype=dtype) for _ in range(2)]
    with pytest.raises((TypeError, ValueError), match=message):
        flash_attn_with_kvcache(new, *caches, new, new, cache_seqlens=3)
    assert not any(x.any() for x in caches)


def test_signatures_are_those_of_pytorch_and_flash_attention():
    """In the order of their public documentation, so that calls by position mean the same."""
    text = F.scaled_dot_product_attention.__doc__.partition("scaled_dot_product_attention(")[2]
    theirs = [x.partition("=")[0].strip() for x in text.partition(")")[0].split(",")]
    assert list(inspect.signature(scaled_dot_product_attention).parameters) == theirs


def test_the_example_of_the_documents_runs():
    text = Path(__file__).parents[1].joinpath("docs", "torch.md").read_text(encoding="utf-8")
    world, shapes = {}, []
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, "torch.md", "exec"), world)
        shapes.append(world["out"].shape)
    assert shapes[0] == (2, 128, 4, 64), "of flash_attn_func"
    assert shapes[1] == (2, 4, 128, 64), "of flex_attention"


# A model


def test_a_small_model_trains_as_with_pytorch():
    """The loss curves differ by no more than those of two implementations in PyTorch."""
    sizes = {"seqlen": 16, "batch": 4, "num_layers": 2, "num_heads": 2, "width": 32}
    sdpa = F.scaled_dot_product_attention

    def by_definition(q, k, v, is_causal):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return sdpa(q, k, v, is_causal=is_causal)

    theirs, other, ours = (
        Training(attend, device="cpu", **sizes).losses(20)
        for attend in (sdpa, by_definition, scaled_dot_product_attention)
    )
    assert theirs[-1] < theirs[0] - 0.5
    noise = (theirs - other).abs().max()
    assert (theirs - ours).abs().max() <= 2 * noise + 1e-5
