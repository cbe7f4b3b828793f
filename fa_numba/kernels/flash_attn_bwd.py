"""FlashAttention, backward: dq, dk, dv from dout, without S and P in HBM.

With P = softmax(S), S = scale · Q Kᵀ and out = P V:

    dV = Pᵀ dout        dP = dout Vᵀ        dS = P ∘ (dP − delta)        delta = rowsum(dout ∘ out)
    dK = scale · dSᵀ Q                      dQ = scale · dS K

The forward pass does not store P: e^(S − lse) recomputes a tile of it, at the cost of one product.
dK and dV are sums over queries, dQ is a sum over keys, so each has its own kernel: one owns a tile
of keys and walks the queries, the other owns a tile of queries and walks the keys. Both compute S,
and no two thread blocks add to the same number: no atomics, the same bits in every run.

With dropout V is multiplied by P ∘ Z, where Z is 0 for a dropped entry and 1 / (1 − dropout_p) for
a kept one:

    out = (P ∘ Z) V            dV = (P ∘ Z)ᵀ dout            dP = Z ∘ (dout Vᵀ)

dS follows from dP as before, because softmax does not depend on Z, and rowsum(P ∘ dP) is still
delta:

    Σₙ Pₙ dPₙ = Σₙ Pₙ Zₙ (dout · Vₙ) = dout · Σₙ Pₙ Zₙ Vₙ = dout · out

With a user's score f(S) in place of S, the chain rule adds a factor to dS:

    P = e^(f(S) − lse)         dS = P ∘ (dP − delta) ∘ f′(S)

A sink σ is a score whose value is 0. It is in lse, so that dQ, dK and dV are as before. Its own dP
is 0, and all rows of a head share it: dσ = −Σ e^(σ − lse) · delta.

Papers: FlashAttention, arXiv:2205.14135, Algorithm 4; FlashAttention-2, arXiv:2307.08691,
Algorithm 2, whose single loop over the keys adds to dQ in HBM instead.
"""

import functools
import math

from numba import cuda, float32

from fa_numba import checks
from fa_numba.checks import HeadDims
from fa_numba.checks.argument_names import refuses_other_names
from fa_numba.constants import FULL_WARP, NEG_INF, WARP_SIZE
from fa_numba.expressions.functions import NO_EXPRESSIONS, device_functions
from fa_numba.kernels import dropout, masks
from fa_numba.kernels.sequence_of import make_sequence_of
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import ceil_div

HEAD_DIMS = HeadDims(v_differs=True)
ROWS = 4  # rows of delta per thread block, one warp each


@functools.cache
def make_delta(ROWS):
    """The first kernel, delta = rowsum(dout ∘ out): launch it with threads (32, ROWS)."""

    @cuda.jit
    def delta_kernel(dout, out, delta):
        """A warp owns a row.

        grid      (⌈seqlen_q / ROWS⌉, num_heads, batch); threads (32, ROWS)
        shared    none
        private   total
        HBM       dout, out, delta once
        paper     FlashAttention-2, Algorithm 2, line 4
        budget    40 registers, 0 bytes shared (ROWS=4)
        """
        lane = cuda.threadIdx.x
        m = cuda.blockIdx.x * ROWS + cuda.threadIdx.y
        head, b = cuda.blockIdx.y, cuda.blockIdx.z
        seqlen_q, head_dim = out.shape[1], out.shape[3]

        total = float32(0.0)
        if m < seqlen_q:
            for d in range(lane, head_dim, WARP_SIZE):
                total += float32(dout[b, m, head, d]) * float32(out[b, m, head, d])
        for step in range(5):  # after 16, 8, 4, 2, 1 each lane has the sum of all 32
            total += cuda.shfl_xor_sync(FULL_WARP, total, 16 >> step)
        if lane == 0 and m < seqlen_q:
            delta[b, head, m] = total

    return delta_kernel


def delta_of(dout, out):
    """Launch the first kernel; returns delta of shape (batch, num_heads, seqlen_q), float32."""
    batch, seqlen_q, num_heads, _ = out.shape
    delta = arrays.empty(out, (batch, num_heads, seqlen_q))
    grid = (ceil_div(seqlen_q, ROWS), num_heads, batch)
    arrays.launch(make_delta(ROWS), grid, (WARP_SIZE, ROWS), dout, out, delta)
    return delta


@cuda.jit
def dsinks_kernel(sinks, lse, delta, dsinks):
    """A warp owns a head, and sums over its rows.

    grid      (num_heads,); threads (32,)
    shared    none
    private   total
    HBM       lse, delta, dsinks once; sinks in every thread
    paper     FlashAttention-2, Algorithm 2, line 14, for a key with the value 0
    budget    64 registers, 0 bytes shared
    """
    lane, head = cuda.threadIdx.x, cuda.blockIdx.x
    total = float32(0.0)
    for b in range(lse.shape[0]):
        for m in range(lane, lse.shape[2], WARP_SIZE):
            if delta[b, head, m] != float32(0.0):  # it is 0 in a row that sees no key
                total -= math.exp(sinks[head] - lse[b, head, m]) * delta[b, head, m]
    for step in range(5):
        total += cuda.shfl_xor_sync(FULL_WARP, total, 16 >> step)
    if lane == 0:
        dsinks[head] = total


def dsinks_of(sinks, scores, lse, delta):
    """A tuple: the gradient of the sinks that a function was called with, or nothing without.

    Parameters
    ----------
    sinks : array of shape (num_heads,), or None
    scores : Scores
    lse, delta : arrays of shape (batch, num_heads, seqlen_q), float32
    """
    if sinks is None:
        return ()
    dsinks = arrays.empty(sinks, sinks.shape, sinks.dtype)
    arrays.launch(dsinks_kernel, (sinks.shape[0],), (WARP_SIZE,), scores.sinks, lse, delta, dsinks)
    return (dsinks,)


@functools.cache
def make_access(PACKED):
    """(load, load_row, store): numbers of q, k, v and gradients, and of lse and delta.

    `first` is the sequence; PACKED, its first token: all tokens are along one axis.
    """

    @cuda.jit(device=True, forceinline=True)
    def load(x, first, m, head, d):
        if PACKED:
            return float32(x[first + m, head, d])
        return float32(x[first, m, head, d])

    @cuda.jit(device=True, forceinline=True)
    def load_row(x, first, head, m):
        if PACKED:
            return x[head, first + m]
        return x[first, head, m]

    @cuda.jit(device=True, forceinline=True)
    def store(x, first, m, head, d, value):
        if PACKED:
            x[first + m, head, d] = value
        else:
            x[first, m, head, d] = value

    return load, load_row, store


@functools.cache
def make_dkdv(
    HEAD_DIM, BLOCK_M, BLOCK_N, CAUSAL, WINDOW=(-1, -1), SOFTCAP=0.0, ALIBI=False, DROPOUT_P=0.0,
    EXPRESSIONS=NO_EXPRESSIONS, HEAD_DIM_V=None, PACKED=False,
):  # fmt: skip
    """The second kernel, dK and dV: launch it with threads (BLOCK_M, BLOCK_N).

    alibi_slopes is unused without ALIBI, seed without dropout, classes without a mask in
    EXPRESSIONS: each may then be any scalar. HEAD_DIM_V, that of v and dout, is HEAD_DIM by
    default. PACKED is for `flash_attn_varlen_bwd`; otherwise cu_seqlens are empty tuples.
    """
    HEAD_DIM_V = HEAD_DIM_V or HEAD_DIM
    ONE_HEAD_DIM, WIDEST = HEAD_DIM == HEAD_DIM_V, max(HEAD_DIM, HEAD_DIM_V)
    first_query, end_query, sees = masks.make_bounds_of_keys(CAUSAL, WINDOW)
    score, score_bwd = masks.make_score(SOFTCAP, ALIBI), masks.make_score_bwd(SOFTCAP)
    user_sees, user_score, user_slope = device_functions(EXPRESSIONS)
    SCORE = EXPRESSIONS.score is not None
    tile_is_hidden = masks.make_tile_is_hidden(EXPRESSIONS.mask is not None and not PACKED)
    DROPOUT, KEEP_SCALE = DROPOUT_P > 0, dropout.keep_scale(DROPOUT_P)
    keeps = dropout.make_keeps(DROPOUT_P)
    ODD, ODD_V = HEAD_DIM | 1, HEAD_DIM_V | 1  # the threads of a warp read different banks
    NUM_COLS = ceil_div(WIDEST, BLOCK_M)  # columns of dk and of dv that a thread owns
    sequence_of, (load, load_row, store) = make_sequence_of(BLOCK_N), make_access(PACKED)

    @cuda.jit
    def dkdv_kernel(
        dout, q, k, v, cu_seqlens_q, cu_seqlens_k, lse, delta, dk, dv, softmax_scale, alibi_slopes,
        seed, classes, args,
    ):  # fmt: skip
        """A thread block owns BLOCK_N keys and walks the queries of every head that uses them.

        grid      (num_n_tiles, num_kv_heads, batch), PACKED (num_tokens_k // BLOCK_N + batch,
                  num_kv_heads); threads (BLOCK_M, BLOCK_N): thread (ty, tx) computes key ty,
                  query tx of each tile, and columns tx, tx + BLOCK_M, ... of rows ty of dk and dv
        shared    k_tile (BLOCK_N, HEAD_DIM), v_tile (BLOCK_N, HEAD_DIM_V);
                  q_tile (BLOCK_M, HEAD_DIM), dout_tile (BLOCK_M, HEAD_DIM_V);
                  p_tile, ds_tile (BLOCK_N, BLOCK_M), keys by queries; lse_rows, delta_rows
                  (BLOCK_M,)
        private   dk_acc, dv_acc, dsq, pdo (NUM_COLS,)
        HBM       K, V, dK, dV once; Q, dout, lse, delta once per tile of keys, except the tiles
                  that see none of them; with ALIBI alibi_slopes in every thread, for each head;
                  PACKED cu_seqlens_k in every thread about log2(batch) times, cu_seqlens_q twice
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
        if PACKED:
            tile, kv_head = cuda.blockIdx.x, cuda.blockIdx.y
            b, k_first, seqlen_k, n_start = sequence_of(tile, cu_seqlens_k)
            if n_start >= seqlen_k:  # an unused tile: the whole thread block returns
                return
            q_first = cu_seqlens_q[b]
            seqlen_q = cu_seqlens_q[b + 1] - q_first
            group_size = q.shape[1] // k.shape[1]
        else:
            n_start = cuda.blockIdx.x * BLOCK_N
            kv_head, b = cuda.blockIdx.y, cuda.blockIdx.z
            q_first, k_first = b, b
            seqlen_q, seqlen_k = q.shape[1], k.shape[1]
            group_size = q.shape[2] // k.shape[2]
        n = n_start + ty  # this thread's key; PACKED, indices count within the sequence
        position = n - seqlen_k + seqlen_q  # among the queries: the last key is at the last query
        # Tiles of queries that see no key of this tile are not loaded.
        m_first = first_query(n_start - seqlen_k + seqlen_q) // BLOCK_M * BLOCK_M
        m_end = end_query(n_start + BLOCK_N - 1 - seqlen_k + seqlen_q, seqlen_q)

        for d in range(tx, WIDEST, BLOCK_M):
            if ONE_HEAD_DIM or d < HEAD_DIM:
                k_tile[ty, d] = load(k, k_first, n, kv_head, d) if n < seqlen_k else float32(0.0)
            if ONE_HEAD_DIM or d < HEAD_DIM_V:
                v_tile[ty, d] = load(v, k_first, n, kv_head, d) if n < seqlen_k else float32(0.0)
        for c in range(NUM_COLS):
            dk_acc[c] = float32(0.0)
            dv_acc[c] = float32(0.0)

        for head in range(kv_head * group_size, (kv_head + 1) * group_size):
            slope = alibi_slopes[head] if ALIBI else float32(0.0)
            for m_start in range(m_first, m_end, BLOCK_M):
                if tile_is_hidden(classes, b, head, m_start // BLOCK_M, cuda.blockIdx.x):
                    continue
                for r in range(ty, BLOCK_M, BLOCK_N):
                    m = m_start + r
                    inside = m < seqlen_q
                    for d in range(tx, WIDEST, BLOCK_M):
                        if ONE_HEAD_DIM or d < HEAD_DIM:
                            q_tile[r, d] = load(q, q_first, m, head, d) if inside else float32(0.0)
                        if ONE_HEAD_DIM or d < HEAD_DIM_V:
                            x = load(dout, q_first, m, head, d) if inside else float32(0.0)
                            dout_tile[r, d] = x
                m = m_start + tx
                m_position = m + seqlen_k - seqlen_q  # among the keys
                if ty == 0:
                    lse_rows[tx] = load_row(lse, q_first, head, m) if m < seqlen_q else float32(0.0)
                    delta_rows[tx] = (
                        load_row(delta, q_first, head, m) if m < seqlen_q else float32(0.0)
                    )
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
                if DROPOUT:
                    kept = keeps(seed, b, head, m, n)
                    z = KEEP_SCALE if kept else float32(0.0)  # an entry of Z           line 14
                    p_tile[ty, tx] = p * z  # P ∘ Z                                     line 15
                    dp *= z  # dP = Z ∘ (dout Vᵀ)
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
                        store(dk, k_first, n, kv_head, d, dk_acc[c] * softmax_scale)
                    if ONE_HEAD_DIM or d < HEAD_DIM_V:
                        store(dv, k_first, n, kv_head, d, dv_acc[c])

    return dkdv_kernel


@functools.cache
def make_dq(
    HEAD_DIM, BLOCK_M, BLOCK_N, CAUSAL, WINDOW=(-1, -1), SOFTCAP=0.0, ALIBI=False, DROPOUT_P=0.0,
    EXPRESSIONS=NO_EXPRESSIONS, HEAD_DIM_V=None, PACKED=False,
):  # fmt: skip
    """The third kernel, dQ: launch it with threads (BLOCK_N, BLOCK_M).

    alibi_slopes is unused without ALIBI, seed without dropout, classes without a mask in
    EXPRESSIONS: each may then be any scalar. HEAD_DIM_V, that of v and dout, is HEAD_DIM by
    default. PACKED is for `flash_attn_varlen_bwd`; otherwise cu_seqlens are empty tuples.
    """
    HEAD_DIM_V = HEAD_DIM_V or HEAD_DIM
    ONE_HEAD_DIM, WIDEST = HEAD_DIM == HEAD_DIM_V, max(HEAD_DIM, HEAD_DIM_V)
    first_key, end_key, sees = masks.make_bounds(CAUSAL, WINDOW)
    score, score_bwd = masks.make_score(SOFTCAP, ALIBI), masks.make_score_bwd(SOFTCAP)
    user_sees, user_score, user_slope = device_functions(EXPRESSIONS)
    SCORE = EXPRESSIONS.score is not None
    tile_is_hidden = masks.make_tile_is_hidden(EXPRESSIONS.mask is not None and not PACKED)
    DROPOUT, KEEP_SCALE = DROPOUT_P > 0, dropout.keep_scale(DROPOUT_P)
    keeps = dropout.make_keeps(DROPOUT_P)
    ODD, ODD_V = HEAD_DIM | 1, HEAD_DIM_V | 1  # the threads of a warp read different banks
    NUM_COLS = ceil_div(HEAD_DIM, BLOCK_N)  # columns of dq that a thread owns
    sequence_of, (load, load_row, store) = make_sequence_of(BLOCK_M), make_access(PACKED)

    @cuda.jit
    def dq_kernel(
        dout, q, k, v, cu_seqlens_q, cu_seqlens_k, lse, delta, dq, softmax_scale, alibi_slopes,
        seed, classes, args,
    ):  # fmt: skip
        """A thread block owns BLOCK_M query rows and walks the tiles of K and V.

        grid      (num_m_tiles, num_heads, batch), PACKED (num_tokens_q // BLOCK_M + batch,
                  num_heads); threads (BLOCK_N, BLOCK_M): thread (ty, tx) computes query ty, key tx
                  of each tile, and columns tx, tx + BLOCK_N, ... of dq
        shared    q_tile (BLOCK_M, HEAD_DIM), dout_tile (BLOCK_M, HEAD_DIM_V);
                  k_tile (BLOCK_N, HEAD_DIM), v_tile (BLOCK_N, HEAD_DIM_V);
                  ds_tile (BLOCK_M, BLOCK_N); lse_rows, delta_rows (BLOCK_M,)
        private   acc, dsk (NUM_COLS,)
        HBM       Q, dout, lse, delta, dQ once; K and V once per tile of queries, except the
                  tiles that none of them sees; with ALIBI alibi_slopes in every thread; PACKED
                  cu_seqlens_q in every thread about log2(batch) times, cu_seqlens_k twice
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
        if PACKED:
            tile, head = cuda.blockIdx.x, cuda.blockIdx.y
            b, q_first, seqlen_q, m_start = sequence_of(tile, cu_seqlens_q)
            if m_start >= seqlen_q:  # an unused tile: the whole thread block returns
                return
            k_first = cu_seqlens_k[b]
            seqlen_k = cu_seqlens_k[b + 1] - k_first
            kv_head = head // (q.shape[1] // k.shape[1])
        else:
            m_start = cuda.blockIdx.x * BLOCK_M
            head, b = cuda.blockIdx.y, cuda.blockIdx.z
            q_first, k_first = b, b
            seqlen_q, seqlen_k = q.shape[1], k.shape[1]
            kv_head = head // (q.shape[2] // k.shape[2])
        m = m_start + ty  # this thread's query; PACKED, indices count within the sequence
        position = m + seqlen_k - seqlen_q  # among the keys: the last query is at the last key
        n_first = first_key(m_start + seqlen_k - seqlen_q) // BLOCK_N * BLOCK_N
        n_end = end_key(m_start + BLOCK_M - 1 + seqlen_k - seqlen_q, seqlen_k)
        slope = alibi_slopes[head] if ALIBI else float32(0.0)

        for d in range(tx, WIDEST, BLOCK_N):
            if ONE_HEAD_DIM or d < HEAD_DIM:
                q_tile[ty, d] = load(q, q_first, m, head, d) if m < seqlen_q else float32(0.0)
            if ONE_HEAD_DIM or d < HEAD_DIM_V:
                dout_tile[ty, d] = load(dout, q_first, m, head, d) if m < seqlen_q else float32(0.0)
        if tx == 0:
            lse_rows[ty] = load_row(lse, q_first, head, m) if m < seqlen_q else float32(0.0)
            delta_rows[ty] = load_row(delta, q_first, head, m) if m < seqlen_q else float32(0.0)
        for c in range(NUM_COLS):
            acc[c] = float32(0.0)

        for n_start in range(n_first, n_end, BLOCK_N):
            if tile_is_hidden(classes, b, head, cuda.blockIdx.x, n_start // BLOCK_N):
                continue
            for r in range(ty, BLOCK_N, BLOCK_M):
                n = n_start + r
                inside = n < seqlen_k
                for d in range(tx, WIDEST, BLOCK_N):
                    if ONE_HEAD_DIM or d < HEAD_DIM:
                        k_tile[r, d] = load(k, k_first, n, kv_head, d) if inside else float32(0.0)
                    if ONE_HEAD_DIM or d < HEAD_DIM_V:
                        v_tile[r, d] = load(v, k_first, n, kv_head, d) if inside else float32(0.0)
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
            if DROPOUT:  # dP = Z ∘ (dout Vᵀ)
                kept = keeps(seed, b, head, m, n)
                dp *= KEEP_SCALE if kept else float32(0.0)  # an entry of Z             line 14
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
                    store(dq, q_first, m, head, d, acc[c] * softmax_scale)

    return dq_kernel


@arrays.replayed
@refuses_other_names
def flash_attn_bwd(
    dout,
    q,
    k,
    v,
    out,
    lse,
    *,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    softmax_scale=None,
    dropout_p=0.0,
    seed=0,
    mask=None,
    mask_args=(),
    score=None,
    score_args=(),
    sinks=None,
    block_m=None,
    block_n=None,
):
    """FlashAttention, backward, by recomputation; the same bits in every run.

    Parameters
    ----------
    dout : array of the shape and dtype of out
        Gradient of the loss with respect to out.
    q : array of shape (batch, seqlen_q, num_heads, head_dim), float32, float16 or bfloat16
    k, v : arrays of shape (batch, seqlen_k, num_kv_heads, head_dim), dtype of q
        head_dim from 1 to 256. v may have another one than q and k.
    out, lse : arrays
        The results of `flash_attn_v2` for q, k, v and the same options.
    causal, window_size, softcap, alibi_slopes, softmax_scale, dropout_p, seed, mask, mask_args, \
    score, score_args, sinks
        As for `flash_attn_v2`.
    block_m, block_n : int, default=chosen
        Tile sizes, `fa_numba.analysis.kernel_block_sizes`.

    Returns
    -------
    dq, dk, dv : arrays of the shapes, dtype and library of q, k, v
        0 for a row that sees no key and for a key that no row sees; dk and dv are summed over the
        query heads that share a key head.
    dsinks : array of the shape, dtype and library of sinks
        With sinks alone.
    """
    checks.check_bwd(dout, q, k, v, out, lse, head_dims=HEAD_DIMS)
    batch, seqlen_q, num_heads, head_dim = q.shape
    seqlen_k, num_kv_heads = k.shape[1:3]
    options = causal, window_size, softcap, alibi_slopes, softmax_scale
    written = mask, mask_args, score, score_args, sinks
    scores = checks.check_scores(q, *options, *written, k=k)
    dropout_p, seed = checks.check_dropout(dropout_p, seed)
    sizes, head_dim_v = (head_dim, block_m, block_n), v.shape[3]
    block_m, block_n = checks.check_block_sizes("flash_attn_bwd", *sizes, head_dim_v=head_dim_v)
    delta = delta_of(dout, out)
    dq, dk, dv = (arrays.empty(q, x.shape, x.dtype) for x in (q, k, v))

    constants = *scores.mask, dropout_p, scores.expressions, head_dim_v
    classes = masks.tile_classes(q, k, scores, block_m, block_n)
    options = scores.softmax_scale, scores.slopes, seed, classes, scores.expression_args

    kernel = make_dkdv(head_dim, block_m, block_n, *constants)
    grid = (ceil_div(seqlen_k, block_n), num_kv_heads, batch)
    arguments = (dout, q, k, v, (), (), lse, delta)
    arrays.launch(kernel, grid, (block_m, block_n), *arguments, dk, dv, *options)

    kernel = make_dq(head_dim, block_m, block_n, *constants)
    grid = (ceil_div(seqlen_q, block_m), num_heads, batch)
    arrays.launch(kernel, grid, (block_n, block_m), *arguments, dq, *options)
    return dq, dk, dv, *dsinks_of(sinks, scores, lse, delta)
