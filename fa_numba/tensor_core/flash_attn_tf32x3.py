"""FlashAttention-2 forward in float32 on tensor cores: three TF32 products for each of float32.

flash_attn_registers   float32 multiply-adds, a tile of scores in the registers of each thread
flash_attn_tf32x3      mma.sync of TF32, each operand in two parts                    <- this file
flash_attn_mma         the same shape in 16 bits: one product, half the bytes

A warp owns the rows of a softmax, and P never leaves its registers; `tf32_tiles` explains the
products. Copies to shared memory are in flight while the warps compute: V arrives during Q Kᵀ, the
next K during softmax and P V.

measured   1.8, 1.3 and 1.3 times the speed of PyTorch's memory-efficient attention at head_dim 64,
           128 and 256, which uses 3xTF32, too (n = 8192); the error of out is 0.4 to 1.05 of a
           plain float32 computation's at n = 8192, 0.65 to 1.35 at n = 512 (H200;
           benchmarks/results/ladder.json)

Papers: Dao 2023, FlashAttention-2, arXiv:2307.08691, Algorithm 1; Ootomo and Yokota 2022,
arXiv:2203.03341.
"""

import functools
import math
from typing import NamedTuple

from numba import cuda, float32, int32, uint32

from fa_numba import checks
from fa_numba.constants import LOG2_E, NEG_INF, ONE, ZERO
from fa_numba.expressions.functions import NO_EXPRESSIONS
from fa_numba.expressions.tiles import MIXED, WHOLE
from fa_numba.kernels import masks
from fa_numba.on_cuda_cores.user_scores import make_user_scores
from fa_numba.ptx.convert import exp2
from fa_numba.ptx.cp_async import cp_async_commit, cp_async_wait
from fa_numba.ptx.layouts import ROW_BYTES
from fa_numba.ptx.tf32 import HALF
from fa_numba.ptx.vectors import store_shared_b32
from fa_numba.runtime import arrays
from fa_numba.tensor_core import tf32_tiles
from fa_numba.tensor_core.expression_tiles import make_run_functions, runs_of
from fa_numba.tensor_core.fragments import over_quad_max, over_quad_sum
from fa_numba.tensor_core.gradient_expressions import find_run, next_of_run, number_of_tiles
from fa_numba.tensor_core.shared_plan import SharedPlan
from fa_numba.tensor_core.tf32_tiles import num_panels
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.persistent_tiling import ROWS

REQUIREMENTS = checks.KERNELS["flash_attn_tf32x3"]
WARPS_PER_SM = 8  # with 255 registers for each thread
HOPPER_BYTES = 227 * 1024  # of shared memory, for a thread block


class Tiles(NamedTuple):
    """Compile-time constants of a kernel.

    Attributes
    ----------
    warps : int
        Of a thread block: all of an SM, or half of them.
    m_tiles : int
        A warp owns m_tiles times 16 query rows.
    block_n : int
        Keys in a tile.
    panels_at_once : int
        P is split once for so many panels of V.
    """

    warps: int
    m_tiles: int
    block_n: int
    panels_at_once: int

    @property
    def block_m(self):
        """Queries of a thread block."""
        return 16 * self.m_tiles * self.warps

    @property
    def threads(self):
        """Threads of a thread block."""
        return 32 * self.warps


def tile_sizes(head_dim, shared_memory=HOPPER_BYTES):
    """The largest `Tiles` for which everything fits into registers and shared memory.

    Parameters
    ----------
    head_dim : int
    shared_memory : int, default=HOPPER_BYTES
        Bytes that a thread block may ask for. Up to head_dim 128 an Ampere GPU's are enough.
    """
    panels = num_panels(head_dim)
    if panels <= 2:
        return Tiles(4, 2, 32, panels)
    if panels <= 4:
        return Tiles(4, 1, 64, 1 if panels % 2 else 2)
    # Two thread blocks of 4 warps fit on an SM, or 8 warps share the tiles of K and V.
    tiles = Tiles(4 if panels <= 6 else 8, 1, 32, 2)
    smaller = tiles._replace(warps=4), Tiles(4, 1, 16, 2)
    fitting = (x for x in (tiles, *smaller) if shared_bytes(head_dim, x) <= shared_memory)
    return next(fitting, smaller[-1])


@functools.cache
def make_plan(HEAD_DIM, TILES):
    """Shared memory of a thread block: a `SharedPlan`."""
    row_bytes = num_panels(HEAD_DIM) * ROW_BYTES
    kv_bytes = TILES.block_n * row_bytes
    plan = SharedPlan(align=16)
    plan.Q = plan.tiles(1, TILES.block_m * row_bytes)
    plan.K, plan.V = plan.tiles(1, kv_bytes), plan.tiles(1, kv_bytes)
    plan.HALF_AT = plan.region(16)  # the number HALF (`tf32`)
    return plan


def shared_bytes(HEAD_DIM, TILES):
    """Shared memory that a thread block asks for."""
    return make_plan(HEAD_DIM, TILES).bytes


@functools.cache
def make_flash_attn_tf32x3(
    HEAD_DIM,
    TILES,
    CAUSAL,
    WINDOW=(-1, -1),
    SOFTCAP=0.0,
    ALIBI=False,
    EXPRESSIONS=None,
    SINKS=False,
):
    """The kernel for these compile-time constants; `make_plan` lays out its shared memory.

    HEAD_DIM is a multiple of 4, TILES a `Tiles`. Without ALIBI alibi_slopes is not read, and may be
    any scalar.

    With EXPRESSIONS the mask and the score are the user's alone, runs is that of `runs_of` and args
    the tuple of their arguments; sinks is that of the sinks, with SINKS. Otherwise empty.
    """
    EXPRESSED = EXPRESSIONS is not None
    WRITTEN_SCORE = EXPRESSED and EXPRESSIONS.score is not None
    first_key, end_key, sees = masks.make_bounds(CAUSAL, WINDOW)
    score = masks.make_score(SOFTCAP, ALIBI)
    # A score_mod: scores are not just scale · q·k.
    MODIFIED = SOFTCAP > 0 or ALIBI or WRITTEN_SCORE
    class_of = make_run_functions(TILES.block_m).class_of
    modify = make_user_scores(EXPRESSIONS or NO_EXPRESSIONS).modified
    M_TILES, BLOCK_N = TILES.m_tiles, TILES.block_n
    BLOCK_M, THREADS = TILES.block_m, TILES.threads
    BLOCKS_PER_SM, WARP_ROWS = WARPS_PER_SM // TILES.warps, 16 * M_TILES
    WIDE = HEAD_DIM > 128
    SKIP = TILES.warps == WARPS_PER_SM  # the tiles of keys that no row of a warp sees
    plan = make_plan(HEAD_DIM, TILES)
    Q, K, V, HALF_AT, shared_base = plan.Q, plan.K, plan.V, plan.HALF_AT, plan.shared_base
    S8, OUT8 = BLOCK_N // 8, 4 * num_panels(HEAD_DIM)
    S_SHAPE, ACC_SHAPE, ROWS_SHAPE = (M_TILES, S8, 4), (M_TILES, OUT8, 4), (M_TILES, 2)
    copy_tile = tf32_tiles.make_copy_tile(HEAD_DIM, THREADS)
    multiply_qkt = tf32_tiles.make_multiply_rows(HEAD_DIM, M_TILES, BLOCK_M, BLOCK_N)
    pv_sizes = M_TILES, BLOCK_N, BLOCK_N, TILES.panels_at_once
    add_pv = tf32_tiles.make_add_product(HEAD_DIM, *pv_sizes)
    store_row = tf32_tiles.make_store_row(HEAD_DIM)

    @cuda.jit(launch_bounds=(THREADS, BLOCKS_PER_SM), fastmath={"contract"})
    def flash_attn_tf32x3_kernel(q, k, v, out, lse, softmax_scale, alibi_slopes, sinks, runs, args):
        """A thread block owns BLOCK_M query rows and walks the tiles of K and V.

        grid      (num_heads, num_m_tiles, batch); THREADS threads, a warp has 16 · M_TILES rows
        shared    q_tile (BLOCK_M, HEAD_DIM); k_tile, v_tile (BLOCK_N, HEAD_DIM); in panels of 32
                  columns, swizzled
        private   s (M_TILES, BLOCK_N / 8, 4), acc (M_TILES, HEAD_DIM / 8, 4), fragments of Q, K, P
                  and V in two parts; m_i, l_i for 2 · M_TILES rows
        HBM       Q, out, lse once; K and V once per tile of queries, except for tiles that none of
                  them sees; with ALIBI alibi_slopes, with EXPRESSIONS runs in every thread
        paper     FlashAttention-2, Algorithm 1
        budget    255 registers, 8 warps per SM: two thread blocks, or one where HEAD_DIM > 128
        """
        base = shared_base()
        q_tile, k_tile, v_tile = base + Q.start, base + K.start, base + V.start
        half_at = base + HALF_AT.start

        s = cuda.local.array(S_SHAPE, float32)
        acc = cuda.local.array(ACC_SHAPE, float32)
        m_i = cuda.local.array(ROWS_SHAPE, float32)
        l_i = cuda.local.array(ROWS_SHAPE, float32)

        tid = cuda.threadIdx.x
        lane, warp_row = tid & 31, (tid >> 5) * WARP_ROWS
        head, b = cuda.blockIdx.x, cuda.blockIdx.z
        kv_head = head // (q.shape[2] // k.shape[2])
        seqlen_q, seqlen_k = q.shape[1], k.shape[1]
        # The last rows see the most keys under a causal mask. Those of all heads begin first, so
        # that the GPU waits for none of them in the end.
        m_start = (cuda.gridDim.y - 1 - cuda.blockIdx.y) * BLOCK_M
        m = m_start + warp_row + (lane >> 2)  # this lane's first row; the next is m + 8
        first_position = m_start + seqlen_k - seqlen_q  # of the tile's rows, among the keys
        last_position = first_position + BLOCK_M - 1
        position = m + seqlen_k - seqlen_q
        warp_end = end_key(first_position + warp_row + WARP_ROWS - 1, seqlen_k)
        n_first = first_key(first_position) // BLOCK_N * BLOCK_N
        n_end = end_key(last_position, seqlen_k)
        slope = alibi_slopes[head] if ALIBI else ZERO
        # Without a score_mod S stays q·k: e^(scale (s - m)) = 2^(scale log2(e) (s - m)).
        unit = ONE if MODIFIED else softmax_scale  # factor of s in the exponent of e
        to_base_2 = unit * LOG2_E
        first_turn = n_first
        if EXPRESSED:
            of_queries = runs[0], int32(b), int32(m_start // BLOCK_M)
            here, end_head = int32(head), int32(head + 1)
            n_end, first_turn = number_of_tiles(*of_queries, here, end_head) * BLOCK_N, 0
            run = find_run(*of_queries, here, int32(0), end_head)
            n_first = run[2] * BLOCK_N

        store_shared_b32(half_at, uint32(HALF))
        copy_tile(q_tile, BLOCK_M, q, b, m_start, head)
        copy_tile(k_tile, BLOCK_N, k, b, n_first, kv_head)
        cp_async_commit()
        for i in range(M_TILES):
            for h in range(2):
                m_i[i, h] = NEG_INF
                l_i[i, h] = ZERO
                if SINKS:  # one more key, its value 0, in one lane of the quad that has the row
                    m_i[i, h] = sinks[0][head] / unit
                    l_i[i, h] = ONE if lane & 3 == 0 else ZERO
            for j in range(OUT8):
                for r in range(4):
                    acc[i, j, r] = ZERO

        for turn in range(first_turn, n_end, BLOCK_N):
            n_start = turn
            if EXPRESSED:
                n_start, classes = run[2] * BLOCK_N, run[4]
                run, _ = next_of_run(*of_queries, run, end_head)
            seen = not SKIP or n_start < warp_end  # by some row of this warp
            if WIDE:  # one barrier for two: the copy of V begins after it
                cp_async_wait(0)
                cuda.syncthreads()  # k_tile and q_tile are complete; everyone is done with v_tile
            copy_tile(v_tile, BLOCK_N, v, b, n_start, kv_head)
            cp_async_commit()
            if not WIDE:
                cp_async_wait(1)
                cuda.syncthreads()  # k_tile, and at first q_tile, are complete: safe to read

            if seen:
                multiply_qkt(s, q_tile + warp_row * ROW_BYTES, k_tile, lane)  # S = Q Kᵀ line 8

            cp_async_wait(0)
            cuda.syncthreads()  # v_tile is complete; everyone is done with k_tile: overwrite it
            n_next = turn + BLOCK_N
            if n_next < n_end:
                if EXPRESSED:
                    n_next = run[2] * BLOCK_N
                copy_tile(k_tile, BLOCK_N, k, b, n_next, kv_head)
            cp_async_commit()

            if seen:
                n_lane = n_start + 2 * (lane & 3)  # this lane's first key
                if EXPRESSED:
                    seen_whole = class_of(classes, warp_row // ROWS) == WHOLE
                    at_tile = seqlen_k, WHOLE if seen_whole else MIXED, args
                    if WRITTEN_SCORE or not seen_whole:
                        for i in range(M_TILES):
                            for j in range(S8):
                                for h in range(2):
                                    for c in range(2):
                                        x = s[i, j, 2 * h + c]
                                        x = x * softmax_scale if WRITTEN_SCORE else x
                                        at = position + 16 * i + 8 * h, n_lane + 8 * j + c
                                        x = modify(x, int32(b), int32(head), *at, *at_tile)
                                        s[i, j, 2 * h + c] = x
                elif MODIFIED:
                    for i in range(M_TILES):
                        for j in range(S8):
                            for h in range(2):
                                for c in range(2):
                                    distance = position + 16 * i + 8 * h - n_lane - 8 * j - c
                                    scaled = s[i, j, 2 * h + c] * softmax_scale
                                    s[i, j, 2 * h + c] = score(scaled, distance, slope)
                # Does every row of the tile see every key of it?
                seen_from = first_key(last_position)
                seen_to = end_key(first_position, seqlen_k)
                if n_start < seen_from or n_start + BLOCK_N > seen_to:
                    for i in range(M_TILES):
                        for j in range(S8):
                            for h in range(2):
                                for c in range(2):
                                    n = n_lane + 8 * j + c
                                    if not sees(position + 16 * i + 8 * h, n, seqlen_k):
                                        s[i, j, 2 * h + c] = NEG_INF

                for i in range(M_TILES):
                    for h in range(2):
                        m_new = m_i[i, h]  # m_i <- max(m_i, rowmax(S))                      line 9
                        for j in range(S8):
                            m_new = max(m_new, max(s[i, j, 2 * h], s[i, j, 2 * h + 1]))
                        m_new = over_quad_max(m_new)
                        shift = ZERO if m_new == NEG_INF else m_new  # -inf - -inf is NaN
                        alpha = exp2((m_i[i, h] - shift) * to_base_2)  # rescales older sums
                        m_i[i, h] = m_new
                        l_ij = ZERO
                        for j in range(S8):
                            for c in range(2):  # P = exp(S - m_i)                           line 9
                                p = exp2((s[i, j, 2 * h + c] - shift) * to_base_2)
                                s[i, j, 2 * h + c] = p
                                l_ij += p
                        l_i[i, h] = alpha * l_i[i, h] + l_ij
                        for j in range(OUT8):
                            for c in range(2):
                                acc[i, j, 2 * h + c] *= alpha

                add_pv(acc, s, v_tile, half_at, lane)  # out <- alpha out + P V             line 10
            if not WIDE:
                cuda.syncthreads()  # everyone is done with v_tile: the next iteration overwrites it

        for i in range(M_TILES):
            for h in range(2):
                total = over_quad_sum(l_i[i, h])
                inverse = ONE / total if total > ZERO else ZERO
                row = m + 16 * i + 8 * h
                if row < seqlen_q:
                    store_row(acc, i, h, out, b, row, head, lane, inverse)  # out / l_i  line 12
                    if lane & 3 == 0:  # -inf for a row that saw no key                 line 13
                        lse[b, head, row] = m_i[i, h] * unit + math.log(total)

    return flash_attn_tf32x3_kernel


@arrays.replayed
@checks.takes(checks.SCORES)
def flash_attn_tf32x3(q, k, v, **options):
    """FlashAttention-2, forward, in float32 by 3xTF32 on tensor cores of GPUs since Ampere.

    Parameters
    ----------
    q, k, v, softmax_scale
        As for `flash_attn_persistent`, but float32, and all of one head_dim: a multiple of 4, up to
        256.
    causal, window_size, softcap, alibi_slopes, mask, mask_args, score, score_args, sinks
        As for `flash_attn_v2`.

    Returns
    -------
    out, lse : arrays
        As of `flash_attn_v2`.
    """
    call = checks.forward_call(q, k, v, on=REQUIREMENTS, **options)
    if call.seqlen_k == 0:
        return call.results_without_keys()
    tiles = tile_sizes(call.head_dim, arrays.shared_bytes_per_block(q))
    expressions = call.expressions_if_any
    kernel = make_flash_attn_tf32x3(call.head_dim, tiles, *call.mask, expressions, call.has_sinks)
    runs = ()
    if expressions is not None:
        runs, _ = runs_of(call, q, k, tiles.block_n, tiles.block_m // ROWS)
    more = call.sink_args, runs, call.expression_args
    grid = (call.num_heads, ceil_div(call.seqlen_q, tiles.block_m), call.batch)
    size = shared_bytes(call.head_dim, tiles)
    arrays.launch(kernel, grid, (tiles.threads,), *call.arguments, *more, shared_bytes=size)
    return call.out, call.lse
