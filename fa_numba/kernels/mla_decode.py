"""Decoding with multi-head latent attention (MLA): a row of the cache serves all heads.

flash_decode    a key and a value for each K/V head                 two tiles from HBM
mla_decode      one row of latent and rotated key, for all heads;   one tile from HBM  <- this file
                the value is the row's first columns
mla_decode_mma  the same with tensor cores, which are fast enough for HBM

A model with MLA computes keys and values of all heads from one latent of each token:
k_h = [c W_uk,h ; k_r], v_h = c W_uv,h. The two matrices are absorbed: into the queries before this
kernel, q' = [q_nope W_ukᵀ ; q_rope], and into the outputs after it, out_h = o' W_uv,h. The kernel
computes attention of all query heads to one head, whose keys are the rows of the cache, [c ; k_r],
and whose values are the latents c. A warp owns a row of q, as in lazy_softmax_attn. Its threads own
the same columns of keys, values and out, so that a number loaded for a score serves for out too.

Splits of the keys, `combine`: those of flash_decode. Pages: those of paged_attn_decode.

Papers: DeepSeek-AI 2024, DeepSeek-V2, arXiv:2405.04434, section 2.1; on splits, see flash_decode.
"""

import functools
import math

import numpy as np
from numba import cuda, float32
from numba import uint64 as u64

from fa_numba import checks
from fa_numba.checks.argument_names import refuses_other_names
from fa_numba.constants import FULL_WARP, NEG_INF, WARP_SIZE
from fa_numba.kernels.flash_decode import make_combine
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import MLA_BLOCK_M as BLOCK_M
from fa_numba.tiling.block_sizes import MLA_BLOCK_N as BLOCK_N
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.num_splits import choose_num_splits

UNUSED = np.int8(0)  # in place of an array


@functools.cache
def make_mla_decode(LATENT_DIM, ROW_DIM, CAUSAL, PAGE_SIZE=0):
    """The first kernel, attention split by split: launch it with threads (WARP_SIZE, BLOCK_M).

    PAGE_SIZE 0 is a contiguous cache; block_table is then unused and may be any scalar.
    """
    ROW_COLS = ceil_div(ROW_DIM, WARP_SIZE)  # columns of a key that a thread owns
    OUT_COLS = ceil_div(LATENT_DIM, WARP_SIZE)  # the first of them are its columns of the value

    @cuda.jit(launch_bounds=(WARP_SIZE * BLOCK_M, 1))
    def mla_decode_kernel(
        q, latent_cache, block_table, seq_lens, out_partial, lse_partial, softmax_scale
    ):
        """A thread block owns BLOCK_M rows and walks the tiles of one split; a warp owns a row.

        A row is a query of a query head; the heads of a query are neighbours.

        grid      (num_m_tiles * num_splits, batch); threads (WARP_SIZE, BLOCK_M): thread tx of a
                  row's warp owns columns tx, tx + WARP_SIZE, ... of q, of every key and of out
        shared    k_tile (BLOCK_N, ROW_DIM)
        private   q_row, k_row (ROW_COLS,), acc (OUT_COLS,), m_i, l_i: the same m_i and l_i in
                  every thread of a warp
        HBM       the cache once per tile of rows, except the tiles that none of them sees; Q,
                  out_partial, lse_partial once per split; seq_lens in every thread; with pages
                  block_table once per key in WARP_SIZE threads
        paper     FlashAttention-2, Algorithm 1, over a part of the keys; DeepSeek-V2, section 2.1
        budget    128 registers, 36864 bytes shared (LATENT_DIM=512, ROW_DIM=576)
        """
        k_tile = cuda.shared.array((BLOCK_N, ROW_DIM), float32)
        q_row = cuda.local.array(ROW_COLS, float32)
        k_row = cuda.local.array(ROW_COLS, float32)  # one key; its first OUT_COLS are the value
        acc = cuda.local.array(OUT_COLS, float32)  # one row of out, not yet divided by l_i

        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        num_splits = lse_partial.shape[0]
        m_tile, split = cuda.blockIdx.x // num_splits, cuda.blockIdx.x % num_splits
        b = cuda.blockIdx.y
        seqlen_q, num_heads, seqlen_k = q.shape[1], q.shape[2], seq_lens[b]
        row = m_tile * BLOCK_M + ty
        m, head = row // num_heads, row % num_heads  # this warp's query
        last_m = (m_tile * BLOCK_M + BLOCK_M - 1) // num_heads

        # The tiles of this sequence, divided evenly. With more splits than tiles some are empty.
        num_n_tiles = (seqlen_k + BLOCK_N - 1) // BLOCK_N
        n_first = split * num_n_tiles // num_splits * BLOCK_N
        n_end = min((split + 1) * num_n_tiles // num_splits * BLOCK_N, seqlen_k)
        row_end = n_end if m < seqlen_q else 0  # this row sees no key from here on
        if CAUSAL:
            n_end = min(n_end, last_m + seqlen_k - seqlen_q + 1)
            row_end = min(row_end, m + seqlen_k - seqlen_q + 1)

        for c in range(ROW_COLS):
            d = tx + c * WARP_SIZE
            q_row[c] = float32(q[b, m, head, d]) if m < seqlen_q and d < ROW_DIM else float32(0.0)
            k_row[c] = float32(0.0)
        for c in range(OUT_COLS):
            acc[c] = float32(0.0)
        m_i = NEG_INF
        l_i = float32(0.0)

        for n_start in range(n_first, n_end, BLOCK_N):
            for r in range(ty, min(BLOCK_N, seqlen_k - n_start), BLOCK_M):
                n = n_start + r
                page = b
                if PAGE_SIZE:
                    page, n = block_table[b, n // PAGE_SIZE], n % PAGE_SIZE
                for d in range(tx, ROW_DIM, WARP_SIZE):
                    k_tile[r, d] = float32(latent_cache[page, n, d])
            cuda.syncthreads()  # k_tile is complete: safe to read

            for r in range(min(BLOCK_N, row_end - n_start)):
                s = float32(0.0)  # s = scale · q k_n: a part in each thread, then of the whole warp
                for c in range(ROW_COLS):
                    d = u64(tx + c * WARP_SIZE)  # not negative: see flash_attn_v2_unsigned
                    if d < ROW_DIM:
                        k_row[c] = k_tile[u64(r), d]
                        s += q_row[c] * k_row[c]
                for step in range(5):
                    s += cuda.shfl_xor_sync(FULL_WARP, s, 16 >> step)
                s *= softmax_scale

                m_new = max(m_i, s)  # m_i <- max(m_i, s)                                 line 9
                shift = float32(0.0) if m_new == NEG_INF else m_new  # -inf - -inf is NaN
                alpha = math.exp(m_i - shift)  # rescales the sums under the old maximum
                p = math.exp(s - shift)
                m_i = m_new
                l_i = alpha * l_i + p  # l_i <- alpha l_i + e^(s - m_i)                   line 9
                for c in range(OUT_COLS):  # out <- alpha out + e^(s - m_i) c_n           line 10
                    acc[c] = alpha * acc[c] + p * k_row[c]
            cuda.syncthreads()  # everyone is done with k_tile: safe to overwrite

        if m < seqlen_q:
            for c in range(OUT_COLS):  # out <- out / l_i                                 line 12
                d = tx + c * WARP_SIZE
                if d < LATENT_DIM:
                    x = acc[c] / l_i if l_i != float32(0.0) else float32(0.0)
                    out_partial[split, b, m, head, d] = x
            if tx == 0:
                lse_partial[split, b, head, m] = m_i + math.log(l_i)  # -inf: no key      line 13

    return mla_decode_kernel


@arrays.replayed
@refuses_other_names
def mla_decode(
    q,
    latent_cache,
    seq_lens,
    *,
    softmax_scale,
    block_table=None,
    latent_dim=512,
    causal=False,
    num_splits=0,
):
    """Latent attention (MLA) of a few queries to a cache of latents, contiguous or in pages.

    Parameters
    ----------
    q : array of shape (batch, seqlen_q, num_heads, row_dim), float32, float16 or bfloat16
        The last seqlen_q tokens of each sequence, absorbed: [q_nope W_ukᵀ ; q_rope].
    latent_cache : array of shape (batch, max_len, row_dim), dtype of q
        Any strides with a contiguous last axis.
    seq_lens, softmax_scale, block_table, latent_dim, causal
        As for `fa_numba.mla_decode`.
    num_splits : int, default=0
        Number of parts that the keys of each sequence are cut into. 0: chosen, as for
        `flash_decode`.

    Returns
    -------
    out : array of shape (batch, seqlen_q, num_heads, latent_dim), dtype and library of q
        To be multiplied by W_uv; 0 in a row that sees no key.
    lse : array of shape (batch, num_heads, seqlen_q), float32
        Natural log of the row's sum of e^score; −inf in a row that sees no key.

    Notes
    -----
    The contents of block_table and seq_lens are checked as in `paged_attn_decode`.
    """
    latent_dim = checks.check_latent_decode(q, latent_cache, seq_lens, block_table, latent_dim)
    causal = checks.check_causal(causal)
    softmax_scale = checks.check_softmax_scale(softmax_scale, None)
    num_splits = checks.check_num_splits(num_splits)
    batch, seqlen_q, num_heads, row_dim = q.shape
    page_size = 0 if block_table is None else latent_cache.shape[1]
    max_len = latent_cache.shape[1] if block_table is None else block_table.shape[1] * page_size
    num_m_tiles = ceil_div(seqlen_q * num_heads, BLOCK_M)
    if num_splits == 0:
        work, num_sms = num_m_tiles * batch, arrays.num_sms(q)
        num_splits = choose_num_splits(work, ceil_div(max_len, BLOCK_N), num_sms)

    out = arrays.empty(q, (*q.shape[:3], latent_dim), q.dtype)
    lse = arrays.empty(q, (batch, num_heads, seqlen_q))
    partial = [arrays.empty(q, (num_splits, *x.shape)) for x in (out, lse)]
    kernel = make_mla_decode(latent_dim, row_dim, causal, page_size)
    tables = UNUSED if block_table is None else block_table, seq_lens
    grid, threads = (num_m_tiles * num_splits, batch), (WARP_SIZE, BLOCK_M)
    arrays.launch(kernel, grid, threads, q, latent_cache, *tables, *partial, softmax_scale)
    grid = (seqlen_q, num_heads, batch)
    arrays.launch(make_combine(latent_dim), grid, (WARP_SIZE,), *partial, out, lse, UNUSED)
    return out, lse
