"""Flash-Decoding from pages of any size: each warp gathers rows of keys wherever they are.

flash_decode         tiles of K and V go through shared memory; a thread per score
flash_decode_wide    a few lanes per key, loads of 16 bytes, no barrier
flash_decode_mma     K and V go from HBM to the registers that multiply them
flash_decode_gather  cp.async keeps up to 192 KiB in flight to an SM; any page size  <- this file

A box of the copy engine is of neighbours. Where a page holds one key, 16 keys of a head are 16 rows
of 256 bytes, each somewhere else, and a warp starts copies of one row one after the other. cp.async
copies 16 bytes for each lane, wherever they are: two rows of 256 bytes at a time, by one
instruction. So

- a lane looks up one key's page, a turn before it is needed, and leaves in shared memory where the
  row of K is, or of V; 16 lanes together copy the row;
- rings and turns are those of flash_decode_tma, the swizzle too. A warp waits for its own copies,
  by counting them: there is no barrier but the one before the merge;
- what is past the end of the keys is read from the last of them, and masked.

On an H200 it reads float16 caches of 32 heads of 128 in shuffled pages of 1 at 4.0 to 4.2 TB/s, 94
to 97 % of the quickest kernel without pages; with four queries to a K/V head at 3.2 to 3.8, 92 to
96 % (benchmarks/results/decode_fast.json).
"""

import functools

from numba import cuda, float32, int32, uint8, uint32, uint64

from fa_numba.constants import NEG_INF, ZERO
from fa_numba.on_cuda_cores.decode_problem import divide, launch
from fa_numba.ptx.cp_async import cp_async_16, cp_async_commit, cp_async_wait
from fa_numba.ptx.layouts import PANEL_COLS, ROW_BYTES
from fa_numba.ptx.statement import global_address, shared_address
from fa_numba.runtime import arrays
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
    warp_of,
)
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.decode_tiling import tile_rows

RINGS = {1: (8, 6), 2: (8, 3), 3: (4, 4), 4: (4, 3)}  # by panels of 64 columns: warps, stages
PANEL_BYTES = KEYS * ROW_BYTES  # 64 columns of a turn
CHUNK_BYTES = 16  # that a lane copies at once


def shared_bytes(HEAD_DIM, WARPS, STAGES):
    """Dynamic shared memory that a thread block asks for."""
    return 2 * WARPS * STAGES * ceil_div(HEAD_DIM, PANEL_COLS) * PANEL_BYTES + ROW_BYTES


@cuda.jit(device=True, forceinline=True)
def at(tile, chunk, j):
    """`decoding.make_products`: this lane's row of a turn in panels of 64 columns, swizzled."""
    return tile + j // 4 * PANEL_BYTES + (chunk ^ (j % 4 << 5))


@functools.cache
def make_flash_decode_gather(
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
    PAGED, PAGE = PAGE_SIZE > 0, max(1, PAGE_SIZE)
    BLOCK_N = KEYS * WARPS
    STEPS = ceil_div(HEAD_DIM, 16)  # products
    PIECES = HEAD_DIM // 8  # of 16 bytes, in a row
    LANES = 1 << (PIECES - 1).bit_length()  # that copy a row
    AT_ONCE = 32 // LANES  # rows
    COPIES = 2 * KEYS // AT_ONCE  # in a turn
    K_BYTES = ceil_div(HEAD_DIM, PANEL_COLS) * PANEL_BYTES
    TURN_BYTES = 2 * K_BYTES
    PENDING = STAGES - 1  # turns that may be on their way while one is read
    FRAGMENTS, SOURCES_SHAPE = (STEPS, 4), (WARPS, 32)
    STATE_SHAPE, PARTS_SHAPE = (WARPS, ROWS), (WARPS, ROWS, HEAD_DIM)
    keys_of_split = make_keys_of_split(ROWS, BLOCK_N, CAUSAL, WINDOW)
    begin_part = make_begin_part(ROWS, WARPS, CAUSAL, WINDOW)
    load_queries, scores, add_weighted = make_products(HEAD_DIM, DTYPE, at)
    turn_softmax = make_turn_softmax(DTYPE, CAUSAL, WINDOW, SOFTCAP, ALIBI)
    leave_rows, leave_state, merge = make_merge(HEAD_DIM, ROWS, WARPS)

    @cuda.jit(device=True, forceinline=True)
    def next_turn(ahead, warp, seq_lens, sizes):
        """Is there one, in this part of the keys or another? Then `ahead` says which."""
        ahead[3] += BLOCK_N
        while ahead[3] >= ahead[4] and ahead[0] < sizes[5]:
            ahead[0] += int32(cuda.gridDim.x)
            if ahead[0] < sizes[5]:
                begin_part(ahead, warp, seq_lens, sizes)
        return ahead[0] < sizes[5]

    @cuda.jit(device=True, forceinline=True)
    def look_up(place, ahead, block_table, lane):
        """Ask for the page of this lane's key, and where it is in that page."""
        n = min(ahead[3] + lane % KEYS, ahead[4] - 1)
        place[0], place[1] = ahead[1], n
        if PAGED:
            page, place[1] = divide(n, PAGE)
            place[0] = block_table[uint64(ahead[1]), uint64(page)]

    @cuda.jit(device=True, forceinline=True)
    def row_of(cache, place, kv_head):
        return global_address(cache[uint64(place[0]), uint64(place[1]), uint64(kv_head)])

    @cuda.jit(device=True, forceinline=True)
    def load_turn(slot, rows, place, caches, kv_head, lane):
        """Rows of K, then of V: a lane says where one of them is, and copies a piece of many."""
        k_cache, v_cache, _ = caches
        row = row_of(k_cache, place, kv_head)
        if lane >= KEYS:
            row = row_of(v_cache, place, kv_head)
        rows[uint64(lane)] = row
        cuda.syncwarp()  # all rows are known
        piece = lane % LANES
        for i in range(COPIES):
            r = i * AT_ONCE + lane // LANES
            if PIECES == LANES or piece < PIECES:
                tile = slot + r // KEYS * K_BYTES + piece // 8 * PANEL_BYTES + r % KEYS * ROW_BYTES
                source = rows[uint64(r)] + uint64(CHUNK_BYTES * piece)
                cp_async_16(tile + CHUNK_BYTES * ((piece ^ r) & 7), source, CHUNK_BYTES)

    @cuda.jit(device=True, forceinline=True)
    def load_next(ahead, place, slot, rows, caches, lane, warp, seq_lens, sizes):
        """Ask for this warp's next turn, if there is one, and then for the pages of that after."""
        if ahead[0] < sizes[5]:
            load_turn(slot, rows, place, caches, ahead[2], lane)
        cp_async_commit()  # where there was none, too: turns are counted
        if next_turn(ahead, warp, seq_lens, sizes):
            look_up(place, ahead, caches[2], lane)

    @cuda.jit(launch_bounds=(32 * WARPS, 1), fastmath={"contract"})
    def flash_decode_gather_kernel(
        q,
        k_cache,
        v_cache,
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
        shared    ring (WARPS, STAGES, 2, 16, HEAD_DIM), in panels of 64 columns, swizzled; where
                  the rows of a turn are (WARPS, 32); what the warps have at the end: acc (WARPS,
                  ROWS, HEAD_DIM), m_i, l_i (WARPS, ROWS)
        private   Q, acc (HEAD_DIM / 16, 4), k (2, 2), v (4,), s (2, 4), p (2,), m_i, l_i
        HBM       K and V once per tile of rows, but for the tiles that none of them sees; Q,
                  out_partial, lse_partial once per split; block_table once per key and tile of rows
        paper     FlashAttention-2, Algorithm 1, over a part of the keys;
                  PagedAttention, section 4.1
        budget    168 registers; 198 to 227 KiB shared, one thread block per SM (HEAD_DIM=128)
        """
        parts = cuda.shared.array(PARTS_SHAPE, float32)
        m_parts = cuda.shared.array(STATE_SHAPE, float32)
        l_parts = cuda.shared.array(STATE_SHAPE, float32)
        states = parts, m_parts, l_parts
        sources = cuda.shared.array(SOURCES_SHAPE, uint64)
        q_reg = cuda.local.array(FRAGMENTS, uint32)
        acc = cuda.local.array(FRAGMENTS, float32)  # rows of out, not yet divided by l_i
        k = cuda.local.array((2, 2), uint32)
        v = cuda.local.array(4, uint32)
        s = cuda.local.array((2, 4), float32)
        p = cuda.local.array(2, uint32)
        ahead = cuda.local.array(5, int32)  # what will be asked for next
        place = cuda.local.array(2, int32)  # of this lane's key there: page and offset

        tid = cuda.threadIdx.x
        lane, warp = tid & 31, warp_of(tid)
        ring = (shared_address(cuda.shared.array(0, uint8)) + ROW_BYTES - 1) & -ROW_BYTES
        ring += warp * STAGES * TURN_BYTES
        rows = sources[uint64(warp)]

        batch, seqlen_q, num_heads, _ = q.shape
        num_kv_heads, num_splits = k_cache.shape[2], lse_partial.shape[0]
        group_size, _ = divide(num_heads, num_kv_heads)
        num_m_tiles, _ = divide(seqlen_q * group_size + ROWS - 1, ROWS)
        num_chunks = num_m_tiles * num_kv_heads * num_splits * batch
        sizes = (seqlen_q, group_size, num_m_tiles, num_kv_heads, num_splits, num_chunks)

        # What ldmatrix reads, for each 16 columns: this lane's row, in one of two chunks of 8.
        lane_row = ((lane & 7) + 8 * (lane >> 4)) * ROW_BYTES
        swizzled = ((lane >> 3 & 1) ^ (lane & 7)) << 4

        caches = (k_cache, v_cache, block_table)
        ahead[0], ahead[3], ahead[4] = int32(cuda.blockIdx.x) - int32(cuda.gridDim.x), 0, 0
        if next_turn(ahead, warp, seq_lens, sizes):
            look_up(place, ahead, block_table, lane)
        for i in range(STAGES):
            slot = ring + i * TURN_BYTES
            load_next(ahead, place, slot, rows, caches, lane, warp, seq_lens, sizes)
            cuda.syncwarp()  # rows may be overwritten

        stage = 0
        for chunk in range(cuda.blockIdx.x, num_chunks, cuda.gridDim.x):
            place_now = place_of(chunk, sizes)
            b, split, kv_head, m_tile = place_now
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
                slot = ring + stage * TURN_BYTES
                cp_async_wait(PENDING)
                cuda.syncwarp()  # what the other lanes copied is there, too
                scores(s, q_reg, k, slot + lane_row, swizzled)  # S = Q Kᵀ                line 8
                m_i, l_i, alpha = turn_softmax(
                    s, p, m_i, l_i, n, position, seqlen_k, slope, softmax_scale, lane
                )
                v_tile = slot + K_BYTES + lane_row
                add_weighted(acc, v, p, alpha, v_tile, swizzled, lane)  # out += P V      line 10
                cuda.syncwarp()  # the warp has read this turn: safe to overwrite
                load_next(ahead, place, slot, rows, caches, lane, warp, seq_lens, sizes)
                stage = stage + 1 if stage < STAGES - 1 else 0

            leave_rows(parts, acc, tid)
            leave_state(states, m_i, l_i, tid)
            cuda.syncthreads()  # what every warp has is there: safe to merge
            merge(states, out_partial, lse_partial, place_now, group_size, seqlen_q, tid)
            cuda.syncthreads()  # merged: safe to overwrite

    return flash_decode_gather_kernel


@arrays.replayed
def flash_decode_gather(
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
    """Flash-Decoding of a contiguous or paged KV cache of 16 bits, gathered row by row.

    Parameters
    ----------
    q : GPU array of shape (batch, seqlen_q, num_heads, head_dim), float16 or bfloat16
    k_cache, v_cache : GPU arrays, dtype of q
        Of shape (batch, max_len, num_kv_heads, head_dim), or with a block_table (num_pages,
        page_size, num_kv_heads, head_dim). Any strides that are multiples of 16 bytes, with a
        contiguous last axis; head_dim a multiple of 8, up to 256.
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
        On a GPU before Hopper, or one that came after.
    """
    mask = causal, window_size, softcap, alibi_slopes
    arguments = q, k_cache, v_cache, seq_lens, block_table, *mask, softmax_scale, num_splits
    problem = check_on_tensor_cores("flash_decode_gather", forward.HOPPER, *arguments)
    head_dim = q.shape[3]
    rows = tile_rows(problem.num_rows)
    warps, stages = RINGS[ceil_div(head_dim, PANEL_COLS)]
    kernel = make_flash_decode_gather(
        head_dim, arrays.dtype_name(q), rows, problem.page_size, warps, stages, *problem.mask
    )
    num_splits, grid = splits_and_grid(problem, rows, warps)
    size = shared_bytes(head_dim, warps, stages)
    return launch(problem, kernel, grid, 32 * warps, num_splits, shared_bytes=size)
