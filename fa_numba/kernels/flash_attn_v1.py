"""FlashAttention, forward.

naive_attn      S and P in HBM                                    Θ(N²) floats moved
flash_attn_v1   tiles; walks the keys outside, the queries inside out, l, m moved once per key tile
                                                                                       <- this file
flash_attn_v2   walks the queries outside, the keys inside        out, lse moved once

S and P exist only as tiles on chip. The statistics l, m of online_softmax allow a kernel to merge a
tile of keys into rows of out that are normalised for the keys before it. Because the loop over the
keys is outside, each row of out, l and m goes to HBM and back once for every tile of keys, and one
thread block must process a whole head.

With a block_mask this is block-sparse FlashAttention: a tile of scores whose entry is False is
neither loaded nor computed, and a tile of keys is not loaded if all its entries are False.

Dropout is decided tile by tile (`dropout`). A dropped entry is stored as −p (P is never negative,
so the sign is free): the row sum uses |p|, the product with V only the positive entries.

Paper: Dao et al. 2022, FlashAttention, arXiv:2205.14135, Algorithms 1, 2 and 5.
"""

import functools
import math

import numpy as np
from numba import cuda, float32

from fa_numba import checks
from fa_numba.checks.argument_names import refuses_other_names
from fa_numba.constants import NEG_INF
from fa_numba.kernels import dropout, masks
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import ceil_div


@functools.cache
def make_flash_attn_v1(
    HEAD_DIM, BLOCK_M, BLOCK_N, CAUSAL, WINDOW=(-1, -1), SOFTCAP=0.0, ALIBI=False,
    BLOCK_SPARSE=False, DROPOUT_P=0.0,
):  # fmt: skip
    """The kernel for these compile-time constants: launch it with threads (BLOCK_N, BLOCK_M).

    alibi_slopes is unused without ALIBI, block_mask without BLOCK_SPARSE, seed without dropout:
    each may then be any scalar.
    """
    keys = masks.make_bounds(CAUSAL, WINDOW)
    first_key, sees = keys.first_key, keys.sees
    queries = masks.make_bounds_of_keys(CAUSAL, WINDOW)
    first_query, end_query = queries.first_query, queries.end_query
    score = masks.make_score(SOFTCAP, ALIBI)
    DROPOUT, KEEP_SCALE = DROPOUT_P > 0, dropout.keep_scale(DROPOUT_P)
    keeps = dropout.make_keeps(DROPOUT_P)
    ODD = HEAD_DIM | 1  # an odd row length: the threads of a warp read k_tile in different banks
    NUM_COLS = ceil_div(HEAD_DIM, BLOCK_N)  # columns of out that a thread owns

    @cuda.jit
    def flash_attn_v1_kernel(q, k, v, out, l, m, softmax_scale, alibi_slopes, block_mask, seed):
        """A thread block owns a head: tiles of K and V outside, tiles of Q, out, l, m inside.

        out, l and m are float32; out and l must hold 0, m −inf.

        grid      (num_heads, batch); threads (BLOCK_N, BLOCK_M): thread (ty, tx) computes
                  score [ty, tx] of each tile, and columns tx, tx + BLOCK_N, ... of out
        shared    q_tile (BLOCK_M, HEAD_DIM); k_tile, v_tile (BLOCK_N, HEAD_DIM);
                  s_tile, p_tile (BLOCK_M, BLOCK_N); l_rows, m_rows (BLOCK_M,)
        private   acc (NUM_COLS,), l_new, m_new: the same l_new, m_new in every thread of a row
        HBM       K, V once; Q, out, l, m once per tile of keys, out, l, m both ways; only tiles
                  that see and are seen; with ALIBI alibi_slopes in every thread; with BLOCK_SPARSE
                  only tiles whose entry is True, and block_mask in every thread
        paper     FlashAttention, Algorithm 1; with BLOCK_SPARSE Algorithm 5
        budget    128 registers, 14528 bytes shared (HEAD_DIM=64, BLOCK_M=16, BLOCK_N=16)
        """
        q_tile = cuda.shared.array((BLOCK_M, HEAD_DIM), float32)
        k_tile = cuda.shared.array((BLOCK_N, ODD), float32)
        v_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        s_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        p_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        l_rows = cuda.shared.array(BLOCK_M, float32)
        m_rows = cuda.shared.array(BLOCK_M, float32)
        acc = cuda.local.array(NUM_COLS, float32)  # P V, of one tile and one row

        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        head, b = cuda.blockIdx.x, cuda.blockIdx.y
        seqlen_q, seqlen_k = q.shape[1], k.shape[1]
        kv_head = head // (q.shape[2] // k.shape[2])

        slope = alibi_slopes[head] if ALIBI else float32(0.0)
        n_first = first_key(seqlen_k - seqlen_q) // BLOCK_N * BLOCK_N  # that query 0 sees

        for n_start in range(n_first, seqlen_k, BLOCK_N):  # line 5
            # The queries that see a key of this tile; tiles before and after them are skipped.
            first_m = first_query(n_start - seqlen_k + seqlen_q) // BLOCK_M * BLOCK_M
            m_end = end_query(n_start + BLOCK_N - 1 - seqlen_k + seqlen_q, seqlen_q)
            n_tile = n_start // BLOCK_N
            if BLOCK_SPARSE:  # tiles whose entry is False are skipped too
                while first_m < m_end and not block_mask[first_m // BLOCK_M, n_tile]:
                    first_m += BLOCK_M
                if first_m >= m_end:
                    continue  # no query sees these keys
            for r in range(ty, BLOCK_N, BLOCK_M):  # line 6
                n = n_start + r
                for d in range(tx, HEAD_DIM, BLOCK_N):
                    k_tile[r, d] = float32(k[b, n, kv_head, d]) if n < seqlen_k else float32(0.0)
                    v_tile[r, d] = float32(v[b, n, kv_head, d]) if n < seqlen_k else float32(0.0)

            for m_start in range(first_m, m_end, BLOCK_M):  # line 7
                if BLOCK_SPARSE and not block_mask[m_start // BLOCK_M, n_tile]:
                    continue  # the same for all threads: none misses a barrier
                row = m_start + ty  # this thread's query
                position = row + seqlen_k - seqlen_q  # among the keys
                for d in range(tx, HEAD_DIM, BLOCK_N):  # line 8
                    q_tile[ty, d] = float32(q[b, row, head, d]) if row < seqlen_q else float32(0.0)
                if tx == 0:
                    l_rows[ty] = l[b, head, row] if row < seqlen_q else float32(0.0)
                    m_rows[ty] = m[b, head, row] if row < seqlen_q else NEG_INF
                cuda.syncthreads()  # the tiles of q, k, v, l, m are complete: safe to read

                s = float32(0.0)  # S = scale · Q Kᵀ                                     line 9
                for d in range(HEAD_DIM):
                    s += q_tile[ty, d] * k_tile[tx, d]
                n = n_start + tx
                seen = sees(position, n, seqlen_k)
                s_tile[ty, tx] = score(s * softmax_scale, position - n, slope) if seen else NEG_INF
                l_i = l_rows[ty]
                m_i = m_rows[ty]
                cuda.syncthreads()  # s_tile is complete: each thread reads its whole row

                m_ij = NEG_INF  # m_ij = rowmax(S)                                      line 10
                for c in range(BLOCK_N):
                    m_ij = max(m_ij, s_tile[ty, c])
                shift = float32(0.0) if m_ij == NEG_INF else m_ij  # -inf - -inf is NaN
                p = math.exp(s_tile[ty, tx] - shift)  # P = exp(S - m_ij)               line 10
                p_tile[ty, tx] = p if keeps(seed, b, head, row, n) else -p  # minus: dropped
                cuda.syncthreads()  # p_tile is complete: each thread reads its whole row

                l_ij = float32(0.0)  # l_ij = rowsum(P)                                 line 10
                for c in range(NUM_COLS):
                    acc[c] = float32(0.0)
                for r in range(BLOCK_N):
                    p = p_tile[ty, r]
                    l_ij += abs(p) if DROPOUT else p  # the sum is over all keys
                    p = max(p, float32(0.0)) if DROPOUT else p  # only kept keys meet V
                    for c in range(NUM_COLS):
                        d = tx + c * BLOCK_N
                        if d < HEAD_DIM:
                            acc[c] += p * v_tile[r, d]

                m_new = max(m_i, m_ij)  # the maximum of both                           line 11
                shift = float32(0.0) if m_new == NEG_INF else m_new
                alpha = math.exp(m_i - shift)  # for sums under m_i
                beta = math.exp(m_ij - shift)  # for sums under m_ij
                l_new = l_i * alpha + l_ij * beta
                divisor = float32(1.0) if l_new == float32(0.0) else l_new  # no key seen yet
                if row < seqlen_q:
                    for c in range(NUM_COLS):  # out <- (l_i alpha out + beta P V) / l  line 12
                        d = tx + c * BLOCK_N
                        if d < HEAD_DIM:
                            before = l_i * alpha * out[b, row, head, d]
                            added = beta * acc[c] * KEEP_SCALE if DROPOUT else beta * acc[c]
                            out[b, row, head, d] = (before + added) / divisor
                    if tx == 0:
                        l[b, head, row] = l_new  # l, m back to HBM                     line 13
                        m[b, head, row] = m_new
            cuda.syncthreads()  # everyone is done with v_tile: safe to overwrite

    return flash_attn_v1_kernel


@refuses_other_names
def flash_attn_v1(
    q,
    k,
    v,
    *,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    softmax_scale=None,
    dropout_p=0.0,
    seed=0,
    block_mask=None,
    block_m=None,
    block_n=None,
):
    """FlashAttention, forward: tiles of keys outside, tiles of queries inside.

    Parameters
    ----------
    q : array of shape (batch, seqlen_q, num_heads, head_dim), float32, float16 or bfloat16
    k, v : arrays of shape (batch, seqlen_k, num_kv_heads, head_dim), dtype of q
        As for `flash_attn_v2`; head_dim from 1 to 256.
    causal, window_size, softcap, alibi_slopes, softmax_scale, dropout_p, seed
        As for `flash_attn_v2`. l and m are those of the softmax without dropout.
    block_mask : bool array of shape (⌈seqlen_q / block_m⌉, ⌈seqlen_k / block_n⌉), default=None
        Block-sparse attention: no query of tile i sees a key of tile j where block_mask[i, j] is
        False. One mask for every head; None is all True.
    block_m, block_n : int, default=chosen
        Tile sizes, `fa_numba.analysis.kernel_block_sizes`.

    Returns
    -------
    out : array of the shape, dtype and library of q
        0 in a row that sees no key.
    l, m : arrays of shape (batch, num_heads, seqlen_q), float32
        Each row's sum of e^(score − m), and its largest score m; 0 and −inf in a row that sees no
        key. The lse of `flash_attn_v2` is m + log(l).
    """
    checks.check_qkv(q, k, v)
    batch, seqlen_q, num_heads, head_dim = q.shape
    mask, slopes = checks.check_mask(q, causal, window_size, softcap, alibi_slopes)
    softmax_scale = checks.check_softmax_scale(softmax_scale, head_dim)
    dropout_p, seed = checks.check_dropout(dropout_p, seed)
    block_m, block_n = checks.check_block_sizes("flash_attn_v1", head_dim, block_m, block_n)
    if block_mask is not None:
        checks.check_block_mask(block_mask, q, k, block_m, block_n)
    out = arrays.full(q, q.shape, 0)  # float32: every tile of keys adds to it            line 2
    l = arrays.full(q, (batch, num_heads, seqlen_q), 0)
    m = arrays.full(q, (batch, num_heads, seqlen_q), -np.inf)
    sparse = block_mask is not None
    kernel = make_flash_attn_v1(head_dim, block_m, block_n, *mask, sparse, dropout_p)
    options = (softmax_scale, slopes, block_mask if sparse else np.bool_(True), seed)
    arrays.launch(kernel, (num_heads, batch), (block_n, block_m), q, k, v, out, l, m, *options)
    return arrays.astype(out, q.dtype), l, m
