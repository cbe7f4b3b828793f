"""The operators that PyTorch knows as torch.ops.fa_numba.flash_attn and so on.

Each has an implementation, which runs a job, and a fake one, from which `torch.compile` learns
shapes and dtypes. The forward passes have gradients, by operators of their own. All have
flash-attention's layout and share the options of `OPTIONS`.

`torch.library.custom_op` would say the same in fewer lines; a call of it took 160 µs with
gradients where these take 75 and `torch.autograd.Function` alone 34 (one core of a Xeon, no work
in the job).
"""

import torch

from fa_numba.checks.torch_calls import refuse_second_derivatives
from fa_numba.torch import jobs

OPTIONS = (
    "bool causal, SymInt[] window_size, float softcap, Tensor? alibi_slopes, float? softmax_scale"
)
QKV, STARTS = "Tensor q, Tensor k, Tensor v", "Tensor cu_seqlens_q, Tensor cu_seqlens_k"
RESULTS = "Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse"
FORWARD, BACKWARD = "(Tensor, Tensor)", "(Tensor, Tensor, Tensor)"

_library = torch.library.Library("fa_numba", "DEF")


def _define(name, arguments, results, function, fake):
    """Define an operator, and return it."""
    tags = (torch.Tag.pt2_compliant_tag,)
    _library.define(f"{name}({arguments}) -> {results}", tags=tags)
    for device in ("CPU", "CUDA"):
        _library.impl(name, function, device)
    torch.library.register_fake(f"fa_numba::{name}", fake, lib=_library)
    return getattr(torch.ops.fa_numba, name).default


def _named(causal, window_size, softcap, alibi_slopes, softmax_scale):
    return {
        "causal": causal,
        "window_size": tuple(window_size),
        "softcap": softcap,
        "alibi_slopes": alibi_slopes,
        "softmax_scale": softmax_scale,
    }


# Implementations, for tensors that need no gradient. `deterministic` is for gradients alone.


def _flash_attn(q, k, v, *options_and_deterministic):
    *options, _ = options_and_deterministic
    return jobs.run(jobs.flash_attn, q, k, v, **_named(*options))


def _flash_attn_grad(dout, q, k, v, out, lse, *options_and_deterministic):
    *options, deterministic = options_and_deterministic
    options = _named(*options) | {"deterministic": deterministic}
    return jobs.run(jobs.flash_attn_grad, dout, q, k, v, out, lse, **options)


def _flash_attn_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, *options_and_deterministic):
    *options, _ = options_and_deterministic
    tensors = q, k, v, cu_seqlens_q, cu_seqlens_k
    return jobs.run(jobs.flash_attn_varlen, *tensors, **_named(*options))


def _flash_attn_varlen_grad(
    dout, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, *options_and_deterministic
):
    *options, _ = options_and_deterministic  # its kernels are all deterministic
    tensors = dout, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k
    return jobs.run(jobs.flash_attn_varlen_grad, *tensors, **_named(*options))


def _flash_decode(q, k_cache, v_cache, seq_lens, block_table, *options):
    if block_table is None:
        tensors = q, k_cache, v_cache, seq_lens
        return jobs.run(jobs.flash_decode, *tensors, **_named(*options))
    tensors = q, k_cache, v_cache, block_table, seq_lens
    return jobs.run(jobs.paged_attn_decode, *tensors, **_named(*options))


# Shapes and dtypes of the results


def _fake_results(q, *_):
    batch, seqlen_q, num_heads, _ = q.shape
    lse = q.new_empty((batch, num_heads, seqlen_q), dtype=torch.float32)
    return q.new_empty(q.shape), lse


def _fake_packed_results(q, *_):
    num_tokens_q, num_heads, _ = q.shape
    return q.new_empty(q.shape), q.new_empty((num_heads, num_tokens_q), dtype=torch.float32)


def _fake_gradients(dout, q, k, v, *_):
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


DIFFERENTIABLE = f"{OPTIONS}, bool deterministic"
flash_attn = _define("flash_attn", f"{QKV}, {DIFFERENTIABLE}", FORWARD, _flash_attn, _fake_results)
flash_attn_grad = _define(
    "flash_attn_grad", f"{RESULTS}, {DIFFERENTIABLE}", BACKWARD, _flash_attn_grad, _fake_gradients
)
flash_attn_varlen = _define(
    "flash_attn_varlen",
    f"{QKV}, {STARTS}, {DIFFERENTIABLE}",
    FORWARD,
    _flash_attn_varlen,
    _fake_packed_results,
)
flash_attn_varlen_grad = _define(
    "flash_attn_varlen_grad",
    f"{RESULTS}, {STARTS}, {DIFFERENTIABLE}",
    BACKWARD,
    _flash_attn_varlen_grad,
    _fake_gradients,
)
flash_decode = _define(
    "flash_decode",
    f"Tensor q, Tensor k_cache, Tensor v_cache, Tensor seq_lens, Tensor? block_table, {OPTIONS}",
    FORWARD,
    _flash_decode,
    _fake_results,
)


# Gradients


def _add_gradients(name, forward, backward, num_tensors):
    """Give an operator gradients: `backward` computes those of q, k and v.

    Parameters
    ----------
    name : str
    forward, backward : operators
    num_tensors : int
        Number of forward's arguments before its options: q, k, v, and those without gradients.
    """

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *arguments):
            with torch._C._AutoDispatchBelowAutograd():
                out, lse = forward(*arguments)
            q, k, v, *starts = arguments[:num_tensors]
            *mask, alibi_slopes, softmax_scale, deterministic = arguments[num_tensors:]
            ctx.mark_non_differentiable(lse)
            ctx.save_for_backward(q, k, v, out, lse, *starts, alibi_slopes)
            ctx.options = mask, (softmax_scale, deterministic)
            ctx.num_arguments = len(arguments)
            return out, lse

        @staticmethod
        def backward(ctx, dout, _):
            *tensors, alibi_slopes = ctx.saved_tensors
            mask, others = ctx.options
            gradients = backward(dout, *tensors, *mask, alibi_slopes, *others)
            return *gradients, *[None] * (ctx.num_arguments - 3)

    class Gradients(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *arguments):
            with torch._C._AutoDispatchBelowAutograd():
                return backward(*arguments)

        @staticmethod
        def backward(ctx, *_):
            refuse_second_derivatives()

    _library.impl(name, Attention.apply, "Autograd")
    _library.impl(f"{name}_grad", Gradients.apply, "Autograd")


_add_gradients("flash_attn", flash_attn, flash_attn_grad, num_tensors=3)
_add_gradients("flash_attn_varlen", flash_attn_varlen, flash_attn_varlen_grad, num_tensors=5)
