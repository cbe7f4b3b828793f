"""Paged attention: flash_decode that reads K and V directly from pages.

flash_decode       the keys of a sequence are contiguous         every row as long as the longest
paged_kv_lookup    copies pages to contiguous rows               K and V read, written, read again
paged_attn_decode  reads a tile of keys from its pages           K and V read once  <- this file

The kernel is that of flash_decode, with the compile-time constant PAGE_SIZE: only the address of a
key is new. Key n of sequence b is in page block_table[b, n // PAGE_SIZE], at n % PAGE_SIZE. Tiles
and splits are cut from the keys of a sequence as before, regardless of where pages end.

Paper: Kwon et al. 2023, PagedAttention, arXiv:2309.06180, sections 4.1 and 5.1.
"""

from fa_numba import checks
from fa_numba.checks.argument_names import refuses_other_names
from fa_numba.kernels.flash_decode import attend
from fa_numba.runtime import arrays


@arrays.replayed
@refuses_other_names
def paged_attn_decode(
    q,
    k_cache,
    v_cache,
    block_table,
    seq_lens,
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
    k_scale=None,
    v_scale=None,
    num_splits=0,
    block_m=None,
    block_n=None,
):
    """PagedAttention: attention of a few queries to each sequence of a paged KV cache.

    Parameters
    ----------
    q : array of shape (batch, seqlen_q, num_heads, head_dim), float32, float16 or bfloat16
        The last seqlen_q tokens of each sequence: 1 in plain decoding, more for a part of a prompt
        or for guesses to be verified.
    k_cache, v_cache : arrays of shape (num_pages, page_size, num_kv_heads, head_dim), dtype of q
        The keys and values of all tokens, the new ones included. num_heads is a multiple of
        num_kv_heads (MHA, GQA, MQA). Any strides with a contiguous last axis; head_dim from 1 to
        512. Values may have another one than queries and keys. Any page_size from 1; each compiles
        its own kernel.
    block_table : array of shape (batch, max_pages), int32
        Page of token t of sequence b: block_table[b, t // page_size]. −1, or anything, past the
        last page of a sequence. Sequences may share pages.
    seq_lens : array of shape (batch,), int32
        Number of tokens of each sequence; slots that no token owns are not read.
    causal, window_size, softcap, alibi_slopes, softmax_scale, mask, mask_args, score, score_args, \
    sinks, k_scale, v_scale
        As for `flash_decode`.
    num_splits : int, default=0
        Number of parts that the keys of each sequence are cut into. 0:
        `fa_numba.analysis.choose_num_splits` chooses it from the GPU's SMs and the shapes only, as
        if every sequence filled its row of block_table.
    block_m, block_n : int, default=chosen
        Tile sizes, those of `flash_decode`; a tile of keys may begin and end inside pages.

    Returns
    -------
    out, lse : arrays
        As of `flash_decode`.

    Notes
    -----
    The contents of block_table and seq_lens are checked as in `fa_numba.paged_attn_decode`.
    """
    given = q, k_cache, v_cache, block_table, seq_lens, k_scale, v_scale
    checks.check_paged_decode(*given, head_dims=checks.ANY_HEAD_DIMS)
    options = causal, window_size, softcap, alibi_slopes, softmax_scale
    options += mask, mask_args, score, score_args, sinks
    page_size = k_cache.shape[1]
    max_len = block_table.shape[1] * page_size
    return attend(given, page_size, max_len, options, num_splits, block_m, block_n)
