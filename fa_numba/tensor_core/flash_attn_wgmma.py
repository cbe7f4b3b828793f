"""FlashAttention-2 forward on Hopper's tensor cores: wgmma, with tiles loaded by TMA.

flash_attn_v2      float32 multiply-adds, one thread for each score
flash_attn_mma     a warp multiplies tiles in registers; cp.async fetches the next
flash_attn_wgmma   four warps multiply tiles in shared memory; TMA fetches the next  <- this file
flash_attn_ws      a warp of its own fetches; the next tile's Q Kᵀ beside this one's P V

Two warpgroups own 64 query rows each and walk the tiles of K and V together. One thread starts the
copy of the next tile, while the tensor cores read this one from shared memory: no thread touches an
element of Q, K or V. Scores, P and out are in registers; P, the result of a product, already has
the layout of the next product's operand. Two thread blocks share an SM, so that one multiplies
while the other computes its softmax.

With cluster=2, PAIR in the kernel, two neighbouring thread blocks load K and V once for both
(`ptx.cluster`). At a first reading pass over what stands behind `if PAIR`.

To read it: lesson 13 up to its step 3; then, as they come up, `tma` (the copy), `mbarrier` (when it
is done), `wgmma` (the products, and which register holds which element), `shared_plan` (the layout
of shared memory) and `fragments` (the softmax, the same mathematics as in flash_attn_v2). There one
thread computes one score; here a warpgroup computes 64 rows: the four lanes of a quad hold a row's
scores, and each lane has parts of two rows.

On an H200 at n = 4096 it took head_dim 128 from about 410 (340) to 590 (500) TFLOP/s, and 64 from
360 (320) to 440 (380); float16, causal in brackets; benchmarks/results/tensor_core.json.

Papers: Dao 2023, FlashAttention-2, arXiv:2307.08691, Algorithm 1; Shah et al. 2024,
FlashAttention-3, arXiv:2407.08608, section 3.
"""

import functools

import numpy as np
from numba import cuda, float32, uint32

from fa_numba import checks
from fa_numba.kernels import masks
from fa_numba.ptx import mbarrier, wgmma
from fa_numba.ptx.cluster import cluster_of, cluster_sync, mbarrier_arrive_at
from fa_numba.ptx.layouts import PANEL_COLS, ROW_BYTES
from fa_numba.ptx.mbarrier import fence_mbarrier_init, mbarrier_arrive_expect_tx, mbarrier_init
from fa_numba.ptx.tma import make_load_tile
from fa_numba.ptx.wgmma import (
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
from fa_numba.tensor_core.shared_plan import SharedPlan
from fa_numba.tiling.block_sizes import ceil_div

REQUIREMENTS = checks.KERNELS["flash_attn_wgmma"]
BLOCK_M = 128  # 64 query rows for each warpgroup
THREADS = 256  # two warpgroups
STAGES = 2  # of K and of V: one is multiplied, the other receives the next tile


@functools.cache
def make_plan(HEAD_DIM, BLOCK_N):
    """Shared memory of a thread block: a `SharedPlan`."""
    row_bytes = ceil_div(HEAD_DIM, PANEL_COLS) * ROW_BYTES
    plan = SharedPlan()
    plan.Q = plan.tiles(2, BLOCK_M // 2 * row_bytes)  # one for each warpgroup
    plan.K, plan.V = (plan.tiles(STAGES, BLOCK_N * row_bytes) for _ in range(2))
    plan.Q_FULL, plan.KV_FULL = plan.barriers(1), plan.barriers(STAGES)
    plan.KV_EMPTY = plan.barriers(STAGES)  # in a pair: the other block is done with this stage
    return plan


def num_blocks(seqlen_q, cluster):
    """Thread blocks for the queries of a head: whole clusters, so the last may have no query."""
    return ceil_div(seqlen_q, cluster * BLOCK_M) * cluster


@functools.cache
def make_flash_attn_wgmma(HEAD_DIM, BLOCK_N, CAUSAL, DTYPE, CLUSTER=1):
    """The kernel for these compile-time constants: THREADS threads, `make_plan` of shared memory.

    HEAD_DIM is a multiple of 8, DTYPE "float16" or "bfloat16", CLUSTER 1 or 2.
    """
    PAIR = CLUSTER == 2  # two thread blocks load K and V once for both (`ptx.cluster`)
    COLS = 16 * ceil_div(HEAD_DIM, 16)  # multiplied; zero-padded from HEAD_DIM on
    NUM_PANELS = ceil_div(HEAD_DIM, PANEL_COLS)  # of 64 columns, as TMA and wgmma have a tile
    BLOCKS_PER_SM = 2 if COLS <= 128 else 1  # acc takes COLS / 2 registers of a thread's 128 or 255
    Q_BYTES = NUM_PANELS * 64 * ROW_BYTES  # of one warpgroup's rows
    KV_BYTES = NUM_PANELS * BLOCK_N * ROW_BYTES
    K_MAJOR_DESC = descriptor_bits()  # Q and K: rows along the sum, which goes over head_dim
    COL_MAJOR = descriptor_bits(BLOCK_N * ROW_BYTES)  # V: a row for each term, a key
    plan = make_plan(HEAD_DIM, BLOCK_N)
    Q, K, V, Q_FULL, KV_FULL = plan.Q, plan.K, plan.V, plan.Q_FULL, plan.KV_FULL
    KV_EMPTY = plan.KV_EMPTY
    shared_base = plan.shared_base
    # A thread's registers: 128 threads share 64 rows; each register of P has two numbers.
    S_LENGTH, P_LENGTH, OUT_LENGTH = BLOCK_N // 2, BLOCK_N // 4, COLS // 2
    S_SHAPE, P_SHAPE, OUT_SHAPE = (BLOCK_N // 8, 4), (BLOCK_N // 16, 4), (COLS // 8, 4)
    pack = forward.pack_of(DTYPE)
    # S = Q Kᵀ, both in shared memory; out + P V, with P in registers.
    multiply, multiply_registers = forward.wgmma_of(DTYPE)
    fragments = make_fragment_functions(BLOCK_N, COLS, pack)
    clear, mask, online_softmax = fragments.clear, fragments.mask, fragments.online_softmax
    rescale, pack_p = fragments.rescale, fragments.pack_p
    end_key = masks.make_bounds(CAUSAL, (-1, -1)).end_key
    store_rows = make_store_rows(HEAD_DIM, pack)
    load_tile, load_for_all = make_load_tile(NUM_PANELS), make_load_tile(NUM_PANELS, CLUSTER)
    descriptor = wgmma.descriptor_in_cluster if PAIR else wgmma.descriptor
    wait, phase = mbarrier.wait_function(), mbarrier.phase

    @cuda.jit(fastmath=True, launch_bounds=(THREADS, BLOCKS_PER_SM))
    def flash_attn_wgmma_kernel(q_map, k_map, v_map, out, lse, seqlen_k, group_size, scale):
        """A thread block owns BLOCK_M query rows and walks the tiles of K and V.

        q_map, k_map and v_map are addresses of tensor maps (`tensor_maps`). scale is softmax_scale
        · log2 e: the softmax takes powers of 2, e^x = 2^(x log2 e). Lines are Algorithm 1's.

        grid      (`num_blocks`, num_heads, batch); 256 threads, two warpgroups of 64 rows
        shared    q_tile (BLOCK_M, HEAD_DIM); k_tile, v_tile (STAGES, BLOCK_N, HEAD_DIM), in panels
                  of 64 columns, swizzled; a barrier for Q and two for each stage
        private   s (BLOCK_N / 8, 4), p (BLOCK_N / 16, 4), acc (HEAD_DIM / 8, 4); m_i, l_i, alpha
                  for two rows
        HBM       Q, out, lse once; K and V once per tile of queries, except for tiles that none of
                  them sees
        paper     FlashAttention-2, Algorithm 1
        budget    128 registers, two thread blocks per SM; 255 and one where HEAD_DIM > 128
        """
        if PAIR:
            cluster_of(CLUSTER)
        base = shared_base()
        q_tile, k_tile, v_tile = base + Q.start, base + K.start, base + V.start
        q_full, kv_full = base + Q_FULL.start, base + KV_FULL.start  # STAGES barriers for K and V
        kv_empty = base + KV_EMPTY.start

        s = cuda.local.array(S_SHAPE, float32)
        p = cuda.local.array(P_SHAPE, uint32)
        acc = cuda.local.array(OUT_SHAPE, float32)
        m_i = cuda.local.array(2, float32)
        l_i = cuda.local.array(2, float32)
        alpha = cuda.local.array(2, float32)

        tid = cuda.threadIdx.x
        lane = tid & 31
        head, b = cuda.blockIdx.y, cuda.blockIdx.z
        kv_head = head // group_size
        seqlen_q = out.shape[1]
        rank = cuda.blockIdx.x % CLUSTER  # in a pair block 0 loads K for both, block 1 loads V
        # The last rows see the most keys under a causal mask: they begin first, so as not to end
        # last.
        m_start = (cuda.gridDim.x - 1 - cuda.blockIdx.x) * BLOCK_M
        m = m_start + (tid >> 5) * 16 + (lane >> 2)  # this lane's first row; the second is m + 8
        position = m + seqlen_k - seqlen_q  # of row m among the keys (`masks`)
        warp_position = position - (lane >> 2)  # the warp's first row, which sees the fewest keys
        last_row = m_start + (rank + 1) * BLOCK_M - 1  # of a pair: both walk the same tiles
        n_end = end_key(last_row + seqlen_k - seqlen_q, seqlen_k)
        num_tiles = (max(n_end, 0) + BLOCK_N - 1) // BLOCK_N

        if tid == 0:
            mbarrier_init(q_full, 1)  # an arrival for each phase, this thread's, and all its bytes
            for stage in range(STAGES):
                mbarrier_init(kv_full + stage * mbarrier.BYTES, 1)
                if PAIR:
                    mbarrier_init(kv_empty + stage * mbarrier.BYTES, 1)  # the other block's
            fence_mbarrier_init()
        if PAIR:
            cluster_sync()  # both blocks' barriers are made: safe to copy to both
        else:
            cuda.syncthreads()  # the barriers are made: safe to wait on
        if tid == 0:
            mbarrier_arrive_expect_tx(q_full, 2 * Q_BYTES)
            for w in range(2):
                load_tile(q_tile + w * Q_BYTES, 64, q_map, m_start + 64 * w, head, b, q_full)
            if num_tiles > 0:
                mbarrier_arrive_expect_tx(kv_full, 2 * KV_BYTES)
                if rank == 0:
                    load_for_all(k_tile, BLOCK_N, k_map, 0, kv_head, b, kv_full)
                if rank == CLUSTER - 1:
                    load_for_all(v_tile, BLOCK_N, v_map, 0, kv_head, b, kv_full)
        clear(acc, m_i, l_i)  # while Q is in flight
        q_desc = descriptor(K_MAJOR_DESC, q_tile + (tid >> 7) * Q_BYTES)
        wait(q_full, 0)

        for n_tile in range(num_tiles):
            n_start = n_tile * BLOCK_N
            stage = n_tile & 1
            # The other stage is free since the barrier that ended the last iteration: the next tile
            # is copied there while this one is multiplied.
            if tid == 0 and n_tile + 1 < num_tiles:
                next_start, next_stage = n_start + BLOCK_N, stage ^ 1
                full, offset = kv_full + next_stage * mbarrier.BYTES, next_stage * KV_BYTES
                if PAIR:  # and the other block is done with tile n_tile - 1, too
                    wait(kv_empty + next_stage * mbarrier.BYTES, phase(n_tile + 1, STAGES) ^ 1)
                mbarrier_arrive_expect_tx(full, 2 * KV_BYTES)
                if rank == 0:
                    load_for_all(k_tile + offset, BLOCK_N, k_map, next_start, kv_head, b, full)
                if rank == CLUSTER - 1:
                    load_for_all(v_tile + offset, BLOCK_N, v_map, next_start, kv_head, b, full)
            k_desc = descriptor(K_MAJOR_DESC, k_tile + stage * KV_BYTES)
            v_desc = descriptor(COL_MAJOR, v_tile + stage * KV_BYTES)
            # A stage is filled by every second tile: tiles 0 or 1 end its phase 0, 2 or 3 its phase
            # 1, and so on. The parity of these phases alternates.
            wait(kv_full + stage * mbarrier.BYTES, (n_tile >> 1) & 1)

            wgmma_fence()  # S = Q Kᵀ                                                   line 8
            multiply(BLOCK_N, COLS, s, q_desc, k_desc)
            wgmma_commit()
            wgmma_wait(0, s, S_LENGTH)  # names s, so that no read of s moves before it

            if n_start + BLOCK_N > end_key(warp_position, seqlen_k):  # a row does not see a key
                for h in range(2):
                    mask(s, h, end_key(position + 8 * h, seqlen_k) - n_start, lane)
            online_softmax(s, m_i, l_i, alpha, scale)  # P = exp(S - m_i)               line 9
            rescale(acc, alpha)
            pack_p(s, p)

            wgmma_fence()  # out <- alpha out + P V                                    line 10
            multiply_registers(COLS, BLOCK_N, acc, p, v_desc)
            wgmma_commit()
            wgmma_wait_with(0, acc, OUT_LENGTH, p, P_LENGTH)
            cuda.syncthreads()  # both warpgroups are done with this stage: safe to overwrite
            if PAIR and tid == 0:
                mbarrier_arrive_at(kv_empty + stage * mbarrier.BYTES, rank ^ 1)

        if PAIR:
            cluster_sync()  # the other block does not arrive here any more: safe to end
        store_rows(acc, m_i, l_i, out, lse, b, m, head, lane, scale)  # lines 12, 13

    return flash_attn_wgmma_kernel


@arrays.replayed
def flash_attn_wgmma(q, k, v, *, causal=False, softmax_scale=None, cluster=1):
    """FlashAttention-2, forward, by wgmma and TMA: float16 and bfloat16 on Hopper GPUs.

    Parameters
    ----------
    q, k, v, causal, softmax_scale
        As for `flash_attn_persistent`, all of one head_dim.
    cluster : 1 or 2, default=1
        Thread blocks that load K and V once for all of them.

    Returns
    -------
    out, lse : arrays
        As of `flash_attn_v2`.
    """
    cluster = checks.check_cluster(cluster)
    call = checks.forward_call(q, k, v, causal, softmax_scale=softmax_scale, on=REQUIREMENTS)
    if call.seqlen_k == 0:
        return call.results_without_keys()
    block_n = 64
    kernel = make_flash_attn_wgmma(call.head_dim, block_n, call.mask.causal, call.dtype, cluster)
    grid = num_blocks(call.seqlen_q, cluster), call.num_heads, call.batch
    maps = tensor_map(q, 64), tensor_map(k, block_n), tensor_map(v, block_n)
    sizes = np.int32(call.seqlen_k), np.int32(call.group_size)
    arguments = *maps, call.out, call.lse, *sizes, call.scale_log2
    size = make_plan(call.head_dim, block_n).bytes
    arrays.launch(kernel, grid, (THREADS,), *arguments, shared_bytes=size)
    return call.out, call.lse
