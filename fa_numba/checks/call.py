"""A checked call: its options, arrays and results in the form that a launcher needs."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fa_numba.checks import attention, values
from fa_numba.checks import expressions as checked
from fa_numba.checks.expressions import check_expressions, check_sinks
from fa_numba.checks.hardware import TensorCores
from fa_numba.checks.requirements import ONE_HEAD_DIM, HeadDims
from fa_numba.checks.values import Mask
from fa_numba.constants import LOG2_E
from fa_numba.expressions.functions import NO_EXPRESSIONS, Expressions
from fa_numba.expressions.given import Given
from fa_numba.expressions.indices import check_indices
from fa_numba.runtime import arrays


@dataclass(frozen=True, eq=False)
class Scores:
    """The checked options that mask and modify scores, in the form that kernels take.

    Attributes
    ----------
    mask : Mask
        Compile-time constants of the kernel.
    slopes : array, or a scalar that kernels do not read
        ALiBi's.
    given : Given or None
        The user's mask and score. Then `mask` and `slopes` are those of no option, but for a
        softcap that the kernel takes beside them.
    softmax_scale : float32
    sinks : array, or a scalar that kernels do not read
    has_sinks : bool
    """

    mask: Mask
    slopes: object
    given: Given | None
    softmax_scale: np.float32
    sinks: object
    has_sinks: bool

    @property
    def scale_log2(self) -> np.float32:
        """softmax_scale · log2 e, for kernels that compute powers of 2."""
        return np.float32(self.softmax_scale * LOG2_E)

    @property
    def expressions(self) -> Expressions:
        """The user's mask and score, compile-time constants of the kernel."""
        return NO_EXPRESSIONS if self.given is None else self.given.expressions

    @property
    def expressions_if_any(self) -> Expressions | None:
        """The same for a kernel with a form without them."""
        return None if self.given is None else self.given.expressions

    @property
    def sinks_if_any(self):
        """The sinks, or None."""
        return self.sinks if self.has_sinks else None

    @property
    def sink_args(self) -> tuple:
        """The sinks in a tuple, which is empty without."""
        return (self.sinks,) if self.has_sinks else ()

    @property
    def expression_args(self) -> tuple:
        """The arguments of the user's mask and score."""
        return () if self.given is None else self.given.arguments


def check_scores(
    q,
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
    *,
    k=None,
    as_options=False,
    cap_apart=False,
    only_causal=False,
    positive_scale=False,
) -> Scores:
    """Check the options that mask and modify scores: `options.SCORES`.

    Parameters
    ----------
    q : array, or its facts
        Its heads are the axis before the last.
    causal, window_size, softcap, alibi_slopes, softmax_scale, mask, mask_args, score, score_args, \
    sinks
        As the launcher got them.
    k : array of shape (batch, seqlen_k, num_kv_heads, head_dim), or its facts, default=None
        Then every index that the functions can have is checked. Packed and cached sequences have
        lengths that may be on a GPU.
    as_options : bool, default=False
        Take the options in place of functions that say the same (`expressions.as_options`): not in
        a kernel to read.
    cap_apart : bool, default=False
        Beside another mask a softcap stays an option: the kernel has one beside the functions.
    only_causal : bool, default=False
        Options other than causal become functions: the kernel has no others.
    positive_scale : bool, default=False
        The kernel takes no other softmax_scale.

    Returns
    -------
    Scores
    """
    options, slopes = values.check_mask(q, causal, window_size, softcap, alibi_slopes)
    given = check_expressions(q, mask, mask_args, score, score_args, options, alibi_slopes)
    if as_options and given is not None:
        same = checked.as_options(given, options, score, score_args)
        if same is not None:
            options, given = same, None
    if only_causal and given is None and options != Mask(options.causal):
        given = checked.as_functions(options, alibi_slopes)
    if given is not None:
        softcap = 0.0
        if cap_apart:
            given, softcap = checked.apart_from_cap(given, options, score, score_args)
        options, slopes = Mask(softcap=softcap), values.NO_SLOPES
        if k is not None:
            batch, seqlen_q, num_heads, _ = q.shape
            check_indices(given, batch, num_heads, seqlen_q, k.shape[1])
    check_scale = values.check_positive_scale if positive_scale else values.check_softmax_scale
    sinks = check_sinks(q, sinks)
    return Scores(options, slopes, given, check_scale(softmax_scale, q.shape[-1]), *sinks)


@dataclass(frozen=True, eq=False, kw_only=True)
class Call(Scores):
    """One checked call of attention, forward; `forward_call` makes it.

    Attributes
    ----------
    q, k, v : arrays
    out, lse : arrays
        Uninitialised, for the kernel to write.
    """

    q: object
    k: object
    v: object
    out: object
    lse: object

    batch = property(lambda self: self.q.shape[0])
    seqlen_q = property(lambda self: self.q.shape[1])
    num_heads = property(lambda self: self.q.shape[2])
    head_dim = property(lambda self: self.q.shape[3])
    head_dim_v = property(lambda self: self.v.shape[3])
    seqlen_k = property(lambda self: self.k.shape[1])
    num_kv_heads = property(lambda self: self.k.shape[2])

    @property
    def group_size(self) -> int:
        """Query heads for each head of K and V."""
        return self.num_heads // self.num_kv_heads

    @cached_property
    def dtype(self) -> str:
        """Name of the dtype of q, k and v."""
        return arrays.dtype_name(self.q)

    @property
    def arguments(self) -> tuple:
        """Kernel arguments in the usual order: q, k, v, out, lse, softmax_scale, slopes."""
        return self.q, self.k, self.v, self.out, self.lse, self.softmax_scale, self.slopes

    def results_without_keys(self):
        """Return out and lse of a call without a single key: 0 and −inf, or the sink."""
        out = arrays.full(self.q, self.out.shape, 0, self.out.dtype)
        lse = arrays.full(self.q, self.lse.shape, -np.inf)
        if self.has_sinks:
            lse[...] = self.sinks[:, None]
        return out, lse


def forward_call(
    q, k, v, *given, on: TensorCores | None = None, out_dtype: str | None = None,
    head_dims: HeadDims = ONE_HEAD_DIM, **options,
) -> Call:  # fmt: skip
    """Check the arguments of a forward launcher, and allocate its results.

    Parameters
    ----------
    q, k, v
        As the launcher got them.
    *given, **options
        The options of `check_scores`, by position or by name.
    on : TensorCores, default=None
        The requirements of a kernel on tensor cores. Its softmax_scale must be positive, and its
        arrays must begin at a multiple of 16 bytes.
    out_dtype : "float32", default=None
        Dtype of out; None is that of q.
    head_dims : HeadDims, default=one up to 256
        Those that the kernel takes; those of a kernel on tensor cores are in `on`.

    Returns
    -------
    Call
    """
    out_dtype = values.check_out_dtype(out_dtype)
    facts = [arrays.facts(x) for x in (q, k, v)]
    if on is None:
        attention.check_qkv(*facts, head_dims=head_dims)
    else:
        on.check(*facts)
        options |= {"as_options": True, "cap_apart": on.cap_apart, "positive_scale": True}
    scores = check_scores(facts[0], *given, k=facts[1], **options)
    shape = *facts[0].shape[:3], facts[2].shape[3]
    out = arrays.empty(q, shape, q.dtype if out_dtype is None else np.float32)
    batch, seqlen_q, num_heads, _ = shape
    lse = arrays.empty(q, (batch, num_heads, seqlen_q))
    return Call(**vars(scores), q=q, k=k, v=v, out=out, lse=lse)
