"""FlashAttention-2 with register tiles whose operands arrive in chunks, forward.

flash_attn_simt          tiles of K and V, loaded between the products; a thread reads rows of both
flash_attn_simt_chunks   chunks of them, copied meanwhile; a thread reads columns of both  <- this

The same algorithm, the same masks, another inner loop. A thread reads Qᵀ and Kᵀ, Pᵀ and V at one
step of the sum at a time, two loads of 16 bytes each, and those of the next step while it computes
(`chunks`). Only Qᵀ and Pᵀ stay in shared memory; K and V pass through a ring: a tile of S may be
128 × 128 at head_dim 128. A chunk costs a barrier. K passes as it lies in HBM, or turned, by a
small kernel before: `register_tiling.turns_keys` says when that pays.

`flash_attn_simt` launches it for float32 tiles of 64 and 128 columns, from sm_80 on.
"""

import functools
import math

import numpy as np
from numba import cuda, float32, uint64

from fa_numba.analysis.register_tiling import forward_chunks, turns_keys
from fa_numba.kernels import chunks, masks, register_tiles
from fa_numba.tensor_core.cp_async import cp_async_commit, cp_async_wait
from fa_numba.tensor_core.ptx import global_address
from fa_numba.tensor_core.vectors import store_global_x4

NEG_INF = np.float32(-np.inf)
ZERO, ONE, LOG2_E = np.float32(0), np.float32(1), np.float32(math.log2(math.e))


@functools.cache
def make_flash_attn_simt_chunks(HEAD_DIM, CAUSAL, WINDOW=(-1, -1), SOFTCAP=0.0, ALIBI=False):
    """The kernel for these compile-time constants; `forward_chunks` says with how many threads.

    Where `turns_keys` says so, k is what `chunks.turn` makes of it. Without ALIBI the argument
    alibi_slopes is not looked at, and may be any scalar.
    """
    first_key, end_key, sees = masks.make_bounds(CAUSAL, WINDOW)
    score = masks.make_score(SOFTCAP, ALIBI)
    tiling = forward_chunks(HEAD_DIM)
    WIDTH, BLOCK_M, BLOCK_N, TX, TY, CHUNK, ROW_CHUNK, STAGES = tiling
    THREADS = tiling.threads
    ROWS, COLS, OUT_COLS = BLOCK_M // TY, BLOCK_N // TX, WIDTH // TX  # of a thread
    Q_ROW, P_ROW, K_ROW = tiling.q_row, tiling.p_row, tiling.k_row
    P_TILE, RING, STAGE = tiling.p_start, tiling.ring_start, tiling.stage
    K_CHUNKS, V_CHUNKS = WIDTH // CHUNK, BLOCK_N // ROW_CHUNK
    NEXT_TILE, AHEAD, PENDING = K_CHUNKS + V_CHUNKS, STAGES - 1, STAGES - 2  # in chunks

    place = register_tiles.make_place(TX)
    row_max, row_sum = register_tiles.make_row_reductions(TX)
    warps = THREADS // register_tiles.WARP_SIZE
    load_q = chunks.make_load_turned(HEAD_DIM, WIDTH, BLOCK_M, Q_ROW, warps)
    copy_v = chunks.make_copy(ROW_CHUNK, WIDTH, WIDTH, THREADS)
    qkt, pv = (ROWS, COLS, TY, TX, CHUNK, Q_ROW), (ROWS, OUT_COLS, TY, TX, ROW_CHUNK, P_ROW, WIDTH)
    add_pv = chunks.make_add_product(*pv)
    TURNED = turns_keys(HEAD_DIM)
    if TURNED:
        copy_k = chunks.make_copy(CHUNK, BLOCK_N, BLOCK_N, THREADS)
        add_qkt = chunks.make_add_product(*qkt, BLOCK_N)
    else:
        copy_k = chunks.make_copy(BLOCK_N, CHUNK, K_ROW, THREADS)
        add_qkt = chunks.make_add_product_by_rows(*qkt, K_ROW)
    # Where the first half of the queries sees nothing of the keys' second half. At 64 columns the
    # compiler finds worse registers for all products where there are these, too.
    HALVES = TURNED and (CAUSAL or WINDOW[1] >= 0)
    add_some_qkt = chunks.make_add_product(*qkt, BLOCK_N, COLS // 2)
    add_half_pv = chunks.make_add_product(*pv, OUT_COLS)

    BENT = SOFTCAP > 0 or ALIBI  # scores are more than scale · q·k

    @cuda.jit(device=True)
    def copy_chunk(tiles, chunk, k, v, b, n_start, kv_head):
        """Start to copy a chunk: of K and then V from key n_start on, then of the next keys."""
        stage = RING + chunk % STAGES * STAGE
        if chunk >= NEXT_TILE:
            chunk, n_start = chunk - NEXT_TILE, n_start + BLOCK_N
        num_inside = v.shape[1] - n_start
        if chunk < K_CHUNKS:
            d = chunk * CHUNK
            if TURNED:
                address = global_address(k[b, kv_head, d]) + uint64(4 * n_start)
                num_rows = CHUNK if num_inside > 0 else 0
                copy_k(tiles, stage, address, k.strides[2], num_rows, BLOCK_N)
            else:
                address = global_address(k[b, 0, kv_head]) + uint64(n_start * k.strides[1] + 4 * d)
                copy_k(tiles, stage, address, k.strides[1], num_inside, HEAD_DIM - d)
        else:
            row = (chunk - K_CHUNKS) * ROW_CHUNK
            address = global_address(v[b, 0, kv_head]) + uint64((n_start + row) * v.strides[1])
            copy_v(tiles, stage, address, v.strides[1], num_inside - row, HEAD_DIM)
        cp_async_commit()

    # fastmath: as in flash_attn_simt.
    @cuda.jit(launch_bounds=(THREADS, 256 // THREADS), fastmath={"contract"})
    def flash_attn_simt_chunks_kernel(q, k, v, out, lse, softmax_scale, alibi_slopes):
        """A thread block owns BLOCK_M query rows and walks the tiles of K and V.

        grid      (num_heads, num_m_tiles, batch); threads (TX · TY,): thread (ty, tx) owns of the
                  rows of S and out four neighbours from 4 ty on, the next four 4 TY further on, of
                  the columns of out the same from 4 tx on, and columns tx, tx + TX, ... of S
        shared    q_tile (WIDTH, BLOCK_M), p_tile (BLOCK_N, BLOCK_M); ring (STAGES,), of CHUNK
                  columns of K or ROW_CHUNK rows of V
        private   s (ROWS, COLS), acc, pv (ROWS, OUT_COLS), m_i, l_i, alpha (ROWS,), twice a step's
                  numbers of both operands
        HBM       Q, out, lse once; K and V once per tile of queries, but for the tiles that none
                  of them sees; with ALIBI alibi_slopes in every thread
        paper     FlashAttention-2, Algorithm 1
        budget    255 registers, 0 bytes shared of fixed size
        """
        tiles = cuda.shared.array(0, float32)
        s = cuda.local.array((ROWS, COLS), float32)
        acc = cuda.local.array((ROWS, OUT_COLS), float32)  # rows of out, not yet divided by l_i
        pv = cuda.local.array((ROWS, OUT_COLS), float32)  # what one tile adds to them
        m_i = cuda.local.array(ROWS, float32)
        l_i = cuda.local.array(ROWS, float32)  # of this thread's columns alone
        alpha = cuda.local.array(ROWS, float32)  # rescales what was summed before
        four = cuda.local.array(4, float32)

        tx, ty = place(cuda.threadIdx.x)
        # The longest rows of tiles first, as in flash_attn_simt.
        m_start = (cuda.gridDim.y - 1 - cuda.blockIdx.y) * BLOCK_M
        head, b = cuda.blockIdx.x, cuda.blockIdx.z
        seqlen_q, seqlen_k = q.shape[1], v.shape[1]
        kv_head = head // (q.shape[2] // v.shape[2])
        first_position = m_start + seqlen_k - seqlen_q  # of the tile's rows, among the keys
        last_position = first_position + BLOCK_M - 1
        n_first = first_key(first_position) // BLOCK_N * BLOCK_N
        n_end = end_key(last_position, seqlen_k)
        half_end = end_key(first_position + BLOCK_M // 2 - 1, seqlen_k)  # of half the queries
        slope = alibi_slopes[head] if ALIBI else ZERO
        # As in flash_attn_simt: the scale's sign is in Q, the rest in the exponent.
        sign = ONE if softmax_scale > ZERO else -ONE if softmax_scale < ZERO else ZERO
        scale = abs(softmax_scale) if softmax_scale != ZERO else ONE
        unit = ONE if BENT else scale  # what one of s is worth
        to_base_2 = unit * LOG2_E

        for chunk in range(AHEAD):
            copy_chunk(tiles, chunk, k, v, b, n_first, kv_head)
        load_q(tiles, 0, q, b, m_start, head, seqlen_q, sign)
        for i in range(ROWS):
            m_i[i] = NEG_INF
            l_i[i] = ZERO
            for c in range(OUT_COLS):
                acc[i, c] = ZERO

        for n_start in range(n_first, n_end, BLOCK_N):
            for i in range(ROWS):
                for j in range(COLS):
                    s[i, j] = ZERO
            for chunk in range(K_CHUNKS):  # S = Q Kᵀ                                     line 8
                cp_async_wait(PENDING)
                cuda.syncthreads()  # the chunk is complete; everyone is done with the last one
                copy_chunk(tiles, chunk + AHEAD, k, v, b, n_start, kv_head)
                stage = RING + chunk % STAGES * STAGE
                if HALVES and n_start + BLOCK_N // 2 >= half_end:
                    add_some_qkt(s, tiles, chunk * CHUNK * Q_ROW, stage, ty, tx)
                else:
                    add_qkt(s, tiles, chunk * CHUNK * Q_ROW, stage, ty, tx)
            if BENT:
                for i in range(ROWS):
                    position = first_position + 4 * ty + i // 4 * 4 * TY + i % 4
                    for j in range(COLS):
                        distance = position - (n_start + tx + j * TX)
                        s[i, j] = score(s[i, j] * scale, distance, slope)
            # Does every row of the tile see every key of it?
            seen_from = first_key(last_position)
            seen_to = end_key(first_position, seqlen_k)
            if n_start < seen_from or n_start + BLOCK_N > seen_to:
                for i in range(ROWS):
                    position = first_position + 4 * ty + i // 4 * 4 * TY + i % 4
                    for j in range(COLS):
                        if not sees(position, n_start + tx + j * TX, seqlen_k):
                            s[i, j] = NEG_INF

            for i in range(ROWS):
                m_new = m_i[i]  # m_i <- max(m_i, rowmax(S))                              line 9
                for j in range(COLS):
                    m_new = max(m_new, s[i, j])
                m_new = row_max(m_new)
                shift = ZERO if m_new == NEG_INF else m_new  # -inf - -inf is NaN
                alpha[i] = math.exp2((m_i[i] - shift) * to_base_2)
                m_i[i] = m_new
                l_ij = ZERO
                for j in range(COLS):
                    s[i, j] = math.exp2((s[i, j] - shift) * to_base_2)  # P = exp(S - m_i)  line 9
                    l_ij += s[i, j]
                l_i[i] = alpha[i] * l_i[i] + l_ij  # l_i <- alpha l_i + rowsum(P)         line 9
            for j in range(COLS):
                for i in range(0, ROWS, 4):
                    for x in range(4):
                        at = P_TILE + (tx + j * TX) * P_ROW + 4 * ty + i * TY + x
                        tiles[uint64(at)] = s[i + x, j]
            for i in range(ROWS):
                for c in range(OUT_COLS):
                    pv[i, c] = ZERO
            cuda.syncwarp()  # a column of p_tile is written and read by the same warp

            for chunk in range(V_CHUNKS):
                cp_async_wait(PENDING)
                cuda.syncthreads()  # the chunk is complete; everyone is done with the last one
                copy_chunk(tiles, chunk + K_CHUNKS + AHEAD, k, v, b, n_start, kv_head)
                stage = RING + (chunk + K_CHUNKS) % STAGES * STAGE
                at = P_TILE + chunk * ROW_CHUNK * P_ROW
                if HALVES and n_start + chunk * ROW_CHUNK >= half_end:
                    add_half_pv(pv, tiles, at, stage, ty, tx)
                else:
                    add_pv(pv, tiles, at, stage, ty, tx)
            # Summed by tiles: added to acc one by one, N terms would lose more digits.
            for i in range(ROWS):
                for c in range(OUT_COLS):
                    acc[i, c] = alpha[i] * acc[i, c] + pv[i, c]  # out <- alpha out + P V  line 10
            cuda.syncwarp()  # the warp is done with its columns of p_tile: safe to overwrite

        for i in range(ROWS):
            m = m_start + 4 * ty + i // 4 * 4 * TY + i % 4
            total = row_sum(l_i[i])
            if m < seqlen_q:
                inverse = ONE / total if total != ZERO else ZERO
                address = global_address(out[b, m, head]) + uint64(16 * tx)
                for c in range(0, OUT_COLS, 4):  # out <- out / l_i                       line 12
                    for x in range(4):
                        four[x] = acc[i, c + x] * inverse
                    if 4 * tx + c * TX < HEAD_DIM:
                        store_global_x4(address + uint64(4 * c * TX), four)
                if tx == 0:  # -inf for a row that saw no key                             line 13
                    lse[uint64(b), uint64(head), uint64(m)] = m_i[i] * unit + math.log(total)

    return flash_attn_simt_chunks_kernel
