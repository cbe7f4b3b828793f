"""FlashAttention-2, forward, with unsigned indices.

flash_attn_v2            a thread computes one score; indices as Python writes them
flash_attn_v2_unsigned   the same kernel, every index in its loop unsigned              <- this file
flash_attn_v2_4x4        register tiles: a thread computes 4 x 4 scores

In Python x[-1] is the last element, and in Numba too. Unless Numba can prove that an index is not
negative, it compares the index with 0 and selects one of two sums. These two instructions also hide
that the indices of two loads differ by a constant, so that the compiler can neither keep one
address for a row nor merge four loads into one. u64(...) around a whole index states that it is not
negative. Nothing else differs from flash_attn_v2 but that the user's mask, score and sinks are not
here: compare the two files.

measured   ×1.7 at head_dim 64, ×1.9 at 128 (H200, n = 8192, full; benchmarks/results/ladder.json)

Paper: Dao 2023, FlashAttention-2, arXiv:2307.08691, Algorithm 1.
"""

import functools
import math

from numba import cuda, float32
from numba import uint64 as u64

from fa_numba import checks
from fa_numba.constants import NEG_INF
from fa_numba.kernels import dropout, masks
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import ceil_div


@functools.cache
def make_flash_attn_v2_unsigned(
    HEAD_DIM, BLOCK_M, BLOCK_N, CAUSAL, WINDOW=(-1, -1), SOFTCAP=0.0, ALIBI=False, DROPOUT_P=0.0
):
    """The kernel for these compile-time constants: launch it with threads (BLOCK_N, BLOCK_M).

    alibi_slopes is unused without ALIBI, seed without dropout: each may then be any scalar.
    """
    first_key, end_key, sees = masks.make_bounds(CAUSAL, WINDOW)
    score = masks.make_score(SOFTCAP, ALIBI)
    DROPOUT, KEEP_SCALE = DROPOUT_P > 0, dropout.keep_scale(DROPOUT_P)
    keeps = dropout.make_keeps(DROPOUT_P)
    ODD = HEAD_DIM | 1  # an odd row length: the threads of a warp read k_tile in different banks
    NUM_COLS = ceil_div(HEAD_DIM, BLOCK_N)  # columns of out that a thread owns

    @cuda.jit
    def flash_attn_v2_unsigned_kernel(q, k, v, out, lse, softmax_scale, alibi_slopes, seed):
        """A thread block owns BLOCK_M query rows and walks the tiles of K and V.

        grid      (num_m_tiles, num_heads, batch); threads (BLOCK_N, BLOCK_M): thread (ty, tx)
                  computes score [ty, tx] of each tile, and columns tx, tx + BLOCK_N, ... of out
        shared    q_tile (BLOCK_M, HEAD_DIM); k_tile, v_tile (BLOCK_N, HEAD_DIM);
                  s_tile, p_tile (BLOCK_M, BLOCK_N)
        private   acc, pv (NUM_COLS,), m_i, l_i: the same m_i and l_i in every thread of a row
        HBM       Q, out, lse once; K and V once per tile of queries, except the tiles that none
                  of them sees; with ALIBI alibi_slopes in every thread
        paper     FlashAttention-2, Algorithm 1
        budget    128 registers, 14400 bytes shared (HEAD_DIM=64, BLOCK_M=16, BLOCK_N=16)
        """
        q_tile = cuda.shared.array((BLOCK_M, HEAD_DIM), float32)
        k_tile = cuda.shared.array((BLOCK_N, ODD), float32)
        v_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        s_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        p_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        acc = cuda.local.array(NUM_COLS, float32)  # one row of out, not yet divided by l_i
        pv = cuda.local.array(NUM_COLS, float32)  # P V of one tile

        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        m_start = cuda.blockIdx.x * BLOCK_M
        head, b = cuda.blockIdx.y, cuda.blockIdx.z
        seqlen_q, seqlen_k = q.shape[1], k.shape[1]
        kv_head = head // (q.shape[2] // k.shape[2])
        m = m_start + ty  # this thread's query
        position = m + seqlen_k - seqlen_q  # among the keys: the last query is at the last key
        # Tiles of keys that no row of this tile sees are not loaded.
        n_first = first_key(m_start + seqlen_k - seqlen_q) // BLOCK_N * BLOCK_N
        n_end = end_key(m_start + BLOCK_M - 1 + seqlen_k - seqlen_q, seqlen_k)
        slope = alibi_slopes[head] if ALIBI else float32(0.0)

        for d in range(tx, HEAD_DIM, BLOCK_N):  # coalesced: neighbouring threads, neighbouring d
            q_tile[ty, d] = float32(q[b, m, head, d]) if m < seqlen_q else float32(0.0)
        for c in range(NUM_COLS):
            acc[c] = float32(0.0)
        m_i = NEG_INF
        l_i = float32(0.0)

        for n_start in range(n_first, n_end, BLOCK_N):
            for r in range(ty, BLOCK_N, BLOCK_M):
                n = n_start + r
                for d in range(tx, HEAD_DIM, BLOCK_N):
                    k_tile[u64(r), u64(d)] = (
                        float32(k[u64(b), u64(n), u64(kv_head), u64(d)])
                        if n < seqlen_k
                        else float32(0.0)
                    )
                    v_tile[u64(r), u64(d)] = (
                        float32(v[u64(b), u64(n), u64(kv_head), u64(d)])
                        if n < seqlen_k
                        else float32(0.0)
                    )
            cuda.syncthreads()  # q_tile, k_tile, v_tile are complete: safe to read

            s = float32(0.0)  # S = scale · Q Kᵀ                                          line 8
            for d in range(HEAD_DIM):
                s += q_tile[u64(ty), u64(d)] * k_tile[u64(tx), u64(d)]
            n = n_start + tx
            seen = sees(position, n, seqlen_k)
            s_tile[u64(ty), u64(tx)] = (
                score(s * softmax_scale, position - n, slope) if seen else NEG_INF
            )
            cuda.syncthreads()  # s_tile is complete: each thread reads its whole row

            m_new = m_i  # m_i <- max(m_i, rowmax(S))                                     line 9
            for c in range(BLOCK_N):
                m_new = max(m_new, s_tile[u64(ty), u64(c)])
            shift = float32(0.0) if m_new == NEG_INF else m_new  # no key yet: -inf - -inf is NaN
            alpha = math.exp(m_i - shift)  # rescales the sums under the old maximum
            p = math.exp(s_tile[u64(ty), u64(tx)] - shift)  # P = exp(S - m_i)            line 9
            p_tile[u64(ty), u64(tx)] = p if keeps(seed, b, head, m, n) else -p  # minus: dropped
            m_i = m_new
            cuda.syncthreads()  # p_tile is complete: each thread reads its whole row

            l_ij = float32(0.0)
            for c in range(NUM_COLS):
                pv[c] = float32(0.0)
            for r in range(BLOCK_N):
                p = p_tile[u64(ty), u64(r)]
                l_ij += abs(p) if DROPOUT else p  # the sum is over all keys
                p = max(p, float32(0.0)) if DROPOUT else p  # only kept keys meet V
                for c in range(NUM_COLS):
                    d = tx + c * BLOCK_N
                    if d < HEAD_DIM:
                        pv[c] += p * v_tile[u64(r), u64(d)]
            # Summed by tiles: one running sum of N terms would lose more digits.
            l_i = alpha * l_i + l_ij  # l_i <- alpha l_i + rowsum(P)                      line 9
            for c in range(NUM_COLS):
                acc[c] = alpha * acc[c] + pv[c]  # out <- alpha out + P V                 line 10
            cuda.syncthreads()  # everyone is done with v_tile: safe to overwrite

        if m < seqlen_q:
            for c in range(NUM_COLS):  # out <- out / l_i                                 line 12
                d = tx + c * BLOCK_N
                if d < HEAD_DIM:
                    total = acc[c] * KEEP_SCALE if DROPOUT else acc[c]
                    out[b, m, head, d] = total / l_i if l_i != float32(0.0) else float32(0.0)
            if tx == 0:
                lse[b, head, m] = m_i + math.log(l_i)  # -inf for a row that saw no key   line 13

    return flash_attn_v2_unsigned_kernel


@arrays.replayed
@checks.takes(checks.PLAIN)
def flash_attn_v2_unsigned(
    q, k, v, *, dropout_p=0.0, seed=0, block_m=None, block_n=None, **options
):
    """As `flash_attn_v2`, with unsigned indices: bit for bit the same result.

    Returns
    -------
    out, lse : arrays
        As `flash_attn_v2` returns them.
    """
    call = checks.forward_call(q, k, v, **options)
    dropout_p, seed = checks.check_dropout(dropout_p, seed)
    block_m, block_n = checks.check_block_sizes("flash_attn_v2", call.head_dim, block_m, block_n)
    kernel = make_flash_attn_v2_unsigned(call.head_dim, block_m, block_n, *call.mask, dropout_p)
    grid = (ceil_div(call.seqlen_q, block_m), call.num_heads, call.batch)
    arrays.launch(kernel, grid, (block_n, block_m), *call.arguments, seed)
    return call.out, call.lse
