"""flash_attn_ws with thread blocks that stay, and take one tile of queries after the other.

flash_attn_mma         a warp multiplies tiles in registers; cp.async fetches the next
flash_attn_wgmma       four warps multiply tiles in shared memory; TMA fetches the next
flash_attn_ws          a warp of its own fetches; the next tile's Q Kᵀ beside this one's P V
flash_attn_persistent  the next queries are on their way before these are done       <- this file

In flash_attn_ws every tile of queries begins with a thread block's start and a wait for Q and K,
and ends with stores that the next one waits for. With few keys that is much of the time. Here

- there is one thread block per SM, and it works through many tiles of queries. Three producers, for
  Q, for K and for V, go on to the next one's while the consumers are still at this one; none waits
  for another's place;
- out goes as Q came: through shared memory, by TMA, while the next queries begin;
- under a causal mask long and short tiles of queries are dealt out so that every thread block has
  about the same work without asking for it (`analysis.persistent_tiling`).

What a warpgroup does with a tile of keys is in `turns`, which the kernel for packed batches shares.

Masks are compile-time constants: without one the machine code has nothing of it. Tiles of keys that
no row sees are not loaded, a warpgroup passes over those that none of its own rows sees, and what a
row may not see is masked in those tiles alone where there is something to mask. Without a mask that
is the last one: for more than 64 columns and up to 128 it comes first, and the loop over the others
masks nothing; elsewhere that gains nothing (benchmarks/NOTES.md). The softmax is that of
`lazy_softmax`: a row's maximum seldom rises; softcap goes into the exponents.

ALiBi is added by the tensor cores (`alibi`); in tiles with keys to both sides of a row, and after a
softcap, by `fragments`. Where the slope is steep most keys hardly count. So, without a window to
the left, the tile in which the queries stand comes before the others: it has the maxima, which then
seldom rise; and a warp that finds all of a tile far below them takes its P for 0 and has no
exponentials to do.

On an H200 at n = 4096 head_dim 128 takes 705 (648) TFLOP/s and 64 takes 540 (473); cuDNN 652 (554)
and 486 (436) beside it. At n = 512 head_dim 128 has 541 (352) to cuDNN's 515 (332), 64 has 414
(268) to 391 (260); float16, causal in brackets; benchmarks/results/tensor_core.json.

Paper: Shah et al. 2024, FlashAttention-3, arXiv:2407.08608.
"""

import functools

import numpy as np
from numba import cuda, float32, int32, uint32

from fa_numba import checks
from fa_numba.constants import FULL_WARP, LOG2_E
from fa_numba.ptx import mbarrier
from fa_numba.ptx.barriers import named_barrier_sync, setmaxnreg_dec, setmaxnreg_inc
from fa_numba.ptx.layouts import PANEL_COLS, ROW_BYTES
from fa_numba.ptx.mbarrier import (
    fence_mbarrier_init,
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    phase,
)
from fa_numba.ptx.tma import make_load_tile, tma_store_wait_read
from fa_numba.ptx.wgmma import descriptor, descriptor_bits
from fa_numba.runtime import arrays
from fa_numba.runtime.tensor_maps import tensor_map
from fa_numba.tensor_core import forward
from fa_numba.tensor_core.alibi import (
    RAMP_BITS,
    ramp_bytes,
    slope_pieces,
    tilted_and_one_sided,
    write_ramp,
)
from fa_numba.tensor_core.forward import HOPPER
from fa_numba.tensor_core.fragments import make_bend_tile, make_fragment_functions, make_store_tile
from fa_numba.tensor_core.mainloop import make_ring, make_tiles_of, make_turns
from fa_numba.tensor_core.shared_plan import SharedPlan, init_rings
from fa_numba.tensor_core.tile_scheduler import divided, m_tile_of
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.persistent_tiling import ROWS, choose_num_slices, persistent_tiling

# For 2 and 3 consumers: registers of a producer's and of a consumer's thread. An SM has 65536, and
# each warpgroup 128 threads: 128 · (40 + 2 · 232), 128 · (32 + 3 · 160).
REGISTERS = {2: (40, 232), 3: (32, 160)}


def shared_plan(HEAD_DIM, TILING, ALIBI=False):
    """Dynamic shared memory of a thread block."""
    CONSUMERS, BLOCK_N, STAGES, SLOTS, _ = TILING
    row_bytes = ceil_div(HEAD_DIM, PANEL_COLS) * ROW_BYTES
    slot_bytes, kv_bytes = CONSUMERS * ROWS * row_bytes, BLOCK_N * row_bytes
    plan = SharedPlan()
    plan.Q = plan.tiles(SLOTS, slot_bytes)
    plan.OUT = plan.tiles(1, slot_bytes) if SLOTS > 1 else plan.Q
    plan.K, plan.V = plan.tiles(STAGES, kv_bytes), plan.tiles(STAGES, kv_bytes)
    plan.Q_RING, plan.K_RING, plan.V_RING = map(plan.ring, (SLOTS, STAGES, STAGES))
    plan.RAMP = plan.region(ALIBI * ramp_bytes(BLOCK_N))
    return plan


def shared_bytes(HEAD_DIM, CONSUMERS, BLOCK_N, STAGES, SLOTS, ALIBI=False):
    """Dynamic shared memory that a thread block asks for."""
    return shared_plan(HEAD_DIM, (CONSUMERS, BLOCK_N, STAGES, SLOTS, True), ALIBI).bytes


@functools.cache
def make_flash_attn_persistent(
    HEAD_DIM, TILING, CAUSAL, DTYPE, WINDOW=(-1, -1), SOFTCAP=0.0, ALIBI=False
):
    """The kernel for these compile-time constants; `shared_bytes` of shared memory.

    128 threads for each of TILING's consumers (`PersistentTiling`) and for the producer. HEAD_DIM
    is a multiple of 8, DTYPE "float16" or "bfloat16". Without ALIBI the argument alibi_slopes is
    not looked at, and may be any scalar.
    """
    CONSUMERS, BLOCK_N, STAGES, SLOTS, _ = TILING
    BLOCK_M = ROWS * CONSUMERS
    THREADS = 128 * (CONSUMERS + 1)
    COLS = 16 * ceil_div(HEAD_DIM, 16)  # that are multiplied; those from HEAD_DIM on hold 0
    NUM_PANELS = ceil_div(HEAD_DIM, 64)  # of 64 columns, as TMA and wgmma have a tile
    Q_BYTES = NUM_PANELS * ROWS * ROW_BYTES  # of one consumer
    SLOT_BYTES = CONSUMERS * Q_BYTES
    ROW_MAJOR = descriptor_bits()  # Q: its rows lie along the sum
    S_SHAPE, P_SHAPE, OUT_SHAPE = (BLOCK_N // 8, 4), (BLOCK_N // 16, 4), (COLS // 8, 4)
    plan = shared_plan(HEAD_DIM, TILING, ALIBI)
    Q, OUT, K, V, RAMP = plan.Q, plan.OUT, plan.K, plan.V, plan.RAMP
    Q_RING, K_RING, V_RING = plan.Q_RING, plan.K_RING, plan.V_RING
    shared_base = plan.shared_base
    BARRIER = mbarrier.BYTES
    PRODUCER_REGISTERS, CONSUMER_REGISTERS = REGISTERS[CONSUMERS]
    pack = forward.pack_of(DTYPE)
    clear, *_ = make_fragment_functions(BLOCK_N, COLS, pack)
    unit_of, _ = make_bend_tile(BLOCK_N, CAUSAL, WINDOW, SOFTCAP, ALIBI)
    tiles_of = make_tiles_of(BLOCK_N, CAUSAL, WINDOW)
    after, fetch, pass_over = make_ring(HEAD_DIM, TILING)
    first_turn, inner_turn, edge_turn, whole_tiles, add_last, finish_product = make_turns(
        HEAD_DIM, TILING, CAUSAL, DTYPE, WINDOW, SOFTCAP, ALIBI
    )
    TILTED, ONE_SIDED = tilted_and_one_sided(CAUSAL, WINDOW, SOFTCAP, ALIBI)
    RAMP_BYTES = ramp_bytes(BLOCK_N)
    OUT_IN_Q = SLOTS == 1
    LEFT = WINDOW[0] >= 0
    # Without a mask only the last tile has something to mask: it comes first, the loop masks none.
    # For these head_dims alone: measured, benchmarks/NOTES.md.
    LAST_FIRST = not (CAUSAL or ALIBI) and WINDOW == (-1, -1) and CONSUMERS == 2 and HEAD_DIM <= 128
    REORDERED = LAST_FIRST or (ALIBI and not LEFT)  # in a window no key is far
    load_tile = make_load_tile(NUM_PANELS)
    finish_rows, store_tile = make_store_tile(HEAD_DIM, pack)
    wait = mbarrier.wait_function()

    @cuda.jit(device=True, forceinline=True)
    def first_of(m_start, end, seqlen_q, seqlen_k):
        """Which of so many tiles of keys is first: that in which these rows begin, or the last."""
        if LAST_FIRST:
            return int32(end - 1)
        return max(min(int32((m_start + seqlen_k - seqlen_q) // BLOCK_N), int32(end - 1)), int32(0))

    @cuda.jit(device=True, forceinline=True)
    def load_queries(queries, m_start, head, b, work, q_map, q_tile, q_full, q_empty):
        """Once there is room, say which queries are next, and start their copy."""
        slot = queries % SLOTS
        full = q_full + slot * BARRIER
        wait(q_empty + slot * BARRIER, phase(queries, SLOTS) ^ 1)
        work[slot, 0] = m_start
        work[slot, 1] = head
        work[slot, 2] = b
        work[slot, 3] = 1
        mbarrier_arrive_expect_tx(full, SLOT_BYTES)
        for w in range(CONSUMERS):
            q_rows = q_tile + slot * SLOT_BYTES + w * Q_BYTES
            load_tile(q_rows, ROWS, q_map, m_start + ROWS * w, head, b, full)

    @cuda.jit(fastmath=True, launch_bounds=(THREADS, 1))
    def flash_attn_persistent_kernel(
        q_map, k_map, v_map, out_map, lse, seqlen_k, group_size, num_shares, scale, alibi_slopes
    ):
        """A thread block works through tiles of queries, each with its tiles of K and V.

        The maps are addresses (`tensor_maps`), with boxes of 64 rows of q, BLOCK_N of k and v, 16
        of out. A head has num_shares shares (`persistent_tiling`). scale is softmax_scale · log2 e.

        grid      (at most one per SM,); warpgroup 0 loads, the others compute
        shared    q_tile (SLOTS, CONSUMERS, 64, HEAD_DIM); out_tile (CONSUMERS, 64, HEAD_DIM), which
                  is q_tile where that has one slot;
                  k_tile, v_tile (STAGES, BLOCK_N, HEAD_DIM), in panels of 64 columns, swizzled;
                  work (SLOTS, 4): which queries Q are; barriers: full and empty for each slot of
                  Q, each stage of K, and of V; with ALIBI a ramp (`alibi`)
        private   s (BLOCK_N / 8, 4), p (BLOCK_N / 16, 4), acc (HEAD_DIM / 8, 4); m_i, l_i, alpha,
                  inverse, offset for two rows
        HBM       Q, out, lse once; K and V once per tile of queries, but for the tiles that none
                  of them sees
        paper     FlashAttention-3, Algorithm 2
        budget    168 registers at the start with 2 consumers, 128 with 3; then REGISTERS. One
                  thread block per SM
        """
        work = cuda.shared.array((SLOTS, 4), int32)  # first row, head, batch, 1; or 0: no more
        base = shared_base()
        q_tile, q_full, q_empty = base + Q.start, base + Q_RING.full, base + Q_RING.empty
        k_tile, k_full = base + K.start, base + K_RING.full
        v_tile, v_full, v_empty = base + V.start, base + V_RING.full, base + V_RING.empty
        out_tile, ramp_start = base + OUT.start, uint32(base + RAMP.start)

        tid = cuda.threadIdx.x
        warpgroup = tid >> 7
        num_heads, seqlen_q = lse.shape[1], lse.shape[2]

        if tid == 0:
            init_rings(base, (Q_RING,), 4 * CONSUMERS)  # a lane of each warp
            init_rings(base, (K_RING, V_RING), 4 * CONSUMERS)
            fence_mbarrier_init()
        if TILTED:
            write_ramp(ramp_start, RAMP_BYTES, int32(tid), THREADS)
        cuda.syncthreads()  # the barriers are made: safe to wait on

        if warpgroup == 0:
            setmaxnreg_dec(PRODUCER_REGISTERS)
            if tid in (0, 32, 64):  # a thread for Q, one for K, one for V
                kv_map = k_map if tid == 32 else v_map
                kv_tile = k_tile if tid == 32 else v_tile
                kv_full = k_full if tid == 32 else v_full
                num_m_tiles = int32((int32(seqlen_q) + BLOCK_M - 1) // BLOCK_M)
                num_units = int32(num_shares * num_heads * lse.shape[0])  # shares of all heads
                queries = int32(0)  # passed so far
                stage, was_empty = int32(0), int32(1)  # the next tile's place in the ring
                # units of the rounds before; this one's place in the round, to and fro
                dealt, place = int32(0), int32(cuda.blockIdx.x)
                while dealt + place < num_units:
                    rest, share = divided(dealt + place, num_shares)
                    b, head = divided(rest, num_heads)
                    kv_head, _ = divided(head, group_size)
                    dealt = int32(dealt + cuda.gridDim.x)
                    place = int32(cuda.gridDim.x - 1 - place)
                    step = int32(0)
                    m_tile = m_tile_of(step, share, num_shares, num_m_tiles)
                    while m_tile >= 0:
                        m_start = int32(m_tile * BLOCK_M)
                        if tid == 0:
                            load_queries(
                                queries, m_start, head, b, work, q_map, q_tile, q_full, q_empty
                            )
                            queries = int32(queries + 1)
                        else:
                            turn, end = tiles_of(m_start, BLOCK_M, seqlen_q, seqlen_k)
                            begin = first_of(m_start, end, seqlen_q, seqlen_k)
                            while turn < end:
                                tile = turn  # where REORDERED `begin`, 0, 1, and so on
                                if REORDERED and turn <= begin:
                                    tile = begin if turn == 0 else int32(turn - 1)
                                to = kv_tile, kv_full, stage, was_empty
                                fetch(kv_map, 0, tile, kv_head, b, *to)
                                stage, was_empty = after(stage, was_empty)
                                turn = int32(turn + 1)
                        step = int32(step + 1)
                        m_tile = m_tile_of(step, share, num_shares, num_m_tiles)
                if tid == 0:
                    slot = queries % SLOTS
                    wait(q_empty + slot * BARRIER, phase(queries, SLOTS) ^ 1)
                    work[slot, 3] = 0
                    mbarrier_arrive(q_full + slot * BARRIER)
        else:
            setmaxnreg_inc(CONSUMER_REGISTERS)
            s = cuda.local.array(S_SHAPE, float32)
            p = cuda.local.array(P_SHAPE, uint32)
            acc = cuda.local.array(OUT_SHAPE, float32)
            m_i = cuda.local.array(2, float32)
            l_i = cuda.local.array(2, float32)
            alpha = cuda.local.array(2, float32)
            inverse = cuda.local.array(2, float32)
            offset = cuda.local.array(2, float32)
            lane = tid & 31
            warp_row = int32((tid >> 5 & 3) * 16)  # in the warpgroup's rows
            # Which of a tile's parts of ROWS rows is the warpgroup's. By a shuffle, so that ptxas
            # knows it as the same for a whole warp: what follows from it is kept once for a warp.
            part = int32(cuda.shfl_sync(FULL_WARP, warpgroup, 0) - 1)
            out_rows = uint32(out_tile + part * Q_BYTES + warp_row * ROW_BYTES)

            unit = unit_of(scale)  # what one of s is worth
            registers = s, p, acc, m_i, l_i, alpha, offset
            rings = k_tile, k_full, v_tile, v_full
            queries = int32(0)  # passed so far
            stage, parity = int32(0), int32(0)  # the next tile's place in the rings
            while True:
                slot = int32(queries % SLOTS)
                wait(q_full + slot * BARRIER, phase(queries, SLOTS))
                if work[slot, 3] == 0:
                    break
                m_start = work[slot, 0]
                m = int32(m_start + part * ROWS)  # the warpgroup's first row
                wg_position = int32(m + seqlen_k - seqlen_q)
                position = int32(wg_position + warp_row + (lane >> 2))
                slope = alibi_slopes[work[slot, 1]] if ALIBI else float32(0)
                pieces = slope_pieces(slope * (LOG2_E / scale), lane) if TILTED else uint32(0)
                bend = slope, scale, pieces, descriptor(RAMP_BITS, ramp_start), wg_position
                q = descriptor(ROW_MAJOR, uint32(q_tile + slot * SLOT_BYTES + part * Q_BYTES))
                clear(acc, m_i, l_i)

                n_tile, end = tiles_of(m, ROWS, seqlen_q, seqlen_k)
                n_start = int32(n_tile * BLOCK_N)
                # A part without a row takes one tile, and passes over the others.
                n_end = int32(n_start + BLOCK_N if m >= seqlen_q else end * BLOCK_N)
                first_start = int32(first_of(m_start, end, seqlen_q, seqlen_k) * BLOCK_N)
                first_whole, last_whole = whole_tiles(wg_position, seqlen_k)
                if LEFT:
                    first, _ = tiles_of(m_start, BLOCK_M, seqlen_q, seqlen_k)
                    stage, parity = pass_over(n_tile - first, stage, parity, k_full, v_full, lane)

                n = first_start if REORDERED else n_start
                tile = stage, parity, q, n, position, seqlen_k
                first_turn(registers, rings, *tile, bend, lane)
                n_start = int32(n_start + BLOCK_N)
                while n_start < n_end:
                    n = n_start
                    if REORDERED and n_start <= first_start:  # one later, for the first
                        n = int32(n_start - BLOCK_N)
                    tile = stage, parity, q, n, position, seqlen_k
                    edge = not LAST_FIRST and (n < first_whole or n > last_whole)
                    if TILTED and not ONE_SIDED:  # keys to both sides of some row
                        after_first = n + BLOCK_N - 1 > wg_position
                        edge = edge or (after_first and n < wg_position + ROWS - 1)
                    if edge:
                        stage, parity = edge_turn(registers, rings, *tile, bend, lane)
                    else:
                        stage, parity = inner_turn(registers, rings, *tile, bend, lane)
                    n_start = int32(n_start + BLOCK_N)

                add_last(registers, rings, stage, parity)
                # Read once more, which is no work beside P V and leaves the loop its registers.
                m_start, head, b = work[slot, 0], work[slot, 1], work[slot, 2]
                cuda.syncwarp()  # all lanes have read work: safe to overwrite
                if lane == 0 and not OUT_IN_Q:
                    mbarrier_arrive(q_empty + slot * BARRIER)  # work and Q are read
                m_warp = int32(m_start + part * ROWS + warp_row)
                finish_rows(m_i, l_i, inverse, lse, b, head, m_warp, lane, unit)
                finish_product(acc, p, v_empty + stage * BARRIER, lane)
                stage, parity = after(stage, parity)
                if OUT_IN_Q:
                    named_barrier_sync(warpgroup, 128)  # its warps have read Q: safe to overwrite
                store_tile(acc, inverse, out_rows, out_map, m_warp, seqlen_q, head, b, lane)
                if lane == 0 and OUT_IN_Q:
                    tma_store_wait_read(0)
                    mbarrier_arrive(q_empty + slot * BARRIER)  # work is read, and out copied
                _, end = tiles_of(m_start, BLOCK_M, seqlen_q, seqlen_k)
                rest = int32(end - n_start // BLOCK_N)
                stage, parity = pass_over(rest, stage, parity, k_full, v_full, lane)
                queries = int32(queries + 1)
            if lane == 0:
                tma_store_wait_read(0)  # shared memory lives as long as the thread block

    return flash_attn_persistent_kernel


@arrays.replayed
def flash_attn_persistent(
    q,
    k,
    v,
    *,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    softmax_scale=None,
):
    """FlashAttention-3, forward, by thread blocks that stay: float16, bfloat16 on Hopper GPUs.

    Parameters
    ----------
    q : GPU array of shape (batch, seqlen_q, num_heads, head_dim), float16 or bfloat16
    k, v : GPU arrays of shape (batch, seqlen_k, num_kv_heads, head_dim), dtype of q
        num_heads is a multiple of num_kv_heads (MHA, GQA, MQA). Any strides that are multiples of
        16 bytes, with a contiguous last axis; head_dim a multiple of 8, up to 256.
    causal : bool, default=False
        Bottom-right aligned: seqlen_q=2, seqlen_k=5 keeps  1 1 1 1 0 / 1 1 1 1 1.
    window_size, softcap, alibi_slopes
        As for `flash_attn_v2`.
    softmax_scale : float, default=1/√head_dim
        Positive.

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
        On a GPU that has no wgmma.
    """
    out, lse, causal, scale = forward.prepare(
        "flash_attn_persistent", q, k, v, causal, softmax_scale, HOPPER
    )
    mask, slopes = checks.check_mask(q, causal, window_size, softcap, alibi_slopes)
    if 0 in (q.shape[1], k.shape[1]):  # out is 0, lse is −inf already
        return out, lse
    batch, seqlen_q, num_heads, head_dim = q.shape
    _, seqlen_k, num_kv_heads, _ = k.shape
    causal, *rest = mask
    tiling = persistent_tiling(head_dim, seqlen_k, causal)
    kernel = make_flash_attn_persistent(head_dim, tiling, causal, arrays.dtype_name(q), *rest)
    consumers, block_n, *_ = tiling
    num_sms = arrays.num_sms(q)
    cut = seqlen_q, seqlen_k, ROWS * consumers, block_n, *mask[:2], consumers
    num_shares = choose_num_slices(batch * num_heads, num_sms, *cut)
    grid = (min(num_shares * batch * num_heads, num_sms),)
    maps = tensor_map(q, 64), tensor_map(k, block_n), tensor_map(v, block_n), tensor_map(out, 16)
    sizes = np.int32(seqlen_k), np.int32(num_heads // num_kv_heads), np.int32(num_shares)
    size = shared_bytes(head_dim, *tiling[:4], ALIBI=mask[3])
    threads = (128 * (consumers + 1),)
    arrays.launch(kernel, grid, threads, *maps, lse, *sizes, scale, slopes, shared_bytes=size)
    return out, lse
