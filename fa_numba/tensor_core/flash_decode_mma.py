"""Flash-Decoding at the speed of memory: 16-bit caches, contiguous or paged, with mma.sync.

flash_decode, paged_attn_decode   tiles of K and V go through shared memory; a thread per score
flash_decode_mma                  K and V go from HBM to the registers that multiply them  <- this
flash_decode_gather               Hopper: cp.async keeps a ring of keys full for each warp

Decoding reads each key once and computes little with it, so its speed depends on the number of
bytes in flight: 4.8 TB/s times about 700 ns for a load, an estimate, are 25 KB for each of an
H200's 132 SMs. Here each lane loads 16 bytes at a time. A warp has 4 KB of V in flight while it
multiplies K, and 4 KB of the next K while it multiplies V.

No shared memory is needed, because the operands of a product may order their columns in any way. A
lane of mma's B holds elements 2 i, 2 i + 1, 2 i + 8, 2 i + 9 of a key for one product. Here it
holds 8 neighbours of that key, and Q has the same 8 in those registers: a dot product has no order.
For P V, V is the operand A, transposed: a lane holds two rows of it, eight apart, for pairs of
keys. It has 8 neighbours of each of four keys, and uses two at a time as those rows. So the columns
of out are in another order, which the lane that holds them knows.

A row of S belongs to a quad of lanes as in `flash_attn_mma`, and P is already in the layout of the
next product. The rows are the queries of the heads of a group: 8 in a tile, of the 16 rows of mma.

On an H200 it reads float16 caches of 32 heads of 128 at 4.2 to 4.4 TB/s, in shuffled pages of 1 at
4.1 to 4.3, 96 to 97 % of the fastest kernel without pages (benchmarks/results/decode_fast.json).

Source: as for flash_decode.
"""

import functools

from numba import cuda, float32, uint32, uint64

from fa_numba import checks
from fa_numba.constants import FULL_WARP, NEG_INF, ZERO
from fa_numba.expressions.functions import NO_EXPRESSIONS
from fa_numba.on_cuda_cores.decode_problem import Pages, choose_splits, divide, launch, make_page_of
from fa_numba.on_cuda_cores.run_time_masks import MaskArgs
from fa_numba.ptx.statement import global_address
from fa_numba.ptx.vectors import high_halves, load_global_b128, low_halves
from fa_numba.runtime import arrays
from fa_numba.tensor_core import forward
from fa_numba.tensor_core.decoding import (
    KEYS,
    States,
    Unit,
    check_on_tensor_cores,
    make_keys_of_split,
    make_merge,
    make_online_softmax,
    warp_of,
)
from fa_numba.tiling.block_sizes import ceil_div

WARPS = 4
ROWS = 8  # of a tile: queries of one K/V head


@functools.cache
def make_flash_decode_mma(
    HEAD_DIM, DTYPE, PAGE_SIZE, CAUSAL, WINDOW=(-1, -1), SOFTCAP=0.0, ALIBI=False, WARPS=4,
    BLOCKS_PER_SM=3, EXPRESSIONS=NO_EXPRESSIONS,
):  # fmt: skip
    """The first kernel, attention split by split: launch it with 32 · WARPS threads.

    HEAD_DIM is a multiple of 8, DTYPE "float16" or "bfloat16". PAGE_SIZE is 0 for a contiguous
    cache; it, WINDOW and SOFTCAP may be AT_RUN_TIME (`run_time_masks`). block_table is unused for a
    contiguous cache, alibi_slopes without ALIBI: each may then be any scalar.
    EXPRESSIONS, the user's mask and score, are evaluated for each pair: classes of tiles would need
    seq_lens on the host.
    """
    mma = forward.mma_of(DTYPE)
    PAGED = PAGE_SIZE > 0
    BLOCK_N = KEYS * WARPS
    THREADS = 32 * WARPS
    K_STEPS, V_STEPS = ceil_div(HEAD_DIM, 32), ceil_div(HEAD_DIM, 64)  # loads of a row, by lanes
    K_WHOLE, V_WHOLE = HEAD_DIM % 32 == 0, HEAD_DIM % 64 == 0
    Q_SHAPE, K_SHAPE = (K_STEPS, 2, 4), (2, K_STEPS, 2, 2)
    V_SHAPE = (V_STEPS, 4, 4)
    STATE_SHAPE, PARTS_SHAPE = (WARPS, ROWS), (WARPS, ROWS, HEAD_DIM)
    keys_of_split = make_keys_of_split(ROWS, BLOCK_N, CAUSAL, WINDOW)
    online_softmax = make_online_softmax(
        DTYPE, CAUSAL, WINDOW, SOFTCAP, ALIBI, EXPRESSIONS=EXPRESSIONS
    )
    page_and_offset = make_page_of(max(1, PAGE_SIZE))
    merging = make_merge(HEAD_DIM, ROWS, WARPS)
    store_state, merge = merging.store_state, merging.merge

    @cuda.jit(device=True, forceinline=True)
    def page_of(block_table, b, n, page_args):
        if PAGED:
            return block_table[uint64(b), uint64(page_and_offset(n, page_args)[0])]
        return 0

    @cuda.jit(device=True, forceinline=True)
    def row_of(cache, pages, n_start, r, last, page_args):
        """Offset of key n_start + r in bytes; that of the last key if there are not so many."""
        n = min(n_start + r, last)
        if PAGED:
            page = cuda.shfl_sync(FULL_WARP, pages, r)
            offset = page_and_offset(n, page_args)[1]
            return page * cache.strides[0] + offset * cache.strides[1]
        return n * cache.strides[1]

    @cuda.jit(device=True, forceinline=True)
    def load_k(k_reg, k_cache, source, pages, n_start, last, lane, page_args):
        """Keys lane // 4 and lane // 4 + 8: of every 32 columns 8 neighbours."""
        for t in range(2):
            row = row_of(k_cache, pages, n_start, 8 * t + (lane >> 2), last, page_args)
            for j in range(K_STEPS):
                if K_WHOLE or 32 * j + 8 * (lane & 3) < HEAD_DIM:
                    load_global_b128(k_reg[t, j], source + uint64(row + 64 * j))
                else:
                    for i in range(2):
                        for h in range(2):
                            k_reg[t, j, i, h] = uint32(0)

    @cuda.jit(device=True, forceinline=True)
    def load_v(v_reg, v_cache, source, pages, n_start, last, lane, page_args):
        """Keys 2 i, 2 i + 1, 2 i + 8, 2 i + 9, i = lane % 4: of every 64 columns 8 neighbours."""
        for i in range(4):
            r = 2 * (lane & 3) + (i & 1) + 8 * (i >> 1)
            row = row_of(v_cache, pages, n_start, r, last, page_args)
            for j in range(V_STEPS):
                # A column past the end is read from the beginning instead, and never stored.
                inside = V_WHOLE or 64 * j + 8 * (lane >> 2) < HEAD_DIM
                col = 128 * j + 16 * (lane >> 2) if inside else 0
                load_global_b128(v_reg[j, i], source + uint64(row + col))

    @cuda.jit(launch_bounds=(THREADS, BLOCKS_PER_SM), fastmath={"contract"})
    def flash_decode_mma_kernel(
        q, k_cache, v_cache, block_table, seq_lens, out_partial, lse_partial, softmax_scale,
        alibi_slopes, page_size, page_multiplier, page_shift, left, right, unit, inverse_unit, args,
    ):  # fmt: skip
        """A thread block owns 8 rows of a K/V head; its warps share the keys of one split.

        A row is a query of a query head; the heads of a group are neighbours.

        grid      (num_m_tiles · num_kv_heads · num_splits, batch); 32 · WARPS threads
        shared    states of the warps at the end: acc (WARPS, 8, HEAD_DIM), m_i, l_i (WARPS, 8)
        private   Q, K and V as operands; s (2, 4), p (2,), acc (HEAD_DIM / 16, 4), m_i, l_i
        HBM       K and V once per tile of rows, except the tiles that none of them sees; Q,
                  out_partial, lse_partial once per split; block_table once per key
        paper     FlashAttention-2, Algorithm 1, over a part of the keys;
                  PagedAttention, section 4.1
        budget    168 registers, 16640 bytes shared (HEAD_DIM=128); with 256, and with pages of one
                  key and a causal mask, some bytes are spilled
        """
        parts = cuda.shared.array(PARTS_SHAPE, float32)
        m_parts = cuda.shared.array(STATE_SHAPE, float32)
        l_parts = cuda.shared.array(STATE_SHAPE, float32)
        states = States(parts, m_parts, l_parts)
        q_reg = cuda.local.array(Q_SHAPE, uint32)
        k_reg = cuda.local.array(K_SHAPE, uint32)
        v_reg = cuda.local.array(V_SHAPE, uint32)
        acc = cuda.local.array(V_SHAPE, float32)  # rows of out, not yet divided by l_i
        s = cuda.local.array((2, 4), float32)
        p = cuda.local.array(2, uint32)
        a = cuda.local.array(4, uint32)

        page_args = Pages(page_size, page_multiplier, page_shift)
        mask_args = MaskArgs(left, right, unit, inverse_unit)
        tid = cuda.threadIdx.x
        lane, warp = tid & 31, warp_of(tid)
        b = cuda.blockIdx.y
        seqlen_q, seqlen_k = q.shape[1], seq_lens[b]
        num_kv_heads, num_splits = k_cache.shape[2], lse_partial.shape[0]
        group_size, _ = divide(q.shape[2], num_kv_heads)
        num_m_tiles, _ = divide(seqlen_q * group_size + ROWS - 1, ROWS)
        split_and_head, m_tile = divide(cuda.blockIdx.x, num_m_tiles)
        split, kv_head = divide(split_and_head, num_kv_heads)
        row = m_tile * ROWS + (lane >> 2)  # of this lane's scores
        m, head = divide(row, group_size)
        head += kv_head * group_size
        position = m + seqlen_k - seqlen_q  # among the keys: the last query is at the last key
        slope = alibi_slopes[head] if ALIBI and m < seqlen_q else ZERO

        n_first, n_end = keys_of_split(
            split, num_splits, m_tile, seqlen_q, seqlen_k, group_size, mask_args
        )
        last = n_end - 1  # read instead of keys past the end

        b_first = 0 if PAGED else b
        k_source = global_address(k_cache[b_first, 0, kv_head]) + uint64(16 * (lane & 3))
        v_source = global_address(v_cache[b_first, 0, kv_head])
        for j in range(K_STEPS):
            for i in range(2):
                for r in range(4):
                    q_reg[j, i, r] = uint32(0)
            if m < seqlen_q and (K_WHOLE or 32 * j + 8 * (lane & 3) < HEAD_DIM):
                load_global_b128(
                    a, global_address(q[b, m, head]) + uint64(64 * j + 16 * (lane & 3))
                )
                for i in range(2):  # rows 8 to 15, registers 1 and 3, are always 0
                    q_reg[j, i, 0] = a[2 * i]
                    q_reg[j, i, 2] = a[2 * i + 1]
        for j in range(V_STEPS):
            for t in range(4):
                for r in range(4):
                    acc[j, t, r] = ZERO
        m_i = NEG_INF
        l_i = ZERO  # of this lane's keys alone

        n_start = n_first + KEYS * warp
        # Lane r has the page of key r: loaded two iterations before it is used.
        pages, next_pages = 0, 0
        if n_start < n_end:
            n = n_start + (lane & 15)
            pages = page_of(block_table, b, min(n, last), page_args)
            next_pages = page_of(block_table, b, min(n + BLOCK_N, last), page_args)
            load_k(k_reg, k_cache, k_source, pages, n_start, last, lane, page_args)
        while n_start < n_end:
            n_next = n_start + BLOCK_N
            load_v(v_reg, v_cache, v_source, pages, n_start, last, lane, page_args)
            n = min(n_next + BLOCK_N + (lane & 15), last)
            later_pages = page_of(block_table, b, n, page_args)

            for t in range(2):  # S = Q Kᵀ                                                line 8
                for r in range(4):
                    s[t, r] = ZERO
            for j in range(K_STEPS):
                for i in range(2):
                    for t in range(2):
                        mma(s[t], q_reg[j, i], k_reg[t, j, i])
            load_k(k_reg, k_cache, k_source, next_pages, n_next, last, lane, page_args)

            of_row = b, head, position
            m_i, l_i, alpha = online_softmax(
                s, p, m_i, l_i, n_start, of_row, seqlen_k, slope, softmax_scale, lane, mask_args,
                args,
            )  # fmt: skip

            # out <- alpha out + P V, transposed: a lane has columns of two queries       line 10
            alpha_0 = cuda.shfl_sync(FULL_WARP, alpha, 8 * (lane & 3))
            alpha_1 = cuda.shfl_sync(FULL_WARP, alpha, 8 * (lane & 3) + 4)
            for j in range(V_STEPS):
                for t in range(4):
                    a[0] = low_halves(v_reg[j, 0, t], v_reg[j, 1, t])
                    a[1] = high_halves(v_reg[j, 0, t], v_reg[j, 1, t])
                    a[2] = low_halves(v_reg[j, 2, t], v_reg[j, 3, t])
                    a[3] = high_halves(v_reg[j, 2, t], v_reg[j, 3, t])
                    acc[j, t, 0] *= alpha_0
                    acc[j, t, 1] *= alpha_1
                    acc[j, t, 2] *= alpha_0
                    acc[j, t, 3] *= alpha_1
                    mma(acc[j, t], a, p)
            n_start, pages, next_pages = n_next, next_pages, later_pages

        for j in range(V_STEPS):
            for t in range(4):
                for r in range(4):
                    d = 64 * j + 8 * (lane >> 2) + 2 * t + (r >> 1)
                    if V_WHOLE or d < HEAD_DIM:
                        parts[uint64(warp), uint64(2 * (lane & 3) + (r & 1)), uint64(d)] = acc[
                            j, t, r
                        ]
        store_state(states, m_i, l_i, tid)
        cuda.syncthreads()  # the states of all warps are there: safe to merge
        unit = Unit(b, split, kv_head, m_tile)
        merge(states, out_partial, lse_partial, unit, group_size, seqlen_q, tid)

    return flash_decode_mma_kernel


@arrays.replayed
@checks.takes(checks.DECODING)
def flash_decode_mma(q, k_cache, v_cache, seq_lens, **options):
    """Flash-Decoding of a contiguous or paged 16-bit KV cache, on GPUs since Ampere.

    Parameters
    ----------
    q, k_cache, v_cache
        As for `flash_decode_gather`, without scales.
    seq_lens, block_table, causal, window_size, softcap, alibi_slopes, softmax_scale, mask, \
    mask_args, score, score_args, sinks, num_splits
        As for `flash_decode_wide`.

    Returns
    -------
    out, lse : arrays
        As of `flash_decode`.
    """
    given = q, k_cache, v_cache, seq_lens
    problem = check_on_tensor_cores("flash_decode_mma", forward.AMPERE, *given, **options)
    batch, _, _, head_dim = q.shape
    expressions = problem.scores.expressions
    # Measured: three are faster with one row; otherwise two are enough, with fewer splits. With the
    # user's functions three would spill.
    one_row = problem.num_rows == 1 and expressions == NO_EXPRESSIONS
    blocks_per_sm = 3 if head_dim <= 128 and one_row else 2
    more = {"WARPS": WARPS, "BLOCKS_PER_SM": blocks_per_sm, "EXPRESSIONS": expressions}
    kernel = make_flash_decode_mma(head_dim, arrays.dtype_name(q), *problem.constants, **more)
    num_splits = problem.num_splits or choose_splits(problem, ROWS, KEYS * WARPS, blocks_per_sm)
    grid = (problem.num_tiles(ROWS) * num_splits, batch)
    more = (problem.scores.expression_args,)
    return launch(problem, kernel, grid, 32 * WARPS, num_splits, more=more)
