"""Choose the pages whose scores are the largest, for each sequence and K/V head.

The last page is always chosen, and of equal scores the later page. A float becomes an integer of
the same order, and the k-th largest of these is found digit by digit, the highest first: count how
many numbers with the digits found so far have each next digit. So nothing is sorted. A last pass
writes the chosen pages in the order of the sequence, so that the last one may be part-filled.

The result is a block table of a cache that is seen as one with pages of one head: head h of page p
is page p · page_size · num_kv_heads + h.

Papers: Tang et al. 2024, Quest, arXiv:2406.10774, section 3; Alabi et al. 2012, Fast k-selection
algorithms for graphics processing units, doi:10.1145/2133803.2345676, section 3 (radix select).
"""

import numpy as np
from numba import cuda, int32, uint32

from fa_numba.constants import FULL_WARP, WARP_SIZE, ZERO
from fa_numba.runtime import arrays
from fa_numba.tiling.row_tiling import MAX_THREADS as THREADS

WARPS = THREADS // WARP_SIZE
DIGIT_BITS = 4
DIGITS, PASSES = 1 << DIGIT_BITS, 32 // DIGIT_BITS
LOW_HALF = 0xFFFF
LAST_PAGE, NAN, ALL_BITS, SIGN = map(np.uint32, (2**32 - 1, 2**32 - 2, 2**32 - 1, 2**31))


@cuda.jit(device=True)
def ordered(score, is_last):
    """An integer above 1 that is larger where the score is; a NaN is above infinity."""
    if is_last:
        return LAST_PAGE
    if score != score:
        return NAN
    bits = cuda.libdevice.float_as_int(score + ZERO)  # -0 becomes 0
    return uint32(bits) ^ (ALL_BITS if bits < 0 else SIGN)


@cuda.jit(launch_bounds=THREADS)
def top_pages_kernel(scores, block_table, seq_lens, table, lengths, page_size, num_top_pages):
    """A thread block chooses the pages of a sequence and K/V head.

    grid      (num_kv_heads, batch); threads (THREADS,)
    shared    counts (PASSES, DIGITS): how many scores have a digit, a row for each pass;
              of_warps (WARPS,): larger scores of each warp, and equal ones in the high half
    private   threshold: the k-th largest; wanted: its place among the scores with its digits
    HBM       scores once per pass, and once more; block_table of chosen pages, table, lengths once;
              seq_lens in every thread
    paper     Fast k-selection algorithms, section 3
    budget    64 registers, 640 bytes shared (THREADS=1024)
    """
    counts = cuda.shared.array((PASSES, DIGITS), int32)
    of_warps = cuda.shared.array(WARPS, int32)
    tx, kv_head, b = cuda.threadIdx.x, cuda.blockIdx.x, cuda.blockIdx.y
    lane, warp = tx % WARP_SIZE, tx // WARP_SIZE
    num_kv_heads, columns = scores.shape[1], table.shape[1]
    # Unsigned, so that the compiler divides numbers of 32 bits.
    num_pages = int32(uint32(seq_lens[b] + page_size - 1) // uint32(page_size))
    number = min(num_pages, num_top_pages)  # of pages that are chosen
    row = b * num_kv_heads + kv_head

    threshold, skipped = uint32(1), int32(0)  # below every score: all are chosen
    if number < num_pages:
        if tx < PASSES * DIGITS:
            counts[tx // DIGITS, tx % DIGITS] = 0
        cuda.syncthreads()  # the counts are 0
        threshold, wanted = uint32(0), int32(number)
        for i in range(PASSES):
            shift = uint32(32 - DIGIT_BITS * (i + 1))
            for page in range(tx, num_pages, THREADS):
                key = ordered(scores[b, kv_head, page], page == num_pages - 1)
                digit = (key ^ threshold) >> shift
                if digit < uint32(DIGITS):  # the digits above it are those of the threshold
                    cuda.atomic.add(counts, (i, int32(digit)), 1)
            cuda.syncthreads()  # all scores are counted
            from_here = counts[i, lane] if lane < DIGITS else int32(0)
            for step in range(DIGIT_BITS):  # sums over the digits from this lane's on
                from_here += cuda.shfl_down_sync(FULL_WARP, from_here, 1 << step)
            digit = cuda.popc(uint32(cuda.ballot_sync(FULL_WARP, from_here >= wanted))) - 1
            above = cuda.shfl_sync(FULL_WARP, from_here, digit + 1)
            wanted -= above
            skipped = cuda.shfl_sync(FULL_WARP, from_here, digit) - above - wanted  # equal, earlier
            threshold |= uint32(digit) << shift

    larger_before, equal_before = int32(0), int32(0)
    lower_lanes = uint32((1 << lane) - 1)
    for start in range(0, num_pages, THREADS):
        page, key = start + tx, uint32(0)
        if page < num_pages:
            key = ordered(scores[b, kv_head, page], page == num_pages - 1)
        larger = uint32(cuda.ballot_sync(FULL_WARP, key > threshold))
        equal = uint32(cuda.ballot_sync(FULL_WARP, key == threshold))
        both = int32(cuda.popc(larger)) + (int32(cuda.popc(equal)) << 16)
        if lane == 0:
            of_warps[warp] = both
        cuda.syncthreads()  # the counts of all warps are there
        up_to_here = of_warps[lane]
        cuda.syncthreads()  # every thread has read its count: safe to overwrite
        for step in range(5):  # sums over the warps up to this lane's
            lower = cuda.shfl_up_sync(FULL_WARP, up_to_here, 1 << step)
            up_to_here += lower if lane >= 1 << step else int32(0)
        both = cuda.shfl_sync(FULL_WARP, up_to_here, warp) - both  # of the lower warps
        of_all = cuda.shfl_sync(FULL_WARP, up_to_here, WARPS - 1)
        larger_before_me = larger_before + (both & LOW_HALF) + cuda.popc(larger & lower_lanes)
        equal_before_me = equal_before + (both >> 16) + cuda.popc(equal & lower_lanes)
        if key > threshold or (key == threshold and equal_before_me >= skipped):
            place = larger_before_me + max(equal_before_me - skipped, 0)
            first_row = block_table[b, page] * page_size * num_kv_heads
            table[row, place] = first_row + kv_head
        larger_before += of_all & LOW_HALF
        equal_before += of_all >> 16
    for place in range(number + tx, columns, THREADS):
        table[row, place] = -1
    if tx == 0:
        lengths[row] = seq_lens[b] - (num_pages - number) * page_size


def top_pages(scores, block_table, seq_lens, page_size, num_top_pages):
    """A block table for each sequence and K/V head, of pages of one head.

    `topk_decode` calls it with scores, and `page_scores` has checked the other arrays.

    Parameters
    ----------
    scores : array of shape (batch, num_kv_heads, max_pages), float32
    block_table, seq_lens
        As for `paged_attn_decode`.
    page_size, num_top_pages : int

    Returns
    -------
    table : array of shape (batch · num_kv_heads, min(num_top_pages, max_pages)), int32
        −1 past the last page.
    lengths : array of shape (batch · num_kv_heads,), int32
        Keys in these pages.
    """
    batch, num_kv_heads, max_pages = scores.shape
    rows = batch * num_kv_heads
    table = arrays.empty(scores, (rows, min(num_top_pages, max_pages)), np.int32)
    lengths = arrays.empty(scores, (rows,), np.int32)
    arguments = scores, block_table, seq_lens, table, lengths
    sizes = np.int32(page_size), np.int32(num_top_pages)
    arrays.launch(top_pages_kernel, (num_kv_heads, batch), (THREADS,), *arguments, *sizes)
    return table, lengths
