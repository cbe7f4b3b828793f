"""The same bits, of every function that returns arrays: from run to run, and for any strides."""

import functools

import numpy as np
import pytest
from cases import (
    MASKS,
    assert_equal,
    each_mask,
    each_shape,
    kernel_function,
    make_paged_cache,
    make_qkv,
    mask_options,
    random,
    thorough,
)

import fa_numba
from fa_numba.kernels.flash_attn_varlen import flash_attn_varlen

pytestmark = pytest.mark.usefixtures("checked")

ATTENTION = ("naive_attn", "lazy_softmax_attn", "flash_attn_v1", "flash_attn_v2")
LADDER = ("flash_attn_v2_unsigned", "flash_attn_v2_4x4", "flash_attn_registers")
SOFTMAX = ("naive_softmax", "safe_softmax", "online_softmax")
NAMES = (*ATTENTION, *LADDER, *SOFTMAX, *"""
softmax_registers softmax_topk softmax_topk_warps flash_attn_bwd flash_attn_bwd_registers
flash_attn_varlen flash_attn_varlen_bwd linear_attn flash_decode mla_decode merge_states
paged_kv_lookup paged_attn_decode""".split())  # fmt: skip
each_function = pytest.mark.parametrize("name", NAMES)
STARTS = [np.array(starts, np.int32) for starts in ([0, 4, 4, 11], [0, 6, 9, 13])]


@functools.cache
def calls():
    """The arguments of each function, and its options."""
    rng, head_dim = np.random.default_rng(0), 7
    q, k, v = make_qkv(rng, 2, 11, 13, 4, 2, head_dim)
    dout, lengths = random(rng, *q.shape), np.array([13, 6], np.int32)
    causal = {"causal": True}
    made = {name: ((q, k, v), causal) for name in (*ATTENTION, *LADDER)}
    made |= {name: ((random(rng, 5, 140),), {}) for name in SOFTMAX}
    odd = random(rng, 5, 141)  # not of whole packets: those are summed in another order
    out, lse = fa_numba.flash_attn_v2(q, k, v, causal=True)
    packed = [x[0] for x in (q, k, v)]
    some = flash_attn_varlen(*packed, *STARTS, causal=True)
    paged = make_paged_cache(rng, [9, 4], 3, 2, head_dim)
    made |= {
        "softmax_registers": ((odd,), {}),
        "softmax_topk": ((random(rng, 5, 140),), {"k": 6}),
        "softmax_topk_warps": ((odd,), {"k": 6}),
        "flash_attn_bwd": ((dout, q, k, v, out, lse), causal),
        "flash_attn_bwd_registers": ((dout, q, k, v, out, lse), causal | {"deterministic": True}),
        "flash_attn_varlen": ((*packed, *STARTS), causal),
        "flash_attn_varlen_bwd": ((dout[0], *packed, *some, *STARTS), causal),
        "linear_attn": ((q, k[:, :11], v[:, :11]), causal),
        "flash_decode": ((q, k, v, lengths), causal | {"num_splits": 3}),
        "mla_decode": (
            (q, k[:, :, 0], lengths),
            causal | {"num_splits": 3, "softmax_scale": 0.3, "latent_dim": head_dim - 1},
        ),
        "merge_states": ((out, lse, dout, random(rng, *lse.shape)), {}),
        "paged_kv_lookup": (paged, {}),
        "paged_attn_decode": ((q[:, :2], *paged), causal | {"num_splits": 2}),
    }
    assert made.keys() == set(NAMES)
    return made


def results(name, args, options):
    got = kernel_function(name)(*args, **options)
    return got if isinstance(got, tuple) else (got,)


def with_gaps(x):
    """A view that is equal to x, with rows, heads and tokens in between that are not looked at."""
    nobody = np.nan if x.dtype.kind == "f" else -7
    larger = np.full([2 * n for n in x.shape[:-1]] + [x.shape[-1] + 3], nobody, x.dtype)
    view = larger[tuple(slice(None, None, 2) for _ in x.shape[:-1]) + (slice(1, x.shape[-1] + 1),)]
    view[...] = x
    return view


@each_function
def test_runs_and_strides_do_not_change_a_bit_and_inputs_are_left_alone(name):
    args, options = calls()[name]
    views = [with_gaps(x) for x in args]
    for view in views:
        view.flags.writeable = False
    first = results(name, args, options)
    assert_equal(results(name, args, options), first)
    assert_equal(results(name, views, options), first)


def check_unsigned(q, k, v, **options):
    want = fa_numba.flash_attn_v2(q, k, v, **options)
    got = fa_numba.flash_attn_v2_unsigned(q, k, v, **options)
    assert_equal(got, want)


@each_mask
@each_shape
def test_unsigned_indices_are_those_of_flash_attn_v2(rng, shape, causal):
    check_unsigned(*make_qkv(rng, *shape.sizes), causal=causal, block_m=8, block_n=8)


@pytest.mark.parametrize("mask", [*MASKS.values(), {"dropout_p": 0.4}], ids=[*MASKS, "dropout"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.few(lambda mask, dtype: [mask, dtype])
def test_unsigned_indices_under_a_mask(rng, mask, dtype):
    arrays = (x.astype(dtype) for x in make_qkv(rng, 2, 21, 37, 4, 2, 9))
    check_unsigned(*arrays, **mask_options(mask, 4), block_m=4, block_n=8)


@pytest.mark.parametrize("head_dim", [1, thorough(59), thorough(111), 256])
def test_packed_sequences_of_any_head_dim_are_those_of_flash_attn_v2(rng, head_dim):
    q, k, v = make_qkv(rng, 1, 11, 13, 4, 2, head_dim)
    dout = random(rng, *q.shape)
    out, lse = fa_numba.flash_attn_v2(q, k, v, causal=True)
    want = fa_numba.flash_attn_bwd(dout, q, k, v, out, lse, causal=True)
    packed, starts = [x[0] for x in (q, k, v)], [np.array([0, n], np.int32) for n in (11, 13)]
    some = flash_attn_varlen(*packed, *starts, causal=True)
    np.testing.assert_array_equal(some[0], out[0])
    np.testing.assert_array_equal(some[1], lse[0])
    got = fa_numba.flash_attn_varlen_bwd(dout[0], *packed, *some, *starts, causal=True)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_array_equal(x, y[0])
