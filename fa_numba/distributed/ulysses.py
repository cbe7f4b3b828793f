"""Ulysses: exchange tokens for heads, attend on one device, exchange back.

At first every rank has some tokens with all heads. After an all-to-all it has all tokens with some
heads. Attention is then the same as on one device, with any mask and any option, ALiBi included. A
second all-to-all sends the results to the owners of the tokens.

A rank sends (world_size − 1) / world_size of its q, k, v and out. A ring sends k and v
world_size − 1 times, which is more. But there cannot be more ranks than query heads, and with more
ranks than K/V heads each K/V head is sent to several ranks. No rank computes during the exchanges.

The backward pass exchanges in the same way. Where several ranks have a K/V head, each has a part of
its dK and dV; these parts travel in float32, and are added in the order of the ranks.

Paper: Jacobs et al. 2023, DeepSpeed Ulysses, arXiv:2309.14509, section 3.
"""

import numpy as np

from fa_numba.checks import distributed as checks
from fa_numba.checks.options import FUNCTIONS, PLAIN, takes
from fa_numba.distributed.layouts import make_layout
from fa_numba.distributed.local_attn import local_attn, local_attn_grad, rounded
from fa_numba.distributed.parts import parts_of
from fa_numba.distributed.placed import placed
from fa_numba.distributed.plan import Plan
from fa_numba.kv_cache.head_shard import head_shard
from fa_numba.on_cuda_cores.running_state import copy_into
from fa_numba.runtime import arrays

HEADS = 2  # axis of the heads of q, k, v; tokens are along axis 1
HEADS_OF_LSE = 1  # tokens are along axis 2


@takes(PLAIN | FUNCTIONS)
def ulysses_attn(
    comm, q, k, v, *, layout="contiguous", seqlen=None, cu_seqlens=None, attn=None, **options
):
    """Self-attention over the tokens of all ranks, with the heads split; every rank calls it.

    Parameters
    ----------
    comm : Communicator
        Its world_size divides num_heads, and divides num_kv_heads or is a multiple of it.
    q, k, v, seqlen, cu_seqlens, causal, window_size, softcap, alibi_slopes, softmax_scale, \
    mask, mask_args, score, score_args, attn
        As for `ring_attn`.
    layout : "contiguous", "striped" or "zigzag", default="contiguous"
        The layout of the arguments and results. It does not change the work of a rank.

    Returns
    -------
    out, lse : arrays
        As from `ring_attn`.
    """
    checks.check_communicator(comm)
    packed = cu_seqlens is not None
    q, k, v = checks.check_ring(q, k, v, packed)
    plan = _Plan("ulysses_attn", comm, q, k, layout, seqlen, cu_seqlens, **options)

    comm.record.begin_step()
    q_heads = plan.to_heads(q, plan.q_heads)
    k_heads, v_heads = (plan.to_heads(x, plan.kv_heads) for x in (k, v))
    batch, num_tokens, num_heads, _ = q_heads.shape
    out = arrays.full(q, q_heads.shape, 0)
    lse = arrays.full(q, (batch, num_heads, num_tokens), -np.inf)
    attn = local_attn(attn)
    for part in plan.parts():
        m, n = part.queries, part.keys
        out_part, lse[:, :, m] = attn(
            q_heads[:, m], k_heads[:, n], v_heads[:, n], **plan.options(part)
        )
        copy_into(out[:, m], out_part)
        comm.record.step.pairs += part.pairs

    comm.record.begin_step()
    out = plan.to_tokens(rounded(out, q.dtype), plan.q_heads)
    lse = plan.to_tokens(lse, plan.q_heads, HEADS_OF_LSE)
    return (out[0], lse[0]) if packed else (out, lse)


@takes(PLAIN | FUNCTIONS)
def ulysses_attn_grad(
    comm, dout, q, k, v, out, lse, *, layout="contiguous", seqlen=None, cu_seqlens=None,
    attn_grad=None, **options,
):  # fmt: skip
    """Gradients of `ulysses_attn`; every rank calls it.

    Parameters
    ----------
    comm, dout, q, k, v, out, lse, layout, seqlen, cu_seqlens, causal, window_size, softcap, \
    alibi_slopes, softmax_scale, mask, mask_args, score, score_args, attn_grad
        As for `ring_attn_grad`, which takes the results of `ulysses_attn`, too.

    Returns
    -------
    dq, dk, dv : arrays of the shapes and dtype of q, k, v
        Of this rank's tokens.
    """
    checks.check_communicator(comm)
    packed = cu_seqlens is not None
    q, k, v, dout, out, lse = checks.check_ring_grad(dout, q, k, v, out, lse, packed)
    plan = _Plan("ulysses_attn_grad", comm, q, k, layout, seqlen, cu_seqlens, **options)

    comm.record.begin_step()
    dout, out, q_all = (plan.to_heads(x, plan.q_heads) for x in (dout, out, q))
    k_all, v_all = (plan.to_heads(x, plan.kv_heads) for x in (k, v))
    lse = plan.to_heads(lse, plan.q_heads, HEADS_OF_LSE)
    totals = [arrays.full(q, x.shape, 0) for x in (q_all, k_all, v_all)]
    attn_grad = local_attn_grad(attn_grad)
    for part in plan.parts():
        m, n = part.queries, part.keys
        gradients = attn_grad(
            dout[:, m], q_all[:, m], k_all[:, n], v_all[:, n], out[:, m], lse[:, :, m],
            **plan.options(part),
        )  # fmt: skip
        for total, rows, x in zip(totals, (m, n, n), gradients, strict=True):
            copy_into(total[:, rows], x)
        comm.record.step.pairs += part.pairs

    comm.record.begin_step()
    dq, dk, dv = totals
    dq = plan.to_tokens(rounded(dq, q.dtype), plan.q_heads)
    if not plan.kv_heads_are_shared:
        dk, dv = (rounded(x, q.dtype) for x in (dk, dv))
    dk, dv = (rounded(plan.to_tokens(x, plan.kv_heads), q.dtype) for x in (dk, dv))
    return tuple(x[0] for x in (dq, dk, dv)) if packed else (dq, dk, dv)


class _Plan(Plan):
    """The tokens and the heads of each rank, and the two exchanges."""

    def __init__(self, function, comm, q, k, layout, seqlen, cu_seqlens, **options):
        super().__init__(function, comm, q, k, layout, seqlen, cu_seqlens, **options)
        self.ranks = range(comm.world_size)
        shards = [head_shard(q.shape[2], k.shape[2], comm.world_size, r) for r in self.ranks]
        self.q_heads, self.kv_heads = zip(*shards, strict=True)
        self.whole = make_layout("contiguous", self.layout.cu_seqlens[-1], 1, cu_seqlens)
        if (slopes := options.get("alibi_slopes")) is not None:
            self.scores["alibi_slopes"] = slopes[self.q_heads[comm.rank]]

    @property
    def kv_heads_are_shared(self):
        """Whether several ranks have the same K/V head."""
        return len(set(map(str, self.kv_heads))) < len(self.kv_heads)

    def parts(self):
        """A part for each sequence that has tokens."""
        return parts_of(self.whole, 0, 0, self.left, self.right, joined=self.functions.is_empty)

    def options(self, part):
        """The options of a kernel's call for a part."""
        first_head, masked = self.q_heads[self.comm.rank].start, max(self.left, self.right) >= 0
        return self.scores | placed(self.functions, part, first_head, masked)

    def to_heads(self, x, heads, axis=HEADS):
        """This rank's heads of x, of all tokens in their order; heads are along `axis`."""
        mine = _size(heads[self.comm.rank])
        shapes = [_shape(x, axis, mine, self.layout.count(r)) for r in self.ranks]
        arrived = self.comm.all_to_all([_part(x, axis, of_rank) for of_rank in heads], shapes)
        made = arrays.empty(x, _shape(x, axis, mine, self.whole.count(0)), x.dtype)
        for rank, piece in enumerate(arrived):
            for tokens, rows in self.layout.slices(rank):
                copy_into(_part(made, 3 - axis, tokens), _part(piece, 3 - axis, rows))
        return made

    def to_tokens(self, x, heads, axis=HEADS):
        """All heads of x, of this rank's tokens; heads that several ranks have are added."""
        pieces, mine = [], self.layout.count(self.comm.rank)
        for rank in self.ranks:
            shape = _shape(x, axis, x.shape[axis], self.layout.count(rank))
            pieces.append(arrays.empty(x, shape, x.dtype))
            for tokens, rows in self.layout.slices(rank):
                copy_into(_part(pieces[-1], 3 - axis, rows), _part(x, 3 - axis, tokens))
        shapes = [_shape(x, axis, _size(of_rank), mine) for of_rank in heads]
        arrived = self.comm.all_to_all(pieces, shapes)
        made = arrays.empty(x, _shape(x, axis, heads[-1].stop, mine), x.dtype)
        before = None
        for of_rank, piece in zip(heads, arrived, strict=True):
            if of_rank == before:
                into = _part(made, axis, of_rank)
                into += piece
            else:
                copy_into(_part(made, axis, of_rank), piece)
            before = of_rank
        return made


def _size(part):
    return part.stop - part.start


def _part(x, axis, where):
    """A part of x along an axis."""
    return x[(slice(None),) * axis + (where,)]


def _shape(x, axis, num_heads, num_tokens):
    """The shape of x with other numbers of heads, along `axis`, and of tokens."""
    shape = list(x.shape)
    shape[axis], shape[3 - axis] = num_heads, num_tokens
    return tuple(shape)
