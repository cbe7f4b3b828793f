"""FlashAttention-2 over a packed batch: sequences of any lengths, end to end, with no padding.

flash_attn_v2      (batch, seqlen, ...)  every sequence padded to the longest
flash_attn_varlen  (num_tokens, ...)     no padding                               <- this file

A batch of unequal sequences that is padded to a rectangle reads and computes padding. Here the
tokens of all sequences are in one row, and cu_seqlens holds the start of each: sequence b is tokens
cu_seqlens[b] to cu_seqlens[b + 1].

A thread block first finds the sequence of its tile of queries; `sequence_of` numbers the tiles so
that neither the thread block nor the host has to sum lengths. After that the kernel is
flash_attn_v2, on the tokens of one sequence.

Paper: Dao 2023, FlashAttention-2, arXiv:2307.08691, Algorithm 1, for each sequence.
"""

import functools
import math

from numba import cuda, float32

from fa_numba import checks
from fa_numba.checks.argument_names import refuses_other_names
from fa_numba.constants import NEG_INF
from fa_numba.expressions.functions import NO_EXPRESSIONS, device_functions
from fa_numba.kernels import masks
from fa_numba.kernels.sequence_of import make_sequence_of
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import ceil_div


@functools.cache
def make_flash_attn_varlen(
    HEAD_DIM, BLOCK_M, BLOCK_N, CAUSAL, WINDOW=(-1, -1), SOFTCAP=0.0, ALIBI=False,
    EXPRESSIONS=NO_EXPRESSIONS, SINKS=False, HEAD_DIM_V=None,
):  # fmt: skip
    """The kernel for these compile-time constants: launch it with threads (BLOCK_N, BLOCK_M).

    alibi_slopes is unused without ALIBI, sinks without SINKS: each may then be any scalar. A tile
    that a mask in EXPRESSIONS hides is loaded: classes of tiles would need the lengths on the host.
    HEAD_DIM_V, that of v and out, is HEAD_DIM by default.
    """
    HEAD_DIM_V = HEAD_DIM_V or HEAD_DIM
    ONE_HEAD_DIM, WIDEST = HEAD_DIM == HEAD_DIM_V, max(HEAD_DIM, HEAD_DIM_V)
    first_key, end_key, sees = masks.make_bounds(CAUSAL, WINDOW)
    score = masks.make_score(SOFTCAP, ALIBI)
    user_sees, user_score, _ = device_functions(EXPRESSIONS)
    PLAIN = EXPRESSIONS == NO_EXPRESSIONS  # else arrays are read at m, n: both must exist
    sequence_of = make_sequence_of(BLOCK_M)
    ODD = HEAD_DIM | 1  # an odd row length: the threads of a warp read k_tile in different banks
    NUM_COLS = ceil_div(HEAD_DIM_V, BLOCK_N)  # columns of out that a thread owns

    @cuda.jit
    def flash_attn_varlen_kernel(
        q, k, v, cu_seqlens_q, cu_seqlens_k, out, lse, softmax_scale, alibi_slopes, sinks, args
    ):  # fmt: skip
        """A thread block owns BLOCK_M query rows of a sequence and walks its tiles of K and V.

        grid      (num_tokens_q // BLOCK_M + batch, num_heads); threads (BLOCK_N, BLOCK_M):
                  thread (ty, tx) computes score [ty, tx] of each tile, and columns
                  tx, tx + BLOCK_N, ... of out
        shared    q_tile (BLOCK_M, HEAD_DIM); k_tile (BLOCK_N, HEAD_DIM);
                  v_tile (BLOCK_N, HEAD_DIM_V); s_tile, p_tile (BLOCK_M, BLOCK_N)
        private   acc, pv (NUM_COLS,), m_i, l_i: the same m_i and l_i in every thread of a row
        HBM       Q, out, lse once; K and V of a sequence once per tile of its queries, except the
                  tiles that none of them sees; cu_seqlens_q in every thread about log2(batch)
                  times, cu_seqlens_k twice; with ALIBI alibi_slopes in every thread
        paper     FlashAttention-2, Algorithm 1
        budget    128 registers, 14400 bytes shared (HEAD_DIM=64, BLOCK_M=16, BLOCK_N=16)
        """
        q_tile = cuda.shared.array((BLOCK_M, HEAD_DIM), float32)
        k_tile = cuda.shared.array((BLOCK_N, ODD), float32)
        v_tile = cuda.shared.array((BLOCK_N, HEAD_DIM_V), float32)
        s_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        p_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        acc = cuda.local.array(NUM_COLS, float32)  # one row of out, not yet divided by l_i
        pv = cuda.local.array(NUM_COLS, float32)  # P V of one tile

        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        tile, head = cuda.blockIdx.x, cuda.blockIdx.y
        b, q_start, seqlen_q, m_start = sequence_of(tile, cu_seqlens_q)
        if m_start >= seqlen_q:  # an unused tile: the whole thread block returns
            return
        k_start = cu_seqlens_k[b]
        seqlen_k = cu_seqlens_k[b + 1] - k_start
        kv_head = head // (q.shape[1] // k.shape[1])
        m = m_start + ty  # this thread's query; from here on indices count within the sequence
        position = m + seqlen_k - seqlen_q  # among the keys: the last query is at the last key
        # Tiles of keys that no row of this tile sees are not loaded.
        n_first = first_key(m_start + seqlen_k - seqlen_q) // BLOCK_N * BLOCK_N
        n_end = end_key(m_start + BLOCK_M - 1 + seqlen_k - seqlen_q, seqlen_k)
        slope = alibi_slopes[head] if ALIBI else float32(0.0)

        # After the end of a sequence the next one begins: those rows are zero-padded instead.
        for d in range(tx, HEAD_DIM, BLOCK_N):
            q_tile[ty, d] = float32(q[q_start + m, head, d]) if m < seqlen_q else float32(0.0)
        for c in range(NUM_COLS):
            acc[c] = float32(0.0)
        m_i = sinks[head] if SINKS else NEG_INF  # a sink is a key before all others, its value 0
        l_i = float32(1.0) if SINKS else float32(0.0)

        for n_start in range(n_first, n_end, BLOCK_N):
            for r in range(ty, BLOCK_N, BLOCK_M):
                n = n_start + r
                inside = n < seqlen_k
                for d in range(tx, WIDEST, BLOCK_N):
                    if ONE_HEAD_DIM or d < HEAD_DIM:
                        x = float32(k[k_start + n, kv_head, d]) if inside else float32(0.0)
                        k_tile[r, d] = x
                    if ONE_HEAD_DIM or d < HEAD_DIM_V:
                        x = float32(v[k_start + n, kv_head, d]) if inside else float32(0.0)
                        v_tile[r, d] = x
            cuda.syncthreads()  # q_tile, k_tile, v_tile are complete: safe to read

            s = float32(0.0)  # S = scale · Q Kᵀ                                          line 8
            for d in range(HEAD_DIM):
                s += q_tile[ty, d] * k_tile[tx, d]
            n = n_start + tx
            seen = sees(position, n, seqlen_k) and (PLAIN or m < seqlen_q)
            if seen and user_sees(b, head, position, n, args):
                s = score(s * softmax_scale, position - n, slope)
                s_tile[ty, tx] = user_score(s, b, head, position, n, args)
            else:
                s_tile[ty, tx] = NEG_INF
            cuda.syncthreads()  # s_tile is complete: each thread reads its whole row

            m_new = m_i  # m_i <- max(m_i, rowmax(S))                                     line 9
            for c in range(BLOCK_N):
                m_new = max(m_new, s_tile[ty, c])
            shift = float32(0.0) if m_new == NEG_INF else m_new  # no key yet: -inf - -inf is NaN
            alpha = math.exp(m_i - shift)  # rescales the sums under the old maximum
            p_tile[ty, tx] = math.exp(s_tile[ty, tx] - shift)  # P = exp(S - m_i)         line 9
            m_i = m_new
            cuda.syncthreads()  # p_tile is complete: each thread reads its whole row

            l_ij = float32(0.0)
            for c in range(NUM_COLS):
                pv[c] = float32(0.0)
            for r in range(BLOCK_N):
                p = p_tile[ty, r]
                l_ij += p
                for c in range(NUM_COLS):
                    d = tx + c * BLOCK_N
                    if d < HEAD_DIM_V:
                        pv[c] += p * v_tile[r, d]
            # Summed by tiles: one running sum of N terms would lose more digits.
            l_i = alpha * l_i + l_ij  # l_i <- alpha l_i + rowsum(P)                      line 9
            for c in range(NUM_COLS):
                acc[c] = alpha * acc[c] + pv[c]  # out <- alpha out + P V                 line 10
            cuda.syncthreads()  # everyone is done with v_tile: safe to overwrite

        if m < seqlen_q:
            for c in range(NUM_COLS):  # out <- out / l_i                                 line 12
                d = tx + c * BLOCK_N
                if d < HEAD_DIM_V:
                    x = acc[c] / l_i if l_i != float32(0.0) else float32(0.0)
                    out[q_start + m, head, d] = x
            if tx == 0:
                lse[head, q_start + m] = m_i + math.log(l_i)  # -inf: it saw no key       line 13

    return flash_attn_varlen_kernel


@refuses_other_names
def flash_attn_varlen(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
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
    """FlashAttention-2 over a packed batch: each sequence attends only to itself.

    Parameters
    ----------
    q : array of shape (num_tokens_q, num_heads, head_dim), float32, float16 or bfloat16
        The queries of all sequences, end to end.
    k, v : arrays of shape (num_tokens_k, num_kv_heads, head_dim), dtype of q
        Their keys and values. num_heads is a multiple of num_kv_heads (MHA, GQA, MQA). Any strides
        with a contiguous last axis; head_dim from 1 to 512. v may have another one than q and k.
    cu_seqlens_q, cu_seqlens_k : arrays of shape (batch + 1,), int32
        The starts of the sequences, then the end of the last: sequence b is tokens cu_seqlens[b] to
        cu_seqlens[b + 1] − 1. The first number is 0, the last is the number of tokens, and none is
        smaller than the one before. A sequence may have no queries, no keys, or neither.
    causal : bool, default=False
        Bottom-right aligned within each sequence: its last query sees all of its keys.
    window_size, softcap, alibi_slopes, softmax_scale, mask, mask_args, score, score_args, sinks
        As for `flash_attn_v2`: b is the number of a sequence, m and n count within it.
    block_m, block_n : int, default=chosen
        Tile sizes, those of `flash_attn_v2`.

    Returns
    -------
    out : array of the shape, dtype and library of q, with the head_dim of v
        0 in a row that sees no key.
    lse : array of shape (num_heads, num_tokens_q), float32
        Natural log of the row's sum of e^score; −inf in a row that sees no key.

    Notes
    -----
    The contents of cu_seqlens_q and cu_seqlens_k are checked as in `fa_numba.flash_attn_varlen`.
    """
    packed = q, k, v, cu_seqlens_q, cu_seqlens_k
    checks.check_varlen(*packed, head_dims=checks.ANY_HEAD_DIMS)
    (num_tokens_q, num_heads, head_dim), head_dim_v = q.shape, v.shape[2]
    options = causal, window_size, softcap, alibi_slopes, softmax_scale
    written = mask, mask_args, score, score_args, sinks
    scores = checks.check_scores(q, *options, *written)
    sizes = head_dim, block_m, block_n
    block_m, block_n = checks.check_block_sizes("flash_attn_v2", *sizes, head_dim_v=head_dim_v)
    out = arrays.empty(q, (num_tokens_q, num_heads, head_dim_v), q.dtype)
    lse = arrays.empty(q, (num_heads, num_tokens_q))
    constants = *scores.mask, scores.expressions, scores.has_sinks, head_dim_v
    kernel = make_flash_attn_varlen(head_dim, block_m, block_n, *constants)
    grid = (num_tokens_q // block_m + cu_seqlens_q.shape[0] - 1, num_heads)
    options = scores.softmax_scale, scores.slopes, scores.sinks, scores.expression_args
    arrays.launch(kernel, grid, (block_n, block_m), *packed, out, lse, *options)
    return out, lse
