"""What every fast decoder shares: its checked arguments, its number of splits, its two launches.

`check_problem` makes a `Problem` of a call. A decoder chooses its kernel by it, and `launch` runs
that kernel on every split of the keys, then `combine_wide_kernel` merges the partial results.
"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, int32, uint32

from fa_numba import checks
from fa_numba.constants import FULL_WARP, NEG_INF, ZERO
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.decode_tiling import AT_ONCE, WARP_SIZE, combine_warps
from fa_numba.tiling.num_splits import choose_quickest_splits, most_key_tiles

NO_TABLE = np.int32(0)  # block_table without pages: not looked at


@cuda.jit(device=True)
def divide(n, size):
    """Quotient and remainder of two numbers from 0 on, in 32 bits: a few instructions."""
    return int32(uint32(n) // uint32(size)), int32(uint32(n) % uint32(size))


@functools.cache
def make_combine_wide(HEAD_DIM, COMBINE_WARPS):
    """The second kernel, the ⊕ of many partial results: launch it with COMBINE_WARPS warps."""
    NUM_COLS = ceil_div(HEAD_DIM, WARP_SIZE)  # columns of out that a thread owns
    PARTS_SHAPE = (COMBINE_WARPS, HEAD_DIM)
    VALUES_SHAPE = (AT_ONCE, NUM_COLS)

    @cuda.jit(device=True)
    def load_parts(values, lses, out_partial, lse_partial, first, b, m, head, lane):
        """Ask for AT_ONCE of this warp's splits; what is not there weighs nothing."""
        for i in range(AT_ONCE):
            split = first + i * COMBINE_WARPS
            lses[i] = NEG_INF
            for c in range(NUM_COLS):
                values[i, c] = ZERO
            if split < lse_partial.shape[0]:
                lses[i] = lse_partial[split, b, head, m]
                for c in range(NUM_COLS):
                    d = lane + c * WARP_SIZE
                    if d < HEAD_DIM:
                        values[i, c] = out_partial[split, b, m, head, d]

    @cuda.jit
    def combine_wide_kernel(out_partial, lse_partial, out, lse):
        """A thread block owns a row of out; its warps share the splits.

        `combine` walks the splits one after the other, and waits for memory at each. Here partial
        results are on their way while a lane for each split finds what they weigh.

        grid      (seqlen_q, num_heads, batch); threads (32 · COMBINE_WARPS,)
        shared    parts (COMBINE_WARPS, HEAD_DIM)
        private   x (NUM_COLS,): what the splits of a warp add to its columns; values (AT_ONCE,
                  NUM_COLS), lses (AT_ONCE,) of the splits that are on their way
        HBM       out_partial, out, lse once; lse_partial in every warp, and again per split
        paper     Online normalizer calculation for softmax, section 3.1
        budget    48 registers, 4096 bytes shared (HEAD_DIM=128)
        """
        parts = cuda.shared.array(PARTS_SHAPE, float32)
        x = cuda.local.array(NUM_COLS, float32)
        values = cuda.local.array(VALUES_SHAPE, float32)
        lses = cuda.local.array(AT_ONCE, float32)
        tid = cuda.threadIdx.x
        lane, warp = tid & (WARP_SIZE - 1), tid >> 5
        m, head, b = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
        num_splits = lse_partial.shape[0]
        load_parts(values, lses, out_partial, lse_partial, warp, b, m, head, lane)

        m_i, l_i = NEG_INF, ZERO
        for split in range(lane, num_splits, WARP_SIZE):
            m_i = max(m_i, lse_partial[split, b, head, m])
        for step in range(5):
            m_i = max(m_i, cuda.shfl_xor_sync(FULL_WARP, m_i, 1 << step))
        shift = ZERO if m_i == NEG_INF else m_i  # no key at all: -inf - -inf is NaN
        for split in range(lane, num_splits, WARP_SIZE):
            l_i += math.exp(lse_partial[split, b, head, m] - shift)
        for step in range(5):
            l_i += cuda.shfl_xor_sync(FULL_WARP, l_i, 1 << step)

        for c in range(NUM_COLS):
            x[c] = ZERO
        for first in range(warp, num_splits, COMBINE_WARPS * AT_ONCE):
            for i in range(AT_ONCE):
                weight = math.exp(lses[i] - shift)
                for c in range(NUM_COLS):
                    x[c] += weight * values[i, c]
            after = first + COMBINE_WARPS * AT_ONCE
            load_parts(values, lses, out_partial, lse_partial, after, b, m, head, lane)
        for c in range(NUM_COLS):
            d = lane + c * WARP_SIZE
            if d < HEAD_DIM:
                parts[warp, d] = x[c]
        cuda.syncthreads()  # what every warp adds is there: safe to sum

        for d in range(tid, HEAD_DIM, COMBINE_WARPS * WARP_SIZE):
            total = ZERO
            for w in range(COMBINE_WARPS):
                total += parts[w, d]
            out[b, m, head, d] = total / l_i if l_i != ZERO else ZERO
        if tid == 0:
            lse[b, head, m] = m_i + math.log(l_i)  # -inf for a row that saw no key

    return combine_wide_kernel


class Problem(NamedTuple):
    """A call's arguments, checked.

    Attributes
    ----------
    q, k_cache, v_cache, block_table, seq_lens : arrays
        Without pages block_table is a scalar that is not looked at.
    page_size : int
        0 where there are no pages.
    max_len : int
        Keys in the longest sequence that there may be.
    mask : tuple
        Constants of a kernel: CAUSAL, WINDOW, SOFTCAP, ALIBI.
    slopes : array, or a scalar that is not looked at
    softmax_scale : float32
    num_splits : int
        0 is yet to be chosen.
    """

    q: Any
    k_cache: Any
    v_cache: Any
    block_table: Any
    seq_lens: Any
    page_size: int
    max_len: int
    mask: tuple
    slopes: Any
    softmax_scale: np.float32
    num_splits: int

    @property
    def num_rows(self):
        """Queries of a K/V head: those of all heads of its group."""
        return self.q.shape[1] * (self.q.shape[2] // self.k_cache.shape[2])

    def num_tiles(self, rows):
        """Tiles of so many rows, of all K/V heads of a sequence."""
        return ceil_div(self.num_rows, rows) * self.k_cache.shape[2]

    def num_n_tiles(self, block_n):
        """The most tiles of so many keys that a tile of rows may see."""
        return most_key_tiles(self.max_len, self.q.shape[1], self.mask[1], block_n)


def check_problem(
    q,
    k_cache,
    v_cache,
    seq_lens,
    block_table,
    causal,
    window_size,
    softcap,
    alibi_slopes,
    softmax_scale,
    num_splits,
):
    """A `Problem`, or the error of the first argument that is wrong."""
    if block_table is None:
        checks.check_decode(q, k_cache, v_cache, seq_lens)
        block_table, page_size, max_len = NO_TABLE, 0, k_cache.shape[1]
    else:
        checks.check_paged_decode(q, k_cache, v_cache, block_table, seq_lens)
        page_size, max_len = k_cache.shape[1], k_cache.shape[1] * block_table.shape[1]
    mask, slopes = checks.check_mask(q, causal, window_size, softcap, alibi_slopes)
    softmax_scale = checks.check_softmax_scale(softmax_scale, q.shape[3])
    num_splits = checks.check_num_splits(num_splits)
    arguments = q, k_cache, v_cache, block_table, seq_lens, page_size, max_len
    return Problem(*arguments, mask, slopes, softmax_scale, num_splits)


def choose_splits(problem, rows, block_n, blocks_per_sm):
    """The number of splits for a GPU with room for so many thread blocks on each SM."""
    q = problem.q
    num_sms = arrays.num_sms(q)
    blocks = problem.num_tiles(rows) * q.shape[0]
    return choose_quickest_splits(blocks, problem.num_n_tiles(block_n), num_sms, blocks_per_sm)


def launch(problem, kernel, grid, threads, num_splits, caches=None, shared_bytes=0):
    """Both kernels; gives back out and lse.

    With one split there is nothing to combine: what the first kernel leaves are out and lse.

    Parameters
    ----------
    problem : Problem
    kernel : the first kernel
    grid, threads, shared_bytes
        Of it.
    num_splits : int
    caches : tuple, default=the problem's
        What it takes in the place of k_cache and v_cache.
    """
    q = problem.q
    batch, seqlen_q, num_heads, head_dim = q.shape
    out = arrays.empty(q, q.shape, q.dtype)
    lse = arrays.empty(q, (batch, num_heads, seqlen_q))
    if num_splits == 1:
        parts = tuple(map(arrays.with_axis, (out, lse)))
    else:
        parts = tuple(arrays.empty(q, (num_splits, *x.shape)) for x in (out, lse))
    sources = caches or (problem.k_cache, problem.v_cache)
    args = (q, *sources, problem.block_table, problem.seq_lens, *parts, problem.softmax_scale)
    arrays.launch(kernel, grid, (threads,), *args, problem.slopes, shared_bytes=shared_bytes)
    if num_splits > 1:
        warps = combine_warps(num_splits)
        combine, grid = make_combine_wide(head_dim, warps), (seqlen_q, num_heads, batch)
        arrays.launch(combine, grid, (WARP_SIZE * warps,), *parts, out, lse)
    return out, lse
