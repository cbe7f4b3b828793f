"""FlashAttention, backward, with register tiles: float32 on the CUDA cores.

flash_attn_bwd             one score per thread; S and dP computed for dK and dV, and again for dQ
flash_attn_bwd_registers   register tiles; S and dP computed once                      <- this file

A thread block owns a tile of keys, keeps its dK and dV in registers and walks the tiles of queries.
For each tile it computes Sᵀ and dPᵀ once, so five products suffice instead of seven. It adds the
tile's part of dQ to HBM with atomic additions, as other thread blocks do; their order varies, so
the last digits of dQ differ from run to run. With deterministic=True a second kernel, in which a
thread block owns a tile of queries, computes dQ: every run then gives the same bits.

Papers: FlashAttention, arXiv:2205.14135, Algorithm 4; FlashAttention-2, arXiv:2307.08691,
Algorithm 2.
"""

import functools
import math

from numba import cuda, float32, int32, uint64

from fa_numba import checks
from fa_numba.constants import LOG2_E, NEG_INF, ONE, ZERO
from fa_numba.expressions.functions import NO_EXPRESSIONS
from fa_numba.expressions.tiles import HIDDEN
from fa_numba.kernels import masks
from fa_numba.kernels.flash_attn_bwd import delta_of, dsinks_of
from fa_numba.on_cuda_cores import register_tiles
from fa_numba.on_cuda_cores.user_scores import make_user_scores
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.register_tiling import backward_tiling

ROWS = 4  # rows of every product that a thread owns


@functools.cache
def make_flash_attn_bwd_registers(
    HEAD_DIM, TILE, CAUSAL, WINDOW=(-1, -1), SOFTCAP=0.0, ALIBI=False, ADD_DQ=True,
    EXPRESSIONS=NO_EXPRESSIONS,
):  # fmt: skip
    """The kernel for dK, dV and, with ADD_DQ, dQ; `backward_tiling` has its number of threads.

    alibi_slopes is unused without ALIBI, dq without ADD_DQ, classes without a mask in EXPRESSIONS:
    each may then be any scalar.
    """
    first_query, end_query, sees = masks.make_bounds_of_keys(CAUSAL, WINDOW)
    score, score_bwd = masks.make_score(SOFTCAP, ALIBI), masks.make_score_bwd(SOFTCAP)
    class_of, modified, user_slope = make_user_scores(EXPRESSIONS)
    MASK, SCORE = EXPRESSIONS.mask is not None, EXPRESSIONS.score is not None
    WRITTEN = MASK or SCORE
    tiling = backward_tiling(HEAD_DIM, TILE)
    WIDTH, TX, TY = tiling.width, tiling.threads_x, tiling.threads_y
    ROW, SCORE_ROW, THREADS = tiling.row, tiling.score_row, tiling.threads
    WARPS = THREADS // register_tiles.WARP_SIZE
    COLS, OUT_COLS = TILE // TX, WIDTH // TX  # of a thread
    K_TILE, V_TILE, Q_TILE, DOUT_TILE, P_TILE = (i * TILE * ROW for i in range(5))
    DS_TILE = P_TILE + TILE * SCORE_ROW
    LSE_ROWS = DS_TILE + TILE * SCORE_ROW
    DELTA_ROWS = LSE_ROWS + TILE

    tx_ty = register_tiles.make_tx_ty(TX)
    load = register_tiles.make_load(HEAD_DIM, WIDTH, TILE, ROW, WARPS)
    add_rows = register_tiles.make_product_of_rows(ROWS, COLS, TY, TX, WIDTH, ROW, ROW)
    add_out = register_tiles.make_product(ROWS, OUT_COLS, TY, TX, TILE, SCORE_ROW, ROW)
    add_dq = register_tiles.make_product_of_columns(ROWS, OUT_COLS, TY, TX, TILE, SCORE_ROW, ROW)

    @cuda.jit(device=True)
    def load_queries(tiles, q, dout, lse, delta, b, m_start, head):
        """Load a tile of Q and of dout, and their lse and delta."""
        seqlen_q = q.shape[1]
        load(tiles, Q_TILE, q, b, m_start, head, seqlen_q, ONE)
        load(tiles, DOUT_TILE, dout, b, m_start, head, seqlen_q, ONE)
        if cuda.threadIdx.x < TILE:
            r = cuda.threadIdx.x
            m = m_start + r
            inside = m < seqlen_q
            tiles[uint64(LSE_ROWS + r)] = lse[b, head, m] if inside else ZERO
            tiles[uint64(DELTA_ROWS + r)] = delta[b, head, m] if inside else ZERO

    @cuda.jit(launch_bounds=(THREADS, 2 if THREADS <= 128 else 1), fastmath={"contract"})
    def flash_attn_bwd_registers_kernel(
        dout, q, k, v, lse, delta, dq, dk, dv, softmax_scale, alibi_slopes, classes, args
    ):  # fmt: skip
        """A thread block owns TILE keys and walks the queries of every head that uses them.

        grid      (num_n_tiles, num_kv_heads, batch); threads (TX · TY,): thread (ty, tx) owns keys
                  ty, ty + TY, ... of Sᵀ, dPᵀ, dk, dv, queries tx, tx + TX, ... of Sᵀ and dPᵀ, and
                  groups of four columns of dk, dv, dq: the first at 4 tx, the next 4 TX later
        shared    k_tile, v_tile, q_tile, dout_tile (TILE, WIDTH); p_tile, ds_tile (TILE, TILE),
                  keys by queries; lse_rows, delta_rows (TILE,)
        private   s, dp (ROWS, COLS), dk_acc, dv_acc, part (ROWS, OUT_COLS), lse_j, delta_j
                  (COLS,)
        HBM       K, V, dK, dV once; Q, dout, lse, delta once per tile of keys, except the tiles
                  that see none of them; atomic additions to dQ as often; with ALIBI alibi_slopes
                  in every thread, for each head
        paper     FlashAttention-2, Algorithm 2
        budget    255 registers, 0 bytes shared of fixed size (HEAD_DIM=64, TILE=64)
        """
        tiles = cuda.shared.array(0, float32)
        s = cuda.local.array((ROWS, COLS), float32)
        dp = cuda.local.array((ROWS, COLS), float32)
        dk_acc = cuda.local.array((ROWS, OUT_COLS), float32)
        dv_acc = cuda.local.array((ROWS, OUT_COLS), float32)
        part = cuda.local.array((ROWS, OUT_COLS), float32)  # the sum of one tile
        lse_j = cuda.local.array(COLS, float32)
        delta_j = cuda.local.array(COLS, float32)

        tx, ty = tx_ty(cuda.threadIdx.x)
        n_start = cuda.blockIdx.x * TILE
        kv_head, b = cuda.blockIdx.y, cuda.blockIdx.z
        seqlen_q, seqlen_k = q.shape[1], k.shape[1]
        group_size = q.shape[2] // k.shape[2]
        first_position = n_start - seqlen_k + seqlen_q  # of the tile's keys, among the queries
        last_position = first_position + TILE - 1
        # Tiles of queries that see no key of this tile are not loaded.
        m_first = first_query(first_position) // TILE * TILE
        m_end = end_query(last_position, seqlen_q)

        load(tiles, K_TILE, k, b, n_start, kv_head, seqlen_k, ONE)
        load(tiles, V_TILE, v, b, n_start, kv_head, seqlen_k, ONE)
        for i in range(ROWS):
            for c in range(OUT_COLS):
                dk_acc[i, c] = ZERO
                dv_acc[i, c] = ZERO

        for head in range(kv_head * group_size, (kv_head + 1) * group_size):
            slope = alibi_slopes[head] if ALIBI else ZERO
            for m_start in range(m_first, m_end, TILE):
                tile_class = class_of(classes, b, head, m_start // TILE, cuda.blockIdx.x)
                if MASK and tile_class == HIDDEN:
                    continue
                load_queries(tiles, q, dout, lse, delta, b, m_start, head)
                cuda.syncthreads()  # the tiles are complete: safe to read

                for i in range(ROWS):
                    for j in range(COLS):
                        s[i, j] = ZERO
                        dp[i, j] = ZERO
                add_rows(s, tiles, K_TILE, Q_TILE, ty, tx)  # Sᵀ = K Qᵀ                  line 10
                add_rows(dp, tiles, V_TILE, DOUT_TILE, ty, tx)  # dPᵀ = V doutᵀ          line 13
                # Does every key of the tile see every query of it?
                seen_from = first_query(last_position)
                seen_to = end_query(first_position, seqlen_q)
                whole = m_start >= seen_from and m_start + TILE <= seen_to
                whole = whole and n_start + TILE <= seqlen_k
                for j in range(COLS):
                    lse_j[j] = tiles[uint64(LSE_ROWS + tx + j * TX)]
                    if WRITTEN and lse_j[j] == NEG_INF:  # -inf - -inf is NaN
                        lse_j[j] = ZERO
                    delta_j[j] = tiles[uint64(DELTA_ROWS + tx + j * TX)]
                if WRITTEN:  # in loops of their own, which the compiler can unroll
                    n_thread = int32(n_start + ty)
                    m_thread = int32(m_start + tx + seqlen_k - seqlen_q)  # among the keys
                    for i in range(ROWS):
                        for j in range(COLS):
                            m, n = m_thread + j * TX, n_thread + i * TY
                            s[i, j] *= softmax_scale
                            if SCORE:
                                dp[i, j] -= delta_j[j]
                                dp[i, j] *= user_slope(s[i, j], b, head, m, n, seqlen_k, args)
                    for i in range(ROWS):
                        for j in range(COLS):
                            m, n = m_thread + j * TX, n_thread + i * TY
                            s[i, j] = modified(s[i, j], b, head, m, n, seqlen_k, tile_class, args)
                for i in range(ROWS):
                    n = n_start + ty + i * TY
                    position = first_position + ty + i * TY
                    for j in range(COLS):
                        m = m_start + tx + j * TX
                        scaled = s[i, j] if WRITTEN else s[i, j] * softmax_scale
                        s_mod = score(scaled, position - m, slope)
                        p = math.exp2((s_mod - lse_j[j]) * LOG2_E)  # P = exp(S - lse)   line 11
                        if not whole:
                            p = p if sees(position, m, seqlen_q) and n < seqlen_k else ZERO
                        ds = p * (dp[i, j] - delta_j[j])  # dS = P ∘ (dP - delta)        line 14
                        if SCORE:  # delta and slope are in dp
                            ds = p * dp[i, j] if p > ZERO else ZERO
                        index = (ty + i * TY) * SCORE_ROW + tx + j * TX
                        tiles[uint64(P_TILE + index)] = p
                        tiles[uint64(DS_TILE + index)] = score_bwd(ds, scaled)
                if ADD_DQ:
                    cuda.syncthreads()  # ds_tile is complete: its columns are read by other warps
                else:
                    cuda.syncwarp()  # a row of p_tile, ds_tile is written and read by one warp

                for i in range(ROWS):
                    for c in range(OUT_COLS):
                        part[i, c] = ZERO
                add_out(part, tiles, P_TILE, DOUT_TILE, ty, tx)
                # Summed by tiles: one running sum of seqlen_q terms would lose more digits.
                for i in range(ROWS):
                    for c in range(OUT_COLS):
                        dv_acc[i, c] += part[i, c]  # dV += Pᵀ dout                      line 12
                        part[i, c] = ZERO
                add_out(part, tiles, DS_TILE, Q_TILE, ty, tx)
                for i in range(ROWS):
                    for c in range(OUT_COLS):
                        dk_acc[i, c] += part[i, c]  # dK += dSᵀ Q                        line 16
                        part[i, c] = ZERO
                if ADD_DQ:
                    add_dq(part, tiles, DS_TILE, K_TILE, ty, tx)
                    for i in range(ROWS):
                        m = m_start + 4 * ty + i
                        for c in range(OUT_COLS):  # dQ += dS K                          line 15
                            d = 4 * tx + c // 4 * 4 * TX + c % 4
                            if m < seqlen_q and d < HEAD_DIM:
                                index_dq = uint64(b), uint64(m), uint64(head), uint64(d)
                                cuda.atomic.add(dq, index_dq, part[i, c] * softmax_scale)
                cuda.syncthreads()  # everyone is done with the tiles: safe to overwrite

        for i in range(ROWS):
            n = n_start + ty + i * TY
            if n < seqlen_k:
                for c in range(OUT_COLS):
                    d = 4 * tx + c // 4 * 4 * TX + c % 4
                    if d < HEAD_DIM:
                        index_dk = uint64(b), uint64(n), uint64(kv_head), uint64(d)
                        dk[index_dk] = dk_acc[i, c] * softmax_scale
                        dv[index_dk] = dv_acc[i, c]

    return flash_attn_bwd_registers_kernel


@functools.cache
def make_dq_registers(
    HEAD_DIM, TILE, CAUSAL, WINDOW=(-1, -1), SOFTCAP=0.0, ALIBI=False, EXPRESSIONS=NO_EXPRESSIONS
):
    """The kernel for dQ alone, in which no two thread blocks add to the same number.

    alibi_slopes is unused without ALIBI, classes without a mask in EXPRESSIONS: each may then be
    any scalar.
    """
    first_key, end_key, sees = masks.make_bounds(CAUSAL, WINDOW)
    score, score_bwd = masks.make_score(SOFTCAP, ALIBI), masks.make_score_bwd(SOFTCAP)
    class_of, modified, user_slope = make_user_scores(EXPRESSIONS)
    MASK, SCORE = EXPRESSIONS.mask is not None, EXPRESSIONS.score is not None
    WRITTEN = MASK or SCORE
    tiling = backward_tiling(HEAD_DIM, TILE)
    WIDTH, TX, TY = tiling.width, tiling.threads_x, tiling.threads_y
    ROW, SCORE_ROW, THREADS = tiling.row, tiling.score_row, tiling.threads
    WARPS = THREADS // register_tiles.WARP_SIZE
    COLS, OUT_COLS = TILE // TX, WIDTH // TX  # of a thread
    K_TILE, V_TILE, Q_TILE, DOUT_TILE, DS_TILE = (i * TILE * ROW for i in range(5))

    tx_ty = register_tiles.make_tx_ty(TX)
    load = register_tiles.make_load(HEAD_DIM, WIDTH, TILE, ROW, WARPS)
    add_rows = register_tiles.make_product_of_rows(ROWS, COLS, TY, TX, WIDTH, ROW, ROW)
    add_out = register_tiles.make_product(ROWS, OUT_COLS, TY, TX, TILE, SCORE_ROW, ROW)

    @cuda.jit(launch_bounds=(THREADS, 2 if THREADS <= 128 else 1), fastmath={"contract"})
    def dq_registers_kernel(
        dout, q, k, v, lse, delta, dq, softmax_scale, alibi_slopes, classes, args
    ):  # fmt: skip
        """A thread block owns TILE query rows and walks the tiles of K and V.

        grid      (num_m_tiles, num_heads, batch); threads (TX · TY,): thread (ty, tx) owns rows
                  ty, ty + TY, ... of S, dP and dq, columns tx, tx + TX, ... of S and dP, and groups
                  of four columns of dq: the first at 4 tx, the next 4 TX later
        shared    k_tile, v_tile, q_tile, dout_tile (TILE, WIDTH); ds_tile (TILE, TILE)
        private   s, dp (ROWS, COLS), acc, part (ROWS, OUT_COLS), lse_i, delta_i (ROWS,)
        HBM       Q, dout, dQ once, lse, delta once in each of TX threads; K and V once per tile of
                  queries, except the tiles that none of them sees; with ALIBI alibi_slopes in
                  every thread
        paper     FlashAttention, Algorithm 4, lines 11-21, dQ alone
        budget    255 registers, 0 bytes shared of fixed size (HEAD_DIM=64, TILE=64)
        """
        tiles = cuda.shared.array(0, float32)
        s = cuda.local.array((ROWS, COLS), float32)
        dp = cuda.local.array((ROWS, COLS), float32)
        acc = cuda.local.array((ROWS, OUT_COLS), float32)
        part = cuda.local.array((ROWS, OUT_COLS), float32)  # the sum of one tile
        lse_i = cuda.local.array(ROWS, float32)
        delta_i = cuda.local.array(ROWS, float32)

        tx, ty = tx_ty(cuda.threadIdx.x)
        m_start = (cuda.gridDim.x - 1 - cuda.blockIdx.x) * TILE  # tiles with the most keys first
        head, b = cuda.blockIdx.y, cuda.blockIdx.z
        seqlen_q, seqlen_k = q.shape[1], k.shape[1]
        kv_head = head // (q.shape[2] // k.shape[2])
        first_position = m_start + seqlen_k - seqlen_q  # of the tile's rows, among the keys
        last_position = first_position + TILE - 1
        n_first = first_key(first_position) // TILE * TILE
        n_end = end_key(last_position, seqlen_k)
        slope = alibi_slopes[head] if ALIBI else ZERO

        load(tiles, Q_TILE, q, b, m_start, head, seqlen_q, ONE)
        load(tiles, DOUT_TILE, dout, b, m_start, head, seqlen_q, ONE)
        for i in range(ROWS):
            m = m_start + ty + i * TY
            lse_i[i] = lse[b, head, m] if m < seqlen_q else ZERO
            if WRITTEN and lse_i[i] == NEG_INF:  # -inf - -inf is NaN
                lse_i[i] = ZERO
            delta_i[i] = delta[b, head, m] if m < seqlen_q else ZERO
            for c in range(OUT_COLS):
                acc[i, c] = ZERO

        for n_start in range(n_first, n_end, TILE):
            tile_class = class_of(classes, b, head, m_start // TILE, n_start // TILE)
            if MASK and tile_class == HIDDEN:
                continue
            load(tiles, K_TILE, k, b, n_start, kv_head, seqlen_k, ONE)
            load(tiles, V_TILE, v, b, n_start, kv_head, seqlen_k, ONE)
            cuda.syncthreads()  # the tiles are complete: safe to read

            for i in range(ROWS):
                for j in range(COLS):
                    s[i, j] = ZERO
                    dp[i, j] = ZERO
            add_rows(s, tiles, Q_TILE, K_TILE, ty, tx)  # S = Q Kᵀ                       line 11
            add_rows(dp, tiles, DOUT_TILE, V_TILE, ty, tx)  # dP = dout Vᵀ               line 17
            seen_from, seen_to = first_key(last_position), end_key(first_position, seqlen_k)
            whole = n_start >= seen_from and n_start + TILE <= seen_to
            whole = whole and m_start + TILE <= seqlen_q
            if WRITTEN:  # in loops of their own, which the compiler can unroll
                for i in range(ROWS):
                    for j in range(COLS):
                        m, n = first_position + ty + i * TY, n_start + tx + j * TX
                        s[i, j] *= softmax_scale
                        if SCORE:
                            dp[i, j] -= delta_i[i]
                            dp[i, j] *= user_slope(s[i, j], b, head, m, n, seqlen_k, args)
                for i in range(ROWS):
                    for j in range(COLS):
                        m, n = first_position + ty + i * TY, n_start + tx + j * TX
                        s[i, j] = modified(s[i, j], b, head, m, n, seqlen_k, tile_class, args)
            for i in range(ROWS):
                m = m_start + ty + i * TY
                position = first_position + ty + i * TY
                for j in range(COLS):
                    n = n_start + tx + j * TX
                    scaled = s[i, j] if WRITTEN else s[i, j] * softmax_scale
                    s_mod = score(scaled, position - n, slope)
                    p = math.exp2((s_mod - lse_i[i]) * LOG2_E)  # P = exp(S - lse)       line 13
                    if not whole:
                        p = p if sees(position, n, seqlen_k) and m < seqlen_q else ZERO
                    ds = p * (dp[i, j] - delta_i[i])  # dS = P ∘ (dP - delta)            line 20
                    if SCORE:  # delta and slope are in dp
                        ds = p * dp[i, j] if p > ZERO else ZERO
                    index = (ty + i * TY) * SCORE_ROW + tx + j * TX
                    tiles[uint64(DS_TILE + index)] = score_bwd(ds, scaled)
                for c in range(OUT_COLS):
                    part[i, c] = ZERO
            cuda.syncwarp()  # a row of ds_tile is written and read by the same warp

            add_out(part, tiles, DS_TILE, K_TILE, ty, tx)
            for i in range(ROWS):
                for c in range(OUT_COLS):
                    acc[i, c] += part[i, c]  # dQ += dS K                                line 21
            cuda.syncthreads()  # everyone is done with k_tile, v_tile: safe to overwrite

        for i in range(ROWS):
            m = m_start + ty + i * TY
            if m < seqlen_q:
                for c in range(OUT_COLS):
                    d = 4 * tx + c // 4 * 4 * TX + c % 4
                    if d < HEAD_DIM:
                        index_dq = uint64(b), uint64(m), uint64(head), uint64(d)
                        dq[index_dq] = acc[i, c] * softmax_scale

    return dq_registers_kernel


@arrays.replayed
@checks.takes(checks.SCORES)
def flash_attn_bwd_registers(
    dout, q, k, v, out, lse, *, deterministic=False, tile_size=None, **options
):
    """FlashAttention, backward, with register tiles: a much faster `flash_attn_bwd`.

    Parameters
    ----------
    dout, q, k, v, out, lse : arrays
        As for `flash_attn_bwd`; out and lse from any forward pass with the same options.
    causal, window_size, softcap, alibi_slopes, softmax_scale, mask, mask_args, score, score_args, \
    sinks
        As for `flash_attn_v2`.
    deterministic : bool, default=False
        True: dq, dk, dv have the same bits in every run. False: dk and dv do; the order in which dq
        is summed varies.
    tile_size : 16, 32 or 64, default=the largest that fits
        Queries and keys of a tile.

    Returns
    -------
    dq, dk, dv : arrays of the shapes, dtype and library of q, k, v
    dsinks : array of the shape, dtype and library of sinks
        As `flash_attn_bwd` returns them.
    """
    checks.check_bwd(dout, q, k, v, out, lse)
    batch, seqlen_q, num_heads, head_dim = q.shape
    seqlen_k, num_kv_heads = k.shape[1:3]
    scores = checks.check_scores(q, k=k, **options)
    deterministic = checks.check_flag("deterministic", deterministic)
    tile_size = checks.check_backward_tiles(q, head_dim, tile_size)
    # Thread blocks add to dq in float32, for every dtype of q.
    dq = arrays.empty(q, q.shape, q.dtype) if deterministic else arrays.full(q, q.shape, 0)
    delta = delta_of(dout, out)

    tiling = backward_tiling(head_dim, tile_size)
    dk, dv = (arrays.empty(q, x.shape, x.dtype) for x in (k, v))
    constants = *scores.mask, not deterministic, scores.expressions
    kernel = make_flash_attn_bwd_registers(head_dim, tile_size, *constants)
    grid = (ceil_div(seqlen_k, tile_size), num_kv_heads, batch)
    classes = masks.tile_classes(q, k, scores, tile_size, tile_size)
    scalars = scores.softmax_scale, scores.slopes, classes, scores.expression_args
    arguments = (dout, q, k, v, lse, delta, dq, dk, dv, *scalars)
    arrays.launch(kernel, grid, (tiling.threads,), *arguments, shared_bytes=tiling.shared_bytes)
    if deterministic:
        kernel = make_dq_registers(head_dim, tile_size, *scores.mask, scores.expressions)
        grid = (ceil_div(seqlen_q, tile_size), num_heads, batch)
        arguments = (dout, q, k, v, lse, delta, dq, *scalars)
        arrays.launch(kernel, grid, (tiling.threads,), *arguments, shared_bytes=tiling.shared_bytes)
    return arrays.astype(dq, q.dtype), dk, dv, *dsinks_of(options.get("sinks"), scores, lse, delta)
