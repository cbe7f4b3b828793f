"""Flash-Decoding: attention of a few new queries over a long cache of keys.

flash_attn_v2   a thread block for each tile of queries and head  few queries: idle SMs
flash_decode    and for each split of the keys; then combine      out once per split  <- this file

A decoding step has one query for each sequence. flash_attn_v2 would launch num_heads thread blocks
for it; each would read all keys, and most of the GPU would be idle. Here the keys are cut into
splits, each split has its own thread blocks, and `combine` merges the partial results as
merge_states does.

The group_size query heads that share a K/V head are rows of one tile, so that together they read
the cache once.

Source: Dao, Haziza, Massa, Sizov 2023, Flash-Decoding for long-context inference (a blog post of
Stanford CRFM). Paper on shared K/V heads: Ainslie et al. 2023, GQA, arXiv:2305.13245.
"""

import functools
import math

from numba import cuda, float32

from fa_numba import checks
from fa_numba.checks.argument_names import refuses_other_names
from fa_numba.constants import NEG_INF, WARP_SIZE
from fa_numba.expressions.functions import NO_EXPRESSIONS, device_functions
from fa_numba.kernels import e4m3, masks
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.num_splits import choose_num_splits, most_key_tiles


@functools.cache
def make_flash_decode(
    HEAD_DIM, BLOCK_M, BLOCK_N, CAUSAL, WINDOW=(-1, -1), SOFTCAP=0.0, ALIBI=False,
    EXPRESSIONS=NO_EXPRESSIONS, SCALES="", HEAD_DIM_V=None, PAGE_SIZE=0,
):  # fmt: skip
    """The first kernel, attention split by split: launch it with threads (BLOCK_N, BLOCK_M).

    PAGE_SIZE is for `paged_attn_decode`, and a constant so that the compiler turns n // PAGE_SIZE
    into a shift or a product; 0 is a contiguous cache, whose block_table is an empty tuple.
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
    def flash_decode_kernel(
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
                  every thread; of pages, block_table once per key in BLOCK_N threads; with SCALES
                  k_scale, v_scale once per number of K, V
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
                used, zero = n < seqlen_k, float32(0.0)
                page, at = b, n  # of a contiguous cache, its sequence and its token
                if PAGE_SIZE > 0:
                    page = block_table[b, n // PAGE_SIZE] if used else 0  # no page past the end
                    at = n % PAGE_SIZE
                for d in range(tx, WIDEST, BLOCK_N):
                    if ONE_HEAD_DIM or d < HEAD_DIM:
                        k_tile[r, d] = (
                            load(k_cache, k_scale, page, at, kv_head, d) if used else zero
                        )
                    if ONE_HEAD_DIM or d < HEAD_DIM_V:
                        v_tile[r, d] = (
                            load(v_cache, v_scale, page, at, kv_head, d) if used else zero
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

    return flash_decode_kernel


@functools.cache
def make_combine(HEAD_DIM, SINKS=False):
    """The second kernel, the ⊕ of the partial results: launch it with threads (WARP_SIZE,).

    sinks is unused without SINKS: it may then be any scalar.
    """
    NUM_COLS = ceil_div(HEAD_DIM, WARP_SIZE)  # columns of out that a thread owns

    @cuda.jit
    def combine_kernel(out_partial, lse_partial, out, lse, sinks):
        """A warp owns a row of out, one query of one head, and walks its partial results.

        The online softmax again: a split counts as one key, whose score is its lse and whose value
        is its out.

        grid      (seqlen_q, num_heads, batch); threads (WARP_SIZE,): thread tx owns columns
                  tx, tx + WARP_SIZE, ...
        shared    none
        private   acc (NUM_COLS,), m_i, l_i: the same m_i and l_i in every thread
        HBM       out_partial, out, lse once; lse_partial in every thread
        paper     Online normalizer calculation for softmax, section 3.1
        budget    56 registers, 0 bytes shared (HEAD_DIM=64)
        """
        acc = cuda.local.array(NUM_COLS, float32)
        tx = cuda.threadIdx.x
        m, head, b = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z

        for c in range(NUM_COLS):
            acc[c] = float32(0.0)
        m_i = sinks[head] if SINKS else NEG_INF  # a sink is a split of its own: added once
        l_i = float32(1.0) if SINKS else float32(0.0)
        for split in range(lse_partial.shape[0]):
            score = lse_partial[split, b, head, m]
            m_new = max(m_i, score)
            shift = float32(0.0) if m_new == NEG_INF else m_new  # no key yet: -inf - -inf is NaN
            alpha = math.exp(m_i - shift)
            p = math.exp(score - shift)  # 0 for a split that saw no key
            m_i = m_new
            l_i = alpha * l_i + p
            for c in range(NUM_COLS):
                d = tx + c * WARP_SIZE
                if d < HEAD_DIM:
                    acc[c] = alpha * acc[c] + p * out_partial[split, b, m, head, d]

        for c in range(NUM_COLS):
            d = tx + c * WARP_SIZE
            if d < HEAD_DIM:
                out[b, m, head, d] = acc[c] / l_i if l_i != float32(0.0) else float32(0.0)
        if tx == 0:
            lse[b, head, m] = m_i + math.log(l_i)  # -inf for a row that saw no key

    return combine_kernel


def choose_splits(q, num_kv_heads, max_len, window_size, block_m, block_n):
    """The number of splits that fills the GPU, for sequences of up to max_len keys."""
    batch, seqlen_q, num_heads, _ = q.shape
    num_m_tiles = ceil_div(seqlen_q * (num_heads // num_kv_heads), block_m)
    num_n_tiles = most_key_tiles(max_len, seqlen_q, window_size, block_n)
    return choose_num_splits(num_m_tiles * num_kv_heads * batch, num_n_tiles, arrays.num_sms(q))


def launch_splits(kernel, q, caches, block_m, block_n, num_splits, softmax_scale, scores):
    """Launch the first kernel on every split, then the second; returns out and lse.

    caches are k_cache, v_cache and the kernel's other arguments up to out_partial.
    """
    batch, seqlen_q, num_heads, _ = q.shape
    num_kv_heads, head_dim = caches[0].shape[2], caches[1].shape[3]
    out = arrays.empty(q, (batch, seqlen_q, num_heads, head_dim), q.dtype)
    lse = arrays.empty(q, (batch, num_heads, seqlen_q))
    partial = [arrays.empty(q, (num_splits, *x.shape)) for x in (out, lse)]

    num_m_tiles = ceil_div(seqlen_q * (num_heads // num_kv_heads), block_m)
    grid = (num_m_tiles * num_splits, num_kv_heads, batch)
    options = softmax_scale, scores.slopes, scores.expression_args
    arguments = (q, *caches, *partial, *options)
    arrays.launch(kernel, grid, (block_n, block_m), *arguments)
    grid = (seqlen_q, num_heads, batch)
    combine = make_combine(head_dim, scores.has_sinks)
    arrays.launch(combine, grid, (WARP_SIZE,), *partial, out, lse, scores.sinks)
    return out, lse


def attend(cached, page_size, max_len, options, num_splits, block_m, block_n):
    """`flash_decode`, or with a page_size `paged_attn_decode`, once the arrays are checked.

    Parameters
    ----------
    cached : (q, k_cache, v_cache, block_table, seq_lens, k_scale, v_scale)
    page_size : int
        0 for a contiguous cache.
    max_len : int
        Keys of a sequence, at most.
    options : tuple
        Those of `checks.check_scores`, in its order.
    num_splits, block_m, block_n
        As for `flash_decode`.
    """
    q, k_cache, v_cache, *tables, k_scale, v_scale = cached
    num_kv_heads, head_dim, head_dim_v = *k_cache.shape[2:], v_cache.shape[3]
    scores = checks.check_scores(q, *options)
    num_splits = checks.check_num_splits(num_splits)
    sizes, num_rows = (head_dim, block_m, block_n), q.shape[1] * (q.shape[2] // num_kv_heads)
    more = {"head_dim_v": head_dim_v, "num_rows": num_rows}
    tiles = checks.check_block_sizes("flash_decode", *sizes, **more)
    if num_splits == 0:
        num_splits = choose_splits(q, num_kv_heads, max_len, scores.mask.window_size, *tiles)
    form, *scales = e4m3.scales_of(k_scale, v_scale)
    constants = *scores.mask, scores.expressions, form, head_dim_v, page_size
    kernel = make_flash_decode(head_dim, *tiles, *constants)
    caches = k_cache, v_cache, *tables, *scales
    return launch_splits(kernel, q, caches, *tiles, num_splits, scores.softmax_scale, scores)


@arrays.replayed
@refuses_other_names
def flash_decode(
    q,
    k_cache,
    v_cache,
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
    """Flash-Decoding: attention of a few queries to each sequence of a contiguous KV cache.

    Parameters
    ----------
    q : array of shape (batch, seqlen_q, num_heads, head_dim), float32, float16 or bfloat16
        The last seqlen_q tokens of each sequence: 1 in plain decoding, any number from 0.
    k_cache, v_cache : arrays of shape (batch, max_len, num_kv_heads, head_dim), dtype of q
        The keys and values of all tokens, the new ones included. num_heads is a multiple of
        num_kv_heads (MHA, GQA, MQA). Any strides with a contiguous last axis; head_dim from 1 to
        512. Values may have another one than queries and keys.
    seq_lens : array of shape (batch,), int32
        Number of tokens of each sequence; the caches are not read past them.
    causal : bool, default=False
        Bottom-right aligned: query m of sequence b is at position p = m + seq_lens[b] − seqlen_q
        and sees the keys up to p. A single query sees all keys.
    window_size, softcap, alibi_slopes, softmax_scale, mask, mask_args, score, score_args, sinks
        As for `flash_attn_v2`: m is the position of a query in its sequence, m + seq_lens[b] −
        seqlen_q.
    k_scale, v_scale : float32 arrays, default=None
        As for `fa_numba.flash_decode`.
    num_splits : int, default=0
        Number of parts that the keys of each sequence are cut into. 0:
        `fa_numba.analysis.choose_num_splits` chooses it from the GPU's SMs and the shapes only,
        because reading seq_lens would wait for the GPU. The CPU engine counts as a T4.
    block_m, block_n : int, default=chosen
        Tile sizes, `fa_numba.analysis.kernel_block_sizes`; a tile has block_m of the
        seqlen_q * num_heads / num_kv_heads rows that read one K/V head.

    Returns
    -------
    out : array of the shape, dtype and library of q, with the head_dim of v_cache
        0 in a row that sees no key.
    lse : array of shape (batch, num_heads, seqlen_q), float32
        Natural log of the row's sum of e^score; −inf in a row that sees no key.

    Notes
    -----
    The contents of seq_lens are checked as in `fa_numba.flash_decode`.
    """
    given = q, k_cache, v_cache, seq_lens, k_scale, v_scale
    checks.check_decode(*given, head_dims=checks.ANY_HEAD_DIMS)
    options = causal, window_size, softcap, alibi_slopes, softmax_scale
    options += mask, mask_args, score, score_args, sinks
    cached = q, k_cache, v_cache, (), seq_lens, k_scale, v_scale
    return attend(cached, 0, k_cache.shape[1], options, num_splits, block_m, block_n)
