"""Checks of the arrays of attention, forward, backward, decoding and linear, and of softmax."""

import numpy as np

from fa_numba.checks.requirements import (
    K_AXES,
    ONE_HEAD_DIM,
    Q_AXES,
    hint_of_heads_before_tokens,
    require_axes,
    require_cache_dtypes,
    require_divisible_heads,
    require_dtype,
    require_grid,
    require_group_of_bytes,
    require_head_dim,
    require_int32,
    require_last_axis_contiguous,
    require_lengths,
    require_lse_shape,
    require_one_dtype,
    require_one_for_each,
    require_one_library,
    require_rows,
    require_same_shape,
    warn_of_heads_before_tokens,
)
from fa_numba.runtime.arrays import facts
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.linear_attn import FEATURE_MAPS, MAX_GROUP_SIZE, recurrent_by_default

DECODE_AXES = ("batch", "max_len", "num_kv_heads", "head_dim")
PACKED_Q_AXES = ("num_tokens_q", "num_heads", "head_dim")
PACKED_K_AXES = ("num_tokens_k", "num_kv_heads", "head_dim")


# Softmax


def check_rows(x):
    """Raise unless `x` is a matrix whose rows a softmax kernel can take."""
    x = facts(x)
    require_one_library(x=x)
    require_one_dtype(x=x)
    require_rows(("num_rows", "num_cols"), x=x)


# Forward


def check_qkv(
    q, k, v, *, names=("k", "v"), axes=K_AXES, scales=(None, None), head_dims=ONE_HEAD_DIM
):
    """Raise unless q, k, v are the inputs of one attention problem.

    `names` and `axes` are those of keys and values, where a function calls them otherwise;
    `scales` those of a cache of bytes; `head_dims` those that the function takes.
    """
    q, k, v = facts(q), facts(k), facts(v)
    k_name, v_name = names
    require_one_library(**{"q": q, k_name: k, v_name: v})
    if k_name == "k_cache":
        require_cache_dtypes(q, k, v, *scales)
    else:
        require_one_dtype(**{"q": q, k_name: k, v_name: v})
    require_rows(Q_AXES, q=q)
    require_rows(axes, **{k_name: k, v_name: v})
    batch, _, num_heads, _ = q.shape
    require_grid(batch, num_heads)
    both = f"{k_name} and {v_name}" if k.shape[:3] == v.shape[:3] else k_name
    if k.shape[0] != batch:
        raise ValueError(f"{both} must have the batch of q, {batch}, got {k.shape[0]}")
    head_dims.check(**{"q": q, k_name: k, v_name: v})
    hint = hint_of_heads_before_tokens(q, k, k_name)
    require_divisible_heads(num_heads, k.shape[2], both, hint)
    warn_of_heads_before_tokens(k_name, k)


def check_block_mask(block_mask, q, k, block_m, block_n):
    """Raise unless `block_mask`, beside q and k, has a bool for every tile of scores."""
    block_mask, q, k = facts(block_mask), facts(q), facts(k)
    require_one_library(q=q, block_mask=block_mask)
    if block_mask.dtype != "bool":
        raise TypeError(f"block_mask must be bool, got {block_mask.dtype}")
    require_axes("block_mask", block_mask, ("num_m_tiles", "num_n_tiles"))
    num_tiles = ceil_div(q.shape[1], block_m), ceil_div(k.shape[1], block_n)
    if block_mask.shape != num_tiles:
        raise ValueError(
            f"block_mask must have shape (num_m_tiles, num_n_tiles) = {num_tiles} for {block_m=} "
            f"and {block_n=}, got {block_mask.shape}"
        )


def check_states(out_a, lse_a, out_b, lse_b):
    """Raise unless these are two partial results for the same queries."""
    out_a, lse_a, out_b, lse_b = facts(out_a), facts(lse_a), facts(out_b), facts(lse_b)
    require_one_library(out_a=out_a, lse_a=lse_a, out_b=out_b, lse_b=lse_b)
    require_one_dtype(out_a=out_a, out_b=out_b)
    require_rows(Q_AXES, out_a=out_a, out_b=out_b)
    require_same_shape("out_b", out_b, "out_a", out_a)
    batch, seqlen_q, num_heads, head_dim = out_a.shape
    require_head_dim("out_a", head_dim)
    require_grid(batch, num_heads)
    for name, x in (("lse_a", lse_a), ("lse_b", lse_b)):
        require_dtype(name, x, "float32")
        require_lse_shape(name, x, (batch, num_heads, seqlen_q))


# Backward


def check_bwd(dout, q, k, v, out, lse, *, head_dims=ONE_HEAD_DIM):
    """Raise unless these are a forward pass's inputs and results, and the gradient of `out`."""
    dout, q, k, v, out, lse = map(facts, (dout, q, k, v, out, lse))
    check_qkv(q, k, v, head_dims=head_dims)
    _require_results(dout, q, k, v, out, lse)
    batch, seqlen_q, num_heads, _ = q.shape
    require_lse_shape("lse", lse, (batch, num_heads, seqlen_q))


def _require_results(dout, q, k, v, out, lse):
    """Raise unless dout and out are like q, with the head_dim of v, and lse is float32."""
    require_one_library(dout=dout, q=q, k=k, v=v, out=out, lse=lse)
    require_one_dtype(dout=dout, q=q, out=out)
    for name, x in (("dout", dout), ("out", out)):
        if k.shape == v.shape:
            require_same_shape(name, x, "q", q)
        elif x.shape != (*q.shape[:-1], v.shape[-1]):
            raise ValueError(
                f"{name} must have the shape of q, {q.shape}, but for the head_dim of v, "
                f"{v.shape[-1]}, got {x.shape}"
            )
        require_last_axis_contiguous(name, x)
    require_dtype("lse", lse, "float32")


# Packed sequences


def check_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, *, head_dims=ONE_HEAD_DIM):
    """Raise unless q, k, v are packed sequences, and cu_seqlens_* say where each begins and ends.

    The numbers in cu_seqlens_* are read only from NumPy arrays; reading a GPU array waits for it.
    """
    q, k, v, cu_seqlens_q, cu_seqlens_k = map(facts, (q, k, v, cu_seqlens_q, cu_seqlens_k))
    require_one_library(q=q, k=k, v=v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    require_one_dtype(q=q, k=k, v=v)
    require_rows(PACKED_Q_AXES, q=q)
    require_rows(PACKED_K_AXES, k=k, v=v)
    num_tokens_q, num_heads, _ = q.shape
    require_grid(0, num_heads)
    head_dims.check(q=q, k=k, v=v)
    require_divisible_heads(num_heads, k.shape[1], "k and v")
    require_int32(("batch + 1",), cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    require_same_shape("cu_seqlens_k", cu_seqlens_k, "cu_seqlens_q", cu_seqlens_q)
    require_starts("cu_seqlens_q", cu_seqlens_q, "q", num_tokens_q)
    require_starts("cu_seqlens_k", cu_seqlens_k, "k", k.shape[0])


def require_starts(name, starts, x_name, num_tokens):
    """Raise unless `starts` cuts the num_tokens tokens of `x_name` into sequences."""
    needed = 2 if num_tokens else 1
    if starts.shape[0] < needed:
        raise ValueError(
            f"{name} must have batch + 1 numbers, at least {needed} for the {num_tokens} tokens "
            f"of {x_name}, got {starts.shape[0]}"
        )
    if starts.library != "numpy":
        return
    starts = starts.array
    if starts[0] != 0:
        raise ValueError(f"{name}[0] must be 0, where the first sequence begins, got {starts[0]}")
    for b in np.flatnonzero(starts[1:] < starts[:-1])[:1]:
        raise ValueError(
            f"{name} must not decrease, got {name}[{b}] = {starts[b]} and "
            f"{name}[{b + 1}] = {starts[b + 1]}"
        )
    if starts[-1] != num_tokens:
        raise ValueError(
            f"{name} must end with the number of tokens of {x_name}, {num_tokens}, got {starts[-1]}"
        )


def check_varlen_bwd(
    dout, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, *, head_dims=ONE_HEAD_DIM
):
    """Raise unless these are a packed forward pass's inputs, results and gradient of `out`.

    As `check_bwd` and `check_varlen`.
    """
    dout, q, k, v, out, lse = map(facts, (dout, q, k, v, out, lse))
    check_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, head_dims=head_dims)
    _require_results(dout, q, k, v, out, lse)
    num_tokens_q, num_heads, _ = q.shape
    if lse.shape != (num_heads, num_tokens_q):
        raise ValueError(
            f"lse must have shape (num_heads, num_tokens_q) = {(num_heads, num_tokens_q)}, "
            f"got {lse.shape}"
        )


# Decoding; pages are in cache.py


def check_decode(
    q, k_cache, v_cache, seq_lens, k_scale=None, v_scale=None, *, head_dims=ONE_HEAD_DIM
):
    """Raise unless queries, caches and lengths are of the same sequences, and the lengths fit.

    The lengths are read only from a NumPy array; reading a GPU array waits for it.
    """
    q, k_cache, v_cache, seq_lens = map(facts, (q, k_cache, v_cache, seq_lens))
    scales = k_scale, v_scale
    check_decode_layouts(q, k_cache, v_cache, seq_lens, *scales, head_dims=head_dims)
    if seq_lens.library == "numpy":
        check_decode_contents(seq_lens.array, k_cache)


def check_decode_layouts(
    q, k_cache, v_cache, seq_lens, k_scale=None, v_scale=None, *, head_dims=ONE_HEAD_DIM
):
    """Make those checks of `check_decode` that read no length."""
    q, k_cache, v_cache, seq_lens = map(facts, (q, k_cache, v_cache, seq_lens))
    names, scales = ("k_cache", "v_cache"), (k_scale, v_scale)
    like = {"names": names, "axes": DECODE_AXES, "scales": scales}
    check_qkv(q, k_cache, v_cache, **like, head_dims=head_dims)
    require_one_library(q=q, seq_lens=seq_lens)
    require_int32(("batch",), seq_lens=seq_lens)
    require_group_of_bytes(q, k_cache)
    require_one_for_each("seq_lens", seq_lens, "one length", k_cache.shape[0], "sequences of q")


def check_decode_contents(seq_lens, k_cache):
    """Make those checks of `check_decode` that read the lengths, a NumPy array."""
    require_lengths(seq_lens, "max_len", k_cache.shape[1])


# Linear attention


def check_feature_map(feature_map, weights, q, k):
    """Return the weights of a feature map, (w_q, w_k); (None, None) for a map without weights."""
    if not isinstance(feature_map, str) or feature_map not in FEATURE_MAPS:
        *others, last = (f'"{name}"' for name in FEATURE_MAPS)
        raise ValueError(f"feature_map must be {', '.join(others)} or {last}, got {feature_map!r}")
    if feature_map != "hedgehog":
        if weights is not None:
            raise ValueError(
                f"weights must be None for {feature_map=}, got {type(weights).__name__}: "
                'they are for feature_map="hedgehog"'
            )
        return None, None
    if not isinstance(weights, (tuple, list)) or len(weights) != 2:
        raise TypeError(f"weights must be a pair (w_q, w_k), got {type(weights).__name__}")
    q, k, w_q, w_k = map(facts, (q, k, *weights))
    require_one_library(q=q, w_q=w_q, w_k=w_k)
    require_one_dtype(q=q, w_q=w_q, w_k=w_k)
    for name, w, heads, x in (("w_q", w_q, "num_heads", q), ("w_k", w_k, "num_kv_heads", k)):
        require_axes(name, w, (heads, "head_dim", "num_features"))
        require_last_axis_contiguous(name, w)
        if w.shape[:2] != x.shape[2:]:
            raise ValueError(
                f"{name} must have ({heads}, head_dim) = {x.shape[2:]} before its features, "
                f"got shape {w.shape}"
            )
    if w_q.shape[2] != w_k.shape[2] or w_q.shape[2] == 0:
        raise ValueError(
            "w_q and w_k must have equally many features, at least 1, "
            f"got {w_q.shape[2]} and {w_k.shape[2]}"
        )
    return tuple(weights)


def check_linear_form(form, causal, q, k) -> str:
    """Return how to compute linear attention, "recurrent" or "chunked"; choose for None."""
    if form is not None and not (isinstance(form, str) and form in ("recurrent", "chunked")):
        raise ValueError(f'form must be "recurrent", "chunked" or None, got {form!r}')
    seqlen_q, seqlen_k = q.shape[1], k.shape[1]
    if causal and seqlen_q != seqlen_k:
        raise ValueError(
            "q and k must have one length where causal=True: keys before them are seen through "
            f"state, got {seqlen_q=} and {seqlen_k=}"
        )
    group_size = q.shape[2] // k.shape[2]
    if form == "recurrent":
        if not causal:
            raise ValueError('form="recurrent" must have causal=True, got causal=False')
        if group_size > MAX_GROUP_SIZE:
            raise ValueError(
                f'form="recurrent" must have num_heads / num_kv_heads of at most {MAX_GROUP_SIZE}, '
                f"which a thread keeps, got {group_size}"
            )
    if form is None:
        return "recurrent" if recurrent_by_default(causal, seqlen_q, group_size) else "chunked"
    return form


def check_state(state, q, shape):
    """Raise unless `state` is one that linear attention of this shape has returned."""
    state, q = facts(state), facts(q)
    require_one_library(q=q, state=state)
    require_dtype("state", state, "float32")
    if state.shape != shape:
        raise ValueError(
            f"state must have shape (batch, num_kv_heads, feature_dim, head_dim + 1) = {shape}, "
            f"got {state.shape}"
        )
    require_last_axis_contiguous("state", state)
