"""`flex_attention` and `create_block_mask` with the arguments of torch.nn.attention.flex_attention.

A mask_mod or score_mod is read once, by `fa_numba.expressions.trace`, and never evaluated on pairs.
Tensors that it finds in its closure or globals become arguments, so that other ones of the same
shapes compile nothing. There q_idx is the index of a query; a kernel has its position, which is
larger by seqlen_k − seqlen_q. `torch.compile` breaks its graph at a call.
"""

import math

import numpy as np
import torch

from fa_numba.checks import torch_calls
from fa_numba.checks.values import integer
from fa_numba.expressions import nodes
from fa_numba.expressions.nodes import Node, const, make
from fa_numba.expressions.tiles import HIDDEN, tile_classes
from fa_numba.expressions.trace import trace
from fa_numba.torch import jobs, operators
from fa_numba.torch.autocast import autocast

VARIABLES = {"mask_mod": "b h m n", "score_mod": "s b h m n"}
LESS_INFINITY = const(-math.inf)
CREATE = "create_block_mask of fa_numba.torch makes one from a mask_mod"


class BlockMask:
    """A mask_mod with sizes; made by `create_block_mask`.

    Attributes
    ----------
    mask_mod : callable
    shape : (B or 1, H or 1, Q_LEN, KV_LEN)
    seq_lengths : (Q_LEN, KV_LEN)
    BLOCK_SIZE : (int, int)
        Of `sparsity` and `to_dense`. Kernels have tiles of their own.
    """

    def __init__(self, mask_mod, shape, block_size):
        self.mask_mod, self.shape, self.BLOCK_SIZE = mask_mod, shape, block_size

    @property
    def seq_lengths(self):
        return self.shape[2:]

    def numel(self):
        return math.prod(self.shape)

    def to(self, device):
        """Itself: the tensors of mask_mod are where they are."""
        return self

    def to_dense(self):
        """A tensor (B or 1, H or 1, blocks of queries, blocks of keys): 0 for a hidden block.

        By intervals: a block may have a 1 although its last key is hidden too.
        """
        batch, num_heads, *sizes = self.shape
        captured = []
        node = trace(self.mask_mod, "mask_mod", VARIABLES["mask_mod"], (), captured)
        args = [np.atleast_1d(jobs.as_numpy(torch.as_tensor(x).cpu())) for x in captured]
        size = *self.BLOCK_SIZE, args, batch, num_heads
        seen = tile_classes(nodes.as_bool(node), sizes, *size, first_position=0) != HIDDEN
        shape = batch, num_heads, *seen.shape[2:]
        return torch.from_numpy(np.broadcast_to(seen, shape).astype(np.int32))

    def sparsity(self):
        """The share of hidden blocks, in percent."""
        return 100 * (1 - self.to_dense().float().mean().item())

    def __repr__(self):
        return f"BlockMask(shape={self.shape}, BLOCK_SIZE={self.BLOCK_SIZE})"


def create_block_mask(
    mask_mod, B, H, Q_LEN, KV_LEN, device=None, BLOCK_SIZE=128, _compile=False, **_
):
    """A mask for `flex_attention`, in place of PyTorch's. It evaluates nothing.

    Parameters
    ----------
    mask_mod : callable
        ``mask_mod(b, h, q_idx, kv_idx)``: whether a query sees a key.
    B, H : int or None
        None: all sequences, or all heads, have one mask.
    Q_LEN, KV_LEN : int
    device, _compile, and other options of PyTorch's
        They change nothing here.
    BLOCK_SIZE : int or (int, int), default=128
        Of `BlockMask.sparsity` and `BlockMask.to_dense`.

    Returns
    -------
    BlockMask
    """
    if not callable(mask_mod):
        raise TypeError(
            f"mask_mod must be a function of b, h, q_idx, kv_idx, got {type(mask_mod).__name__}"
        )
    size = BLOCK_SIZE if isinstance(BLOCK_SIZE, (tuple, list)) else (BLOCK_SIZE,) * 2
    if len(size) != 2:
        raise ValueError(f"BLOCK_SIZE must be an int or two, got {BLOCK_SIZE}")
    named = {"B": 1 if B is None else B, "H": 1 if H is None else H, "Q_LEN": Q_LEN}
    shape = [integer(name, x, at_least=1) for name, x in (named | {"KV_LEN": KV_LEN}).items()]
    return BlockMask(
        mask_mod, tuple(shape), tuple(integer("BLOCK_SIZE", x, at_least=1) for x in size)
    )


def and_masks(*mask_mods):
    """A mask_mod that sees what all of them see."""

    def and_mask(b, h, q_idx, kv_idx):
        result = True
        for mask_mod in mask_mods:
            result = mask_mod(b, h, q_idx, kv_idx) & result
        return result

    return and_mask


def or_masks(*mask_mods):
    """A mask_mod that sees what one of them sees."""

    def or_mask(b, h, q_idx, kv_idx):
        result = False
        for mask_mod in mask_mods:
            result = mask_mod(b, h, q_idx, kv_idx) | result
        return result

    return or_mask


def flex_attention(
    query,
    key,
    value,
    score_mod=None,
    block_mask=None,
    scale=None,
    enable_gqa=False,
    return_lse=False,
    kernel_options=None,
    *,
    return_aux=None,
):
    """Attention in place of `torch.nn.attention.flex_attention.flex_attention`, with gradients.

    Parameters
    ----------
    query : tensor of shape (batch, num_heads, seqlen_q, head_dim), float32, float16 or bfloat16
    key, value : tensors of shape (batch or 1, num_kv_heads, seqlen_k, head_dim), dtype of query
    score_mod : callable, default=None
        ``score_mod(score, b, h, q_idx, kv_idx)``, in place of the score. A float tensor that it
        captures gets a gradient where `fa_numba.flash_attn_grad` has one, else it is refused.
    block_mask : BlockMask, default=None
        Of `create_block_mask`.
    scale : float, default=1/√head_dim
    enable_gqa : bool, default=False
        num_kv_heads may be a divisor of num_heads.
    return_lse : bool, default=False
        Return (out, lse); lse has no gradient.
    kernel_options : dict, default=None
        Those of PyTorch's kernels: they change nothing here.
    return_aux : AuxRequest, default=None
        Of PyTorch: lse alone.

    Returns
    -------
    out : tensor of the shape, dtype and device of query
        0 in a row that sees no key.
    lse : tensor of shape (batch, num_heads, seqlen_q), float32
        Natural log of the row's sum of e^score; −inf in a row that sees no key.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, and for a function that cannot be read the line in it.
    """
    torch_calls.check_sdpa_options(None, 0.0, False, scale, enable_gqa)
    torch_calls.check_flags(return_lse=return_lse)
    torch_calls.check_tensors(query=query, key=key, value=value)
    if getattr(return_aux, "max_scores", False):
        raise ValueError("return_aux must ask for lse alone, got max_scores=True")
    query, key, value = autocast(query, key, value)
    if query.ndim != 4:
        raise ValueError(
            "query must have axes (batch, num_heads, seqlen, head_dim), got shape "
            f"{tuple(query.shape)}"
        )
    if key.ndim == value.ndim == 4 and key.shape[0] == value.shape[0] == 1:
        key, value = (x.expand(query.shape[0], -1, -1, -1) for x in (key, value))
    torch_calls.check_sdpa(query, key, value, enable_gqa)
    options = _functions(score_mod, _mask_mod_of(block_mask, query, key), query, key)
    options["softmax_scale"] = None if scale is None else float(scale)
    options["deterministic"] = torch.are_deterministic_algorithms_enabled()
    out, lse = attend(*(x.transpose(1, 2) for x in (query, key, value)), **options)
    out = out.transpose(1, 2)
    if return_aux is not None:
        from torch.nn.attention.flex_attention import AuxOutput

        return out, AuxOutput(lse=lse if return_aux.lse else None)
    return (out, lse) if return_lse else out


def _mask_mod_of(block_mask, query, key):
    """The mask_mod, of a mask for these sizes."""
    if block_mask is None:
        return None
    if not isinstance(block_mask, BlockMask):
        kind = type(block_mask)
        raise TypeError(f"block_mask must be a BlockMask, got {kind.__qualname__}: {CREATE}")
    sizes = *query.shape[:3], key.shape[2]
    named = zip(("B", "H", "Q_LEN", "KV_LEN"), block_mask.shape, sizes, strict=True)
    for i, (name, given, size) in enumerate(named):
        if given != size and not (i < 2 and given == 1):
            raise ValueError(f"block_mask must have {name} {size} of these tensors, got {given}")
    return block_mask.mask_mod


def _functions(score_mod, mask_mod, query, key):
    """The options mask, mask_args, score, score_args of a job."""
    offset = key.shape[2] - query.shape[2]
    mask, mask_args = _read(mask_mod, "mask_mod", offset)
    score, score_args = _read(score_mod, "score_mod", offset)
    while score is not None and score.op == "where" and score.args[2] == LESS_INFINITY:
        # A score of −inf hides a key, as a mask does, which skips tiles too.
        seen, score, _ = score.args
        if "s" in nodes.variables(seen):
            raise TypeError("score_mod must not hide a key by its score: where(…, -inf)")
        seen = nodes.replaced(seen, {}, len(mask_args))
        mask, mask_args = seen if mask is None else make("and", mask, seen), mask_args + score_args
    options = {"mask": mask and nodes.as_bool(mask), "mask_args": mask_args}
    options |= {"score": score, "score_args": score_args}
    return {name: x for name, x in options.items() if x is not None and x != ()}


def _read(function, name, offset):
    """A function's expression in positions, and its arguments."""
    if function is None:
        return None, ()
    captured = []
    node = trace(function, name, VARIABLES[name], (), captured)
    arguments = tuple(x.reshape(1) if not x.shape else x for x in captured)
    if offset:
        by = Node("var", (f"arg{len(arguments)}",), "int")
        index = make("sub", Node("var", ("m",), "int"), by)
        node, arguments = nodes.replaced(node, {"m": index}), (*arguments, offset)
    return node, arguments


def attend(q, k, v, starts=(), *, sinks=None, score_args=(), **options):
    """Attention by a job with a mask, score or sinks; returns out, and lse without a gradient.

    Parameters
    ----------
    q, k, v : tensors
        With the axes of the jobs.
    starts : (cu_seqlens_q, cu_seqlens_k), or ()
    sinks : tensor, default=None
    score_args : tuple
    **options
        Of `fa_numba.flash_attn`.
    """
    more = [x for x in score_args if isinstance(x, torch.Tensor)]
    places = [isinstance(x, torch.Tensor) for x in score_args]
    numbers = [x for x in score_args if not isinstance(x, torch.Tensor)]
    for x in options.get("mask_args", ()):
        if isinstance(x, torch.Tensor) and x.requires_grad and torch.is_grad_enabled():
            if not any(x is y for y in more):
                raise ValueError(
                    "a tensor that mask_mod captures must not require a gradient, got one of shape "
                    f"{tuple(x.shape)}: a mask has no gradient"
                )
    return _Attention.apply((options, starts, places, numbers), q, k, v, sinks, *more)


class _Attention(torch.autograd.Function):
    """A node of autograd for one call."""

    @staticmethod
    def forward(ctx, given, q, k, v, sinks, *more):
        """As `attend`; given are its options, starts, places and numbers.

        `places` says which of score_args are tensors, `more`, and not `numbers`.
        """
        options, starts, places, numbers = ctx.given = given
        job = jobs.flash_attn_varlen if starts else jobs.flash_attn
        options = options | _with(sinks, places, numbers, more)
        options.pop("deterministic", None)
        out, lse = jobs.run(job, q, k, v, *starts, **options)
        ctx.save_for_backward(q, k, v, out, lse, sinks, *more)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx, dout, _):
        options, starts, places, numbers = ctx.given
        q, k, v, out, lse, sinks, *more = ctx.saved_tensors
        job = jobs.flash_attn_varlen_grad if starts else jobs.flash_attn_grad
        options = options | _with(sinks, places, numbers, more)
        if any(ctx.needs_input_grad[5:]):
            options["score_args_grad"] = True
        if torch.is_grad_enabled():
            torch_calls.refuse_second_derivatives()
        found = jobs.run(job, dout, q, k, v, out, lse, *starts, **options)
        dq, dk, dv, *found = found
        dsinks = None if sinks is None else found.pop(0)
        of_more = [x for x, place in zip(found, places, strict=True) if place] if found else []
        return None, dq, dk, dv, dsinks, *(of_more or [None] * len(more))


@torch.no_grad()
def decode(*arguments, **tensors_by_name):
    """The operator `flash_decode` with sinks, or scales of a cache of e4m3 as uint8, by name."""
    job, tensors, options = operators._flash_decode(*arguments)
    return jobs.run(job, *tensors, **options, **tensors_by_name)


def _with(sinks, places, numbers, more):
    """The options sinks and score_args, from the tensors and numbers apart."""
    options = {} if sinks is None else {"sinks": sinks}
    if places:
        numbers, more = iter(numbers), iter(more)
        options["score_args"] = tuple(next(more if x else numbers) for x in places)
    return options


flex_attention = torch.compiler.disable(flex_attention)
attend = torch.compiler.disable(attend)
decode = torch.compiler.disable(decode)
