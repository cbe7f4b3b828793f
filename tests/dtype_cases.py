"""Every function of the package on inputs of one dtype, held to what `reference` says of it.

The definition is given the same rounded inputs in float64. What has the dtype of the inputs may be
off twice as far, gradients three times, as a plain program that has only arrays of that dtype
(`reference` says what it rounds). What is float32 in every case, lse and the state of linear
attention, is held to what is computed in float32. Copies are equal bit for bit.

`convert` makes a NumPy array one of the library to be tested.
"""

from functools import partial

import numpy as np
from cases import (
    assert_close,
    assert_defined,
    assert_same,
    check_cache_write,
    check_copies,
    kernel_function,
    make_cache_write,
    make_paged_cache,
    make_qkv,
    mask_options,
    pages,
    random,
    to_host,
)

import fa_numba
from fa_numba import reference
from fa_numba.kernels.flash_attn_varlen import flash_attn_varlen
from fa_numba.kernels.flash_decode import flash_decode
from fa_numba.kernels.paged_attn_decode import paged_attn_decode
from fa_numba.kv_cache import ContiguousCache, RollingCache


def same(x):
    """For the CPU engine: NumPy arrays as they are."""
    return x


def converted(options, convert):
    """A mask's options with alibi_slopes, which stay float32, in the library."""
    return {name: convert(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}


def cut(num_tokens):
    """Where four sequences begin in a packed batch; the third has no tokens."""
    return np.array([0, num_tokens // 3, num_tokens // 2, num_tokens // 2, num_tokens], np.int32)


def make_inputs(rng, shape, dtype):
    """dout, q, k, v of a shape, rounded to a dtype."""
    q, k, v = make_qkv(rng, *shape)
    return [x.astype(dtype) for x in (random(rng, *q.shape), q, k, v)]


def check_lse(lse, want):
    """It is float32 and computed in it, from inputs of any dtype."""
    lse = to_host(lse)
    assert lse.dtype == np.float32
    np.testing.assert_allclose(lse, want, rtol=1e-5, atol=1e-5)


def check_state(got, definition, *host, **mask):
    """out in the dtype of the inputs, and lse."""
    out, lse = got
    want, lse_want = definition(*host, **mask)
    plain, _ = definition(*host, **mask, dtype=host[0].dtype.type)
    assert_close(out, want, plain, name="out")
    check_lse(lse, lse_want)


def log_sum(l, m):
    l, m = to_host(l), to_host(m)
    with np.errstate(divide="ignore"):
        return m + np.log(l)


# --- attention -------------------------------------------------------------------------------


def check_attention(name, rng, dtype, convert, shape, mask):
    _, *qkv = make_inputs(rng, shape, dtype)
    mask = mask_options(mask, shape[3])
    if name == "lazy_softmax_attn":
        mask = {"causal": mask.get("causal", False)}
    got = getattr(fa_numba, name)(*map(convert, qkv), **converted(mask, convert))
    got = got if len(got) == 2 else (got[0], log_sum(*got[1:]))
    check_state(got, reference.attention, *qkv, **mask)


def check_attention_bwd(rng, dtype, convert, shape, mask):
    inputs, mask = make_inputs(rng, shape, dtype), mask_options(mask, shape[3])
    dout, *qkv = map(convert, inputs)
    options = converted(mask, convert)
    out, lse = fa_numba.flash_attn_v2(*qkv, **options)
    got = fa_numba.flash_attn_bwd(dout, *qkv, out, lse, **options)
    assert_defined(got, reference.attention_bwd, *inputs, **mask)


def check_varlen(rng, dtype, convert, shape, mask, functions=None):
    """The lesson kernels, or other functions (forward, backward) with the same arguments."""
    forward, backward = functions or (flash_attn_varlen, fa_numba.flash_attn_varlen_bwd)
    mask = mask_options(mask, shape[3])
    dout, *qkv = (x[0] for x in make_inputs(rng, (1, *shape[1:]), dtype))
    starts = cut(shape[1]), cut(shape[2])
    host = (*qkv, *starts)
    options = converted(mask, convert)
    arrays = [convert(x) for x in host]
    out, lse = forward(*arrays, **options)
    check_state((out, lse), reference.varlen_attention, *host, **mask)
    arguments = (convert(dout), *arrays[:3], out, lse, *arrays[3:])
    got = backward(*arguments, **options)
    assert_defined(got, reference.varlen_attention_bwd, dout, *host, **mask)


def check_decode(rng, dtype, convert, shape, mask, function=None):
    function = function or partial(flash_decode, num_splits=3)
    mask = mask_options(mask, shape[3])
    _, q, k, v = make_inputs(rng, shape, dtype)
    seq_lens = rng.integers(shape[2] // 2, shape[2] + 1, shape[0]).astype(np.int32)
    for b, seq_len in enumerate(seq_lens):
        k[b, seq_len:] = v[b, seq_len:] = np.nan
    host = (q, k, v, seq_lens)
    got = function(*map(convert, host), **converted(mask, convert))
    check_state(got, reference.cached_attention, *host, **mask)


def check_paged_decode(rng, dtype, convert, shape, mask, function=None):
    function = function or partial(paged_attn_decode, num_splits=2)
    mask = mask_options(mask, shape[3])
    batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim = shape
    q = random(rng, batch, seqlen_q, num_heads, head_dim).astype(dtype)
    seq_lens = rng.integers(seqlen_k // 2, seqlen_k + 1, batch)
    *caches, block_table, seq_lens = make_paged_cache(rng, seq_lens, 5, num_kv_heads, head_dim)
    host = (q, *(x.astype(dtype) for x in caches), block_table, seq_lens)
    got = function(*map(convert, host), **converted(mask, convert))
    check_state(got, reference.paged_attention, *host, **mask)


FORWARD = (
    "naive_attn",
    "lazy_softmax_attn",
    "flash_attn_v1",
    "flash_attn_v2",
    "flash_attn_v2_unsigned",
    "flash_attn_v2_4x4",
    "flash_attn_registers",
)
ATTENTION = {
    **{name: partial(check_attention, name) for name in FORWARD},
    "flash_attn_bwd": check_attention_bwd,
    "flash_attn_varlen": check_varlen,  # and its backward
    "flash_decode": check_decode,
    "paged_attn_decode": check_paged_decode,
}


# --- the rest --------------------------------------------------------------------------------


def check_softmax(name, rng, dtype, convert, shape):
    x = random(rng, shape[0] * shape[1], 3 * shape[2]).astype(dtype)
    y = getattr(fa_numba, name)(convert(x))
    assert_close(y, reference.softmax(x), reference.softmax(x, dtype=dtype), name="y")


def check_topk(name, rng, dtype, convert, shape, function=None):
    x = random(rng, shape[0] * shape[1], 3 * shape[2]).astype(dtype)
    k = min(5, x.shape[1])
    values, columns = (function or kernel_function(name))(convert(x), k)
    want, want_columns = reference.softmax_topk(x, k)
    assert_close(values, want, reference.softmax_topk(x, k, dtype=dtype)[0], name="values")
    np.testing.assert_array_equal(to_host(columns), want_columns)


def check_linear(feature_map, rng, dtype, convert, shape):
    _, q, k, v = make_inputs(rng, (*shape[:2], shape[1], *shape[3:]), dtype)
    options = {"feature_map": feature_map, "causal": True}
    arguments = [convert(x) for x in (q, k, v)]
    if feature_map == "hedgehog":
        scale = np.float32(0.5 * shape[5] ** -0.5)
        weights = [(random(rng, *x.shape[2:], 6) * scale).astype(dtype) for x in (q, k)]
        options["weights"] = weights
    want, state_want = reference.linear_attn(q, k, v, **options)
    plain, _ = reference.linear_attn(q, k, v, **options, dtype=dtype)
    _, state_plain = reference.linear_attn(q, k, v, **options, dtype=np.float32)
    if feature_map == "hedgehog":
        options["weights"] = [convert(w) for w in weights]
    # Over many tokens a recurrent state, which is all that it keeps, rounds as a plain loop does.
    for form in ("chunked", "recurrent") if shape[1] < 100 else ("chunked",):
        out, state = fa_numba.linear_attn(*arguments, **options, form=form)
        assert_close(out, want, plain, name="out")
        assert_close(state, state_want, state_plain, name="state")


def check_merge(rng, dtype, convert, shape):
    _, q, k, v = make_inputs(rng, shape, dtype)
    half = shape[2] // 2
    parts = (
        reference.attention(q, k[:, keys], v[:, keys], dtype=np.float32)
        for keys in (slice(half), slice(half, None))
    )
    host = [x for out, lse in parts for x in (out.astype(dtype), lse)]
    check_state(fa_numba.merge_states(*map(convert, host)), reference.merge_states, *host)


def check_lookup(rng, dtype, convert, shape):
    seq_lens = rng.integers(0, shape[2] + 1, shape[0] + 1)
    *caches, block_table, seq_lens = make_paged_cache(rng, seq_lens, 3, *shape[4:])
    host = (*(x.astype(dtype) for x in caches), block_table, seq_lens)
    got = fa_numba.paged_kv_lookup(*map(convert, host))
    for x, x_ref in zip(got, reference.paged_kv_lookup(*host), strict=True):
        assert_same(x, x_ref)


def check_write(rng, dtype, convert, shape):
    *tensors, slot_mapping = make_cache_write(rng, shape[2], 3, *shape[4:])
    tensors = (x.astype(dtype) for x in tensors)
    check_cache_write(fa_numba.reshape_and_cache, *map(convert, (*tensors, slot_mapping)))


def check_copy(rng, dtype, convert, shape):
    caches = (random(rng, 6, 3, *shape[4:]).astype(dtype) for _ in range(2))
    numbers = pages(5, 0, 0), pages(2, 4, 1)
    check_copies(fa_numba.copy_pages, *map(convert, (*caches, *numbers)))


def check_swap(rng, dtype, convert, shape):
    """From the library to NumPy arrays, and back."""
    here, there = ([random(rng, n, 3, *shape[4:]).astype(dtype) for _ in range(2)] for n in (6, 4))
    numbers = pages(5, 0), pages(3, 1)
    on_device = [convert(x.copy()) for x in here]
    want = reference.swap_pages(*here, *there, *numbers)
    fa_numba.swap_pages(*on_device, *there, *numbers)
    for x, x_ref in zip(there, want, strict=True):
        assert_same(x, x_ref)
    want = reference.swap_pages(*there, *here, *numbers[::-1])
    fa_numba.swap_pages(*there, *on_device, *numbers[::-1])
    for x, x_ref in zip(on_device, want, strict=True):
        assert_same(x, x_ref)


def check_cache(cache_class, rng, dtype, convert, shape):
    batch, _, seqlen_k, num_heads, num_kv_heads, head_dim = shape
    _, q, k, v = make_inputs(rng, (batch, 1, *shape[2:]), dtype)
    q_device = convert(q)
    cache = cache_class(batch, seqlen_k, num_kv_heads, head_dim, like=q_device)
    for start in range(0, seqlen_k, 4):
        new = (np.ascontiguousarray(x[:, start : start + 4]) for x in (k, v))
        cache.append(*map(convert, new))
    for x, x_ref in ((cache.k_cache, k), (cache.v_cache, v)):
        assert_same(x, x_ref)
    out, _ = flash_decode(q_device, cache.k_cache, cache.v_cache, cache.seq_lens)
    want, plain = (reference.attention(q, k, v, dtype=t)[0] for t in (np.float64, dtype))
    assert_close(out, want, plain, name="out")


OTHERS = {
    **{
        name: partial(check_softmax, name)
        for name in ("naive_softmax", "safe_softmax", "online_softmax", "softmax_registers")
    },
    **{name: partial(check_topk, name) for name in ("softmax_topk", "softmax_topk_warps")},
    **{
        f"linear_attn_{name}": partial(check_linear, name)
        for name in ("elu1", "relu", "taylor2", "hedgehog")
    },
    "merge_states": check_merge,
    "paged_kv_lookup": check_lookup,
    "reshape_and_cache": check_write,
    "copy_pages": check_copy,
    "swap_pages": check_swap,
    "ContiguousCache": partial(check_cache, ContiguousCache),
    "RollingCache": partial(check_cache, RollingCache),
}
