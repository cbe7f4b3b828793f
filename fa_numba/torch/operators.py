"""The operators that PyTorch knows as torch.ops.fa_numba.flash_attn and so on.

Each has an implementation, which runs a job; a fake one, from which `torch.compile` learns shapes
and dtypes; and, for the forward passes, gradients by another operator. All have flash-attention's
layout. `window_size` is two numbers, and alibi_slopes is a tensor or None.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fa_numba.checks.torch_calls import refuse_second_derivatives
from fa_numba.torch import jobs

Slopes = Tensor | None
Scale = float | None


def _options(causal, window_size, softcap, alibi_slopes, softmax_scale):
    return {
        "causal": causal,
        "window_size": tuple(window_size),
        "softcap": softcap,
        "alibi_slopes": alibi_slopes,
        "softmax_scale": softmax_scale,
    }


# Batches of sequences of one length


@torch.library.custom_op("fa_numba::flash_attn", mutates_args=())
def flash_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    window_size: Sequence[int],
    softcap: float,
    alibi_slopes: Slopes,
    softmax_scale: Scale,
    deterministic: bool,
) -> tuple[Tensor, Tensor]:
    """Run `fa_numba.flash_attn`: (out, lse). `deterministic` is for the gradients."""
    options = _options(causal, window_size, softcap, alibi_slopes, softmax_scale)
    return jobs.run(jobs.flash_attn, q, k, v, **options)


@flash_attn.register_fake
def _(q, k, v, *options):
    batch, seqlen_q, num_heads, _ = q.shape
    lse = q.new_empty((batch, num_heads, seqlen_q), dtype=torch.float32)
    return q.new_empty(q.shape), lse


@torch.library.custom_op("fa_numba::flash_attn_grad", mutates_args=())
def flash_attn_grad(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    window_size: Sequence[int],
    softcap: float,
    alibi_slopes: Slopes,
    softmax_scale: Scale,
    deterministic: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run `fa_numba.flash_attn_grad`: (dq, dk, dv)."""
    options = _options(causal, window_size, softcap, alibi_slopes, softmax_scale)
    options["deterministic"] = deterministic
    return jobs.run(jobs.flash_attn_grad, dout, q, k, v, out, lse, **options)


@flash_attn_grad.register_fake
def _(dout, q, k, v, *others):
    return tuple(x.new_empty(x.shape) for x in (q, k, v))


# Packed batches


@torch.library.custom_op("fa_numba::flash_attn_varlen", mutates_args=())
def flash_attn_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    causal: bool,
    window_size: Sequence[int],
    softcap: float,
    alibi_slopes: Slopes,
    softmax_scale: Scale,
    deterministic: bool,
) -> tuple[Tensor, Tensor]:
    """Run `fa_numba.flash_attn_varlen`: (out, lse). `deterministic` is for the gradients."""
    options = _options(causal, window_size, softcap, alibi_slopes, softmax_scale)
    return jobs.run(jobs.flash_attn_varlen, q, k, v, cu_seqlens_q, cu_seqlens_k, **options)


@flash_attn_varlen.register_fake
def _(q, k, v, *others):
    num_tokens_q, num_heads, _ = q.shape
    return q.new_empty(q.shape), q.new_empty((num_heads, num_tokens_q), dtype=torch.float32)


@torch.library.custom_op("fa_numba::flash_attn_varlen_grad", mutates_args=())
def flash_attn_varlen_grad(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    causal: bool,
    window_size: Sequence[int],
    softcap: float,
    alibi_slopes: Slopes,
    softmax_scale: Scale,
    deterministic: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run `fa_numba.flash_attn_varlen_grad`: (dq, dk, dv)."""
    options = _options(causal, window_size, softcap, alibi_slopes, softmax_scale)
    tensors = dout, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k
    return jobs.run(jobs.flash_attn_varlen_grad, *tensors, **options)


@flash_attn_varlen_grad.register_fake
def _(dout, q, k, v, *others):
    return tuple(x.new_empty(x.shape) for x in (q, k, v))


# Gradients, the same for both


def _add_gradients(forward, backward, num_tensors):
    """Register the gradients of an operator: `backward` computes those of q, k and v.

    `num_tensors` of its arguments come first and are tensors; the options follow.
    """

    def keep(ctx, inputs, output):
        tensors, options = inputs[:num_tensors], inputs[num_tensors:]
        causal, window_size, softcap, alibi_slopes, softmax_scale, deterministic = options
        q, k, v, *cu_seqlens = tensors
        out, lse = output
        ctx.mark_non_differentiable(lse)
        ctx.save_for_backward(q, k, v, out, lse, *cu_seqlens, alibi_slopes)
        ctx.mask = causal, window_size, softcap
        ctx.others = softmax_scale, deterministic

    def gradients(ctx, dout, _):
        *tensors, alibi_slopes = ctx.saved_tensors
        dq, dk, dv = backward(dout, *tensors, *ctx.mask, alibi_slopes, *ctx.others)
        return dq, dk, dv, *[None] * (num_tensors - 3 + NUM_OPTIONS)

    forward.register_autograd(gradients, setup_context=keep)
    backward.register_autograd(lambda ctx, *grads: refuse_second_derivatives())


NUM_OPTIONS = 6
_add_gradients(flash_attn, flash_attn_grad, num_tensors=3)
_add_gradients(flash_attn_varlen, flash_attn_varlen_grad, num_tensors=5)


# Caches of keys and values, without gradients


@torch.library.custom_op("fa_numba::flash_decode", mutates_args=())
def flash_decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor | None,
    seq_lens: Tensor,
    causal: bool,
    window_size: Sequence[int],
    softcap: float,
    alibi_slopes: Slopes,
    softmax_scale: Scale,
) -> tuple[Tensor, Tensor]:
    """Run `fa_numba.flash_decode`, or `fa_numba.paged_attn_decode` for pages: (out, lse)."""
    options = _options(causal, window_size, softcap, alibi_slopes, softmax_scale)
    if block_table is None:
        return jobs.run(jobs.flash_decode, q, k_cache, v_cache, seq_lens, **options)
    tensors = q, k_cache, v_cache, block_table, seq_lens
    return jobs.run(jobs.paged_attn_decode, *tensors, **options)


@flash_decode.register_fake
def _(q, *others):
    batch, seqlen_q, num_heads, _ = q.shape
    lse = q.new_empty((batch, num_heads, seqlen_q), dtype=torch.float32)
    return q.new_empty(q.shape), lse
