"""flash-attention's functions: its arguments, in its order, with its layout and meaning."""

import functools

import torch

from fa_numba.checks import torch_calls
from fa_numba.torch import eager, operators
from fa_numba.torch.autocast import autocast
from fa_numba.torch.seed import draw_seed


@torch_calls.takes_no_other_names
def flash_attn_func(
    q,
    k,
    v,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=eager.NO_WINDOW,
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    s_aux=None,
    **other_names,
):
    """Attention with gradients, in place of `flash_attn.flash_attn_func`.

    Parameters
    ----------
    q : tensor of shape (batch, seqlen_q, num_heads, head_dim), float32, float16 or bfloat16
    k, v : tensors of shape (batch, seqlen_k, num_kv_heads, head_dim), dtype of q
        num_heads is a multiple of num_kv_heads. Any strides; head_dim from 1 to 512.
        Values may have another one than queries and keys; out then has it.
    dropout_p : float, default=0.0
        Probability of dropping an entry, less than 1. The seed comes from PyTorch's generator for
        the CPU, also for CUDA tensors; a CUDA graph cannot be captured with dropout.
    softmax_scale : float, default=1/√head_dim
    causal : bool, default=False
        Aligned bottom right: the last query sees all keys.
    window_size : (left, right), default=(-1, -1)
        A query at position p sees keys p − left to p + right, both included; −1 is no limit.
    softcap : float, default=0.0
        A score becomes softcap · tanh(score / softcap); 0 turns this off.
    alibi_slopes : tensor of shape (num_heads,), float32, default=None
        Then alibi_slopes[h] · abs(n − p) is subtracted from the score of key n in head h. It
        gets no gradient.
    deterministic : bool, default=False
        Gradients with the same bits in every run. True if torch.use_deterministic_algorithms is on
        during the call.
    return_attn_probs : bool, default=False
        Return three tensors.
    s_aux : tensor of shape (num_heads,), default=None
        Sinks: a score of each head that takes part in the softmax, and has no value. It gets a
        gradient. `torch.compile` breaks its graph at a call with sinks.

    Returns
    -------
    out : tensor of the shape, dtype and device of q
        0 in a row that sees no key.
    lse : tensor of shape (batch, num_heads, seqlen_q), float32
        With return_attn_probs only. Natural log of the row's sum of e^score; −inf in a row that
        sees no key. It has no gradient.
    probs : empty tensor
        With return_attn_probs only: the probabilities are not stored. flash-attention returns an
        empty tensor too, unless there is dropout.
    """
    if other_names:
        torch_calls.refuse_other_names(flash_attn_func, other_names)
    slopes = () if alibi_slopes is None else (alibi_slopes,)
    options = causal, softcap, softmax_scale, deterministic, dropout_p, return_attn_probs
    call = "flash_attn_func", q, k, v, slopes, options, window_size
    if s_aux is None and (out := eager.repeat(*call)) is not None:
        return out
    torch_calls.check_flash_options(softmax_scale, softcap, window_size)
    torch_calls.check_flags(
        causal=causal, deterministic=deterministic, return_attn_probs=return_attn_probs
    )
    torch_calls.check_flash_dropout(dropout_p, return_attn_probs)
    torch_calls.check_tensors(q=q, k=k, v=v)
    alibi_slopes = torch_calls.check_slopes(alibi_slopes, q)
    q, k, v = autocast(q, k, v)
    torch_calls.check_floats(q=q, k=k, v=v)
    seed = draw_seed() if dropout_p else None
    deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
    numbers = causal, window_size, softcap, softmax_scale, deterministic, dropout_p
    if s_aux is not None:
        dropout = {"dropout_p": float(dropout_p), "seed": seed.item()} if dropout_p else {}
        out, lse = _with_sinks(q, k, v, s_aux, (), alibi_slopes, *numbers[:5], **dropout)
        return (out, lse, q.new_empty(0)) if return_attn_probs else out
    arguments = functools.partial(attention_arguments, numbers)
    operator, given = arguments(q, k, v, slopes, seed)
    out, lse = operator(*given)
    if return_attn_probs:
        return out, lse, q.new_empty(0)
    call = "flash_attn_func", q, k, v, slopes, options, window_size
    eager.remember(*call, arguments, drops=dropout_p != 0)
    return out


@torch_calls.takes_no_other_names
def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=eager.NO_WINDOW,
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    block_table=None,
    s_aux=None,
    **other_names,
):
    """Attention over a packed batch with gradients, in place of flash-attention's.

    Parameters
    ----------
    q : tensor of shape (num_tokens_q, num_heads, head_dim), float32, float16 or bfloat16
        The queries of all sequences, end to end.
    k, v : tensors of shape (num_tokens_k, num_kv_heads, head_dim), dtype of q
    cu_seqlens_q, cu_seqlens_k : tensors of shape (batch + 1,), int32
        The starts of the sequences, then the number of tokens. A sequence may be empty.
    max_seqlen_q, max_seqlen_k : int
        Not needed here: any number.
    dropout_p : 0
        Another number is refused.
    softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic
        As for `flash_attn_func`.
    return_attn_probs : bool, default=False
        As for `flash_attn_func`; lse has the shape (num_heads, num_tokens_q).
    block_table : None
        A table is refused: `flash_attn_with_kvcache` reads pages.
    s_aux : tensor of shape (num_heads,), default=None
        As for `flash_attn_func`.

    Returns
    -------
    out, lse, probs
        As of `flash_attn_func`.
    """
    if other_names:
        torch_calls.refuse_other_names(flash_attn_varlen_func, other_names)
    others = cu_seqlens_q, cu_seqlens_k
    if alibi_slopes is not None:
        others += (alibi_slopes,)
    options = causal, softcap, softmax_scale, deterministic, return_attn_probs
    options += dropout_p, block_table
    call = "flash_attn_varlen_func", q, k, v, others, options, window_size
    if s_aux is None and (out := eager.repeat(*call)) is not None:
        return out
    torch_calls.check_flash_options(softmax_scale, softcap, window_size)
    torch_calls.check_flags(
        causal=causal, deterministic=deterministic, return_attn_probs=return_attn_probs
    )
    torch_calls.refuse_packed_dropout(dropout_p)
    torch_calls.refuse_block_table(block_table)
    torch_calls.check_tensors(q=q, k=k, v=v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    torch_calls.check_int32(cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    alibi_slopes = torch_calls.check_slopes(alibi_slopes, q)
    q, k, v = autocast(q, k, v)
    torch_calls.check_floats(q=q, k=k, v=v)
    deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
    numbers = causal, window_size, softcap, softmax_scale, deterministic
    if s_aux is not None:
        out, lse = _with_sinks(q, k, v, s_aux, others[:2], alibi_slopes, *numbers)
        return (out, lse, q.new_empty(0)) if return_attn_probs else out
    arguments = functools.partial(_packed_arguments, numbers)
    operator, given = arguments(q, k, v, others, None)
    out, lse = operator(*given)
    if return_attn_probs:
        return out, lse, q.new_empty(0)
    call = "flash_attn_varlen_func", q, k, v, others, options, window_size
    eager.remember(*call, arguments)
    return out


def _with_sinks(
    q, k, v, sinks, starts, slopes, causal, window_size, softcap, scale, deterministic, **dropout
):
    """Attention with sinks: out, lse.

    As `flash_attn_func`; `starts` are cu_seqlens of a packed batch, or ().
    """
    from fa_numba.torch import flex  # imports torch._dynamo, which takes seconds

    torch_calls.check_sinks(sinks, q)
    options = operators.options_of(slopes, causal, window_size, softcap, scale) | dropout
    return flex.attend(q, k, v, starts, sinks=sinks, deterministic=deterministic, **options)


def attention_arguments(numbers, q, k, v, slopes, seed):
    """The operator of attention, and its arguments; `seed` is a number, a tensor or None.

    `numbers` are causal, window_size, softcap, softmax_scale, deterministic, dropout_p.
    """
    slopes = slopes[0].reshape(-1) if slopes else None
    if isinstance(seed, int):
        seed = torch.tensor(seed)
    return operators.flash_attn, (q, k, v, slopes, seed, *numbers)


def _packed_arguments(numbers, q, k, v, others, seed):
    """The same of a packed batch, which has no dropout and takes no seed."""
    cu_seqlens_q, cu_seqlens_k, *slopes = others
    slopes = slopes[0].reshape(-1) if slopes else None
    given = q, k, v, cu_seqlens_q, cu_seqlens_k, slopes, *numbers
    return operators.flash_attn_varlen, given


@torch_calls.takes_no_other_names
def flash_attn_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens=None,
    cache_batch_idx=None,
    cache_leftpad=None,
    block_table=None,
    softmax_scale=None,
    causal=False,
    window_size=eager.NO_WINDOW,
    softcap=0.0,
    rotary_interleaved=True,
    alibi_slopes=None,
    num_splits=0,
    return_softmax_lse=False,
    k_scale=None,
    v_scale=None,
    s_aux=None,
    **other_names,
):
    """Attention to a cache of keys and values, in place of flash-attention's; no gradients.

    Parameters
    ----------
    q : tensor of shape (batch, seqlen_q, num_heads, head_dim), float32, float16 or bfloat16
        The last seqlen_q tokens of each sequence.
    k_cache, v_cache : tensors, dtype of q (under autocast its dtype, to which q, k, v are cast)
        Of shape (batch, max_len, num_kv_heads, head_dim); with block_table of shape
        (num_pages, page_size, num_kv_heads, head_dim), any page_size from 1.
    k, v : tensors of shape (batch, seqlen_new, num_kv_heads, head_dim), dtype of q, default=None
        New tokens: written to the caches from position cache_seqlens on, before the attention,
        which includes them. The caches must have room, and every page must be in block_table.
    cache_seqlens : int, or tensor of shape (batch,), int32, default=None
        Number of tokens of each sequence, without k and v. None: the caches are full.
    block_table : tensor of shape (batch, max_pages), int32, default=None
        Page of token t of sequence b: block_table[b, t // page_size].
    softmax_scale, causal, window_size, softcap, alibi_slopes
        As for `flash_attn_func`, with the last query at the last token.
    rotary_cos, rotary_sin, cache_batch_idx, cache_leftpad : None
        Refused otherwise.
    rotary_interleaved : bool
        Without rotary_cos it says nothing.
    num_splits : 0
        Kernels choose it; another number is refused.
    return_softmax_lse : bool, default=False
        Return (out, lse).
    k_scale, v_scale : float32 tensors, default=None
        For caches of float8_e4m3fn, or uint8 with the same bytes, which are not copied: a key is
        its scale times its numbers. Of shape (num_kv_heads,), or for each token and head of the
        shape of k_cache without head_dim. k and v are then None: `fa_numba.reshape_and_cache`
        writes such caches.
    s_aux : tensor of shape (num_heads,), default=None
        Sinks, as for `flash_attn_func`, without a gradient.

    Returns
    -------
    out : tensor of the shape, dtype and device of q
        0 in a row that sees no key.
    lse : tensor of shape (batch, num_heads, seqlen_q), float32
        With return_softmax_lse only.
    """
    if other_names:
        torch_calls.refuse_other_names(flash_attn_with_kvcache, other_names)
    torch_calls.check_flash_options(softmax_scale, softcap, window_size)
    torch_calls.check_flags(causal=causal, return_softmax_lse=return_softmax_lse)
    torch_calls.check_kvcache_options(
        rotary_cos, rotary_sin, cache_batch_idx, cache_leftpad, num_splits
    )
    q, k, v = autocast(q, k, v)
    k_cache, v_cache, scales = torch_calls.caches_of_bytes(k_cache, v_cache, k, k_scale, v_scale)
    given = q, k_cache, v_cache, k, v, cache_seqlens, block_table, s_aux
    torch_calls.check_kvcache(*given, **scales)
    alibi_slopes = torch_calls.check_slopes(alibi_slopes, q)
    seq_lens = _lengths(q, k_cache, block_table, cache_seqlens)
    if k is not None:
        _append(k_cache, v_cache, k, v, block_table, seq_lens)
        seq_lens = seq_lens + k.shape[1]
    tensors = q, k_cache, v_cache, block_table, seq_lens, alibi_slopes
    numbers = causal, window_size, softcap, softmax_scale
    more = scales if s_aux is None else scales | {"sinks": s_aux}
    if more:
        from fa_numba.torch import flex  # imports torch._dynamo, which takes seconds

        out, lse = flex.decode(*tensors, *numbers, **more)
    else:
        out, lse = operators.flash_decode(*tensors, *numbers)
    return (out, lse) if return_softmax_lse else out


def _lengths(q, k_cache, block_table, cache_seqlens):
    """Return the number of tokens in the cache of each sequence, as int32 on q's device."""
    if isinstance(cache_seqlens, torch.Tensor):
        return cache_seqlens
    if cache_seqlens is None:
        pages = 1 if block_table is None else block_table.shape[1]
        cache_seqlens = pages * k_cache.shape[1]
    return torch.full((q.shape[0],), cache_seqlens, dtype=torch.int32, device=q.device)


def _append(k_cache, v_cache, k, v, block_table, seq_lens):
    """Write k and v to the caches in place, from position seq_lens of each sequence on."""
    batch, seqlen_new = k.shape[:2]
    positions = seq_lens.long()[:, None] + torch.arange(seqlen_new, device=k.device)
    if block_table is None:
        rows = torch.arange(batch, device=k.device)[:, None]
    else:
        page_size = k_cache.shape[1]
        rows = block_table.long().gather(1, positions // page_size)
        positions = positions % page_size
    k_cache.index_put_((rows, positions), k)
    v_cache.index_put_((rows, positions), v)
