"""Flash-Decoding from a cache of any page size: each warp gathers its keys by cp.async.

flash_decode         tiles of K and V go through shared memory; a thread per score
flash_decode_wide    a few lanes per key, 16-byte loads, no barrier in the loop
flash_decode_mma     K and V go from HBM to the registers that multiply them
flash_decode_gather  cp.async keeps up to 192 KiB in flight to an SM; any page size  <- this file

Decoding waits for memory alone, so bytes in flight decide its speed. A register that a load
will fill is taken until the load ends, and a thread block that begins has no bytes in flight. So

- each warp has a ring of STAGES tiles in shared memory, each 16 keys of K and V. As soon as it has
  read one it starts the copies of the tile STAGES iterations ahead, and waits for no other warp;
- a persistent thread block loops over work units, and the copies go on from one unit to the next;
- cp.async copies 16 bytes for each lane, from any address: two rows of 256 bytes per instruction.
  Pages of one key take as many instructions as pages of 16. TMA copies neighbours only, one
  instruction for each page;
- e4m3 in the place of 16 bits halves the bytes; a lane makes float16 of them before it multiplies,
  one instruction for two numbers. Scales of tokens come with the keys, those of heads are folded
  into softmax_scale and the last division;
- cp.async also copies the pages of the keys from the block table, STAGES iterations before the keys
  themselves, so no lane waits for a page;
- a lane leaves the address of its key's row of K, or of V, in shared memory; 16 lanes together copy
  the row. The memory is that of the warp's part of out, which is written after its last copy: with
  memory of their own the addresses would not fit beside pages and 8 rows of 128;
- a warp waits for its own copies by counting them: the only barrier is the one before the merge;
- a key past the end is read from the last key instead, and masked.

The keys are swizzled in shared memory, as ldmatrix reads them, so the products are those of
`flash_attn_mma`: S = Q Kᵀ with the queries as rows, and out transposed, Vᵀ Pᵀ, with P in the
registers of the first product.

On an H200 it reads float16 caches of 32 heads of 128 in shuffled pages of 1 at 4.2 to 4.4 TB/s, 97
to 98 % of the fastest kernel without pages; with four queries to a K/V head at 3.3 to 3.9, 94 to
97 % (benchmarks/results/decode_fast.json).

Source: as for flash_decode.
"""

import functools

from numba import cuda, float32, int32, uint32, uint64

from fa_numba import checks
from fa_numba.constants import NEG_INF, ONE, ZERO
from fa_numba.expressions.functions import NO_EXPRESSIONS
from fa_numba.kernels import e4m3
from fa_numba.on_cuda_cores.decode_problem import Pages, divide, launch, make_page_of
from fa_numba.on_cuda_cores.run_time_masks import MaskArgs
from fa_numba.ptx.cp_async import cp_async_4, cp_async_16, cp_async_commit, cp_async_wait
from fa_numba.ptx.dependent_launch import wait_for_kernel_before
from fa_numba.ptx.layouts import PANEL_COLS, ROW_BYTES
from fa_numba.ptx.statement import global_address, shared_address
from fa_numba.ptx.vectors import load_shared_b64, store_shared_b64
from fa_numba.runtime import arrays
from fa_numba.tensor_core import forward
from fa_numba.tensor_core.decoding import (
    AHEAD_LENGTH,
    BATCH,
    KEYS,
    KV_HEAD,
    N_END,
    UNIT,
    N,
    Sizes,
    States,
    check_on_tensor_cores,
    make_add_parts,
    make_advance,
    make_keys_of_split,
    make_merge,
    make_online_softmax,
    make_products,
    make_products_of_bytes,
    splits_and_grid,
    unit_of,
    warp_of,
)
from fa_numba.tensor_core.shared_plan import SharedPlan
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.decode_tiling import tile_rows

RINGS = {1: (8, 6), 2: (8, 3), 3: (4, 4), 4: (4, 3)}  # by panels of 64 columns: warps, stages
RINGS_OF_BYTES = {1: (12, 3), 2: (4, 4)}  # by panels of 128 columns
LEAN_BYTES = True  # whether e4m3 is read by the LEAN kernel
PANEL_BYTES = KEYS * ROW_BYTES  # 64 columns of 16 keys
CHUNK_BYTES = 16  # of a lane's copy
ADDRESS_BYTES = 8

PAGE_BYTES = 4  # of a number in block_table
# P times a token's scale, amax / 448, is times this about amax again: float16 has digits for it.
WEIGHT = 256


def panels_of(HEAD_DIM, BYTES):
    """Panels of 128 bytes in a row of e4m3, or of 16-bit numbers."""
    return ceil_div(HEAD_DIM, ROW_BYTES if BYTES else PANEL_COLS)


def ring_of(HEAD_DIM, BYTES, ROWS=1):
    """Warps of a thread block, and stages of the ring of each."""
    if BYTES and HEAD_DIM <= ROW_BYTES and ROWS == 8:
        return 8, 5  # the states of 12 warps are larger than 48 KiB
    return (RINGS_OF_BYTES if BYTES else RINGS)[panels_of(HEAD_DIM, BYTES)]


def shared_bytes(HEAD_DIM, WARPS, STAGES, BYTES=False):
    """Dynamic shared memory of a thread block."""
    return make_plan(HEAD_DIM, WARPS, STAGES, BYTES).bytes


@functools.cache
def make_plan(HEAD_DIM, WARPS, STAGES, BYTES):
    """The `SharedPlan` of a thread block: a ring for each warp."""
    plan = SharedPlan(align=ROW_BYTES)
    stage_bytes = 2 * panels_of(HEAD_DIM, BYTES) * PANEL_BYTES  # K, then V
    plan.RINGS = plan.tiles(WARPS * STAGES, stage_bytes)
    return plan


@cuda.jit(device=True, forceinline=True)
def at(tile, chunk, j):
    """`decoding.make_products`: this lane's row of 16 keys in panels of 64 columns, swizzled."""
    return tile + j // 4 * PANEL_BYTES + (chunk ^ (j % 4 << 5))


@functools.cache
def make_flash_decode_gather(
    HEAD_DIM, DTYPE, ROWS, PAGE_SIZE, WARPS, STAGES, CAUSAL, WINDOW=(-1, -1), SOFTCAP=0.0,
    ALIBI=False, SCALES="", EXPRESSIONS=NO_EXPRESSIONS, LEAN=False, MORE_PARTS=False,
):  # fmt: skip
    """The first kernel, attention split by split: 32 · WARPS threads, `shared_bytes` of memory.

    HEAD_DIM is a multiple of 8, DTYPE "float16" or "bfloat16", ROWS 1, 2, 4 or 8. PAGE_SIZE is 0
    for a contiguous cache; it, WINDOW and SOFTCAP may be AT_RUN_TIME (`run_time_masks`).
    SCALES is "", or for caches of e4m3 "head" or "token", as in `kernels.e4m3`; then DTYPE is
    "float16" and HEAD_DIM a multiple of 16. block_table is unused for a contiguous cache,
    alibi_slopes without ALIBI, k_scale and v_scale without SCALES: each may then be any scalar.
    EXPRESSIONS, the user's mask and score, are evaluated for each pair: classes of tiles would need
    seq_lens on the host. LEAN, for e4m3, has the same results by fewer instructions: a lane reads
    all its addresses before its first copy, so that it waits once, and `make_products_of_bytes`
    is given it. With MORE_PARTS args are parts of attention to other keys, which the first split
    begins with (`make_add_parts`). Its first keys are copied while the kernel before it, which
    writes the parts, ends (`ptx.dependent_launch`).
    """
    BYTES, PER_TOKEN = SCALES != "", SCALES == "token"
    PAGED, page_and_offset = PAGE_SIZE > 0, make_page_of(max(1, PAGE_SIZE))
    BLOCK_N = KEYS * WARPS
    STEPS = ceil_div(HEAD_DIM, 16)  # products
    PIECES = HEAD_DIM // (16 if BYTES else 8)  # of 16 bytes, in a row
    LANES = 1 << (PIECES - 1).bit_length()  # that copy a row
    ROWS_AT_ONCE = 32 // LANES
    COPIES = 2 * KEYS // ROWS_AT_ONCE  # of a lane, in an iteration
    plan = make_plan(HEAD_DIM, WARPS, STAGES, BYTES)
    ALL_RINGS, shared_base = plan.RINGS, plan.shared_base
    STAGE_BYTES = ALL_RINGS.bytes // (WARPS * STAGES)
    K_BYTES = STAGE_BYTES // 2
    PENDING = STAGES - 1  # stages that may be in flight while one is read
    FRAGMENTS = (STEPS, 4)
    PAGES_SHAPE = (WARPS, STAGES, KEYS) if PAGED else (1, 1, 1)
    SCALES_SHAPE = (WARPS, STAGES, 2 * KEYS) if PER_TOKEN else (1, 1, 1)
    STATE_SHAPE = (WARPS, ROWS)
    LEAST_ROWS = ceil_div(32 * ADDRESS_BYTES, 4 * HEAD_DIM)  # with room for a warp's addresses
    PARTS_SHAPE = (WARPS, max(ROWS, LEAST_ROWS), HEAD_DIM)
    keys_of_split = make_keys_of_split(ROWS, BLOCK_N, CAUSAL, WINDOW)
    advance = make_advance(ROWS, WARPS, CAUSAL, WINDOW)
    products = make_products(HEAD_DIM, DTYPE, at)
    if BYTES:
        products = make_products_of_bytes(HEAD_DIM, at, LEAN)
    load_queries, scores, add_weighted = products
    online_softmax = make_online_softmax(
        DTYPE, CAUSAL, WINDOW, SOFTCAP, ALIBI, PER_TOKEN, EXPRESSIONS
    )
    store_rows, store_state, merge = make_merge(HEAD_DIM, ROWS, WARPS, BYTES)
    add_parts = make_add_parts(HEAD_DIM, ROWS, WARPS)

    @cuda.jit(device=True, forceinline=True)
    def key_of(place, lane):
        """This lane's key in the iteration at `place`; past the end it is the last one."""
        return min(place[N] + lane % KEYS, place[N_END] - 1)

    @cuda.jit(device=True, forceinline=True)
    def copy_pages(pages, place, table, lane):
        """Start to copy the pages of the keys of the iteration at `place`."""
        if lane < KEYS:
            block_table, page_args = table
            page, _ = page_and_offset(key_of(place, lane), page_args)
            row = global_address(block_table[uint64(place[BATCH])])
            source = row + uint64(page) * uint64(block_table.strides[1])
            cp_async_4(shared_address(pages) + PAGE_BYTES * lane, source, PAGE_BYTES)

    @cuda.jit(device=True, forceinline=True)
    def row_of(cache, page, offset, kv_head):
        return global_address(cache[uint64(page), uint64(offset), uint64(kv_head)])

    @cuda.jit(device=True, forceinline=True)
    def scale_of(scale, page, offset, kv_head):
        """Address of the scale of a key's head; that of a head alone is not in a stage."""
        start = global_address(scale[uint64(page), uint64(offset)])
        return start + uint64(kv_head) * uint64(scale.strides[2])

    @cuda.jit(device=True, forceinline=True)
    def load_stage(stage, addresses, pages, scales, ahead, caches, lane):
        """Copy rows of K, then of V: a lane gives one row's address, and copies a piece of many."""
        k_cache, v_cache, _, page_args, k_scale, v_scale = caches
        page, offset = ahead[BATCH], key_of(ahead, lane)
        if PAGED:
            _, offset = page_and_offset(offset, page_args)
            page = pages[uint64(lane % KEYS)]
        row = row_of(k_cache, page, offset, ahead[KV_HEAD])
        if lane >= KEYS:
            row = row_of(v_cache, page, offset, ahead[KV_HEAD])
        if PER_TOKEN:
            source = scale_of(k_scale, page, offset, ahead[KV_HEAD])
            if lane >= KEYS:
                source = scale_of(v_scale, page, offset, ahead[KV_HEAD])
            cp_async_4(shared_address(scales) + 4 * lane, source, 4)
        store_shared_b64(addresses + ADDRESS_BYTES * lane, row)
        cuda.syncwarp()  # all addresses are known, and the pages are read
        piece = lane % LANES
        if LEAN:
            sources = cuda.local.array(COPIES, uint64)
            for i in range(COPIES):
                r = i * ROWS_AT_ONCE + lane // LANES
                sources[i] = load_shared_b64(addresses + ADDRESS_BYTES * r)
        for i in range(COPIES):
            r = i * ROWS_AT_ONCE + lane // LANES
            if PIECES == LANES or piece < PIECES:
                tile = stage + r // KEYS * K_BYTES + piece // 8 * PANEL_BYTES + r % KEYS * ROW_BYTES
                source = sources[i] if LEAN else load_shared_b64(addresses + ADDRESS_BYTES * r)
                source += uint64(CHUNK_BYTES * piece)
                cp_async_16(tile + CHUNK_BYTES * ((piece ^ r) & 7), source, CHUNK_BYTES)

    @cuda.jit(device=True, forceinline=True)
    def load_next(ahead, far, stage, pages, scales, addresses, caches, lane, warp, seq_lens, sizes):
        """Copy the keys of the iteration at `ahead`, and the pages of that at `far`; go on."""
        if ahead[UNIT] < sizes.num_units:
            load_stage(stage, addresses, pages, scales, ahead, caches, lane)
            advance(ahead, warp, seq_lens, sizes)
        if PAGED and far[UNIT] < sizes.num_units:
            copy_pages(pages, far, caches[2:4], lane)
            advance(far, warp, seq_lens, sizes)
        cp_async_commit()  # an empty group at the end, too: stages are counted

    @cuda.jit(launch_bounds=(32 * WARPS, 1), fastmath={"contract"})
    def flash_decode_gather_kernel(
        q, k_cache, v_cache, block_table, seq_lens, out_partial, lse_partial, softmax_scale,
        alibi_slopes, page_size, page_multiplier, page_shift, left, right, unit, inverse_unit,
        k_scale, v_scale, args,
    ):  # fmt: skip
        """A thread block owns ROWS rows of a K/V head in one split, and then those of other units.

        A row is a query of a query head; the heads of a group are neighbours.

        grid      (at most num_m_tiles · num_kv_heads · num_splits · batch,); 32 · WARPS threads
        shared    ring (WARPS, STAGES, 2, 16, HEAD_DIM), in panels of 64 columns, swizzled;
                  pages of a cache with a block_table (WARPS, STAGES, 16); scales of tokens
                  (WARPS, STAGES, 2, 16); states of the warps at
                  the end: acc (WARPS, ROWS, HEAD_DIM), before that addresses of the rows of a
                  stage (WARPS, 32); m_i, l_i (WARPS, ROWS)
        private   Q, acc (HEAD_DIM / 16, 4), k (2, 2), v (4,), s (2, 4), p (2,), m_i, l_i
        HBM       K and V once per tile of rows, except the tiles that none of them sees; Q,
                  out_partial, lse_partial once per split; block_table once per key and tile of rows
        paper     FlashAttention-2, Algorithm 1, over a part of the keys;
                  PagedAttention, section 4.1
        budget    168 registers; 198 to 227 KiB shared, one thread block per SM (HEAD_DIM=128)
        """
        parts = cuda.shared.array(PARTS_SHAPE, float32, ADDRESS_BYTES)  # at multiples of it
        m_parts = cuda.shared.array(STATE_SHAPE, float32)
        l_parts = cuda.shared.array(STATE_SHAPE, float32)
        states = States(parts, m_parts, l_parts)
        all_pages = cuda.shared.array(PAGES_SHAPE, int32)
        all_scales = cuda.shared.array(SCALES_SHAPE, float32)
        q_reg = cuda.local.array(FRAGMENTS, uint32)
        acc = cuda.local.array(FRAGMENTS, float32)  # rows of out, not yet divided by l_i
        k = cuda.local.array((2, 2), uint32)
        v = cuda.local.array(4, uint32)
        s = cuda.local.array((2, 4), float32)
        weights = cuda.local.array((2, 2), float32)  # of values, with scales of tokens
        p = cuda.local.array(2, uint32)
        ahead = cuda.local.array(AHEAD_LENGTH, int32)  # the iteration whose keys are copied next
        far = cuda.local.array(AHEAD_LENGTH, int32)  # the iteration whose pages are copied next

        page_args = Pages(page_size, page_multiplier, page_shift)
        mask_args = MaskArgs(left, right, unit, inverse_unit)
        tid = cuda.threadIdx.x
        lane, warp = tid & 31, warp_of(tid)
        ring = shared_base() + ALL_RINGS.start + warp * STAGES * STAGE_BYTES
        addresses = shared_address(parts[uint64(warp)])  # safe: no warp reads parts meanwhile
        pages = all_pages[uint64(warp if PAGED else 0)]
        scales = all_scales[uint64(warp if PER_TOKEN else 0)]

        batch, seqlen_q, num_heads, _ = q.shape
        num_kv_heads, num_splits = k_cache.shape[2], lse_partial.shape[0]
        group_size, _ = divide(num_heads, num_kv_heads)
        num_m_tiles, _ = divide(seqlen_q * group_size + ROWS - 1, ROWS)
        num_units = num_m_tiles * num_kv_heads * num_splits * batch
        sizes = Sizes(
            seqlen_q, group_size, num_m_tiles, num_kv_heads, num_splits, num_units, mask_args
        )

        # For ldmatrix, in each 16 columns: this lane's row, in one of two chunks of 8.
        lane_row = ((lane & 7) + 8 * (lane >> 4)) * ROW_BYTES
        swizzled = ((lane >> 3 & 1) ^ (lane & 7)) << 4

        caches = (k_cache, v_cache, block_table, page_args, k_scale, v_scale)
        for place in (ahead, far):
            place[UNIT] = int32(cuda.blockIdx.x) - int32(cuda.gridDim.x)
            place[N], place[N_END] = 0, 0
            advance(place, warp, seq_lens, sizes)
        if PAGED:
            for i in range(STAGES):
                if far[UNIT] < num_units:
                    copy_pages(pages[i], far, caches[2:4], lane)
                    advance(far, warp, seq_lens, sizes)
            cp_async_commit()
            cp_async_wait(0)
            cuda.syncwarp()  # the pages that other lanes copied are there, too
        for i in range(STAGES):
            stage = ring + i * STAGE_BYTES
            of_stage, its_scales = pages[i if PAGED else 0], scales[i if PER_TOKEN else 0]
            load_next(
                ahead, far, stage, of_stage, its_scales, addresses, caches, lane, warp, seq_lens,
                sizes,
            )  # fmt: skip
            cuda.syncwarp()  # the addresses are read: safe to overwrite
        if MORE_PARTS:
            wait_for_kernel_before()  # which writes the parts, and nothing that was read till here

        stage_index = 0
        for index in range(cuda.blockIdx.x, num_units, cuda.gridDim.x):
            unit = unit_of(index, sizes)
            b, split, kv_head, m_tile = unit
            seqlen_k = seq_lens[b]
            n_first, n_end = keys_of_split(
                split, num_splits, m_tile, seqlen_q, seqlen_k, group_size, mask_args
            )
            m, head = divide(m_tile * ROWS + (lane >> 2), group_size)  # of this lane's scores
            head += kv_head * group_size
            is_query = lane >> 2 < ROWS and m < seqlen_q
            position = m + seqlen_k - seqlen_q  # among the keys: the last query is at the last key
            slope = alibi_slopes[head] if ALIBI and is_query else ZERO
            load_queries(q_reg, q, b, m, head, is_query, lane)
            for j in range(STEPS):
                for i in range(4):
                    acc[j, i] = ZERO
            m_i = NEG_INF
            l_i = ZERO  # of this lane's keys alone
            if MORE_PARTS:
                if split == 0:
                    rows = b, m_tile * ROWS, kv_head, group_size, seqlen_q
                    m_i, l_i = add_parts(acc, m_i, l_i, args, warp, lane, *rows)
            scale, out_scale = softmax_scale, ONE
            if SCALES == "head":
                scale, out_scale = softmax_scale * k_scale[kv_head], v_scale[kv_head]
            if PER_TOKEN:
                out_scale = float32(1 / WEIGHT)

            for n in range(n_first + KEYS * warp, n_end, BLOCK_N):
                stage = ring + stage_index * STAGE_BYTES
                cp_async_wait(PENDING)
                cuda.syncwarp()  # the other lanes' copies are complete, too: safe to read
                scores(s, q_reg, k, stage + lane_row, swizzled)  # S = Q Kᵀ               line 8
                its_scales = scales[uint64(stage_index if PER_TOKEN else 0)]
                if PER_TOKEN:
                    for t in range(2):
                        for c in range(2):
                            key = 8 * t + 2 * (lane & 3) + c
                            s[t, c] *= its_scales[key]
                            weights[t, c] = its_scales[KEYS + key] * float32(WEIGHT)
                of_row = b, head, position
                m_i, l_i, alpha = online_softmax(
                    s, p, m_i, l_i, n, of_row, seqlen_k, slope, scale, lane, mask_args, args,
                    weights,
                )  # fmt: skip
                v_tile = stage + K_BYTES + lane_row
                add_weighted(acc, v, p, alpha, v_tile, swizzled, lane)  # out += P V      line 10
                cuda.syncwarp()  # the warp has read this stage: safe to overwrite
                of_stage = pages[uint64(stage_index if PAGED else 0)]
                load_next(
                    ahead, far, stage, of_stage, its_scales, addresses, caches, lane, warp,
                    seq_lens, sizes,
                )  # fmt: skip
                stage_index = stage_index + 1 if stage_index < STAGES - 1 else 0

            if BYTES:
                for j in range(STEPS):
                    for i in range(4):
                        acc[j, i] *= out_scale
            store_rows(parts, acc, tid)
            store_state(states, m_i, l_i, tid)
            cuda.syncthreads()  # the states of all warps are there: safe to merge
            merge(states, out_partial, lse_partial, unit, group_size, seqlen_q, tid)
            cuda.syncthreads()  # merged: safe to overwrite

    flash_decode_gather_kernel.begins_early = MORE_PARTS
    return flash_decode_gather_kernel


@arrays.replayed
@checks.takes(checks.DECODING)
def flash_decode_gather(q, k_cache, v_cache, seq_lens, *, k_scale=None, v_scale=None, **options):
    """Flash-Decoding of a contiguous or paged KV cache of 16 or 8 bits, gathered row by row.

    Parameters
    ----------
    q : GPU array of shape (batch, seqlen_q, num_heads, head_dim), float16 or bfloat16
    k_cache, v_cache : GPU arrays, dtype of q
        Of shape (batch, max_len, num_kv_heads, head_dim), or with a block_table (num_pages,
        page_size, num_kv_heads, head_dim). Any strides that are multiples of 16 bytes, with a
        contiguous last axis; head_dim a multiple of 8, up to 256. With scales they are uint8, the
        bytes of e4m3, q is float16 and head_dim a multiple of 16.
    seq_lens, block_table, causal, window_size, softcap, alibi_slopes, softmax_scale, mask, \
    mask_args, score, score_args, sinks
        As for `flash_decode_wide`.
    k_scale, v_scale : float32 arrays, default=None
        As for `flash_decode`.
    num_splits : int, default=0
        0: `fa_numba.tiling.num_splits.choose_even_splits` chooses it.

    Returns
    -------
    out, lse : arrays
        As of `flash_decode`.

    Raises
    ------
    RuntimeError
        On a GPU other than Hopper.
    """
    given, scales = (q, k_cache, v_cache, seq_lens), (k_scale, v_scale)
    problem = check_on_tensor_cores(
        "flash_decode_gather", forward.HOPPER, *given, scales=scales, **options
    )
    kernel, more = first_kernel(problem, *scales)
    return launch(problem, *kernel, **more)


def first_kernel(problem, k_scale=None, v_scale=None, parts=()):
    """The first kernel for a problem, as `decode_problem.launch` takes it.

    `parts` are (out_partial, lse_partial) of other keys, or none; not with the user's functions.

    Returns
    -------
    (kernel, grid, threads, num_splits)
    more : dict
        Further arguments by name.
    """
    head_dim = problem.q.shape[3]
    rows = tile_rows(problem.num_rows)
    form, *scales = e4m3.scales_of(k_scale, v_scale)
    warps, stages = ring_of(head_dim, form != "", rows)
    page_size, *options = problem.constants
    options += form, problem.scores.expressions
    kernel = make_flash_decode_gather(
        head_dim, arrays.dtype_name(problem.q), rows, page_size, warps, stages, *options,
        LEAN=LEAN_BYTES and form != "", MORE_PARTS=bool(parts),
    )  # fmt: skip
    num_splits, grid = splits_and_grid(problem, rows, warps)
    size = shared_bytes(head_dim, warps, stages, form != "")
    more = {"shared_bytes": size, "more": (*scales, parts or problem.scores.expression_args)}
    return (kernel, grid, 32 * warps, num_splits), more
