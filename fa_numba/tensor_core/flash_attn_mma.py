"""FlashAttention-2 forward on tensor cores: mma.sync, for every GPU since Ampere.

flash_attn_v2      float32 multiply-adds, one thread for each score
flash_attn_mma     a warp multiplies tiles in registers; cp.async fetches the next    <- this file
flash_attn_wgmma   four warps multiply tiles in shared memory; TMA fetches the next
flash_attn_ws      a warp of its own fetches; the next tile's Q Kᵀ beside this one's P V

Each of four warps owns 32 query rows: a fragment of K or V in registers serves two products of 16
rows each; beyond head_dim 128 there are registers for one. Four lanes, a quad, hold a row, instead
of a whole thread block: softmax needs shuffles and no barrier. P never leaves the registers, since
a product's result has the layout of the next one's operand. Copies to shared memory are in flight
while the warps compute: V arrives during Q Kᵀ, the next K during softmax and P V.

Every instruction between two products costs time. So most tiles omit the work of an online softmax
for a new maximum (`lazy_rescaling`), which also leaves registers for larger tiles.

On an H200 at n = 8192 it reached about 410 (350) TFLOP/s at head_dim 128 and 360 (340) at 64, where
PyTorch's FlashAttention-2 had 350 (320) and 310 (290) in the same run; float16, causal in brackets;
benchmarks/results/tensor_core.json. It compiles for sm_80, and has run on sm_90 alone.

Papers: Dao 2023, FlashAttention-2, arXiv:2307.08691, Algorithm 1 and section 3.3.
"""

import functools

from numba import cuda, float32, int32, uint32, uint64

from fa_numba import checks
from fa_numba.expressions.tiles import WHOLE
from fa_numba.on_cuda_cores import run_time_masks
from fa_numba.on_cuda_cores.run_time_masks import MaskArgs
from fa_numba.ptx.cp_async import cp_async_16, cp_async_commit, cp_async_wait
from fa_numba.ptx.layouts import PANEL_COLS, ROW_BYTES
from fa_numba.ptx.ldmatrix import ldmatrix_x4, ldmatrix_x4_trans
from fa_numba.ptx.statement import global_address
from fa_numba.ptx.vectors import load_shared_x4, store_global_x4, store_shared_b32
from fa_numba.runtime import arrays
from fa_numba.tensor_core import forward
from fa_numba.tensor_core.expression_tiles import (
    ExpressionArgs,
    add_sink,
    make_run_functions,
    make_tile_functions,
    runs_of,
)
from fa_numba.tensor_core.fragments import (
    log_sum_exp,
    make_fragment_functions,
    make_mask_tile,
    make_score_mod,
    over_quad_sum,
)
from fa_numba.tensor_core.lazy_rescaling import make_lazy_rescaling
from fa_numba.tensor_core.shared_plan import SharedPlan
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.persistent_tiling import ROWS

REQUIREMENTS = checks.KERNELS["flash_attn_mma"]
WARPS = 4
THREADS = 32 * WARPS
ROWS_AT_ONCE = THREADS // 8  # eight threads copy a row of a panel; a multiple of 8: one swizzle
RESERVED_BYTES = 1024  # of shared memory, which the system reserves for each thread block


def tile_sizes(head_dim, *, modified=False, expressed=False, shared_memory=None):
    """(M_TILES, BLOCK_N), the largest for which everything fits into registers.

    A warp owns M_TILES times 16 query rows, the thread block 4 times as many.

    Parameters
    ----------
    head_dim : int
    modified : bool, default=False
        Whether a score_mod, softcap or ALiBi, needs registers too.
    expressed : bool, default=False
        Whether a mask or a score of the user's does; their arguments and the runs take more.
    shared_memory : int, default=None
        Bytes that a thread block may ask for. If two thread blocks do not fit side by side, the
        tiles of K and V are smaller. None: they fit.
    """
    m_tiles, block_n = (2, 128) if head_dim <= 64 else (2, 64) if head_dim <= 128 else (1, 64)
    if expressed:
        m_tiles, block_n = 2 if head_dim <= 64 else 1, 64
    elif modified:
        block_n //= 2
    two = 2 * (shared_bytes(head_dim, m_tiles, block_n) + RESERVED_BYTES)
    if shared_memory is not None and two > shared_memory + RESERVED_BYTES:
        block_n = 32
    return m_tiles, block_n


@functools.cache
def make_plan(HEAD_DIM, M_TILES, BLOCK_N):
    """Shared memory of a thread block: a `SharedPlan`. Tiles begin at a whole row."""
    row_bytes = ceil_div(HEAD_DIM, PANEL_COLS) * ROW_BYTES
    plan = SharedPlan(align=ROW_BYTES)
    plan.Q = plan.tiles(1, 16 * WARPS * M_TILES * row_bytes)
    plan.K, plan.V = plan.tiles(1, BLOCK_N * row_bytes), plan.tiles(1, BLOCK_N * row_bytes)
    return plan


def shared_bytes(HEAD_DIM, M_TILES, BLOCK_N):
    """Shared memory that a thread block asks for."""
    return make_plan(HEAD_DIM, M_TILES, BLOCK_N).bytes


@functools.cache
def make_flash_attn_mma(
    HEAD_DIM, M_TILES, BLOCK_N, CAUSAL, DTYPE, WINDOW=(-1, -1), SOFTCAP=0.0, ALIBI=False,
    EXPRESSIONS=None, SINKS=False,
):  # fmt: skip
    """The kernel for these compile-time constants: THREADS threads, `make_plan` of shared memory.

    HEAD_DIM is a multiple of 8, DTYPE "float16" or "bfloat16". Without ALIBI the argument
    alibi_slopes is not read, and may be any scalar. WINDOW and SOFTCAP may be AT_RUN_TIME
    (`run_time_masks`); otherwise left, right, unit and inverse_unit are not read.

    With EXPRESSIONS the mask and the score are the user's alone, runs is that of `runs_of` and args
    the tuple of their arguments; sinks is that of the sinks, with SINKS. Otherwise empty.
    """
    EXPRESSED = EXPRESSIONS is not None
    BLOCK_M = 16 * WARPS * M_TILES
    COLS = 16 * ceil_div(HEAD_DIM, 16)  # multiplied; zero-padded from HEAD_DIM on
    D16, N16 = COLS // 16, BLOCK_N // 16
    NUM_PANELS, WHOLE_PANELS = ceil_div(HEAD_DIM, PANEL_COLS), HEAD_DIM % PANEL_COLS == 0
    Q_PANEL, KV_PANEL = BLOCK_M * ROW_BYTES, BLOCK_N * ROW_BYTES  # bytes of 64 columns
    plan = make_plan(HEAD_DIM, M_TILES, BLOCK_N)
    Q, K, V, shared_base = plan.Q, plan.K, plan.V, plan.shared_base
    # A lane's registers, as `mma` draws them: 4 floats of each product, 2 numbers of P in one.
    S_SHAPE, P_SHAPE = (M_TILES, BLOCK_N // 8, 4), (M_TILES, N16, 4)
    OUT_SHAPE = (M_TILES, COLS // 8, 4)
    mma, pack = forward.mma_of(DTYPE), forward.pack_of(DTYPE)
    fragments = make_fragment_functions(BLOCK_N, COLS, pack)
    clear, pack_p = fragments.clear, fragments.pack_p
    lazy_softmax = make_lazy_rescaling(M_TILES, BLOCK_N, COLS, ALIBI)
    mask_tile = make_mask_tile(BLOCK_N, CAUSAL, WINDOW)
    exponent_scale_of, modify_scores = make_score_mod(BLOCK_N, CAUSAL, WINDOW, SOFTCAP, ALIBI)
    bounds = run_time_masks.make_bounds(CAUSAL, WINDOW)
    first_key, end_key = bounds.first_key, bounds.end_key
    run_of, class_of = make_run_functions(BLOCK_M)
    expressed = make_tile_functions(BLOCK_N, EXPRESSIONS)
    expressed_scale_of, modify = expressed.exponent_scale_of, expressed.modify

    @cuda.jit(device=True, forceinline=True)
    def copy_tile(tile, num_rows, source, row_stride, row, seqlen, chunk):
        """Start to copy this thread's part of a tile: a chunk of every 16th row from `row` on."""
        for panel in range(NUM_PANELS):
            inside = WHOLE_PANELS or 64 * panel + 8 * chunk < HEAD_DIM
            for i in range(num_rows // ROWS_AT_ONCE):
                r = i * ROWS_AT_ONCE
                destination = tile + (panel * num_rows + r) * ROW_BYTES
                num_bytes = 16 if inside and int32(row + r) < seqlen else 0
                cp_async_16(
                    destination, source + uint64(r * row_stride + panel * ROW_BYTES), num_bytes
                )

    @cuda.jit(device=True, forceinline=True)
    def multiply_q_k(s, q_row, k_row):
        """S = Q Kᵀ. The addresses are this lane's for the first 16 columns of Q's and K's rows.

        Chunk c of row r lies at index c ^ (r % 8). A lane's first chunk is 0 or 1; 16 columns
        later it is c + 2 = c ^ 2, at the first one's index ^ 2: an exclusive or of 32 bytes, since
        tiles begin at a whole row. After four such steps, 64 columns, the next panel follows.
        """
        a = cuda.local.array((2, M_TILES, 4), uint32)  # double-buffered: loads may run ahead
        b = cuda.local.array((2, 2, 2), uint32)
        for i in range(M_TILES):
            for j in range(BLOCK_N // 8):
                for r in range(4):
                    s[i, j, r] = float32(0)
        for d in range(D16):
            for i in range(M_TILES):
                at = (q_row ^ ((d & 3) << 5)) + (d >> 2) * Q_PANEL + i * 16 * ROW_BYTES
                ldmatrix_x4(a[d & 1, i], at)
            for j in range(N16):
                at = (k_row ^ ((d & 3) << 5)) + (d >> 2) * KV_PANEL + j * 16 * ROW_BYTES
                ldmatrix_x4(b[j & 1], at)
                for i in range(M_TILES):
                    mma(s[i, 2 * j], a[d & 1, i], b[j & 1, 0])
                    mma(s[i, 2 * j + 1], a[d & 1, i], b[j & 1, 1])

    @cuda.jit(device=True, forceinline=True)
    def multiply_p_v(acc, p, v_row):
        """out <- out + P V. The address is this lane's for the first 16 rows and columns of V."""
        b = cuda.local.array((2, 2, 2), uint32)
        for n in range(N16):
            for j in range(D16):
                at = (v_row ^ ((j & 3) << 5)) + (j >> 2) * KV_PANEL + n * 16 * ROW_BYTES
                ldmatrix_x4_trans(b[j & 1], at)
                for i in range(M_TILES):
                    mma(acc[i, 2 * j], p[i, n], b[j & 1, 0])
                    mma(acc[i, 2 * j + 1], p[i, n], b[j & 1, 1])

    @cuda.jit(device=True, forceinline=True)
    def modify_each(s, EDGE, n_start, position, seqlen_k, lane, given):
        """The user's score and mask. No loop: the compiler would not unroll one of this size."""
        modify(s[0], EDGE, n_start, position, seqlen_k, lane, given)
        if M_TILES == 2:
            modify(s[1], EDGE, n_start, position + 16, seqlen_k, lane, given)

    @cuda.jit(device=True, forceinline=True)
    def finish_rows(acc, m_i, l_i, lse, b, head, m, rows, lane, scale):
        """Store lse, and out to the warp's rows of q_tile, `rows`; m is the first row's index."""
        g = lane >> 2  # this lane's row of each 8
        for i in range(M_TILES):
            for h in range(2):
                l = over_quad_sum(l_i[i, h])
                inverse = float32(1) / l if l > float32(0) else float32(0)
                r = 16 * i + 8 * h + g
                row = rows + r * ROW_BYTES + ((lane & 3) << 2)
                for j in range(HEAD_DIM // 8):  # out <- out / l_i                     line 12
                    two = pack(acc[i, j, 2 * h] * inverse, acc[i, j, 2 * h + 1] * inverse)
                    store_shared_b32(row + (j >> 3) * Q_PANEL + (((j & 7) ^ g) << 4), two)
                if lane & 3 == 0 and m + r < lse.shape[2]:  # lse <- m_i + log l_i     line 13
                    lse[b, head, m + r] = log_sum_exp(m_i[i, h], l, scale)

    @cuda.jit(device=True, forceinline=True)
    def store_rows(rows, out, b, m, head, lane):
        """Store the warp's rows of out from `rows`: eight lanes store 128 bytes of a row."""
        x = cuda.local.array(4, float32)  # eight numbers of 16 bits
        chunk = lane & 7
        for i in range(4 * M_TILES):
            r = 4 * i + (lane >> 3)
            if m + r < out.shape[1]:
                row = rows + r * ROW_BYTES + ((chunk ^ (r & 7)) << 4)
                address = global_address(out[b, m + r, head]) + uint64(16 * chunk)
                for panel in range(NUM_PANELS):
                    if WHOLE_PANELS or 64 * panel + 8 * chunk < HEAD_DIM:
                        load_shared_x4(x, row + panel * Q_PANEL)
                        store_global_x4(address + uint64(panel * ROW_BYTES), x)

    @cuda.jit(fastmath=True, launch_bounds=(THREADS, 2))
    def flash_attn_mma_kernel(
        q, k, v, out, lse, scale, alibi_slopes, left, right, unit, inverse_unit, sinks, runs, args
    ):
        """A thread block owns BLOCK_M query rows and walks the tiles of K and V.

        scale is softmax_scale · log2 e, for powers of 2; left, right, unit, inverse_unit are
        `run_time_masks.MaskArgs`. Lines are Algorithm 1's.

        grid      (num_m_tiles, num_heads, batch); 128 threads, a warp has 16 · M_TILES rows
        shared    q_tile (BLOCK_M, HEAD_DIM), at the end out; k_tile, v_tile (BLOCK_N, HEAD_DIM);
                  in panels of 64 columns, swizzled
        private   s (M_TILES, BLOCK_N / 8, 4), p (M_TILES, BLOCK_N / 16, 4), acc (M_TILES,
                  HEAD_DIM / 8, 4), fragments of Q, K and V; m_i, l_i for 2 · M_TILES rows
        HBM       Q, out, lse once; K and V once per tile of queries, except for tiles that none of
                  them sees
        paper     FlashAttention-2, Algorithm 1
        budget    255 registers, two thread blocks per SM
        """
        mask_args = MaskArgs(left, right, unit, inverse_unit)
        base = shared_base()
        q_tile, k_tile, v_tile = base + Q.start, base + K.start, base + V.start

        s = cuda.local.array(S_SHAPE, float32)
        p = cuda.local.array(P_SHAPE, uint32)
        acc = cuda.local.array(OUT_SHAPE, float32)
        m_i = cuda.local.array((M_TILES, 2), float32)
        l_i = cuda.local.array((M_TILES, 2), float32)
        offset = cuda.local.array((M_TILES, 2), float32)  # of scores, from ALiBi

        tid = cuda.threadIdx.x
        lane, warp_row = tid & 31, (tid >> 5) * (16 * M_TILES)
        head, b = cuda.blockIdx.y, cuda.blockIdx.z
        kv_head = head // (q.shape[2] // k.shape[2])
        seqlen_q, seqlen_k = int32(q.shape[1]), int32(k.shape[1])
        # The last rows see the most keys under a causal mask: they begin first, so as not to end
        # last.
        m_start = (cuda.gridDim.x - 1 - cuda.blockIdx.x) * BLOCK_M
        first_position = m_start + seqlen_k - seqlen_q  # of the first row, in the keys
        position = first_position + warp_row + (lane >> 2)  # of this lane's first row; next + 8
        n_begin = first_key(first_position, mask_args) // BLOCK_N * BLOCK_N
        n_end = end_key(first_position + BLOCK_M - 1, seqlen_k, mask_args)
        # P = exp2((s − m_i) · exponent_scale)
        exponent_scale = exponent_scale_of(scale, mask_args)
        if EXPRESSED:
            exponent_scale = expressed_scale_of(scale)
            given = ExpressionArgs(scale, 0, 0, True, int32(b), int32(head), args, runs[1:])
            tile, end, classes = run_of(runs[0], int32(b), int32(head), m_start, int32(0))
            n_begin, n_end, next_run = tile * BLOCK_N, end * BLOCK_N, int32(1)
        slope = alibi_slopes[head] if ALIBI else float32(0)

        # This thread copies one chunk of 16 bytes in every 16th row of each panel.
        row, chunk = tid >> 3, tid & 7
        to = row * ROW_BYTES + ((chunk ^ (row & 7)) << 4)
        m, n = m_start + row, n_begin + row
        q_source = global_address(q[b, 0, head]) + uint64(m * q.strides[1] + 16 * chunk)
        k_source = global_address(k[b, 0, kv_head]) + uint64(n * k.strides[1] + 16 * chunk)
        v_source = global_address(v[b, 0, kv_head]) + uint64(n * v.strides[1] + 16 * chunk)

        # For ldmatrix this lane addresses a row of Q, K and V, in one of the first two chunks of 16
        # bytes. In Q and V lanes 0–15 address the rows of the left chunk, 16–31 those of the right
        # one: the order of A, and of B twice. In K lanes 0–7 address the left and 8–15 the right
        # chunk of 8 keys, the other lanes those of the next 8: b0, b1 of two products.
        # An exclusive or leads to the next 16 columns (`multiply_q_k`).
        q_rows = q_tile + warp_row * ROW_BYTES
        lane_offset = (lane & 15) * ROW_BYTES + (((lane >> 4) ^ (lane & 7)) << 4)
        q_row, v_row = q_rows + lane_offset, v_tile + lane_offset
        k_row = k_tile + ((lane & 7) + ((lane >> 4) << 3)) * ROW_BYTES
        k_row = uint32(k_row + ((((lane >> 3) & 1) ^ (lane & 7)) << 4))

        copy_tile(q_tile + to, BLOCK_M, q_source, q.strides[1], m, seqlen_q, chunk)
        copy_tile(k_tile + to, BLOCK_N, k_source, k.strides[1], n, seqlen_k, chunk)
        cp_async_commit()
        for i in range(M_TILES):
            clear(acc[i], m_i[i], l_i[i])

        while True:  # a run of tiles; without EXPRESSIONS there is one
            if EXPRESSED:
                next_tile, next_end, next_classes = run_of(
                    runs[0], int32(b), int32(head), m_start, next_run
                )
                masked = class_of(classes, warp_row // ROWS) != WHOLE
            for n_start in range(n_begin, n_end, BLOCK_N):
                n = int32(n_start + row)
                cp_async_wait(0)
                # k_tile, and at first q_tile, is complete; all are done with v_tile
                cuda.syncthreads()
                copy_tile(v_tile + to, BLOCK_N, v_source, v.strides[1], n, seqlen_k, chunk)
                cp_async_commit()
                multiply_q_k(s, q_row, k_row)  # S = Q Kᵀ                               line 8

                cp_async_wait(0)
                cuda.syncthreads()  # v_tile is complete; everyone is done with k_tile: overwrite it
                step, more = BLOCK_N, n_start + BLOCK_N < n_end
                if EXPRESSED and not more:
                    step, more = next_tile * BLOCK_N - n_start, next_end > 0
                k_source += uint64(step * k.strides[1])
                v_source += uint64(step * v.strides[1])
                if more:
                    copy_tile(
                        k_tile + to, BLOCK_N, k_source, k.strides[1], n + step, seqlen_k, chunk
                    )
                cp_async_commit()

                if EXPRESSED and masked:
                    modify_each(s, True, n_start, position, seqlen_k, lane, given)
                elif EXPRESSED:
                    modify_each(s, False, n_start, position, seqlen_k, lane, given)
                else:
                    for i in range(M_TILES):
                        rows = position + 16 * i
                        modify_scores(s[i], offset[i], n_start, rows, slope, scale, lane, mask_args)
                        mask_tile(s[i], n_start, rows, seqlen_k, lane, mask_args)
                # P = exp(S - m_i)                                                       line 9
                lazy_softmax(s, offset, m_i, l_i, acc, exponent_scale)
                for i in range(M_TILES):
                    pack_p(s[i], p[i])
                multiply_p_v(acc, p, v_row)  # out <- out + P V                         line 10
            if not EXPRESSED or next_end == 0:
                break
            n_begin, n_end, classes = next_tile * BLOCK_N, next_end * BLOCK_N, next_classes
            next_run = int32(next_run + 1)

        if SINKS:
            alpha = cuda.local.array(2, float32)
            for i in range(M_TILES):
                add_sink(m_i[i], l_i[i], alpha, sinks[0][head], exponent_scale, lane)
                for j in range(COLS // 8):
                    for r in range(4):
                        acc[i, j, r] *= alpha[r >> 1]
        m = m_start + warp_row
        if n_begin >= n_end:  # no key is seen, so nobody has waited for Q, which out overwrites
            cp_async_wait(0)
            cuda.syncthreads()
        finish_rows(acc, m_i, l_i, lse, b, head, m, q_rows, lane, exponent_scale)
        cuda.syncwarp()  # the warp's rows of out are written: safe to read; no other warp uses them
        store_rows(q_rows, out, b, m, head, lane)

    return flash_attn_mma_kernel


@arrays.replayed
@checks.takes(checks.SCORES)
def flash_attn_mma(q, k, v, **options):
    """FlashAttention-2, forward, by mma.sync: float16 and bfloat16 on GPUs since Ampere.

    Parameters
    ----------
    q, k, v, softmax_scale
        As for `flash_attn_persistent`, all of one head_dim.
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
    mask, head_dim = call.mask, call.head_dim
    limit = arrays.shared_bytes_per_block(q)
    needs = {"modified": mask.softcap > 0 or mask.alibi, "expressed": call.given is not None}
    m_tiles, block_n = tile_sizes(head_dim, **needs, shared_memory=limit)
    constants = run_time_masks.constants_of(mask)
    kernel = make_flash_attn_mma(
        head_dim, m_tiles, block_n, mask.causal, call.dtype, constants.window_size,
        constants.softcap, mask.alibi, call.expressions_if_any, call.has_sinks,
    )  # fmt: skip
    rows = 16 * WARPS * m_tiles
    runs = () if call.given is None else runs_of(call, q, k, block_n, rows // ROWS)[0]
    grid = (ceil_div(call.seqlen_q, rows), call.num_heads, call.batch)
    size = shared_bytes(head_dim, m_tiles, block_n)
    arguments = q, k, v, call.out, call.lse, call.scale_log2, call.slopes
    arguments += *run_time_masks.arguments_of(mask), call.sink_args, runs, call.expression_args
    arrays.launch(kernel, grid, (THREADS,), *arguments, shared_bytes=size)
    return call.out, call.lse
