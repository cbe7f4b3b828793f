"""Ulysses: exchange tokens for heads, attend on one device, exchange back.

At first every rank has some tokens with all heads. After an all-to-all it has all tokens with some
heads. Attention is then the same as on one device, with any mask and any option, ALiBi included. A
second all-to-all sends the results to the owners of the tokens.

A rank sends (world_size − 1) / world_size of its q, k, v and out. A ring sends k and v
world_size − 1 times, which is more. But there cannot be more ranks than query heads, and with more
ranks than K/V heads each K/V head is sent to several ranks. No rank computes during the exchanges.

Paper: Jacobs et al. 2023, DeepSpeed Ulysses, arXiv:2309.14509, section 3.
"""

import numpy as np

from fa_numba.checks import distributed as checks
from fa_numba.checks.argument_names import refuses_other_names
from fa_numba.distributed.layouts import make_layout
from fa_numba.distributed.local_attn import local_attn
from fa_numba.distributed.merge import empty_state
from fa_numba.distributed.parts import parts_of
from fa_numba.kv_cache.head_shard import head_shard


@refuses_other_names
def ulysses_attn(
    comm,
    q,
    k,
    v,
    *,
    layout="contiguous",
    seqlen=None,
    cu_seqlens=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    softmax_scale=None,
    attn=None,
):
    """Self-attention over the tokens of all ranks, with the heads split; every rank calls it.

    Parameters
    ----------
    comm : Communicator
        Its world_size divides num_heads, and divides num_kv_heads or is a multiple of it.
    q, k, v, seqlen, cu_seqlens, causal, window_size, softcap, softmax_scale, attn
        As for `ring_attn`.
    layout : "contiguous", "striped" or "zigzag", default="contiguous"
        The layout of the arguments and results. It does not change the work of a rank.
    alibi_slopes : array of shape (num_heads,), float32, default=None
        Slopes of all heads.

    Returns
    -------
    out, lse : arrays
        As from `ring_attn`.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what it must be, and what it got.
    RankLostError
        Another rank has died or stalled.
    """
    checks.check_communicator(comm)
    packed = cu_seqlens is not None
    q, k, v = checks.check_ring(q, k, v, packed)
    left, right, scores = checks.check_scores(q, causal, window_size, softcap, softmax_scale)
    seqlen = checks.check_seqlen(seqlen, q.shape[1], comm.world_size, cu_seqlens)
    layout = make_layout(layout, seqlen, comm.world_size, cu_seqlens)
    checks.check_rank_tokens(q, layout, comm.rank)
    checks.check_slopes(q, alibi_slopes)
    ranks = range(comm.world_size)
    heads = [head_shard(q.shape[2], k.shape[2], comm.world_size, rank) for rank in ranks]
    tokens = [layout.tokens(rank) for rank in ranks]
    whole = make_layout("contiguous", seqlen, 1, cu_seqlens)

    def to_heads(x, slices):
        """This rank's heads of x, of all tokens in their order."""
        batch, _, _, head_dim = x.shape
        mine = _size(slices[comm.rank])
        shapes = [(batch, len(rows), mine, head_dim) for rows in tokens]
        pieces = comm.all_to_all([x[:, :, of_rank] for of_rank in slices], shapes)
        all_tokens = np.empty_like(x, shape=(batch, whole.count(0), mine, head_dim))
        for rows, piece in zip(tokens, pieces, strict=True):
            all_tokens[:, rows] = piece
        return all_tokens

    def to_tokens(x, axis):
        """All heads of x, of this rank's tokens; heads are along `axis`, tokens along 3 − axis."""
        pieces = [x[(slice(None),) * (3 - axis) + (rows,)] for rows in tokens]
        shape = pieces[comm.rank].shape
        shapes = [(*shape[:axis], _size(of_q), *shape[axis + 1 :]) for of_q, _ in heads]
        return np.concatenate(comm.all_to_all(pieces, shapes), axis=axis)

    comm.record.begin_step()
    q_heads = to_heads(q, [of_q for of_q, _ in heads])
    k_heads, v_heads = (to_heads(x, [of_kv for _, of_kv in heads]) for x in (k, v))
    if alibi_slopes is not None:
        scores["alibi_slopes"] = alibi_slopes[heads[comm.rank][0]]
    out, lse = empty_state(q_heads)
    attn = local_attn(attn)
    for part in parts_of(whole, 0, 0, left, right):  # one for each sequence
        m, n = part.queries, part.keys
        out[:, m], lse[:, :, m] = attn(
            q_heads[:, m], k_heads[:, n], v_heads[:, n], **part.mask, **scores
        )
        comm.record.step.pairs += part.pairs

    comm.record.begin_step()
    out, lse = to_tokens(out.astype(q.dtype), 2), to_tokens(lse.astype(np.float32), 1)
    return (out[0], lse[0]) if packed else (out, lse)


def _size(part):
    return part.stop - part.start
