"""The least and the largest number of each column of a page's keys, and the scores they allow.

A query that attends to few pages must know which, before it reads their keys. Of each page and K/V
head two vectors are kept beside the cache, k_min and k_max. For every key k of the page

    q · k ≤ u = Σ_d max(q_d k_min_d, q_d k_max_d)          up to the rounding of float32

They have the dtype of the keys, which is exact: each is a number of a key. `update_page_bounds`
keeps them: call it with the keys that `reshape_and_cache` writes. Pages that
are copied or swapped take their bounds along: k_min[dst] = k_min[src], and k_max likewise.

Paper: Tang et al. 2024, Quest, arXiv:2406.10774, section 3.
"""

import functools

import numpy as np
from numba import cuda, float32, int32, uint32

from fa_numba import checks
from fa_numba.checks.argument_names import refuses_other_names
from fa_numba.constants import FULL_WARP, NEG_INF, WARP_SIZE, ZERO
from fa_numba.on_cuda_cores.packets import make_packet, packets_of_rows
from fa_numba.runtime import arrays
from fa_numba.tiling.block_sizes import ceil_div
from fa_numba.tiling.row_tiling import PAGES_OF_BLOCK, rows_of_pages
from fa_numba.tiling.row_tiling import WARPS_PER_BLOCK as WARPS

THREADS_X, THREADS_Y = 32, 8  # a warp has the columns of a head; eight warps
THREADS = WARPS * WARP_SIZE  # of a thread block that bounds scores
INF = float32(np.inf)


@cuda.jit
def page_bounds_kernel(k, k_min, k_max, slot_mapping, page_size):
    """The thread block of the first token of a page in slot_mapping does the page's tokens.

    grid      (num_tokens,); threads (THREADS_X, THREADS_Y): thread (ty, tx) takes every
              THREADS_Y-th head, columns tx, tx + THREADS_X, ...
    shared    none
    private   low, high
    HBM       K of the tokens that have a slot read once; a page's bounds written once, and read
              if it had tokens before; slot_mapping in every thread
    paper     Quest, section 3.2
    budget    96 registers, 0 bytes shared (THREADS_X=32, THREADS_Y=8)
    """
    tx, ty, i = cuda.threadIdx.x, cuda.threadIdx.y, cuda.blockIdx.x
    slot = slot_mapping[i]
    page = slot // page_size  # -1 for a token that is not written
    if slot < 0 or (i > 0 and slot_mapping[i - 1] // page_size == page):
        return
    stop = i + 1
    while stop < slot_mapping.shape[0] and slot_mapping[stop] // page_size == page:
        stop += 1
    for head in range(ty, k.shape[1], cuda.blockDim.y):
        for d in range(tx, k.shape[2], cuda.blockDim.x):
            low, high = INF, NEG_INF
            if slot % page_size > 0:  # else the page begins anew
                low, high = float32(k_min[page, head, d]), float32(k_max[page, head, d])
            for token in range(i, stop):
                x = float32(k[token, head, d])
                low, high = min(low, x), max(high, x)
            k_min[page, head, d], k_max[page, head, d] = low, high


@functools.cache
def make_page_scores(HEAD_DIM, WIDTH, ALIGNED):
    """The kernel for rows of HEAD_DIM numbers, in packets of WIDTH."""
    LANES, PACKETS, PAGES, PAGES_OF_WARP = rows_of_pages(HEAD_DIM, WIDTH)
    LOG2_LANES, COLS = LANES.bit_length() - 1, PACKETS * WIDTH  # columns of a lane
    STEP, HELD = WARPS * PAGES_OF_WARP, PAGES * COLS
    NO_TAIL = LANES * COLS == HEAD_DIM
    load = make_packet(WIDTH, ALIGNED).load

    @cuda.jit(device=True)
    def load_row(x, row, lane, numbers, first):
        """This lane's packets of a row; 0 past its end."""
        for i in range(PACKETS):
            col = (i * LANES + lane) * WIDTH
            if NO_TAIL or col < HEAD_DIM:
                load(x, row, col, numbers, first + i * WIDTH)
            else:
                for j in range(WIDTH):
                    numbers[first + i * WIDTH + j] = ZERO

    @cuda.jit
    def page_scores_kernel(q, k_min, k_max, block_table, seq_lens, scores, page_size, group_size):
        """A thread block bounds the scores of PAGES_OF_BLOCK pages: the largest of a group's heads.

        LANES lanes share a row. They load the bounds of PAGES pages before they use any, so that
        enough bytes are in flight, and use them for each head of the group.

        grid      (num_kv_heads, num_blocks, batch); threads (THREADS,)
        shared    none
        private   low, high (HELD,), x (COLS,), best (PAGES,)
        HBM       k_min, k_max, block_table once per page, and the last page again until STEP pages
                  are full; q once per head for PAGES pages; seq_lens in every thread; scores once
        paper     Quest, section 3.3
        budget    128 registers, 0 bytes shared (HEAD_DIM=64, WIDTH=8)
        """
        low = cuda.local.array(HELD, float32)
        high = cuda.local.array(HELD, float32)
        x = cuda.local.array(COLS, float32)
        best = cuda.local.array(PAGES, float32)
        tx, kv_head, b = cuda.threadIdx.x, cuda.blockIdx.x, cuda.blockIdx.z
        num_kv_heads, max_pages = scores.shape[1], scores.shape[2]
        first_head = (b * num_kv_heads + kv_head) * group_size  # q has the heads of all sequences
        # Unsigned, so that the compiler divides numbers of 32 bits.
        num_pages = int32(uint32(seq_lens[b] + page_size - 1) // uint32(page_size))
        lane, lane_group = tx % LANES, tx // LANES
        start = cuda.blockIdx.y * PAGES_OF_BLOCK
        end = min(start + PAGES_OF_BLOCK, max_pages)
        for step in range(start, min(end, num_pages), STEP):
            first = step + lane_group * PAGES
            for r in range(PAGES):
                page = block_table[b, min(first + r, num_pages - 1)]  # no branch: loads may overlap
                row = page * num_kv_heads + kv_head
                load_row(k_min, row, lane, low, r * COLS)
                load_row(k_max, row, lane, high, r * COLS)
            for r in range(PAGES):
                best[r] = NEG_INF
            for head in range(first_head, first_head + group_size):
                load_row(q, head, lane, x, 0)
                for r in range(PAGES):
                    total = ZERO
                    for i in range(COLS):
                        total += max(x[i], ZERO) * high[r * COLS + i]
                        total += min(x[i], ZERO) * low[r * COLS + i]
                    for bit in range(LOG2_LANES):
                        total += cuda.shfl_xor_sync(FULL_WARP, total, 1 << bit)
                    best[r] = max(best[r], total)
            own = best[0]  # lane r stores the score of page r
            for r in range(1, PAGES):
                own = best[r] if lane == r else own
            if lane < PAGES and first + lane < num_pages:
                scores[b, kv_head, first + lane] = own
        for i in range(max(start, num_pages) + tx, end, THREADS):
            scores[b, kv_head, i] = NEG_INF

    return page_scores_kernel


@refuses_other_names
def update_page_bounds(k, k_min, k_max, slot_mapping, page_size):
    """Take the keys of new tokens into the bounds of their pages, in place.

    Parameters
    ----------
    k : array of shape (num_tokens, num_kv_heads, head_dim), float32, float16 or bfloat16
    k_min, k_max : arrays of shape (num_pages, num_kv_heads, head_dim), dtype of k
        A token at offset 0 of a page begins its bounds anew.
    slot_mapping : array of shape (num_tokens,), int32
        As for `reshape_and_cache`. The tokens of a page are neighbours in it, in ascending order;
        `PagePool` gives them so.
    page_size : int
    """
    page_size = checks.check_page_bounds(k, k_min, k_max, slot_mapping, page_size)
    grid, block = (k.shape[0],), (THREADS_X, THREADS_Y)
    arguments = k, k_min, k_max, slot_mapping, np.int32(page_size)
    arrays.launch(page_bounds_kernel, grid, block, *arguments)


@refuses_other_names
def page_scores(q, k_min, k_max, block_table, seq_lens, page_size):
    """Bound the scores of each page, unscaled.

    Parameters
    ----------
    q : array of shape (batch, 1, num_heads, head_dim), float32, float16 or bfloat16
    k_min, k_max : contiguous arrays of shape (num_pages, num_kv_heads, head_dim), dtype of q
    block_table, seq_lens
        As for `paged_attn_decode`.
    page_size : int

    Returns
    -------
    scores : array of shape (batch, num_kv_heads, max_pages), float32
        At least q · k of each key of the page and each query head of the group; −inf where the
        sequence has no page.
    """
    page_size = checks.check_page_scores(q, k_min, k_max, block_table, seq_lens, page_size)
    batch, _, num_heads, head_dim = q.shape
    num_pages, num_kv_heads, _ = k_min.shape
    scores = arrays.empty(q, (batch, num_kv_heads, block_table.shape[1]))
    q = q.reshape(batch * num_heads, head_dim)
    bounds = [x.reshape(num_pages * num_kv_heads, head_dim) for x in (k_min, k_max)]
    packets = [packets_of_rows(x) for x in (q, *bounds)]
    width = 1 if packets[0].cut else packets[0].width
    kernel = make_page_scores(head_dim, width, all(x.aligned for x in packets))
    grid = num_kv_heads, ceil_div(scores.shape[2], PAGES_OF_BLOCK), batch
    sizes = np.int32(page_size), np.int32(num_heads // num_kv_heads)
    arguments = q, *bounds, block_table, seq_lens, scores, *sizes
    arrays.launch(kernel, grid, (THREADS,), *arguments)
    return scores
