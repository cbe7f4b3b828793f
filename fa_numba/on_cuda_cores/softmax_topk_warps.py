"""The k largest softmax values of each row, in one pass at the speed of memory.

softmax_topk          each thread keeps a sorted list of the k best of its columns
softmax_topk_warps    each warp keeps one list, an entry in each lane   <- this file

With one list per thread, a number is compared with a list that has seen few numbers, and most
numbers enter it. With one list per warp, a number is compared with the k-th best of 32 times as
many. A thread reads 64 bytes at once and finds their maximum, which online softmax needs anyway. If
no lane's maximum beats the k-th best, one vote ends the step. Otherwise the warp inserts the
candidates one after another. Each lane holds one entry of the list: an insertion is a comparison in
every lane and a move to the next lane.

With thousands of rows each warp owns a row. With fewer rows several warps share a row, or several
thread blocks do; a second kernel then merges their lists and sums.

Paper: Milakov & Gimelshein 2018, arXiv:1805.02867, Algorithm 4.
"""

import functools
import math

import numpy as np
from numba import cuda, float32, int32, uint32

from fa_numba import checks
from fa_numba.constants import FULL_WARP, LOG2_E, NEG_INF
from fa_numba.kernels.softmax_topk import NO_COLUMN
from fa_numba.on_cuda_cores.packets import make_cut, make_packet, packets_of_rows
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.row_tiling import (
    MAX_THREADS,
    PACKETS_AT_ONCE,
    WARP_SIZE,
    WARPS_PER_BLOCK,
    warps_of_row,
)


@cuda.jit(device=True)
def merge_sums(m_a, l_a, m_b, l_b):
    """(m, l) = (m_a, l_a) ⊕ (m_b, l_b)."""
    m = max(m_a, m_b)
    shift = float32(0.0) if m == NEG_INF else m  # -inf - -inf is NaN
    l = l_a * math.exp2((m_a - shift) * LOG2_E) + l_b * math.exp2((m_b - shift) * LOG2_E)
    return m, l


@cuda.jit(device=True)
def ranks_before(x_a, col_a, x_b, col_b):
    """The order of the result, as in softmax_topk; `|` instead of `or` avoids a branch."""
    return (x_a > x_b) | ((x_a == x_b) & (col_a < col_b))


@functools.cache
def make_insert(K):
    """insert(x, col, x_best, col_best, x_kth, col_kth): insert each lane's (x, col) into the list.

    Returns the new x_best, col_best, x_kth, col_kth. x_best, col_best of lane i are the i-th best;
    x_kth, col_kth are the K-th best, the same in all lanes.
    """

    @cuda.jit(device=True)
    def insert(x, col, x_best, col_best, x_kth, col_kth):
        lane = cuda.laneid
        cuda.syncwarp()  # tells the compiler that the lanes have converged: it adds no checks
        better = uint32(cuda.ballot_sync(FULL_WARP, ranks_before(x, col, x_kth, col_kth)))
        while better != 0:  # the same in all lanes
            cuda.syncwarp()
            source = cuda.ffs(better) - 1
            x_new = cuda.shfl_sync(FULL_WARP, x, source)
            col_new = cuda.shfl_sync(FULL_WARP, col, source)
            x_above = cuda.shfl_up_sync(FULL_WARP, x_best, 1)
            col_above = cuda.shfl_up_sync(FULL_WARP, col_best, 1)
            enters = ranks_before(
                x_new, col_new, x_best, col_best
            )  # in this lane or in a lower one
            moves = enters & (lane > 0) & ranks_before(x_new, col_new, x_above, col_above)
            x_best = x_above if moves else x_new if enters else x_best
            col_best = col_above if moves else col_new if enters else col_best
            x_kth = cuda.shfl_sync(FULL_WARP, x_best, K - 1)
            col_kth = cuda.shfl_sync(FULL_WARP, col_best, K - 1)
            still = uint32(cuda.ballot_sync(FULL_WARP, ranks_before(x, col, x_kth, col_kth)))
            better = uint32(better & (better - 1) & still)  # without the lane `source`
        return x_best, col_best, x_kth, col_kth

    return insert


@functools.cache
def make_softmax_topk_warps(WARPS, ROWS, PACKETS, K, SPLIT, WIDTH, CUT=False, ALIGNED=True):
    """The kernel for ROWS rows in a thread block, each with WARPS warps, and the K largest.

    ROWS may exceed 1 only if WARPS is 1. The last three are the `RowPackets` of x.
    """
    THREADS = WARPS * WARP_SIZE
    LENGTH = PACKETS * WIDTH
    STEP = THREADS * LENGTH
    SHIFT = WIDTH.bit_length() - 1  # log2
    BLOCKS = max(1, MAX_THREADS // (THREADS * ROWS))  # per SM: a thread may have 64 registers
    load, load_one = make_packet(WIDTH, ALIGNED).load, make_packet(1).load
    skew_of = make_cut(WIDTH).skew
    insert = make_insert(K)

    if CUT:

        @cuda.jit(device=True)
        def is_whole(start, skew, num_cols):
            return skew <= start <= num_cols + skew - STEP

        @cuda.jit(device=True)
        def inside(col, num_cols):
            return (col >= 0) & (col < num_cols)

        @cuda.jit(device=True)
        def load_edge(x, row, col, numbers, first):
            num_cols = x.shape[1]
            if 0 <= col <= num_cols - WIDTH:
                load(x, row, col, numbers, first)
            else:
                for i in range(WIDTH):
                    numbers[first + i] = NEG_INF
                    if inside(col + i, num_cols):
                        load_one(x, row, col + i, numbers, first + i)

    else:

        @cuda.jit(device=True)
        def is_whole(start, skew, num_cols):
            return start + STEP <= num_cols

        @cuda.jit(device=True)
        def inside(col, num_cols):
            return col < num_cols

        @cuda.jit(device=True)
        def load_edge(x, row, col, numbers, first):
            if col < x.shape[1]:
                load(x, row, col, numbers, first)
            else:
                for i in range(WIDTH):
                    numbers[first + i] = NEG_INF

    # All of fastmath would assume that no number is infinite.
    @cuda.jit(launch_bounds=(THREADS * ROWS, BLOCKS), fastmath={"contract"})
    def softmax_topk_warps_kernel(x, values, columns, x_split, col_split, m_split, l_split):
        """WARPS warps own a row, or one split of a row, and walk its packets.

        With CUT the first packet may begin before the row, and the last one end after it: then a
        lane loads the numbers of the row one by one.

        grid      (num_rows / ROWS, num_splits); threads (THREADS, ROWS)
        shared    m_warp, l_warp (WARPS,): each warp's partial result; x_warp, col_warp (WARPS, K):
                  its list
        private   numbers (PACKETS · WIDTH,); m_i, l_i; an entry of the list; the K-th best
        HBM       x once; values, columns once, or with SPLIT x_split, col_split, m_split, l_split
                  once: the best x of each split, and its m and l
        paper     Online normalizer calculation for softmax, Algorithm 4
        budget    64 registers, 192 bytes shared (WARPS=4, K=5)
        """
        m_warp = cuda.shared.array(WARPS, float32)
        l_warp = cuda.shared.array(WARPS, float32)
        x_warp = cuda.shared.array((WARPS, K), float32)
        col_warp = cuda.shared.array((WARPS, K), int32)
        numbers = cuda.local.array(LENGTH, float32)
        tid, split = cuda.threadIdx.x, cuda.blockIdx.y
        lane, warp = tid % WARP_SIZE, tid // WARP_SIZE
        row = cuda.blockIdx.x * ROWS + cuda.threadIdx.y
        num_rows, num_cols = x.shape
        if row >= num_rows:  # the whole warp returns; with ROWS > 1 there is no barrier
            return

        x_best, col_best = NEG_INF, NO_COLUMN
        x_kth, col_kth = NEG_INF, NO_COLUMN
        m_i, l_i = NEG_INF, float32(0.0)
        start = split * STEP
        skew = (
            skew_of(row, num_cols) if CUT else 0
        )  # columns that precede the row in its first packet
        while start < num_cols + skew:
            first = start + tid * WIDTH - skew
            # Tested once, so that no load is behind a branch.
            if is_whole(start, skew, num_cols):
                for p in range(PACKETS):
                    load(x, row, first + p * THREADS * WIDTH, numbers, p * WIDTH)
            else:
                for p in range(PACKETS):
                    load_edge(x, row, first + p * THREADS * WIDTH, numbers, p * WIDTH)

            largest = NEG_INF  # of all numbers except NaN
            for i in range(LENGTH):
                largest = max(largest, numbers[i])
            m_new = max(m_i, largest)  # (m, l) <- (m, l) ⊕ (x_j, 1)                 lines 6-7
            shift = float32(0.0) if m_new == NEG_INF else m_new
            l_i *= math.exp2((m_i - shift) * LOG2_E)
            for i in range(LENGTH):
                l_i += math.exp2((numbers[i] - shift) * LOG2_E)
            m_i = m_new

            # Of equal numbers the earlier column ranks first: a later number must be larger.
            is_short = col_kth == NO_COLUMN  # the list has fewer than K entries
            if cuda.any_sync(FULL_WARP, (largest > x_kth) | is_short):
                bound = x_kth
                if is_short:  # the K-th largest of the lanes' maxima bounds the K-th of all below
                    remaining = largest
                    for _ in range(K):
                        bound = remaining
                        for step in range(5):
                            bound = max(bound, cuda.shfl_xor_sync(FULL_WARP, bound, 16 >> step))
                        remaining = NEG_INF if remaining == bound else remaining
                candidates = uint32(0)  # a bit for each number; a NaN is a candidate
                for i in range(LENGTH):
                    if not numbers[i] < bound:
                        candidates = uint32(candidates | uint32(1 << i))
                while cuda.any_sync(FULL_WARP, candidates != 0):  # one per lane at a time
                    next_one = uint32(candidates & -int32(candidates))  # its lowest bit
                    key = NEG_INF
                    for i in range(LENGTH):  # not numbers[number]: registers cannot be indexed
                        if next_one & uint32(1 << i):
                            key = numbers[i]
                    key = key if key == key else NEG_INF  # NaN ranks as -inf
                    number = cuda.ffs(next_one) - 1
                    n = first + (number >> SHIFT) * THREADS * WIDTH + (number & WIDTH - 1)
                    col = int32(n) if (next_one != 0) & inside(n, num_cols) else NO_COLUMN
                    x_best, col_best, x_kth, col_kth = insert(  # lines 8-15
                        key, col, x_best, col_best, x_kth, col_kth
                    )
                    candidates = uint32(candidates ^ next_one)
            start += cuda.gridDim.y * STEP

        for step in range(5):  # after 16, 8, 4, 2, 1 each lane has merged with all 32
            m_other = cuda.shfl_xor_sync(FULL_WARP, m_i, 16 >> step)
            l_other = cuda.shfl_xor_sync(FULL_WARP, l_i, 16 >> step)
            m_i, l_i = merge_sums(m_i, l_i, m_other, l_other)
        if WARPS > 1:
            if lane == 0:
                m_warp[warp] = m_i
                l_warp[warp] = l_i
            if lane < K:
                x_warp[warp, lane] = x_best
                col_warp[warp, lane] = col_best
            cuda.syncthreads()  # every warp's result is there: the first one merges them all
            if warp > 0:
                return
            for other in range(1, WARPS):
                m_i, l_i = merge_sums(m_i, l_i, m_warp[other], l_warp[other])
                key, col = NEG_INF, NO_COLUMN
                if lane < K:
                    key, col = x_warp[other, lane], col_warp[other, lane]
                x_best, col_best, x_kth, col_kth = insert(
                    key, col, x_best, col_best, x_kth, col_kth
                )

        if lane < K:
            if SPLIT:
                x_split[row, split, lane] = x_best
                col_split[row, split, lane] = col_best
                if lane == 0:
                    m_split[row, split] = m_i
                    l_split[row, split] = l_i
            else:
                values[row, lane] = math.exp2((x_best - m_i) * LOG2_E) / l_i  # lines 17-19
                columns[row, lane] = col_best

    return softmax_topk_warps_kernel


@functools.cache
def make_merge_splits(ROWS, K):
    """The kernel that merges the splits of rows: one warp per row, ROWS rows per thread block."""
    insert = make_insert(K)

    @cuda.jit(fastmath={"contract"})
    def merge_splits_kernel(x_split, col_split, m_split, l_split, values, columns):
        """A warp owns a row and merges the results of its splits.

        grid      (num_rows / ROWS,); threads (32, ROWS)
        shared    none
        private   m_i, l_i; an entry of the list; the K-th best
        HBM       everything once; m_split and l_split in every lane
        paper     Online normalizer calculation for softmax, section 3.1
        budget    40 registers, 0 bytes shared (K=5)
        """
        row, lane = cuda.blockIdx.x * ROWS + cuda.threadIdx.y, cuda.threadIdx.x
        if row >= values.shape[0]:
            return
        x_best, col_best = NEG_INF, NO_COLUMN
        x_kth, col_kth = NEG_INF, NO_COLUMN
        m_i, l_i = NEG_INF, float32(0.0)
        for split in range(m_split.shape[1]):
            m_i, l_i = merge_sums(m_i, l_i, m_split[row, split], l_split[row, split])
            key, col = NEG_INF, NO_COLUMN
            if lane < K:
                key, col = x_split[row, split, lane], col_split[row, split, lane]
            x_best, col_best, x_kth, col_kth = insert(key, col, x_best, col_best, x_kth, col_kth)
        if lane < K:
            values[row, lane] = math.exp2((x_best - m_i) * LOG2_E) / l_i
            columns[row, lane] = col_best

    return merge_splits_kernel


def softmax_topk_warps(x, k):
    """The k largest values of each row's softmax, and their columns: a faster `softmax_topk`.

    Parameters
    ----------
    x : array of shape (num_rows, num_cols), float32, float16 or bfloat16
        Slower if x does not begin at a multiple of 16 bytes; slowest if the numbers of a row
        ascend, because each one is then the best so far.
    k : int
        From 1 to num_cols, at most 32: each lane of a warp keeps one candidate.

    Returns
    -------
    values : array of shape (num_rows, k), dtype and library of x
        NaN for a row that contains a NaN, and for a row of −inf only.
    columns : array of shape (num_rows, k), int32
        For equal x the smaller column comes first. A NaN ranks as −inf, so that these are always k
        different columns of x.
    """
    checks.check_rows(x)
    num_rows, num_cols = x.shape
    k = checks.check_top_k(k, num_cols)
    values = arrays.empty(x, (num_rows, k), x.dtype)
    columns = arrays.empty(x, (num_rows, k), np.int32)
    warps, num_splits = warps_of_row(num_rows, num_cols, arrays.num_sms(x))
    rows = WARPS_PER_BLOCK // warps
    packets_of_x = packets_of_rows(x)
    # Numbers outside of packets are loaded one by one: four packets of 8 exceed the registers.
    packets = 3 if packets_of_x.cut and packets_of_x.width == 8 else PACKETS_AT_ONCE
    kernel = make_softmax_topk_warps(warps, rows, packets, k, num_splits > 1, *packets_of_x)
    parts = 4 * (np.float32(0),)  # unused if rows are not split
    if num_splits > 1:
        split = num_rows, num_splits
        x_split = arrays.empty(x, (*split, k))
        col_split = arrays.empty(x, (*split, k), np.int32)
        parts = x_split, col_split, arrays.empty(x, split), arrays.empty(x, split)
    grid, block = (ceil_div(num_rows, rows), num_splits), (warps * WARP_SIZE, rows)
    arrays.launch(kernel, grid, block, x, values, columns, *parts)
    if num_splits > 1:
        merge = make_merge_splits(WARPS_PER_BLOCK, k)
        grid, block = (ceil_div(num_rows, WARPS_PER_BLOCK),), (WARP_SIZE, WARPS_PER_BLOCK)
        arrays.launch(merge, grid, block, *parts, values, columns)
    return values, columns
