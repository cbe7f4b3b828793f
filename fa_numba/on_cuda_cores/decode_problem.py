"""Host code and second kernel of flash_decode_wide and the decoders on tensor cores.

`check_problem` checks the arguments of a call and makes a `Problem` of them, from which a decoder
chooses its kernel. `launch` runs that kernel on every split of the keys; then `combine_wide_kernel`
merges the partial results.
"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, int32, uint32, uint64

from fa_numba import checks
from fa_numba.checks.expressions import NO_SINKS
from fa_numba.constants import FULL_WARP, NEG_INF, WARP_SIZE, ZERO
from fa_numba.on_cuda_cores import run_time_masks
from fa_numba.on_cuda_cores.run_time_masks import AT_RUN_TIME
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.decode_tiling import IN_FLIGHT, combine_warps
from fa_numba.tiling.num_splits import choose_quickest_splits, most_key_tiles

NO_TABLE = np.int32(0)  # passed for block_table if the cache is contiguous: kernels ignore it


@cuda.jit(device=True)
def divide(n, size):
    """Quotient and remainder of two non-negative numbers in 32 bits: a few instructions."""
    return int32(uint32(n) // uint32(size)), int32(uint32(n) % uint32(size))


class Pages(NamedTuple):
    """Arguments of a kernel that divides by the page size; see `pages_of`."""

    size: Any
    multiplier: Any
    shift: Any


def pages_of(page_size):
    """The `Pages` of a page size: n // size is n · multiplier / 2^(32 + shift) for 0 <= n < 2^31.

    Granlund and Montgomery 1994, Division by invariant integers using multiplication, section 4.
    For a size of 0 or 1, a compile-time constant of its own, they are not read.
    """
    if page_size < 2:
        return Pages(np.int32(page_size), np.uint32(0), np.int32(0))
    bits = (page_size - 1).bit_length()  # 2^(bits − 1) < size <= 2^bits
    multiplier = (1 << 31 + bits) // page_size + 1
    return Pages(np.int32(page_size), np.uint32(multiplier), np.int32(bits - 1))


@functools.cache
def make_page_of(PAGE_SIZE):
    """page_of(n, pages): page and offset of key n. PAGE_SIZE is a number, or AT_RUN_TIME."""

    @cuda.jit(device=True, forceinline=True)
    def page_of(n, pages):
        if PAGE_SIZE != AT_RUN_TIME:
            return divide(n, PAGE_SIZE)
        high = uint32(uint64(uint32(n)) * uint64(pages.multiplier) >> uint64(32))
        page = int32(high >> uint32(pages.shift))
        return page, int32(n - page * pages.size)

    return page_of


@functools.cache
def make_combine_wide(HEAD_DIM, COMBINE_WARPS, SINKS=False):
    """Merges the partial results of all splits (⊕): launch it with COMBINE_WARPS warps.

    sinks is unused without SINKS: it may then be any scalar.
    """
    NUM_COLS = ceil_div(HEAD_DIM, WARP_SIZE)  # columns of out that a lane holds
    PARTS_SHAPE = (COMBINE_WARPS, HEAD_DIM)
    VALUES_SHAPE = (IN_FLIGHT, NUM_COLS)

    @cuda.jit(device=True)
    def load_parts(values, lses, out_partial, lse_partial, first, b, m, head, lane):
        """Load IN_FLIGHT of this warp's splits; a split past the last one gets weight 0."""
        for i in range(IN_FLIGHT):
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
    def combine_wide_kernel(out_partial, lse_partial, out, lse, sinks):
        """A thread block computes a query row of out; its warps divide the splits.

        `combine` reads one split after the other and waits for memory at each. Here the loads of
        partial results are in flight while the lanes, one per split, compute the weights.

        grid      (seqlen_q, num_heads, batch); threads (32 · COMBINE_WARPS,)
        shared    parts (COMBINE_WARPS, HEAD_DIM)
        private   x (NUM_COLS,): the sum over the splits of a warp; values (IN_FLIGHT, NUM_COLS),
                  lses (IN_FLIGHT,) of the splits that are in flight
        HBM       out_partial, out, lse once; lse_partial in every warp, and again per split
        paper     Online normalizer calculation for softmax, section 3.1
        budget    56 registers, 4096 bytes shared (HEAD_DIM=128, COMBINE_WARPS=8)
        """
        parts = cuda.shared.array(PARTS_SHAPE, float32)
        x = cuda.local.array(NUM_COLS, float32)
        values = cuda.local.array(VALUES_SHAPE, float32)
        lses = cuda.local.array(IN_FLIGHT, float32)
        tid = cuda.threadIdx.x
        lane, warp = tid & (WARP_SIZE - 1), tid >> 5
        m, head, b = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
        num_splits = lse_partial.shape[0]
        load_parts(values, lses, out_partial, lse_partial, warp, b, m, head, lane)

        m_i = sinks[head] if SINKS else NEG_INF  # a sink is a split of its own: added once
        for split in range(lane, num_splits, WARP_SIZE):
            m_i = max(m_i, lse_partial[split, b, head, m])
        for step in range(5):
            m_i = max(m_i, cuda.shfl_xor_sync(FULL_WARP, m_i, 1 << step))
        shift = ZERO if m_i == NEG_INF else m_i  # the row saw no key: -inf - -inf is NaN
        l_i = math.exp(sinks[head] - shift) if SINKS and lane == 0 else ZERO
        for split in range(lane, num_splits, WARP_SIZE):
            l_i += math.exp(lse_partial[split, b, head, m] - shift)
        for step in range(5):
            l_i += cuda.shfl_xor_sync(FULL_WARP, l_i, 1 << step)

        for c in range(NUM_COLS):
            x[c] = ZERO
        for first in range(warp, num_splits, COMBINE_WARPS * IN_FLIGHT):
            for i in range(IN_FLIGHT):
                weight = math.exp(lses[i] - shift)
                for c in range(NUM_COLS):
                    x[c] += weight * values[i, c]
            after = first + COMBINE_WARPS * IN_FLIGHT
            load_parts(values, lses, out_partial, lse_partial, after, b, m, head, lane)
        for c in range(NUM_COLS):
            d = lane + c * WARP_SIZE
            if d < HEAD_DIM:
                parts[warp, d] = x[c]
        cuda.syncthreads()  # parts is complete: safe to sum

        for d in range(tid, HEAD_DIM, COMBINE_WARPS * WARP_SIZE):
            total = ZERO
            for w in range(COMBINE_WARPS):
                total += parts[w, d]
            out[b, m, head, d] = total / l_i if l_i != ZERO else ZERO
        if tid == 0:
            lse[b, head, m] = m_i + math.log(l_i)  # -inf for a row that saw no key

    return combine_wide_kernel


class Problem(NamedTuple):
    """The checked arguments of a call.

    Attributes
    ----------
    q, k_cache, v_cache, block_table, seq_lens : arrays
        For a contiguous cache block_table is a scalar that kernels do not use.
    page_size : int
        0 for a contiguous cache.
    max_len : int
        Keys that the cache can hold per sequence.
    scores : Scores
    num_splits : int
        0: the decoder chooses it.
    """

    q: Any
    k_cache: Any
    v_cache: Any
    block_table: Any
    seq_lens: Any
    page_size: int
    max_len: int
    scores: checks.Scores
    num_splits: int

    @property
    def constants(self):
        """PAGE_SIZE, CAUSAL, WINDOW, SOFTCAP, ALIBI of a kernel: its numbers are AT_RUN_TIME.

        Pages of one key have a kernel of their own, which divides nothing.
        """
        page_size = AT_RUN_TIME if self.page_size > 1 else self.page_size
        return page_size, *run_time_masks.constants_of(self.scores.mask)

    @property
    def num_rows(self):
        """Query rows per K/V head: seqlen_q queries of each head of its GQA group."""
        return self.q.shape[1] * (self.q.shape[2] // self.k_cache.shape[2])

    def num_tiles(self, rows):
        """Tiles of `rows` query rows, over all K/V heads of a sequence."""
        return ceil_div(self.num_rows, rows) * self.k_cache.shape[2]

    def num_n_tiles(self, block_n):
        """The largest number of tiles of block_n keys that a tile of query rows can see."""
        window_size = self.scores.mask.window_size
        return most_key_tiles(self.max_len, self.q.shape[1], window_size, block_n)


def check_problem(
    q,
    k_cache,
    v_cache,
    seq_lens,
    *,
    block_table=None,
    num_splits=0,
    scales=(None, None),
    head_dims=checks.ONE_HEAD_DIM,
    **options,
):
    """Return the `Problem` of a call, or raise an error for the first wrong argument.

    Parameters
    ----------
    q, k_cache, v_cache, seq_lens, num_splits
        As for `flash_decode`.
    block_table : array, default=None
        As for `paged_attn_decode`; None for contiguous caches.
    **options
        Those of `checks.check_scores`.
    scales : (array, array)
        k_scale and v_scale of caches of bytes.
    head_dims : HeadDims, default=one up to 256
    """
    if block_table is None:
        checks.check_decode(q, k_cache, v_cache, seq_lens, *scales, head_dims=head_dims)
        block_table, page_size, max_len = NO_TABLE, 0, k_cache.shape[1]
    else:
        tables = block_table, seq_lens
        checks.check_paged_decode(q, k_cache, v_cache, *tables, *scales, head_dims=head_dims)
        page_size, max_len = k_cache.shape[1], k_cache.shape[1] * block_table.shape[1]
    scores = checks.check_scores(q, **options)
    num_splits = checks.check_num_splits(num_splits)
    arguments = q, k_cache, v_cache, block_table, seq_lens, page_size, max_len
    return Problem(*arguments, scores, num_splits)


def choose_splits(problem, rows, block_n, blocks_per_sm):
    """The number of splits for a GPU on which an SM runs blocks_per_sm thread blocks at a time."""
    q = problem.q
    num_sms = arrays.num_sms(q)
    blocks = problem.num_tiles(rows) * q.shape[0]
    return choose_quickest_splits(blocks, problem.num_n_tiles(block_n), num_sms, blocks_per_sm)


def launch(problem, kernel, grid, threads, num_splits, caches=None, shared_bytes=0, more=()):
    """Launch both kernels and return out and lse.

    With one split the first kernel writes out and lse, and the second is not launched, except to
    add sinks.

    Parameters
    ----------
    problem : Problem
    kernel : function decorated with ``@cuda.jit``
        The first kernel: attention over one split per thread block. After alibi_slopes it takes
        `Pages` and `MaskArgs`.
    grid, threads, shared_bytes
        Launch configuration of the first kernel.
    num_splits : int
    caches : tuple, default=the problem's
        Passed to the first kernel as k_cache and v_cache.
    more : tuple
        Its arguments after `MaskArgs`.
    """
    q = problem.q
    batch, seqlen_q, num_heads, _ = q.shape
    out = arrays.empty(q, q.shape, q.dtype)
    lse = arrays.empty(q, (batch, num_heads, seqlen_q))
    scores = problem.scores
    merged = num_splits > 1 or scores.has_sinks
    parts = parts_for(out, lse, num_splits, merged)
    sources = caches or (problem.k_cache, problem.v_cache)
    args = (q, *sources, problem.block_table, problem.seq_lens, *parts, scores.softmax_scale)
    args += scores.slopes, *pages_of(problem.page_size)
    args += *run_time_masks.arguments_of(scores.mask), *more
    arrays.launch(kernel, grid, (threads,), *args, shared_bytes=shared_bytes)
    if merged:
        launch_combine_wide(*parts, out, lse, scores.sinks, scores.has_sinks)
    return out, lse


def parts_for(out, lse, num_splits, merged):
    """out_partial and lse_partial of the first kernel: out and lse themselves, unless merged."""
    if not merged:
        return tuple(map(arrays.with_axis, (out, lse)))
    return tuple(arrays.empty(out, (num_splits, *x.shape)) for x in (out, lse))


def launch_combine_wide(out_partial, lse_partial, out, lse, sinks=NO_SINKS, has_sinks=False):
    """Merge partial results by a thread block for each row.

    Parameters
    ----------
    out_partial : GPU array of shape (num_splits, batch, seqlen_q, num_heads, head_dim), float32
    lse_partial : GPU array of shape (num_splits, batch, num_heads, seqlen_q), float32
    out : GPU array of shape (batch, seqlen_q, num_heads, head_dim)
        Receives the result; float32, float16 or bfloat16.
    lse : GPU array of shape (batch, num_heads, seqlen_q), float32
        Receives the result.
    sinks : array of shape (num_heads,), float32
    has_sinks : bool, default=False
    """
    num_splits, batch, seqlen_q, num_heads, head_dim = out_partial.shape
    warps = combine_warps(num_splits)
    kernel, grid = make_combine_wide(head_dim, warps, has_sinks), (seqlen_q, num_heads, batch)
    arrays.launch(kernel, grid, (WARP_SIZE * warps,), out_partial, lse_partial, out, lse, sinks)
