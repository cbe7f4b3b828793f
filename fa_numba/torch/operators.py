"""The operators that PyTorch knows as torch.ops.fa_numba.flash_attn and so on.

Each has an implementation, which runs a job of fa_numba, and a fake one, from which `torch.compile`
learns shapes and dtypes. The forward passes have gradients, by operators of their own. All have
flash-attention's layout. The code that `torch.compile` generates calls them; so a call that was
made before is a replay here too (`_replaying`).

`torch.library.custom_op` would need fewer lines, but a call with gradients takes it several times
as long.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.autograd import forward_ad

from fa_numba.checks import torch_calls
from fa_numba.runtime.replay import RefusedError
from fa_numba.torch import jobs, layouts

MAX_CHOICES = 1024  # of an operator and its options

QKV, STARTS = "Tensor q, Tensor k, Tensor v", "Tensor cu_seqlens_q, Tensor cu_seqlens_k"
CACHES = "Tensor q, Tensor k_cache, Tensor v_cache, Tensor? block_table, Tensor seq_lens"
SLOPES, SEED = "Tensor? alibi_slopes", "Tensor? seed"
NUMBERS = "bool causal, SymInt[] window_size, float softcap, float? softmax_scale"
# Tensors come before numbers, the seed as the last of them. `deterministic` concerns the gradients
# alone. PyTorch keeps compiled graphs on disk, so the arguments of gradients must keep their order.
ATTENTION = f"{QKV}, {SLOPES}, {SEED}, {NUMBERS}, bool deterministic, float dropout_p"
PACKED = f"{QKV}, {STARTS}, {SLOPES}, {NUMBERS}, bool deterministic"
CACHED = f"{CACHES}, {SLOPES}, {NUMBERS}"
RESULTS = "Tensor dout, Tensor out, Tensor lse"  # of gradients: before q, k, v

_library = torch.library.Library("fa_numba", "DEF")
_job_calls = {}  # of each operator: the function that names its job
_recent = {}  # of each operator with its options: `layouts.with_recent`


def _define(name, arguments, num_results, job_call, fake):
    """Define an operator, and return it.

    Parameters
    ----------
    name : str
    arguments : str
    num_results : int
    job_call : callable
        Returns for the arguments: the job that computes the results, a tuple of the tensors that
        it takes, and a dict of its options.
    fake : callable
        Returns results of the right shapes and dtypes.
    """

    def implementation(*arguments):
        job, tensors, options = job_call(*arguments)
        return jobs.run(job, *tensors, **options)

    implementation = _replaying(name, arguments, implementation)
    results = ", ".join(["Tensor"] * num_results)
    tags = (torch.Tag.pt2_compliant_tag,)
    _library.define(f"{name}({arguments}) -> ({results})", tags=tags)
    for device in ("CPU", "CUDA"):
        _library.impl(name, implementation, device)
    torch.library.register_fake(f"fa_numba::{name}", fake, lib=_library)
    operator = getattr(torch.ops.fa_numba, name).default
    _job_calls[operator] = job_call
    return operator


def replay_of(operator, *arguments):
    """Return the replay of an operator's call on a GPU that was made before, or None."""
    job, tensors, options = _job_calls[operator](*arguments)
    return jobs.replay_of(job, *tensors, **options)


@dataclass(eq=False, slots=True)
class Known:
    """A replay of an operator's call, and what says whether other tensors have its layouts."""

    fits: Callable
    replay: Callable


def _replaying(name, schema, function):
    """Return an implementation of an operator in which a call that was made before is a replay.

    Parameters
    ----------
    name, schema : str
        Of the operator: its name and its arguments.
    function : callable
        Its implementation for all other calls.
    """
    num_tensors, has_seed = schema.count("Tensor"), SEED in schema
    num_given, is_gradient = num_tensors - has_seed, RESULTS in schema

    def implementation(*arguments):
        given = [x for x in arguments[:num_given] if x is not None]
        if is_gradient:  # in the order of the job
            dout, out, lse, q, k, v, *others = given
            given = dout, q, k, v, out, lse, *others
        causal, window_size, *others = arguments[num_tensors:]
        choice = name, len(given), causal, *window_size, *others
        # PyTorch's check of layouts does not tell recording gradients from a compiled graph, which
        # gets tensors that require some while PyTorch records none.
        records = torch.is_grad_enabled() and any(x.requires_grad for x in given)
        known = None if records else layouts.that_fits(_recent.get(choice, ()), *given)
        if known and forward_ad._current_level < 0:
            seed = arguments[num_given] if has_seed else None
            try:
                if seed is None:
                    return known.replay(given)
                if not torch.cuda.is_current_stream_capturing():
                    return known.replay(given, seed.item())
            except RefusedError:
                pass
        results = function(*arguments)
        if records or known is not None or not _can_be_replayed(given):
            return results
        if found := replay_of(getattr(torch.ops.fa_numba, name).default, *arguments):
            if len(_recent) >= MAX_CHOICES:
                _recent.clear()
            known, recent = Known(layouts.never, found), _recent.get(choice, ())
            _recent[choice] = layouts.with_recent(known, recent, *given)
        return results

    return implementation


def _can_be_replayed(tensors):
    """Whether replays are on, and nothing but an operator's results is asked for."""
    return not layouts.intercepted() and all(map(layouts.is_plain, tensors))


# Jobs of the operators


def options_of(alibi_slopes, causal, window_size, softcap, softmax_scale):
    return {
        "alibi_slopes": alibi_slopes,
        "causal": causal,
        "window_size": tuple(window_size),
        "softcap": float(softcap),
        "softmax_scale": None if softmax_scale is None else float(softmax_scale),
    }


def _dropout(dropout_p, seed):
    return {"dropout_p": float(dropout_p), "seed": seed.item()} if dropout_p else {}


def _flash_attn(q, k, v, alibi_slopes, seed, *numbers):
    *numbers, _, dropout_p = numbers
    torch_calls.refuse_captured_dropout(q, dropout_p)
    options = options_of(alibi_slopes, *numbers) | _dropout(dropout_p, seed)
    return jobs.flash_attn, (q, k, v), options


def _flash_attn_grad(dout, out, lse, q, k, v, alibi_slopes, seed, *numbers):
    *numbers, deterministic, dropout_p = numbers
    options = options_of(alibi_slopes, *numbers) | _dropout(dropout_p, seed)
    options["deterministic"] = deterministic
    return jobs.flash_attn_grad, (dout, q, k, v, out, lse), options


def _flash_attn_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, alibi_slopes, *numbers):
    *numbers, _ = numbers
    tensors = q, k, v, cu_seqlens_q, cu_seqlens_k
    return jobs.flash_attn_varlen, tensors, options_of(alibi_slopes, *numbers)


def _flash_attn_varlen_grad(
    dout, out, lse, q, k, v, cu_seqlens_q, cu_seqlens_k, alibi_slopes, *numbers
):
    """As `_flash_attn_grad`, for a packed batch."""
    *numbers, deterministic = numbers
    options = options_of(alibi_slopes, *numbers) | {"deterministic": deterministic}
    tensors = dout, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k
    return jobs.flash_attn_varlen_grad, tensors, options


def _flash_decode(q, k_cache, v_cache, block_table, seq_lens, *options):
    if block_table is None:
        return jobs.flash_decode, (q, k_cache, v_cache, seq_lens), options_of(*options)
    tensors = q, k_cache, v_cache, block_table, seq_lens
    return jobs.paged_attn_decode, tensors, options_of(*options)


# Shapes and dtypes of the results


def _fake_results(q, k, v, *_):
    batch, seqlen_q, num_heads, _ = q.shape
    lse = q.new_empty((batch, num_heads, seqlen_q), dtype=torch.float32)
    return q.new_empty((*q.shape[:3], v.shape[3])), lse


def _fake_packed_results(q, k, v, *_):
    num_tokens_q, num_heads, _ = q.shape
    lse = q.new_empty((num_heads, num_tokens_q), dtype=torch.float32)
    return q.new_empty((*q.shape[:2], v.shape[2])), lse


def _fake_gradients(dout, out, lse, q, k, v, *_):
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


flash_attn = _define("flash_attn", ATTENTION, 2, _flash_attn, _fake_results)
flash_attn_grad = _define(
    "flash_attn_grad", f"{RESULTS}, {ATTENTION}", 3, _flash_attn_grad, _fake_gradients
)
flash_attn_varlen = _define(
    "flash_attn_varlen", PACKED, 2, _flash_attn_varlen, _fake_packed_results
)
flash_attn_varlen_grad = _define(
    "flash_attn_varlen_grad", f"{RESULTS}, {PACKED}", 3, _flash_attn_varlen_grad, _fake_gradients
)
flash_decode = _define("flash_decode", CACHED, 2, _flash_decode, _fake_results)


GRADIENTS = {flash_attn: flash_attn_grad, flash_attn_varlen: flash_attn_varlen_grad}


# Gradients


def _add_gradients(name, schema, forward, backward):
    """Let `backward` compute the gradients of q, k and v of an operator.

    Parameters
    ----------
    name, schema : str
        Of the forward pass.
    forward, backward : operators
    """
    num_tensors = schema.count("Tensor")  # or None in their place

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *arguments):
            with torch._C._AutoDispatchBelowAutograd():  # the implementation, not this again
                out, lse = forward(*arguments)
            ctx.mark_non_differentiable(lse)
            ctx.save_for_backward(out, lse, *arguments[:num_tensors])
            ctx.numbers = arguments[num_tensors:]
            return out, lse

        @staticmethod
        def backward(ctx, dout, _):
            gradients = backward(dout, *ctx.saved_tensors, *ctx.numbers)
            return *gradients, *[None] * (num_tensors + len(ctx.numbers) - 3)

    class Gradients(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *arguments):
            with torch._C._AutoDispatchBelowAutograd():
                return backward(*arguments)

        @staticmethod
        def backward(ctx, *_):
            torch_calls.refuse_second_derivatives()

    def implement(name, schema, function):
        def implementation(*arguments):
            if torch._C._are_functorch_transforms_active():  # vmap has become a loop by here
                torch_calls.refuse_transforms()
            return function.apply(*arguments)

        _library.impl(name, _replaying(name, schema, implementation), "Autograd")

    implement(name, schema, Attention)
    implement(f"{name}_grad", f"{RESULTS}, {schema}", Gradients)


_add_gradients("flash_attn", ATTENTION, flash_attn, flash_attn_grad)
_add_gradients("flash_attn_varlen", PACKED, flash_attn_varlen, flash_attn_varlen_grad)
