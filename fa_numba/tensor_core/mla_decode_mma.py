"""Latent attention (MLA) at the speed of memory: 16-bit caches, contiguous or in pages.

mla_decode      any GPU and dtype; a warp owns a row of q
mla_decode_mma  mma.sync for 16 rows, cp.async into a ring of tiles that holds K and V  <- this file

A row of the cache is key and value of all heads, so 16 heads are the rows of one product of a warp,
and a tile of keys is copied once: for S = Q Kᵀ its rows are B, and for out += P V its first columns
are B, transposed by ldmatrix. `flash_decode_gather` gives each warp keys of its own. Here out has
512 columns, too many for the registers of one warp:

- the 8 warps of a thread block divide the columns of out. Each has 64 of them, for all keys;
- they divide S, too. A warp multiplies 8 keys by a half of the columns of Q, 72 registers, or in
  smaller shared memory by a quarter, and writes its part of S to shared memory as the registers
  hold it: the layout is that of the next product's A;
- after a barrier each warp reads all parts, adds them up, and computes the softmax for itself. So
  every warp knows m_i and l_i, and nothing is merged at the end;
- between two barriers a warp computes S of the next tile and P V of this one, which wait for
  nothing of each other. There is one barrier per tile.

The ring has a tile whose S is computed, one for P V, and the others are in flight. A lane copies 16
bytes at a time from any address, and reads the page of its next key an iteration before.

Papers: DeepSeek-AI 2024, DeepSeek-V2, arXiv:2405.04434, section 2.1; on splits, see flash_decode.
"""

import functools

from numba import cuda, float32, int32, uint32, uint64

from fa_numba import checks
from fa_numba.constants import LOG2_E, ONE
from fa_numba.on_cuda_cores import run_time_masks
from fa_numba.on_cuda_cores.decode_problem import (
    NO_TABLE,
    Pages,
    divide,
    launch_combine_wide,
    pages_of,
    parts_for,
)
from fa_numba.on_cuda_cores.run_time_masks import AT_RUN_TIME, UNREAD
from fa_numba.ptx.cp_async import cp_async_commit, cp_async_wait
from fa_numba.ptx.layouts import ROW_BYTES
from fa_numba.ptx.statement import global_address
from fa_numba.runtime import arrays
from fa_numba.tensor_core import forward
from fa_numba.tensor_core.decoding import (
    AHEAD_LENGTH,
    KEYS,
    N_END,
    UNIT,
    N,
    Sizes,
    make_advance,
    make_keys_of_split,
    unit_of,
    warp_of,
)
from fa_numba.tensor_core.divided_columns import (
    ROWS,
    SCORE_BYTES,
    THREADS,
    Tiling,
    make_columns,
    make_places,
    tile_bytes,
)
from fa_numba.tensor_core.fragments import make_fragment_functions
from fa_numba.tensor_core.shared_plan import SharedPlan
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.num_splits import choose_even_splits

# Bytes of the ring at most: four tiles of 32 keys of 576 numbers were faster than five or six.
RING_BYTES = 4 * 32 * 576 * 2
MAX_STAGES = 8
WINDOW = (-1, -1)


def choose_tiling(row_dim, limit):
    """The `Tiling` for rows of `row_dim` numbers and `limit` bytes of memory: 3 stages or more."""
    best = None
    for block_n in (32, 16):
        room = min(RING_BYTES, limit - make_plan(row_dim, block_n, 0).bytes)
        stages = room // tile_bytes(row_dim, block_n)
        best = Tiling(block_n, min(MAX_STAGES, stages))
        if stages > 3:
            break
    return best


@functools.cache
def make_plan(ROW_DIM, BLOCK_N, STAGES):
    """The `SharedPlan` of a thread block."""
    plan = SharedPlan(align=ROW_BYTES)
    plan.RING = plan.tiles(STAGES, tile_bytes(ROW_DIM, BLOCK_N))
    plan.SCORES = plan.tiles(2, SCORE_BYTES)
    return plan


@functools.cache
def make_mla_decode_mma(LATENT_DIM, ROW_DIM, DTYPE, CAUSAL, PAGE_SIZE, BLOCK_N, STAGES):
    """The first kernel, attention split by split: THREADS threads, `make_plan`'s bytes of memory.

    ROW_DIM is a multiple of 8, DTYPE "float16" or "bfloat16", BLOCK_N 16 or 32, STAGES at least 3.
    PAGE_SIZE is 0 for a contiguous cache, 1, or AT_RUN_TIME. block_table is unused for a contiguous
    cache: it may then be any scalar.
    """
    pack = forward.pack_of(DTYPE)
    page_of, place_of = make_places(PAGE_SIZE)
    plan = make_plan(ROW_DIM, BLOCK_N, STAGES)
    RING, SCORES, shared_base = plan.RING, plan.SCORES, plan.shared_base
    STAGE_BYTES = RING.bytes // STAGES
    PENDING = STAGES - 3  # tiles in flight, beside those of S and of P V
    PENDING_FIRST = STAGES - 2  # the first time there is no P V

    KEYS_16 = BLOCK_N // 16
    P_SHAPE = (KEYS_16, 4)
    columns = make_columns(LATENT_DIM, ROW_DIM, DTYPE, BLOCK_N)
    LANES, Q_SHAPE, OUT_SHAPE, S_SHAPE, copy_row, load_queries, k_row_of, *more = columns
    multiply_keys, store_scores, load_scores, add_values, store_rows = more
    advance = make_advance(ROWS, BLOCK_N // KEYS, CAUSAL, WINDOW)
    keys_of_split = make_keys_of_split(ROWS, BLOCK_N, CAUSAL, WINDOW)
    end_key = run_time_masks.make_bounds(CAUSAL, WINDOW).end_key
    clear, mask, online_softmax, rescale, pack_p = make_fragment_functions(
        BLOCK_N, 8 * OUT_SHAPE[0], pack
    )

    @cuda.jit(device=True, forceinline=True)
    def load_tile(stage, ahead, page, row, latent_cache, table, tid, seq_lens, sizes):
        """Copy the tile at `ahead`, whose keys' pages are known; return the page in the next one.

        A lane copies every LANES-th chunk of row `row`.
        """
        if ahead[UNIT] < sizes.num_units:
            n = place_of(ahead, row, table)
            copy_row(stage, global_address(latent_cache[uint64(page), uint64(n)]), row, tid % LANES)
            advance(ahead, 0, seq_lens, sizes)
            page = page_of(ahead, row, table, sizes)
        cp_async_commit()  # an empty group at the end, too: tiles are counted
        return page

    @cuda.jit(launch_bounds=(THREADS, 1), fastmath={"contract"})
    def mla_decode_mma_kernel(
        q, latent_cache, block_table, seq_lens, out_partial, lse_partial, softmax_scale, page_size,
        page_multiplier, page_shift,
    ):  # fmt: skip
        """A thread block owns 16 rows in one split, and then those of other units.

        A row is a query of a query head; the heads of a query are neighbours.

        grid      (at most num_m_tiles · num_splits · batch,); 256 threads
        shared    ring (STAGES, BLOCK_N, ROW_DIM), in panels of 64 columns, swizzled; parts of the
                  scores of two tiles, (2, 8 warps, 32 lanes, 4)
        private   Q (STEPS, 2, 4), acc (2 GROUPS, 4), s_part (2, 4), s (BLOCK_N / 8, 4),
                  p (BLOCK_N / 16, 4), k (2, 2), v (2, 2), m_i, l_i (2,)
        HBM       the cache once per tile of rows, except the tiles that none of them sees; Q,
                  out_partial, lse_partial once per split; block_table once per key and tile of
                  rows, in the lanes that copy its row
        paper     FlashAttention-2, Algorithm 1, over a part of the keys; DeepSeek-V2, section 2.1
        budget    224 registers; 153 KiB shared, one thread block per SM (ROW_DIM=576)
        """
        q_reg = cuda.local.array(Q_SHAPE, uint32)
        acc = cuda.local.array(OUT_SHAPE, float32)  # rows of out, not yet divided by l_i
        s_part = cuda.local.array((2, 4), float32)
        s = cuda.local.array(S_SHAPE, float32)
        p = cuda.local.array(P_SHAPE, uint32)
        k = cuda.local.array((2, 2), uint32)
        v = cuda.local.array((2, 2), uint32)
        x = cuda.local.array(4, float32)
        m_i = cuda.local.array(2, float32)
        l_i = cuda.local.array(2, float32)
        alpha = cuda.local.array(2, float32)
        ahead = cuda.local.array(AHEAD_LENGTH, int32)  # the tile that is copied next

        page_args = Pages(page_size, page_multiplier, page_shift)
        table = block_table, page_args
        tid = cuda.threadIdx.x
        lane, warp = tid & 31, warp_of(tid)
        base = shared_base()
        ring, scores = base + RING.start, base + SCORES.start
        scale = softmax_scale * LOG2_E
        batch, seqlen_q, num_heads, _ = q.shape
        num_splits = lse_partial.shape[0]
        num_m_tiles, _ = divide(seqlen_q * num_heads + ROWS - 1, ROWS)
        num_units = num_m_tiles * num_splits * batch
        sizes = Sizes(seqlen_q, num_heads, num_m_tiles, 1, num_splits, num_units, UNREAD)

        part, k_row = k_row_of(warp, lane)
        row = tid // LANES  # of a tile, that this lane copies
        ahead[UNIT] = int32(cuda.blockIdx.x) - int32(cuda.gridDim.x)
        ahead[N], ahead[N_END] = 0, 0
        advance(ahead, 0, seq_lens, sizes)
        page = page_of(ahead, row, table, sizes)
        for i in range(STAGES - 1):
            stage = ring + i * STAGE_BYTES
            page = load_tile(stage, ahead, page, row, latent_cache, table, tid, seq_lens, sizes)
        cp_async_wait(PENDING_FIRST)
        cuda.syncthreads()  # all copies of the first tile are there

        # Offsets in the ring of this tile and of the next one; whose scores are which.
        this, after, buffer = 0, STAGE_BYTES, 0
        free = (STAGES - 1) * STAGE_BYTES
        for index in range(cuda.blockIdx.x, num_units, cuda.gridDim.x):
            unit = unit_of(index, sizes)
            seqlen_k = seq_lens[unit.b]
            n_first, n_end = keys_of_split(
                unit.split, num_splits, unit.m_tile, seqlen_q, seqlen_k, num_heads
            )
            first_row = unit.m_tile * ROWS + (lane >> 2)
            rows = divide(first_row, num_heads), divide(first_row + 8, num_heads)
            load_queries(q_reg, q, unit.b, rows, part, lane)
            clear(acc, m_i, l_i)
            # Around the loop, too: in its passes no product then waits for loads of Q, nor, as
            # there are few counters of loads, for that of the next page.
            if n_first < n_end:
                multiply_keys(s_part, k, q_reg, ring + this + k_row, part)
                store_scores(scores + buffer, s_part, tid)

                for n in range(n_first, n_end, BLOCK_N):
                    cp_async_wait(PENDING)
                    # S of this tile and copies of the next one are there; the one before is read.
                    cuda.syncthreads()
                    page = load_tile(
                        ring + free, ahead, page, row, latent_cache, table, tid, seq_lens, sizes
                    )
                    more = n + BLOCK_N < n_end
                    if more:  # S = Q Kᵀ of the next tile                                 line 8
                        multiply_keys(s_part, k, q_reg, ring + after + k_row, part)
                    load_scores(s, x, scores + buffer, scale, lane)
                    for h in range(2):
                        end = end_key(rows[h][0] + seqlen_k - seqlen_q, seqlen_k, UNREAD)
                        if n + BLOCK_N > end:
                            mask(s, h, end - n, lane)
                    online_softmax(s, m_i, l_i, alpha, ONE)  #                            line 9
                    rescale(acc, alpha)
                    pack_p(s, p)
                    for i in range(KEYS_16):  # out += P V                                line 10
                        add_values(acc, v, p[i], i, ring + this, warp, lane)
                    buffer ^= SCORE_BYTES
                    if more:
                        store_scores(scores + buffer, s_part, tid)
                    free, this = this, after
                    after = after + STAGE_BYTES if after < RING.bytes - STAGE_BYTES else 0

            store_rows(out_partial, lse_partial, acc, m_i, l_i, unit, rows, warp, lane)

    return mla_decode_mma_kernel


@arrays.replayed
def mla_decode_mma(
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
    """Latent attention (MLA) of a few queries to a 16-bit cache, on GPUs since Ampere.

    Parameters
    ----------
    q : GPU array of shape (batch, seqlen_q, num_heads, row_dim), float16 or bfloat16
    latent_cache : GPU array, dtype of q
        Of shape (batch, max_len, row_dim), or with a block_table (num_pages, page_size, row_dim).
        Any strides that are multiples of 16 bytes, with a contiguous last axis; row_dim a multiple
        of 8, up to 576.
    seq_lens, softmax_scale, block_table, latent_dim, causal
        As for `mla_decode`.
    num_splits : int, default=0
        0: `fa_numba.tiling.num_splits.choose_even_splits` chooses it.

    Returns
    -------
    out : array of shape (batch, seqlen_q, num_heads, latent_dim), dtype and library of q
        0 in a row that sees no key.
    lse : array of shape (batch, num_heads, seqlen_q), float32
        Natural log of the row's sum of e^score; −inf in a row that sees no key.
    """
    latent_dim = checks.check_latent_decode(q, latent_cache, seq_lens, block_table, latent_dim)
    checks.check_latent_tensor_core(q, latent_cache, name="mla_decode_mma")
    causal = checks.check_causal(causal)
    softmax_scale = checks.check_softmax_scale(softmax_scale, None)
    num_splits = checks.check_num_splits(num_splits)
    batch, seqlen_q, num_heads, row_dim = q.shape
    page_size = 0 if block_table is None else latent_cache.shape[1]
    max_len = latent_cache.shape[1] if block_table is None else block_table.shape[1] * page_size
    tiling = choose_tiling(row_dim, arrays.shared_bytes_per_block(q))

    num_sms, work = arrays.num_sms(q), ceil_div(seqlen_q * num_heads, ROWS) * batch
    if num_splits == 0:
        num_splits = choose_even_splits(work, ceil_div(max_len, tiling.block_n), num_sms)
    num_units = work * num_splits
    out = arrays.empty(q, (*q.shape[:3], latent_dim), q.dtype)
    lse = arrays.empty(q, (batch, num_heads, seqlen_q))
    parts = parts_for(out, lse, num_splits, num_splits > 1)
    constant_size = AT_RUN_TIME if page_size > 1 else page_size
    kernel = make_mla_decode_mma(
        latent_dim, row_dim, arrays.dtype_name(q), causal, constant_size, *tiling
    )
    table = NO_TABLE if block_table is None else block_table
    args = q, latent_cache, table, seq_lens, *parts, softmax_scale, *pages_of(page_size)
    grid = (ceil_div(num_units, max(1, ceil_div(num_units, num_sms))),)
    size = make_plan(row_dim, *tiling).bytes
    arrays.launch(kernel, grid, (THREADS,), *args, shared_bytes=size)
    if num_splits > 1:
        launch_combine_wide(*parts, out, lse)
    return out, lse
