"""Every attention function on problems that nobody chose, and on scores of −∞."""

import numpy as np
import pytest
from cases import (
    MASKS,
    TILES,
    assert_defined,
    check_backward,
    check_forward,
    make_qkv,
    mask_options,
    random,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from test_flash_attn_v1 import flash_attn_v1

from fa_numba import (
    flash_attn_bwd,
    flash_attn_v2,
    flash_attn_varlen_bwd,
    naive_attn,
    reference,
    simt,
)
from fa_numba.kernels.flash_attn_varlen import flash_attn_varlen
from fa_numba.kernels.flash_decode import flash_decode

drawn = settings(max_examples=20)
problems = st.tuples(
    st.integers(0, 2),  # batch
    st.integers(0, 40),  # seqlen_q
    st.integers(0, 40),  # seqlen_k
    st.sampled_from([(1, 1), (4, 2), (3, 1)]),  # num_heads, num_kv_heads
    st.integers(1, 20),  # head_dim
)
masks = st.sampled_from([{}, {"causal": True}, *MASKS.values()])
tiles = st.sampled_from(TILES)
KERNELS = [naive_attn, flash_attn_v1, flash_attn_v2]
each_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda f: f.__name__)


def make_problem(problem, mask, tiles):
    batch, seqlen_q, seqlen_k, heads, head_dim = problem
    rng = np.random.default_rng(0)
    arrays = make_qkv(rng, batch, seqlen_q, seqlen_k, *heads, head_dim)
    tiles = dict(zip(("block_m", "block_n"), tiles, strict=True))
    return rng, arrays, mask_options(mask, heads[0]) | tiles


@each_kernel
@drawn
@given(problems, masks, tiles)
def test_forward(kernel, problem, mask, tiles):
    _, arrays, options = make_problem(problem, mask, tiles)
    with simt.options(package=True):
        check_forward(kernel, *arrays, **options)


@drawn
@given(problems, masks, tiles)
def test_backward(problem, mask, tiles):
    rng, arrays, options = make_problem(problem, mask, tiles)
    dout = random(rng, *arrays[0].shape)
    with simt.options(package=True):
        check_backward(flash_attn_v2, flash_attn_bwd, dout, *arrays, **options)


@drawn
@given(problems, masks, tiles, st.integers(0, 6), st.data())
def test_flash_decode(problem, mask, tiles, num_splits, data):
    _, (q, k, v), options = make_problem(problem, mask, tiles)
    batch, max_len = k.shape[:2]
    one = st.lists(st.integers(0, max_len), min_size=batch, max_size=batch)
    seq_lens = np.array(data.draw(one), np.int32)
    for b, seq_len in enumerate(seq_lens):
        k[b, seq_len:] = v[b, seq_len:] = np.nan
    with simt.options(package=True):
        got = flash_decode(q, k, v, seq_lens, num_splits=num_splits, **options)
    what = {name: x for name, x in options.items() if not name.startswith("block")}
    assert_defined(got, reference.cached_attention, q, k, v, seq_lens, **what)


lengths = st.lists(st.tuples(st.integers(0, 25), st.integers(0, 25)), max_size=4)


@drawn
@given(lengths, problems, masks, tiles)
def test_varlen(lengths, problem, mask, tiles):
    *_, heads, head_dim = problem
    rng = np.random.default_rng(0)
    cu_seqlens = np.cumsum([(0, 0), *lengths], axis=0, dtype=np.int32).T
    cu_seqlens = [np.ascontiguousarray(cu) for cu in cu_seqlens]
    q, dout = (random(rng, cu_seqlens[0][-1], heads[0], head_dim) for _ in range(2))
    k, v = (random(rng, cu_seqlens[1][-1], heads[1], head_dim) for _ in range(2))
    what = mask_options(mask, heads[0])
    tiles = dict(zip(("block_m", "block_n"), tiles, strict=True))
    host = (q, k, v, *cu_seqlens)
    with simt.options(package=True):
        out, lse = flash_attn_varlen(*host, **what, **tiles)
        grads = flash_attn_varlen_bwd(dout, *host[:3], out, lse, *cu_seqlens, **what, **tiles)
    assert_defined((out, lse), reference.varlen_attention, *host, **what)
    assert_defined(grads, reference.varlen_attention_bwd, dout, *host, **what)


def decode(q, k, v, **tiles):
    """All keys, by three splits."""
    return flash_decode(q, k, v, np.full(len(q), k.shape[1], np.int32), num_splits=3, **tiles)


def packed(q, k, v, **tiles):
    """A batch of one, packed."""
    cu_seqlens = (np.array([0, x.shape[1]], np.int32) for x in (q, k))
    out, lse = flash_attn_varlen(q[0], k[0], v[0], *cu_seqlens, **tiles)
    return out[None], lse[None]


@pytest.mark.parametrize("kernel", [*KERNELS, decode, packed], ids=lambda f: f.__name__)
@pytest.mark.usefixtures("checked")
def test_a_score_of_minus_infinity_weighs_nothing(rng, kernel):
    q, k, v = make_qkv(rng, 1, 3, 11, 1, 1, 1)
    q[...] = 1
    k[0, :5] = k[0, 7] = -np.inf  # the first tile sees nothing else
    check_forward(kernel, q, k, v, block_m=4, block_n=4)
    k[...] = -np.inf
    check_forward(kernel, q, k, v, block_m=4, block_n=4)
