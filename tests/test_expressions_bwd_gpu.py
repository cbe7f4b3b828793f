"""Gradients with the user's mask, score and sinks on tensor cores, on a GPU.

Every case of `expression_cases` in one dtype and one head_dim, so that each pair of dtype and
head_dim has several cases; deterministic in every third.
"""

import expression_cases
import numpy as np
import pytest
from test_expressions_gpu import packed_problem

from fa_numba import reference

torch = pytest.importorskip("torch", reason="arrays on the GPU")
pytestmark = pytest.mark.gpu

HEAD_DIMS = 64, 128, 72, 40
DTYPES = "float16", "bfloat16"
# The score takes log(m + 2), so no query may lie before the first key.
SIZES = ((333, 333), (150, 900))


@pytest.mark.parametrize("i, name", [*enumerate(expression_cases.CASES)])
def test_flash_attn_bwd_persistent(i, name):
    from fa_numba.tensor_core.flash_attn_bwd_persistent import flash_attn_bwd_persistent as bwd

    head_dim, dtype = HEAD_DIMS[i % len(HEAD_DIMS)], getattr(torch, DTYPES[i // 4 % 2])
    for sizes in SIZES:
        check(bwd, name, sizes, (4, 2), head_dim, dtype, deterministic=i % 3 == 0)


@pytest.mark.parametrize(
    "name, sizes, heads, head_dim, options",
    [
        ("T5", (300, 300), (4, 2), 64, {"causal": True, "window_size": (100, -1), "softcap": 20.0}),
        ("documents", (300, 300), (4, 2), 128, {"dropout_p": 0.25, "seed": 7}),
        ("softcap", (200, 300), (2, 2), 64, {"dropout_p": 0.25, "seed": 7}),
        ("dilated", (200, 300), (2, 2), 128, {"softcap": 20.0, "dropout_p": 0.25, "seed": 7}),
        ("sinks", (300, 200), (2, 2), 128, {"dropout_p": 0.25, "seed": 7, "causal": True}),
        ("prefix", (300, 200), (2, 1), 128, {}),  # rows that see no key
        ("a window per head", (500, 500), (4, 1), 64, {"grad_dtype": "float32"}),
        ("causal", (500, 500), (8, 1), 128, {}),  # groups in parts
    ],
)
def test_with_other_options(name, sizes, heads, head_dim, options):
    from fa_numba.tensor_core.flash_attn_bwd_persistent import flash_attn_bwd_persistent as bwd

    check(bwd, name, sizes, heads, head_dim, torch.float16, **options)


# A window, softcap and ALiBi are functions of flash_attn_bwd_mma, too.
OPTIONS = {"window_size": (60, -1), "softcap": 5.0}
NAMES = "documents", "T5", "a score and a mask", "not monotone", "prefix", "sinks and a mask"


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("i, name", [*enumerate((*NAMES, "sinks"))])
def test_flash_attn_bwd_mma(i, name, deterministic):
    from fa_numba.tensor_core.flash_attn_bwd_mma import flash_attn_bwd_mma as bwd

    head_dim, dtype = HEAD_DIMS[i % len(HEAD_DIMS)], getattr(torch, DTYPES[i // 4 % 2])
    more = OPTIONS if name == "sinks" else {}
    for sizes in SIZES:
        check(bwd, name, sizes, (4, 2), head_dim, dtype, deterministic=deterministic, **more)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("i, name", [*enumerate(NAMES)])
def test_flash_attn_bwd_tf32x3(i, name, deterministic):
    from fa_numba.tensor_core.flash_attn_bwd_tf32x3 import flash_attn_bwd_tf32x3 as bwd

    head_dim = HEAD_DIMS[i % len(HEAD_DIMS)]
    for sizes in SIZES:
        check(bwd, name, sizes, (4, 2), head_dim, torch.float32, deterministic=deterministic)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("i, name", [*enumerate(NAMES)])
def test_flash_attn_bwd_wide(i, name, deterministic):
    from fa_numba.tensor_core.flash_attn_bwd_wide import flash_attn_bwd_wide as bwd

    head_dim, dtype = (256, 136, 192)[i % 3], getattr(torch, DTYPES[i % 2])
    for sizes in SIZES:
        check(bwd, name, sizes, (4, 2), head_dim, dtype, deterministic=deterministic)


@pytest.mark.parametrize(
    "name, head_dim, deterministic",
    [("a score and a mask", 59, True), ("sinks and a mask", 131, False)],
)
def test_flash_attn_bwd_padded(name, head_dim, deterministic):
    from fa_numba.tensor_core.flash_attn_bwd_padded import flash_attn_bwd_padded as bwd

    check(bwd, name, (150, 300), (4, 2), head_dim, torch.float16, deterministic=deterministic)


@pytest.mark.parametrize("i, name", [*enumerate(expression_cases.CASES)])
def test_flash_attn_bwd_varlen(i, name):
    head_dim, dtype = HEAD_DIMS[i % len(HEAD_DIMS)], getattr(torch, DTYPES[i // 4 % 2])
    check_packed(name, (4, 2), head_dim, dtype, deterministic=i % 3 == 0)


@pytest.mark.parametrize(
    "name, head_dim, options",
    [
        ("T5", 64, {"causal": True, "window_size": (100, -1), "softcap": 20.0}),
        ("sinks", 64, {"causal": True}),
        ("sinks and a mask", 128, {"deterministic": True}),
        ("nothing for some rows", 64, {"softcap": 20.0}),
    ],
)
def test_packed_with_other_options(name, head_dim, options):
    check_packed(name, (4, 2), head_dim, torch.float16, **options)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_long_tiles_of_keys_come_first(head_dim):
    from fa_numba.tensor_core.flash_attn_bwd_persistent import flash_attn_bwd_persistent as bwd

    check(bwd, "window and first keys", (1000, 1000), (4, 2), head_dim, torch.float16)


def test_deterministic_gradients_have_the_same_bits():
    from fa_numba.tensor_core.flash_attn_bwd_persistent import flash_attn_bwd_persistent as bwd

    sizes, heads = (1000, 1000), (4, 2)
    inputs, ours, _ = problem("sinks and a mask", sizes, heads, 64, torch.float16)
    first, second = (bwd(*inputs, **ours, deterministic=True) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


def problem(name, sizes, heads, head_dim, dtype, **options):
    """dout, q, k, v, out, lse on the GPU, the options of a launcher, and those of the reference."""
    from fa_numba import flash_attn

    generator = torch.Generator("cuda").manual_seed(sizes[0])
    seqlen_q, seqlen_k = sizes
    num_heads, num_kv_heads = heads
    dout, q, k, v = (
        torch.randn((2, seqlen, n, head_dim), device="cuda", generator=generator).to(dtype)
        for seqlen, n in (
            (seqlen_q, num_heads),
            (seqlen_q, num_heads),
            (seqlen_k, num_kv_heads),
            (seqlen_k, num_kv_heads),
        )
    )
    ours, definition = expression_cases.options_of(
        name, num_heads, seqlen_k, lambda x: torch.from_numpy(x).cuda()
    )
    out, lse = flash_attn(q, k, v, **ours, **options)
    return (dout, q, k, v, out, lse), ours, definition


def check_packed(name, heads, head_dim, dtype, **options):
    """Compare flash_attn_bwd_varlen with the definition in float64."""
    from fa_numba.tensor_core.flash_attn_bwd_varlen import flash_attn_bwd_varlen
    from fa_numba.tensor_core.flash_attn_persistent_varlen import flash_attn_persistent_varlen

    of_forward = {x: y for x, y in options.items() if x != "deterministic"}
    inputs, ours, definition = packed_problem(name, heads, head_dim, dtype)
    results = flash_attn_persistent_varlen(*inputs, **ours, **of_forward)
    dout = torch.randn_like(results[0])
    arrays, starts = inputs[:3], inputs[3:]
    gradients = flash_attn_bwd_varlen(dout, *arrays, *results, *starts, **ours, **options)
    numbers = [x.double().cpu().numpy() for x in (dout, *arrays)]
    numbers += [x.cpu().numpy() for x in starts]
    compare(gradients, reference.varlen_attention_bwd(*numbers, **definition, **of_forward), dtype)


def check(function, name, sizes, heads, head_dim, dtype, **options):
    """Compare with the definition in float64."""
    of_forward = {x: y for x, y in options.items() if x not in ("deterministic", "grad_dtype")}
    inputs, ours, definition = problem(name, sizes, heads, head_dim, dtype, **of_forward)
    gradients = function(*inputs, **ours, **options)
    dout, q, k, v, *_ = (x.double().cpu().numpy() for x in inputs)
    want = reference.attention_bwd(dout, q, k, v, **definition, **of_forward)
    compare(gradients, want, dtype)


def compare(gradients, want, dtype):
    """With gradients in float64."""
    assert len(gradients) == len(want)
    # An entry of dk or dv sums over all queries of a group: so do its rounding errors.
    unit = {torch.float32: 2.0**-16, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6}[dtype]
    for which, x, y in zip(("dq", "dk", "dv", "dsinks"), gradients, want):  # noqa: B905 no dsinks
        error = np.abs(x.double().cpu().numpy() - y).max()
        assert error <= unit * max(1, np.abs(y).max()), (which, error, np.abs(y).max())
