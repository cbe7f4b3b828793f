"""Flash-Decoding with 16-byte loads: K and V go from HBM to registers, not through shared memory.

flash_decode, paged_attn_decode   tiles of K and V in shared memory; a thread per score
flash_decode_wide                 16-byte loads, a few lanes per key; 16 or 32 bits, any GPU
                                  and the CPU engine                               <- this file
flash_decode_mma                  tensor cores; 16-bit caches, from sm_80 on
flash_decode_gather               cp.async to shared memory, tensor cores; 16-bit caches, sm_90a
flash_decode_columns              tensor cores above 256 columns; 16-bit caches, from sm_80 on

flash_decode reads contiguous caches, paged_attn_decode paged ones. The others read both, with pages
of any size; flash_decode_gather needs no more instructions for pages of one key than for larger.

Decoding reads each key once and computes little with it, so its speed depends on the number of
bytes in flight. Here the loop over keys has no barrier, and K and V are not staged in shared
memory; only the softmax states go through it, after the loop.

A lane group is LANES lanes of a warp. It loads a key row of HEAD_DIM columns: lane x of the group
holds COLS ≤ 16 of them, as 16-byte vectors; its vector i is vector i · LANES + x of the row. So
element e of a lane is column (e // VECTOR_SIZE · LANES + x) · VECTOR_SIZE + e % VECTOR_SIZE, for K,
V, Q and out. LANES is a power of 2, so LANES · COLS may exceed HEAD_DIM. Vectors past HEAD_DIM are
zero, and multiplications by them are wasted: a quarter for HEAD_DIM = 96, less than a half for
every HEAD_DIM > COLS.

A lane loads V of this tile while it multiplies K, and K of the next tile while it multiplies V.
Shuffles sum a score over the lanes of its group. Every lane group has its own softmax state (m_i,
l_i and acc for each query row); these states are merged once, at the end.

The same load function reads contiguous and paged caches: a contiguous cache is a paged one with one
page per sequence.

measured   with float32 caches of 32 heads of 128 it reads K and V at 4.4 to 4.6 TB/s, as fast as a
           copy; with four queries per K/V head arithmetic limits it to 3.7 to 4.1 TB/s (H200;
           benchmarks/results/decode_fast.json)

Source: Dao, Haziza, Massa, Sizov 2023, Flash-Decoding for long-context inference (a blog post of
Stanford CRFM). Lines are those of Algorithm 1 of FlashAttention-2, arXiv:2307.08691.
"""

import functools
import math

from numba import cuda, float32, int32, uint32, uint64

from fa_numba import checks
from fa_numba.constants import FULL_WARP, LN2, LOG2_E, NEG_INF, WARP_SIZE, ZERO
from fa_numba.expressions.functions import NO_EXPRESSIONS
from fa_numba.expressions.tiles import MIXED
from fa_numba.on_cuda_cores import run_time_masks
from fa_numba.on_cuda_cores.decode_problem import (
    Pages,
    check_problem,
    choose_splits,
    divide,
    launch,
    make_page_of,
)
from fa_numba.on_cuda_cores.run_time_masks import MaskArgs
from fa_numba.on_cuda_cores.user_scores import make_user_scores
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.decode_tiling import WARPS, decode_tiling

THREADS = WARPS * WARP_SIZE


@functools.cache
def make_flash_decode_wide(
    HEAD_DIM, ROWS, VECTOR_DTYPE, PAGE_SIZE, CAUSAL, WINDOW=(-1, -1), SOFTCAP=0.0, ALIBI=False,
    COLS=16, KEYS=1, BLOCKS_PER_SM=2, EXPRESSIONS=NO_EXPRESSIONS,
):  # fmt: skip
    """Attention over one split per thread block, of THREADS threads; combine_wide_kernel merges.

    Parameters
    ----------
    HEAD_DIM : int
        At most 32 · COLS.
    ROWS : 1, 2, 4 or 8
        Query rows of a thread block.
    VECTOR_DTYPE : "float32", "float16", "bfloat16" or ""
        Dtype of K and V if their rows can be loaded 16 bytes at a time. "": the kernel loads
        elements one at a time, of any dtype.
    PAGE_SIZE : int
        0 for a contiguous cache. The kernel then does not use block_table: pass any scalar. It,
        WINDOW and SOFTCAP may be AT_RUN_TIME (`run_time_masks`).
    CAUSAL, WINDOW, SOFTCAP, ALIBI
        The mask. Without ALIBI the kernel does not use alibi_slopes: pass any scalar.
    COLS : int, default=16
        Columns of a row that a lane holds.
    KEYS : int, default=1
        Keys that a lane group loads at a time.
    BLOCKS_PER_SM : int, default=2
        Thread blocks whose registers must fit in the 65536 of an SM. With 3 a thread
        may have 168 of them, with 2 the most of any kernel, 255.
    EXPRESSIONS : Expressions
        The user's mask and score. The mask is evaluated for each pair: classes of tiles would need
        seq_lens on the host.
    """
    first_key, end_key, sees = run_time_masks.make_bounds(CAUSAL, WINDOW)
    score = run_time_masks.make_score(SOFTCAP, ALIBI)
    modified, WRITTEN = make_user_scores(EXPRESSIONS).modified, EXPRESSIONS != NO_EXPRESSIONS
    MODIFIED = SOFTCAP > 0 or ALIBI or WRITTEN  # a score_mod: a score is not just scale · q·k
    PAGED, page_of = PAGE_SIZE > 0, make_page_of(max(1, PAGE_SIZE))
    VECTOR_SIZE = 8 if VECTOR_DTYPE in ("float16", "bfloat16") else 4  # elements per 16-byte load
    NUM_VECTORS = COLS // VECTOR_SIZE  # loads of a lane per key row
    LANES = 1 << max(0, ceil_div(HEAD_DIM, COLS) - 1).bit_length()  # lanes per key
    LOG2_LANES = LANES.bit_length() - 1
    LANE_GROUPS = WARP_SIZE // LANES  # lane groups per warp; each loads KEYS keys
    BLOCK_N = WARPS * LANE_GROUPS * KEYS  # must equal DecodeTiling.block_n
    NUM_STATES = WARPS * LANE_GROUPS
    NO_TAIL = NUM_VECTORS * VECTOR_SIZE * LANES == HEAD_DIM  # no vector is past HEAD_DIM
    RAW = uint32 if VECTOR_SIZE == 8 else float32
    RAW_SHAPE, ROW_SHAPE = (KEYS, NUM_VECTORS, 4), (ROWS, COLS)
    S_SHAPE = (KEYS, ROWS)
    STATE_SHAPE, PARTS_SHAPE = (NUM_STATES, ROWS), (NUM_STATES, ROWS, HEAD_DIM)

    if VECTOR_DTYPE:  # imported here: PTX needs numba-cuda, and the CPU engine runs without it
        from fa_numba.ptx.convert import exp2
        from fa_numba.ptx.statement import global_address
        from fa_numba.ptx.vectors import load_global_b128, unpack_bf16x2, unpack_f16x2

        unpack = unpack_bf16x2 if VECTOR_DTYPE == "bfloat16" else unpack_f16x2

        @cuda.jit(device=True)
        def load(raw, cache, page, offset, kv_head, lane_in_group):
            """Load this lane's vectors of a key row."""
            key_row = global_address(cache[uint64(page), uint64(offset), uint64(kv_head)])
            for i in range(NUM_VECTORS):
                if NO_TAIL or (i * LANES + lane_in_group) * VECTOR_SIZE < HEAD_DIM:
                    load_global_b128(raw[i], key_row + uint64(16 * lane_in_group + 16 * LANES * i))
                else:
                    for j in range(4):
                        raw[i, j] = RAW(0)

    else:
        exp2 = math.exp2

        @cuda.jit(device=True)
        def load(raw, cache, page, offset, kv_head, lane_in_group):
            """Load this lane's vectors of a key row, element by element.

            The CPU engine runs this path: 16-byte loads are PTX, which it does not run.
            """
            for i in range(NUM_VECTORS):
                for j in range(4):
                    d = (i * LANES + lane_in_group) * VECTOR_SIZE + j
                    raw[i, j] = ZERO
                    if d < HEAD_DIM:
                        raw[i, j] = float32(
                            cache[uint64(page), uint64(offset), uint64(kv_head), uint64(d)]
                        )

    if VECTOR_SIZE == 8:

        @cuda.jit(device=True)
        def to_float32(x, raw):
            """Convert a lane's vectors to pairs of float32."""
            for i in range(NUM_VECTORS):
                for j in range(4):
                    unpack(x[i * 4 + j], raw[i, j])

    else:

        @cuda.jit(device=True)
        def to_float32(x, raw):
            """Copy a lane's vectors, which are float32 already, to pairs."""
            for i in range(NUM_VECTORS):
                for j in range(4):
                    x[i * 2 + j // 2, j % 2] = raw[i, j]

    X_SHAPE = (COLS // 2, 2)

    @cuda.jit(device=True)
    def page_and_offset(block_table, b, n, page_args):
        """Page and offset of key n; a contiguous cache has one page per sequence."""
        if PAGED:
            page, offset = page_of(n, page_args)
            return block_table[uint64(b), uint64(page)], offset
        return b, n

    @cuda.jit(launch_bounds=(THREADS, BLOCKS_PER_SM), fastmath={"contract"})
    def flash_decode_wide_kernel(
        q, k_cache, v_cache, block_table, seq_lens, out_partial, lse_partial, softmax_scale,
        alibi_slopes, page_size, page_multiplier, page_shift, left, right, unit, inverse_unit, args,
    ):  # fmt: skip
        """A thread block computes ROWS query rows of a K/V head; its warps divide a split's keys.

        Query row m · group_size + head is query m of that head in the GQA group.

        grid      (num_m_tiles · num_kv_heads · num_splits, batch); 128 threads
        shared    the states at the end: parts (NUM_STATES, ROWS, HEAD_DIM), m_i and l_i
                  (NUM_STATES, ROWS)
        private   Q, acc (ROWS, COLS), m_i, l_i (ROWS,), K and V of KEYS keys
        HBM       K and V once per tile of query rows, except key tiles that no row of it sees; Q,
                  out_partial, lse_partial once per split; every lane reads one entry of
                  block_table per key. With one split out_partial is out, of q's dtype; otherwise it
                  is float32
        paper     FlashAttention-2, Algorithm 1, over a part of the keys;
                  PagedAttention, section 4.1
        budget    168 registers, 16640 bytes shared (HEAD_DIM=128, ROWS=4)
        """
        parts = cuda.shared.array(PARTS_SHAPE, float32)
        m_parts = cuda.shared.array(STATE_SHAPE, float32)
        l_parts = cuda.shared.array(STATE_SHAPE, float32)
        k_raw = cuda.local.array(RAW_SHAPE, RAW)
        v_raw = cuda.local.array(RAW_SHAPE, RAW)
        # pages, offsets: for this tile; next_*: for the next. While a tile is computed, the table
        # is read for the tile two later, so that loads of K need not wait for the table.
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

        page_args = Pages(page_size, page_multiplier, page_shift)
        mask_args = MaskArgs(left, right, unit, inverse_unit)
        tid = cuda.threadIdx.x
        lane_in_group, lane_group = tid & (LANES - 1), tid >> LOG2_LANES
        b = cuda.blockIdx.y
        seqlen_q, seqlen_k = q.shape[1], seq_lens[b]
        num_kv_heads, num_splits = k_cache.shape[2], lse_partial.shape[0]
        group_size, _ = divide(q.shape[2], num_kv_heads)
        num_m_tiles, _ = divide(seqlen_q * group_size + ROWS - 1, ROWS)
        split_and_head, m_tile = divide(cuda.blockIdx.x, num_m_tiles)
        split, kv_head = divide(split_and_head, num_kv_heads)
        score_to_exp2 = LOG2_E if MODIFIED else softmax_scale * LOG2_E

        # The key tiles of this sequence, from the first with a key that a query row sees, divided
        # evenly. With more splits than tiles some splits are empty: their (out, lse) is (0, -inf).
        first_m, _ = divide(m_tile * ROWS, group_size)
        last_m, _ = divide(m_tile * ROWS + ROWS - 1, group_size)
        first_n = first_key(first_m + seqlen_k - seqlen_q, mask_args)
        first_tile, _ = divide(first_n, BLOCK_N)
        num_n_tiles, _ = divide(seqlen_k + BLOCK_N - 1, BLOCK_N)
        tiles_per_split, remainder = divide(num_n_tiles - first_tile, num_splits)
        n_first = (first_tile + split * tiles_per_split + min(split, remainder)) * BLOCK_N
        n_end = n_first + (tiles_per_split + (1 if split < remainder else 0)) * BLOCK_N
        n_end = min(n_end, end_key(last_m + seqlen_k - seqlen_q, seqlen_k, mask_args))
        last_key = n_end - 1  # clamps an index; keys past the end are masked
        # Every query row of the tile sees the keys from all_see_from to all_see_to - 1.
        all_see_from = first_key(last_m + seqlen_k - seqlen_q, mask_args)
        all_see_to = end_key(first_m + seqlen_k - seqlen_q, seqlen_k, mask_args)

        for r in range(ROWS):
            m, head = divide(m_tile * ROWS + r, group_size)
            head += kv_head * group_size
            for i in range(COLS):
                d = (i // VECTOR_SIZE * LANES + lane_in_group) * VECTOR_SIZE + i % VECTOR_SIZE
                q_row[r, i] = ZERO
                if m < seqlen_q and d < HEAD_DIM:
                    q_row[r, i] = float32(q[uint64(b), uint64(m), uint64(head), uint64(d)])
                acc[r, i] = ZERO
            m_i[r] = NEG_INF
            l_i[r] = ZERO

        # A warp has consecutive keys. The loop condition is warp-uniform, as shfl_xor_sync with the
        # full mask requires.
        n_warp = n_first + (tid >> 5) * (LANE_GROUPS * KEYS)
        n_group = n_warp + (lane_group & (LANE_GROUPS - 1))
        if n_warp < n_end:
            for u in range(KEYS):
                n = n_group + u * LANE_GROUPS
                at = page_and_offset(block_table, b, min(n, last_key), page_args)
                pages[u], offsets[u] = at
                n_next = min(n + BLOCK_N, last_key)
                at = page_and_offset(block_table, b, n_next, page_args)
                next_pages[u], next_offsets[u] = at
                load(k_raw[u], k_cache, pages[u], offsets[u], kv_head, lane_in_group)
        while n_warp < n_end:
            for u in range(KEYS):
                load(v_raw[u], v_cache, pages[u], offsets[u], kv_head, lane_in_group)
                # From here pages and offsets are the next tile's.
                pages[u], offsets[u] = next_pages[u], next_offsets[u]
                n = n_group + u * LANE_GROUPS + 2 * BLOCK_N
                at = page_and_offset(block_table, b, min(n, last_key), page_args)
                next_pages[u], next_offsets[u] = at

            for u in range(KEYS):  # S = scale · Q Kᵀ                        Algorithm 1, line 8
                to_float32(x, k_raw[u])
                for r in range(ROWS):
                    s[u, r] = ZERO
                    for i in range(COLS):
                        s[u, r] += q_row[r, i] * x[i // 2, i % 2]
            for u in range(KEYS):
                load(k_raw[u], k_cache, pages[u], offsets[u], kv_head, lane_in_group)

            # Every query row of the tile sees every one of these keys: no mask.
            all_visible = n_warp >= all_see_from and n_warp + LANE_GROUPS * KEYS <= all_see_to
            new_maximum = False
            for u in range(KEYS):
                for step in range(LOG2_LANES):
                    for r in range(ROWS):
                        s[u, r] += cuda.shfl_xor_sync(FULL_WARP, s[u, r], 1 << step)
                n = n_group + u * LANE_GROUPS
                for r in range(ROWS):
                    m, head_in_group = divide(m_tile * ROWS + r, group_size)
                    position = m + seqlen_k - seqlen_q
                    if MODIFIED:
                        slope = ZERO
                        if ALIBI and m < seqlen_q:
                            slope = alibi_slopes[kv_head * group_size + head_in_group]
                        s[u, r] = score(s[u, r] * softmax_scale, position - n, slope, mask_args)
                    if WRITTEN:
                        h = kv_head * group_size + head_in_group
                        s[u, r] = modified(s[u, r], b, h, position, n, seqlen_k, MIXED, args)
                    s[u, r] *= score_to_exp2
                    if not all_visible and not sees(position, n, seqlen_k, mask_args):
                        s[u, r] = NEG_INF
                    new_maximum = new_maximum or s[u, r] > m_i[r]
            if new_maximum:  # rarely true after the first tile
                # m_i <- max(m_i, rowmax(S))                                            line 9
                for r in range(ROWS):
                    m_new = m_i[r]
                    for u in range(KEYS):
                        m_new = max(m_new, s[u, r])
                    shift = ZERO if m_new == NEG_INF else m_new  # no key yet: -inf - -inf is NaN
                    alpha = exp2(m_i[r] - shift)  # rescales sums relative to the old maximum
                    m_i[r] = m_new
                    l_i[r] *= alpha
                    for i in range(COLS):
                        acc[r, i] *= alpha

            for u in range(KEYS):
                to_float32(x, v_raw[u])
                for r in range(ROWS):
                    shift = ZERO if m_i[r] == NEG_INF else m_i[r]
                    p = exp2(s[u, r] - shift)  # P = exp(S - m_i)                         line 9
                    l_i[r] += p
                    for i in range(COLS):
                        acc[r, i] += p * x[i // 2, i % 2]  # out <- alpha out + P V       line 10
            n_warp += BLOCK_N
            n_group += BLOCK_N

        for r in range(ROWS):
            if lane_in_group == 0:
                m_parts[lane_group, r] = m_i[r]
                l_parts[lane_group, r] = l_i[r]
            for i in range(COLS):
                d = (i // VECTOR_SIZE * LANES + lane_in_group) * VECTOR_SIZE + i % VECTOR_SIZE
                if d < HEAD_DIM:
                    parts[uint64(lane_group), uint64(r), uint64(d)] = acc[r, i]
        cuda.syncthreads()  # the states of all lane groups are stored: safe to merge

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
@checks.takes(checks.DECODING)
def flash_decode_wide(q, k_cache, v_cache, seq_lens, **options):
    """Flash-Decoding of a contiguous or paged KV cache, with wide loads.

    Parameters
    ----------
    q : array of shape (batch, seqlen_q, num_heads, head_dim), float32, float16 or bfloat16
        The last seqlen_q tokens of each sequence.
    k_cache, v_cache : arrays, dtype of q
        Of shape (batch, max_len, num_kv_heads, head_dim), or with a block_table (num_pages,
        page_size, num_kv_heads, head_dim). On a GPU 16-byte loads are used if the rows of both
        caches begin and end at multiples of 16 bytes; otherwise element loads.
    seq_lens : array of shape (batch,), int32
    block_table : array of shape (batch, max_pages), int32, default=None
        As for `paged_attn_decode`; None: as for `flash_decode`.
    causal, window_size, softcap, alibi_slopes, softmax_scale, mask, mask_args, score, score_args, \
    sinks
        As for `flash_decode`.
    num_splits : int, default=0
        0: the function `fa_numba.tiling.num_splits.choose_quickest_splits` chooses it.

    Returns
    -------
    out, lse : arrays
        As of `flash_decode`.
    """
    head_dims = checks.WIDE_HEAD_DIM
    problem = check_problem(q, k_cache, v_cache, seq_lens, head_dims=head_dims, **options)
    in_vectors = rows_of_16_bytes(k_cache) and rows_of_16_bytes(v_cache)
    vector_dtype = arrays.dtype_name(q) if in_vectors else ""
    tiling = decode_tiling(problem.num_rows, q.shape[3])
    rows, blocks_per_sm = tiling.rows, tiling.blocks_per_sm
    constants = {"COLS": tiling.cols, "KEYS": tiling.keys, "BLOCKS_PER_SM": blocks_per_sm}
    constants["EXPRESSIONS"] = problem.scores.expressions
    kernel = make_flash_decode_wide(q.shape[3], rows, vector_dtype, *problem.constants, **constants)
    num_splits = problem.num_splits or choose_splits(problem, rows, tiling.block_n, blocks_per_sm)
    grid = (problem.num_tiles(rows) * num_splits, q.shape[0])
    more = (problem.scores.expression_args,)
    return launch(problem, kernel, grid, THREADS, num_splits, more=more)


def rows_of_16_bytes(x):
    """True if x is on a GPU and its rows (last axis) begin and end at multiples of 16 bytes."""
    if arrays.library_of(x) == "numpy" or not arrays.gpu_available():
        return False  # the CPU engine does not run PTX
    address, strides = arrays.address_and_strides(x)
    row_bytes = x.shape[-1] * x.dtype.itemsize
    sizes = x.shape[:-1]
    outer_strides = [n for n, size in zip(strides[:-1], sizes, strict=True) if size > 1]
    return not any(n % 16 for n in (address, row_bytes, *outer_strides))
