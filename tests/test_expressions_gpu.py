"""The user's mask, score and sinks in the kernels on tensor cores, on a GPU."""

import functools
import importlib

import expression_cases
import numpy as np
import pytest

import fa_numba
from fa_numba import masks, reference
from fa_numba.runtime import arrays

torch = pytest.importorskip("torch", reason="arrays on the GPU")
pytestmark = pytest.mark.gpu

HEAD_DIMS = 64, 128, 72, 256
DTYPES = "float16", "bfloat16"


@pytest.mark.parametrize("i, name", [*enumerate(expression_cases.CASES)])
def test_flash_attn_persistent(i, name):
    from fa_numba.tensor_core.flash_attn_persistent import flash_attn_persistent

    head_dim, dtype = HEAD_DIMS[i % len(HEAD_DIMS)], getattr(torch, DTYPES[i // 4 % 2])
    for sizes in ((333, 333), (150, 900)):
        check(flash_attn_persistent, name, sizes, (4, 2), head_dim, dtype)


@pytest.mark.parametrize("i, name", [*enumerate(expression_cases.CASES)])
def test_flash_attn_mma(i, name):
    from fa_numba.tensor_core.flash_attn_mma import flash_attn_mma

    head_dim, dtype = HEAD_DIMS[(i + 1) % len(HEAD_DIMS)], getattr(torch, DTYPES[i % 2])
    for sizes in ((333, 333), (150, 900)):
        check(flash_attn_mma, name, sizes, (4, 2), head_dim, dtype)


@pytest.mark.parametrize(
    "name, head_dim",
    [
        ("documents", 64),
        ("T5", 128),
        ("a score and a mask", 72),
        ("nothing for some rows", 128),
        ("sinks and a mask", 256),
        ("sinks", 64),
    ],
)
def test_flash_attn_tf32x3(name, head_dim):
    from fa_numba.tensor_core.flash_attn_tf32x3 import flash_attn_tf32x3

    for sizes in ((333, 333), (150, 900)):
        check(flash_attn_tf32x3, name, sizes, (4, 2), head_dim, torch.float32)


@pytest.mark.parametrize(
    "name, head_dim, sizes, num_splits",
    [
        ("documents", 128, (100, 3000), 0),
        ("a score and a mask", 64, (17, 900), 3),  # heads share a tile, and the mask has h
        ("sinks and a mask", 128, (130, 900), 4),
        ("nothing for some rows", 64, (333, 700), 2),
        ("T5", 256, (40, 700), 3),
        ("prefix", 128, (333, 200), 40),  # more splits than tiles
        ("sinks", 64, (50, 900), 3),
    ],
)
def test_flash_attn_split(name, head_dim, sizes, num_splits):
    from fa_numba.tensor_core.flash_attn_split import flash_attn_split

    function = functools.partial(flash_attn_split, num_splits=num_splits)
    check(function, name, sizes, (8, 2), head_dim, torch.float16)


@pytest.mark.parametrize("name, head_dim", [("a score and a mask", 59), ("sinks and a mask", 131)])
def test_flash_attn_padded(name, head_dim):
    from fa_numba.tensor_core.flash_attn_padded import flash_attn_padded

    check(flash_attn_padded, name, (150, 300), (4, 2), head_dim, torch.float16)


@pytest.mark.parametrize("i, name", [*enumerate(expression_cases.CASES)])
def test_flash_attn_persistent_varlen(i, name):
    head_dim, dtype = HEAD_DIMS[i % len(HEAD_DIMS)], getattr(torch, DTYPES[i // 4 % 2])
    check_packed(name, (4, 2), head_dim, dtype)


@pytest.mark.parametrize(
    "name, decoder, head_dim, page_size",
    [
        ("T5", "gather", 128, 16),
        ("a tree", "gather", 64, 0),
        ("sinks and a mask", "gather", 128, 1),
        ("sinks", "gather", 64, 16),
        ("a score and a mask", "mma", 128, 0),
        ("sequences differ", "mma", 64, 16),
        ("sinks", "mma", 128, 0),
    ],
)
def test_decoding(name, decoder, head_dim, page_size):
    module = importlib.import_module(f"fa_numba.tensor_core.flash_decode_{decoder}")
    function, lengths = getattr(module, f"flash_decode_{decoder}"), np.array([41, 500], np.int32)
    rng = np.random.default_rng(head_dim)
    q, k, v = (
        rng.standard_normal((2, n, heads, head_dim), np.float32).astype(np.float16)
        for n, heads in ((3, 8), (512, 2), (512, 2))
    )
    caches, table = (k, v), {}
    if page_size:
        pages = rng.permutation(2 * 512 // page_size).astype(np.int32)
        caches = [np.empty((len(pages), page_size, 2, head_dim), np.float16) for _ in range(2)]
        for cache, x in zip(caches, (k, v), strict=True):
            cache[pages] = x.reshape(cache.shape)
        table["block_table"] = torch.from_numpy(pages.reshape(2, -1)).cuda()
    ours, definition = expression_cases.options_of(
        name, 8, 512, lambda x: torch.from_numpy(x).cuda()
    )
    arguments = [torch.from_numpy(x).cuda() for x in (q, *caches, lengths)]
    inputs = [x.astype(np.float64) for x in (q, k, v)]
    want, want_lse = reference.cached_attention(*inputs, lengths, **definition)
    for num_splits in (0, 3):
        out, lse = function(*arguments, **table, **ours, num_splits=num_splits)
        error = np.abs(out.double().cpu().numpy() - want).max()
        assert error <= 2.0**-10 * max(1, np.abs(want).max()), error
        np.testing.assert_allclose(lse.cpu().numpy(), want_lse, rtol=1e-4, atol=2e-3)


@pytest.mark.parametrize(
    "name, head_dim, options",
    [
        ("T5", 64, {"causal": True, "window_size": (100, -1), "softcap": 20.0}),
        ("sinks", 64, {"causal": True}),  # the kernel's own mask, and a sink
        ("sinks", 128, {"softcap": 20.0}),
        ("nothing for some rows", 64, {"softcap": 20.0}),
        ("a tree", 128, {}),  # no intervals on a GPU: all tiles are mixed
    ],
)
def test_packed_with_other_options(name, head_dim, options):
    check_packed(name, (4, 2), head_dim, torch.float16, **options)


def test_with_other_options():
    from fa_numba.tensor_core.flash_attn_persistent import flash_attn_persistent

    options = {"causal": True, "window_size": (100, -1), "softcap": 20.0}
    check(flash_attn_persistent, "T5", (300, 300), (4, 2), 64, torch.float16, **options)
    check(flash_attn_persistent, "dilated", (300, 300), (4, 2), 128, torch.bfloat16, softcap=20.0)
    options = {"dropout_p": 0.25, "seed": 7}
    check(flash_attn_persistent, "documents", (300, 300), (4, 2), 128, torch.float16, **options)


def check(function, name, sizes, heads, head_dim, dtype, **options):
    seqlen_q, seqlen_k = sizes
    num_heads, num_kv_heads = heads
    generator = torch.Generator("cuda").manual_seed(seqlen_q)

    def normal(seqlen, heads):
        shape = 2, seqlen, heads, head_dim
        return torch.randn(shape, device="cuda", generator=generator).to(dtype)

    q, k, v = (normal(n, h) for n, h in ((seqlen_q, num_heads), *[(seqlen_k, num_kv_heads)] * 2))
    ours, definition = expression_cases.options_of(
        name, num_heads, seqlen_k, lambda x: torch.from_numpy(x).cuda()
    )
    out, lse = function(q, k, v, **ours, **options)
    inputs = [x.double().cpu().numpy() for x in (q, k, v)]
    want, want_lse = reference.attention(*inputs, **definition, **options)
    error = np.abs(out.double().cpu().numpy() - want).max()
    unit = {torch.float32: 2.0**-18, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}[dtype]
    assert error <= unit * max(1, np.abs(want).max()), (sizes, error)
    np.testing.assert_allclose(lse.cpu().numpy(), want_lse, rtol=1e-4, atol=2e-3)


LENGTHS = (333, 0, 64, 5, 200, 7), (333, 9, 150, 5, 900, 0)  # of queries and of keys


def packed_problem(name, heads, head_dim, dtype):
    """q, k, v, cu_seqlens_q and cu_seqlens_k, the options of a launcher, and the reference's."""
    generator = torch.Generator("cuda").manual_seed(head_dim)
    num_heads, num_kv_heads = heads
    starts = [np.cumsum((0, *x), dtype=np.int32) for x in LENGTHS]
    q, k, v = (
        torch.randn((x[-1], n, head_dim), device="cuda", generator=generator).to(dtype)
        for x, n in zip((starts[0], starts[1], starts[1]), (num_heads, *[num_kv_heads] * 2))  # noqa: B905
    )
    ours, definition = expression_cases.options_of(
        name, num_heads, max(LENGTHS[1]), lambda x: torch.from_numpy(x).cuda()
    )
    return (q, k, v, *(torch.from_numpy(x).cuda() for x in starts)), ours, definition


def check_packed(name, heads, head_dim, dtype, **options):
    from fa_numba.tensor_core.flash_attn_persistent_varlen import flash_attn_persistent_varlen

    inputs, ours, definition = packed_problem(name, heads, head_dim, dtype)
    for shape in (inputs[0].shape, inputs[0].shape[1::-1]):  # memory that out and lse may get
        torch.full(shape, torch.nan, dtype=dtype if len(shape) == 3 else None, device="cuda")
    out, lse = flash_attn_persistent_varlen(*inputs, **ours, **options)
    inputs = [x.double().cpu().numpy() for x in inputs[:3]] + [x.cpu().numpy() for x in inputs[3:]]
    want, want_lse = reference.varlen_attention(*inputs, **definition, **options)
    error = np.abs(out.double().cpu().numpy() - want).max()
    unit = 2.0**-10 if dtype == torch.float16 else 2.0**-7
    assert error <= unit * max(1, np.abs(want).max()), error
    np.testing.assert_allclose(lse.cpu().numpy(), want_lse, rtol=1e-4, atol=2e-3)


def test_block_lists_on_a_gpu_are_not_read_by_the_cpu(monkeypatch):
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("other kernels classify tiles on the CPU")
    from fa_numba.tensor_core.flash_attn_split import flash_attn_split

    rng, n = np.random.default_rng(0), 500
    lists = rng.integers(-1, 8, (1, 2, 8, 3))
    mask = masks.block_lists(torch.tensor(lists, device="cuda"), n, group_size=2) & masks.causal
    q, dout = rng.standard_normal((2, 1, n, 4, 128)).astype(np.float16)
    k, v = rng.standard_normal((2, 1, n, 2, 128)).astype(np.float16)
    on_gpu = [torch.tensor(x, device="cuda") for x in (dout, q, k, v)]
    monkeypatch.setattr(arrays, "to_numpy", None)
    out, lse = fa_numba.flash_attn(*on_gpu[1:], mask=mask)
    of_splits = flash_attn_split(*on_gpu[1:], mask=mask, num_splits=3)
    gradients = fa_numba.flash_attn_grad(*on_gpu, out, lse, mask=mask)
    ordered = fa_numba.flash_attn_grad(*on_gpu, out, lse, mask=mask, deterministic=True)
    monkeypatch.undo()
    mask = masks.block_lists(lists, n, group_size=2) & masks.causal
    wanted = reference.attention(q, k, v, mask=mask)
    wanted_gradients = reference.attention_bwd(dout, q, k, v, mask=mask)
    wanted = *wanted, *wanted, *wanted_gradients, *wanted_gradients
    results = out, lse, *of_splits, *gradients, *ordered
    for got, want in zip(results, wanted, strict=True):
        got = got.cpu().numpy().astype(np.float64)
        seen = np.isfinite(want)  # lse of a row that sees no key is -inf
        assert (np.isfinite(got) == seen).all()
        assert np.abs(got[seen] - want[seen]).max() < 3e-3 * max(1, np.abs(want[seen]).max())
