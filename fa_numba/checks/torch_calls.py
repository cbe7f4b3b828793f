"""Arguments of fa_numba.torch: the values that PyTorch or flash-attention takes and we refuse.

The operators below check shapes and dtypes of arguments that have the same name there. This is the
only file of the room that imports PyTorch; `fa_numba.checks` does not import it.
"""

import importlib.util
import inspect
from typing import NamedTuple

import torch

from fa_numba.checks import argument_names
from fa_numba.checks.requirements import (
    MAX_WIDE_HEAD_DIM,
    require_divisible_heads,
    require_dtype,
    require_grid,
    require_head_dim,
    require_one_dtype,
    require_one_for_each,
)
from fa_numba.checks.values import check_flag, check_window_size, integer, require_number

DEVICES = ("cpu", "cuda")
NUM_AXES = {"q": 4, "k_cache": 4, "v_cache": 4, "k": 4, "v": 4}
NUM_AXES |= {"cache_seqlens": 1, "block_table": 2, "s_aux": 1}
INDICES = ("cache_seqlens", "block_table")
MASKS = "a boolean mask of keys, of shape (batch, 1, 1, seqlen_k), or that and causal"
OTHER_MASKS = (
    "flash_attn_varlen_func attends within sequences of different lengths, flash_attn_func has "
    "causal, window_size, softcap, alibi_slopes"
)
NO_ROTARY = "rotate q and k before the call"
KNOWN_FLOATS = {torch.float32, torch.float16}
if importlib.util.find_spec("ml_dtypes") is not None:
    KNOWN_FLOATS.add(torch.bfloat16)
LARGEST_FLOAT32, SMALLEST_FLOAT32 = torch.finfo(torch.float32).max, 2.0**-149


# Shared by all functions


def takes_no_other_names(function):
    """Show a function's signature without **other_names, which it passes to `refuse_other_names`.

    A wrapper that looks for unknown names would take 0.4 µs of every call.
    """
    signature = inspect.signature(function)
    known = [x for x in signature.parameters.values() if x.kind is not x.VAR_KEYWORD]
    function.__signature__ = signature.replace(parameters=known)
    return function


def refuse_other_names(function, other_names):
    """Raise for arguments that a function does not have. The error names the right one."""
    known = inspect.signature(function).parameters
    name, table = next(iter(other_names)), argument_names.OTHER_NAMES_IN_TORCH
    raise TypeError(argument_names.message_for(function.__name__, name, known, table))


def check_tensors(**named):
    """Raise unless all arguments are dense tensors on one device that kernels can use."""
    for name, x in named.items():
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} must be a PyTorch tensor, got {type(x).__name__}")
        if x.layout != torch.strided:
            raise TypeError(f"{name} must be a dense tensor, got one of layout {x.layout}")
        if x.device.type not in DEVICES:
            raise ValueError(f"{name} must be on a CUDA GPU or in CPU memory, got {x.device}")
    if len({x.device for x in named.values()}) > 1:
        got = ", ".join([f"{name}: {x.device}" for name, x in named.items()])
        raise ValueError(f"{', '.join(named)} must be on one device, got {got}")


class _Dtype(NamedTuple):
    """A tensor's dtype by its name in NumPy, for `fa_numba.checks.requirements`."""

    dtype: str
    library: str = "torch"


def _dtype_of(x):
    return _Dtype(str(x.dtype).removeprefix("torch."))


def check_floats(**named):
    """Raise unless all tensors have one dtype, one that kernels take."""
    dtypes = {x.dtype for x in named.values()}
    if len(dtypes) > 1 or not dtypes <= KNOWN_FLOATS:
        require_one_dtype(**{name: _dtype_of(x) for name, x in named.items()})


def check_int32(**named):
    """Raise unless all tensors are int32."""
    for name, x in named.items():
        if x.dtype != torch.int32:
            require_dtype(name, _dtype_of(x), "int32")


def check_flags(**named):
    """Raise unless all arguments are True or False."""
    for name, flag in named.items():
        check_flag(name, flag)


def _check_scale(name, scale):
    if scale is None:
        return
    require_number(name, scale)
    if not abs(scale) <= LARGEST_FLOAT32:
        raise ValueError(f"{name} must be finite in float32, got {scale}")


def _check_dropout(dropout_p):
    require_number("dropout_p", dropout_p)
    if not 0 <= dropout_p < 1:
        raise ValueError(f"dropout_p must be at least 0 and less than 1, got {dropout_p}")


def refuse_captured_dropout(q, dropout_p):
    """Raise where a CUDA graph is being captured: each replay would drop the same entries."""
    if dropout_p and q.is_cuda and torch.cuda.is_current_stream_capturing():
        raise ValueError(
            f"dropout_p must be 0 while a CUDA graph is captured, got {dropout_p}: the seed is a "
            "number in the graph, so every replay would drop the same entries"
        )


def refuse_second_derivatives():
    """Raise: gradients of gradients are not computed."""
    raise RuntimeError(
        "fa_numba.torch computes no gradients of gradients: it was asked for one by create_graph="
        "True; torch.nn.attention.sdpa_kernel(SDPBackend.MATH) lets PyTorch's own "
        "scaled_dot_product_attention compute them"
    )


def refuse_transforms():
    """Raise: torch.func cannot transform an operator whose gradients are Python."""
    raise RuntimeError(
        "fa_numba.torch computes no gradients by torch.func.grad, vjp, jvp, jacrev or hessian: "
        "call backward() or torch.autograd.grad; torch.nn.functional.scaled_dot_product_attention "
        "takes these transforms"
    )


# PyTorch's function


def check_sdpa_options(attn_mask, dropout_p, is_causal, scale, enable_gqa):
    """Raise for options of scaled_dot_product_attention that we lack."""
    if attn_mask is not None:
        if not isinstance(attn_mask, torch.Tensor) or attn_mask.dtype != torch.bool:
            refuse_mask(attn_mask)
        if is_causal is True:
            raise ValueError("is_causal must be False with attn_mask, got True")
        if dropout_p:
            raise ValueError(f"dropout_p must be 0 with attn_mask, got {dropout_p}")
    _check_dropout(dropout_p)
    check_flags(is_causal=is_causal, enable_gqa=enable_gqa)
    _check_scale("scale", scale)


def check_sdpa(query, key, value, enable_gqa):
    """Raise unless query, key and value are the inputs of one attention problem."""
    named = {"query": query, "key": key, "value": value}
    for name, x in named.items():
        if x.ndim not in (3, 4) or x.ndim != query.ndim:
            raise ValueError(
                "query, key, value must all have axes (batch, num_heads, seqlen, head_dim), or all "
                f"(batch, seqlen, head_dim), got {name} of shape {tuple(x.shape)}"
            )
    check_floats(**named)
    if value.shape[:-1] != key.shape[:-1]:
        raise ValueError(
            f"value must have the shape of key, {tuple(key.shape)}, but for the last axis, "
            f"got {tuple(value.shape)}"
        )
    for axis, what in ((0, "batch"), (-1, "head_dim")):
        if key.shape[axis] != query.shape[axis]:
            both = "key and value" if key.shape == value.shape or axis == 0 else "key"
            raise ValueError(
                f"{both} must have the {what} of query, {query.shape[axis]}, got {key.shape[axis]}"
            )
    _check_head_dims(query=query, value=value)
    if query.ndim == 4 and query.shape[1] == 0:
        raise ValueError(f"query must have at least one head, got shape {tuple(query.shape)}")
    if query.ndim == 3 or key.shape[1] == query.shape[1]:
        return
    num_heads, num_kv_heads = query.shape[1], key.shape[1]
    if not enable_gqa:
        raise ValueError(
            f"key and value must have the heads of query, {num_heads}, unless enable_gqa=True, "
            f"got {num_kv_heads}"
        )
    require_divisible_heads(num_heads, num_kv_heads, "key and value", q_name="query")


def _check_head_dims(**named):
    """Raise unless some kernel may take so long a last axis."""
    for name, x in named.items():
        require_head_dim(name, x.shape[-1], MAX_WIDE_HEAD_DIM)


def check_mask(attn_mask, query, key):
    """Return a mask with axes (batch, seqlen_q or 1, seqlen_k), or raise if that is impossible."""
    batch, seqlen_q, seqlen_k = query.shape[0], query.shape[-2], key.shape[-2]
    mask = attn_mask.unsqueeze(1) if attn_mask.ndim == query.ndim == 3 else attn_mask
    if not 2 <= mask.ndim <= 4:
        refuse_mask(attn_mask)
    mask = mask[(None,) * (4 - mask.ndim)]
    if mask.stride(1) == 0:
        mask = mask[:, :1]
    sizes = zip(mask.shape, (batch, 1, seqlen_q, seqlen_k), strict=True)
    if any(size != 1 and size != wanted for size, wanted in sizes):  # `in` is wrong when traced
        refuse_mask(attn_mask)
    return mask[:, 0].expand(batch, mask.shape[2], seqlen_k)


def refuse_mask(attn_mask):
    """Raise for a mask that padding and causal do not make."""
    got = f"a {type(attn_mask).__name__}"
    if isinstance(attn_mask, torch.Tensor):
        got = f"one of shape {tuple(attn_mask.shape)} and dtype {attn_mask.dtype}"
    raise ValueError(f"attn_mask must be None, or {MASKS}, got {got}: {OTHER_MASKS}")


# flash-attention's functions


def check_flash_options(softmax_scale, softcap, window_size):
    """Raise for options of flash-attention's functions that mean nothing."""
    check_window_size(window_size)
    require_number("softcap", softcap)
    if not (softcap == 0 or SMALLEST_FLOAT32 <= softcap <= LARGEST_FLOAT32):
        raise ValueError(f"softcap must be 0, or positive and finite in float32, got {softcap}")
    _check_scale("softmax_scale", softmax_scale)


def check_slopes(alibi_slopes, q):
    """Return flash-attention's alibi_slopes as a vector, or raise if we cannot take them."""
    if alibi_slopes is None:
        return None
    if not isinstance(alibi_slopes, torch.Tensor):
        raise TypeError(f"alibi_slopes must be a tensor or None, got {type(alibi_slopes).__name__}")
    num_heads = q.shape[-2]
    if tuple(alibi_slopes.shape) not in ((num_heads,), (1, num_heads)):
        raise ValueError(
            f"alibi_slopes must have shape (num_heads,) = ({num_heads},), the same for all "
            f"sequences, got {tuple(alibi_slopes.shape)}"
        )
    alibi_slopes = alibi_slopes.reshape(num_heads)
    if alibi_slopes.dtype != torch.float32:
        require_dtype("alibi_slopes", _dtype_of(alibi_slopes), "float32")
    if alibi_slopes.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            "alibi_slopes must not require a gradient: fa_numba computes none; pass "
            "alibi_slopes.detach()"
        )
    return alibi_slopes


def check_sinks(s_aux, q):
    """Raise unless s_aux is a number for each head of q."""
    check_tensors(q=q, s_aux=s_aux)
    check_floats(s_aux=s_aux)
    num_heads = q.shape[-2]
    if tuple(s_aux.shape) != (num_heads,):
        raise ValueError(
            f"s_aux must have shape (num_heads,) = ({num_heads},), got {tuple(s_aux.shape)}"
        )


def check_flash_dropout(dropout_p, return_attn_probs):
    """Raise for dropout in flash_attn_func that means nothing or would have to be returned."""
    _check_dropout(dropout_p)
    if dropout_p and return_attn_probs:
        raise ValueError(
            f"return_attn_probs must be False with {dropout_p=}, got True: the probabilities and "
            "their dropout are never stored"
        )


def refuse_packed_dropout(dropout_p):
    """Raise for dropout in flash_attn_varlen_func."""
    require_number("dropout_p", dropout_p)
    if dropout_p != 0:
        raise ValueError(
            f"dropout_p must be 0, got {dropout_p}: packed sequences have no dropout; "
            "flash_attn_func has it, for sequences of one length"
        )


def refuse_block_table(block_table):
    """Raise for a block table in flash_attn_varlen_func."""
    if block_table is not None:
        raise ValueError(
            f"block_table must be None, got a {type(block_table).__name__}: "
            "flash_attn_with_kvcache attends to pages, with one number of queries for all sequences"
        )


def check_kvcache_options(rotary_cos, rotary_sin, cache_batch_idx, cache_leftpad, num_splits):
    """Raise for options of flash_attn_with_kvcache that we lack."""
    refused = (
        ("rotary_cos", rotary_cos, NO_ROTARY),
        ("rotary_sin", rotary_sin, NO_ROTARY),
        ("cache_batch_idx", cache_batch_idx, "pass k_cache[cache_batch_idx], or pages"),
        ("cache_leftpad", cache_leftpad, "each sequence begins at token 0 of its cache"),
    )
    for name, x, hint in refused:
        if x is not None:
            raise ValueError(f"{name} must be None, got a {type(x).__name__}: {hint}")
    if num_splits != 0:
        raise ValueError(f"num_splits must be 0, got {num_splits}: the kernels choose it")


def caches_of_bytes(k_cache, v_cache, k, k_scale, v_scale):
    """Return the caches, those of float8_e4m3fn as uint8, and the scales of bytes by name, or {}.

    Shapes and dtypes of caches and scales are checked later.
    """
    caches = [_as_bytes(x) for x in (k_cache, v_cache)]
    scales = {"k_scale": k_scale, "v_scale": v_scale}
    bytes = any(getattr(x, "dtype", None) == torch.uint8 for x in caches)
    if not bytes and k_scale is v_scale is None:
        return *caches, {}
    for name, x in scales.items():
        if not isinstance(x, torch.Tensor):
            raise TypeError(
                f"{name} must be a float32 tensor, because k_cache and v_cache are float8_e4m3fn "
                f"or uint8, got {type(x).__name__}"
            )
    for name, x in zip(("k_cache", "v_cache"), caches, strict=True):
        if isinstance(x, torch.Tensor) and x.dtype != torch.uint8:
            raise TypeError(
                f"{name} must be float8_e4m3fn, or uint8 with its bytes, because k_scale and "
                f"v_scale are given, got {_dtype_of(x).dtype}"
            )
    if k is not None:
        raise ValueError(
            "k must be None, because the caches are of 8 bits, got a "
            f"{type(k).__name__}: fa_numba.reshape_and_cache writes them"
        )
    return *caches, scales


def _as_bytes(x):
    is_e4m3 = isinstance(x, torch.Tensor) and x.dtype == torch.float8_e4m3fn
    return x.view(torch.uint8) if is_e4m3 else x


def check_kvcache(q, k_cache, v_cache, k, v, cache_seqlens, block_table, s_aux, **scales):
    """Raise unless new tokens fit the caches, and nothing requires a gradient.

    k and v are written to the caches after it, so it makes all checks of the decoding too.
    """
    named = {"q": q, "k_cache": k_cache, "v_cache": v_cache}
    if k is not None or v is not None:
        named |= {"k": k, "v": v}
    if isinstance(cache_seqlens, torch.Tensor):
        named["cache_seqlens"] = cache_seqlens
    if block_table is not None:
        named["block_table"] = block_table
    check_tensors(**named, **scales)
    check_floats(q=q)
    sinks = {} if s_aux is None else {"s_aux": s_aux}
    if sinks:
        check_sinks(s_aux, q)
    for name, x in (named | sinks).items():
        if x.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                f"{name} must not require a gradient, because flash_attn_with_kvcache computes "
                f"none: call flash_attn_func, or pass {name}.detach()"
            )
        if x.ndim != NUM_AXES[name]:
            raise ValueError(f"{name} must have {NUM_AXES[name]} axes, got {tuple(x.shape)}")
    check_int32(**{name: x for name, x in named.items() if name in INDICES})
    if not scales:
        check_floats(**{name: x for name, x in named.items() if name not in INDICES})
    if v_cache.shape[:3] != k_cache.shape[:3]:
        raise ValueError(
            f"v_cache must have the shape of k_cache, {tuple(k_cache.shape)}, but for the last "
            f"axis, got {tuple(v_cache.shape)}"
        )
    if k_cache.shape[3] != q.shape[3]:
        raise ValueError(
            f"k_cache must have the head_dim of q, {q.shape[3]}, got {k_cache.shape[3]}"
        )
    _check_head_dims(q=q, v_cache=v_cache)
    batch, _, num_heads, _ = q.shape
    require_grid(batch, num_heads)
    for name in INDICES:
        if name in named:
            require_one_for_each(name, named[name], "one row", batch, "sequences of q")
    if block_table is None and k_cache.shape[0] != batch:
        raise ValueError(
            f"k_cache and v_cache must have the batch of q, {batch}, got {k_cache.shape[0]}"
        )
    require_divisible_heads(num_heads, k_cache.shape[2], "k_cache and v_cache")
    if k is not None:
        if k_cache is v_cache:
            raise ValueError("v_cache must be another tensor than k_cache, got one for both")
        _check_new_tokens(batch, k_cache, v_cache, k, v, cache_seqlens)
    new = 0 if k is None else k.shape[1]
    room = (1 if block_table is None else block_table.shape[1]) * k_cache.shape[1] - new
    if cache_seqlens is not None and "cache_seqlens" not in named:
        integer("cache_seqlens", cache_seqlens, at_least=0)
        _check_length("cache_seqlens", cache_seqlens, room)
    if q.device.type == "cpu" and not torch.compiler.is_compiling():
        _check_contents(q, k_cache, cache_seqlens, block_table, room, new)


def _check_length(name, length, room):
    if not 0 <= length <= room:
        raise ValueError(
            f"{name} must be from 0 to {room}, the tokens of a cache without those of k, "
            f"got {length}"
        )


def _check_contents(q, k_cache, cache_seqlens, block_table, room, new):
    """Raise for lengths and pages outside of the caches, before anything is written to them.

    Not for CUDA tensors: reading their numbers waits for the GPU.
    """
    batch, (num_pages, page_size) = q.shape[0], k_cache.shape[:2]
    lengths = [room if cache_seqlens is None else cache_seqlens] * batch
    try:
        if isinstance(cache_seqlens, torch.Tensor):
            lengths = cache_seqlens.tolist()
        pages = [[]] * batch if block_table is None else block_table.tolist()
    except RuntimeError:  # tensors without numbers: fake ones, or those of torch.vmap
        return
    for b, (length, row) in enumerate(zip(lengths, pages, strict=True)):
        _check_length(f"cache_seqlens[{b}]", length, room)
        for i, page in enumerate(row[: -(-(length + new) // max(page_size, 1))]):
            if not 0 <= page < num_pages:
                raise ValueError(
                    f"block_table[{b}, {i}] must be a page from 0 to {num_pages - 1}, because "
                    f"sequence {b} has {length + new} tokens, got {page}"
                )


def _check_new_tokens(batch, k_cache, v_cache, k, v, cache_seqlens):
    """Raise unless k and v can be written to the caches."""
    if cache_seqlens is None:
        raise ValueError("cache_seqlens must say where k and v go in the caches, got None")
    if v.shape[:3] != k.shape[:3]:
        raise ValueError(
            f"v must have the shape of k, {tuple(k.shape)}, but for the last axis, "
            f"got {tuple(v.shape)}"
        )
    for name, x, cache in (("k", k, k_cache), ("v", v, v_cache)):
        if (x.shape[0], *x.shape[2:]) != (batch, *cache.shape[2:]):
            raise ValueError(
                f"{name} must have shape (batch, seqlen_new, num_kv_heads, head_dim) = ({batch}, "
                f"any, {cache.shape[2]}, {cache.shape[3]}), got {tuple(x.shape)}"
            )
