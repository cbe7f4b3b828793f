"""FlashAttention-3 forward: warp specialisation, and Q Kᵀ of the next tile beside P V of this one.

flash_attn_v2      float32 multiply-adds, one thread for each score
flash_attn_mma     a warp multiplies tiles in registers; cp.async fetches the next
flash_attn_wgmma   four warps multiply tiles in shared memory; TMA fetches the next
flash_attn_ws      a warp of its own fetches; the next tile's Q Kᵀ beside this P V  <- this file

In flash_attn_wgmma each warpgroup alternates between products and softmax, in step with the other,
and the tensor cores wait. Here

- a producer, one thread of a separate warpgroup, runs ahead and keeps a ring of K and V tiles
  full; consumers release a stage through an mbarrier. No barrier synchronises two consumers;
- a consumer starts Q Kᵀ of the next tile, then P V of this one, and does its softmax of the next
  tile's scores while P V still runs;
- the producer needs few registers and releases the others to the consumers: larger tiles fit.

On an H200 at n = 4096 it took head_dim 128 from about 590 (500) to 640 (550) TFLOP/s; 64 stayed at
440 (380), and at n = 8192 went from 450 (400) to 490 (430); float16, causal in brackets;
benchmarks/results/tensor_core.json.

Paper: Shah et al. 2024, FlashAttention-3, arXiv:2407.08608, Algorithm 2.
"""

import functools

import numpy as np
from numba import cuda, float32, uint32

from fa_numba import checks
from fa_numba.kernels import masks
from fa_numba.ptx import mbarrier
from fa_numba.ptx.barriers import setmaxnreg_dec, setmaxnreg_inc
from fa_numba.ptx.layouts import PANEL_COLS, ROW_BYTES
from fa_numba.ptx.mbarrier import (
    fence_mbarrier_init,
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_init,
)
from fa_numba.ptx.tma import make_load_tile
from fa_numba.ptx.wgmma import (
    descriptor,
    descriptor_bits,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait,
    wgmma_wait_with,
)
from fa_numba.runtime import arrays
from fa_numba.runtime.tensor_maps import tensor_map
from fa_numba.tensor_core import forward
from fa_numba.tensor_core.fragments import make_fragment_functions, make_store_rows
from fa_numba.tensor_core.shared_plan import SharedPlan, init_rings
from fa_numba.tiling.block_sizes import ceil_div

REQUIREMENTS = checks.KERNELS["flash_attn_ws"]
STAGES = 2  # of K, and of V
# For 2 and 3 consumers: registers of a producer's and of a consumer's thread, multiples of 8. An SM
# has 65536; the warpgroups take 128 · (24 + 2 · 240) or 128 · (32 + 3 · 160) of them.
REGISTERS = {2: (24, 240), 3: (32, 160)}


def tile_sizes(head_dim):
    """Consumer warpgroups, of 64 query rows each, and keys in a tile.

    There are three consumers if 160 registers are enough for s, p and acc. Beyond head_dim 128 two
    stages of 128 keys do not fit into shared memory.
    """
    if head_dim <= 64:
        return 3, 128
    return 2, 128 if head_dim <= 128 else 96 if head_dim <= 192 else 80


@functools.cache
def make_plan(HEAD_DIM, CONSUMERS, BLOCK_N):
    """Shared memory of a thread block: a `SharedPlan`."""
    row_bytes = ceil_div(HEAD_DIM, PANEL_COLS) * ROW_BYTES
    plan = SharedPlan()
    plan.Q = plan.tiles(CONSUMERS, 64 * row_bytes)
    plan.K, plan.V = (plan.tiles(STAGES, BLOCK_N * row_bytes) for _ in range(2))
    plan.K_RING, plan.V_RING = plan.ring(STAGES), plan.ring(STAGES)
    plan.Q_FULL = plan.barriers(1)
    return plan


@functools.cache
def make_flash_attn_ws(HEAD_DIM, CONSUMERS, BLOCK_N, CAUSAL, DTYPE):
    """The kernel for these compile-time constants; `make_plan` lays out its shared memory.

    128 threads for each of CONSUMERS and for the producer. HEAD_DIM is a multiple of 8, DTYPE
    "float16" or "bfloat16".
    """
    BLOCK_M = 64 * CONSUMERS
    THREADS = 128 * (CONSUMERS + 1)
    COLS = 16 * ceil_div(HEAD_DIM, 16)  # multiplied; zero-padded from HEAD_DIM on
    NUM_PANELS = ceil_div(HEAD_DIM, PANEL_COLS)  # of 64 columns, as TMA and wgmma have a tile
    Q_BYTES = NUM_PANELS * 64 * ROW_BYTES  # of one consumer's rows
    KV_BYTES = NUM_PANELS * BLOCK_N * ROW_BYTES
    K_MAJOR_DESC = descriptor_bits()  # Q and K: rows along the sum, which goes over head_dim
    COL_MAJOR = descriptor_bits(BLOCK_N * ROW_BYTES)  # V: a row for each term, a key
    # A consumer thread's registers: 128 threads share 64 rows; each register of P has two numbers.
    S_LENGTH, P_LENGTH, OUT_LENGTH = BLOCK_N // 2, BLOCK_N // 4, COLS // 2
    S_SHAPE, P_SHAPE, OUT_SHAPE = (BLOCK_N // 8, 4), (BLOCK_N // 16, 4), (COLS // 8, 4)
    plan = make_plan(HEAD_DIM, CONSUMERS, BLOCK_N)
    Q, K, V, Q_FULL = plan.Q, plan.K, plan.V, plan.Q_FULL
    K_RING, V_RING, shared_base = plan.K_RING, plan.V_RING, plan.shared_base
    PRODUCER_REGISTERS, CONSUMER_REGISTERS = REGISTERS[CONSUMERS]
    pack = forward.pack_of(DTYPE)
    # S = Q Kᵀ, both in shared memory; out + P V, with P in registers.
    multiply, multiply_registers = forward.wgmma_of(DTYPE)
    fragments = make_fragment_functions(BLOCK_N, COLS, pack)
    clear, mask, online_softmax = fragments.clear, fragments.mask, fragments.online_softmax
    rescale, pack_p = fragments.rescale, fragments.pack_p
    end_key = masks.make_bounds(CAUSAL, (-1, -1)).end_key
    store_rows = make_store_rows(HEAD_DIM, pack)
    load_tile = make_load_tile(NUM_PANELS)
    wait = mbarrier.wait_function()

    @cuda.jit(device=True, forceinline=True)
    def mask_tile(s, n_start, position, seqlen_k, lane):
        """Mask the keys that a row does not see; `position` is that of this lane's first row."""
        if n_start + BLOCK_N > end_key(position - (lane >> 2), seqlen_k):  # of the warp's first row
            for h in range(2):
                mask(s, h, end_key(position + 8 * h, seqlen_k) - n_start, lane)

    @cuda.jit(fastmath=True, launch_bounds=(THREADS, 1))
    def flash_attn_ws_kernel(q_map, k_map, v_map, out, lse, seqlen_k, group_size, scale):
        """A thread block owns 64 query rows for each consumer and walks the tiles of K and V.

        q_map, k_map and v_map are addresses of tensor maps (`tensor_maps`); scale is softmax_scale
        · log2 e, for powers of 2.

        grid      (num_m_tiles, num_heads, batch); warpgroup 0 loads, the others compute
        shared    q_tile (CONSUMERS, 64, HEAD_DIM); k_tile, v_tile (STAGES, BLOCK_N, HEAD_DIM), in
                  panels of 64 columns, swizzled; barriers: Q full; full and empty for each stage
                  of K, and of V
        private   s (BLOCK_N / 8, 4), p (BLOCK_N / 16, 4), acc (HEAD_DIM / 8, 4); m_i, l_i, alpha
                  for two rows
        HBM       Q, out, lse once; K and V once per tile of queries, except for tiles that none of
                  them sees
        paper     FlashAttention-3, Algorithm 2
        budget    168 registers at the start with 2 consumers, 128 with 3; then REGISTERS. One
                  thread block per SM
        """
        base = shared_base()
        q_tile, q_full = base + Q.start, base + Q_FULL.start
        k_tile, k_full, k_empty = base + K.start, base + K_RING.full, base + K_RING.empty
        v_tile, v_full, v_empty = base + V.start, base + V_RING.full, base + V_RING.empty

        tid = cuda.threadIdx.x
        warpgroup = tid >> 7
        head, b = cuda.blockIdx.y, cuda.blockIdx.z
        seqlen_q = out.shape[1]
        # The last rows see the most keys under a causal mask: they begin first, so as not to end
        # last.
        m_start = (cuda.gridDim.x - 1 - cuda.blockIdx.x) * BLOCK_M
        n_end = end_key(m_start + BLOCK_M - 1 + seqlen_k - seqlen_q, seqlen_k)
        num_tiles = (max(n_end, 0) + BLOCK_N - 1) // BLOCK_N

        if tid == 0:
            mbarrier_init(q_full, 1)
            init_rings(base, (K_RING, V_RING), 4 * CONSUMERS)  # one lane of each warp arrives
            fence_mbarrier_init()
        cuda.syncthreads()  # the barriers are made: safe to wait on

        if warpgroup == 0:
            setmaxnreg_dec(PRODUCER_REGISTERS)
            if tid == 0:
                kv_head = head // group_size
                mbarrier_arrive_expect_tx(q_full, CONSUMERS * Q_BYTES)
                for w in range(CONSUMERS):
                    load_tile(q_tile + w * Q_BYTES, 64, q_map, m_start + 64 * w, head, b, q_full)
                stage, parity = 0, 1  # the ring begins empty: on a new barrier parity 1 has ended
                for n_tile in range(num_tiles):
                    n_start = n_tile * BLOCK_N
                    barrier, tile = stage * mbarrier.BYTES, stage * KV_BYTES
                    wait(k_empty + barrier, parity)
                    mbarrier_arrive_expect_tx(k_full + barrier, KV_BYTES)
                    load_tile(k_tile + tile, BLOCK_N, k_map, n_start, kv_head, b, k_full + barrier)
                    wait(v_empty + barrier, parity)
                    mbarrier_arrive_expect_tx(v_full + barrier, KV_BYTES)
                    load_tile(v_tile + tile, BLOCK_N, v_map, n_start, kv_head, b, v_full + barrier)
                    stage += 1
                    if stage == STAGES:  # once around the ring: each barrier's next phase
                        stage, parity = 0, parity ^ 1
        else:
            setmaxnreg_inc(CONSUMER_REGISTERS)
            s = cuda.local.array(S_SHAPE, float32)
            p = cuda.local.array(P_SHAPE, uint32)
            acc = cuda.local.array(OUT_SHAPE, float32)
            m_i = cuda.local.array(2, float32)
            l_i = cuda.local.array(2, float32)
            alpha = cuda.local.array(2, float32)
            lane = tid & 31
            # This lane's rows are m and m + 8; warps 0 to 3 are the producer's.
            m = m_start + ((tid >> 5) - 4) * 16 + (lane >> 2)
            position = m + seqlen_k - seqlen_q
            q_desc = descriptor(K_MAJOR_DESC, q_tile + (warpgroup - 1) * Q_BYTES)
            clear(acc, m_i, l_i)
            wait(q_full, 0)

            if num_tiles > 0:
                wait(k_full, 0)
                wgmma_fence()  # S of the first tile
                multiply(BLOCK_N, COLS, s, q_desc, descriptor(K_MAJOR_DESC, k_tile))
                wgmma_commit()
                wgmma_wait(0, s, S_LENGTH)
                if lane == 0:
                    mbarrier_arrive(k_empty)  # free once all warps have read K
                mask_tile(s, 0, position, seqlen_k, lane)
                online_softmax(s, m_i, l_i, alpha, scale)
                pack_p(s, p)
                wait(v_full, 0)

                stage, parity = 0, 0  # of the tile whose P and V are ready
                for n_tile in range(1, num_tiles):
                    next_stage, next_parity = stage + 1, parity
                    if next_stage == STAGES:
                        next_stage, next_parity = 0, parity ^ 1
                    next_barrier = next_stage * mbarrier.BYTES
                    barrier = stage * mbarrier.BYTES
                    k_desc = descriptor(K_MAJOR_DESC, k_tile + next_stage * KV_BYTES)
                    v_desc = descriptor(COL_MAJOR, v_tile + stage * KV_BYTES)

                    wait(k_full + next_barrier, next_parity)
                    wgmma_fence()
                    multiply(BLOCK_N, COLS, s, q_desc, k_desc)  # S = Q Kᵀ of the next tile
                    wgmma_commit()
                    multiply_registers(
                        COLS, BLOCK_N, acc, p, v_desc
                    )  # out <- out + P V of this one
                    wgmma_commit()

                    wgmma_wait(1, s, S_LENGTH)  # the newest group, P V, may go on
                    if lane == 0:
                        mbarrier_arrive(k_empty + next_barrier)
                    mask_tile(s, n_tile * BLOCK_N, position, seqlen_k, lane)
                    online_softmax(s, m_i, l_i, alpha, scale)  # while P V runs
                    # This wait could come later. Its loop keeps the compiler from moving the next
                    # one up, before the softmax, which would then not overlap with P V.
                    wait(v_full + next_barrier, next_parity)

                    wgmma_wait_with(0, acc, OUT_LENGTH, p, P_LENGTH)
                    if lane == 0:
                        mbarrier_arrive(v_empty + barrier)
                    pack_p(s, p)  # P V has read the last P
                    rescale(acc, alpha)  # out <- alpha out, alpha of the next P
                    stage, parity = next_stage, next_parity

                wgmma_fence()  # P V of the last tile
                v_desc = descriptor(COL_MAJOR, v_tile + stage * KV_BYTES)
                multiply_registers(COLS, BLOCK_N, acc, p, v_desc)
                wgmma_commit()
                wgmma_wait_with(0, acc, OUT_LENGTH, p, P_LENGTH)

            store_rows(acc, m_i, l_i, out, lse, b, m, head, lane, scale)

    return flash_attn_ws_kernel


@arrays.replayed
def flash_attn_ws(q, k, v, *, causal=False, softmax_scale=None):
    """FlashAttention-3, forward, by warp-specialised wgmma: float16 and bfloat16 on Hopper GPUs.

    Parameters
    ----------
    q, k, v, causal, softmax_scale
        As for `flash_attn_persistent`, all of one head_dim.

    Returns
    -------
    out, lse : arrays
        As of `flash_attn_v2`.
    """
    call = checks.forward_call(q, k, v, causal, softmax_scale=softmax_scale, on=REQUIREMENTS)
    if call.seqlen_k == 0:
        return call.results_without_keys()
    consumers, block_n = tile_sizes(call.head_dim)
    kernel = make_flash_attn_ws(call.head_dim, consumers, block_n, call.mask.causal, call.dtype)
    grid = (ceil_div(call.seqlen_q, 64 * consumers), call.num_heads, call.batch)
    maps = tensor_map(q, 64), tensor_map(k, block_n), tensor_map(v, block_n)
    sizes = np.int32(call.seqlen_k), np.int32(call.group_size)
    arguments = *maps, call.out, call.lse, *sizes, call.scale_log2
    size = make_plan(call.head_dim, consumers, block_n).bytes
    arrays.launch(kernel, grid, (128 * (consumers + 1),), *arguments, shared_bytes=size)
    return call.out, call.lse
