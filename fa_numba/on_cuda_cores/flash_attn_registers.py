"""FlashAttention-2 with register tiles, forward: float32 near the limit of the CUDA cores.

flash_attn_v2_4x4        4 x 4 scores per thread: one load from shared memory for two FMAs
flash_attn_registers     8 rows of scores and of out per thread: one load for 4 FMAs   <- this file
                         with rows=4 the loads of flash_attn_v2_4x4, 16 bytes at a time
flash_attn_tf32x3        on tensor cores: three products of TF32 for each one of float32

The algorithm is that of flash_attn_v2. Changed since flash_attn_v2_4x4:

- A thread keeps a tile of S and a tile of out in registers; `register_tiles` does its loads and
  products. Tiles are as large as shared memory allows.
- e^x is computed as 2^(x · log2 e), with the GPU's instruction for 2^x.
- A tile is masked only if some row does not see all of it.
- The threads of a row are in one warp. Shuffles reduce a row, and P needs no barrier of the thread
  block.
- The tiles of queries with the most keys start first, so that none of them runs alone at the end.
- Copies to shared memory are batched: many loads are in flight, and none is behind a branch.

Paper: Dao 2023, FlashAttention-2, arXiv:2307.08691, Algorithm 1.
"""

import functools
import math

from numba import cuda, float32, uint64

from fa_numba import checks
from fa_numba.constants import LOG2_E, NEG_INF, ONE, ZERO
from fa_numba.expressions.functions import NO_EXPRESSIONS
from fa_numba.expressions.tiles import HIDDEN, MIXED
from fa_numba.kernels import masks
from fa_numba.on_cuda_cores import register_tiles
from fa_numba.on_cuda_cores.user_scores import make_user_scores
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.register_tiling import forward_tiling


@functools.cache
def make_flash_attn_registers(
    HEAD_DIM, BLOCK_M, BLOCK_N, CAUSAL, WINDOW=(-1, -1), SOFTCAP=0.0, ALIBI=False,
    EXPRESSIONS=NO_EXPRESSIONS, SINKS=False, THREAD_ROWS=None,
):  # fmt: skip
    """The kernel for these compile-time constants; `forward_tiling` has its number of threads.

    alibi_slopes is unused without ALIBI, sinks without SINKS, classes without a mask in
    EXPRESSIONS: each may then be any scalar.
    """
    first_key, end_key, sees = masks.make_bounds(CAUSAL, WINDOW)
    score = masks.make_score(SOFTCAP, ALIBI)
    user_scores = make_user_scores(EXPRESSIONS)
    class_of, modified = user_scores.class_of, user_scores.modified
    MASK, SCORE = EXPRESSIONS.mask is not None, EXPRESSIONS.score is not None
    tiling = forward_tiling(HEAD_DIM, BLOCK_M, BLOCK_N, THREAD_ROWS)
    WIDTH, ROWS, TX, TY = tiling.width, tiling.rows, tiling.threads_x, tiling.threads_y
    Q_TILE, K_TILE, P_TILE, V_TILE = 0, tiling.k_start, tiling.p_start, tiling.v_start
    THREADS = tiling.threads
    WARPS = THREADS // register_tiles.WARP_SIZE
    QK_ROW, P_ROW = WIDTH + 4, BLOCK_N + TX  # padded: no bank conflicts
    COLS, OUT_COLS = BLOCK_N // TX, WIDTH // TX  # of a thread

    tx_ty = register_tiles.make_tx_ty(TX)
    reductions = register_tiles.make_row_reductions(TX)
    row_max, row_sum = reductions.row_max, reductions.row_sum
    load_q = register_tiles.make_load(HEAD_DIM, WIDTH, BLOCK_M, QK_ROW, WARPS)
    load_k = register_tiles.make_load(HEAD_DIM, WIDTH, BLOCK_N, QK_ROW, WARPS)
    load_v = register_tiles.make_load(HEAD_DIM, WIDTH, BLOCK_N, WIDTH, WARPS)
    add_qkt = register_tiles.make_product_of_rows(ROWS, COLS, TY, TX, WIDTH, QK_ROW, QK_ROW)
    add_pv = register_tiles.make_product(ROWS, OUT_COLS, TY, TX, BLOCK_N, P_ROW, WIDTH)

    # A score_mod: a score is not just scale · q·k. A sink is no q·k at all.
    MODIFIED = SOFTCAP > 0 or ALIBI or SCORE or SINKS

    # All of fastmath would assume that no number is infinite. "contract" makes FMAs; with it Numba
    # also rounds divisions and square roots less exactly, and flushes e^x below 1e-38 to 0.
    @cuda.jit(launch_bounds=(THREADS, 2 if THREADS <= 128 else 1), fastmath={"contract"})
    def flash_attn_registers_kernel(
        q, k, v, out, lse, softmax_scale, alibi_slopes, sinks, classes, args
    ):  # fmt: skip
        """A thread block owns BLOCK_M query rows and walks the tiles of K and V.

        grid      (num_heads, num_m_tiles, batch); threads (TX · TY,): thread (ty, tx) owns rows
                  ty, ty + TY, ... of S and out, columns tx, tx + TX, ... of S, and groups of four
                  columns of out: the first at 4 tx, the next 4 TX later
        shared    q_tile (BLOCK_M, WIDTH), k_tile, v_tile (BLOCK_N, WIDTH); p_tile (BLOCK_M,
                  BLOCK_N), which overwrites k_tile
        private   s (ROWS, COLS), acc, pv (ROWS, OUT_COLS), m_i, l_i (ROWS,)
        HBM       Q, out, lse once; K and V once per tile of queries, except the tiles that none
                  of them sees; with ALIBI alibi_slopes in every thread
        paper     FlashAttention-2, Algorithm 1
        budget    255 registers, 0 bytes shared of fixed size (HEAD_DIM=64, BLOCK_M=128, BLOCK_N=64)
        """
        tiles = cuda.shared.array(0, float32)
        s = cuda.local.array((ROWS, COLS), float32)
        acc = cuda.local.array((ROWS, OUT_COLS), float32)  # rows of out, not yet divided by l_i
        pv = cuda.local.array((ROWS, OUT_COLS), float32)  # P V of one tile
        m_i = cuda.local.array(ROWS, float32)
        l_i = cuda.local.array(ROWS, float32)  # the sum over this thread's columns only

        tx, ty = tx_ty(cuda.threadIdx.x)
        # If CAUSAL, the last tiles of queries see the most keys. They start first, in all heads, so
        # that none of them runs alone at the end.
        m_start = (cuda.gridDim.y - 1 - cuda.blockIdx.y) * BLOCK_M
        head, b = cuda.blockIdx.x, cuda.blockIdx.z
        seqlen_q, seqlen_k = q.shape[1], k.shape[1]
        kv_head = head // (q.shape[2] // k.shape[2])
        first_position = m_start + seqlen_k - seqlen_q  # of the tile's rows, among the keys
        last_position = first_position + BLOCK_M - 1
        n_first = first_key(first_position) // BLOCK_N * BLOCK_N
        n_end = end_key(last_position, seqlen_k)
        slope = alibi_slopes[head] if ALIBI else ZERO
        # Without a score_mod s is q·k, and e^(scale (s - m)) = 2^(scale · log2(e) (s - m)) applies
        # the scale. Q is multiplied by the sign of the scale (by 0 if the scale is 0), so that the
        # largest s has the largest score.
        q_sign = ONE if softmax_scale > ZERO else -ONE if softmax_scale < ZERO else ZERO
        scale = abs(softmax_scale) if softmax_scale != ZERO else ONE
        score_per_s = ONE if MODIFIED else scale  # a score is s · score_per_s
        to_base_2 = score_per_s * LOG2_E

        load_q(tiles, Q_TILE, q, b, m_start, head, seqlen_q, q_sign)
        for i in range(ROWS):
            m_i[i] = sinks[head] if SINKS else NEG_INF  # a sink is one more key, its value 0
            l_i[i] = ONE if SINKS and tx == 0 else ZERO
            for c in range(OUT_COLS):
                acc[i, c] = ZERO

        for n_start in range(n_first, n_end, BLOCK_N):
            tile_class = class_of(classes, b, head, m_start // BLOCK_M, n_start // BLOCK_N)
            if MASK and tile_class == HIDDEN:
                continue
            load_k(tiles, K_TILE, k, b, n_start, kv_head, seqlen_k, ONE)
            load_v(tiles, V_TILE, v, b, n_start, kv_head, seqlen_k, ONE)
            cuda.syncthreads()  # q_tile, k_tile, v_tile are complete: safe to read

            for i in range(ROWS):  # S = scale · Q Kᵀ                                     line 8
                for j in range(COLS):
                    s[i, j] = ZERO
            add_qkt(s, tiles, Q_TILE, K_TILE, ty, tx)
            if MODIFIED:
                for i in range(ROWS):
                    for j in range(COLS):
                        n = n_start + tx + j * TX
                        distance = first_position + ty + i * TY - n
                        s[i, j] = score(s[i, j] * scale, distance, slope)
            if SCORE or (MASK and tile_class == MIXED):
                for i in range(ROWS):
                    for j in range(COLS):
                        m, n = first_position + ty + i * TY, n_start + tx + j * TX
                        s[i, j] = modified(s[i, j], b, head, m, n, seqlen_k, tile_class, args)
            # Does every row of the tile see every key of it?
            seen_from = first_key(last_position)
            seen_to = end_key(first_position, seqlen_k)
            if n_start < seen_from or n_start + BLOCK_N > seen_to:
                for i in range(ROWS):
                    for j in range(COLS):
                        n = n_start + tx + j * TX
                        if not sees(first_position + ty + i * TY, n, seqlen_k):
                            s[i, j] = NEG_INF
            cuda.syncthreads()  # everyone is done with k_tile: p_tile may overwrite it

            for i in range(ROWS):
                m_new = m_i[i]  # m_i <- max(m_i, rowmax(S))                              line 9
                for j in range(COLS):
                    m_new = max(m_new, s[i, j])
                m_new = row_max(m_new)
                shift = ZERO if m_new == NEG_INF else m_new  # -inf - -inf is NaN
                alpha = math.exp2((m_i[i] - shift) * to_base_2)  # rescales the earlier sums
                m_i[i] = m_new
                l_ij = ZERO
                for j in range(COLS):
                    p = math.exp2((s[i, j] - shift) * to_base_2)  # P = exp(S - m_i)      line 9
                    l_ij += p
                    tiles[uint64(P_TILE + (ty + i * TY) * P_ROW + tx + j * TX)] = p
                l_i[i] = alpha * l_i[i] + l_ij  # l_i <- alpha l_i + rowsum(P)            line 9
                for c in range(OUT_COLS):
                    acc[i, c] *= alpha
                    pv[i, c] = ZERO
            cuda.syncwarp()  # a row of p_tile is written and read by the same warp

            add_pv(pv, tiles, P_TILE, V_TILE, ty, tx)
            # Summed by tiles: one running sum of N terms would lose more digits.
            for i in range(ROWS):
                for c in range(OUT_COLS):
                    acc[i, c] += pv[i, c]  # out <- alpha out + P V                       line 10
            cuda.syncthreads()  # everyone is done with p_tile, v_tile: safe to overwrite

        for i in range(ROWS):
            m = m_start + ty + i * TY
            total = row_sum(l_i[i])
            if m < seqlen_q:
                inverse = ONE / total if total != ZERO else ZERO
                for c in range(OUT_COLS):  # out <- out / l_i                             line 12
                    d = 4 * tx + c // 4 * 4 * TX + c % 4
                    if d < HEAD_DIM:
                        out[uint64(b), uint64(m), uint64(head), uint64(d)] = acc[i, c] * inverse
                if tx == 0:  # -inf for a row that saw no key                             line 13
                    lse[uint64(b), uint64(head), uint64(m)] = m_i[i] * score_per_s + math.log(total)

    return flash_attn_registers_kernel


@arrays.replayed
@checks.takes(checks.SCORES)
def flash_attn_registers(q, k, v, *, block_m=None, block_n=None, rows=None, **options):
    """FlashAttention-2 with register tiles, forward: a much faster `flash_attn_v2`.

    Parameters
    ----------
    q : array of shape (batch, seqlen_q, num_heads, head_dim), float32, float16 or bfloat16
    k, v : arrays of shape (batch, seqlen_k, num_kv_heads, head_dim), dtype of q
        As for `flash_attn_v2`; all dtypes are computed in float32.
    causal, window_size, softcap, alibi_slopes, softmax_scale, mask, mask_args, score, score_args, \
    sinks
        As for `flash_attn_v2`.
    block_m, block_n : 16, 32, 64 or 128, default=chosen
        Tile sizes; the sizes that fit, and the default, depend on the shared memory of the GPU.
    rows : 4 or 8, default=8 if head_dim is at most 128, else 4
        Rows of scores and of out of a thread.

    Returns
    -------
    out, lse : arrays
        As of `flash_attn_v2`.
    """
    call = checks.forward_call(q, k, v, **options)
    block_m, block_n, rows = checks.check_forward_tiles(q, call.head_dim, block_m, block_n, rows)
    constants = *call.mask, call.expressions, call.has_sinks, rows
    kernel = make_flash_attn_registers(call.head_dim, block_m, block_n, *constants)
    tiling = forward_tiling(call.head_dim, block_m, block_n, rows)
    grid, threads = (call.num_heads, ceil_div(call.seqlen_q, block_m), call.batch), tiling.threads
    written = call.sinks, masks.tile_classes(q, k, call, block_m, block_n), call.expression_args
    size = tiling.shared_bytes
    arrays.launch(kernel, grid, (threads,), *call.arguments, *written, shared_bytes=size)
    return call.out, call.lse
