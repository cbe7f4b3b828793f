"""Paged attention: flash_decode that reads K and V directly from pages.

flash_decode       the keys of a sequence are contiguous         every row as long as the longest
paged_kv_lookup    copies pages to contiguous rows               K and V read, written, read again
paged_attn_decode  reads a tile of keys from its pages           K and V read once  <- this file

The kernel is flash_decode; only the address of a key is new. Key n of sequence b is in page
block_table[b, n // page_size], at offset n % page_size. Tiles and splits are cut from the keys of a
sequence as before, regardless of where pages end.

Paper: Kwon et al. 2023, PagedAttention, arXiv:2309.06180, sections 4.1 and 5.1.
"""

import functools
import math

from numba import cuda, float32

from fa_numba import checks
from fa_numba.checks.argument_names import refuses_other_names
from fa_numba.constants import NEG_INF
from fa_numba.expressions.functions import NO_EXPRESSIONS, device_functions
from fa_numba.kernels import e4m3, masks
from fa_numba.kernels.flash_decode import choose_splits, launch_splits
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import ceil_div


@functools.cache
def make_paged_attn_decode(
    HEAD_DIM, BLOCK_M, BLOCK_N, PAGE_SIZE, CAUSAL, WINDOW=(-1, -1), SOFTCAP=0.0, ALIBI=False,
    EXPRESSIONS=NO_EXPRESSIONS, SCALES="", HEAD_DIM_V=None,
):  # fmt: skip
    """The first kernel, attention split by split: launch it with threads (BLOCK_N, BLOCK_M).

    PAGE_SIZE is a constant so that the compiler turns n // PAGE_SIZE into a shift or a product.
    alibi_slopes is unused without ALIBI, k_scale and v_scale without SCALES (`e4m3.make_load`):
    each may then be any scalar. HEAD_DIM_V, that of v and out, is HEAD_DIM by default.
    """
    HEAD_DIM_V = HEAD_DIM_V or HEAD_DIM
    ONE_HEAD_DIM, WIDEST = HEAD_DIM == HEAD_DIM_V, max(HEAD_DIM, HEAD_DIM_V)
    first_key, end_key, sees = masks.make_bounds(CAUSAL, WINDOW)
    score = masks.make_score(SOFTCAP, ALIBI)
    user_sees, user_score, _ = device_functions(EXPRESSIONS)
    load = e4m3.make_load(SCALES)
    PLAIN = EXPRESSIONS == NO_EXPRESSIONS  # else arrays are read at m, n: both must exist
    ODD = HEAD_DIM | 1  # an odd row length: the threads of a warp read k_tile in different banks
    NUM_COLS = ceil_div(HEAD_DIM_V, BLOCK_N)  # columns of out that a thread owns

    @cuda.jit
    def paged_attn_decode_kernel(
        q, k_cache, v_cache, block_table, seq_lens, k_scale, v_scale, out_partial, lse_partial,
        softmax_scale, alibi_slopes, args,
    ):  # fmt: skip
        """A thread block owns BLOCK_M rows of a K/V head and walks the tiles of one split.

        A row is a query of a query head; the heads of a group are neighbours.

        grid      (num_m_tiles * num_splits, num_kv_heads, batch); threads (BLOCK_N, BLOCK_M):
                  thread (ty, tx) computes score [ty, tx] of each tile, and columns
                  tx, tx + BLOCK_N, ... of out
        shared    q_tile (BLOCK_M, HEAD_DIM); k_tile (BLOCK_N, HEAD_DIM);
                  v_tile (BLOCK_N, HEAD_DIM_V); s_tile, p_tile (BLOCK_M, BLOCK_N)
        private   acc, pv (NUM_COLS,), m_i, l_i: the same m_i and l_i in every thread of a row
        HBM       K and V once per tile of rows, except the tiles that none of them sees; Q,
                  out_partial, lse_partial once per split; seq_lens, with ALIBI alibi_slopes, in
                  every thread; block_table once per key in BLOCK_N threads; with SCALES k_scale,
                  v_scale once per number of K, V
        paper     FlashAttention-2, Algorithm 1, over a part of the keys;
                  PagedAttention, section 4.1
        budget    128 registers, 36096 bytes shared (HEAD_DIM=64, BLOCK_M=4, BLOCK_N=64)
        """
        q_tile = cuda.shared.array((BLOCK_M, HEAD_DIM), float32)
        k_tile = cuda.shared.array((BLOCK_N, ODD), float32)
        v_tile = cuda.shared.array((BLOCK_N, HEAD_DIM_V), float32)
        s_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        p_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        acc = cuda.local.array(NUM_COLS, float32)  # one row of out, not yet divided by l_i
        pv = cuda.local.array(NUM_COLS, float32)  # P V of one tile

        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        num_splits = lse_partial.shape[0]
        m_tile, split = cuda.blockIdx.x // num_splits, cuda.blockIdx.x % num_splits
        kv_head, b = cuda.blockIdx.y, cuda.blockIdx.z
        seqlen_q, seqlen_k = q.shape[1], seq_lens[b]
        group_size = q.shape[2] // k_cache.shape[2]
        row = m_tile * BLOCK_M + ty
        m = row // group_size  # this thread's query
        head = kv_head * group_size + row % group_size
        position = m + seqlen_k - seqlen_q  # among the keys: the last query is at the last key
        slope = alibi_slopes[head] if ALIBI else float32(0.0)

        # The tiles of this sequence, from the first with a key that a row sees, divided evenly.
        # With more splits than tiles some splits are empty: their state is (0, -inf).
        first_m = m_tile * BLOCK_M // group_size
        last_m = (m_tile * BLOCK_M + BLOCK_M - 1) // group_size
        first_tile = first_key(first_m + seqlen_k - seqlen_q) // BLOCK_N
        num_n_tiles = (seqlen_k + BLOCK_N - 1) // BLOCK_N - first_tile
        n_first = (first_tile + split * num_n_tiles // num_splits) * BLOCK_N
        n_end = (first_tile + (split + 1) * num_n_tiles // num_splits) * BLOCK_N
        n_end = end_key(last_m + seqlen_k - seqlen_q, n_end)  # no row sees key n_end or a later one

        for d in range(tx, HEAD_DIM, BLOCK_N):
            q_tile[ty, d] = float32(q[b, m, head, d]) if m < seqlen_q else float32(0.0)
        for c in range(NUM_COLS):
            acc[c] = float32(0.0)
        m_i = NEG_INF
        l_i = float32(0.0)

        for n_start in range(n_first, n_end, BLOCK_N):
            for r in range(ty, BLOCK_N, BLOCK_M):
                n = n_start + r
                used = n < seqlen_k
                page = block_table[b, n // PAGE_SIZE] if used else 0  # no page past the end
                offset, zero = n % PAGE_SIZE, float32(0.0)
                for d in range(tx, WIDEST, BLOCK_N):
                    if ONE_HEAD_DIM or d < HEAD_DIM:
                        k_tile[r, d] = (
                            load(k_cache, k_scale, page, offset, kv_head, d) if used else zero
                        )
                    if ONE_HEAD_DIM or d < HEAD_DIM_V:
                        v_tile[r, d] = (
                            load(v_cache, v_scale, page, offset, kv_head, d) if used else zero
                        )
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
            l_i = alpha * l_i + l_ij  # l_i <- alpha l_i + rowsum(P)                      line 9
            for c in range(NUM_COLS):
                acc[c] = alpha * acc[c] + pv[c]  # out <- alpha out + P V                 line 10
            cuda.syncthreads()  # everyone is done with v_tile: safe to overwrite

        if m < seqlen_q:
            for c in range(NUM_COLS):  # out <- out / l_i                                 line 12
                d = tx + c * BLOCK_N
                if d < HEAD_DIM_V:
                    x = acc[c] / l_i if l_i != float32(0.0) else float32(0.0)
                    out_partial[split, b, m, head, d] = x
            if tx == 0:
                lse_partial[split, b, head, m] = m_i + math.log(l_i)  # -inf: no key      line 13

    return paged_attn_decode_kernel


@arrays.replayed
@refuses_other_names
def paged_attn_decode(
    q,
    k_cache,
    v_cache,
    block_table,
    seq_lens,
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
    k_scale=None,
    v_scale=None,
    num_splits=0,
    block_m=None,
    block_n=None,
):
    """PagedAttention: attention of a few queries to each sequence of a paged KV cache.

    Parameters
    ----------
    q : array of shape (batch, seqlen_q, num_heads, head_dim), float32, float16 or bfloat16
        The last seqlen_q tokens of each sequence: 1 in plain decoding, more for a part of a prompt
        or for guesses to be verified.
    k_cache, v_cache : arrays of shape (num_pages, page_size, num_kv_heads, head_dim), dtype of q
        The keys and values of all tokens, the new ones included. num_heads is a multiple of
        num_kv_heads (MHA, GQA, MQA). Any strides with a contiguous last axis; head_dim from 1 to
        512. Values may have another one than queries and keys. Any page_size from 1; each compiles
        its own kernel.
    block_table : array of shape (batch, max_pages), int32
        Page of token t of sequence b: block_table[b, t // page_size]. −1, or anything, past the
        last page of a sequence. Sequences may share pages.
    seq_lens : array of shape (batch,), int32
        Number of tokens of each sequence; slots that no token owns are not read.
    causal, window_size, softcap, alibi_slopes, softmax_scale, mask, mask_args, score, score_args, \
    sinks, k_scale, v_scale
        As for `flash_decode`.
    num_splits : int, default=0
        Number of parts that the keys of each sequence are cut into. 0:
        `fa_numba.analysis.choose_num_splits` chooses it from the GPU's SMs and the shapes only, as
        if every sequence filled its row of block_table.
    block_m, block_n : int, default=chosen
        Tile sizes, those of `flash_decode`; a tile of keys may begin and end inside pages.

    Returns
    -------
    out, lse : arrays
        As of `flash_decode`.

    Notes
    -----
    The contents of block_table and seq_lens are checked as in `fa_numba.paged_attn_decode`.
    """
    given = q, k_cache, v_cache, block_table, seq_lens, k_scale, v_scale
    checks.check_paged_decode(*given, head_dims=checks.ANY_HEAD_DIMS)
    page_size, num_kv_heads, head_dim = k_cache.shape[1:]
    written = mask, mask_args, score, score_args
    scores = checks.check_scores(q, causal, window_size, softcap, alibi_slopes, written, sinks)
    softmax_scale = checks.check_softmax_scale(softmax_scale, head_dim)
    num_splits = checks.check_num_splits(num_splits)
    num_rows = q.shape[1] * (q.shape[2] // num_kv_heads)
    sizes, head_dim_v = (head_dim, block_m, block_n), v_cache.shape[3]
    block_m, block_n = checks.check_block_sizes(
        "flash_decode", *sizes, head_dim_v=head_dim_v, num_rows=num_rows
    )
    tiles = block_m, block_n
    if num_splits == 0:
        max_len = block_table.shape[1] * page_size
        num_splits = choose_splits(q, num_kv_heads, max_len, scores.mask.window_size, *tiles)
    form, *scales = e4m3.scales_of(k_scale, v_scale)
    constants = page_size, *scores.mask, scores.expressions, form, head_dim_v
    kernel = make_paged_attn_decode(head_dim, *tiles, *constants)
    caches = k_cache, v_cache, block_table, seq_lens, *scales
    return launch_splits(kernel, q, caches, *tiles, num_splits, softmax_scale, scores)
