"""FlashAttention-2, forward, with 4 × 4 scores per thread.

flash_attn_v2_unsigned   a thread computes one score: two loads from shared memory for each FMA
flash_attn_v2_4x4        a thread computes 4 x 4 scores: one load for two FMAs         <- this file
                         with columns=1 4 x 1 scores: five loads for four FMAs of Q K^T
                         with batched=True all loads of a row of K and V before its stores
flash_attn_registers     larger tiles in registers: one load for 4 FMAs

An SM makes 128 FMAs in a cycle and loads 32 numbers from shared memory. So a thread that loads two
numbers for each FMA leaves seven of eight FMA units idle. Here a thread loads four numbers of Q and
four of K and makes 16 FMAs with them: each number is used four times. This is register tiling.
Changed since flash_attn_v2_unsigned:

- s is a tile of 4 × 4 registers, acc and pv are tiles of 4 rows. Two neighbours among a thread's
  rows or columns are TX apart, so that the threads of a warp read neighbouring addresses. With
  columns=1, the step between, s is 4 × 1, and a tile of keys has a quarter of the rows.
- Q and K are transposed in shared memory: the loop over d reads rows of them.
- The threads of a row of scores are in one warp. They reduce it by shuffles, without a barrier.
- P overwrites K, and so the tiles have 64 × 64 numbers within 48 KiB.

A thread that stores each number of K before it loads the next waits for HBM or L2 each time. With
batched=True, the step after 4 × 4, it waits once for its part of a row.

measured   ×3.9 at head_dim 64, ×1.4 at 128, where tiles have 32 rows and an SM holds eight warps;
           with batched=True another ×1.05 at 64, ×2.4 at 128
           (H200, n = 8192, full; benchmarks/results/ladder.json)

Paper: Dao 2023, FlashAttention-2, arXiv:2307.08691, Algorithm 1. Register tiling: Volkov 2010,
Better Performance at Lower Occupancy.
"""

import functools
import math

from numba import cuda, float32
from numba import uint64 as u64

from fa_numba import checks
from fa_numba.constants import FULL_WARP, NEG_INF
from fa_numba.kernels import masks
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.register_tiling import block_of_4x4

SIDE = 4  # rows of scores of a thread, and columns unless fewer are asked for


@functools.cache
def make_flash_attn_v2_4x4(
    HEAD_DIM, CAUSAL, WINDOW=(-1, -1), SOFTCAP=0.0, ALIBI=False, COLUMNS=SIDE, BATCHED=False
):
    """The kernel for these compile-time constants: launch it with threads (TX, TX).

    alibi_slopes is unused without ALIBI: it may then be any scalar.
    """
    first_key, end_key, sees = masks.make_bounds(CAUSAL, WINDOW)
    score = masks.make_score(SOFTCAP, ALIBI)
    BLOCK_M = block_of_4x4(HEAD_DIM)  # rows of a tile of Q
    TX = BLOCK_M // SIDE  # threads of a row of the thread block, and of a column
    BLOCK_N = TX * COLUMNS  # rows of a tile of K
    STEPS = TX.bit_length() - 1  # shuffles that reduce a row
    COLS = ceil_div(HEAD_DIM, TX)  # columns of out that a thread owns
    WIDTH = COLS * TX
    KT_ROWS = max(HEAD_DIM, BLOCK_M)  # P, which overwrites K, has BLOCK_M rows

    @cuda.jit
    def flash_attn_v2_4x4_kernel(q, k, v, out, lse, softmax_scale, alibi_slopes):
        """A thread block owns BLOCK_M query rows and walks the tiles of K and V.

        grid      (num_m_tiles, num_heads, batch); threads (TX, TX): thread (ty, tx) computes the
                  scores of rows ty, ty + TX, ... and columns tx, tx + TX, ... of each tile, and
                  the same rows and columns tx, tx + TX, ... of out
        shared    qt_tile (HEAD_DIM, BLOCK_M); kt_tile (KT_ROWS, BLOCK_N), which P overwrites;
                  v_tile (BLOCK_N, WIDTH)
        private   s (4, COLUMNS), acc, pv (4, COLS), m_i, l_i (4,)
        HBM       Q, out, lse once; K and V once per tile of queries, except the tiles that none
                  of them sees; with ALIBI alibi_slopes in every thread
        paper     FlashAttention-2, Algorithm 1
        budget    128 registers, 49152 bytes shared (HEAD_DIM=64)
        """
        qt_tile = cuda.shared.array((HEAD_DIM, BLOCK_M), float32)
        kt_tile = cuda.shared.array((KT_ROWS, BLOCK_N), float32)
        p_tile = kt_tile  # row m, column n: P is written when all have read K
        v_tile = cuda.shared.array((BLOCK_N, WIDTH), float32)
        s = cuda.local.array((SIDE, COLUMNS), float32)
        acc = cuda.local.array((SIDE, COLS), float32)  # rows of out, not yet divided by l_i
        pv = cuda.local.array((SIDE, COLS), float32)  # P V of one tile
        m_i = cuda.local.array(SIDE, float32)
        l_i = cuda.local.array(SIDE, float32)  # the sum over this thread's columns only
        a = cuda.local.array(SIDE, float32)  # four numbers of Q, of P
        kv = cuda.local.array((2, COLS), float32)  # if BATCHED: part of a row of K, and of V

        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        m_start = cuda.blockIdx.x * BLOCK_M
        head, b = cuda.blockIdx.y, cuda.blockIdx.z
        seqlen_q, seqlen_k = q.shape[1], k.shape[1]
        kv_head = head // (q.shape[2] // k.shape[2])
        first_position = m_start + seqlen_k - seqlen_q  # of the tile's rows, among the keys
        n_first = first_key(first_position) // BLOCK_N * BLOCK_N
        n_end = end_key(first_position + BLOCK_M - 1, seqlen_k)
        slope = alibi_slopes[head] if ALIBI else float32(0.0)

        for r in range(ty, BLOCK_M, TX):
            m = m_start + r
            for d in range(tx, HEAD_DIM, TX):  # coalesced: neighbouring threads, neighbouring d
                qt_tile[u64(d), u64(r)] = (
                    float32(q[u64(b), u64(m), u64(head), u64(d)]) if m < seqlen_q else float32(0.0)
                )
        for i in range(SIDE):
            m_i[i] = NEG_INF
            l_i[i] = float32(0.0)
            for c in range(COLS):
                acc[i, c] = float32(0.0)

        for n_start in range(n_first, n_end, BLOCK_N):
            for r in range(ty, BLOCK_N, TX):
                n = n_start + r
                if BATCHED:  # first all loads of a row, then its stores: the loads wait together
                    for c in range(COLS):
                        d = tx + c * TX
                        inside = n < seqlen_k and d < HEAD_DIM
                        index = u64(b), u64(n), u64(kv_head), u64(d)
                        kv[0, c] = float32(k[index]) if inside else float32(0.0)
                        kv[1, c] = float32(v[index]) if inside else float32(0.0)
                    for c in range(COLS):
                        d = tx + c * TX
                        v_tile[u64(r), u64(d)] = kv[1, c]
                        if d < HEAD_DIM:
                            kt_tile[u64(d), u64(r)] = kv[0, c]
                    continue
                for d in range(tx, WIDTH, TX):
                    inside = n < seqlen_k and d < HEAD_DIM
                    index = u64(b), u64(n), u64(kv_head), u64(d)
                    v_tile[u64(r), u64(d)] = float32(v[index]) if inside else float32(0.0)
                    if d < HEAD_DIM:
                        kt_tile[u64(d), u64(r)] = float32(k[index]) if inside else float32(0.0)
            cuda.syncthreads()  # qt_tile, kt_tile, v_tile are complete: safe to read

            for i in range(SIDE):  # S = scale · Q Kᵀ                                     line 8
                for j in range(COLUMNS):
                    s[i, j] = float32(0.0)
            for d in range(HEAD_DIM):
                for i in range(SIDE):
                    a[i] = qt_tile[u64(d), u64(ty + i * TX)]
                for j in range(COLUMNS):
                    x = kt_tile[u64(d), u64(tx + j * TX)]
                    for i in range(SIDE):
                        s[i, j] += a[i] * x
            cuda.syncthreads()  # everyone is done with kt_tile: P may overwrite it

            for i in range(SIDE):
                position = first_position + ty + i * TX
                m_new = m_i[i]  # m_i <- max(m_i, rowmax(S))                              line 9
                for j in range(COLUMNS):
                    n = n_start + tx + j * TX
                    seen = sees(position, n, seqlen_k)
                    s[i, j] = score(s[i, j] * softmax_scale, position - n, slope)
                    if not seen:
                        s[i, j] = NEG_INF
                    m_new = max(m_new, s[i, j])
                for step in range(STEPS):
                    m_new = max(m_new, cuda.shfl_xor_sync(FULL_WARP, m_new, 1 << step))
                shift = float32(0.0) if m_new == NEG_INF else m_new  # -inf - -inf is NaN
                alpha = math.exp(m_i[i] - shift)  # rescales the sums under the old maximum
                m_i[i] = m_new
                l_ij = float32(0.0)
                for j in range(COLUMNS):
                    p = math.exp(s[i, j] - shift)  # P = exp(S - m_i)                     line 9
                    l_ij += p
                    p_tile[u64(ty + i * TX), u64(tx + j * TX)] = p
                l_i[i] = alpha * l_i[i] + l_ij  # l_i <- alpha l_i + rowsum(P)            line 9
                for c in range(COLS):
                    acc[i, c] *= alpha
                    pv[i, c] = float32(0.0)
            cuda.syncwarp()  # a row of p_tile is written and read by the same warp

            for r in range(BLOCK_N):
                for i in range(SIDE):
                    a[i] = p_tile[u64(ty + i * TX), u64(r)]
                for c in range(COLS):
                    x = v_tile[u64(r), u64(tx + c * TX)]
                    for i in range(SIDE):
                        pv[i, c] += a[i] * x
            # Summed by tiles: one running sum of N terms would lose more digits.
            for i in range(SIDE):
                for c in range(COLS):
                    acc[i, c] += pv[i, c]  # out <- alpha out + P V                       line 10
            cuda.syncthreads()  # everyone is done with p_tile, v_tile: safe to overwrite

        for i in range(SIDE):
            m = m_start + ty + i * TX
            total = l_i[i]
            for step in range(STEPS):
                total += cuda.shfl_xor_sync(FULL_WARP, total, 1 << step)
            if m < seqlen_q:
                for c in range(COLS):  # out <- out / l_i                                 line 12
                    d = tx + c * TX
                    if d < HEAD_DIM:
                        out[u64(b), u64(m), u64(head), u64(d)] = (
                            acc[i, c] / total if total != float32(0.0) else float32(0.0)
                        )
                if tx == 0:  # -inf for a row that saw no key                             line 13
                    lse[u64(b), u64(head), u64(m)] = m_i[i] + math.log(total)

    return flash_attn_v2_4x4_kernel


@arrays.replayed
@checks.takes(checks.PLAIN)
def flash_attn_v2_4x4(q, k, v, *, columns=SIDE, batched=False, **options):
    """FlashAttention-2 with 4 × 4 scores per thread, forward: a step of the ladder.

    Parameters
    ----------
    q : array of shape (batch, seqlen_q, num_heads, head_dim), float32, float16 or bfloat16
        head_dim is at most 128.
    k, v : arrays of shape (batch, seqlen_k, num_kv_heads, head_dim), dtype of q
        As for `flash_attn_v2`; all dtypes are computed in float32.
    causal, window_size, softcap, alibi_slopes, softmax_scale
        As for `flash_attn_v2`.
    columns : 1, 2 or 4, default=4
        Columns of scores of a thread; its rows are four.
    batched : bool, default=False
        Whether a thread loads its part of a row of K and V before it stores any of it.

    Returns
    -------
    out, lse : arrays
        As of `flash_attn_v2`.
    """
    call = checks.forward_call(q, k, v, **options)
    block, columns, batched = checks.check_4x4_tiles(call.head_dim, columns, batched)
    kernel = make_flash_attn_v2_4x4(call.head_dim, *call.mask, columns, batched)
    grid = (ceil_div(call.seqlen_q, block), call.num_heads, call.batch)
    arrays.launch(kernel, grid, (block // SIDE, block // SIDE), *call.arguments)
    return call.out, call.lse
