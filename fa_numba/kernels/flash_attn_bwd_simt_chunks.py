"""FlashAttention, backward, with register tiles whose operands arrive in chunks.

flash_attn_bwd_simt          a thread has 4 rows of each product, and keeps its dK and dV
flash_attn_bwd_simt_chunks   a thread has 8 rows of one product at a time          <- this file

Four rows of eight columns cost 12 numbers from shared memory for 32 multiplications, eight rows 16
for 64. Eight rows fit where a product is done with its registers before the next begins: S becomes
P, P goes to shared memory and gives its part of dV, then dP becomes dS, which takes P's place, and
lies beside it with rows and columns exchanged, as the product for dQ wants it. What a pair of tiles
gives to dK, dV and dQ is added in HBM. Of dK and dV that is done by the same thread in the same
order in every run; to dQ other thread blocks add too. K, V, Q and dout pass through shared memory
in chunks (`chunks`), as often as a product wants them, K and V turned, too. The longest tiles of
all heads begin first, as in the forward pass.

`flash_attn_bwd_simt` launches it for float32 tiles of 64 and 128 columns, from sm_80 on.
"""

import functools
import math

import numpy as np
from numba import cuda, float32, uint64
from numba.cuda import types
from numba.cuda.extending import intrinsic

from fa_numba import arrays
from fa_numba.analysis.block_sizes import ceil_div
from fa_numba.analysis.register_tiling import backward_chunks, columns
from fa_numba.kernels import chunks, masks, register_tiles
from fa_numba.tensor_core.cp_async import cp_async_4, cp_async_commit, cp_async_wait
from fa_numba.tensor_core.ptx import global_address, shared_address, statement
from fa_numba.tensor_core.vectors import atomic_add, atomic_add_x4, load_global_x4

ZERO, ONE, LOG2_E = np.float32(0), np.float32(1), np.float32(math.log2(math.e))
RED_X4 = (9, 0)  # from here on four numbers can be added by one instruction
THREADS_OF_DELTA, ROWS_AT_ONCE = 256, 4  # of its kernel, of a thread


@intrinsic
def unknown_one(typingctx):
    """1, which the compiler does not know to be 1.

    What is added four at a time lies in four neighbouring registers: where a sum is added as it is,
    its product finds its numbers in one register bank, and takes longer than so to multiply.
    """
    return statement("mov.f32 <result>, 0f3F800000;", result=types.float32)


@functools.cache
def make_delta(HEAD_DIM):
    """A kernel: delta = rowsum(dout ∘ out); 16 or 32 lanes share a row."""
    LANES = columns(HEAD_DIM)[1] // 4
    ROWS = THREADS_OF_DELTA // LANES
    SHAPE = ROWS_AT_ONCE, 4

    @cuda.jit(launch_bounds=(THREADS_OF_DELTA,), fastmath={"contract"})
    def delta_kernel(dout, out, delta):
        """A lane has 16 bytes of ROWS_AT_ONCE rows.

        grid      (num_tiles of ROWS · ROWS_AT_ONCE rows, num_heads, batch); threads (256,)
        shared    none
        private   x, y (4, 4)
        HBM       dout, out, delta once
        paper     FlashAttention-2, Algorithm 2, line 4
        budget    48 registers, 0 bytes shared
        """
        x = cuda.local.array(SHAPE, float32)
        y = cuda.local.array(SHAPE, float32)
        lane, r = cuda.threadIdx.x % LANES, cuda.threadIdx.x // LANES
        m_start = cuda.blockIdx.x * (ROWS * ROWS_AT_ONCE) + r
        head, b = cuda.blockIdx.y, cuda.blockIdx.z
        x_start = global_address(dout[b, 0, head]) + uint64(16 * lane)
        y_start = global_address(out[b, 0, head]) + uint64(16 * lane)
        for i in range(ROWS_AT_ONCE):  # first the loads: they are on the way together
            m = m_start + i * ROWS
            if m < out.shape[1] and 4 * lane < HEAD_DIM:
                load_global_x4(x[i], x_start + uint64(m * dout.strides[1]))
                load_global_x4(y[i], y_start + uint64(m * out.strides[1]))
            else:
                for c in range(4):
                    x[i, c] = ZERO
                    y[i, c] = ZERO
        for i in range(ROWS_AT_ONCE):
            total = ZERO
            for c in range(4):
                total += x[i, c] * y[i, c]
            step = LANES // 2
            while step > 0:
                total += cuda.shfl_xor_sync(register_tiles.ALL_LANES, total, step)
                step //= 2
            m = m_start + i * ROWS
            if lane == 0 and m < out.shape[1]:
                delta[b, head, m] = total

    return delta_kernel


def write_delta(dout, out, delta):
    """delta = rowsum(dout ∘ out), of shape (batch, num_heads, seqlen_q)."""
    batch, seqlen_q, num_heads, head_dim = out.shape
    rows = THREADS_OF_DELTA * ROWS_AT_ONCE * 4 // columns(head_dim)[1]  # of a thread block
    grid = (ceil_div(seqlen_q, rows), num_heads, batch)
    arrays.launch(make_delta(head_dim), grid, (THREADS_OF_DELTA,), dout, out, delta)


@functools.cache
def make_flash_attn_bwd_simt_chunks(
    HEAD_DIM, CAUSAL, WINDOW=(-1, -1), SOFTCAP=0.0, ALIBI=False, ADD_DQ=True, RED_X4=True
):
    """dK, dV and, with ADD_DQ, dQ; `backward_chunks` says with how many threads.

    It adds to them. The inputs turned are those of `chunks.turn`. Without ALIBI the argument
    alibi_slopes is not looked at, and may be any scalar; so may dq without ADD_DQ. With RED_X4 four
    numbers are added at a time.
    """
    first_query, end_query, sees = masks.make_bounds_of_keys(CAUSAL, WINDOW)
    score, score_bwd = masks.make_score(SOFTCAP, ALIBI), masks.make_score_bwd(SOFTCAP)
    tiling = backward_chunks(HEAD_DIM)
    WIDTH, BLOCK_M, BLOCK_N, TX, TY, CHUNK, ROW_CHUNK, STAGES = tiling
    THREADS = tiling.threads
    ROWS, COLS = BLOCK_N // TY, BLOCK_M // TX  # of a thread
    OUT_COLS, DQ_ROWS = WIDTH // TX, BLOCK_M // TY
    SHAPE, OUT_SHAPE, DQ_SHAPE = (ROWS, COLS), (ROWS, OUT_COLS), (DQ_ROWS, OUT_COLS)
    DS_ROW, P_ROW, Q_ROW = tiling.ds_row, tiling.p_row, tiling.q_row
    P_TILE, DS_TILE, LSE_ROWS = 0, tiling.ds_start, tiling.lse_start
    DELTA_ROWS, RING, STAGE = LSE_ROWS + BLOCK_M, tiling.ring_start, tiling.stage
    D_CHUNKS, M_CHUNKS, N_CHUNKS = WIDTH // CHUNK, BLOCK_M // ROW_CHUNK, BLOCK_N // ROW_CHUNK
    PADDED, CAPPED = HEAD_DIM < WIDTH, SOFTCAP > 0

    place = register_tiles.make_place(TX)
    copy_keys = chunks.make_copy(CHUNK, BLOCK_N, BLOCK_N, THREADS)
    copy_queries = chunks.make_copy(BLOCK_M, CHUNK, Q_ROW, THREADS)
    copy_rows = chunks.make_copy(ROW_CHUNK, WIDTH, WIDTH, THREADS)
    add_rows = chunks.make_add_product_by_rows(ROWS, COLS, TY, TX, CHUNK, BLOCK_N, Q_ROW)
    add_out = chunks.make_add_product(ROWS, OUT_COLS, TY, TX, ROW_CHUNK, P_ROW, WIDTH)
    add_dq = chunks.make_add_product(DQ_ROWS, OUT_COLS, TY, TX, ROW_CHUNK, DS_ROW, WIDTH)

    @cuda.jit(device=True, forceinline=True)
    def copy_columns(tiles, chunk, keys, queries, own, m_start, head):
        """Start to copy a chunk of columns, of a tile of keys, turned, and of one of queries."""
        b, n_start, kv_head = own
        stage, d = RING + chunk % STAGES * STAGE, chunk * CHUNK
        address = global_address(keys[b, kv_head, d]) + uint64(4 * n_start)
        copy_keys(tiles, stage, address, keys.strides[2], CHUNK, BLOCK_N)
        stage += CHUNK * BLOCK_N
        stride, num_inside = queries.strides[1], queries.shape[1] - m_start
        address = global_address(queries[b, 0, head]) + uint64(m_start * stride + 4 * d)
        copy_queries(tiles, stage, address, stride, num_inside, HEAD_DIM - d)
        cp_async_commit()

    @cuda.jit(device=True, forceinline=True)
    def copy(tiles, chunk, x, b, start, head):
        """Start to copy a chunk of rows."""
        first = start + chunk * ROW_CHUNK
        address = global_address(x[b, 0, head]) + uint64(first * x.strides[1])
        stage = RING + chunk % STAGES * STAGE
        copy_rows(tiles, stage, address, x.strides[1], x.shape[1] - first, HEAD_DIM)
        cp_async_commit()

    @cuda.jit(device=True, forceinline=True)
    def copy_numbers(tiles, start, x, b, head, first):
        """Start to copy the numbers of BLOCK_M queries; they belong to the next chunk."""
        r = cuda.threadIdx.x
        if r < BLOCK_M:
            address = global_address(x[b, head]) + uint64((first + r) * x.strides[2])
            size = 4 if first + r < x.shape[2] else 0
            cp_async_4(shared_address(tiles) + 4 * (start + r), address, size)

    @cuda.jit(device=True, forceinline=True)
    def copy_first(tiles, inputs, own, m_start, head):
        """Start to copy what a tile of queries begins with."""
        k_turned, q, lse, delta = inputs
        copy_numbers(tiles, LSE_ROWS, lse, own[0], head, m_start)
        copy_numbers(tiles, DELTA_ROWS, delta, own[0], head, m_start)
        copy_columns(tiles, 0, k_turned, q, own, m_start, head)

    @cuda.jit(device=True, forceinline=True)
    def next_chunk():
        cp_async_wait(0)
        cuda.syncthreads()  # the chunk is complete; everyone is done with the last one

    def make_add_to(NUM_ROWS, SIDE):
        """add_to(x, part, b, first, head, ty, tx, factor): x += factor · part, x = where new.

        Those of x from row `first` on; of each 4 · SIDE of them every SIDE-th are neighbours in
        part.
        """

        @cuda.jit(device=True, forceinline=True)
        def add_to(x, part, b, first, head, ty, tx, factor):
            four = cuda.local.array(4, float32)
            for i in range(NUM_ROWS):
                fours = ty + i // 4 * TY
                row = first + fours % SIDE + fours // SIDE * 4 * SIDE + i % 4 * SIDE
                if row < x.shape[1]:
                    address = global_address(x[b, 0, head]) + uint64(row * x.strides[1])
                    for c in range(0, OUT_COLS, 4):
                        d = 4 * tx + c * TX
                        for y in range(4):
                            four[y] = part[i, c + y] * factor
                        if not PADDED or d < HEAD_DIM:
                            if RED_X4:
                                atomic_add_x4(address + uint64(4 * d), four)
                            else:
                                for y in range(4):
                                    atomic_add(address + uint64(4 * (d + y)), four[y])

        return add_to

    add_to_keys, add_to_queries = make_add_to(ROWS, 1), make_add_to(DQ_ROWS, TX)

    @cuda.jit(launch_bounds=(THREADS, 256 // THREADS), fastmath={"contract"})
    def flash_attn_bwd_simt_chunks_kernel(
        dout,
        q,
        k,
        k_turned,
        v_turned,
        lse,
        delta,
        dq,
        dk,
        dv,
        softmax_scale,
        alibi_slopes,
    ):
        """A thread block owns BLOCK_N keys and walks the queries of every head that uses them.

        grid      (num_kv_heads, num_n_tiles, batch); threads (TX · TY,): thread (ty, tx) owns of
                  the keys of Sᵀ, dPᵀ, dk, dv four neighbours from 4 ty on, the next 4 TY further
                  on, of the columns of dk, dv, dq the same from 4 tx on, and queries tx, tx + TX,
                  ... of Sᵀ and dPᵀ
        shared    p_tile (BLOCK_M, BLOCK_N), first P, then dS; ds_tile (BLOCK_N, BLOCK_M), the
                  queries of a thread beside each other; lse_rows, delta_rows (BLOCK_M,); ring
                  (STAGES,), of CHUNK columns of K and Q or of V and dout, or ROW_CHUNK rows of one
        private   s, dp (ROWS, COLS), part (ROWS, OUT_COLS), dq_part (DQ_ROWS, OUT_COLS), one
                  of them at a time
        HBM       K, Q, dout twice, V, lse, delta once per pair of tiles, but for those that see
                  nothing of each other; to dK, dV, dQ once per pair, atomically; with ALIBI
                  alibi_slopes in every thread, for each head
        paper     FlashAttention-2, Algorithm 2
        budget    255 registers, 0 bytes shared of fixed size; with SOFTCAP s or dp for the tile's
                  elementwise part in local memory
        """
        tiles = cuda.shared.array(0, float32)
        s = cuda.local.array(SHAPE, float32)
        dp = cuda.local.array(SHAPE, float32)
        part = cuda.local.array(OUT_SHAPE, float32)  # what one tile adds to a gradient
        dq_part = cuda.local.array(DQ_SHAPE, float32)

        tx, ty = place(cuda.threadIdx.x)
        n_start = cuda.blockIdx.y * BLOCK_N  # the first keys are seen by the most queries
        kv_head, b = cuda.blockIdx.x, cuda.blockIdx.z
        seqlen_q, seqlen_k = q.shape[1], k.shape[1]
        group_size = q.shape[2] // k.shape[2]
        end_head = (kv_head + 1) * group_size
        first_position = n_start - seqlen_k + seqlen_q  # of the tile's keys, among the queries
        last_position = first_position + BLOCK_N - 1
        # Tiles without a query that sees a key of this one are not even loaded.
        m_first = first_query(first_position) // BLOCK_M * BLOCK_M
        m_end = end_query(last_position, seqlen_q)

        first_head = kv_head * group_size
        next_head, next_start = first_head, m_first
        own, inputs = (b, n_start, kv_head), (k_turned, q, lse, delta)
        copy_first(tiles, inputs, own, next_start, next_head)
        for head in range(first_head, end_head):
            slope = alibi_slopes[head] if ALIBI else ZERO
            for m_start in range(m_first, m_end, BLOCK_M):
                next_start += BLOCK_M
                if next_start >= m_end:
                    next_head, next_start = next_head + 1, m_first
                for i in range(ROWS):
                    for j in range(COLS):
                        s[i, j] = ZERO
                for chunk in range(D_CHUNKS):  # Sᵀ = K Qᵀ                               line 10
                    next_chunk()
                    if chunk + 1 < D_CHUNKS:
                        copy_columns(tiles, chunk + 1, k_turned, q, own, m_start, head)
                    else:
                        copy(tiles, 0, dout, b, m_start, head)
                    stage = RING + chunk % STAGES * STAGE
                    add_rows(s, tiles, stage, stage + CHUNK * BLOCK_N, ty, tx)
                # Does every key of the tile see every query of it?
                seen_from = first_query(last_position)
                seen_to = end_query(first_position, seqlen_q)
                whole = m_start >= seen_from and m_start + BLOCK_M <= seen_to
                whole = whole and n_start + BLOCK_N <= seqlen_k
                distance = float32(first_position + 4 * ty - m_start - tx)  # of the first two
                for j in range(COLS):
                    m = m_start + tx + j * TX
                    lse_j = tiles[uint64(LSE_ROWS + tx + j * TX)]
                    for i in range(ROWS):
                        row = 4 * ty + i // 4 * 4 * TY + i % 4
                        scaled = s[i, j] * softmax_scale
                        if CAPPED:  # kept where dS will be
                            at = DS_TILE + row * DS_ROW + 4 * tx + j // 4 * 4 * TX + j % 4
                            tiles[uint64(at)] = score_bwd(ONE, scaled)
                        further = float32(i // 4 * 4 * TY + i % 4 - j * TX)
                        bent = score(scaled, distance + further, slope)
                        p = math.exp2((bent - lse_j) * LOG2_E)  # P = exp(S - lse)       line 11
                        if not whole:
                            seen = sees(first_position + row, m, seqlen_q)
                            p = p if seen and n_start + row < seqlen_k else ZERO
                        s[i, j] = p
                    at = P_TILE + (tx + j * TX) * P_ROW + 4 * ty
                    for i in range(0, ROWS, 4):
                        for x in range(4):
                            tiles[uint64(at + i * TY + x)] = s[i + x, j]
                cuda.syncwarp()  # a column of p_tile is written and read by the same warp

                for i in range(ROWS):
                    for c in range(OUT_COLS):
                        part[i, c] = ZERO
                for chunk in range(M_CHUNKS):
                    next_chunk()
                    if chunk + 1 < M_CHUNKS:
                        copy(tiles, chunk + 1, dout, b, m_start, head)
                    else:
                        copy_columns(tiles, 0, v_turned, dout, own, m_start, head)
                    stage = RING + chunk % STAGES * STAGE
                    add_out(part, tiles, P_TILE + chunk * ROW_CHUNK * P_ROW, stage, ty, tx)
                factor = unknown_one()
                add_to_keys(dv, part, b, n_start, kv_head, ty, tx, factor)  # dV += Pᵀ dout
                for i in range(ROWS):
                    for j in range(COLS):
                        dp[i, j] = ZERO
                for chunk in range(D_CHUNKS):  # dPᵀ = V doutᵀ                           line 13
                    next_chunk()
                    if chunk + 1 < D_CHUNKS:
                        copy_columns(tiles, chunk + 1, v_turned, dout, own, m_start, head)
                    else:
                        copy(tiles, 0, q, b, m_start, head)
                    stage = RING + chunk % STAGES * STAGE
                    add_rows(dp, tiles, stage, stage + CHUNK * BLOCK_N, ty, tx)
                for j in range(COLS):
                    delta_j = tiles[uint64(DELTA_ROWS + tx + j * TX)]
                    at = P_TILE + (tx + j * TX) * P_ROW + 4 * ty
                    for i in range(0, ROWS, 4):
                        for x in range(4):
                            p = tiles[uint64(at + i * TY + x)]
                            ds = p * (dp[i + x, j] - delta_j)  # dS = P ∘ (dP - delta)   line 14
                            if CAPPED:
                                row = 4 * ty + i * TY + x
                                of = DS_TILE + row * DS_ROW + 4 * tx + j // 4 * 4 * TX + j % 4
                                ds *= tiles[uint64(of)]
                            dp[i + x, j] = ds
                        for x in range(4):
                            tiles[uint64(at + i * TY + x)] = dp[i + x, j]
                for i in range(ROWS):
                    at = DS_TILE + (4 * ty + i // 4 * 4 * TY + i % 4) * DS_ROW + 4 * tx
                    for j in range(0, COLS, 4):
                        for x in range(4):
                            tiles[uint64(at + j * TX + x)] = dp[i, j + x]
                cuda.syncwarp()  # as above

                for i in range(ROWS):
                    for c in range(OUT_COLS):
                        part[i, c] = ZERO
                for chunk in range(M_CHUNKS):
                    next_chunk()
                    if chunk + 1 < M_CHUNKS:
                        copy(tiles, chunk + 1, q, b, m_start, head)
                    elif ADD_DQ:
                        copy(tiles, 0, k, b, n_start, kv_head)
                    elif next_head < end_head:
                        copy_first(tiles, inputs, own, next_start, next_head)
                    stage = RING + chunk % STAGES * STAGE
                    add_out(part, tiles, P_TILE + chunk * ROW_CHUNK * P_ROW, stage, ty, tx)
                add_to_keys(dk, part, b, n_start, kv_head, ty, tx, softmax_scale)  # line 16
                if ADD_DQ:
                    for i in range(DQ_ROWS):
                        for c in range(OUT_COLS):
                            dq_part[i, c] = ZERO
                    for chunk in range(N_CHUNKS):
                        next_chunk()
                        if chunk + 1 < N_CHUNKS:
                            copy(tiles, chunk + 1, k, b, n_start, kv_head)
                        elif next_head < end_head:
                            copy_first(tiles, inputs, own, next_start, next_head)
                        at, stage = (
                            DS_TILE + chunk * ROW_CHUNK * DS_ROW,
                            RING + chunk % STAGES * STAGE,
                        )
                        add_dq(dq_part, tiles, at, stage, ty, tx)
                    add_to_queries(dq, dq_part, b, m_start, head, ty, tx, softmax_scale)  # line 15

    return flash_attn_bwd_simt_chunks_kernel
