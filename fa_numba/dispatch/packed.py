"""Attention of packed batches and its gradients: `flash_attn_varlen`, `flash_attn_varlen_grad`."""

from typing import NamedTuple

from fa_numba import checks
from fa_numba.dispatch.attention import require_wide_heads, with_score_args_grad
from fa_numba.dispatch.candidates import Candidate, lesson, on_cpu
from fa_numba.dispatch.job import job
from fa_numba.dispatch.options import options_of
from fa_numba.kernels.flash_attn_bwd import HEAD_DIMS
from fa_numba.runtime import arrays


class Inputs(NamedTuple):
    """The facts of the arrays of a forward call."""

    q: object
    k: object
    v: object
    cu_seqlens_q: object
    cu_seqlens_k: object


class GradientInputs(NamedTuple):
    """The facts of the arrays of a backward call."""

    dout: object
    q: object
    k: object
    v: object
    out: object
    lse: object
    cu_seqlens_q: object
    cu_seqlens_k: object


def on_hopper(candidate, inputs, options):
    """Raise unless a forward function on Hopper's tensor cores can take these inputs."""
    checks.check_positive_scale(options.get("softmax_scale"), inputs.q.shape[2])
    checks.KERNELS[candidate.name].check_packed(*inputs)


def gradients_on_hopper(candidate, inputs, options):
    """Raise unless a backward function on Hopper's tensor cores can take these inputs."""
    checks.check_positive_scale(options.get("softmax_scale"), inputs.q.shape[2])
    checks.KERNELS[candidate.name].check_packed_gradients(*inputs)


def with_wide_heads(check):
    """A check of a function that has no faster one for its head_dim."""

    def check_all(candidate, inputs, options):
        require_wide_heads(inputs.q)
        check(candidate, inputs, options)

    return check_all


FORWARD = (
    on_cpu("flash_attn_varlen"),
    Candidate(
        "flash_attn_persistent_varlen",
        "tensor_core",
        why="on tensor cores, as fast as padded batches without padding",
        check=on_hopper,
        head_dims=checks.ANY_HEAD_DIMS,
    ),
    Candidate(
        "flash_attn_wide_varlen",
        "tensor_core",
        why=f"it alone runs on tensor cores at a head_dim above {checks.MAX_HEAD_DIM}",
        check=with_wide_heads(on_hopper),
        head_dims=checks.WIDE_HEAD_DIM,
    ),
    lesson("flash_attn_varlen", head_dims=checks.ANY_HEAD_DIMS),
)
BACKWARD = (
    on_cpu("flash_attn_varlen_grad"),
    Candidate(
        "flash_attn_bwd_varlen",
        "tensor_core",
        why="on tensor cores, as the gradients of padded batches, without padding",
        check=gradients_on_hopper,
        head_dims=checks.ANY_HEAD_DIMS,
    ),
    Candidate(
        "flash_attn_bwd_stored_varlen",
        "tensor_core",
        why="it alone computes gradients of packed batches at a head_dim above "
        f"{checks.MAX_HEAD_DIM} on a GPU; one sequence after the other",
        check=with_wide_heads(gradients_on_hopper),
        always=("deterministic",),
        head_dims=checks.WIDE_HEAD_DIM,
    ),
    lesson("flash_attn_varlen_bwd", always=("deterministic",), head_dims=HEAD_DIMS),
)


@job(*FORWARD)
def flash_attn_varlen(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    *,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    softmax_scale=None,
    mask=None,
    mask_args=(),
    score=None,
    score_args=(),
    sinks=None,
) -> tuple:
    """Attention of a packed batch, each sequence to itself, by the fastest kernel that can.

    Parameters
    ----------
    q : array of shape (num_tokens_q, num_heads, head_dim), float32, float16 or bfloat16
        The queries of all sequences, end to end.
    k, v : arrays of shape (num_tokens_k, num_kv_heads, head_dim), dtype of q
    cu_seqlens_q, cu_seqlens_k : arrays of shape (batch + 1,), int32
        The starts of the sequences, then the end of the last: sequence b is tokens cu_seqlens[b] to
        cu_seqlens[b + 1] − 1.
    causal, window_size, softcap, alibi_slopes, softmax_scale, mask, mask_args, score, \
    score_args, sinks
        As for `flash_attn`, within each sequence.

    Returns
    -------
    out : array of the shape, dtype and library of q
        0 in a row that sees no key.
    lse : array of shape (num_heads, num_tokens_q), float32
        Natural log of the row's sum of e^score; −inf in a row that sees no key.

    Notes
    -----
    The contents of cu_seqlens_q and cu_seqlens_k are checked if they are NumPy arrays. Arrays on a
    GPU are not checked, because that would wait for the GPU: wrong numbers read memory outside the
    batch, or leave rows of out unwritten.
    """
    inputs = Inputs(*map(arrays.facts, (q, k, v, cu_seqlens_q, cu_seqlens_k)))
    checks.check_varlen(*inputs, head_dims=checks.ANY_HEAD_DIMS)
    options = causal, window_size, softcap, alibi_slopes, softmax_scale
    written = mask, mask_args, score, score_args, sinks
    return inputs, options_of(inputs.q, *options, *written)


@job(*with_score_args_grad(BACKWARD))
def flash_attn_varlen_grad(
    dout,
    q,
    k,
    v,
    out,
    lse,
    cu_seqlens_q,
    cu_seqlens_k,
    *,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    softmax_scale=None,
    deterministic=False,
    mask=None,
    mask_args=(),
    score=None,
    score_args=(),
    sinks=None,
    score_args_grad=False,
) -> tuple:
    """Gradients of `flash_attn_varlen` by the fastest kernel that can.

    Parameters
    ----------
    dout : array of the shape, dtype and library of q
        Gradient of the loss with respect to `out`.
    q, k, v, cu_seqlens_q, cu_seqlens_k, causal, window_size, softcap, alibi_slopes, \
    softmax_scale, mask, mask_args, score, score_args, sinks
        The arguments of `flash_attn_varlen`.
    out, lse : arrays
        Its results.
    deterministic : bool, default=False
        The same bits in every run.
    score_args_grad : bool, default=False
        As for `flash_attn_grad`.

    Returns
    -------
    dq, dk, dv, dsinks, dscore_args
        As of `flash_attn_grad`.

    Notes
    -----
    The contents of cu_seqlens_q and cu_seqlens_k are checked as in `flash_attn_varlen`.
    """
    given = dout, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k
    inputs = GradientInputs(*map(arrays.facts, given))
    checks.check_varlen_bwd(*inputs, head_dims=checks.ANY_HEAD_DIMS)
    options = causal, window_size, softcap, alibi_slopes, softmax_scale
    written = mask, mask_args, score, score_args, sinks
    more = {"deterministic": deterministic, "score_args_grad": score_args_grad}
    return inputs, options_of(inputs.q, *options, *written, **more)
