"""merge_states on the CPU engine, every access checked."""

import numpy as np
import pytest
from cases import assert_close, assert_defined, assert_equal, make_qkv, random
from hypothesis import given, settings
from hypothesis import strategies as st

from fa_numba import flash_attn_v2, merge_states, reference

pytestmark = pytest.mark.usefixtures("checked")

few = settings(max_examples=25)
seeds = st.integers(0, 2**32)
# log of a sum: of no keys, of few, of scores so large that e^lse overflows
lses = st.sampled_from([-np.inf, -1e4, -80.0, -1.0, 0.0, 0.5, 3.0, 80.0, 1e4])


def make_state(rng, lse, batch=2, seqlen_q=3, num_heads=2, head_dim=8):
    """A partial result with this lse in every row, give or take one."""
    out = random(rng, batch, seqlen_q, num_heads, head_dim)
    lse = (lse + random(rng, batch, num_heads, seqlen_q)).astype(np.float32)
    out[np.isneginf(lse).mT] = 0
    return out, lse


def check_merge(state_a, state_b):
    """Hold merge_states to the definition."""
    got = merge_states(*state_a, *state_b)
    assert_defined(got, reference.merge_states, *state_a, *state_b)
    return got


def assert_same(state_a, state_b):
    assert_equal(state_a, state_b)


@few
@given(seeds, lses, lses)
def test_merge_is_the_definition(seed, lse_a, lse_b):
    rng = np.random.default_rng(seed)
    check_merge(make_state(rng, lse_a), make_state(rng, lse_b))


@few
@given(seeds, lses, lses)
def test_merge_is_commutative_bit_for_bit(seed, lse_a, lse_b):
    rng = np.random.default_rng(seed)
    a, b = make_state(rng, lse_a), make_state(rng, lse_b)
    assert_same(merge_states(*a, *b), merge_states(*b, *a))


@few
@given(seeds, lses, lses, lses)
def test_merge_is_associative(seed, lse_a, lse_b, lse_c):
    rng = np.random.default_rng(seed)
    a, b, c = (make_state(rng, lse) for lse in (lse_a, lse_b, lse_c))

    def from_left(merge, **dtype):
        return merge(*merge(*a, *b, **dtype), *c, **dtype)

    def from_right(merge, **dtype):
        return merge(*a, *merge(*b, *c, **dtype), **dtype)

    want = from_left(reference.merge_states)
    for merge_all in (from_left, from_right):
        got = merge_all(merge_states)
        plain = merge_all(reference.merge_states, dtype=np.float32)
        for name, *x in zip(("out", "lse"), got, want, plain, strict=True):
            assert_close(*x, name=name)


@pytest.mark.parametrize("cut", [0, 1, 8, 19, 20])
def test_the_halves_of_attention_make_the_whole(rng, cut):
    q, k, v = make_qkv(rng, 2, 5, 20, 4, 2, 8)
    left = flash_attn_v2(q, k[:, :cut], v[:, :cut])
    right = flash_attn_v2(q, k[:, cut:], v[:, cut:])
    out, lse = merge_states(*left, *right)
    assert_defined((out, lse), reference.attention, q, k, v)


def test_an_empty_part_changes_nothing_whatever_it_holds(rng):
    part = make_state(rng, 2.0)
    empty = np.full_like(part[0], np.nan), np.full_like(part[1], -np.inf)
    assert_same(merge_states(*part, *empty), part)
    assert_same(merge_states(*empty, *part), part)


def test_two_empty_parts_are_empty(rng):
    empty = make_state(rng, -np.inf)
    out, lse = merge_states(*empty, *empty)
    assert (out == 0).all() and (lse == -np.inf).all()


def test_nan_in_one_row_stays_there(rng):
    a, b = make_state(rng, 0.0), make_state(rng, 1.0)
    a[0][0, 1, 1, 2] = np.nan
    b[1][1, 0, 2] = np.nan
    out, lse = merge_states(*a, *b)
    assert np.isnan(out[0, 1, 1, 2]) and np.isnan(out[1, 2, 0]).all() and np.isnan(lse[1, 0, 2])
    assert np.isnan(out).sum() == 1 + 8 and np.isnan(lse).sum() == 1


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (1, 4, 3, 59), (2, 1, 2, 256)])
def test_sizes(rng, sizes):
    check_merge(make_state(rng, 0.0, *sizes), make_state(rng, 1.0, *sizes))


@pytest.mark.parametrize("sizes", [(0, 3, 2, 8), (2, 0, 2, 8), (2, 3, 0, 8)])
def test_nothing_to_merge(rng, sizes):
    out, lse = merge_states(*make_state(rng, 0.0, *sizes), *make_state(rng, 1.0, *sizes))
    assert out.shape == sizes and lse.size == 0
