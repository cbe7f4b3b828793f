"""Kernels with the user's mask, score and sinks, against the definition in float64."""

import math

import expression_cases
import numpy as np
import pytest
from cases import kernel_function, thorough

import fa_numba
from fa_numba import reference, simt
from fa_numba.kernels.flash_attn_varlen import flash_attn_varlen
from fa_numba.kernels.flash_attn_varlen_bwd import flash_attn_varlen_bwd

each_case = pytest.mark.parametrize("name", expression_cases.CASES)
FEW = ("documents", "sequences differ", "T5", "a score and a mask", "sinks and a mask")
few_cases = pytest.mark.parametrize(
    "name", [name if name in FEW else thorough(name) for name in expression_cases.CASES]
)
FORWARD = {  # with small tiles, of which some are hidden, some mixed and some whole
    "naive_attn": {},
    "lazy_softmax_attn": {},
    "flash_attn_v2": {},
    "flash_attn_registers": {"block_m": 32, "block_n": 16},
}
BACKWARD = {
    "flash_attn_bwd": {},
    "flash_attn_bwd_registers": {"tile_size": 16, "deterministic": True},
}
DECODE = (("flash_decode", 3), ("paged_attn_decode", 3), ("flash_decode_wide", 1))
# A sequence has no query, another no key; the keys of the longest are some tiles.
STARTS_Q, STARTS_K = np.array([0, 5, 5, 7, 8], np.int32), np.array([0, 9, 12, 47, 47], np.int32)


def arrays_of(rng, *sizes):
    """q, k, v of shapes (2, *) that share heads in pairs."""
    shapes = [(2, n, heads, 8) for n, heads in zip(sizes, (4, 2, 2), strict=True)]
    return [rng.standard_normal(shape, np.float32) for shape in shapes]


def check(got, want, atol=3e-5):
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, atol=atol, rtol=1e-4)


def check_forward(rng, function, name, seqlen_q, seqlen_k):
    q, k, v = arrays_of(rng, seqlen_q, seqlen_k, seqlen_k)
    ours, definition = expression_cases.options_of(name, 4, seqlen_k)
    got = kernel_function(function)(q, k, v, **ours, **FORWARD[function])
    check(got, reference.attention(q, k, v, **definition))


@each_case
@pytest.mark.parametrize("sizes", [(37, 37), (13, 45)], ids=str)
def test_flash_attn_v2(rng, sizes, name):
    check_forward(rng, "flash_attn_v2", name, *sizes)


@few_cases
@pytest.mark.parametrize("function", [name for name in FORWARD if name != "flash_attn_v2"])
def test_forward(rng, function, name):
    check_forward(rng, function, name, 13, 45)


@few_cases
@pytest.mark.parametrize("function", BACKWARD)
def test_backward(rng, function, name):
    q, k, v = arrays_of(rng, 13, 45, 45)
    dout = rng.standard_normal(q.shape, np.float32)
    ours, definition = expression_cases.options_of(name, 4, 45)
    out, lse = fa_numba.flash_attn_v2(q, k, v, **ours)
    got = kernel_function(function)(dout, q, k, v, out, lse, **ours, **BACKWARD[function])
    check(got, reference.attention_bwd(dout, q, k, v, **definition), 2e-4)


@few_cases
def test_packed(rng, name):
    (q, _, _), (_, k, v) = arrays_of(rng, 8, 1, 1), arrays_of(rng, 1, 47, 47)
    q, k, v, dout = q[0], k[0], v[0], rng.standard_normal(q[0].shape, np.float32)
    ours, definition = expression_cases.options_of(name, 4, 35)
    starts = STARTS_Q, STARTS_K
    out, lse = flash_attn_varlen(q, k, v, *starts, **ours)
    check((out, lse), reference.varlen_attention(q, k, v, *starts, **definition))
    got = flash_attn_varlen_bwd(dout, q, k, v, out, lse, *starts, **ours)
    want = reference.varlen_attention_bwd(dout, q, k, v, *starts, **definition)
    check(got, want, 2e-4)


@few_cases
@pytest.mark.parametrize("function, num_splits", DECODE)
def test_decode(rng, function, num_splits, name):
    """m is the position in the sequence; a sink is added once, not in each split."""
    q, k, v = arrays_of(rng, 3, 90, 90)
    lengths = np.array([41, 90], np.int32)
    ours, definition = expression_cases.options_of(name, 4, 90)
    want = reference.cached_attention(q, k, v, lengths, **definition)
    caches = k, v
    if function == "paged_attn_decode":
        pages = rng.permutation(18).astype(np.int32).reshape(2, 9)
        caches = np.empty((2, 18, 10, 2, 8), np.float32)
        caches[:, pages.ravel()] = np.stack([k, v]).reshape(2, 18, 10, 2, 8)
        caches = *caches, pages
    got = kernel_function(function)(q, *caches, lengths, num_splits=num_splits, **ours)
    check(got, want)


def all_at_once(num_heads):
    """Options of ours beside a mask and a score: softcap and ALiBi first, then the user's score."""
    mask, score = lambda b, h, m, n: (m + n) % 3 > 0, lambda s, b, h, m, n: s + s * s / 8
    slopes, sinks = np.linspace(0.1, 0.4, 2 * num_heads, dtype=np.float32).reshape(2, num_heads)
    ours = {"causal": True, "window_size": (17, -1), "softcap": 3.0, "alibi_slopes": slopes}
    return {**ours, "sinks": sinks, "mask": mask, "score": score}


def test_beside_causal_windows_softcap_and_alibi(rng):
    q, k, v = arrays_of(rng, 13, 45, 45)
    dout, options = rng.standard_normal(q.shape, np.float32), all_at_once(4)
    want = reference.attention(q, k, v, **options)
    for function in (fa_numba.naive_attn, fa_numba.flash_attn_v2):
        check(function(q, k, v, **options), want)
    lengths = np.array([45, 45], np.int32)
    for name, _ in DECODE[::2]:
        check(kernel_function(name)(q, k, v, lengths, num_splits=2, **options), want)
    want = reference.attention_bwd(dout, q, k, v, **options)
    out, lse = fa_numba.flash_attn_v2(q, k, v, **options)
    for function in BACKWARD:
        check(kernel_function(function)(dout, q, k, v, out, lse, **options), want, 2e-4)


def test_a_score_of_minus_infinity_hides_a_key(rng):
    """As masks are written for a library with scores alone; some rows see no key."""
    q, k, v = arrays_of(rng, 13, 45, 45)
    seen = lambda b, h, m, n: n <= m and m % 5 != 0  # noqa: E731
    both = {"mask": seen}, {"score": lambda s, *at: s if seen(*at) else -math.inf}
    results = [fa_numba.flash_attn_v2(q, k, v, **options) for options in both]
    check(*results)
    for function in map(kernel_function, BACKWARD):
        check(*(function(q, q, k, v, *results[0], **options) for options in both))


def test_a_sink_of_minus_infinity_is_none(rng):
    q, k, v = arrays_of(rng, 13, 45, 45)
    mask = {"mask": lambda b, h, m, n: n <= m and m % 5 != 0}
    sinks = np.full(4, -np.inf, np.float32)
    want = fa_numba.flash_attn_v2(q, k, v, **mask)
    for name in FORWARD:
        check(kernel_function(name)(q, k, v, **mask, sinks=sinks), want)
    gradients = fa_numba.flash_attn_bwd(q, q, k, v, *want, **mask, sinks=sinks)
    check(gradients, (*fa_numba.flash_attn_bwd(q, q, k, v, *want, **mask), np.zeros(4)))


def test_an_index_that_is_not_there():
    """Found by intervals, without a look at the array: it may be on a GPU."""
    x, short = np.zeros((1, 20, 2, 8), np.float32), np.zeros(19, np.float32)
    with pytest.raises(
        ValueError, match=r"mask_args\[0\] must have more than 19 elements .* got 19"
    ):
        fa_numba.flash_attn_v2(x, x, x, mask=lambda b, h, m, n, a: a[m] < 1, mask_args=(short,))
    with pytest.raises(ValueError, match=r"score_args\[0\] must have more than 21 elements"):
        fa_numba.flash_attn_v2(
            x, x, x, mask=lambda b, h, m, n, w: n < w, mask_args=(3,),
            score=lambda s, b, h, m, n, a: s + a[n + 2], score_args=(short,),
        )  # fmt: skip


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sinks_have_any_dtype_and_their_gradient_has_it(rng, dtype):
    q, k, v = (x.astype(dtype) for x in arrays_of(rng, 13, 45, 45))
    sinks = rng.standard_normal(4).astype(dtype)
    out, lse = fa_numba.flash_attn_v2(q, k, v, sinks=sinks)
    check((out, lse), reference.attention(q, k, v, sinks=sinks), 2e-2)
    *_, dsinks = fa_numba.flash_attn_bwd(out, q, k, v, out, lse, sinks=sinks)
    assert dsinks.dtype == sinks.dtype
    *_, want = reference.attention_bwd(out, q, k, v, sinks=sinks)
    np.testing.assert_allclose(dsinks.astype(np.float64), want, rtol=2e-2, atol=2e-2)


def test_a_block_mask_is_a_mask(rng):
    """flash_attn_v1's block_mask as an argument of a mask: the same tiles are skipped."""
    q, k, v = arrays_of(rng, 48, 48, 48)
    seen = rng.random((3, 3)) < 0.5
    mask = {"mask": lambda b, h, m, n, seen: seen[m // 16, n // 16], "mask_args": (seen,)}
    tiles = {"block_m": 16, "block_n": 16}
    loads = []
    for function, options in (
        (fa_numba.flash_attn_v1, {"block_mask": seen}),
        (fa_numba.flash_attn_v2, mask),
    ):
        with simt.tracing() as traces:
            out, *_ = function(q, k, v, **options, **tiles)
        loads.append((out, traces[0].arrays["q"].loads, traces[0].arrays["k"].loads))
    (one, q_tiles, _), (other, _, k_tiles) = loads
    np.testing.assert_allclose(one, other, atol=3e-5)
    per_tile = 2 * 4 * 16 * 8  # numbers of all sequences and heads
    assert q_tiles == k_tiles == per_tile * seen.sum()


@pytest.mark.parametrize("function", BACKWARD)
def test_an_index_of_a_gradient_must_lie_in_its_array(rng, function):
    q, k, v = arrays_of(rng, 3, 5, 5)
    out, lse = fa_numba.flash_attn_v2(q, k, v)
    score = {"score": lambda s, b, h, m, n, x: s + x[n], "score_args": (np.zeros(4, np.float32),)}
    with pytest.raises(ValueError, match=r"score_args\[0\] must have more than 4 elements"):
        kernel_function(function)(q, q, k, v, out, lse, **score)


def test_numbers_of_more_than_32_bits():
    x, large = np.zeros((1, 8, 2, 8), np.float32), np.full(8, 2**40)
    with pytest.raises(ValueError, match=r"mask_args\[0\] must have numbers that fit 32 bits"):
        fa_numba.flash_attn_v2(x, x, x, mask=lambda b, h, m, n, a: a[m] == a[n], mask_args=(large,))
