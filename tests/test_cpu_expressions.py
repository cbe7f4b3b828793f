"""The user's mask, score and sinks in the jobs compiled for the CPU, against the definition."""

import ctypes
import math

import numpy as np
import pytest
from cases import make_paged_cache, make_qkv, random
from expression_cases import CASES, biased, options_of
from numba import cuda, types
from numba.core.ccallback import CFunc

import fa_numba
from fa_numba import cpu, reference
from fa_numba.cpu import expressions
from fa_numba.cpu.tiles import BLOCK_N, WIDTH
from fa_numba.cpu.vectors import LANES
from fa_numba.expressions import nodes
from fa_numba.expressions.functions import Expressions
from fa_numba.expressions.given import H, given
from fa_numba.expressions.nodes import const, make
from fa_numba.expressions.trace import trace
from fa_numba.runtime import arrays

each_case = pytest.mark.parametrize("name", CASES)
OFF = False, (-1, -1), 0.0, None


def close(got, want, atol=1e-5):
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(np.asarray(x, float), y, atol=atol, rtol=10 * atol)


def check(q, k, v, ours, definition, *, atol=1e-5, gradients=True, rng=None):
    """Forward and gradients."""
    state = cpu.flash_attn(q, k, v, **ours)
    close(state, reference.attention(q, k, v, **definition), atol)
    if gradients:
        dout = random(rng or np.random.default_rng(1), *q.shape).astype(q.dtype)
        got = cpu.flash_attn_grad(dout, q, k, v, *state, **ours)
        close(got, reference.attention_bwd(dout, q, k, v, **definition), 10 * atol)


@each_case
def test_forward_and_gradients(rng, name):
    """Sizes with whole, mixed and hidden tiles, and with tails."""
    q, k, v = make_qkv(rng, 2, 2 * WIDTH + 5, 2 * BLOCK_N + 7, 2, 1, 16)
    check(q, k, v, *options_of(name, 2, k.shape[1]), rng=rng)


@pytest.mark.thorough
@each_case
@pytest.mark.parametrize("sizes", [(150, 300), (300, 300), (1, 1), (40, 30)], ids=str)
def test_sizes(rng, name, sizes):
    q, k, v = make_qkv(rng, 2, *sizes, 4, 2, 33)
    if min(sizes[1] - sizes[0], 0) < 0 and name in ("documents", "a score and a mask"):
        pytest.skip("a negative position has no document, and no logarithm")
    check(q, k, v, *options_of(name, 4, sizes[1]), rng=rng)


@each_case
@pytest.mark.parametrize("seqlen_q", [1, pytest.param(9, marks=pytest.mark.thorough), 20])
def test_caches(rng, name, seqlen_q):
    """Keys along vectors, and for more queries the tiles of `flash_attn`."""
    q = random(rng, 3, seqlen_q, 4, 16)
    cache = make_paged_cache(rng, [150, 0, 77], 16, 2, 16)
    k, v = reference.paged_kv_lookup(*cache)
    ours, definition = options_of(name, 4, 150)
    want = reference.cached_attention(q, k, v, cache[-1], **definition)
    for got in (
        cpu.paged_attn_decode(q, *cache, **ours),
        cpu.flash_decode(q, k, v, cache[-1], **ours),
    ):
        close(got, want)


@pytest.mark.parametrize("name", ["documents", "sequences differ", "T5", "sinks"])
def test_packed(rng, monkeypatch, name):
    monkeypatch.setattr(expressions, "MOST_TILES", 20)  # some sequence by sequence
    for lengths in ([(20, 40), (0, 10), (70, 70), (5, 0)], [(20, 40)] * 2, []):
        cu_seqlens = np.cumsum([(0, 0), *lengths], axis=0, dtype=np.int32).T
        cu_seqlens = [np.ascontiguousarray(cu) for cu in cu_seqlens]
        q, dout = (random(rng, cu_seqlens[0][-1], 4, 16) for _ in range(2))
        k, v = (random(rng, cu_seqlens[1][-1], 2, 16) for _ in range(2))
        ours, definition = options_of(name, 4, 70)
        host = (q, k, v, *cu_seqlens)
        out, lse = cpu.flash_attn_varlen(*host, **ours)
        dq, dk, dv, *dsinks = cpu.flash_attn_varlen_grad(
            dout, *host[:3], out, lse, *cu_seqlens, **ours
        )
        close((out, lse), reference.varlen_attention(*host, **definition))
        want = reference.varlen_attention_bwd(dout, *host, **definition)
        close((dq, dk, dv, *dsinks), want, 1e-4)


@pytest.mark.skipif(LANES != 8, reason="AVX's instructions")
def test_instructions_that_would_make_a_mask_slow():
    """Verdicts packed into single bits, and masked stores: a mixed tile took four times as long."""
    mask = trace(lambda b, h, m, n: (n <= m) | (n < 7) & (n >= b), "mask", "b h m n")
    kind = expressions.ExpressionsType(Expressions(mask, None))
    for function, more, slow in (
        (expressions.seen, (), "vpack"),
        (expressions.modify, expressions.OF_SCORES, "vmaskmov"),
    ):
        signature = (kind, *expressions.OF_A_TILE, *more), types.int64
        compiled = CFunc(function, signature, {}, {})
        compiled.compile()
        code = compiled._library.get_asm_str()
        assert "vpcmpgtd" in code and slow not in code


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_dtypes(rng, dtype):
    q, k, v = (x.astype(dtype) for x in make_qkv(rng, 1, 40, 70, 2, 1, 32))
    ours, definition = options_of("a score and a mask", 2, 70)
    sinks = np.array([0.5, -1]).astype(dtype)
    check(q, k, v, ours | {"sinks": sinks}, definition | {"sinks": sinks.astype(float)}, atol=1e-2)
    dsinks = cpu.flash_attn_grad(q, q, k, v, *cpu.flash_attn(q, k, v, sinks=sinks), sinks=sinks)[3]
    assert dsinks.dtype == sinks.dtype


@pytest.mark.parametrize("head_dim", [1, 256])
def test_head_dims(rng, head_dim):
    q, k, v = make_qkv(rng, 1, 35, 70, 2, 1, head_dim)
    check(q, k, v, *options_of("a score and a mask", 2, 70))


@pytest.mark.parametrize(
    "options",
    [
        {"causal": True},
        {"window_size": (20, 3), "softcap": 2.0},
        {"causal": True, "alibi_slopes": np.array([0.25, 0.5], np.float32)},
        {"dropout_p": 0.3, "seed": 5, "softmax_scale": -0.3},
    ],
    ids=str,
)
def test_with_other_options(rng, options):
    q, k, v = make_qkv(rng, 2, 40, 75, 2, 1, 16)
    for name in ("T5", "sinks and a mask"):
        ours, definition = options_of(name, 2, 75)
        check(q, k, v, ours | options, definition | options)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("on", [np.asarray, cuda.to_device], ids=["job", "kernel"])
def test_gradients_of_score_args(rng, on, packed):
    """Along a random direction in each array, the loss changes as its gradient says."""
    q, k, v = make_qkv(rng, 2, WIDTH + 5, BLOCK_N + 7, 4, 2, 16)
    dout, length = random(rng, *q.shape), k.shape[1]
    shapes = (4,), (4, 10), (2, length), (length,)
    args = *(random(rng, *shape).astype(np.float64) for shape in shapes), 1
    options = {"score": biased, "causal": True}
    if packed:
        cu_seqlens = [np.arange(3, dtype=np.int32) * x.shape[1] for x in (q, k)]
        rows_of = [x.reshape(-1, *x.shape[2:]) for x in (dout, q, k, v)]
        host = *rows_of[1:], *cu_seqlens
        state = cpu.flash_attn_varlen(*host, score_args=args, **options)
        arguments = *rows_of, *state, *cu_seqlens
        grad = fa_numba.flash_attn_varlen_grad
    else:
        options["dropout_p"] = 0.2
        options["sinks"] = np.zeros(4, np.float32)
        state = cpu.flash_attn(q, k, v, score_args=args, **options)
        arguments, grad = (dout, q, k, v, *state), fa_numba.flash_attn_grad
    given = {"score_args": (*map(on, args[:-1]), 1)}
    given |= {name: on(x) for name, x in options.items() if name == "sinks"}
    *others, gradients = grad(*map(on, arguments), score_args_grad=True, **options | given)
    assert len(others) == 3 + (not packed) and gradients[-1] is None
    gradients = [None if x is None else arrays.to_numpy(x) for x in gradients]

    def loss(moved):
        score = lambda *at: biased(*at, *moved)  # noqa: E731
        out, _ = reference.attention(q, k, v, **options | {"score": score})
        return np.sum(dout * out)

    for i, gradient in enumerate(gradients[:-1]):
        assert gradient.shape == args[i].shape and gradient.dtype == args[i].dtype
        step = 1e-4 * rng.standard_normal(gradient.shape)
        ends = [
            loss([x + sign * step if i == j else x for j, x in enumerate(args)]) for sign in (1, -1)
        ]
        assert (ends[0] - ends[1]) / 2 == pytest.approx(np.sum(gradient * step), rel=1e-3, abs=1e-8)


def test_hidden_tiles_are_not_read(rng):
    q, k, v = make_qkv(rng, 1, 4 * BLOCK_N, 4 * BLOCK_N, 1, 1, 16)
    mask = {"mask": lambda b, h, m, n: (n < BLOCK_N) | (n >= 3 * BLOCK_N)}
    want = cpu.flash_attn(q, k, v, **mask)
    gradients = cpu.flash_attn_grad(q, q, k, v, *want, **mask)
    k[:, BLOCK_N : 3 * BLOCK_N] = v[:, BLOCK_N : 3 * BLOCK_N] = np.nan
    got = cpu.flash_attn(q, k, v, **mask)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_array_equal(x, y)
    for x, y in zip(cpu.flash_attn_grad(q, q, k, v, *got, **mask), gradients, strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_score_that_hidden_pairs_do_not_have(rng):
    """Its derivative is NaN there, and so is 0 times it."""
    q, k, v = make_qkv(rng, 1, 35, 70, 2, 1, 16)

    def score(s, b, h, m, n):
        return s * math.sqrt(m - n)

    def definition(s, b, h, m, n):
        return s * math.sqrt(max(m - n, 0))

    check(q, k, v, {"score": score, "causal": True}, {"score": definition, "causal": True})


OPERATORS = [
    lambda m, n: m + n, lambda m, n: m - 2 * n, lambda m, n: m * n, lambda m, n: -m,
    lambda m, n: (m - 40) // 8, lambda m, n: (m - 40) // 7, lambda m, n: (m - 40) // (n - 90),
    lambda m, n: (m - 40) % 8, lambda m, n: (m - 40) % 7, lambda m, n: (m - 40) % (n - 90),
    lambda m, n: abs(m - n), lambda m, n: min(m, n, 9), lambda m, n: max(m - 9, n),
    lambda m, n: (m & 12) | (n ^ 5), lambda m, n: (m << 3) - (n >> 2), lambda m, n: ~m,
    lambda m, n: m < n, lambda m, n: m >= n, lambda m, n: m == n, lambda m, n: m != n,
    lambda m, n: m > 9 and (n > 3 or m == n), lambda m, n: 3 if m < n else n,
    lambda m, n: math.exp(0.1 * (m - n)), lambda m, n: math.log(m + 0.5) / (n + 1),
    lambda m, n: math.sqrt(m) - math.tanh(n / 7 - 1), lambda m, n: math.copysign(2.5, m - n - 0.5),
    lambda m, n: abs(n / 4 - m), lambda m, n: min(m / 3, n / 2) ** 2, lambda m, n: 1.5 * (m < n),
]  # fmt: skip


def test_operators():
    """Each by itself, on numbers of both signs: one function, which head h asks for number h."""
    one = const(0.0)
    for i, of in enumerate(OPERATORS):
        node = nodes.as_float(trace(lambda s, b, h, m, n, of=of: of(m, n), "score", "s b h m n"))
        one = nodes.where(make("eq", H, const(i)), node, one)
    expression = Expressions(None, one)
    integers = [ctypes.c_int64] * 6
    types = ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, *integers, ctypes.c_void_p
    function = ctypes.CFUNCTYPE(*types, *integers[:4], ctypes.c_float)
    modify = function(expressions.address(expressions.modify, expression))
    m0, keys = 3, 64
    for h, of in enumerate(OPERATORS):
        tile = np.zeros((keys, WIDTH), np.float32)
        modify(None, None, 0, h, m0, WIDTH, 0, keys, tile.ctypes.data, 0, keys, -1, 0, 1.0)
        want = [[float(of(m, n)) for m in range(m0, m0 + WIDTH)] for n in range(keys)]
        np.testing.assert_allclose(tile, want, rtol=2e-6, atol=1e-6, err_msg=str(h))


def test_functions_are_kept_on_disk(monkeypatch, tmp_path):
    """Under the text of their expressions."""
    monkeypatch.setattr(expressions.disk_cache.kernel_cache, "folder", lambda: tmp_path)
    compile_ = expressions.address.__wrapped__
    hits = []
    for width in (3, 4, 3):
        mask = given(lambda b, h, m, n: m - n < width, (), None, (), OFF).expressions  # noqa: B023
        compile_(expressions.seen, mask)
        hits.append(expressions._compiled.pop().cache_hits)
    assert hits == [0, 0, 1]


SHORT = np.zeros(9, np.int32)
BAD = {
    "mask reads beyond an array": ({"mask": lambda b, h, m, n, x: x[n] == 0, "mask_args": (SHORT,)},
        r"mask_args\[0\] must have more than 19 elements"),
    "score reads beyond an array": ({"score": lambda s, b, h, m, n, x: s + x[m - n],
        "score_args": (SHORT,)}, r"score_args\[0\] must have more than 19 elements"),
    "an array with many axes": ({"mask": lambda b, h, m, n, x: x[0, 0, 0, 0, 0, 0, 0, n] == 0,
        "mask_args": (np.zeros((1,) * 7 + (20,), np.int32),)}, r"mask_args\[0\] must have at most"),
    "a mask that is no function": ({"mask": True}, "mask must be a function"),
    "arguments of nothing": ({"score_args": (1,)}, "score_args must be empty without score"),
    "sinks of too few heads": ({"sinks": np.zeros(1, np.float32)}, "sinks must have one number"),
    "sinks of integers": ({"sinks": np.zeros(2, int)}, "sinks must be float32"),
}  # fmt: skip


@pytest.mark.parametrize("options, message", BAD.values(), ids=BAD)
def test_bad_inputs(rng, options, message):
    q, k, v = make_qkv(rng, 1, 20, 20, 2, 1, 8)
    with pytest.raises((TypeError, ValueError), match=message):
        fa_numba.flash_attn(q, k, v, **options)
    with pytest.raises((TypeError, ValueError), match=message):
        fa_numba.flash_attn_grad(q, q, k, v, q, np.zeros((1, 2, 20), np.float32), **options)
