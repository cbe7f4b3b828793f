"""Ring attention: queries stay, keys and values travel from rank to rank.

Every rank holds a part of q, k and v. In step t rank r has the keys and values of rank r − t, and
attends with its own queries to them; meanwhile they go on to rank r + 1, and those of rank
r − t − 1 arrive. After world_size steps every query has met every key.

    step    rank 0   rank 1   rank 2   rank 3       on 4 ranks: whose keys are where
    0       0        1        2        3
    1       3        0        1        2
    2       2        3        0        1
    3       1        2        3        0

The results of the steps are merged as those of tiles are on one GPU (`merge_into`); they, and
gradients on the wire, are float32. So the error is that of one device, for any number of ranks.

Backward: the same ring once more. In each step P is recomputed from this step's keys and the lse
over all keys, and dK and dV of the keys travel one step behind them: a rank adds its part to what
the ranks before it have summed. After the last step they go home.

Rings that reuse keys kept from the forward pass get the gradients wrong without any error: when
that pass ends, the keys that are here are those of its last step, not the rank's own.

Papers: Liu et al. 2023, Ring Attention, arXiv:2310.01889, Algorithm 1; Brandon et al. 2023, Striped
Attention, arXiv:2311.09431.
"""

import numpy as np

from fa_numba.checks import distributed as checks
from fa_numba.checks.argument_names import refuses_other_names
from fa_numba.distributed.layouts import make_layout
from fa_numba.distributed.local_attn import local_attn, local_attn_grad
from fa_numba.distributed.merge import empty_state, merge_into
from fa_numba.distributed.parts import num_steps, parts_of


@refuses_other_names
def ring_attn(
    comm,
    q,
    k,
    v,
    *,
    layout="zigzag",
    seqlen=None,
    cu_seqlens=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    softmax_scale=None,
    attn=None,
):
    """Self-attention over the tokens of all ranks; every rank calls it.

    Parameters
    ----------
    comm : Communicator
    q : array of shape (batch, its tokens, num_heads, head_dim), float32, float16 or bfloat16
    k, v : arrays of shape (batch, its tokens, num_kv_heads, head_dim), dtype of q
        What `shard` gives this rank; num_heads is a multiple of num_kv_heads. Without batch where
        cu_seqlens is given.
    layout : "contiguous", "striped" or "zigzag", default="zigzag"
    seqlen : int, default=world_size times the tokens of q
        Length of the whole sequence: to be given where ranks hold different numbers of tokens.
    cu_seqlens : sequence of int, default=None
        For a packed batch: sequence b is tokens cu_seqlens[b] to cu_seqlens[b + 1] − 1.
    causal : bool, default=False
    window_size : (left, right), default=(-1, -1)
        Right in every layout. The ring ends after the last step in which a rank sees a key.
    softcap : float, default=0.0
    alibi_slopes : None
        Refused, with the reason.
    softmax_scale : float, default=1/√head_dim
    attn : callable, default=flash_attn
        Attention on one device: see `fa_numba.distributed.local_attn`.

    Returns
    -------
    out : array of the shape and dtype of q
        0 in a row that sees no key.
    lse : array of shape (batch, num_heads, its tokens), float32
        Natural log of the row's sum of e^score over the keys of all ranks. Without batch where
        cu_seqlens is given.

    Raises
    ------
    TypeError, ValueError, NotImplementedError
        Naming the argument, what it must be, and what it got.
    RankLostError
        Another rank has died or stalled.
    """
    checks.check_communicator(comm)
    packed = cu_seqlens is not None
    q, k, v = checks.check_ring(q, k, v, packed)
    mask = causal, window_size, softcap, alibi_slopes, softmax_scale
    plan = _Plan(comm, q, layout, seqlen, cu_seqlens, *mask)
    attn = local_attn(attn)
    out, lse = empty_state(q)
    kv = np.stack([k, v])  # they travel together, in their own dtype
    for t in range(plan.num_steps):
        comm.record.begin_step()
        arriving = plan.start_next_kv(kv, t)
        for part in plan.parts(t):
            m, n = part.queries, part.keys
            partial = attn(q[:, m], kv[0][:, n], kv[1][:, n], **part.mask, **plan.scores)
            merge_into(out[:, m], lse[:, :, m], *partial)
            comm.record.step.pairs += part.pairs
        kv = arriving.wait() if arriving else kv
    out, lse = out.astype(q.dtype), lse.astype(np.float32)  # only now
    return (out[0], lse[0]) if packed else (out, lse)


@refuses_other_names
def ring_attn_grad(
    comm,
    dout,
    q,
    k,
    v,
    out,
    lse,
    *,
    layout="zigzag",
    seqlen=None,
    cu_seqlens=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    softmax_scale=None,
    attn_grad=None,
):
    """Gradients of `ring_attn`; every rank calls it.

    Parameters
    ----------
    comm : Communicator
    dout : array of the shape and dtype of q
        Gradient of the loss with respect to this rank's out.
    q, k, v, layout, seqlen, cu_seqlens, causal, window_size, softcap, alibi_slopes, softmax_scale
        As they were given to `ring_attn`.
    out, lse : arrays
        What it returned on this rank.
    attn_grad : callable, default=flash_attn_grad
        Its backward pass on one device: see `fa_numba.distributed.local_attn`.

    Returns
    -------
    dq, dk, dv : arrays of the shapes and dtype of q, k, v
        Of this rank's tokens.

    Raises
    ------
    TypeError, ValueError, NotImplementedError
        Naming the argument, what it must be, and what it got.
    RankLostError
        Another rank has died or stalled.
    """
    checks.check_communicator(comm)
    packed = cu_seqlens is not None
    q, k, v, dout, out, lse = checks.check_ring_grad(dout, q, k, v, out, lse, packed)
    mask = causal, window_size, softcap, alibi_slopes, softmax_scale
    plan = _Plan(comm, q, layout, seqlen, cu_seqlens, *mask)
    attn_grad = local_attn_grad(attn_grad)
    dq = np.zeros_like(q, np.float32)
    kv, arriving_dkv = np.stack([k, v]), None
    for t in range(plan.num_steps):
        comm.record.begin_step()
        arriving_kv = plan.start_next_kv(kv, t)
        dkv = np.zeros_like(kv, np.float32)  # this rank's part of dK and dV of these keys
        for part in plan.parts(t):
            m, n = part.queries, part.keys
            gradients = attn_grad(
                dout[:, m], q[:, m], kv[0][:, n], kv[1][:, n], out[:, m], lse[:, :, m],
                **part.mask, **plan.scores,
            )  # fmt: skip
            for total, x in zip((dq[:, m], dkv[0][:, n], dkv[1][:, n]), gradients, strict=True):
                total += x
            comm.record.step.pairs += part.pairs
        if arriving_dkv:
            dkv += arriving_dkv.wait()  # what the ranks before this one have summed
        arriving_dkv = plan.start_next_kv(dkv, t)
        kv = arriving_kv.wait() if arriving_kv else kv
    dk, dv = plan.send_home(dkv)
    gradients = [x.astype(q.dtype) for x in (dq, dk, dv)]
    return tuple(x[0] for x in gradients) if packed else tuple(gradients)


class _Plan:
    """Who has whose keys in which step, and what of them this rank sees."""

    def __init__(
        self, comm, q, layout, seqlen, cu_seqlens, causal, window_size, softcap, slopes, scale
    ):
        checks.check_no_alibi(slopes)
        scores = checks.check_scores(q, causal, window_size, softcap, scale)
        self.left, self.right, self.scores = scores
        seqlen = checks.check_seqlen(seqlen, q.shape[1], comm.world_size, cu_seqlens)
        self.comm = comm
        self.layout = make_layout(layout, seqlen, comm.world_size, cu_seqlens)
        checks.check_rank_tokens(q, self.layout, comm.rank)
        self.num_steps = num_steps(self.layout, self.left, self.right)

    def owner(self, t):
        """The rank whose keys are here in step t."""
        return (self.comm.rank - t) % self.comm.world_size

    def parts(self, t):
        return parts_of(self.layout, self.comm.rank, self.owner(t), self.left, self.right)

    def start_next_kv(self, kv, t):
        """Start to pass on a pair of arrays for the keys of step t; None after the last step.

        What arrives is the pair for the keys of step t + 1.
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
