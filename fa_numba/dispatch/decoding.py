"""Attention of a few new queries to a cache: `flash_decode`, `paged_attn_decode`."""

import functools
from typing import NamedTuple

from fa_numba import checks
from fa_numba.checks import AMPERE, HOPPER
from fa_numba.dispatch.candidates import Candidate, lesson, on_cpu
from fa_numba.dispatch.job import job
from fa_numba.dispatch.options import options_of
from fa_numba.runtime import arrays


class Inputs(NamedTuple):
    """The facts of the arrays of a call with a contiguous cache."""

    q: object
    k_cache: object
    v_cache: object
    seq_lens: object


class PagedInputs(NamedTuple):
    """The facts of the arrays of a call with pages."""

    q: object
    k_cache: object
    v_cache: object
    block_table: object
    seq_lens: object


def on_tensor_cores(candidate, inputs, options, **limits):
    """Raise unless a decoder on tensor cores can take these inputs."""
    named = {"q": inputs.q, "k_cache": inputs.k_cache, "v_cache": inputs.v_cache}
    checks.check_decode_tensor_core(**named, name=candidate.name, **limits)
    checks.check_aligned(**named)


def table_by_name(q, k_cache, v_cache, block_table, seq_lens):
    """The arguments of a decoder that takes the block table as an option."""
    return (q, k_cache, v_cache, seq_lens), {"block_table": block_table}


def decoders(**more):
    """The fast decoders, which take both kinds of caches."""
    on_hopper = functools.partial(on_tensor_cores, supported=HOPPER)
    on_ampere = functools.partial(on_tensor_cores, supported=AMPERE)
    fastest = "the fastest at most problems of `python -m benchmarks decode_fast`"
    tensor_cores = "reads 16-bit caches faster than kernels without tensor cores"
    columns = "it alone runs on tensor cores at a head_dim above 256"
    any_gpu, wide = "takes any GPU, dtype and strides", {"head_dims": checks.WIDE_HEAD_DIM}
    up_to_512 = functools.partial(on_ampere, max_head_dim=checks.MAX_WIDE_HEAD_DIM)
    of_columns = {"check": up_to_512, **wide}
    return (
        Candidate("flash_decode_gather", "tensor_core", why=fastest, check=on_hopper, **more),
        Candidate("flash_decode_mma", "tensor_core", why=tensor_cores, check=on_ampere, **more),
        Candidate("flash_decode_columns", "tensor_core", why=columns, **of_columns, **more),
        Candidate("flash_decode_wide", "on_cuda_cores", why=any_gpu, **wide, **more),
    )


ANY = {"head_dims": checks.ANY_HEAD_DIMS}
CONTIGUOUS = (on_cpu("flash_decode"), *decoders(), lesson("flash_decode", **ANY))
PAGED = (
    on_cpu("paged_attn_decode"),
    *decoders(adapt=table_by_name),
    lesson("paged_attn_decode", **ANY),
)


@job(*CONTIGUOUS)
def flash_decode(
    q,
    k_cache,
    v_cache,
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
) -> tuple:
    """Attention of a few queries to each sequence of a contiguous KV cache, by the fastest kernel.

    Parameters
    ----------
    q : array of shape (batch, seqlen_q, num_heads, head_dim), float32, float16 or bfloat16
        The last seqlen_q tokens of each sequence: 1 in plain decoding, any number from 0.
    k_cache, v_cache : arrays of shape (batch, max_len, num_kv_heads, head_dim), dtype of q
        The keys and values of all tokens, the new ones included.
    seq_lens : array of shape (batch,), int32
        Number of tokens of each sequence; the caches are not read past them.
    causal, window_size, softcap, alibi_slopes, softmax_scale, mask, mask_args, score, \
    score_args, sinks
        As for `flash_attn`: the last query is at the last key of its sequence.
    k_scale, v_scale : float32 arrays, default=None
        For caches of 8-bit floats, the bytes of e4m3 as uint8: a key is its scale times its e4m3
        numbers. One for each K/V head, shape (num_kv_heads,), or for each token and head, the
        shape of k_cache without head_dim. `reshape_and_cache` writes such caches.

    Returns
    -------
    out : array of the shape, dtype and library of q
        0 in a row that sees no key.
    lse : array of shape (batch, num_heads, seqlen_q), float32
        Natural log of the row's sum of e^score; −inf in a row that sees no key.

    Notes
    -----
    The contents of seq_lens are checked if it is a NumPy array. An array on a GPU is not checked,
    because that would wait for the GPU: a length out of range reads memory outside the cache.
    """
    inputs = Inputs(*map(arrays.facts, (q, k_cache, v_cache, seq_lens)))
    checks.check_decode(*inputs, k_scale, v_scale, head_dims=checks.ANY_HEAD_DIMS)
    options = causal, window_size, softcap, alibi_slopes, softmax_scale
    written = mask, mask_args, score, score_args, sinks
    given = options_of(inputs.q, *options, *written)
    return inputs, given if k_scale is None else given | {"k_scale": k_scale, "v_scale": v_scale}


@job(*PAGED)
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
) -> tuple:
    """Attention of a few queries to each sequence of a paged KV cache, by the fastest kernel.

    Parameters
    ----------
    q : array of shape (batch, seqlen_q, num_heads, head_dim), float32, float16 or bfloat16
        The last seqlen_q tokens of each sequence.
    k_cache, v_cache : arrays of shape (num_pages, page_size, num_kv_heads, head_dim), dtype of q
        The keys and values of all tokens, the new ones included.
    block_table : array of shape (batch, max_pages), int32
        Page of token t of sequence b: block_table[b, t // page_size]. −1, or anything, past the
        last page of a sequence.
    seq_lens : array of shape (batch,), int32
        Number of tokens of each sequence; slots that no token owns are not read.
    causal, window_size, softcap, alibi_slopes, softmax_scale, mask, mask_args, score, \
    score_args, sinks
        As for `flash_decode`.
    k_scale, v_scale : float32 arrays, default=None
        As for `flash_decode`.

    Returns
    -------
    out : array of the shape, dtype and library of q
        0 in a row that sees no key.
    lse : array of shape (batch, num_heads, seqlen_q), float32
        Natural log of the row's sum of e^score; −inf in a row that sees no key.

    Notes
    -----
    The contents of block_table and seq_lens are checked if they are NumPy arrays. Arrays on a GPU
    are not checked, because that would wait for the GPU: a page or a length out of range reads
    memory outside the cache.
    """
    inputs = PagedInputs(*map(arrays.facts, (q, k_cache, v_cache, block_table, seq_lens)))
    checks.check_paged_decode(*inputs, k_scale, v_scale, head_dims=checks.ANY_HEAD_DIMS)
    options = causal, window_size, softcap, alibi_slopes, softmax_scale
    written = mask, mask_args, score, score_args, sinks
    given = options_of(inputs.q, *options, *written)
    return inputs, given if k_scale is None else given | {"k_scale": k_scale, "v_scale": v_scale}
