"""Tree attention for decoding: one query, keys on all ranks, one exchange of small states.

In decoding the query is small and the keys are many, so no key is sent. Each rank computes
attention to its own keys. Then the ranks exchange their states, of head_dim + 1 numbers per head,
and each merges them all. A ring would send every key, in world_size − 1 rounds.

The paper merges by two all_reduce along a tree, a maximum and a sum, in 2 log2(world_size) rounds;
the bytes that a rank sends do not grow with the ranks. Here each rank sends its state to every
other rank, in one round. These are more bytes on many ranks, but still few: 116 KB on 8 ranks for
32 heads of 128. A round costs more time than they do.

Paper: Shyam et al. 2024, Tree Attention, arXiv:2408.04093.
"""

import numpy as np

from fa_numba.checks import distributed as checks
from fa_numba.checks.argument_names import refuses_other_names
from fa_numba.distributed.communicator import agree_on_attention
from fa_numba.distributed.layouts import Span, make_layout
from fa_numba.distributed.local_attn import local_attn
from fa_numba.distributed.merge import RunningState, merge_over_ranks
from fa_numba.distributed.parts import part_of


@refuses_other_names
def tree_decode(
    comm,
    q,
    k,
    v,
    *,
    layout="contiguous",
    seqlen=None,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    softmax_scale=None,
    attn=None,
):
    """Attention of the last token to the keys of all ranks; every rank calls it.

    Parameters
    ----------
    comm : Communicator
    q : array of shape (batch, 1, num_heads, head_dim), float32, float16 or bfloat16
        The same on all ranks: the query of the last token, whose key is among the keys.
    k, v : arrays of shape (batch, its tokens, num_kv_heads, head_dim), dtype of q
        This rank's element of `shard`.
    layout : "contiguous", "striped" or "zigzag", default="contiguous"
    seqlen : int, default=world_size times the tokens of k
        Length of the whole sequence. Needed if ranks hold different numbers of tokens.
    window_size : (left, right), default=(-1, -1)
        The query sees the last left + 1 keys; there is nothing on its right.
    softcap : float, default=0.0
    alibi_slopes : array of shape (num_heads,), float32, default=None
    softmax_scale : float, default=1/√head_dim
    attn : callable, default=the fastest for the arrays
        Attention on one device: see `fa_numba.distributed.local_attn`.

    Returns
    -------
    out : array of the shape and dtype of q
    lse : array of shape (batch, num_heads, 1), float32
        The same bits on every rank.
    """
    checks.check_communicator(comm)
    checks.check_tree(q, k, v)
    left, _, scores = checks.check_scores(q, True, window_size, softcap, softmax_scale)
    checks.check_slopes(q, alibi_slopes)
    seqlen = checks.check_seqlen(seqlen, k.shape[1], comm.world_size)
    layout = make_layout(layout, seqlen, comm.world_size)
    checks.check_rank_tokens(k, layout, comm.rank, "k")
    agree_on_attention(
        comm, "tree_decode", q, k, layout, alibi_slopes, {"q": q}, window_left=left, **scores
    )
    attn = local_attn(attn)
    state = RunningState(q)
    query = Span(0, seqlen - 1, 1, 1, 0)

    comm.record.begin_step()
    for keys in layout.spans(comm.rank):
        part = part_of(query, keys, left, 0)
        if part is None:
            continue
        n = part.keys
        if alibi_slopes is not None:
            # For a kernel the query is at the last key, and keys have a distance of 1. The true
            # distance is `step` times that, and a constant more: that of the last key.
            scores["alibi_slopes"] = alibi_slopes * np.float32(keys.step)
            last = keys.start + keys.step * (n.stop - 1 - keys.offset)
            farther = alibi_slopes[:, None] * np.float32(query.start - last)
        out_part, lse_part = attn(q, k[:, n], v[:, n], **scores)
        if alibi_slopes is not None:
            lse_part = lse_part - farther
        state.merge(slice(0, 1), out_part, lse_part)
        comm.record.step.pairs += part.pairs
    out, lse = state.result()
    return merge_over_ranks(comm, out, lse, q.dtype)
