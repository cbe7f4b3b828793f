"""Flash-Decoding with a ring of keys for each warp, kept full by the copy engine: Hopper.

flash_decode         tiles of K and V go through shared memory; a thread per score
flash_decode_wide    a few lanes per key, loads of 16 bytes, no barrier
flash_decode_mma     K and V go from HBM to the registers that multiply them
flash_decode_tma     TMA keeps up to 192 KiB on their way to an SM                     <- this file
flash_decode_gather  pages of few keys: cp.async, each row where its page is

Decoding waits for memory alone. A register that a load will fill is taken until it comes, and a
thread block that begins has nothing on its way. Here

- each warp has a ring of STAGES turns, 16 keys of K and V, in shared memory. As soon as it has read
  one it asks for the turn that is STAGES ahead: a lane names a tensor map and a place, and the copy
  engine does the rest. No other warp is waited for;
- there is one thread block per SM, and it works through many parts of the keys. The copies go on
  from the end of one to the beginning of the next;
- a page of a cache is where a copy begins, for the copy engine takes any four coordinates: 16 keys
  in pages of 16 are the same two copies as 16 keys of one sequence.

The copies leave the keys as ldmatrix wants them, swizzled, so that products are those of
`flash_attn_mma`: S = Q Kᵀ with the queries as rows, and out transposed, Vᵀ Pᵀ, with P as the first
product left it.

On an H200 it reads float16 caches of 32 heads of 128 at 4.1 to 4.4 TB/s, as a copy does, and with
four queries to a K/V head at 3.4 to 4.0: 98 to 100 % of cuDNN beside it; pages of 16, shuffled, at
96 to 100 % of that (benchmarks/results/decode_fast.json).

Source: as for flash_decode; PTX ISA, "Asynchronous copy: tensor data".
"""

import functools

import numpy as np
from numba import cuda, float32, int32, uint8, uint32, uint64

from fa_numba.constants import NEG_INF, ZERO
from fa_numba.on_cuda_cores.decode_problem import divide, launch
from fa_numba.ptx import mbarrier
from fa_numba.ptx.barriers import fence_async_proxy
from fa_numba.ptx.layouts import PANEL_COLS, ROW_BYTES
from fa_numba.ptx.mbarrier import fence_mbarrier_init, mbarrier_arrive_expect_tx, mbarrier_init
from fa_numba.ptx.statement import shared_address
from fa_numba.ptx.tma import tma_load_4d
from fa_numba.ptx.vectors import store_shared_zeros
from fa_numba.runtime import arrays
from fa_numba.runtime.tensor_maps import tensor_map
from fa_numba.tensor_core import forward
from fa_numba.tensor_core.decoding import (
    KEYS,
    check_on_tensor_cores,
    make_begin_part,
    make_keys_of_split,
    make_merge,
    make_products,
    make_turn_softmax,
    place_of,
    splits_and_grid,
)
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.decode_tiling import tile_rows

RINGS = {1: (8, 6), 2: (8, 3), 3: (4, 4), 4: (4, 3)}  # by panels of 64 columns: warps, stages
PANEL_BYTES = KEYS * ROW_BYTES  # 64 columns of a turn
L2_BYTES = 128  # that L2 fetches at once, as the rows of a box: 256 is slower, benchmarks/NOTES.md


def shared_bytes(HEAD_DIM, WARPS, STAGES):
    """Dynamic shared memory that a thread block asks for."""
    turn_bytes = 2 * ceil_div(HEAD_DIM, PANEL_COLS) * PANEL_BYTES
    return WARPS * STAGES * (turn_bytes + mbarrier.BYTES) + 8 * ROW_BYTES


def box_rows(page_size):
    """Keys of a copy: a power of 2 that divides a page, so that none lies in two pages."""
    return min(KEYS, page_size & -page_size) if page_size else KEYS


@cuda.jit(device=True, forceinline=True)
def at(tile, chunk, j):
    """`decoding.make_products`: this lane's row of a turn in panels of 64 columns, swizzled."""
    return tile + j // 4 * PANEL_BYTES + (chunk ^ (j % 4 << 5))


@functools.cache
def make_flash_decode_tma(
    HEAD_DIM,
    DTYPE,
    ROWS,
    PAGE_SIZE,
    WARPS,
    STAGES,
    CAUSAL,
    WINDOW=(-1, -1),
    SOFTCAP=0.0,
    ALIBI=False,
):
    """The first kernel, attention split by split: 32 · WARPS threads, `shared_bytes` of memory.

    HEAD_DIM is a multiple of 8, DTYPE "float16" or "bfloat16", ROWS 1, 2, 4 or 8. PAGE_SIZE is 0
    for a contiguous cache; then block_table, as alibi_slopes without ALIBI, is not looked at and
    may be any scalar.
    """
    wait = mbarrier.wait_function()
    PAGED, PAGE = PAGE_SIZE > 0, max(1, PAGE_SIZE)
    BLOCK_N = KEYS * WARPS
    STEPS = ceil_div(HEAD_DIM, 16)  # products
    NUM_PANELS = ceil_div(HEAD_DIM, PANEL_COLS)
    BOX = box_rows(PAGE_SIZE)
    BOXES = NUM_PANELS * (KEYS // BOX)  # copies of K, and of V, in a turn
    BOX_STEPS = ceil_div(BOXES, 32)
    K_BYTES = NUM_PANELS * PANEL_BYTES
    TURN_BYTES = 2 * K_BYTES
    FRAGMENTS = (STEPS, 4)
    STATE_SHAPE, PARTS_SHAPE = (WARPS, ROWS), (WARPS, ROWS, HEAD_DIM)
    keys_of_split = make_keys_of_split(ROWS, BLOCK_N, CAUSAL, WINDOW)
    begin_part = make_begin_part(ROWS, WARPS, CAUSAL, WINDOW)
    load_queries, scores, add_weighted = make_products(HEAD_DIM, DTYPE, at)
    turn_softmax = make_turn_softmax(DTYPE, CAUSAL, WINDOW, SOFTCAP, ALIBI)
    leave_rows, leave_state, merge = make_merge(HEAD_DIM, ROWS, WARPS)

    @cuda.jit(device=True, forceinline=True)
    def key_of(box, n, n_end):
        """Where a box of the keys from n on begins; past the end, where that of the last key does.

        There may be no page past the end; a contiguous cache has keys or zeros there.
        """
        r = box // NUM_PANELS * BOX
        return min(n + r, n_end - 1) & -BOX if PAGED else n + r

    @cuda.jit(device=True, forceinline=True)
    def look_up(pages, block_table, b, n, n_end, lane):
        """Ask for the pages of this lane's boxes."""
        for i in range(BOX_STEPS):
            if lane + 32 * i < BOXES:
                page, _ = divide(key_of(lane + 32 * i, n, n_end), PAGE)
                pages[i] = block_table[uint64(b), uint64(page)]

    @cuda.jit(device=True, forceinline=True)
    def load_turn(slot, full, k_map, v_map, pages, b, kv_head, n, n_end, lane):
        """Ask for the keys from n on: a lane for each box of K, and of V."""
        if lane == 0:
            mbarrier_arrive_expect_tx(full, TURN_BYTES)
        cuda.syncwarp()  # announced: the bytes may come
        for i in range(BOX_STEPS):
            box = lane + 32 * i
            if box < BOXES:
                row, page = key_of(box, n, n_end), b
                if PAGED:
                    (_, row), page = divide(row, PAGE), pages[i]
                r, panel = box // NUM_PANELS * BOX, box % NUM_PANELS
                tile, col = slot + panel * PANEL_BYTES + r * ROW_BYTES, panel * PANEL_COLS
                tma_load_4d(tile, k_map, col, row, kv_head, page, full)
                tma_load_4d(tile + K_BYTES, v_map, col, row, kv_head, page, full)

    @cuda.jit(device=True, forceinline=True)
    def load_next(ahead, pages, slot, full, sources, tid, seq_lens, sizes):
        """Ask for this warp's next turn, which may be of another part of the keys.

        `ahead` says where that is: chunk, b, kv_head, n, n_end; and `pages` has its pages, asked
        for a turn before.
        """
        k_map, v_map, block_table = sources
        _, _, _, _, _, num_chunks = sizes
        lane, warp = tid & 31, tid >> 5
        while ahead[3] >= ahead[4] and ahead[0] < num_chunks:
            ahead[0] += int32(cuda.gridDim.x)
            if ahead[0] < num_chunks:
                begin_part(ahead, warp, seq_lens, sizes)
                if PAGED and ahead[3] < ahead[4]:
                    look_up(pages, block_table, ahead[1], ahead[3], ahead[4], lane)
        b, kv_head, n, n_end = ahead[1], ahead[2], ahead[3], ahead[4]
        if ahead[0] < num_chunks:
            load_turn(slot, full, k_map, v_map, pages, b, kv_head, n, n_end, lane)
        ahead[3] += BLOCK_N
        if PAGED and ahead[3] < n_end:
            look_up(pages, block_table, b, ahead[3], n_end, lane)

    @cuda.jit(launch_bounds=(32 * WARPS, 1), fastmath={"contract"})
    def flash_decode_tma_kernel(
        q,
        k_map,
        v_map,
        num_kv_heads,
        block_table,
        seq_lens,
        out_partial,
        lse_partial,
        softmax_scale,
        alibi_slopes,
    ):
        """A thread block owns ROWS rows of a K/V head in one split, and then others.

        A row is a query of a query head; the heads of a group are neighbours.

        grid      (at most num_m_tiles · num_kv_heads · num_splits · batch,); 32 · WARPS threads
        shared    ring (WARPS, STAGES, 2, 16, HEAD_DIM), in panels of 64 columns, swizzled, and a
                  barrier for each turn; what the warps have at the end: acc (WARPS, ROWS,
                  HEAD_DIM), m_i, l_i (WARPS, ROWS)
        private   Q, acc (HEAD_DIM / 16, 4), k (2, 2), v (4,), s (2, 4), p (2,), m_i, l_i
        HBM       K and V once per tile of rows, but for the tiles that none of them sees; Q,
                  out_partial, lse_partial once per split; block_table once per box
        paper     FlashAttention-2, Algorithm 1, over a part of the keys;
                  PagedAttention, section 4.1
        budget    176 registers; 197 to 226 KiB shared, one thread block per SM (HEAD_DIM=128); with
                  256, pages of one key and a causal mask 8 bytes are spilled
        """
        parts = cuda.shared.array(PARTS_SHAPE, float32)
        m_parts = cuda.shared.array(STATE_SHAPE, float32)
        l_parts = cuda.shared.array(STATE_SHAPE, float32)
        states = parts, m_parts, l_parts
        q_reg = cuda.local.array(FRAGMENTS, uint32)
        acc = cuda.local.array(FRAGMENTS, float32)  # rows of out, not yet divided by l_i
        k = cuda.local.array((2, 2), uint32)
        v = cuda.local.array(4, uint32)
        s = cuda.local.array((2, 4), float32)
        p = cuda.local.array(2, uint32)
        ahead = cuda.local.array(5, int32)  # what the copies will be asked for next
        pages = cuda.local.array(BOX_STEPS, int32)

        tid = cuda.threadIdx.x
        lane, warp = tid & 31, tid >> 5
        ring = (shared_address(cuda.shared.array(0, uint8)) + 1023) & 0xFFFFFC00
        full = ring + WARPS * STAGES * TURN_BYTES + warp * STAGES * mbarrier.BYTES
        ring += warp * STAGES * TURN_BYTES
        if lane == 0:
            for i in range(STAGES):
                mbarrier_init(full + i * mbarrier.BYTES, 1)
            fence_mbarrier_init()
        cuda.syncwarp()  # the warp's barriers are made: safe to wait on

        batch, seqlen_q, num_heads, _ = q.shape
        num_splits = lse_partial.shape[0]
        group_size, _ = divide(num_heads, num_kv_heads)
        num_m_tiles, _ = divide(seqlen_q * group_size + ROWS - 1, ROWS)
        num_chunks = num_m_tiles * num_kv_heads * num_splits * batch
        sizes = (seqlen_q, group_size, num_m_tiles, num_kv_heads, num_splits, num_chunks)

        # What ldmatrix reads, for each 16 columns: this lane's row, in one of two chunks of 8.
        lane_row = ((lane & 7) + 8 * (lane >> 4)) * ROW_BYTES
        swizzled = ((lane >> 3 & 1) ^ (lane & 7)) << 4

        ahead[0], ahead[3], ahead[4] = int32(cuda.blockIdx.x) - int32(cuda.gridDim.x), 0, 0
        sources = (k_map, v_map, block_table)
        for i in range(STAGES):
            slot, barrier = ring + i * TURN_BYTES, full + i * mbarrier.BYTES
            load_next(ahead, pages, slot, barrier, sources, tid, seq_lens, sizes)

        stage, parity = 0, 0
        for chunk in range(cuda.blockIdx.x, num_chunks, cuda.gridDim.x):
            place = place_of(chunk, sizes)
            b, split, kv_head, m_tile = place
            seqlen_k = seq_lens[b]
            n_first, n_end = keys_of_split(
                split, num_splits, m_tile, seqlen_q, seqlen_k, group_size
            )
            m, head = divide(m_tile * ROWS + (lane >> 2), group_size)  # of this lane's scores
            head += kv_head * group_size
            is_query = lane >> 2 < ROWS and m < seqlen_q
            position = m + seqlen_k - seqlen_q  # among the keys: the last query's is the last
            slope = alibi_slopes[head] if ALIBI and is_query else ZERO
            load_queries(q_reg, q, b, m, head, is_query, lane)
            for j in range(STEPS):
                for i in range(4):
                    acc[j, i] = ZERO
            m_i = NEG_INF
            l_i = ZERO  # of this lane's keys alone

            for n in range(n_first + KEYS * warp, n_end, BLOCK_N):
                slot, barrier = ring + stage * TURN_BYTES, full + stage * mbarrier.BYTES
                wait(barrier, parity)

                scores(s, q_reg, k, slot + lane_row, swizzled)  # S = Q Kᵀ                line 8
                m_i, l_i, alpha = turn_softmax(
                    s, p, m_i, l_i, n, position, seqlen_k, slope, softmax_scale, lane
                )
                tail = n + KEYS > n_end
                if tail:  # what is there instead of keys may be NaN, and 0 · NaN is NaN
                    for i in range(lane, K_BYTES // 16, 32):
                        if n + (i >> 3) % KEYS >= n_end:
                            store_shared_zeros(slot + K_BYTES + 16 * i)
                    cuda.syncwarp()

                v_tile = slot + K_BYTES + lane_row
                add_weighted(acc, v, p, alpha, v_tile, swizzled, lane)  # out += P V      line 10
                if tail:  # the zeros stored come before the copy that overwrites them
                    fence_async_proxy()
                cuda.syncwarp()  # the warp has read this turn: safe to overwrite
                load_next(ahead, pages, slot, barrier, sources, tid, seq_lens, sizes)
                stage += 1
                if stage == STAGES:
                    stage, parity = 0, parity ^ 1

            leave_rows(parts, acc, tid)
            leave_state(states, m_i, l_i, tid)
            cuda.syncthreads()  # what every warp has is there: safe to merge
            merge(states, out_partial, lse_partial, place, group_size, seqlen_q, tid)
            cuda.syncthreads()  # merged: safe to overwrite

    return flash_decode_tma_kernel


@arrays.replayed
def flash_decode_tma(
    q,
    k_cache,
    v_cache,
    seq_lens,
    *,
    block_table=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    softmax_scale=None,
    num_splits=0,
):
    """Flash-Decoding of a contiguous or paged KV cache of 16 bits, fetched by TMA.

    Parameters
    ----------
    q : GPU array of shape (batch, seqlen_q, num_heads, head_dim), float16 or bfloat16
    k_cache, v_cache : GPU arrays, dtype of q
        Of shape (batch, max_len, num_kv_heads, head_dim), or with a block_table (num_pages,
        page_size, num_kv_heads, head_dim). Any strides that are multiples of 16 bytes, with a
        contiguous last axis; head_dim a multiple of 8, up to 256. Pages of a multiple of 16 keys
        are read at 96 to 100 % of a contiguous cache's rate; smaller ones by
        `flash_decode_gather` faster.
    seq_lens, block_table, causal, window_size, softcap, alibi_slopes, softmax_scale
        As for `flash_decode_wide`.
    num_splits : int, default=0
        0 is chosen by `fa_numba.tiling.num_splits.choose_even_splits`.

    Returns
    -------
    out : array of the shape, dtype and library of q
        0 in a row that sees no key.
    lse : array of shape (batch, num_heads, seqlen_q), float32
        Natural log of the row's sum of e^score; −inf in a row that sees no key.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what it must be, and what it got.
    RuntimeError
        On a GPU that has no TMA, or one that came after Hopper.
    """
    mask = causal, window_size, softcap, alibi_slopes
    arguments = q, k_cache, v_cache, seq_lens, block_table, *mask, softmax_scale, num_splits
    problem = check_on_tensor_cores(
        "flash_decode_tma", forward.HOPPER, *arguments, tensor_maps=True
    )
    head_dim = q.shape[3]
    page_size, num_kv_heads = problem.page_size, k_cache.shape[2]
    rows = tile_rows(problem.num_rows)
    warps, stages = RINGS[ceil_div(head_dim, PANEL_COLS)]
    kernel = make_flash_decode_tma(
        head_dim, arrays.dtype_name(q), rows, page_size, warps, stages, *problem.mask
    )
    num_splits, grid = splits_and_grid(problem, rows, warps)
    maps = (tensor_map(x, box_rows(page_size), L2_BYTES) for x in (k_cache, v_cache))
    caches, size = (*maps, np.int32(num_kv_heads)), shared_bytes(head_dim, warps, stages)
    return launch(problem, kernel, grid, 32 * warps, num_splits, caches, size)
