"""FlashAttention-2, forward.

naive_attn      S and P in HBM                                    Θ(N²) floats moved
flash_attn_v1   tiles; walks the keys outside, the queries inside out, l, m moved once per key tile
flash_attn_v2   walks the queries outside, the keys inside        out, lse moved once   <- this file

A thread block keeps one tile of queries, its m_i, l_i and out on chip and walks the tiles of K and
V. A row of out belongs to one thread block. So there is one for every tile of queries, not only one
for every head, and out is divided by l_i once, after the last tile.

Dropout is decided tile by tile (`dropout`). A dropped entry is stored as −p (P is never negative,
so the sign is free): the row sum uses |p|, the product with V only the positive entries.

Exercise ex07d (solutions/ex07d_flash_attn_v2.py) is this kernel without masks and dropout. The next
step is on_cuda_cores/flash_attn_v2_unsigned.py.

Paper: Dao 2023, FlashAttention-2, arXiv:2307.08691, Algorithm 1.
"""

import functools
import math

from numba import cuda, float32

from fa_numba import checks
from fa_numba.checks.argument_names import refuses_other_names
from fa_numba.constants import NEG_INF
from fa_numba.expressions.functions import NO_EXPRESSIONS, device_functions
from fa_numba.kernels import dropout, masks
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import ceil_div


@functools.cache
def make_flash_attn_v2(
    HEAD_DIM, BLOCK_M, BLOCK_N, CAUSAL, WINDOW=(-1, -1), SOFTCAP=0.0, ALIBI=False, DROPOUT_P=0.0,
    EXPRESSIONS=NO_EXPRESSIONS, SINKS=False, HEAD_DIM_V=None,
):  # fmt: skip
    """The kernel for these compile-time constants: launch it with threads (BLOCK_N, BLOCK_M).

    alibi_slopes is unused without ALIBI, seed without dropout, sinks without SINKS, classes without
    a mask in EXPRESSIONS: each may then be any scalar. HEAD_DIM_V, that of v and out, is HEAD_DIM
    by default.
    """
    HEAD_DIM_V = HEAD_DIM_V or HEAD_DIM
    ONE_HEAD_DIM, WIDEST = HEAD_DIM == HEAD_DIM_V, max(HEAD_DIM, HEAD_DIM_V)
    first_key, end_key, sees = masks.make_bounds(CAUSAL, WINDOW)
    score = masks.make_score(SOFTCAP, ALIBI)
    user_sees, user_score, _ = device_functions(EXPRESSIONS)
    tile_is_hidden = masks.make_tile_is_hidden(EXPRESSIONS.mask is not None)
    PLAIN = EXPRESSIONS == NO_EXPRESSIONS  # else arrays are read at m, n: both must exist
    DROPOUT, KEEP_SCALE = DROPOUT_P > 0, dropout.keep_scale(DROPOUT_P)
    keeps = dropout.make_keeps(DROPOUT_P)
    ODD = HEAD_DIM | 1  # an odd row length: the threads of a warp read k_tile in different banks
    NUM_COLS = ceil_div(HEAD_DIM_V, BLOCK_N)  # columns of out that a thread owns

    @cuda.jit
    def flash_attn_v2_kernel(
        q, k, v, out, lse, softmax_scale, alibi_slopes, seed, sinks, classes, args
    ):  # fmt: skip
        """A thread block owns BLOCK_M query rows and walks the tiles of K and V.

        grid      (num_m_tiles, num_heads, batch); threads (BLOCK_N, BLOCK_M): thread (ty, tx)
                  computes score [ty, tx] of each tile, and columns tx, tx + BLOCK_N, ... of out
        shared    q_tile (BLOCK_M, HEAD_DIM); k_tile (BLOCK_N, HEAD_DIM);
                  v_tile (BLOCK_N, HEAD_DIM_V); s_tile, p_tile (BLOCK_M, BLOCK_N)
        private   acc, pv (NUM_COLS,), m_i, l_i: the same m_i and l_i in every thread of a row
        HBM       Q, out, lse once; K and V once per tile of queries, except the tiles that none
                  of them sees; with ALIBI alibi_slopes in every thread
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
        m_i = sinks[head] if SINKS else NEG_INF  # a sink is a key before all others, its value 0
        l_i = float32(1.0) if SINKS else float32(0.0)

        for n_start in range(n_first, n_end, BLOCK_N):
            if tile_is_hidden(classes, b, head, cuda.blockIdx.x, n_start // BLOCK_N):
                continue
            for r in range(ty, BLOCK_N, BLOCK_M):
                n = n_start + r
                inside = n < seqlen_k
                for d in range(tx, WIDEST, BLOCK_N):
                    if ONE_HEAD_DIM or d < HEAD_DIM:
                        k_tile[r, d] = float32(k[b, n, kv_head, d]) if inside else float32(0.0)
                    if ONE_HEAD_DIM or d < HEAD_DIM_V:
                        v_tile[r, d] = float32(v[b, n, kv_head, d]) if inside else float32(0.0)
            cuda.syncthreads()  # q_tile, k_tile, v_tile are complete: safe to read

            s = float32(0.0)  # S = scale · Q Kᵀ                                          line 8
            for d in range(HEAD_DIM):
                s += q_tile[ty, d] * k_tile[tx, d]
            n = n_start + tx
            seen = sees(position, n, seqlen_k) and (PLAIN or m < seqlen_q)
            seen = seen and user_sees(b, head, position, n, args)
            if seen:
                s = score(s * softmax_scale, position - n, slope)
                s = user_score(s, b, head, position, n, args)
            s_tile[ty, tx] = s if seen else NEG_INF
            cuda.syncthreads()  # s_tile is complete: each thread reads its whole row

            m_new = m_i  # m_i <- max(m_i, rowmax(S))                                     line 9
            for c in range(BLOCK_N):
                m_new = max(m_new, s_tile[ty, c])
            shift = float32(0.0) if m_new == NEG_INF else m_new  # no key yet: -inf - -inf is NaN
            alpha = math.exp(m_i - shift)  # rescales the sums under the old maximum
            p = math.exp(s_tile[ty, tx] - shift)  # P = exp(S - m_i)                      line 9
            p_tile[ty, tx] = p if keeps(seed, b, head, m, n) else -p  # minus: dropped
            m_i = m_new
            cuda.syncthreads()  # p_tile is complete: each thread reads its whole row

            l_ij = float32(0.0)
            for c in range(NUM_COLS):
                pv[c] = float32(0.0)
            for r in range(BLOCK_N):
                p = p_tile[ty, r]
                l_ij += abs(p) if DROPOUT else p  # the sum is over all keys
                p = max(p, float32(0.0)) if DROPOUT else p  # only kept keys meet V
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
                    total = acc[c] * KEEP_SCALE if DROPOUT else acc[c]
                    out[b, m, head, d] = total / l_i if l_i != float32(0.0) else float32(0.0)
            if tx == 0:
                lse[b, head, m] = m_i + math.log(l_i)  # -inf for a row that saw no key   line 13

    return flash_attn_v2_kernel


@arrays.replayed
@refuses_other_names
def flash_attn_v2(
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
    mask=None,
    mask_args=(),
    score=None,
    score_args=(),
    sinks=None,
    block_m=None,
    block_n=None,
):
    """FlashAttention-2, forward: exact attention without S and P in HBM.

    Parameters
    ----------
    q : array of shape (batch, seqlen_q, num_heads, head_dim), float32, float16 or bfloat16
    k, v : arrays of shape (batch, seqlen_k, num_kv_heads, head_dim), dtype of q
        num_heads is a multiple of num_kv_heads (MHA, GQA, MQA). Any strides with a contiguous
        last axis; head_dim from 1 to 512. v may have another one than q and k.
    causal : bool, default=False
        Bottom-right aligned: seqlen_q=2, seqlen_k=5 keeps  1 1 1 1 0 / 1 1 1 1 1.
    window_size : (left, right), default=(-1, -1)
        A query at position p among the keys sees keys p − left to p + right, both included; −1 is
        no limit. A sliding window of W tokens is (W − 1, 0).
    softcap : float, default=0.0
        A score becomes softcap · tanh(score / softcap); 0 turns this off.
    alibi_slopes : array of shape (num_heads,), float32, default=None
        Then alibi_slopes[h] · abs(n − p) is subtracted from the score of key n in head h.
    softmax_scale : float, default=1/√head_dim
    dropout_p : float, default=0.0
        Each entry of the softmax is set to 0 with this probability; the others are divided by
        1 − dropout_p. lse is that of the softmax without dropout.
        dropout_p is rounded down to a multiple of 2⁻¹⁵, also in the divisor.
    seed : int, default=0
        From 0 to 2⁶⁴ − 1. The seed and the index (batch, head, query, key) of an entry decide
        whether it is dropped: `fa_numba.reference.dropout_mask`.
    mask : callable, default=None
        ``mask(b, h, m, n, *mask_args)``: whether the query at position m sees key n. It is read
        once as an expression (`fa_numba.expressions`); tiles that it hides are not loaded.
    score : callable, default=None
        ``score(s, b, h, m, n, *score_args)``: the score in place of s, which is
        softmax_scale · q·k after softcap and ALiBi.
    mask_args, score_args : tuples of arrays and numbers, default=()
        Other values compile nothing anew. Integers are int32, other numbers float32.
    sinks : array of shape (num_heads,), float32 or dtype of q, default=None
        A further score of each row, with the value 0: it is in the sum, and in lse.
    block_m, block_n : int, default=chosen
        Tile sizes, `fa_numba.analysis.kernel_block_sizes`.

    Returns
    -------
    out : array of the shape, dtype and library of q, with the head_dim of v
        0 in a row that sees no key.
    lse : array of shape (batch, num_heads, seqlen_q), float32
        Natural log of the row's sum of e^score; −inf in a row that sees no key.
    """
    options = causal, window_size, softcap, alibi_slopes, softmax_scale
    written = mask, mask_args, score, score_args, sinks
    call = checks.forward_call(q, k, v, *options, *written, head_dims=checks.ANY_HEAD_DIMS)
    dropout_p, seed = checks.check_dropout(dropout_p, seed)
    sizes = call.head_dim, block_m, block_n
    block_m, block_n = checks.check_block_sizes("flash_attn_v2", *sizes, head_dim_v=call.head_dim_v)
    constants = *call.mask, dropout_p, call.expressions, call.has_sinks, call.head_dim_v
    kernel = make_flash_attn_v2(call.head_dim, block_m, block_n, *constants)
    written = call.sinks, masks.tile_classes(q, k, call, block_m, block_n), call.expression_args
    grid = (ceil_div(call.seqlen_q, block_m), call.num_heads, call.batch)
    arrays.launch(kernel, grid, (block_n, block_m), *call.arguments, seed, *written)
    return call.out, call.lse
