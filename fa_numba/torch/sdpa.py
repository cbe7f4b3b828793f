"""`scaled_dot_product_attention` with the arguments, the layout and the meaning of PyTorch's."""

import functools

import torch

from fa_numba.checks import torch_calls
from fa_numba.torch import eager, padding
from fa_numba.torch.autocast import autocast
from fa_numba.torch.flash import attention_arguments
from fa_numba.torch.seed import draw_seed


@torch_calls.takes_no_other_names
def scaled_dot_product_attention(
    query,
    key,
    value,
    attn_mask=None,
    dropout_p=0.0,
    is_causal=False,
    scale=None,
    enable_gqa=False,
    **other_names,
):
    """Attention in place of `torch.nn.functional.scaled_dot_product_attention`, with gradients.

    Parameters
    ----------
    query : tensor of shape (batch, num_heads, seqlen_q, head_dim), float32, float16 or bfloat16
    key, value : tensors of shape (batch, num_kv_heads, seqlen_k, head_dim), dtype of query
        All three may lack the axis of heads. Any strides; head_dim from 1 to 512.
        Values may have another one than queries and keys; out then has it.
    attn_mask : boolean tensor, default=None
        False hides a key. A mask of keys, of a shape such as (batch, 1, 1, seqlen_k), may hide any.
        One with an axis of queries, (batch, 1, seqlen_q, seqlen_k), is read, which waits for the
        GPU: it must be the same for all queries; or causal, aligned bottom right, within one run of
        keys of each row. There is no dropout with a mask.
    dropout_p : float, default=0.0
        As for `flash_attn_func`.
    is_causal : bool, default=False
        Aligned top left, as PyTorch's: query m sees keys 0 to m.
    scale : float, default=1/√head_dim
    enable_gqa : bool, default=False
        num_kv_heads may be a divisor of num_heads.

    Returns
    -------
    tensor of the shape, dtype and device of query
        A view whose memory has the layout (batch, seqlen_q, num_heads, head_dim), as PyTorch's
        FlashAttention returns. Its gradients have the same bits in every run if
        torch.use_deterministic_algorithms is on during the call.
    """
    if other_names:
        torch_calls.refuse_other_names(scaled_dot_product_attention, other_names)
    options = attn_mask, dropout_p, is_causal, scale, enable_gqa
    out = eager.repeat("scaled_dot_product_attention", query, key, value, (), options)
    if out is not None:
        return out
    torch_calls.check_sdpa_options(attn_mask, dropout_p, is_causal, scale, enable_gqa)
    torch_calls.check_tensors(query=query, key=key, value=value)
    query, key, value = autocast(query, key, value)
    torch_calls.check_sdpa(query, key, value, enable_gqa)
    if attn_mask is not None:
        return _masked(query, key, value, attn_mask, scale)
    q, k, v = map(_tokens_first, (query, key, value))
    seqlen_q, seqlen_k = q.shape[1], k.shape[1]
    causal, window_size = is_causal, (-1, -1)
    if is_causal and seqlen_q < seqlen_k:  # no query sees the other keys
        k, v = k[:, :seqlen_q], v[:, :seqlen_q]
    elif is_causal and seqlen_q > seqlen_k:
        # To fa_numba query m is at position p = m + seqlen_k − seqlen_q, so that the last query is
        # at the last key. It sees keys up to m = p + (seqlen_q − seqlen_k).
        causal, window_size = False, (-1, seqlen_q - seqlen_k)
    scale = None if scale is None else float(scale)
    seed = draw_seed() if dropout_p else None
    deterministic = torch.are_deterministic_algorithms_enabled()
    numbers = causal, window_size, 0.0, scale, deterministic, dropout_p
    arguments = functools.partial(attention_arguments, numbers)
    operator, given = arguments(q, k, v, (), seed)
    out, _ = operator(*given)
    if query.ndim == 3:
        return out[:, :, 0]
    out = out.transpose(1, 2)
    if k.shape[1] == seqlen_k:
        call = "scaled_dot_product_attention", query, key, value, (), options, eager.NO_WINDOW
        eager.remember(*call, arguments, drops=dropout_p != 0, transposed=True)
    return out


def _masked(query, key, value, attn_mask, scale):
    """Attention with a mask: see `fa_numba.torch.padding`."""
    torch_calls.check_tensors(query=query, attn_mask=attn_mask)
    seen = torch_calls.check_mask(attn_mask, query, key)
    q, k, v = map(_tokens_first, (query, key, value))
    if (keys := padding.keys_of(seen)) is not None:
        out = padding.attend_to_keys(q, k, v, keys, softmax_scale=scale)
    elif run := padding.causal_run_of(seen):
        out = padding.attend_to_run(q, k, v, run[0], True, run[1], softmax_scale=scale)
    else:
        torch_calls.refuse_mask(attn_mask)
    return out[:, :, 0] if query.ndim == 3 else out.transpose(1, 2)


def _tokens_first(x):
    """A view with the axes (batch, seqlen, heads, head_dim)."""
    return (x.unsqueeze(1) if x.ndim == 3 else x).transpose(1, 2)
