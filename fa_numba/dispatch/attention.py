"""Attention and its gradients: `flash_attn`, `flash_attn_grad`."""

import dataclasses
from typing import NamedTuple

import numpy as np

from fa_numba import checks
from fa_numba.checks.refused import RefusedGpuError, RefusedValueError
from fa_numba.dispatch.candidates import CPU, Candidate, lesson, on_cpu
from fa_numba.dispatch.job import job
from fa_numba.dispatch.options import options_of
from fa_numba.kernels import dropout
from fa_numba.kernels.flash_attn_bwd import HEAD_DIMS
from fa_numba.on_cuda_cores.score_args_bwd import score_args_bwd
from fa_numba.runtime import arrays
from fa_numba.tiling import split_tiling
from fa_numba.tiling.split_tiling import SplitProblem
from numba_cuda_simulator import devices

FEW_QUERIES = 16  # with more queries decoders, whose tiles have 8 rows, read the keys too often
WIDE_QUERIES, MANY_KEYS = 8, 1024  # of flash_decode_wide: with more queries, only for many keys
FEW_ROWS = 16  # queries of a group of heads: with more, flash_attn_split takes them in one tile
NOTHING_TO_COPY = "copies rows that TMA cannot copy; it can copy all of these"
LEAST_GAIN = 1.25  # by the model of tiling.split_tiling: a smaller one may be its error


class Inputs(NamedTuple):
    """The facts of the arrays of a forward call."""

    q: object
    k: object
    v: object


class GradientInputs(NamedTuple):
    """The facts of the arrays of a backward call."""

    dout: object
    q: object
    k: object
    v: object
    out: object
    lse: object


def on_tensor_cores(candidate, inputs, options):
    """Raise unless a forward function on tensor cores can take these inputs."""
    if candidate.most_queries is None:  # decoders take any scale
        checks.check_positive_scale(options.get("softmax_scale"), inputs.q.shape[3])
    checks.KERNELS[candidate.name].check(*inputs)
    check_dropout(candidate, options)


def require_wide_heads(q):
    """Raise for a head_dim that a faster kernel takes."""
    if q.shape[-1] <= checks.MAX_HEAD_DIM:
        raise RefusedValueError(f"is for a head_dim above {checks.MAX_HEAD_DIM}, got {q.shape[-1]}")


def with_wide_heads(candidate, inputs, options):
    """Raise unless `flash_attn_wide` can take these inputs, and no faster kernel can."""
    require_wide_heads(inputs.q)
    on_tensor_cores(candidate, inputs, options)


def of_copies(candidate, inputs, options):
    """Raise unless `flash_attn_padded` can take these inputs, and only that one fast."""
    on_tensor_cores(candidate, inputs, options)
    if checks.rows_suit_tensor_maps(*inputs):
        raise RefusedValueError(NOTHING_TO_COPY)
    if inputs.q.shape[1] <= FEW_QUERIES:
        raise RefusedValueError(
            f"copies all keys, which pays off for more than {FEW_QUERIES} queries, got "
            f"{inputs.q.shape[1]}"
        )


def check_dropout(candidate, options):
    """Raise unless a function on tensor cores that has dropout can take its probability."""
    if "dropout_p" in options and "dropout_p" in candidate.options:
        largest = dropout.LARGEST_ON_TENSOR_CORES
        checks.check_dropout(options["dropout_p"], options.get("seed", 0), largest=largest)


def with_idle_sms(candidate, inputs, options):
    """Raise unless `flash_attn_split` can take these inputs, and is far faster than the others.

    With at most FEW_ROWS queries for a head of K and V, its query heads counted, decoders are.
    """
    on_tensor_cores(candidate, inputs, options)
    q, k, _ = inputs
    batch, seqlen_q, num_heads, head_dim = q.shape
    sizes = head_dim, batch, seqlen_q, k.shape[1], num_heads, k.shape[2]
    mask = options.get("causal", False), options.get("window_size", (-1, -1))
    problem = SplitProblem(*sizes, *mask, "alibi_slopes" in options)
    num_rows = problem.seqlen_q * problem.group_size
    if num_rows <= FEW_ROWS:
        raise RefusedValueError(
            f"splits the keys, for more than {FEW_ROWS} queries of a group of heads, got {num_rows}"
        )
    gain = split_tiling.gain_of_splitting(problem, arrays.num_sms(q))
    if gain < LEAST_GAIN:
        raise RefusedValueError(
            f"is taken where it is {LEAST_GAIN} times as fast, got {gain:.2f} by the model of "
            "tiling.split_tiling"
        )


def gradient_in_registers(candidate, inputs, options):
    """Raise unless the tiles of `flash_attn_bwd_registers` fit the GPU's shared memory."""
    checks.check_backward_tiles(inputs.q, inputs.q.shape[3], None)


def gradient_on_tensor_cores(candidate, inputs, options):
    """Raise unless a backward function on tensor cores can take these inputs."""
    checks.check_positive_scale(options.get("softmax_scale"), inputs.q.shape[3])
    checks.KERNELS[candidate.name].check_gradients(*inputs)
    check_dropout(candidate, options)


def gradient_in_shared_memory(candidate, inputs, options):
    """The same for a kernel whose tiles may need more shared memory than the GPU has."""
    gradient_on_tensor_cores(candidate, inputs, options)
    head_dim, head_dim_v = inputs.q.shape[3], inputs.v.shape[3]
    head_dims = (head_dim,) if head_dim == head_dim_v else (head_dim, head_dim_v)
    checks.check_shared_bytes(candidate.name, inputs.q, candidate.module.shared_bytes(*head_dims))


def gradient_in_tiles(candidate, inputs, options):
    """Raise unless `flash_attn_bwd_persistent` can take these inputs."""
    gradient_in_shared_memory(candidate, inputs, options)
    given = options.get("dropout_p", 0), options.get("mask"), options.get("score")
    checks.check_bwd_over_v(candidate.name, inputs.q.shape[3], *given)


def gradient_of_copies(candidate, inputs, options):
    """Raise unless `flash_attn_bwd_padded` can take these inputs, and only that one fast."""
    gradient_on_tensor_cores(candidate, inputs, options)
    if inputs.q.shape[3] > checks.MAX_BWD_HEAD_DIM:
        dropout_p = options.get("dropout_p", 0)
        checks.check_no_dropout(candidate.name, inputs.q.shape[3], dropout_p)
    dout, q, k, v, out, _ = inputs
    if checks.rows_suit_tensor_maps(dout, q, k, v, out):
        raise RefusedValueError(NOTHING_TO_COPY)


def gradients_of_score_args(*arrays, score_args_grad, sinks=None, **options):
    """The result of the option score_args_grad."""
    return score_args_bwd(*arrays, **options)


def with_score_args_grad(candidates):
    """These candidates for gradients: on a GPU a kernel of its own has the option."""
    after = {"score_args_grad": gradients_of_score_args}
    return [x if x.package == CPU else dataclasses.replace(x, after=after) for x in candidates]


def with_lengths(q, k, v):
    """The arguments of a decoder, which takes the number of keys of each sequence after v."""
    return (q, k, v, arrays.constant(q, (q.shape[0],), k.shape[1], np.int32)), {}


def forward(name, **more):
    """A candidate for `flash_attn` on tensor cores."""
    return Candidate(name, "tensor_core", **{"check": on_tensor_cores} | more)


def backward(name, **more):
    """A candidate for `flash_attn_grad` on tensor cores."""
    return Candidate(name, "tensor_core", **{"check": gradient_in_shared_memory} | more)


def in_three_products(check):
    """A check of a kernel that makes three TF32 products of one: only where that is faster."""

    def check_all(candidate, inputs, options):
        check(candidate, inputs, options)
        here = arrays.compute_capability(inputs.q)
        if not tf32_pays_off(here):
            raise RefusedGpuError(
                "makes three TF32 products of one in float32, and on a GPU of compute capability "
                f"{here[0]}.{here[1]} TF32 is not known to be three times as fast as float32"
            )

    return check_all


def tf32_pays_off(compute_capability) -> bool:
    """Can three TF32 products replace one of float32? By the peaks in the table of GPUs.

    TF32 is 7 to 15 times as fast as float32 without tensor cores on data-centre GPUs since the
    A100, once or twice on all others.
    """
    gpu = devices.alike(compute_capability)
    return gpu is not None and (gpu.tf32 or 0) > 3 * gpu.float32


def with_many_keys(candidate, inputs, options):
    """Raise unless `flash_decode_wide` has few queries, or many keys to divide among SMs."""
    seqlen_q, seqlen_k = inputs.q.shape[1], inputs.k.shape[1]
    if seqlen_q > WIDE_QUERIES and seqlen_k < MANY_KEYS:
        raise RefusedValueError(
            f"splits the keys, which pays off for more than {WIDE_QUERIES} queries from "
            f"{MANY_KEYS} keys on, got {seqlen_q} and {seqlen_k}"
        )


_DECODES = {"most_queries": FEW_QUERIES, "adapt": with_lengths}
_BY_TMA = "16 bits on Hopper's tensor cores: most multiplications per second"
_BY_MMA = "16 bits on tensor cores by mma"
_BY_TF32 = "float32 as three TF32 products on tensor cores"
_IN_REGISTERS = "takes any GPU and dtype, with its tiles in registers"
# The fastest first: `python -m benchmarks choice` compares the order with the time of each of them.
FORWARD = (
    on_cpu("flash_attn"),
    forward(
        "flash_attn_split",
        why="few tiles of queries would leave SMs idle: it divides the keys, or has small tiles",
        check=with_idle_sms,
    ),
    forward(
        "flash_decode_gather",
        why="few queries: reading K and V takes the time, and it divides the keys among all SMs",
        **_DECODES,
    ),
    forward(
        "flash_decode_mma",
        why="few queries: it divides the keys among all SMs, on tensor cores",
        **_DECODES,
    ),
    Candidate(
        "flash_decode_wide",
        "on_cuda_cores",
        why="few queries: it divides the keys among all SMs, without tensor cores",
        check=with_many_keys,
        **_DECODES,
    ),
    forward("flash_attn_persistent", why=_BY_TMA, head_dims=checks.ANY_HEAD_DIMS),
    forward(
        "flash_attn_wide",
        why=f"it alone runs on tensor cores at a head_dim above {checks.MAX_HEAD_DIM}",
        check=with_wide_heads,
        head_dims=checks.WIDE_HEAD_DIM,
    ),
    forward(
        "flash_attn_padded",
        why="it alone runs on Hopper's tensor cores for rows that begin or end at no multiple of "
        "16 bytes",
        check=of_copies,
    ),
    forward("flash_attn_mma", why=_BY_MMA),
    forward("flash_attn_tf32x3", why=_BY_TF32, check=in_three_products(on_tensor_cores)),
    Candidate("flash_attn_registers", "on_cuda_cores", why=_IN_REGISTERS),
    lesson("flash_attn_v2", head_dims=checks.ANY_HEAD_DIMS),
)
BACKWARD = (
    on_cpu("flash_attn_grad"),
    backward(
        "flash_attn_bwd_persistent",
        why=_BY_TMA,
        check=gradient_in_tiles,
        head_dims=checks.ANY_HEAD_DIMS,
    ),
    backward(
        "flash_attn_bwd_wide",
        why="it alone has gradients on tensor cores in 16 bits at a head_dim above "
        f"{checks.MAX_BWD_HEAD_DIM}, but for one up to {checks.MAX_BWD_HEAD_DIM_OVER_V} where v "
        "has a shorter one",
        head_dims=checks.ANY_HEAD_DIMS,
    ),
    backward(
        "flash_attn_bwd_stored",
        why=f"it alone has gradients at a head_dim above {checks.MAX_HEAD_DIM}",
        always=("deterministic",),
        head_dims=checks.HeadDims(checks.MAX_WIDE_HEAD_DIM),
    ),
    backward(
        "flash_attn_bwd_padded",
        check=gradient_of_copies,
        why="it alone has gradients on Hopper's tensor cores for rows that begin or end at no "
        "multiple of 16 bytes",
    ),
    backward("flash_attn_bwd_mma", why=_BY_MMA),
    backward(
        "flash_attn_bwd_tf32x3",
        why=_BY_TF32,
        check=in_three_products(gradient_in_shared_memory),
    ),
    Candidate(
        "flash_attn_bwd_registers", "on_cuda_cores", why=_IN_REGISTERS, check=gradient_in_registers
    ),
    lesson("flash_attn_bwd", always=("deterministic",), head_dims=HEAD_DIMS),
)


@job(*FORWARD)
def flash_attn(
    q,
    k,
    v,
    *,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    softmax_scale=None,
    dropout_p=0.0,
    seed=0,
    mask=None,
    mask_args=(),
    score=None,
    score_args=(),
    sinks=None,
) -> tuple:
    """Attention by the fastest kernel for these arrays and options: see `which`.

    Parameters
    ----------
    q : array of shape (batch, seqlen_q, num_heads, head_dim), float32, float16 or bfloat16
        PyTorch has (batch, num_heads, seqlen_q, head_dim): ``q.transpose(1, 2)``. Where the shapes
        of q and k are possible in both layouts, nothing can tell them apart.
    k, v : arrays of shape (batch, seqlen_k, num_kv_heads, head_dim), dtype of q
    causal, window_size, softcap, alibi_slopes, softmax_scale, dropout_p, seed, mask, mask_args, \
    score, score_args, sinks
        As for `flash_attn_v2`.

    Returns
    -------
    out : array of the shape, dtype and library of q
        0 in a row that sees no key.
    lse : array of shape (batch, num_heads, seqlen_q), float32
        Natural log of the row's sum of e^score; −inf in a row that sees no key.
    """
    inputs = Inputs(*map(arrays.facts, (q, k, v)))
    checks.check_qkv(*inputs, head_dims=checks.ANY_HEAD_DIMS)
    options = causal, window_size, softcap, alibi_slopes, softmax_scale
    written = mask, mask_args, score, score_args, sinks
    return inputs, options_of(inputs.q, *options, *written, dropout_p=dropout_p, seed=seed)


@job(*with_score_args_grad(BACKWARD))
def flash_attn_grad(
    dout,
    q,
    k,
    v,
    out,
    lse,
    *,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    softmax_scale=None,
    dropout_p=0.0,
    seed=0,
    deterministic=False,
    mask=None,
    mask_args=(),
    score=None,
    score_args=(),
    sinks=None,
    score_args_grad=False,
) -> tuple:
    """Gradients of attention by the fastest kernel for these arrays and options.

    Parameters
    ----------
    dout : array of the shape, dtype and library of q
        Gradient of the loss with respect to `out`.
    q, k, v, causal, window_size, softcap, alibi_slopes, softmax_scale, dropout_p, seed, mask, \
    mask_args, score, score_args, sinks
        The arguments of `flash_attn`.
    out, lse : arrays
        The results of `flash_attn`, or of any other forward kernel here, for these arguments.
    deterministic : bool, default=False
        The same bits in every run. That takes longer: the fastest kernels add to dq in any order.
    score_args_grad : bool, default=False
        Return the gradients of score_args too. On a GPU they are summed in any order, so
        deterministic must be False.

    Returns
    -------
    dq, dk, dv : arrays of the shapes, dtype and library of q, k, v
        0 for a row that sees no key and for a key that no row sees.
    dsinks : array of the shape, dtype and library of sinks
        With sinks alone.
    dscore_args : tuple
        With score_args_grad alone: of each array of floats in score_args its gradient, of shape and
        dtype of the array, and None of the others.
    """
    inputs = GradientInputs(*map(arrays.facts, (dout, q, k, v, out, lse)))
    checks.check_bwd(*inputs, head_dims=checks.ANY_HEAD_DIMS)
    options = causal, window_size, softcap, alibi_slopes, softmax_scale
    written = mask, mask_args, score, score_args, sinks
    more = {"dropout_p": dropout_p, "seed": seed, "deterministic": deterministic}
    more["score_args_grad"] = score_args_grad
    return inputs, options_of(inputs.q, *options, *written, **more)
