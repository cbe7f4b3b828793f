"""Flash-Decoding from pages of any size: a copy takes a key of several heads.

flash_decode       tiles of K and V go through shared memory; a thread per score
flash_decode_wide  a few lanes per key, loads of 16 bytes, no barrier
flash_decode_mma   K and V go from HBM to the registers that multiply them
flash_decode_tma   TMA keeps up to 192 KB on their way to an SM: boxes of 16 keys of a head
flash_decode_bulk  a key of several heads, wherever that is                       <- this file

Where a page holds one key, what lies in a row is that key of all K/V heads: 256 bytes of each. A
warp starts its lanes' copies one after the other, some 40 ns each, and HBM delivers 256 bytes to an
SM in 8. So a thread block has several heads, and a copy takes a key of all of them.

- A warp belongs to a head, or several warps do; it multiplies 16 keys of each turn. Four warps more
  ask for the turns, a quarter each: their lanes look up pages two turns before, and each starts the
  copy of a key.
- The warps no longer have rings of their own. A turn is full when all of its bytes have come, and
  empty when all warps have read it: a barrier says each.
- A copy of bytes knows no swizzle. Instead the rows lie 16 bytes further apart than they are long,
  so that the eight that ldmatrix reads at once begin in different banks.

On an H200 it reads float16 caches of 32 heads of 128 in shuffled pages of 1 at 3.9 to 4.1 TB/s, 91
to 93 % of flash_decode_tma without pages, where flash_decode_mma has 83 to 90; with four queries to
a K/V head at 3.1 to 3.6, 88 to 93 %, where that has 85 to 93 (benchmarks/NOTES.md).
"""

import functools

from numba import cuda, float32, int32, uint8, uint32, uint64

from fa_numba import arrays
from fa_numba.analysis.block_sizes import ceil_div
from fa_numba.analysis.decode_tiling import tile_rows
from fa_numba.analysis.num_splits import choose_even_splits
from fa_numba.kernels.flash_decode_wide import divide, launch
from fa_numba.tensor_core import forward, mbarrier
from fa_numba.tensor_core.barriers import named_barrier_sync
from fa_numba.tensor_core.decoding import (
    KEYS,
    NEG_INF,
    ZERO,
    check_on_tensor_cores,
    make_keys_of_split,
    make_merge,
    make_products,
    make_turn_softmax,
)
from fa_numba.tensor_core.mbarrier import (
    fence_mbarrier_init,
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_init,
)
from fa_numba.tensor_core.ptx import global_address, shared_address
from fa_numba.tensor_core.vectors import bulk_load

PRODUCERS = 4  # warps that ask for turns
AHEAD = 2  # turns whose pages are known or asked for
SHARED_BYTES = 227 * 1024  # of a thread block, at most


def warps_of(HEAD_DIM):
    """Warps that multiply: a turn of all of them is at most 64 KB."""
    return 8 if HEAD_DIM <= 128 else 4


def row_bytes(HEAD_DIM, HEADS):
    """From a key to the next in shared memory: an odd number of pieces of 16 bytes."""
    return 2 * HEADS * HEAD_DIM | 16


def turn_bytes(HEAD_DIM, HEADS):
    """Keys of all warps, K and V, in shared memory."""
    return 2 * KEYS * warps_of(HEAD_DIM) // HEADS * row_bytes(HEAD_DIM, HEADS)


def num_stages(HEAD_DIM, ROWS, HEADS):
    """As many turns as there is room for, up to 192 KB."""
    parts = 4 * warps_of(HEAD_DIM) * ROWS * (HEAD_DIM + 2)
    turn = turn_bytes(HEAD_DIM, HEADS) + 2 * mbarrier.BYTES
    return min(SHARED_BYTES - parts - 16, 200 * 1024) // turn


def shared_bytes(HEAD_DIM, ROWS, HEADS):
    """Dynamic shared memory that a thread block asks for."""
    stages = num_stages(HEAD_DIM, ROWS, HEADS)
    return stages * (turn_bytes(HEAD_DIM, HEADS) + 2 * mbarrier.BYTES) + 16


def heads_of_a_copy(k_cache, v_cache, num_rows):
    """Heads of a key that lie in a row, in both caches: a power of 2 that divides all.

    Up to 4 or, where each has several rows to merge in each split, 2: with more heads to a thread
    block the keys are cut into more splits. Measured.
    """
    num_kv_heads, head_dim = k_cache.shape[2:]
    for x in (k_cache, v_cache):
        _, strides = arrays.address_and_strides(x)
        if strides[2] != head_dim * x.dtype.itemsize:
            return 1
    return min(4 if num_rows == 1 else 2, num_kv_heads & -num_kv_heads)


@functools.cache
def make_flash_decode_bulk(
    HEAD_DIM,
    DTYPE,
    ROWS,
    PAGE_SIZE,
    HEADS,
    CAUSAL,
    WINDOW=(-1, -1),
    SOFTCAP=0.0,
    ALIBI=False,
    PRODUCERS=PRODUCERS,
):
    """The first kernel: launch it with 32 · (`warps_of` + PRODUCERS) threads, `shared_bytes`.

    HEAD_DIM is a multiple of 8, DTYPE "float16" or "bfloat16", ROWS 1, 2, 4 or 8, HEADS a power of
    2 up to `warps_of(HEAD_DIM)`. PAGE_SIZE is 0 for a contiguous cache; then block_table, as
    alibi_slopes without ALIBI, is not looked at and may be any scalar.
    """
    wait = mbarrier.wait_function()
    PAGED, PAGE = PAGE_SIZE > 0, max(1, PAGE_SIZE)
    WARPS, STAGES = warps_of(HEAD_DIM), num_stages(HEAD_DIM, ROWS, HEADS)
    THREADS = 32 * WARPS  # that multiply
    BLOCK_N = KEYS * WARPS // HEADS
    STEPS = ceil_div(HEAD_DIM, 16)  # products
    ROW, COPY_BYTES = row_bytes(HEAD_DIM, HEADS), 2 * HEADS * HEAD_DIM
    K_BYTES = BLOCK_N * ROW
    TURN_BYTES = 2 * K_BYTES
    EMPTY = STAGES * mbarrier.BYTES  # from the barrier of a full turn to that of an empty one
    COPIES = 2 * BLOCK_N // PRODUCERS  # of a producer, in a turn
    COPIES_OF_LANE = ceil_div(COPIES, 32)
    FRAGMENTS = (STEPS, 4)
    STATE_SHAPE, PARTS_SHAPE = (WARPS, ROWS), (WARPS, ROWS, HEAD_DIM)
    PLACES_SHAPE = (AHEAD, COPIES_OF_LANE, 2)

    @cuda.jit(device=True, forceinline=True)
    def at(tile, chunk, j):
        """Of keys whose columns lie in a row."""
        return tile + chunk + 32 * j

    keys_of_split = make_keys_of_split(ROWS, BLOCK_N, CAUSAL, WINDOW)
    load_queries, scores, add_weighted = make_products(HEAD_DIM, DTYPE, at)
    turn_softmax = make_turn_softmax(DTYPE, CAUSAL, WINDOW, SOFTCAP, ALIBI)
    leave_rows, leave_state, merge = make_merge(HEAD_DIM, ROWS, WARPS, HEADS)

    @cuda.jit(device=True, forceinline=True)
    def place_of(chunk, num_m_tiles, num_groups, num_splits):
        """Heads are neighbours: what is read at the same time lies side by side."""
        rest, m_tile = divide(chunk, num_m_tiles)
        rest, group = divide(rest, num_groups)
        b, split = divide(rest, num_splits)
        return b, split, group * HEADS, m_tile

    @cuda.jit(device=True, forceinline=True)
    def look_up(places, heads, i, ahead, block_table, seq_lens, first, sizes):
        """Go on to the next turn, which may be of another part, and ask for its pages.

        `ahead` says where that is: chunk, b, kv_head, n, n_end. What is past the end of the keys is
        read from the last of them. Of turn i, `heads` has the first head, or -1 where there are no
        more turns, and `places` page and row of this lane's copies, `first` and every 32nd.
        """
        seqlen_q, group_size, num_m_tiles, num_groups, num_splits, num_chunks = sizes
        ahead[3] += BLOCK_N
        while ahead[3] >= ahead[4] and ahead[0] < num_chunks:
            ahead[0] += int32(cuda.gridDim.x)
            if ahead[0] < num_chunks:
                b, split, kv_head, m_tile = place_of(ahead[0], num_m_tiles, num_groups, num_splits)
                ahead[1], ahead[2] = b, kv_head
                ahead[3], ahead[4] = keys_of_split(
                    split, num_splits, m_tile, seqlen_q, seq_lens[b], group_size
                )
        heads[i] = -1
        if ahead[0] < num_chunks:
            heads[i] = ahead[2]
            for u in range(COPIES_OF_LANE):
                n = min(ahead[3] + (first + 32 * u) % BLOCK_N, ahead[4] - 1)
                places[i, u, 0], places[i, u, 1] = ahead[1], n
                if PAGED:
                    page, places[i, u, 1] = divide(n, PAGE)
                    places[i, u, 0] = block_table[uint64(ahead[1]), uint64(page)]

    @cuda.jit(device=True, forceinline=True)
    def source_of(cache, place, kv_head):
        return global_address(cache[uint64(place[0]), uint64(place[1]), uint64(kv_head)])

    @cuda.jit(device=True, forceinline=True)
    def produce(ring, full, k_cache, v_cache, block_table, seq_lens, lane, producer, sizes):
        """Ask for one turn after the other: copy i is of row i, first those of K, then those of V.

        A lane's copy is a turn of a loop of its warp's, so that each producer has a share of them.
        """
        ahead = cuda.local.array(5, int32)
        places = cuda.local.array(PLACES_SHAPE, int32)
        heads = cuda.local.array(AHEAD, int32)
        first = producer * COPIES + lane
        ahead[0], ahead[3], ahead[4] = int32(cuda.blockIdx.x) - int32(cuda.gridDim.x), 0, 0
        for i in range(AHEAD):
            look_up(places, heads, i, ahead, block_table, seq_lens, first, sizes)
        stage, parity = 0, 1
        while heads[0] >= 0:
            barrier = full + stage * mbarrier.BYTES
            wait(barrier + EMPTY, parity)
            if lane == 0:
                mbarrier_arrive_expect_tx(barrier, COPIES * COPY_BYTES)
            cuda.syncwarp()  # announced: the bytes may come
            for u in range(COPIES_OF_LANE):
                if COPIES >= 32 or lane < COPIES:
                    row = first + 32 * u
                    source = source_of(v_cache, places[0, u], heads[0])
                    if row < BLOCK_N:
                        source = source_of(k_cache, places[0, u], heads[0])
                    tile = ring + stage * TURN_BYTES + row * ROW
                    bulk_load(tile, source, COPY_BYTES, barrier)
            for i in range(AHEAD - 1):
                heads[i] = heads[i + 1]
                for u in range(COPIES_OF_LANE):
                    for x in range(2):
                        places[i, u, x] = places[i + 1, u, x]
            look_up(places, heads, AHEAD - 1, ahead, block_table, seq_lens, first, sizes)
            stage += 1
            if stage == STAGES:
                stage, parity = 0, parity ^ 1

    @cuda.jit(launch_bounds=(THREADS + 32 * PRODUCERS, 1), fastmath={"contract"})
    def flash_decode_bulk_kernel(
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
        """A thread block owns ROWS rows of HEADS K/V heads in one split, and then others.

        A row is a query of a query head; the heads of a group are neighbours.

        grid      (at most num_m_tiles · num_kv_heads / HEADS · num_splits · batch,); 32 · (WARPS
                  + PRODUCERS) threads
        shared    ring (STAGES, 2, BLOCK_N, HEADS, HEAD_DIM), 16 bytes after each key, and two
                  barriers for each turn; what the warps have at the end: acc (WARPS, ROWS,
                  HEAD_DIM), m_i, l_i (WARPS, ROWS)
        private   Q, acc (HEAD_DIM / 16, 4), k (2, 2), v (4,), s (2, 4), p (2,), m_i, l_i
        HBM       K and V once per tile of rows, but for the tiles that none of them sees; Q,
                  out_partial, lse_partial once per split; block_table once per key and group
        paper     FlashAttention-2, Algorithm 1, over a part of the keys;
                  PagedAttention, section 4.1
        budget    160 registers; 202 to 231 KB shared, one thread block per SM (HEAD_DIM=128)
        """
        parts = cuda.shared.array(PARTS_SHAPE, float32)
        m_parts = cuda.shared.array(STATE_SHAPE, float32)
        l_parts = cuda.shared.array(STATE_SHAPE, float32)
        states = parts, m_parts, l_parts
        q_reg = cuda.local.array(FRAGMENTS, uint32)
        acc = cuda.local.array(FRAGMENTS, float32)  # rows of out, not yet divided by l_i
        k = cuda.local.array((2, 2), uint32)
        v = cuda.local.array(4, uint32)
        s = cuda.local.array((2, 4), float32)
        p = cuda.local.array(2, uint32)

        tid = cuda.threadIdx.x
        lane, warp = tid & 31, tid >> 5
        ring = (shared_address(cuda.shared.array(0, uint8)) + 15) & 0xFFFFFFF0
        full = ring + STAGES * TURN_BYTES
        if tid == 0:
            for i in range(STAGES):
                mbarrier_init(full + i * mbarrier.BYTES, PRODUCERS)
                mbarrier_init(full + i * mbarrier.BYTES + EMPTY, WARPS)
            fence_mbarrier_init()
        cuda.syncthreads()  # the barriers are made: safe to wait on

        batch, seqlen_q, num_heads, _ = q.shape
        num_kv_heads, num_splits = k_cache.shape[2], lse_partial.shape[0]
        group_size, _ = divide(num_heads, num_kv_heads)
        num_m_tiles, _ = divide(seqlen_q * group_size + ROWS - 1, ROWS)
        num_groups, _ = divide(num_kv_heads, HEADS)
        num_chunks = num_m_tiles * num_groups * num_splits * batch
        sizes = (seqlen_q, group_size, num_m_tiles, num_groups, num_splits, num_chunks)

        if warp >= WARPS:
            caches = k_cache, v_cache, block_table, seq_lens
            produce(ring, full, *caches, lane, warp - WARPS, sizes)
            return

        h, part = warp % HEADS, warp // HEADS  # of the heads; of a turn's keys
        tile = ((lane & 7) + 8 * (lane >> 4) + KEYS * part) * ROW + 2 * HEAD_DIM * h
        tile, col = ring + tile, 16 * (lane >> 3 & 1)
        stage, parity = 0, 0
        for chunk in range(cuda.blockIdx.x, num_chunks, cuda.gridDim.x):
            place = place_of(chunk, num_m_tiles, num_groups, num_splits)
            b, split, kv_head, m_tile = place
            seqlen_k = seq_lens[b]
            n_first, n_end = keys_of_split(
                split, num_splits, m_tile, seqlen_q, seqlen_k, group_size
            )
            m, head = divide(m_tile * ROWS + (lane >> 2), group_size)  # of this lane's scores
            head += (kv_head + h) * group_size
            is_query = lane >> 2 < ROWS and m < seqlen_q
            position = m + seqlen_k - seqlen_q  # among the keys: the last query's is the last
            slope = alibi_slopes[head] if ALIBI and is_query else ZERO
            load_queries(q_reg, q, b, m, head, is_query, lane)
            for j in range(STEPS):
                for i in range(4):
                    acc[j, i] = ZERO
            m_i = NEG_INF
            l_i = ZERO  # of this lane's keys alone

            for n in range(n_first + KEYS * part, n_end + KEYS * part, BLOCK_N):
                barrier, turn = full + stage * mbarrier.BYTES, tile + stage * TURN_BYTES
                wait(barrier, parity)
                scores(s, q_reg, k, turn, col)  # S = Q Kᵀ                                line 8
                m_i, l_i, alpha = turn_softmax(
                    s, p, m_i, l_i, n, position, seqlen_k, slope, softmax_scale, lane
                )
                add_weighted(acc, v, p, alpha, turn + K_BYTES, col, lane)  # out += P V   line 10
                cuda.syncwarp()  # the warp has read this turn
                if lane == 0:
                    mbarrier_arrive(barrier + EMPTY)
                stage += 1
                if stage == STAGES:
                    stage, parity = 0, parity ^ 1

            leave_rows(parts, acc, tid)
            leave_state(states, m_i, l_i, tid)
            named_barrier_sync(1, THREADS)  # what every warp has is there: safe to merge
            merge(states, out_partial, lse_partial, place, group_size, seqlen_q, tid)
            named_barrier_sync(1, THREADS)  # merged: safe to overwrite

    return flash_decode_bulk_kernel


@arrays.replayed
def flash_decode_bulk(
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
    """Flash-Decoding of a contiguous or paged KV cache of 16 bits, by copies of several heads.

    Parameters
    ----------
    q : GPU array of shape (batch, seqlen_q, num_heads, head_dim), float16 or bfloat16
    k_cache, v_cache : GPU arrays, dtype of q
        Of shape (batch, max_len, num_kv_heads, head_dim), or with a block_table (num_pages,
        page_size, num_kv_heads, head_dim). Any strides that are multiples of 16 bytes, with a
        contiguous last axis; head_dim a multiple of 8, up to 256. A copy is of one head where the
        heads of a key do not lie in a row.
    seq_lens, block_table, causal, window_size, softcap, alibi_slopes, softmax_scale
        As for `flash_decode_wide`.
    num_splits : int, default=0
        0 is chosen by `fa_numba.analysis.num_splits.choose_even_splits`.

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
        On a GPU that has no TMA, or one that came after Hopper.
    """
    mask = causal, window_size, softcap, alibi_slopes
    arguments = q, k_cache, v_cache, seq_lens, block_table, *mask, softmax_scale, num_splits
    problem = check_on_tensor_cores("flash_decode_bulk", forward.HOPPER, *arguments)
    batch, _, _, head_dim = q.shape
    rows = tile_rows(problem.num_rows)
    warps = warps_of(head_dim)
    heads = heads_of_a_copy(k_cache, v_cache, problem.num_rows)
    kernel = make_flash_decode_bulk(
        head_dim, arrays.dtype_name(q), rows, problem.page_size, heads, *problem.mask
    )
    num_tiles, num_sms = problem.num_tiles(rows) // heads * batch, arrays.num_sms(q)
    num_splits = problem.num_splits or choose_even_splits(
        num_tiles, problem.num_n_tiles(KEYS * warps // heads), num_sms
    )
    chunks = num_tiles * num_splits
    grid = (ceil_div(chunks, max(1, ceil_div(chunks, num_sms))),)  # each has as many as the others
    size = shared_bytes(head_dim, rows, heads)
    return launch(problem, kernel, grid, 32 * (warps + PRODUCERS), num_splits, shared_bytes=size)
