"""Lazy softmax: attention without S and P in memory, and without tiles.

naive_attn          S and P in HBM                        Θ(N²) floats kept, Θ(N²) moved
lazy_softmax_attn   (m, l, acc) of each chunk of keys     Θ(√N d) kept, Θ(N² d) moved  <- this file
flash_attn_v1, v2   tiles of keys, read for many queries  Θ(N) kept, Θ(N² d / BLOCK_M) moved

The division by the softmax's sum can wait until the end of the row:

    out = Σ e^(s_n - m) v_n / Σ e^(s_n - m)

So a query needs no row of S: it walks its keys one by one and keeps a maximum m, a sum l and a sum
of weighted values acc. Each chunk of keys is walked separately and writes its (m, l, acc) to HBM; a
second kernel merges them. Queries are processed a chunk at a time too, which bounds the memory at
any length.

This saves memory but no traffic: every query reads every key. FlashAttention is the next step: one
of its tiles of keys serves many queries.

Paper: Rabe & Staats 2021, Self-attention does not need O(n²) memory, arXiv:2112.05682, sections 2
and 3.
"""

import functools
import math

import numpy as np
from numba import cuda, float32

from fa_numba import checks
from fa_numba.checks.argument_names import refuses_other_names
from fa_numba.constants import FULL_WARP, NEG_INF, WARP_SIZE
from fa_numba.expressions.functions import NO_EXPRESSIONS, device_functions
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import ceil_div


@functools.cache
def make_summarize_chunk(HEAD_DIM, CAUSAL, EXPRESSIONS=NO_EXPRESSIONS):
    """The first kernel, one query and one chunk of keys: launch it with threads (WARP_SIZE,)."""
    user_sees, user_score, _ = device_functions(EXPRESSIONS)
    NUM_COLS = ceil_div(HEAD_DIM, WARP_SIZE)  # columns of a row that a thread owns

    @cuda.jit
    def summarize_chunk_kernel(
        q, k, v, acc_partial, l_partial, m_partial, first_m, key_chunk_size, softmax_scale, args
    ):  # fmt: skip
        """A warp owns a query and walks the keys of one chunk, one by one.

        grid      (query_chunk_size * num_chunks, num_heads, batch); threads (WARP_SIZE,): thread tx
                  owns columns tx, tx + WARP_SIZE, ...
        shared    none
        private   q_row, acc (NUM_COLS,), m_i, l_i: the same m_i and l_i in every thread
        HBM       Q once per chunk of keys; K and V once per query; acc_partial, l_partial,
                  m_partial once
        paper     Self-attention does not need O(n²) memory, section 2
        budget    64 registers, 0 bytes shared (HEAD_DIM=64)
        """
        q_row = cuda.local.array(NUM_COLS, float32)
        acc = cuda.local.array(NUM_COLS, float32)  # one row of out, not yet divided by l_i
        tx = cuda.threadIdx.x
        num_rows = acc_partial.shape[2]
        chunk, row = cuda.blockIdx.x // num_rows, cuda.blockIdx.x % num_rows
        head, b = cuda.blockIdx.y, cuda.blockIdx.z
        seqlen_q, seqlen_k = q.shape[1], k.shape[1]
        kv_head = head // (q.shape[2] // k.shape[2])
        m = first_m + row  # this warp's query
        position = m + seqlen_k - seqlen_q  # among the keys: the last query is at the last key
        n_start = chunk * key_chunk_size
        n_end = min(n_start + key_chunk_size, seqlen_k)
        if CAUSAL:
            n_end = min(n_end, position + 1)  # the first key it does not see
        if m >= seqlen_q:
            return

        for c in range(NUM_COLS):
            d = tx + c * WARP_SIZE
            q_row[c] = float32(q[b, m, head, d]) if d < HEAD_DIM else float32(0.0)
            acc[c] = float32(0.0)
        m_i = NEG_INF
        l_i = float32(0.0)
        for n in range(n_start, n_end):
            if not user_sees(b, head, position, n, args):
                continue
            s = float32(0.0)  # s = scale · q k_n: a part in each thread, then of the whole warp
            for c in range(NUM_COLS):
                d = tx + c * WARP_SIZE
                if d < HEAD_DIM:
                    s += q_row[c] * float32(k[b, n, kv_head, d])
            for step in range(5):
                s += cuda.shfl_xor_sync(FULL_WARP, s, 16 >> step)
            s = user_score(s * softmax_scale, b, head, position, n, args)

            m_new = max(m_i, s)  # m <- max(m, s)
            shift = float32(0.0) if m_new == NEG_INF else m_new  # -inf - -inf is NaN
            alpha = math.exp(m_i - shift)  # rescales the sums under the old maximum
            p = math.exp(s - shift)
            m_i = m_new
            l_i = alpha * l_i + p  # l <- alpha l + e^(s - m)
            for c in range(NUM_COLS):  # acc <- alpha acc + e^(s - m) v_n
                d = tx + c * WARP_SIZE
                if d < HEAD_DIM:
                    acc[c] = alpha * acc[c] + p * float32(v[b, n, kv_head, d])

        for c in range(NUM_COLS):
            d = tx + c * WARP_SIZE
            if d < HEAD_DIM:
                acc_partial[chunk, b, row, head, d] = acc[c]
        if tx == 0:
            l_partial[chunk, b, head, row] = l_i
            m_partial[chunk, b, head, row] = m_i

    return summarize_chunk_kernel


@functools.cache
def make_merge_chunks(HEAD_DIM, SINKS=False):
    """The second kernel, all chunks of one query: launch it with threads (WARP_SIZE,).

    sinks is unused without SINKS: it may then be any scalar.
    """
    NUM_COLS = ceil_div(HEAD_DIM, WARP_SIZE)  # columns of a row that a thread owns

    @cuda.jit
    def merge_chunks_kernel(acc_partial, l_partial, m_partial, out, lse, first_m, sinks):
        """A warp owns a query: it sums the results of the chunks under one maximum, then divides.

        grid      (query_chunk_size, num_heads, batch); threads (WARP_SIZE,): thread tx owns columns
                  tx, tx + WARP_SIZE, ...
        shared    none
        private   acc (NUM_COLS,), m_i, l_i: the same m_i and l_i in every thread
        HBM       acc_partial, out, lse once; l_partial once and m_partial twice in every thread
        paper     Self-attention does not need O(n²) memory, section 3
        budget    56 registers, 0 bytes shared (HEAD_DIM=64)
        """
        acc = cuda.local.array(NUM_COLS, float32)
        tx = cuda.threadIdx.x
        row, head, b = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
        m = first_m + row  # this warp's query
        if m >= out.shape[1]:
            return

        m_i = sinks[head] if SINKS else NEG_INF  # a sink is one more key, its value 0
        for chunk in range(m_partial.shape[0]):
            m_i = max(m_i, m_partial[chunk, b, head, row])
        shift = float32(0.0) if m_i == NEG_INF else m_i  # no key seen: -inf - -inf is NaN
        for c in range(NUM_COLS):
            acc[c] = float32(0.0)
        l_i = math.exp(sinks[head] - shift) if SINKS else float32(0.0)
        for chunk in range(m_partial.shape[0]):
            alpha = math.exp(m_partial[chunk, b, head, row] - shift)
            l_i += alpha * l_partial[chunk, b, head, row]
            for c in range(NUM_COLS):
                d = tx + c * WARP_SIZE
                if d < HEAD_DIM:
                    acc[c] += alpha * acc_partial[chunk, b, row, head, d]

        for c in range(NUM_COLS):  # the only division
            d = tx + c * WARP_SIZE
            if d < HEAD_DIM:
                out[b, m, head, d] = acc[c] / l_i if l_i != float32(0.0) else float32(0.0)
        if tx == 0:
            lse[b, head, m] = m_i + math.log(l_i)  # -inf for a row that saw no key

    return merge_chunks_kernel


@refuses_other_names
def lazy_softmax_attn(
    q,
    k,
    v,
    *,
    causal=False,
    softmax_scale=None,
    mask=None,
    mask_args=(),
    score=None,
    score_args=(),
    sinks=None,
    query_chunk_size=1024,
    key_chunk_size=None,
):
    """Attention whose memory does not grow with the square of the length.

    Parameters
    ----------
    q : array of shape (batch, seqlen_q, num_heads, head_dim), float32, float16 or bfloat16
    k, v : arrays of shape (batch, seqlen_k, num_kv_heads, head_dim), dtype of q
        As for `flash_attn_v2`; head_dim from 1 to 256.
    causal, softmax_scale, mask, mask_args, score, score_args, sinks
        As for `flash_attn_v2`.
    query_chunk_size : int, default=1024
        Number of queries that are processed at a time.
    key_chunk_size : int, default=⌈√seqlen_k⌉
        Number of keys in a chunk. Between the two kernels each of these queries has
        ⌈seqlen_k / key_chunk_size⌉ · (head_dim + 2) floats per head in HBM.

    Returns
    -------
    out, lse : arrays
        As of `flash_attn_v2`.
    """
    options = causal, (-1, -1), 0.0, None, softmax_scale
    call = checks.forward_call(q, k, v, *options, mask, mask_args, score, score_args, sinks)
    batch, seqlen_q, num_heads, head_dim = q.shape
    seqlen_k = call.seqlen_k
    query_chunk_size = checks.check_chunk_size("query_chunk_size", query_chunk_size, seqlen_q)
    if key_chunk_size is None:
        key_chunk_size = max(1, math.ceil(math.sqrt(seqlen_k)))
    key_chunk_size = checks.check_chunk_size("key_chunk_size", key_chunk_size, seqlen_k)
    num_chunks = max(1, ceil_div(seqlen_k, key_chunk_size))
    acc_partial = arrays.empty(q, (num_chunks, batch, query_chunk_size, num_heads, head_dim))
    l_partial, m_partial = (
        arrays.empty(q, (num_chunks, batch, num_heads, query_chunk_size)) for _ in range(2)
    )

    summarize = make_summarize_chunk(head_dim, call.mask.causal, call.expressions)
    merge = make_merge_chunks(head_dim, call.has_sinks)
    partial, size = (acc_partial, l_partial, m_partial), np.int32(key_chunk_size)
    for first in range(0, seqlen_q, query_chunk_size):  # the next chunk uses the same memory
        first_m = np.int32(first)
        grid = (query_chunk_size * num_chunks, num_heads, batch)
        sizes = (first_m, size, call.softmax_scale, call.expression_args)
        arrays.launch(summarize, grid, (WARP_SIZE,), q, k, v, *partial, *sizes)
        grid = (query_chunk_size, num_heads, batch)
        results = (call.out, call.lse, first_m, call.sinks)
        arrays.launch(merge, grid, (WARP_SIZE,), *partial, *results)
    return call.out, call.lse
