"""Latent attention (MLA) of a few new queries to a cache of latents: `mla_decode`."""

from typing import NamedTuple

from fa_numba import checks
from fa_numba.dispatch.candidates import Candidate, lesson
from fa_numba.dispatch.job import job
from fa_numba.runtime import arrays


class Inputs(NamedTuple):
    """The facts of the arrays of a call."""

    q: object
    latent_cache: object
    seq_lens: object


def on_tensor_cores(candidate, inputs, options):
    """Raise unless mla_decode_mma can take these inputs."""
    checks.check_latent_tensor_core(inputs.q, inputs.latent_cache, name=candidate.name)


FASTEST = Candidate(
    "mla_decode_mma",
    "tensor_core",
    why="reads a row of a 16-bit cache once for 16 heads, by tensor cores",
    check=on_tensor_cores,
    head_dims=None,
)


@job(FASTEST, lesson("mla_decode", head_dims=None))
def mla_decode(
    q,
    latent_cache,
    seq_lens,
    *,
    softmax_scale,
    block_table=None,
    latent_dim=512,
    causal=False,
    num_splits=0,
) -> tuple:
    """Latent attention (MLA) of a few queries to a cache of latents, by the fastest kernel.

    Parameters
    ----------
    q : array of shape (batch, seqlen_q, num_heads, row_dim), float32, float16 or bfloat16
        The last seqlen_q tokens of each sequence, absorbed: [q_nope W_ukᵀ ; q_rope].
    latent_cache : array of shape (batch, max_len, row_dim), dtype of q
        A row for each token, the new ones included: its latent, then the rotated key that all
        heads share. With a block table, shape (num_pages, page_size, row_dim). row_dim from 1 to
        576.
    seq_lens : array of shape (batch,), int32
        Number of tokens of each sequence; the cache is not read past them.
    softmax_scale : float
        That of the plain form, 1/√(head_dim + rope_dim), which no shape here tells: 192^−½ for
        DeepSeek's 128 + 64, not 576^−½.
    block_table : array of shape (batch, max_pages), int32, default=None
        Page of token t of sequence b: block_table[b, t // page_size], as for `paged_attn_decode`.
    latent_dim : int, default=512
        Columns of a row that are its value: the first, from 1 to row_dim.
    causal : bool, default=False
        Bottom-right aligned: query m of sequence b sees the keys up to m + seq_lens[b] − seqlen_q.
    num_splits : int, default=0
        Number of parts that the keys of each sequence are cut into. 0: the kernel chooses it.

    Returns
    -------
    out : array of shape (batch, seqlen_q, num_heads, latent_dim), dtype and library of q
        To be multiplied by W_uv; 0 in a row that sees no key.
    lse : array of shape (batch, num_heads, seqlen_q), float32
        Natural log of the row's sum of e^score; −inf in a row that sees no key.

    Notes
    -----
    The contents of block_table and seq_lens are checked as in `paged_attn_decode`.
    """
    inputs = Inputs(*map(arrays.facts, (q, latent_cache, seq_lens)))
    checks.check_softmax_scale(softmax_scale, None)
    options = {
        "softmax_scale": softmax_scale,
        "latent_dim": checks.check_latent_decode(*inputs, block_table, latent_dim),
        "causal": checks.check_causal(causal),
        "num_splits": checks.check_num_splits(num_splits),
    }
    return inputs, options if block_table is None else options | {"block_table": block_table}
