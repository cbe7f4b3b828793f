"""Standard attention, the yardstick: three kernels with S and P in HBM between them.

naive_attn      S and P in HBM                                    Θ(N²) floats moved   <- this file
flash_attn_v1   tiles; walks the keys outside, the queries inside out, l, m moved once per key tile
flash_attn_v2   walks the queries outside, the keys inside        out, lse moved once

S = scale · Q Kᵀ, P = softmax(S), out = P V: three kernels, like three library calls. The matrix
products are tiled as in flash_attn_v2, so that the traffic of S and P is the only difference
between the two.

Paper: FlashAttention, arXiv:2205.14135, Algorithm 0.
"""

import functools
import math

from numba import cuda, float32

from fa_numba import checks
from fa_numba.checks.argument_names import refuses_other_names
from fa_numba.constants import NEG_INF
from fa_numba.expressions.functions import NO_EXPRESSIONS, device_functions
from fa_numba.kernels import masks
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import ceil_div

THREADS = 128  # per row of the softmax; a power of two, for the tree


@functools.cache
def make_scores(
    HEAD_DIM, BLOCK_M, BLOCK_N, CAUSAL, WINDOW=(-1, -1), SOFTCAP=0.0, ALIBI=False,
    EXPRESSIONS=NO_EXPRESSIONS,
):  # fmt: skip
    """The first kernel, S = scale · Q Kᵀ: launch it with threads (BLOCK_N, BLOCK_M).

    alibi_slopes is unused without ALIBI: it may then be any scalar.
    """
    sees = masks.make_bounds(CAUSAL, WINDOW).sees
    score = masks.make_score(SOFTCAP, ALIBI)
    user_sees, user_score, _ = device_functions(EXPRESSIONS)
    ODD = HEAD_DIM | 1  # an odd row length: the threads of a warp read k_tile in different banks

    @cuda.jit
    def scores_kernel(q, k, s, softmax_scale, alibi_slopes, args):
        """A thread block owns a tile of S, BLOCK_M queries by BLOCK_N keys.

        grid      (num_m_tiles * num_n_tiles, num_heads, batch); threads (BLOCK_N, BLOCK_M):
                  thread (ty, tx) computes score [ty, tx]
        shared    q_tile (BLOCK_M, HEAD_DIM); k_tile (BLOCK_N, HEAD_DIM)
        private   dot
        HBM       S once; Q once per tile of keys; K once per tile of queries; with ALIBI
                  alibi_slopes in every thread
        paper     FlashAttention, Algorithm 0, line 1
        budget    128 registers, 8256 bytes shared (HEAD_DIM=64, BLOCK_M=16, BLOCK_N=16)
        """
        q_tile = cuda.shared.array((BLOCK_M, HEAD_DIM), float32)
        k_tile = cuda.shared.array((BLOCK_N, ODD), float32)

        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        head, b = cuda.blockIdx.y, cuda.blockIdx.z
        seqlen_q, seqlen_k = q.shape[1], k.shape[1]
        num_n_tiles = (seqlen_k + BLOCK_N - 1) // BLOCK_N
        m_start = cuda.blockIdx.x // num_n_tiles * BLOCK_M
        n_start = cuda.blockIdx.x % num_n_tiles * BLOCK_N
        kv_head = head // (q.shape[2] // k.shape[2])
        m = m_start + ty
        position = m + seqlen_k - seqlen_q  # among the keys: the last query is at the last key
        slope = alibi_slopes[head] if ALIBI else float32(0.0)

        for d in range(tx, HEAD_DIM, BLOCK_N):
            q_tile[ty, d] = float32(q[b, m, head, d]) if m < seqlen_q else float32(0.0)
        for r in range(ty, BLOCK_N, BLOCK_M):
            n = n_start + r
            for d in range(tx, HEAD_DIM, BLOCK_N):
                k_tile[r, d] = float32(k[b, n, kv_head, d]) if n < seqlen_k else float32(0.0)
        cuda.syncthreads()  # q_tile, k_tile are complete: safe to read

        dot = float32(0.0)
        for d in range(HEAD_DIM):
            dot += q_tile[ty, d] * k_tile[tx, d]
        n = n_start + tx
        if m < seqlen_q and n < seqlen_k:
            x = NEG_INF
            if sees(position, n, seqlen_k) and user_sees(b, head, position, n, args):
                x = score(dot * softmax_scale, position - n, slope)
                x = user_score(x, b, head, position, n, args)
            s[b, head, m, n] = x

    return scores_kernel


@functools.cache
def make_probabilities(THREADS, SINKS=False):
    """The second kernel, P = softmax(S), for thread blocks of THREADS threads, a power of two.

    sinks is unused without SINKS: it may then be any scalar.
    """

    @cuda.jit
    def probabilities_kernel(s, p, lse, sinks):
        """A thread block owns a row of S; thread tid takes keys tid, tid + THREADS, ...

        grid      (seqlen_q, num_heads, batch); threads (THREADS,)
        shared    partial (THREADS,): each thread's maximum, then its sum, combined by a tree
        private   row_max, row_sum
        HBM       S three times; P, lse once
        paper     FlashAttention, Algorithm 0, line 2
        budget    48 registers, 512 bytes shared (THREADS=128)
        """
        partial = cuda.shared.array(THREADS, float32)
        tid = cuda.threadIdx.x
        m, head, b = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
        seqlen_k = s.shape[3]

        row_max = sinks[head] if SINKS else NEG_INF  # a sink is one more key, its value 0
        for n in range(tid, seqlen_k, THREADS):
            row_max = max(row_max, s[b, head, m, n])
        partial[tid] = row_max
        cuda.syncthreads()  # every thread's maximum is there: the tree may start
        width = THREADS // 2
        while width > 0:
            if tid < width:
                partial[tid] = max(partial[tid], partial[tid + width])
            cuda.syncthreads()  # this level is complete: the next one reads it
            width //= 2
        row_max = partial[0]
        cuda.syncthreads()  # everyone has the maximum: partial may be overwritten

        shift = float32(0.0) if row_max == NEG_INF else row_max  # no key seen: -inf - -inf is NaN
        row_sum = math.exp(sinks[head] - shift) if SINKS and tid == 0 else float32(0.0)
        for n in range(tid, seqlen_k, THREADS):
            row_sum += math.exp(s[b, head, m, n] - shift)
        partial[tid] = row_sum
        cuda.syncthreads()  # every thread's sum is there: the tree may start
        width = THREADS // 2
        while width > 0:
            if tid < width:
                partial[tid] += partial[tid + width]
            cuda.syncthreads()  # this level is complete: the next one reads it
            width //= 2
        row_sum = partial[0]

        divisor = float32(1.0) if row_sum == float32(0.0) else row_sum  # no key seen: P is 0
        for n in range(tid, seqlen_k, THREADS):
            p[b, head, m, n] = math.exp(s[b, head, m, n] - shift) / divisor
        if tid == 0:
            lse[b, head, m] = row_max + math.log(row_sum)  # -inf for a row that saw no key

    return probabilities_kernel


@functools.cache
def make_weighted_values(HEAD_DIM, BLOCK_M, BLOCK_N):
    """The third kernel, out = P V: launch it with threads (BLOCK_N, BLOCK_M)."""
    NUM_COLS = ceil_div(HEAD_DIM, BLOCK_N)  # columns of out that a thread owns

    @cuda.jit
    def weighted_values_kernel(p, v, out):
        """A thread block owns BLOCK_M rows of out and walks the tiles of P and V.

        grid      (num_m_tiles, num_heads, batch); threads (BLOCK_N, BLOCK_M): thread (ty, tx)
                  owns columns tx, tx + BLOCK_N, ... of row ty
        shared    p_tile (BLOCK_M, BLOCK_N); v_tile (BLOCK_N, HEAD_DIM)
        private   acc, pv (NUM_COLS,)
        HBM       P, out once; V once per tile of queries
        paper     FlashAttention, Algorithm 0, line 3
        budget    128 registers, 5120 bytes shared (HEAD_DIM=64, BLOCK_M=16, BLOCK_N=16)
        """
        p_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        v_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        acc = cuda.local.array(NUM_COLS, float32)  # one row of out
        pv = cuda.local.array(NUM_COLS, float32)  # P V of one tile

        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        head, b = cuda.blockIdx.y, cuda.blockIdx.z
        seqlen_q, seqlen_k = p.shape[2], p.shape[3]
        kv_head = head // (p.shape[1] // v.shape[2])
        m = cuda.blockIdx.x * BLOCK_M + ty

        for c in range(NUM_COLS):
            acc[c] = float32(0.0)
        for n_start in range(0, seqlen_k, BLOCK_N):
            n = n_start + tx
            p_tile[ty, tx] = p[b, head, m, n] if m < seqlen_q and n < seqlen_k else float32(0.0)
            for r in range(ty, BLOCK_N, BLOCK_M):
                n = n_start + r
                for d in range(tx, HEAD_DIM, BLOCK_N):
                    v_tile[r, d] = float32(v[b, n, kv_head, d]) if n < seqlen_k else float32(0.0)
            cuda.syncthreads()  # p_tile, v_tile are complete: safe to read
            for c in range(NUM_COLS):
                pv[c] = float32(0.0)
            for r in range(BLOCK_N):
                weight = p_tile[ty, r]
                for c in range(NUM_COLS):
                    d = tx + c * BLOCK_N
                    if d < HEAD_DIM:
                        pv[c] += weight * v_tile[r, d]
            for c in range(NUM_COLS):
                acc[c] += pv[c]  # by tiles: one running sum would lose more digits
            cuda.syncthreads()  # everyone is done with p_tile, v_tile: safe to overwrite
        if m < seqlen_q:
            for c in range(NUM_COLS):
                d = tx + c * BLOCK_N
                if d < HEAD_DIM:
                    out[b, m, head, d] = acc[c]

    return weighted_values_kernel


@refuses_other_names
def naive_attn(
    q,
    k,
    v,
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
    block_m=None,
    block_n=None,
):
    """Standard attention: three kernels, with S and P written to HBM and read back.

    Parameters
    ----------
    q : array of shape (batch, seqlen_q, num_heads, head_dim), float32, float16 or bfloat16
    k, v : arrays of shape (batch, seqlen_k, num_kv_heads, head_dim), dtype of q
    causal, window_size, softcap, alibi_slopes, softmax_scale, mask, mask_args, score, score_args, \
    sinks
        As for `flash_attn_v2`.
    block_m, block_n : int, default=chosen
        Tile sizes, `fa_numba.analysis.kernel_block_sizes`.

    Returns
    -------
    out, lse : arrays
        As of `flash_attn_v2`.
    """
    options = causal, window_size, softcap, alibi_slopes, softmax_scale
    written = mask, mask_args, score, score_args, sinks
    call = checks.forward_call(q, k, v, *options, *written, head_dims=checks.ANY_HEAD_DIMS)
    sizes = call.head_dim, block_m, block_n
    block_m, block_n = checks.check_block_sizes("naive_attn", *sizes, head_dim_v=call.head_dim_v)
    heads, threads = (call.num_heads, call.batch), (block_n, block_m)
    shape = (call.batch, call.num_heads, call.seqlen_q, call.seqlen_k)
    s, p = (arrays.empty(q, shape) for _ in range(2))
    num_m_tiles, num_n_tiles = ceil_div(call.seqlen_q, block_m), ceil_div(call.seqlen_k, block_n)

    scores = make_scores(call.head_dim, block_m, block_n, *call.mask, call.expressions)
    grid = (num_m_tiles * num_n_tiles, *heads)
    options = call.softmax_scale, call.slopes, call.expression_args
    arrays.launch(scores, grid, threads, q, k, s, *options)
    probabilities = make_probabilities(THREADS, call.has_sinks)
    arrays.launch(probabilities, (call.seqlen_q, *heads), (THREADS,), s, p, call.lse, call.sinks)
    weighted_values = make_weighted_values(call.head_dim_v, block_m, block_n)
    arrays.launch(weighted_values, (num_m_tiles, *heads), threads, p, v, call.out)
    return call.out, call.lse
