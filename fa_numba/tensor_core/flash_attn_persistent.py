"""Persistent FlashAttention-3 forward: one thread block per SM loops over query tiles.

flash_attn_mma         a warp multiplies tiles in registers; cp.async fetches the next
flash_attn_wgmma       four warps multiply tiles in shared memory; TMA fetches the next
flash_attn_ws          a warp of its own fetches; the next tile's Q Kᵀ beside this one's P V
flash_attn_persistent  the next queries are in flight before these are done          <- this file

In flash_attn_ws every query tile begins with a thread block's start and a wait for Q and K, and
ends with stores for which the next thread block waits. With few keys that takes much of the time.
Here

- one thread block per SM loops over many query tiles. Three producer threads, for Q, K and V, load
  the next tiles while the consumers still compute; none of them waits for another's buffers;
- out goes through shared memory and TMA, like Q, while the next query tile begins;
- a static tile scheduler assigns work slices in snake order, so that every thread block has about
  the same work under a causal mask (`tiling.persistent_tiling`, `tile_scheduler`).

`mainloop` holds the iterations over tiles of keys; flash_attn_persistent_varlen shares it. The
softmax rescales lazily (`lazy_rescaling`). Tiles that no row sees are not loaded, and a warpgroup
skips tiles that none of its own rows sees.

Without a mask only the last key tile needs masking. For 64 < head_dim ≤ 128 it is processed first,
so the main loop has no masking; for other sizes this gained nothing (docs/notes/forward.md).

On an H200 at n = 4096 head_dim 128 takes 705 (648) TFLOP/s and 64 takes 540 (473); cuDNN 652 (554)
and 486 (436) beside it. At n = 512 head_dim 128 has 541 (352) to cuDNN's 515 (332), 64 has 414
(268) to 391 (260); float16, causal in brackets; benchmarks/results/tensor_core.json.

Paper: Shah et al. 2024, FlashAttention-3, arXiv:2407.08608.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, int32, uint32

from fa_numba import checks
from fa_numba.checks import HOPPER, TensorCores
from fa_numba.constants import FULL_WARP
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
from fa_numba.tensor_core.alibi import alibi_flags, ramp_bytes, write_ramp
from fa_numba.tensor_core.fragments import (
    make_fragment_functions,
    make_score_mod,
    make_store_tile,
)
from fa_numba.tensor_core.mainloop import (
    KVRings,
    Registers,
    make_mainloop,
    make_plan,
    make_ring,
    make_tiles_of,
)
from fa_numba.tensor_core.shared_plan import init_rings
from fa_numba.tensor_core.tile_scheduler import (
    BATCH,
    HEAD,
    M_START,
    MORE,
    WORK_LENGTH,
    make_for_each_tile,
)
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.persistent_tiling import ROWS, choose_num_slices, persistent_tiling

REQUIREMENTS = TensorCores("flash_attn_persistent", HOPPER)
# For 2 and 3 consumers: registers of a producer's and of a consumer's thread. An SM has 65536, and
# each warpgroup 128 threads: 128 · (40 + 2 · 232), 128 · (32 + 3 · 160).
REGISTERS = {2: (40, 232), 3: (32, 160)}


class Loads(NamedTuple):
    """Arguments of a producer's thread; of_q is True for Q's thread, the others load K or V."""

    of_q: Any
    q_map: Any
    kv_map: Any
    kv_tile: Any
    kv_full: Any
    work: Any
    base: Any
    seqlen_q: Any
    seqlen_k: Any


@functools.cache
def make_flash_attn_persistent(
    HEAD_DIM, TILING, CAUSAL, DTYPE, WINDOW=(-1, -1), SOFTCAP=0.0, ALIBI=False
):
    """The kernel for these compile-time constants; `mainloop.make_plan` lays out its memory.

    128 threads for each of TILING's consumers (`PersistentTiling`) and for the producer. HEAD_DIM
    is a multiple of 8, DTYPE "float16" or "bfloat16". Without ALIBI the argument alibi_slopes is
    not read, and may be any scalar.
    """
    CONSUMERS, BLOCK_N = TILING.consumers, TILING.block_n
    SLOTS = TILING.slots
    BLOCK_M = ROWS * CONSUMERS
    THREADS = 128 * (CONSUMERS + 1)
    COLS = 16 * ceil_div(HEAD_DIM, 16)  # multiplied; zero-padded from HEAD_DIM on
    NUM_PANELS = ceil_div(HEAD_DIM, PANEL_COLS)  # of 64 columns, as TMA and wgmma have a tile
    Q_BYTES = NUM_PANELS * ROWS * ROW_BYTES  # of one consumer
    SLOT_BYTES = CONSUMERS * Q_BYTES
    ROW_MAJOR = descriptor_bits()  # Q: its rows lie along the sum
    S_SHAPE, P_SHAPE, OUT_SHAPE = (BLOCK_N // 8, 4), (BLOCK_N // 16, 4), (COLS // 8, 4)
    WORK_SHAPE = SLOTS, WORK_LENGTH
    plan = make_plan(HEAD_DIM, TILING, ALIBI)
    Q, OUT, K, V, RAMP = plan.Q, plan.OUT, plan.K, plan.V, plan.RAMP
    Q_RING, K_RING, V_RING = plan.Q_RING, plan.K_RING, plan.V_RING
    shared_base = plan.shared_base
    BARRIER = mbarrier.BYTES
    PRODUCER_REGISTERS, CONSUMER_REGISTERS = REGISTERS[CONSUMERS]
    ON_TENSOR_CORES = alibi_flags(CAUSAL, WINDOW, SOFTCAP, ALIBI).on_tensor_cores
    RAMP_BYTES = ramp_bytes(BLOCK_N)
    OUT_IN_Q = SLOTS == 1
    LEFT = WINDOW[0] >= 0
    # Without a mask only the last key tile needs masking: it comes first, and the loop masks none.
    # Measured to gain for these head_dims alone: docs/notes/forward.md.
    LAST_FIRST = not (CAUSAL or ALIBI) and WINDOW == (-1, -1) and CONSUMERS == 2 and HEAD_DIM <= 128
    REORDERED = LAST_FIRST or (ALIBI and not LEFT)  # with a window to the left no key is far
    pack = forward.pack_of(DTYPE)
    clear = make_fragment_functions(BLOCK_N, COLS, pack).clear
    unit_of = make_score_mod(BLOCK_N, CAUSAL, WINDOW, SOFTCAP, ALIBI).unit_of
    tiles_of = make_tiles_of(BLOCK_N, CAUSAL, WINDOW)
    after, load_kv, skip_tiles = make_ring(HEAD_DIM, TILING)
    loop = make_mainloop(
        HEAD_DIM, TILING, CAUSAL, DTYPE, WINDOW, SOFTCAP, ALIBI, CHECKED=not LAST_FIRST
    )
    mod_values, first_iteration, iterate = loop.mod_values, loop.first_iteration, loop.iterate
    whole_tiles, add_last_product = loop.whole_tiles, loop.add_last_product
    finish_product = loop.finish_product
    load_tile = make_load_tile(NUM_PANELS)
    finish_rows, store_tile = make_store_tile(HEAD_DIM, pack)
    wait = mbarrier.wait_function()

    @cuda.jit(device=True, forceinline=True)
    def first_of(m_start, end, seqlen_q, seqlen_k):
        """The first of `end` key tiles to process: at these rows' position, or the last."""
        if LAST_FIRST:
            return int32(end - 1)
        return max(min(int32((m_start + seqlen_k - seqlen_q) // BLOCK_N), int32(end - 1)), int32(0))

    @cuda.jit(device=True, forceinline=True)
    def load_queries(queries, m_start, head, b, to):
        """Wait for a free slot, write to it which queries are next, and start their copy."""
        slot = queries % SLOTS
        full = to.base + Q_RING.full + slot * BARRIER
        wait(to.base + Q_RING.empty + slot * BARRIER, phase(queries, SLOTS) ^ 1)
        to.work[slot, M_START] = m_start
        to.work[slot, HEAD] = head
        to.work[slot, BATCH] = b
        to.work[slot, MORE] = 1
        mbarrier_arrive_expect_tx(full, SLOT_BYTES)
        for w in range(CONSUMERS):
            q_rows = to.base + Q.start + slot * SLOT_BYTES + w * Q_BYTES
            load_tile(q_rows, ROWS, to.q_map, m_start + ROWS * w, head, b, full)

    @cuda.jit(device=True, forceinline=True)
    def load(state, m_start, head, b, kv_head, to):
        """Load a tile of queries; or all tiles of K, or of V, that they see.

        The state is the number of query tiles so far, and the next stage of K's or V's ring.
        """
        queries, stage, was_empty = state
        if to.of_q:
            load_queries(queries, m_start, head, b, to)
            queries = int32(queries + 1)
        else:
            step, end = tiles_of(m_start, BLOCK_M, to.seqlen_q, to.seqlen_k)
            begin = first_of(m_start, end, to.seqlen_q, to.seqlen_k)
            while step < end:
                tile = step  # if REORDERED `begin`, 0, 1, and so on
                if REORDERED and step <= begin:
                    tile = begin if step == 0 else int32(step - 1)
                n_start = tile * BLOCK_N
                load_kv(to.kv_map, n_start, kv_head, b, to.kv_tile, to.kv_full, stage, was_empty)
                stage, was_empty = after(stage, was_empty)
                step = int32(step + 1)
        return queries, stage, was_empty

    load_each = make_for_each_tile(BLOCK_M, load)

    @cuda.jit(device=True, forceinline=True)
    def produce(tid, work, base, q_map, k_map, v_map, shape, seqlen_k, group_size, num_slices):
        """The role of a loading thread: 0 loads Q, 32 loads K, 64 loads V."""
        of_k = tid == 32
        kv_map = k_map if of_k else v_map
        kv_tile = base + K.start if of_k else base + V.start
        kv_full = base + K_RING.full if of_k else base + V_RING.full
        to = Loads(tid == 0, q_map, kv_map, kv_tile, kv_full, work, base, shape[2], seqlen_k)
        # On a new barrier the phase of parity 1 has ended: the stages are free.
        state = int32(0), int32(0), int32(1)
        queries, _, _ = load_each(state, shape, group_size, num_slices, to)
        if tid == 0:
            slot = queries % SLOTS
            wait(base + Q_RING.empty + slot * BARRIER, phase(queries, SLOTS) ^ 1)
            work[slot, MORE] = 0
            mbarrier_arrive(base + Q_RING.full + slot * BARRIER)

    @cuda.jit(device=True, forceinline=True, fastmath=True)
    def consume(tid, work, base, out_map, lse, seqlen_k, scale, alibi_slopes):
        """The role of a consumer warpgroup: attention for its part of each query tile."""
        s = cuda.local.array(S_SHAPE, float32)
        p = cuda.local.array(P_SHAPE, uint32)
        acc = cuda.local.array(OUT_SHAPE, float32)
        m_i = cuda.local.array(2, float32)
        l_i = cuda.local.array(2, float32)
        alpha = cuda.local.array(2, float32)
        inverse = cuda.local.array(2, float32)
        offset = cuda.local.array(2, float32)
        q_tile, q_full, q_empty = base + Q.start, base + Q_RING.full, base + Q_RING.empty
        k_full, v_full, v_empty = base + K_RING.full, base + V_RING.full, base + V_RING.empty
        ramp = uint32(base + RAMP.start)
        seqlen_q = lse.shape[2]
        warpgroup, lane = tid >> 7, tid & 31
        warp_row = int32((tid >> 5 & 3) * 16)  # in the warpgroup's rows
        # Which ROWS rows of a query tile are the warpgroup's. A shuffle tells ptxas that it is the
        # same for a whole warp: values that depend on it are then kept once for a warp.
        part = int32(cuda.shfl_sync(FULL_WARP, warpgroup, 0) - 1)
        out_rows = uint32(base + OUT.start + part * Q_BYTES + warp_row * ROW_BYTES)

        unit = unit_of(scale)  # factor of a score in the exponent
        registers = Registers(s, p, acc, m_i, l_i, alpha, offset)
        rings = KVRings(base + K.start, k_full, base + V.start, v_full)
        queries = int32(0)  # query tiles so far
        stage, parity = int32(0), int32(0)  # of the next tile of K and V
        while True:
            slot = int32(queries % SLOTS)
            wait(q_full + slot * BARRIER, phase(queries, SLOTS))
            if work[slot, MORE] == 0:
                break
            m_start = work[slot, M_START]
            m = int32(m_start + part * ROWS)  # the warpgroup's first row
            wg_position = int32(m + seqlen_k - seqlen_q)
            position = int32(wg_position + warp_row + (lane >> 2))
            mod = mod_values(alibi_slopes, work[slot, HEAD], scale, ramp, wg_position, lane)
            q_desc = descriptor(ROW_MAJOR, uint32(q_tile + slot * SLOT_BYTES + part * Q_BYTES))
            clear(acc, m_i, l_i)

            n_tile, end = tiles_of(m, ROWS, seqlen_q, seqlen_k)
            n_start = int32(n_tile * BLOCK_N)
            # A part without a row processes one tile, and skips the others.
            n_end = int32(n_start + BLOCK_N if m >= seqlen_q else end * BLOCK_N)
            first_start = int32(first_of(m_start, end, seqlen_q, seqlen_k) * BLOCK_N)
            whole = whole_tiles(wg_position, seqlen_k)
            if LEFT:
                first, _ = tiles_of(m_start, BLOCK_M, seqlen_q, seqlen_k)
                stage, parity = skip_tiles(n_tile - first, stage, parity, k_full, v_full, lane)

            n = first_start if REORDERED else n_start
            tile = stage, parity, q_desc, n
            first_iteration(registers, rings, *tile, position, seqlen_k, mod, lane)
            n_start = int32(n_start + BLOCK_N)
            while n_start < n_end:
                n = n_start
                if REORDERED and n_start <= first_start:  # one tile later: `first_start` came first
                    n = int32(n_start - BLOCK_N)
                tile = stage, parity, q_desc, n
                stage, parity = iterate(
                    registers, rings, *tile, whole, position, seqlen_k, mod, lane
                )
                n_start = int32(n_start + BLOCK_N)

            add_last_product(registers, rings, stage, parity)
            # Read again, while P V runs: the loop needs the registers.
            m_start, head, b = work[slot, M_START], work[slot, HEAD], work[slot, BATCH]
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
            remaining = int32(end - n_start // BLOCK_N)
            stage, parity = skip_tiles(remaining, stage, parity, k_full, v_full, lane)
            queries = int32(queries + 1)
        if lane == 0:
            tma_store_wait_read(0)  # shared memory must outlive the last copy

    @cuda.jit(fastmath=True, launch_bounds=(THREADS, 1))
    def flash_attn_persistent_kernel(
        q_map, k_map, v_map, out_map, lse, seqlen_k, group_size, num_slices, scale, alibi_slopes
    ):
        """A thread block works through tiles of queries, each with its tiles of K and V.

        The maps are addresses (`tensor_maps`), with boxes of 64 rows of q, BLOCK_N of k and v, 16
        of out. A head has num_slices work slices (`persistent_tiling`). scale is softmax_scale ·
        log2 e.

        grid      (at most one per SM,); warpgroup 0 loads, the others compute
        shared    q_tile (SLOTS, CONSUMERS, 64, HEAD_DIM); out_tile (CONSUMERS, 64, HEAD_DIM), which
                  is q_tile if that has one slot;
                  k_tile, v_tile (STAGES, BLOCK_N, HEAD_DIM), in panels of 64 columns, swizzled;
                  work (SLOTS, 4): which queries Q are; barriers: full and empty for each slot of
                  Q, each stage of K, and of V; with ALIBI a ramp (`alibi`)
        private   s (BLOCK_N / 8, 4), p (BLOCK_N / 16, 4), acc (HEAD_DIM / 8, 4); m_i, l_i, alpha,
                  inverse, offset for two rows
        HBM       Q, out, lse once; K and V once per tile of queries, except for tiles that none of
                  them sees
        paper     FlashAttention-3, Algorithm 2
        budget    168 registers at the start with 2 consumers, 128 with 3; then REGISTERS. One
                  thread block per SM
        """
        work = cuda.shared.array(WORK_SHAPE, int32)  # M_START, HEAD, BATCH, MORE of each slot of Q
        base = shared_base()
        tid = cuda.threadIdx.x
        if tid == 0:
            init_rings(base, (Q_RING,), 4 * CONSUMERS)  # one lane of each warp
            init_rings(base, (K_RING, V_RING), 4 * CONSUMERS)
            fence_mbarrier_init()
        if ON_TENSOR_CORES:
            write_ramp(uint32(base + RAMP.start), RAMP_BYTES, int32(tid), THREADS)
        cuda.syncthreads()  # the barriers are made: safe to wait on

        if tid >> 7 == 0:
            setmaxnreg_dec(PRODUCER_REGISTERS)
            if tid in (0, 32, 64):
                maps = q_map, k_map, v_map
                produce(tid, work, base, *maps, lse.shape, seqlen_k, group_size, num_slices)
        else:
            setmaxnreg_inc(CONSUMER_REGISTERS)
            consume(tid, work, base, out_map, lse, seqlen_k, scale, alibi_slopes)

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
    """FlashAttention-3, forward, persistent: float16 and bfloat16 on Hopper GPUs.

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
    mask = causal, window_size, softcap, alibi_slopes
    call = checks.forward_call(q, k, v, *mask, softmax_scale, on=REQUIREMENTS)
    if 0 in (call.seqlen_q, call.seqlen_k):
        return call.results_without_keys()
    mask = call.mask
    tiling = persistent_tiling(call.head_dim, call.seqlen_k, mask.causal)
    kernel = make_flash_attn_persistent(
        call.head_dim, tiling, mask.causal, call.dtype, mask.window_size, mask.softcap, mask.alibi
    )
    consumers, block_n = tiling.consumers, tiling.block_n
    num_sms, num_heads = arrays.num_sms(q), call.batch * call.num_heads
    tiles = ROWS * consumers, block_n, mask.causal, mask.window_size, consumers
    num_slices = choose_num_slices(num_heads, num_sms, call.seqlen_q, call.seqlen_k, *tiles)
    grid = (min(num_slices * num_heads, num_sms),)
    boxes = (q, 64), (k, block_n), (v, block_n), (call.out, 16)
    sizes = np.int32(call.seqlen_k), np.int32(call.group_size), np.int32(num_slices)
    arguments = *(tensor_map(*box) for box in boxes), call.lse, *sizes, call.scale_log2, call.slopes
    size = make_plan(call.head_dim, tiling, ALIBI=mask.alibi).bytes
    arrays.launch(kernel, grid, (128 * (consumers + 1),), *arguments, shared_bytes=size)
    return call.out, call.lse
