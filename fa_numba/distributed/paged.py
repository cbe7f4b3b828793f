"""The paged KV cache over several devices: split by heads, or by tokens.

One `PagePool` plans for all ranks. Every rank gets its page numbers, slots and block tables, and
has caches of its own. Keys and values are never sent.

By heads (tensor parallelism): a rank stores its own K/V heads, those of `head_shard`, of every
token. It uses the plan unchanged. Each rank decodes its own heads, and an all_gather joins them.

By tokens (decode context parallelism): for more ranks than K/V heads, or for a sequence that is too
long for one device. The pool plans pages of world_size · page_size tokens. Of every such page rank
r stores tokens r · page_size to (r + 1) · page_size − 1, in its own page of page_size tokens:

    one page of the plan, on 2 ranks     0 1 2 3 | 4 5 6 7
    page of rank 0                       0 1 2 3
    page of rank 1                                 4 5 6 7

Page numbers, block tables and page copies are the same on every rank. `local_slots` and
`local_seq_lens` compute the rank's own slots and lengths; a token of another rank has slot −1.
Every rank computes attention of all heads to its own tokens. The results are merged as in
`tree_decode`.

Papers: Kwon et al. 2023, PagedAttention, arXiv:2309.06180, section 4.6 (by heads); Shyam et al.
2024, Tree Attention, arXiv:2408.04093 (the merge). vLLM and SGLang call the second way decode
context parallelism.
"""

import numpy as np

from fa_numba.checks import ONE_HEAD_DIM
from fa_numba.checks import distributed as checks
from fa_numba.checks.argument_names import refuses_other_names
from fa_numba.checks.options import PLAIN, takes
from fa_numba.dispatch import paged_attn_decode
from fa_numba.distributed.local_attn import rounded
from fa_numba.distributed.merge import merge_over_ranks
from fa_numba.kv_cache.head_shard import head_shard
from fa_numba.runtime.arrays import dtype_name


@takes(PLAIN)
def head_parallel_decode(
    comm, q, k_cache, v_cache, block_table, seq_lens, *, num_kv_heads, alibi_slopes=None, **options
):
    """Attention of new tokens to a paged cache whose heads are split; every rank calls it.

    Parameters
    ----------
    comm : Communicator
    q : array of shape (batch, seqlen_q, num_heads, head_dim)
        All heads, the same on all ranks.
    k_cache, v_cache : arrays of shape (num_pages, page_size, its K/V heads, head_dim)
        The heads that `head_shard` gives this rank.
    block_table, seq_lens : arrays
        Those of the plan.
    num_kv_heads : int
        Of the model, on all ranks together.
    causal, window_size, softcap, alibi_slopes, softmax_scale
        As for `paged_attn_decode`; alibi_slopes of all heads.

    Returns
    -------
    out, lse : arrays
        As from `paged_attn_decode`, of all heads, on every rank.
    """
    checks.check_communicator(comm)
    shards = [
        head_shard(q.shape[2], num_kv_heads, comm.world_size, rank)
        for rank in range(comm.world_size)
    ]
    heads, kv_heads = shards[comm.rank]
    checks.check_cache_heads(k_cache, kv_heads, comm.rank)
    equal = {"q": q, "block_table": block_table, "seq_lens": seq_lens}
    if alibi_slopes is not None:
        equal["alibi_slopes"] = alibi_slopes
        alibi_slopes = alibi_slopes[heads]
    cache = k_cache, v_cache, block_table, seq_lens
    out, lse = paged_attn_decode(q[:, :, heads], *cache, **options, alibi_slopes=alibi_slopes)
    ONE_HEAD_DIM.check(q=q, k_cache=k_cache, v_cache=v_cache)
    _agree(comm, "head_parallel_decode", k_cache, num_kv_heads, equal, **options)
    return (
        np.concatenate(comm.all_gather(out), axis=2),
        np.concatenate(comm.all_gather(lse), axis=1),
    )


@refuses_other_names
def context_parallel_decode(
    comm, q, k_cache, v_cache, block_table, seq_lens, *, softcap=0.0, softmax_scale=None
):
    """Attention of the last token to a paged cache whose tokens are split; every rank calls it.

    Parameters
    ----------
    comm : Communicator
    q : array of shape (batch, 1, num_heads, head_dim)
        The same on all ranks.
    k_cache, v_cache : arrays of shape (num_pages, page_size, num_kv_heads, head_dim)
        This rank's tokens, written with the slots of `local_slots`.
    block_table, seq_lens : arrays
        Those of the plan, whose pages have world_size · page_size tokens.
    softcap : float, default=0.0
    softmax_scale : float, default=1/√head_dim

    Returns
    -------
    out : array of the shape and dtype of q
    lse : array of shape (batch, num_heads, 1), float32
        The same bits on every rank.
    """
    checks.check_communicator(comm)
    checks.check_one_query(q)
    lengths = local_seq_lens(seq_lens, k_cache.shape[1], comm.world_size, comm.rank)
    arrays = (rounded(x, np.float32) for x in (q, k_cache, v_cache))
    options = {"softcap": softcap, "softmax_scale": softmax_scale}
    out, lse = paged_attn_decode(*arrays, block_table, lengths, **options)
    ONE_HEAD_DIM.check(q=q, k_cache=k_cache, v_cache=v_cache)
    equal = {"q": q, "block_table": block_table, "seq_lens": seq_lens}
    _agree(comm, "context_parallel_decode", k_cache, k_cache.shape[2], equal, **options)
    return merge_over_ranks(comm, out, lse, q.dtype)


def _agree(
    comm, function, k_cache, num_kv_heads, equal, *, causal=False, window_size=(-1, -1),
    softcap=0.0, softmax_scale=None,
):  # fmt: skip
    """`comm.agree` before results are exchanged.

    Parameters
    ----------
    comm, function, k_cache : Communicator, str, array
    num_kv_heads : int
        Of all ranks.
    equal : dict of str to array
        Arguments that all ranks must have alike; its "q" has all heads.
    causal, window_size, softcap, softmax_scale
        As for `paged_attn_decode`.
    """
    q = equal["q"]
    _, _, scores = checks.check_scores(q, causal, window_size, softcap, softmax_scale)
    comm.agree(
        function, q, equal,
        dtype=dtype_name(q), shape_of_q=tuple(q.shape), page_size=k_cache.shape[1],
        num_kv_heads=num_kv_heads, causal=bool(causal), window_size=tuple(map(int, window_size)),
        alibi_slopes="an array" if "alibi_slopes" in equal else "None", **scores,
    )  # fmt: skip


def local_slots(slot_mapping, page_size, world_size, rank):
    """The slots of a rank's cache for tokens whose slots are those of the plan.

    Parameters
    ----------
    slot_mapping : int array of shape (num_tokens,)
        From a pool whose pages have world_size · page_size tokens; −1 is not written.
    page_size : int
        Of the rank's own cache.
    world_size, rank : int

    Returns
    -------
    int32 array of shape (num_tokens,)
        −1 for a token of another rank.
    """
    slots = np.asarray(slot_mapping)
    page, offset = np.divmod(slots, world_size * page_size)
    owner, offset = np.divmod(offset, page_size)
    mine = (owner == rank) & (slots >= 0)
    return np.where(mine, page * page_size + offset, -1).astype(np.int32)


def local_seq_lens(seq_lens, page_size, world_size, rank):
    """Number of tokens of each sequence that a rank holds.

    Parameters
    ----------
    seq_lens : int array of shape (batch,)
        Those of the plan.
    page_size : int
        Of the rank's own cache.
    world_size, rank : int

    Returns
    -------
    int32 array of shape (batch,)
    """
    full, tail = np.divmod(np.asarray(seq_lens), world_size * page_size)
    return (full * page_size + np.clip(tail - rank * page_size, 0, page_size)).astype(np.int32)
