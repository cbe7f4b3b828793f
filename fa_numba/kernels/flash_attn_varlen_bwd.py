"""FlashAttention over a packed batch, backward: sequences of any lengths, end to end, no padding.

flash_attn_bwd         (batch, seqlen, ...)  dK/dV by tiles of keys, dQ by tiles of queries
flash_attn_varlen_bwd  (num_tokens, ...)     the same, each tile within its sequence  <- this file

A thread block first finds the sequence of its tile (`sequence_of`): a tile of keys in one kernel,
of queries in the other. After that the kernels are those of flash_attn_bwd, on the tokens of one
sequence. delta depends on one row only: its kernel takes all tokens for one sequence.

Papers: FlashAttention, arXiv:2205.14135, Algorithm 4; FlashAttention-2, arXiv:2307.08691,
Algorithm 2.
"""

import functools
import math

from numba import cuda, float32

from fa_numba import checks
from fa_numba.checks.argument_names import refuses_other_names
from fa_numba.constants import NEG_INF, WARP_SIZE
from fa_numba.expressions.functions import NO_EXPRESSIONS, device_functions
from fa_numba.kernels import masks
from fa_numba.kernels.flash_attn_bwd import HEAD_DIMS, ROWS, dsinks_of, make_delta
from fa_numba.kernels.sequence_of import make_sequence_of
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import ceil_div


@functools.cache
def make_dkdv(
    HEAD_DIM, BLOCK_M, BLOCK_N, CAUSAL, WINDOW=(-1, -1), SOFTCAP=0.0, ALIBI=False,
    EXPRESSIONS=NO_EXPRESSIONS, HEAD_DIM_V=None,
):  # fmt: skip
    """The second kernel, dK and dV: launch it with threads (BLOCK_M, BLOCK_N).

    alibi_slopes is unused without ALIBI: it may then be any scalar. HEAD_DIM_V, that of v and dout,
    is HEAD_DIM by default.
    """
    HEAD_DIM_V = HEAD_DIM_V or HEAD_DIM
    ONE_HEAD_DIM, WIDEST = HEAD_DIM == HEAD_DIM_V, max(HEAD_DIM, HEAD_DIM_V)
    first_query, end_query, sees = masks.make_bounds_of_keys(CAUSAL, WINDOW)
    score, score_bwd = masks.make_score(SOFTCAP, ALIBI), masks.make_score_bwd(SOFTCAP)
    user_sees, user_score, user_slope = device_functions(EXPRESSIONS)
    SCORE = EXPRESSIONS.score is not None
    sequence_of = make_sequence_of(BLOCK_N)
    ODD, ODD_V = HEAD_DIM | 1, HEAD_DIM_V | 1  # the threads of a warp read different banks
    NUM_COLS = ceil_div(WIDEST, BLOCK_M)  # columns of dk and of dv that a thread owns

    @cuda.jit
    def dkdv_kernel(
        dout, q, k, v, cu_seqlens_q, cu_seqlens_k, lse, delta, dk, dv, softmax_scale, alibi_slopes,
        args,
    ):  # fmt: skip
        """A thread block owns BLOCK_N keys of a sequence, and walks its queries, head by head.

        grid      (num_tokens_k // BLOCK_N + batch, num_kv_heads); threads (BLOCK_M, BLOCK_N):
                  thread (ty, tx) computes key ty, query tx of each tile, and columns
                  tx, tx + BLOCK_M, ... of rows ty of dk and dv
        shared    k_tile (BLOCK_N, HEAD_DIM), v_tile (BLOCK_N, HEAD_DIM_V);
                  q_tile (BLOCK_M, HEAD_DIM), dout_tile (BLOCK_M, HEAD_DIM_V);
                  p_tile, ds_tile (BLOCK_N, BLOCK_M), keys by queries; lse_rows, delta_rows
                  (BLOCK_M,)
        private   dk_acc, dv_acc, dsq, pdo (NUM_COLS,)
        HBM       K, V, dK, dV once; Q, dout, lse, delta once per tile of keys, except the tiles
                  that see none of them; cu_seqlens_k in every thread about log2(batch) times,
                  cu_seqlens_q twice; with ALIBI alibi_slopes in every thread, for each head
        paper     FlashAttention, Algorithm 4, lines 6-18, 23, 25, without dQ
        budget    128 registers, 18688 bytes shared (HEAD_DIM=64, BLOCK_M=16, BLOCK_N=16)
        """
        k_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        v_tile = cuda.shared.array((BLOCK_N, HEAD_DIM_V), float32)
        q_tile = cuda.shared.array((BLOCK_M, ODD), float32)
        dout_tile = cuda.shared.array((BLOCK_M, ODD_V), float32)
        p_tile = cuda.shared.array((BLOCK_N, BLOCK_M), float32)
        ds_tile = cuda.shared.array((BLOCK_N, BLOCK_M), float32)
        lse_rows = cuda.shared.array(BLOCK_M, float32)
        delta_rows = cuda.shared.array(BLOCK_M, float32)
        dk_acc = cuda.local.array(NUM_COLS, float32)
        dv_acc = cuda.local.array(NUM_COLS, float32)
        dsq = cuda.local.array(NUM_COLS, float32)  # dSᵀ Q of one tile
        pdo = cuda.local.array(NUM_COLS, float32)  # Pᵀ dout of one tile

        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        tile, kv_head = cuda.blockIdx.x, cuda.blockIdx.y
        b, k_start, seqlen_k, n_start = sequence_of(tile, cu_seqlens_k)
        if n_start >= seqlen_k:  # an unused tile: the whole thread block returns
            return
        q_start = cu_seqlens_q[b]
        seqlen_q = cu_seqlens_q[b + 1] - q_start
        group_size = q.shape[1] // k.shape[1]
        n = n_start + ty  # this thread's key; from here on indices count within the sequence
        position = n - seqlen_k + seqlen_q  # among the queries: the last key is at the last query
        # Tiles of queries that see no key of this tile are not loaded.
        m_first = first_query(n_start - seqlen_k + seqlen_q) // BLOCK_M * BLOCK_M
        m_end = end_query(n_start + BLOCK_N - 1 - seqlen_k + seqlen_q, seqlen_q)

        inside = n < seqlen_k
        for d in range(tx, WIDEST, BLOCK_M):
            if ONE_HEAD_DIM or d < HEAD_DIM:
                k_tile[ty, d] = float32(k[k_start + n, kv_head, d]) if inside else float32(0.0)
            if ONE_HEAD_DIM or d < HEAD_DIM_V:
                v_tile[ty, d] = float32(v[k_start + n, kv_head, d]) if inside else float32(0.0)
        for c in range(NUM_COLS):
            dk_acc[c] = float32(0.0)
            dv_acc[c] = float32(0.0)

        for head in range(kv_head * group_size, (kv_head + 1) * group_size):
            slope = alibi_slopes[head] if ALIBI else float32(0.0)
            for m_start in range(m_first, m_end, BLOCK_M):
                for r in range(ty, BLOCK_M, BLOCK_N):
                    m = m_start + r
                    inside = m < seqlen_q
                    for d in range(tx, WIDEST, BLOCK_M):
                        if ONE_HEAD_DIM or d < HEAD_DIM:
                            x = float32(q[q_start + m, head, d]) if inside else float32(0.0)
                            q_tile[r, d] = x
                        if ONE_HEAD_DIM or d < HEAD_DIM_V:
                            x = float32(dout[q_start + m, head, d]) if inside else float32(0.0)
                            dout_tile[r, d] = x
                m = m_start + tx
                m_position = m + seqlen_k - seqlen_q  # among the keys
                if ty == 0:
                    lse_rows[tx] = lse[head, q_start + m] if m < seqlen_q else float32(0.0)
                    delta_rows[tx] = delta[head, q_start + m] if m < seqlen_q else float32(0.0)
                cuda.syncthreads()  # the tiles are complete: safe to read

                s = float32(0.0)  # Sᵀ = scale · K Qᵀ                                   line 11
                dp = float32(0.0)  # dPᵀ = V doutᵀ                                      line 17
                for d in range(WIDEST):
                    if ONE_HEAD_DIM or d < HEAD_DIM:
                        s += k_tile[ty, d] * q_tile[tx, d]
                    if ONE_HEAD_DIM or d < HEAD_DIM_V:
                        dp += v_tile[ty, d] * dout_tile[tx, d]
                p = float32(0.0)  # P = exp(S - lse)                                    line 13
                seen = sees(position, m, seqlen_q) and n < seqlen_k
                if seen and user_sees(b, head, m_position, n, args):
                    s *= softmax_scale
                    s_mod = score(s, position - m, slope)
                    s_mod = user_score(s_mod, b, head, m_position, n, args)
                    if not SCORE or s_mod > NEG_INF:  # else the score hides the key
                        p = math.exp(s_mod - lse_rows[tx])
                p_tile[ty, tx] = p
                ds = p * (dp - delta_rows[tx])  # dS = P ∘ (dP - delta)                 line 20
                if SCORE and p > float32(0.0):  # the chain rule: the user's score is of s
                    ds *= user_slope(s, b, head, m_position, n, args)
                ds_tile[ty, tx] = score_bwd(ds, s)
                cuda.syncthreads()  # p_tile, ds_tile are complete: each thread reads its row

                for c in range(NUM_COLS):
                    pdo[c] = float32(0.0)
                    dsq[c] = float32(0.0)
                for r in range(BLOCK_M):
                    p = p_tile[ty, r]
                    ds = ds_tile[ty, r]
                    for c in range(NUM_COLS):
                        d = tx + c * BLOCK_M
                        if d < WIDEST:
                            if ONE_HEAD_DIM or d < HEAD_DIM_V:
                                pdo[c] += p * dout_tile[r, d]
                            if ONE_HEAD_DIM or d < HEAD_DIM:
                                dsq[c] += ds * q_tile[r, d]
                # Summed by tiles: one running sum of seqlen_q terms would lose more digits.
                for c in range(NUM_COLS):
                    dv_acc[c] += pdo[c]  # dV += Pᵀ dout                                line 16
                    dk_acc[c] += dsq[c]  # dK += dSᵀ Q                                  line 22
                cuda.syncthreads()  # everyone is done with q_tile, dout_tile: safe to overwrite

        if n < seqlen_k:
            for c in range(NUM_COLS):
                d = tx + c * BLOCK_M
                if d < WIDEST:
                    if ONE_HEAD_DIM or d < HEAD_DIM:
                        dk[k_start + n, kv_head, d] = dk_acc[c] * softmax_scale
                    if ONE_HEAD_DIM or d < HEAD_DIM_V:
                        dv[k_start + n, kv_head, d] = dv_acc[c]

    return dkdv_kernel


@functools.cache
def make_dq(
    HEAD_DIM, BLOCK_M, BLOCK_N, CAUSAL, WINDOW=(-1, -1), SOFTCAP=0.0, ALIBI=False,
    EXPRESSIONS=NO_EXPRESSIONS, HEAD_DIM_V=None,
):  # fmt: skip
    """The third kernel, dQ: launch it with threads (BLOCK_N, BLOCK_M).

    alibi_slopes is unused without ALIBI: it may then be any scalar. HEAD_DIM_V, that of v and dout,
    is HEAD_DIM by default.
    """
    HEAD_DIM_V = HEAD_DIM_V or HEAD_DIM
    ONE_HEAD_DIM, WIDEST = HEAD_DIM == HEAD_DIM_V, max(HEAD_DIM, HEAD_DIM_V)
    first_key, end_key, sees = masks.make_bounds(CAUSAL, WINDOW)
    score, score_bwd = masks.make_score(SOFTCAP, ALIBI), masks.make_score_bwd(SOFTCAP)
    user_sees, user_score, user_slope = device_functions(EXPRESSIONS)
    SCORE = EXPRESSIONS.score is not None
    sequence_of = make_sequence_of(BLOCK_M)
    ODD, ODD_V = HEAD_DIM | 1, HEAD_DIM_V | 1  # the threads of a warp read different banks
    NUM_COLS = ceil_div(HEAD_DIM, BLOCK_N)  # columns of dq that a thread owns

    @cuda.jit
    def dq_kernel(
        dout, q, k, v, cu_seqlens_q, cu_seqlens_k, lse, delta, dq, softmax_scale, alibi_slopes, args
    ):  # fmt: skip
        """A thread block owns BLOCK_M query rows of a sequence and walks its tiles of K and V.

        grid      (num_tokens_q // BLOCK_M + batch, num_heads); threads (BLOCK_N, BLOCK_M):
                  thread (ty, tx) computes query ty, key tx of each tile, and columns
                  tx, tx + BLOCK_N, ... of dq
        shared    q_tile (BLOCK_M, HEAD_DIM), dout_tile (BLOCK_M, HEAD_DIM_V);
                  k_tile (BLOCK_N, HEAD_DIM), v_tile (BLOCK_N, HEAD_DIM_V);
                  ds_tile (BLOCK_M, BLOCK_N); lse_rows, delta_rows (BLOCK_M,)
        private   acc, dsk (NUM_COLS,)
        HBM       Q, dout, lse, delta, dQ once; K and V once per tile of queries, except the
                  tiles that none of them sees; cu_seqlens_q in every thread about log2(batch)
                  times, cu_seqlens_k twice; with ALIBI alibi_slopes in every thread
        paper     FlashAttention, Algorithm 4, lines 11-21, dQ alone
        budget    128 registers, 17792 bytes shared (HEAD_DIM=64, BLOCK_M=16, BLOCK_N=16)
        """
        q_tile = cuda.shared.array((BLOCK_M, HEAD_DIM), float32)
        dout_tile = cuda.shared.array((BLOCK_M, HEAD_DIM_V), float32)
        k_tile = cuda.shared.array((BLOCK_N, ODD), float32)
        v_tile = cuda.shared.array((BLOCK_N, ODD_V), float32)
        ds_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        lse_rows = cuda.shared.array(BLOCK_M, float32)
        delta_rows = cuda.shared.array(BLOCK_M, float32)
        acc = cuda.local.array(NUM_COLS, float32)  # one row of dq
        dsk = cuda.local.array(NUM_COLS, float32)  # dS K of one tile

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
        n_first = first_key(m_start + seqlen_k - seqlen_q) // BLOCK_N * BLOCK_N
        n_end = end_key(m_start + BLOCK_M - 1 + seqlen_k - seqlen_q, seqlen_k)
        slope = alibi_slopes[head] if ALIBI else float32(0.0)

        inside = m < seqlen_q
        for d in range(tx, WIDEST, BLOCK_N):
            if ONE_HEAD_DIM or d < HEAD_DIM:
                q_tile[ty, d] = float32(q[q_start + m, head, d]) if inside else float32(0.0)
            if ONE_HEAD_DIM or d < HEAD_DIM_V:
                dout_tile[ty, d] = float32(dout[q_start + m, head, d]) if inside else float32(0.0)
        if tx == 0:
            lse_rows[ty] = lse[head, q_start + m] if m < seqlen_q else float32(0.0)
            delta_rows[ty] = delta[head, q_start + m] if m < seqlen_q else float32(0.0)
        for c in range(NUM_COLS):
            acc[c] = float32(0.0)

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
            cuda.syncthreads()  # the tiles are complete: safe to read

            s = float32(0.0)  # S = scale · Q Kᵀ                                        line 11
            dp = float32(0.0)  # dP = dout Vᵀ                                           line 17
            for d in range(WIDEST):
                if ONE_HEAD_DIM or d < HEAD_DIM:
                    s += q_tile[ty, d] * k_tile[tx, d]
                if ONE_HEAD_DIM or d < HEAD_DIM_V:
                    dp += dout_tile[ty, d] * v_tile[tx, d]
            n = n_start + tx
            p = float32(0.0)  # P = exp(S - lse)                                        line 13
            seen = sees(position, n, seqlen_k) and m < seqlen_q
            if seen and user_sees(b, head, position, n, args):
                s *= softmax_scale
                s_mod = score(s, position - n, slope)
                s_mod = user_score(s_mod, b, head, position, n, args)
                if not SCORE or s_mod > NEG_INF:  # else the score hides the key
                    p = math.exp(s_mod - lse_rows[ty])
            ds = p * (dp - delta_rows[ty])  # dS = P ∘ (dP - delta)                     line 20
            if SCORE and p > float32(0.0):  # the chain rule: the user's score is of s
                ds *= user_slope(s, b, head, position, n, args)
            ds_tile[ty, tx] = score_bwd(ds, s)
            cuda.syncthreads()  # ds_tile is complete: each thread reads its whole row

            for c in range(NUM_COLS):
                dsk[c] = float32(0.0)
            for r in range(BLOCK_N):
                ds = ds_tile[ty, r]
                for c in range(NUM_COLS):
                    d = tx + c * BLOCK_N
                    if d < HEAD_DIM:
                        dsk[c] += ds * k_tile[r, d]
            for c in range(NUM_COLS):
                acc[c] += dsk[c]  # dQ += dS K                                          line 21
            cuda.syncthreads()  # everyone is done with k_tile: safe to overwrite

        if m < seqlen_q:
            for c in range(NUM_COLS):
                d = tx + c * BLOCK_N
                if d < HEAD_DIM:
                    dq[q_start + m, head, d] = acc[c] * softmax_scale

    return dq_kernel


@refuses_other_names
def flash_attn_varlen_bwd(
    dout,
    q,
    k,
    v,
    out,
    lse,
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
    """FlashAttention over a packed batch, backward, by recomputation; the same bits in every run.

    Parameters
    ----------
    dout : array of the shape and dtype of out
        Gradient of the loss with respect to out.
    q : array of shape (num_tokens_q, num_heads, head_dim), float32, float16 or bfloat16
    k, v : arrays of shape (num_tokens_k, num_kv_heads, head_dim), dtype of q
        head_dim from 1 to 256. v may have another one than q and k.
    out, lse : arrays
        The results of `flash_attn_varlen` for q, k, v and the same options.
    cu_seqlens_q, cu_seqlens_k, causal, window_size, softcap, alibi_slopes, softmax_scale, mask, \
    mask_args, score, score_args, sinks
        As for `flash_attn_varlen`.
    block_m, block_n : int, default=chosen
        Tile sizes, those of `flash_attn_bwd`.

    Returns
    -------
    dq, dk, dv : arrays of the shapes, dtype and library of q, k, v
        0 for a row that sees no key and for a key that no row sees; dk and dv are summed over the
        query heads that share a key head.
    dsinks : array of the shape, dtype and library of sinks
        With sinks alone.

    Notes
    -----
    The contents of cu_seqlens_q and cu_seqlens_k are checked if they are NumPy arrays, as in
    `flash_attn_varlen`.
    """
    given = dout, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k
    checks.check_varlen_bwd(*given, head_dims=HEAD_DIMS)
    (num_tokens_q, num_heads, head_dim), head_dim_v = q.shape, v.shape[2]
    num_tokens_k, num_kv_heads, _ = k.shape
    batch = cu_seqlens_q.shape[0] - 1
    written = mask, mask_args, score, score_args
    scores = checks.check_scores(q, causal, window_size, softcap, alibi_slopes, written, sinks)
    softmax_scale = checks.check_softmax_scale(softmax_scale, head_dim)
    sizes = head_dim, block_m, block_n
    block_m, block_n = checks.check_block_sizes("flash_attn_bwd", *sizes, head_dim_v=head_dim_v)
    delta = arrays.empty(q, (num_heads, num_tokens_q))
    dq, dk, dv = (arrays.empty(q, x.shape, x.dtype) for x in (q, k, v))

    grid = (ceil_div(num_tokens_q, ROWS), num_heads, 1)
    rows = map(arrays.with_axis, (dout, out, delta))
    arrays.launch(make_delta(ROWS), grid, (WARP_SIZE, ROWS), *rows)

    packed = (dout, q, k, v, cu_seqlens_q, cu_seqlens_k, lse, delta)
    constants = *scores.mask, scores.expressions, head_dim_v
    options = softmax_scale, scores.slopes, scores.expression_args
    kernel = make_dkdv(head_dim, block_m, block_n, *constants)
    grid = (num_tokens_k // block_n + batch, num_kv_heads)
    arrays.launch(kernel, grid, (block_m, block_n), *packed, dk, dv, *options)

    kernel = make_dq(head_dim, block_m, block_n, *constants)
    grid = (num_tokens_q // block_m + batch, num_heads)
    arrays.launch(kernel, grid, (block_n, block_m), *packed, dq, *options)
    rows = map(arrays.with_axis, (lse, delta))
    return dq, dk, dv, *dsinks_of(sinks, scores, *rows)
