"""Ring attention: each rank keeps its queries, and passes keys and values on to the next rank.

Every rank holds a part of q, k and v. In step t rank r has the keys and values of rank r − t. It
computes attention of its own queries to them. Meanwhile it sends them to rank r + 1, and receives
those of rank r − t − 1. After world_size steps every query has met every key.

    step    rank 0   rank 1   rank 2   rank 3       owner of the keys, on 4 ranks
    0       0        1        2        3
    1       3        0        1        2
    2       2        3        0        1
    3       1        2        3        0

The results of the steps are merged like those of tiles on one GPU (`merge_into`). Partial results
and travelling gradients are float32. So the error is that of one device, for any number of ranks.

The backward pass is a second ring. In each step P is recomputed from the keys of this step and the
lse over all keys. dK and dV follow their keys, one step later: each rank adds its own contribution
to the sum of the ranks before it. After the last step they are sent to their owner.

A common bug is to keep the keys of the forward pass for the backward pass. When the forward pass
ends, a rank has the keys of its last step and not its own. The gradients are then wrong, and no
error says so.

Papers: Liu et al. 2023, Ring Attention, arXiv:2310.01889, Algorithm 1; Brandon et al. 2023, Striped
Attention, arXiv:2311.09431.
"""

import functools

import numpy as np

from fa_numba.checks import distributed as checks
from fa_numba.checks.options import FUNCTIONS, PLAIN, takes
from fa_numba.distributed.local_attn import local_attn, local_attn_grad, rounded
from fa_numba.distributed.merge import RunningState
from fa_numba.distributed.parts import num_steps, parts_of
from fa_numba.distributed.placed import placed
from fa_numba.distributed.plan import Plan
from fa_numba.on_cuda_cores.running_state import copy_into
from fa_numba.runtime import arrays


@takes(PLAIN | FUNCTIONS)
def ring_attn(
    comm, q, k, v, *, layout="zigzag", seqlen=None, cu_seqlens=None, attn=None, **options
):
    """Self-attention over the tokens of all ranks; every rank calls it.

    Parameters
    ----------
    comm : Communicator
    q : array of shape (batch, its tokens, num_heads, head_dim), float32, float16 or bfloat16
    k, v : arrays of shape (batch, its tokens, num_kv_heads, head_dim), dtype of q
        This rank's element of `shard`; num_heads is a multiple of num_kv_heads. With cu_seqlens
        there is no batch axis.
    layout : "contiguous", "striped" or "zigzag", default="zigzag"
    seqlen : int, default=world_size times the tokens of q
        Length of the whole sequence. Needed if ranks hold different numbers of tokens.
    cu_seqlens : sequence of int, default=None
        For a packed batch: sequence b is tokens cu_seqlens[b] to cu_seqlens[b + 1] − 1.
    causal : bool, default=False
    window_size : (left, right), default=(-1, -1)
        Allowed in every layout. The ring ends after the last step in which a rank sees a key.
    softcap : float, default=0.0
    alibi_slopes : array of shape (num_heads,), float32, default=None
    softmax_scale : float, default=1/√head_dim
    mask, mask_args, score, score_args
        As for `flash_attn_v2`: b, m and n are sequence and positions in the whole batch. Every
        kernel skips its hidden tiles, but keys travel to ranks that see none of them.
    attn : callable, default=the fastest for the arrays
        Attention on one device: see `fa_numba.distributed.local_attn`.

    Returns
    -------
    out : array of the shape and dtype of q
        0 in a row that sees no key.
    lse : array of shape (batch, num_heads, its tokens), float32
        Natural log of the row's sum of e^score over the keys of all ranks. With cu_seqlens there
        is no batch axis.
    """
    checks.check_communicator(comm)
    packed = cu_seqlens is not None
    q, k, v = checks.check_ring(q, k, v, packed)
    plan = _Plan("ring_attn", comm, q, k, layout, seqlen, cu_seqlens, **options)
    attn = local_attn(attn)
    state = RunningState(q)
    kv = stacked(k, v)
    for t in range(plan.num_steps):
        comm.record.begin_step()
        arriving = plan.start_next_kv(kv, t)
        for part in plan.parts(t):
            m, n = part.queries, part.keys
            partial = attn(q[:, m], kv[0][:, n], kv[1][:, n], **plan.options(part))
            state.merge(m, *partial)
            comm.record.step.pairs += part.pairs
        kv = arriving.wait() if arriving else kv
    out, lse = state.result()
    out, lse = rounded(out, q.dtype), lse.astype(np.float32)  # not before the last step
    return (out[0], lse[0]) if packed else (out, lse)


@takes(PLAIN | FUNCTIONS)
def ring_attn_grad(
    comm, dout, q, k, v, out, lse, *, layout="zigzag", seqlen=None, cu_seqlens=None,
    attn_grad=None, **options,
):  # fmt: skip
    """Gradients of `ring_attn`; every rank calls it.

    Parameters
    ----------
    comm : Communicator
    dout : array of the shape and dtype of q
        Gradient of the loss with respect to this rank's out.
    q, k, v, layout, seqlen, cu_seqlens, causal, window_size, softcap, alibi_slopes, \
    softmax_scale, mask, mask_args, score, score_args
        As they were given to `ring_attn`.
    out, lse : arrays
        Results of `ring_attn` on this rank.
    attn_grad : callable, default=the fastest for the arrays
        Its backward pass on one device: see `fa_numba.distributed.local_attn`.

    Returns
    -------
    dq, dk, dv : arrays of the shapes and dtype of q, k, v
        Of this rank's tokens.
    """
    checks.check_communicator(comm)
    packed = cu_seqlens is not None
    q, k, v, dout, out, lse = checks.check_ring_grad(dout, q, k, v, out, lse, packed)
    plan = _Plan("ring_attn_grad", comm, q, k, layout, seqlen, cu_seqlens, **options)
    attn_grad = local_attn_grad(attn_grad)
    dq, everything = None, slice(0, q.shape[1])
    kv, arriving_dkv = stacked(k, v), None
    for t in range(plan.num_steps):
        comm.record.begin_step()
        arriving_kv = plan.start_next_kv(kv, t)
        dkv = arrays.full(kv, kv.shape, 0)  # this rank's part of dK and dV of these keys
        for part in plan.parts(t):
            m, n = part.queries, part.keys
            gradients = attn_grad(
                dout[:, m], q[:, m], kv[0][:, n], kv[1][:, n], out[:, m], lse[:, :, m],
                **plan.options(part),
            )  # fmt: skip
            if dq is None and m == everything:
                dq = gradients[0]  # nothing to add it to
            else:
                dq = arrays.full(q, q.shape, 0) if dq is None else dq
                add_into(dq[:, m], gradients[0])
            for total, x in zip(dkv, gradients[1:], strict=True):
                add_into(total[:, n], x)
            comm.record.step.pairs += part.pairs
        if arriving_dkv:
            dkv += arriving_dkv.wait()  # the sum of the ranks before this one
        arriving_dkv = plan.start_next_kv(dkv, t)
        kv = arriving_kv.wait() if arriving_kv else kv
    dq = arrays.full(q, q.shape, 0) if dq is None else dq  # no query of this rank sees a key
    dk, dv = plan.send_home(dkv)
    gradients = [rounded(x, q.dtype) for x in (dq, dk, dv)]
    return tuple(x[0] for x in gradients) if packed else tuple(gradients)


def add_into(total, x):
    """Add x to a view of an array."""
    total += x


def stacked(k, v):
    """K and V in one array: they travel together, in their own dtype."""
    kv = arrays.empty(k, (2, *k.shape), k.dtype)
    copy_into(kv[0], k)
    copy_into(kv[1], v)
    return kv


class _Plan(Plan):
    """The owner of the keys in each step, and the parts that this rank sees of them."""

    SLOPES_IN_SCORE = True

    @functools.cached_property
    def num_steps(self):
        """Steps until this rank has met all keys that it sees."""
        return num_steps(self.layout, self.left, self.right)

    def owner(self, t):
        """The rank whose keys are here in step t."""
        return (self.comm.rank - t) % self.comm.world_size

    def parts(self, t):
        ranks, joined = (self.comm.rank, self.owner(t)), self.functions.is_empty
        return parts_of(self.layout, *ranks, self.left, self.right, joined)

    def options(self, part):
        """The options of a kernel's call for a part."""
        masked = max(self.left, self.right) >= 0
        return self.scores | placed(self.functions, part, masked=masked)

    def start_next_kv(self, kv, t):
        """Start to send a pair of arrays for the keys of step t to the next rank.

        The pair for the keys of step t + 1 arrives. After the last step: None.
        """
        if t + 1 == self.num_steps:
            return None
        comm = self.comm
        shape = self._shape(kv, self.owner(t + 1))
        return comm.start_send_recv(kv, (comm.rank + 1) % comm.world_size, self.owner(1), shape)

    def send_home(self, dkv):
        """Send dK and dV of the last step to their owner, and receive this rank's own."""
        t = self.num_steps - 1
        source = (self.comm.rank + t) % self.comm.world_size
        return self.comm.send_recv(dkv, self.owner(t), source, self._shape(dkv, self.comm.rank))

    def _shape(self, kv, owner):
        """The shape of a pair of arrays for the keys of a rank."""
        return (*kv.shape[:2], self.layout.count(owner), *kv.shape[3:])
