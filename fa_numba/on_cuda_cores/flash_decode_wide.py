"""Flash-Decoding with wide loads: K and V go from HBM to registers, without shared tiles.

flash_decode, paged_attn_decode   tiles of K and V in shared memory; a thread per score
flash_decode_wide                 a few lanes per key, 16-byte loads, no barrier       <- this file
flash_decode_mma                  the same for 16 bits, on tensor cores
flash_decode_gather               Hopper: cp.async keeps a ring of keys full per warp; any page size

Decoding reads each key once and computes little with it, so its speed depends on the number of
bytes in flight. Each lane owns up to 16 columns of K, V, Q and out, in pieces of 16 bytes; a group
of lanes owns a whole row. A lane loads V of this tile while it multiplies K, and K of the next tile
while it multiplies V. Shuffles sum a score over the lanes of its group. Every group has its own
softmax state (m_i, l_i and acc for each row of queries); these states are merged once, at the end.

One loader serves both caches: a contiguous cache is a paged one with one page per sequence.

measured   float32 caches of 32 heads of 128: 4.3 to 4.5 TB/s, as fast as a copy; with four queries
           per K/V head arithmetic limits it to 3.6 to 4.0 TB/s (H200;
           benchmarks/results/decode_fast.json)

Source: as for flash_decode.
"""

import functools
import math

from numba import cuda, float32, int32, uint32, uint64

from fa_numba.constants import LN2, LOG2_E
from fa_numba.kernels import masks
from fa_numba.on_cuda_cores.decode_problem import (
    FULL_WARP,
    NEG_INF,
    ZERO,
    check_problem,
    choose_splits,
    divide,
    launch,
)
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.decode_tiling import WARP_SIZE, WARPS, decode_tiling

THREADS = WARPS * WARP_SIZE


@functools.cache
def make_flash_decode_wide(
    HEAD_DIM,
    ROWS,
    WIDE,
    PAGE_SIZE,
    CAUSAL,
    WINDOW=(-1, -1),
    SOFTCAP=0.0,
    ALIBI=False,
    COLS=16,
    KEYS=1,
    BLOCKS_PER_SM=2,
):
    """The first kernel, attention split by split: launch it with THREADS threads.

    ROWS is 1, 2, 4 or 8. WIDE is "float32", "float16" or "bfloat16" if rows of K and V can be
    loaded 16 bytes at a time. Otherwise it is "": the kernel loads single numbers, of any dtype.
    PAGE_SIZE is 0 for a contiguous cache. block_table is unused for a contiguous cache,
    alibi_slopes without ALIBI: each may then be any scalar. A lane owns COLS columns of KEYS keys
    at a time.
    """
    first_key, end_key, sees = masks.make_bounds(CAUSAL, WINDOW)
    score = masks.make_score(SOFTCAP, ALIBI)
    MODIFIED = SOFTCAP > 0 or ALIBI  # a score_mod: a score is not just scale · q·k
    PAGED, PAGE = PAGE_SIZE > 0, max(1, PAGE_SIZE)
    PIECE = 8 if WIDE in ("float16", "bfloat16") else 4  # numbers of a load
    PIECES = COLS // PIECE
    LANES = 1 << max(0, ceil_div(HEAD_DIM, COLS) - 1).bit_length()  # of a key: a group
    STEPS = LANES.bit_length() - 1
    GROUPS = WARP_SIZE // LANES  # of a warp
    BLOCK_N = WARPS * GROUPS * KEYS
    NUM_STATES = WARPS * GROUPS
    WHOLE = PIECES * PIECE * LANES == HEAD_DIM
    RAW = uint32 if PIECE == 8 else float32
    RAW_SHAPE, ROW_SHAPE = (KEYS, PIECES, 4), (ROWS, COLS)
    S_SHAPE = (KEYS, ROWS)
    STATE_SHAPE, PARTS_SHAPE = (NUM_STATES, ROWS), (NUM_STATES, ROWS, HEAD_DIM)

    if WIDE:  # imported here: PTX needs numba-cuda, which the CPU engine does without
        from fa_numba.ptx.convert import exp2
        from fa_numba.ptx.statement import global_address
        from fa_numba.ptx.vectors import load_global_b128, unpack_bf16x2, unpack_f16x2

        unpack = unpack_bf16x2 if WIDE == "bfloat16" else unpack_f16x2

        @cuda.jit(device=True)
        def load(raw, cache, page, offset, kv_head, tx):
            """Load this lane's pieces of a key."""
            row = global_address(cache[uint64(page), uint64(offset), uint64(kv_head)])
            for i in range(PIECES):
                if WHOLE or (i * LANES + tx) * PIECE < HEAD_DIM:
                    load_global_b128(raw[i], row + uint64(16 * tx + 16 * LANES * i))
                else:
                    for j in range(4):
                        raw[i, j] = RAW(0)

    else:
        exp2 = math.exp2

        @cuda.jit(device=True)
        def load(raw, cache, page, offset, kv_head, tx):
            """Load this lane's pieces of a key."""
            for i in range(PIECES):
                for j in range(4):
                    d = (i * LANES + tx) * PIECE + j
                    raw[i, j] = ZERO
                    if d < HEAD_DIM:
                        raw[i, j] = float32(
                            cache[uint64(page), uint64(offset), uint64(kv_head), uint64(d)]
                        )

    if PIECE == 8:

        @cuda.jit(device=True)
        def widen(x, raw):
            for i in range(PIECES):
                for j in range(4):
                    unpack(x[i * 4 + j], raw[i, j])

    else:

        @cuda.jit(device=True)
        def widen(x, raw):
            for i in range(PIECES):
                for j in range(4):
                    x[i * 2 + j // 2, j % 2] = raw[i, j]

    X_SHAPE = (COLS // 2, 2)

    @cuda.jit(device=True)
    def page_and_offset(block_table, b, n):
        """Page and offset of key n; a contiguous cache has one page per sequence."""
        if PAGED:
            page, offset = divide(n, PAGE)
            return block_table[uint64(b), uint64(page)], offset
        return b, n

    @cuda.jit(launch_bounds=(THREADS, BLOCKS_PER_SM), fastmath={"contract"})
    def flash_decode_wide_kernel(
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
        """A thread block owns ROWS rows of a K/V head; its warps share the keys of one split.

        A row is a query of a query head; the heads of a group are neighbours.

        grid      (num_m_tiles · num_kv_heads · num_splits, batch); 128 threads
        shared    the states at the end: parts (NUM_STATES, ROWS, HEAD_DIM), m_i and l_i
                  (NUM_STATES, ROWS)
        private   Q, acc (ROWS, COLS), m_i, l_i (ROWS,), K and V of KEYS keys
        HBM       K and V once per tile of rows, except the tiles that none of them sees; Q,
                  out_partial, lse_partial once per split; block_table per key in each of its lanes
        paper     FlashAttention-2, Algorithm 1, over a part of the keys;
                  PagedAttention, section 4.1
        budget    168 registers, 16640 bytes shared (HEAD_DIM=128, ROWS=4)
        """
        parts = cuda.shared.array(PARTS_SHAPE, float32)
        m_parts = cuda.shared.array(STATE_SHAPE, float32)
        l_parts = cuda.shared.array(STATE_SHAPE, float32)
        k_raw = cuda.local.array(RAW_SHAPE, RAW)
        v_raw = cuda.local.array(RAW_SHAPE, RAW)
        # Of this tile's keys and of the next tile's; loaded two tiles ahead.
        pages = cuda.local.array(KEYS, int32)
        offsets = cuda.local.array(KEYS, int32)
        next_pages = cuda.local.array(KEYS, int32)
        next_offsets = cuda.local.array(KEYS, int32)
        x = cuda.local.array(X_SHAPE, float32)
        q_row = cuda.local.array(ROW_SHAPE, float32)
        acc = cuda.local.array(ROW_SHAPE, float32)  # rows of out, not yet divided by l_i
        s = cuda.local.array(S_SHAPE, float32)
        m_i = cuda.local.array(ROWS, float32)
        l_i = cuda.local.array(ROWS, float32)

        tid = cuda.threadIdx.x
        tx, group = tid & (LANES - 1), tid >> STEPS
        b = cuda.blockIdx.y
        seqlen_q, seqlen_k = q.shape[1], seq_lens[b]
        num_kv_heads, num_splits = k_cache.shape[2], lse_partial.shape[0]
        group_size, _ = divide(q.shape[2], num_kv_heads)
        num_m_tiles, _ = divide(seqlen_q * group_size + ROWS - 1, ROWS)
        split_and_head, m_tile = divide(cuda.blockIdx.x, num_m_tiles)
        split, kv_head = divide(split_and_head, num_kv_heads)
        to_base_2 = LOG2_E if MODIFIED else softmax_scale * LOG2_E

        # The tiles of this sequence, from the first with a key that a row sees, divided evenly.
        # With more splits than tiles some splits are empty: their state is (0, -inf).
        first_m, _ = divide(m_tile * ROWS, group_size)
        last_m, _ = divide(m_tile * ROWS + ROWS - 1, group_size)
        first_tile, _ = divide(first_key(first_m + seqlen_k - seqlen_q), BLOCK_N)
        num_n_tiles, _ = divide(seqlen_k + BLOCK_N - 1, BLOCK_N)
        each, more = divide(num_n_tiles - first_tile, num_splits)
        n_first = (first_tile + split * each + min(split, more)) * BLOCK_N
        n_end = n_first + (each + (1 if split < more else 0)) * BLOCK_N
        n_end = min(n_end, end_key(last_m + seqlen_k - seqlen_q, seqlen_k))
        last = n_end - 1  # read instead of keys past the end
        seen_from = first_key(last_m + seqlen_k - seqlen_q)
        seen_to = end_key(first_m + seqlen_k - seqlen_q, seqlen_k)

        for r in range(ROWS):
            m, head = divide(m_tile * ROWS + r, group_size)
            head += kv_head * group_size
            for i in range(COLS):
                d = (i // PIECE * LANES + tx) * PIECE + i % PIECE
                q_row[r, i] = ZERO
                if m < seqlen_q and d < HEAD_DIM:
                    q_row[r, i] = float32(q[uint64(b), uint64(m), uint64(head), uint64(d)])
                acc[r, i] = ZERO
            m_i[r] = NEG_INF
            l_i[r] = ZERO

        # The keys of a warp are neighbours; all its lanes leave the loop together.
        n_warp = n_first + (tid >> 5) * (GROUPS * KEYS)
        n_lane = n_warp + (group & (GROUPS - 1))
        if n_warp < n_end:
            for u in range(KEYS):
                n = n_lane + u * GROUPS
                pages[u], offsets[u] = page_and_offset(block_table, b, min(n, last))
                n_next = min(n + BLOCK_N, last)
                next_pages[u], next_offsets[u] = page_and_offset(block_table, b, n_next)
                load(k_raw[u], k_cache, pages[u], offsets[u], kv_head, tx)
        while n_warp < n_end:
            for u in range(KEYS):
                load(v_raw[u], v_cache, pages[u], offsets[u], kv_head, tx)
                pages[u], offsets[u] = next_pages[u], next_offsets[u]
                n = n_lane + u * GROUPS + 2 * BLOCK_N
                next_pages[u], next_offsets[u] = page_and_offset(block_table, b, min(n, last))

            for u in range(KEYS):  # S = scale · Q Kᵀ                                     line 8
                widen(x, k_raw[u])
                for r in range(ROWS):
                    s[u, r] = ZERO
                    for i in range(COLS):
                        s[u, r] += q_row[r, i] * x[i // 2, i % 2]
            for u in range(KEYS):
                load(k_raw[u], k_cache, pages[u], offsets[u], kv_head, tx)

            # Does every row of the tile see every one of these keys?
            whole = n_warp >= seen_from and n_warp + GROUPS * KEYS <= seen_to
            new_maximum = False
            for u in range(KEYS):
                for step in range(STEPS):
                    for r in range(ROWS):
                        s[u, r] += cuda.shfl_xor_sync(FULL_WARP, s[u, r], 1 << step)
                n = n_lane + u * GROUPS
                for r in range(ROWS):
                    m, member = divide(m_tile * ROWS + r, group_size)
                    position = m + seqlen_k - seqlen_q
                    if MODIFIED:
                        slope = ZERO
                        if ALIBI and m < seqlen_q:
                            slope = alibi_slopes[kv_head * group_size + member]
                        s[u, r] = score(s[u, r] * softmax_scale, position - n, slope)
                    s[u, r] *= to_base_2
                    if not whole and not sees(position, n, seqlen_k):
                        s[u, r] = NEG_INF
                    new_maximum = new_maximum or s[u, r] > m_i[r]
            if new_maximum:  # rare, after the first keys: m_i <- max(m_i, rowmax(S))   line 9
                for r in range(ROWS):
                    m_new = m_i[r]
                    for u in range(KEYS):
                        m_new = max(m_new, s[u, r])
                    shift = ZERO if m_new == NEG_INF else m_new  # no key yet: -inf - -inf is NaN
                    alpha = exp2(m_i[r] - shift)  # rescales the sums under the old maximum
                    m_i[r] = m_new
                    l_i[r] *= alpha
                    for i in range(COLS):
                        acc[r, i] *= alpha

            for u in range(KEYS):
                widen(x, v_raw[u])
                for r in range(ROWS):
                    shift = ZERO if m_i[r] == NEG_INF else m_i[r]
                    p = exp2(s[u, r] - shift)  # P = exp(S - m_i)                         line 9
                    l_i[r] += p
                    for i in range(COLS):
                        acc[r, i] += p * x[i // 2, i % 2]  # out <- alpha out + P V       line 10
            n_warp += BLOCK_N
            n_lane += BLOCK_N

        for r in range(ROWS):
            if tx == 0:
                m_parts[group, r] = m_i[r]
                l_parts[group, r] = l_i[r]
            for i in range(COLS):
                d = (i // PIECE * LANES + tx) * PIECE + i % PIECE
                if d < HEAD_DIM:
                    parts[uint64(group), uint64(r), uint64(d)] = acc[r, i]
        cuda.syncthreads()  # the states of all groups are stored: safe to merge

        for item in range(tid, ROWS * HEAD_DIM, THREADS):
            r, d = divide(item, HEAD_DIM)
            m, head = divide(m_tile * ROWS + r, group_size)
            head += kv_head * group_size
            if m < seqlen_q:
                m_all = NEG_INF
                for w in range(NUM_STATES):
                    m_all = max(m_all, m_parts[w, r])
                shift = ZERO if m_all == NEG_INF else m_all
                l_all, total = ZERO, ZERO
                for w in range(NUM_STATES):
                    alpha = exp2(m_parts[w, r] - shift)
                    l_all += alpha * l_parts[w, r]
                    total += alpha * parts[w, r, d]
                # out <- out / l_i                                                        line 12
                out_partial[split, b, m, head, d] = total / l_all if l_all != ZERO else ZERO
                if d == 0:  # -inf: no key                                                line 13
                    lse_partial[split, b, head, m] = (m_all + math.log2(l_all)) * LN2

    return flash_decode_wide_kernel


@arrays.replayed
def flash_decode_wide(
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
    """Flash-Decoding of a contiguous or paged KV cache, with wide loads.

    Parameters
    ----------
    q : array of shape (batch, seqlen_q, num_heads, head_dim), float32, float16 or bfloat16
        The last seqlen_q tokens of each sequence.
    k_cache, v_cache : arrays, dtype of q
        Of shape (batch, max_len, num_kv_heads, head_dim), or with a block_table (num_pages,
        page_size, num_kv_heads, head_dim). On a GPU loads have 16 bytes if the rows of both caches
        begin and end at multiples of 16 bytes; otherwise one number.
    seq_lens : array of shape (batch,), int32
    block_table : array of shape (batch, max_pages), int32, default=None
        As for `paged_attn_decode`; None: as for `flash_decode`.
    causal, window_size, softcap, alibi_slopes, softmax_scale
        As for `flash_decode`.
    num_splits : int, default=0
        0 is chosen by `fa_numba.tiling.num_splits.choose_quickest_splits`.

    Returns
    -------
    out : array of the shape, dtype and library of q
        0 in a row that sees no key.
    lse : array of shape (batch, num_heads, seqlen_q), float32
        Natural log of the row's sum of e^score; −inf in a row that sees no key.
    """
    mask = causal, window_size, softcap, alibi_slopes
    problem = check_problem(
        q, k_cache, v_cache, seq_lens, block_table, *mask, softmax_scale, num_splits
    )
    wide = arrays.dtype_name(q) if rows_of_16_bytes(k_cache) and rows_of_16_bytes(v_cache) else ""
    tiling = decode_tiling(problem.num_rows, q.shape[3], wide)
    rows, blocks_per_sm = tiling.rows, tiling.blocks_per_sm
    options = {"COLS": tiling.cols, "KEYS": tiling.keys, "BLOCKS_PER_SM": blocks_per_sm}
    kernel = make_flash_decode_wide(
        q.shape[3], rows, wide, problem.page_size, *problem.mask, **options
    )
    num_splits = problem.num_splits or choose_splits(problem, rows, tiling.block_n, blocks_per_sm)
    grid = (problem.num_tiles(rows) * num_splits, q.shape[0])
    return launch(problem, kernel, grid, THREADS, num_splits)


def rows_of_16_bytes(x):
    """True if every row of x along its last axis begins and ends at a multiple of 16 bytes."""
    if arrays.library_of(x) == "numpy" or not arrays.gpu_available():
        return False  # the CPU engine does not run PTX
    address, strides = arrays.address_and_strides(x)
    row_bytes = x.shape[-1] * x.dtype.itemsize
    far = [stride for stride, size in zip(strides[:-1], x.shape, strict=False) if size > 1]
    return not any(n % 16 for n in (address, row_bytes, *far))
