"""Dropout: its random bits, and their use in flash_attn_v1, v2 and bwd."""

import functools
import inspect
import re
import types

import numba
import numpy as np
import pytest
from cases import (
    MASKS,
    TILES,
    check_backward,
    check_by_differences,
    check_forward,
    make_qkv,
    mask_options,
    plain_attention,
    random,
    strided,
    thorough,
)
from dtype_cases import ATTENTION, same
from few_cases import pairs
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda
from test_flash_attn_v1 import check_block_sparse, flash_attn_v1

import fa_numba
from fa_numba import analysis, flash_attn_bwd, flash_attn_v2, reference, simt
from fa_numba.analysis.machine_code import (
    compile_kernel,
    compiler_available,
    disassembler_available,
)
from fa_numba.kernels.dropout import keep_scale, make_keeps, philox, philox_round

pytestmark = pytest.mark.usefixtures("checked")
FORWARD = [flash_attn_v1, flash_attn_v2]
each_kernel = pytest.mark.parametrize("kernel", FORWARD, ids=lambda f: f.__name__)
needs_compiler = pytest.mark.skipif(not compiler_available(), reason="needs NVVM and NVRTC")

# --- the random bits --------------------------------------------------------------------------

ONES = 0xFFFFFFFF
PI = 0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0  # its binary digits
# Counter, key and words of Philox4x32-7: the vectors that its authors publish with their code.
KNOWN = [
    ((0,) * 4, (0,) * 2, (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)),
    ((ONES,) * 4, (ONES,) * 2, (0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662)),
    (PI[:4], PI[4:], (0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A)),
]
TEN_ROUNDS = [
    (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
]


def in_python(counter, key):
    """Philox in integers that cannot overflow."""
    (a, b, c, d), (k, l) = counter, key
    for _ in range(7):
        p, r = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = r // 2**32 ^ b ^ k, r % 2**32, p // 2**32 ^ d ^ l, p % 2**32
        k, l = (k + 0x9E3779B9) % 2**32, (l + 0xBB67AE85) % 2**32
    return a, b, c, d


def by_definition(counter, key):
    return reference.philox(counter, key, rounds=7)


@cuda.jit
def philox_kernel(c0, c1, c2, c3, k0, k1, words):
    words[0], words[1], words[2], words[3] = philox(c0, c1, c2, c3, k0, k1)


def on_the_engine(counter, key):
    words = np.zeros(4, np.uint32)
    simt.run(philox_kernel, 1, 1, *map(np.uint32, (*counter, *key)), words)
    return words


@functools.cache
def compiled_philox():
    """Philox for the CPU, with the types that it has on a GPU."""
    names = philox.py_func.__globals__ | {"philox_round": numba.njit(philox_round.py_func)}
    return numba.njit(types.FunctionType(philox.py_func.__code__, names))


def compiled(counter, key):
    return compiled_philox()(*map(np.uint32, (*counter, *key)))


EVERY_PHILOX = [in_python, by_definition, on_the_engine, compiled]


@pytest.mark.parametrize("function", EVERY_PHILOX, ids=lambda f: f.__name__)
@pytest.mark.parametrize("counter, key, words", KNOWN, ids=["zeros", "ones", "pi"])
def test_philox_gives_the_published_words(function, counter, key, words):
    assert tuple(map(int, function(counter, key))) == words


@pytest.mark.parametrize("case", range(3), ids=["zeros", "ones", "pi"])
def test_ten_rounds_of_the_definition_give_the_published_words(case):
    counter, key, _ = KNOWN[case]
    assert tuple(map(int, reference.philox(counter, key))) == TEN_ROUNDS[case]


def test_philox_is_the_same_everywhere(rng):
    for numbers in rng.integers(0, 2**32, (20, 6)).tolist():
        counter, key = numbers[:4], numbers[4:]
        assert len({tuple(map(int, f(counter, key))) for f in EVERY_PHILOX}) == 1


@functools.cache
def make_draw(p):
    keeps = make_keeps(p)

    @cuda.jit
    def draw(mask, seed, first):
        """mask[b, head, m, n], where position (0, 0, 0, 0) is called `first`."""
        n, m = cuda.threadIdx.x, cuda.blockIdx.x
        head, b = cuda.blockIdx.y, cuda.blockIdx.z
        mask[b, head, m, n] = keeps(seed, b + first[0], head + first[1], m + first[2], n + first[3])

    return draw


def draw(p, seed, shape, first=(0, 0, 0, 0)):
    batch, num_heads, seqlen_q, seqlen_k = shape
    mask = np.zeros(shape, bool)
    grid = seqlen_q, num_heads, batch
    simt.run(make_draw(p), grid, seqlen_k, mask, np.uint64(seed), np.array(first, np.int64))
    return mask


PROBABILITIES = [1e-12, 0.01, 0.1, 0.5, 0.9, np.nextafter(1, 0)]
SEEDS = [0, 1, 2**32 - 1, 2**32, 2**63 + 12345, 2**64 - 1]


@pytest.mark.parametrize("p", PROBABILITIES)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_device_function_draws_the_mask_of_the_definition(seed, p):
    shape = 2, 3, 5, 11
    np.testing.assert_array_equal(draw(p, seed, shape), reference.dropout_mask(seed, p, *shape))


def test_far_positions_are_drawn_as_the_definition_says():
    first = 65534, 65533, 2**32 - 3, 2**33 - 4
    mask = draw(0.5, 9, (1, 1, 3, 8), first)
    for row, col in np.ndindex(3, 8):
        m, n = first[2] + row, first[3] + col
        counter = n // 16 * 4 + n // 2 % 4, m // 16 * 8 + m % 8, first[1], first[0]
        word = in_python(counter, (9, 0))[2 * (n // 8 % 2) + m // 8 % 2]
        assert mask[0, 0, row, col] == ((word >> 16 * (n % 2)) % 2**15 >= 2**14)


def test_bits_are_dropped_below_p_and_not_at_it():
    for i, word in enumerate(KNOWN[0][2]):  # of the patch at (0, 0, 0, 0) and seed 0
        for half in range(2):
            m, n = 8 * (i % 2), 8 * (i // 2) + half
            bits = (word >> 16 * half) % 2**15
            for p, kept in ((bits / 2**15, True), ((bits + 1) / 2**15, False)):
                assert draw(p, 0, (1, 1, 1, 1), (0, 0, m, n))[0, 0, 0, 0] == kept
                assert reference.dropout_mask(0, p, 1, 1, 9, 10)[0, 0, m, n] == kept


@pytest.mark.parametrize("p", [0.1, 0.3, 2**-15, 1 - 2**-15, 1e-12])
def test_kept_entries_are_divided_by_the_true_probability(p):
    dropped = int(p * 2**15) / 2**15
    assert abs(dropped - p) <= 2**-15
    assert keep_scale(p) == np.float32(1 / (1 - dropped))


def test_without_dropout_everything_is_kept():
    assert make_keeps(0.0).py_func(None, None, None, None, None) is True
    assert keep_scale(0.0) == 1


BIG = 2, 4, 256, 512  # 2²⁰ entries


@pytest.mark.parametrize("p", [0.001, 0.1, 0.3, 0.5, 0.9])
def test_a_fraction_p_is_dropped(p):
    dropped = ~reference.dropout_mask(1, p, *BIG)
    p = int(p * 2**15) / 2**15
    patches = dropped.reshape(2, 4, -1, 2, 8, 32, 2, 8)
    words = [patches[:, :, :, i, :, :, j] for i in range(2) for j in range(2)]
    for one in (dropped, dropped[..., ::2], dropped[..., 1::2], *words, *dropped, *dropped[0]):
        deviation = np.sqrt(one.size * p * (1 - p))
        assert abs(one.sum() - one.size * p) <= 4 * deviation


NEIGHBOURS = {
    "next_key": np.s_[:, :, :, 1:],
    "eighth_key": np.s_[:, :, :, 8:],
    "next_query": np.s_[:, :, 1:],
    "eighth_query": np.s_[:, :, 8:],
    "eighth_query_and_key": np.s_[:, :, 8:, 8:],
    "next_head": np.s_[:, 1:],
    "next_sequence": np.s_[1:],
}


@pytest.mark.parametrize("neighbour", NEIGHBOURS.values(), ids=NEIGHBOURS)
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_neighbours_are_independent(p, neighbour):
    check_independent(reference.dropout_mask(2, p, *BIG), neighbour, p)


@pytest.mark.parametrize("other", [3, 2**32 + 2, 2**63 + 2])
def test_seeds_are_independent(other):
    both = np.stack([reference.dropout_mask(seed, 0.3, *BIG) for seed in (2, other)])
    check_independent(both, np.s_[1:], 0.3)


def check_independent(mask, neighbour, p):
    """Two neighbours are both dropped as often as two independent entries."""
    p = int(p * 2**15) / 2**15
    there = mask[neighbour]
    here = mask[tuple(slice(0, size) for size in there.shape)]
    both = p * p
    deviation = np.sqrt(there.size * both * (1 - both))
    assert abs((~here & ~there).sum() - there.size * both) <= 4 * deviation


@pytest.mark.skipif(not disassembler_available(), reason="needs nvdisasm")
def test_a_round_is_two_multiplications_of_32_bits():
    args = np.zeros((1, 1, 1, 4), bool), np.uint64(0), np.zeros(4, np.int64)
    codes = [compile_kernel(make_draw(p), args, cc=(8, 0)) for p in (0.5, 0.0)]
    wide, others = (sum(i.opcode == "IMAD.WIDE.U32" for i in c.instructions) for c in codes)
    assert wide - others == 2 * 7
    assert codes[0].float64_instructions == codes[0].local_bytes == 0


# --- attention --------------------------------------------------------------------------------

SHAPES = {  # batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim
    "gqa_tails": (2, 21, 27, 4, 2, 6),
    "more_queries_than_keys": (1, 29, 10, 2, 1, 4),  # causal: rows that see no key
    "odd": (1, 13, 19, 3, 1, 59),
    "one_query": (2, 1, 33, 3, 1, 5),
    "one_key": (1, 19, 1, 1, 1, 4),
    "no_keys": (1, 5, 0, 2, 1, 4),
    "no_queries": (1, 0, 5, 2, 1, 4),
}
OPTIONS = {"full": {}, "causal": {"causal": True}, "window": MASKS["window"], "all": MASKS["all"]}
each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
each_option = pytest.mark.parametrize("mask", OPTIONS.values(), ids=OPTIONS)
DROPOUT = {"dropout_p": 0.3, "seed": 2**63 + 7}


@each_option
@each_shape
@each_kernel
@pytest.mark.few(lambda kernel, shape, mask: pairs(kernel, shape, mask))
def test_forward(rng, kernel, shape, mask):
    q, k, v = make_qkv(rng, *shape)
    options = mask_options(mask, q.shape[2]) | DROPOUT
    check_forward(kernel, q, k, v, **options, block_m=8, block_n=8)


@each_option
@each_shape
@pytest.mark.few(lambda shape, mask: [shape, mask])
def test_backward(rng, shape, mask):
    q, k, v = make_qkv(rng, *shape)
    options = mask_options(mask, q.shape[2]) | DROPOUT
    dout = random(rng, *q.shape)
    tiles = {"block_m": 8, "block_n": 8}
    check_backward(plain_attention, flash_attn_bwd, dout, q, k, v, **options, **tiles)


@pytest.mark.parametrize("p", [1e-12, 0.01, 0.9, 0.999])
def test_any_probability(rng, p):
    q, k, v = make_qkv(rng, 2, 17, 40, 2, 1, 8)
    for kernel in FORWARD:
        check_forward(kernel, q, k, v, dropout_p=p, seed=3, block_m=8, block_n=8)
    dout = random(rng, *q.shape)
    check_backward(plain_attention, flash_attn_bwd, dout, q, k, v, dropout_p=p, seed=3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["flash_attn_v1", "flash_attn_v2", "flash_attn_bwd"])
def test_sixteen_bits(rng, name, dtype):
    dtype = np.float16 if dtype == "float16" else pytest.importorskip("ml_dtypes").bfloat16
    ATTENTION[name](rng, dtype, same, SHAPES["gqa_tails"], {"causal": True} | DROPOUT)


@pytest.mark.parametrize("causal", [False, True])
def test_block_mask(rng, causal):
    q, k, v = make_qkv(rng, 2, 29, 34, 4, 2, 6)
    block_mask = rng.random((4, 5)) < 0.5
    tiles = {"block_m": 8, "block_n": 8}
    check_block_sparse(q, k, v, block_mask, causal=causal, **tiles, **DROPOUT)


def masks_drawn(**options):
    """Which entries each kernel keeps, of (batch, num_heads, seqlen_q, seqlen_k), by its results.

    Rows that are unit vectors give each entry of P or dS an element to itself; all are positive.
    """
    seqlen_q, seqlen_k, head_dim = 13, 19, 20
    units = np.eye(head_dim, dtype=np.float32)[None, :, None].repeat(2, 0).repeat(3, 2)
    q, k, zeros, ones = units[:, :seqlen_q], units[:, :seqlen_k], *np.zeros((2, 2, 19, 3, 20), "f")
    ones += 1
    out_v1, *_ = fa_numba.flash_attn_v1(q, k, k, **options)
    out_v2, lse = flash_attn_v2(q, k, k, **options)
    dq, dk, dv = flash_attn_bwd(q, q, k, ones, zeros[:, :seqlen_q], lse, **options)  # delta = 0
    for x in (out_v1, out_v2, dq):
        yield x[..., :seqlen_k].transpose(0, 2, 1, 3) > 0
    for x in (dk, dv):
        yield x[..., :seqlen_q].transpose(0, 2, 3, 1) > 0


@pytest.mark.parametrize("block_m, block_n", [*TILES, (16, 16)])
def test_tiles_do_not_change_the_mask(block_m, block_n):
    want = reference.dropout_mask(DROPOUT["seed"], DROPOUT["dropout_p"], 2, 3, 13, 19)
    for drawn in masks_drawn(**DROPOUT, block_m=block_m, block_n=block_n):
        np.testing.assert_array_equal(drawn, want)


def results(q, k, v, dout, **options):
    """What each of the three functions returns: out, l, m, out, lse, dq, dk, dv."""
    out, lse = flash_attn_v2(q, k, v, **options)
    bwd = flash_attn_bwd(dout, q, k, v, out, lse, **options)
    return *fa_numba.flash_attn_v1(q, k, v, **options), out, lse, *bwd


def test_strides_do_not_change_a_bit_and_inputs_are_left_alone(rng):
    inputs = *make_qkv(rng, 2, 9, 11, 4, 2, 8), random(rng, 2, 9, 4, 8)
    views = [strided(x) for x in inputs]
    for x in views:
        x.flags.writeable = False
    for x, y in zip(results(*views, **DROPOUT), results(*inputs, **DROPOUT), strict=True):
        np.testing.assert_array_equal(x, y)


def test_no_dropout_is_the_same_to_the_bit_for_any_seed(rng):
    inputs = *make_qkv(rng, 2, 19, 21, 4, 2, 8), random(rng, 2, 19, 4, 8)
    want = results(*inputs, causal=True)
    for options in (
        {"dropout_p": 0},
        {"seed": 5},
        {"dropout_p": np.float32(0), "seed": np.uint8(3)},
    ):
        for x, y in zip(results(*inputs, causal=True, **options), want, strict=True):
            np.testing.assert_array_equal(x, y)


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(rng):
    inputs = *make_qkv(rng, 1, 9, 21, 2, 1, 8), random(rng, 1, 9, 2, 8)
    first, again, other, plain = (
        results(*inputs, dropout_p=p, seed=seed)
        for p, seed in ((0.5, 1), (0.5, 1), (0.5, 2), (0, 1))
    )
    for x, y in zip(first, again, strict=True):
        np.testing.assert_array_equal(x, y)
    statistics = 1, 2, 4  # l, m, lse: of all keys, dropped or not
    for i, (x, y, z) in enumerate(zip(first, other, plain, strict=True)):
        if i in statistics:
            np.testing.assert_array_equal(x, z)
        else:
            assert (x != y).any() and (x != z).any()


def test_dropout_is_right_on_average(rng):
    """2000 heads that have the same q, k, v, and drop differently."""
    q, k, v = (
        np.broadcast_to(x, (1, x.shape[1], 2000, 4)) for x in make_qkv(rng, 1, 2, 8, 1, 1, 4)
    )
    want, _ = reference.attention(q[:, :, :1], k[:, :, :1], v[:, :, :1])
    out, _ = reference.attention(q, k, v, dropout_p=0.4, seed=6)
    error = out.mean(axis=2) - want[:, :, 0]
    assert (abs(error) <= 4 * out.std(axis=2) / np.sqrt(2000)).all()
    got, _ = flash_attn_v2(*(x[:, :, :3].copy() for x in (q, k, v)), dropout_p=0.4, seed=6)
    np.testing.assert_allclose(got, out[:, :, :3], atol=1e-6)


def test_a_row_may_lose_all_its_keys(rng):
    q, k, v = make_qkv(rng, 1, 64, 2, 1, 1, 4)
    lost = ~reference.dropout_mask(0, 0.7, 1, 1, 64, 2).any(axis=3)[0, 0]
    assert 10 < lost.sum() < 60
    for kernel in FORWARD:
        out, lse = kernel(q, k, v, dropout_p=0.7)
        assert (out[0, lost] == 0).all() and (out[0, ~lost] != 0).all()
        assert np.isfinite(lse).all()


@each_kernel
def test_nan_in_one_head_stays_there(rng, kernel):
    q, k, v = make_qkv(rng, 2, 9, 9, 2, 2, 8)
    want, lse_want = kernel(q, k, v, **DROPOUT)
    k[0, 3, 1] = np.nan
    out, lse = kernel(q, k, v, **DROPOUT)
    assert np.isnan(out[0, :, 1]).all() and np.isnan(lse[0, 1]).all()
    for x, y in ((out[1], want[1]), (out[0, :, 0], want[0, :, 0]), (lse[1], lse_want[1])):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("mask", [{}, MASKS["all"]], ids=["full", "all"])
def test_gradients_are_finite_differences(rng, mask):
    q, k, v = (x.astype(np.float64) for x in make_qkv(rng, 2, 5, 6, 2, 1, 3))
    dout = rng.standard_normal(q.shape)
    options = mask_options(mask, 2) | {"dropout_p": 0.4, "seed": 8}
    check_by_differences(dout, q, k, v, **options)


problems = st.tuples(
    st.integers(0, 2),  # batch
    st.integers(0, 24),  # seqlen_q
    st.integers(0, 24),  # seqlen_k
    st.sampled_from([(1, 1), (4, 2), (3, 1)]),  # num_heads, num_kv_heads
    st.integers(1, 12),  # head_dim
)
probabilities = st.floats(0, 1, exclude_max=True) | st.sampled_from([0.1, 0.5])


@settings(max_examples=12)
@given(
    problems,
    st.sampled_from([{}, {"causal": True}, *MASKS.values()]),
    st.sampled_from(TILES),
    probabilities,
    st.integers(0, 2**64 - 1),
)
def test_drawn_problems(problem, mask, tiles, p, seed):
    batch, seqlen_q, seqlen_k, heads, head_dim = problem
    rng = np.random.default_rng(0)
    q, k, v = make_qkv(rng, batch, seqlen_q, seqlen_k, *heads, head_dim)
    options = mask_options(mask, heads[0]) | {"dropout_p": p, "seed": seed}
    tiles = dict(zip(("block_m", "block_n"), tiles, strict=True))
    with simt.options(package=True):
        for kernel in FORWARD:
            check_forward(kernel, q, k, v, **options, **tiles)
        dout = random(rng, *q.shape)
        check_backward(plain_attention, flash_attn_bwd, dout, q, k, v, **options, **tiles)


def test_nothing_more_is_moved(rng):
    sizes = 2, 21, 27, 4, 2, 8
    q, k, v = make_qkv(rng, *sizes)
    options = {"causal": True, "block_m": 8, "block_n": 4}
    problem = analysis.Problem(*sizes, **options)
    out, lse = flash_attn_v2(q, k, v, **options, **DROPOUT)
    for name, inputs in {
        "flash_attn_v1": (q, k, v),
        "flash_attn_v2": (q, k, v),
        "flash_attn_bwd": (q, q, k, v, out, lse),
    }.items():
        with simt.tracing() as traces:
            getattr(fa_numba, name)(*inputs, **options, **DROPOUT)
        elements = sum(a.loads + a.stores for t in traces for a in t.arrays.values())
        assert elements == getattr(analysis.traffic, name)(problem).elements()


WRITTEN_OUT = {  # as if there were no dropout
    "flash_attn_v1": {
        "p if keeps(seed, b, head, row, n) else -p": "p",
        "abs(p) if DROPOUT else p": "p",
        "max(p, float32(0.0)) if DROPOUT else p": "p",
        "beta * acc[c] * KEEP_SCALE if DROPOUT else beta * acc[c]": "beta * acc[c]",
    },
    "flash_attn_v2": {
        "p if keeps(seed, b, head, m, n) else -p": "p",
        "abs(p) if DROPOUT else p": "p",
        "max(p, float32(0.0)) if DROPOUT else p": "p",
        "acc[c] * KEEP_SCALE if DROPOUT else acc[c]": "acc[c]",
    },
    "flash_attn_bwd": {"if DROPOUT:": "if 0:"},
}
X, ROWS = np.zeros((1, 3, 1, 64), np.float32), np.zeros((1, 1, 3), np.float32)
ARGUMENTS = {
    "make_flash_attn_v1": (*4 * [X], *2 * [ROWS], np.float32(1), np.float32(0), np.bool_(1)),
    "make_flash_attn_v2": (*4 * [X], ROWS, np.float32(1), np.float32(0)),
    "make_dkdv": (*4 * [X], (), (), *2 * [ROWS], *2 * [X], np.float32(1), np.float32(0)),
    "make_dq": (*4 * [X], (), (), *2 * [ROWS], X, np.float32(1), np.float32(0)),
}
SEED, NO_MASK = np.uint64(0), (np.int8(0), ())  # classes, args
MORE = {"make_flash_attn_v1": (SEED,), "make_flash_attn_v2": (SEED, np.float32(0), *NO_MASK)}
MORE |= {"make_dkdv": (SEED, *NO_MASK), "make_dq": (SEED, *NO_MASK)}


@needs_compiler
@pytest.mark.parametrize(
    "name", [name if name == "flash_attn_v2" else thorough(name) for name in WRITTEN_OUT]
)
def test_no_dropout_costs_no_instruction(tmp_path, name):
    """The kernel is compiled as if there were no dropout in its source."""
    module = inspect.getmodule(getattr(fa_numba, name))
    source = inspect.getsource(module)
    for expression, plain in WRITTEN_OUT[name].items():
        assert expression in source
        source = source.replace(expression, plain)
    path = tmp_path / "written_out.py"
    path.write_text(source)
    namespace = {"__file__": str(path), "__name__": "written_out"}
    exec(compile(source, str(path), "exec"), namespace)
    for make in ARGUMENTS.keys() & vars(module).keys():
        codes = [
            compile_kernel(f(64, 16, 16, True), ARGUMENTS[make] + MORE[make], cc=(8, 0))
            for f in (getattr(module, make), namespace[make])
        ]
        assert codes[0].registers == codes[1].registers
        one, other = ([re.sub("`.*", "", str(i)) for i in c.instructions] for c in codes)
        assert one == other  # except the kernels' names
