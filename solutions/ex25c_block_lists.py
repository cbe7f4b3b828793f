"""ex25c · FlashAttention-2 over a list of tiles

ex07d with a list for each m-tile: only the n-tiles that it names are loaded and seen. That is how a
prompt attends to few blocks (NSA's selection, one head of it). Start from your own kernel:
`fa-numba reset ex25c --from ex07d`. Some five lines change.

shapes    q, out (seqlen_q, HEAD_DIM);  k, v (seqlen_k, HEAD_DIM);  lse (seqlen_q,), float32, of any
          length >= 1; lists (num_m_tiles, length) int32, length >= 1
launch    kernel[num_m_tiles, (BLOCK_N, BLOCK_M)](q, k, v, lists, out, lse, softmax_scale), with
          num_m_tiles = ceil(seqlen_q / BLOCK_M)
lists     the queries of m-tile i see the n-tiles in lists[i], keys BLOCK_N lists[i, j] and so on.
          In any order, none twice; -1 anywhere for none. A row of -1 alone sees no key: out = 0 and
          lse = -inf
mask      CAUSAL as in ex07d, on top of the lists: a tile of the list may be on the diagonal, or
          behind it
memory    the arrays of ex07d; HBM: q once; of k and v each n-tile in lists[i] at most once for
          m-tile i, and no other; an element of lists at most once for each thread
as before scores of -1e30, the last tiles part-filled, out and lse stored once

About 30 lines; five of them are new.
"""

import functools
import math

from numba import cuda, float32

from fa_numba.kernels.rows_of_out import make_row_functions

### KIND: write
### FROM: ex07d
### HINT 1: The loop goes over the places of the list, and a tile's first key comes from the list.
### HINT 1: Nothing else in the loop needs to know.
### HINT 2: for i in range(lists.shape[1]): n_tile = lists[cuda.blockIdx.x, i]; -1 is skipped by all
### HINT 2: threads together, so barriers may stand in the branch. The loop no longer ends at
### HINT 2: n_stop: which keys does the mask have to hide now?
### HINT 3: if n_tile >= 0: n_start = n_tile * BLOCK_N, then ex07d's tile. The last tile may stand
### HINT 3: anywhere in the list; last_n = seqlen_k - 1 without CAUSAL, m + seqlen_k - seqlen_q with
### HINT 3: it. m_safe stays: a first tile may be all hidden.
### DEBRIEF: The online softmax takes tiles in any order, so a list needs no sorting, and attention
### DEBRIEF: to few costs only what is in the list. The barriers stand in a branch, which is right
### DEBRIEF: where all threads of a block take it. masks.block_lists does the same for every kernel
### DEBRIEF: of the package that takes a mask, backward too: there the runs of tiles are transposed.


@functools.cache
def make_kernel(HEAD_DIM, BLOCK_M, BLOCK_N, CAUSAL):
    """The kernel for one head_dim, one pair of tile sizes and one mask, compile-time constants."""
    NUM_COLS = math.ceil(HEAD_DIM / BLOCK_N)  # columns of out that a thread owns
    add_tile, store = make_row_functions(HEAD_DIM, BLOCK_N)

    @cuda.jit
    def kernel(q, k, v, lists, out, lse, softmax_scale):
        """Attention of one head to the tiles of a list: a thread block owns BLOCK_M query rows.

        grid     (num_m_tiles,); threads (BLOCK_N, BLOCK_M), one per score of the tile
        shared   q_tile (BLOCK_M, HEAD_DIM); k_tile, v_tile (BLOCK_N, HEAD_DIM);
                 s_tile, p_tile (BLOCK_M, BLOCK_N)
        private  acc (NUM_COLS,); m_i, l_i, the same in all threads of a row
        HBM      q, out, lse once; the tiles of k and v in lists[i] once for m-tile i
        paper    NSA, arXiv:2502.11089, section 3.4; FlashAttention-2, Algorithm 1
        """
        ### BEGIN SOLUTION
        q_tile = cuda.shared.array((BLOCK_M, HEAD_DIM), float32)
        k_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        v_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        s_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        p_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        acc = cuda.local.array(NUM_COLS, float32)  # out[m, tx::BLOCK_N], not yet divided by l_i
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        seqlen_q, seqlen_k = q.shape[0], k.shape[0]
        m_tile = cuda.blockIdx.x
        m = m_tile * BLOCK_M + ty  # this thread's query
        last_n = m + seqlen_k - seqlen_q if CAUSAL else seqlen_k - 1
        for d in range(tx, HEAD_DIM, BLOCK_N):
            q_tile[ty, d] = q[m, d] if m < seqlen_q else float32(0.0)
        m_i = float32(-math.inf)
        l_i = float32(0.0)
        for i in range(NUM_COLS):
            acc[i] = float32(0.0)

        for place in range(lists.shape[1]):
            n_tile = lists[m_tile, place]
            if n_tile >= 0:  # for all threads of the block, or for none: barriers may be inside
                n_start = n_tile * BLOCK_N
                for row in range(ty, BLOCK_N, BLOCK_M):
                    for d in range(tx, HEAD_DIM, BLOCK_N):
                        inside = n_start + row < seqlen_k
                        k_tile[row, d] = k[n_start + row, d] if inside else float32(0.0)
                        v_tile[row, d] = v[n_start + row, d] if inside else float32(0.0)
                cuda.syncthreads()  # q_tile, k_tile, v_tile are complete: safe to read

                s = float32(0.0)
                for d in range(HEAD_DIM):
                    s += q_tile[ty, d] * k_tile[tx, d]
                s *= softmax_scale  # S = scale Q K^T                            line 8
                if n_start + tx > last_n:
                    s = float32(-math.inf)  # a key that is hidden or does not exist: exp gives 0
                s_tile[ty, tx] = s
                cuda.syncthreads()  # s_tile is complete: a row can be scanned

                m_new = m_i
                for c in range(BLOCK_N):
                    m_new = max(m_new, s_tile[ty, c])  # m_i <- max(m_i, rowmax(S)) line 9
                m_safe = m_new if m_new > -math.inf else float32(0.0)  # -inf - (-inf) would be NaN
                alpha = math.exp(m_i - m_safe)  # rescales what was summed under the old max
                p_tile[ty, tx] = math.exp(s - m_safe)  # P = exp(S - m_i)        line 9
                m_i = m_new
                cuda.syncthreads()  # p_tile is complete: safe to read

                l_i = add_tile(acc, l_i, alpha, p_tile, v_tile)
                cuda.syncthreads()  # every thread is done with v_tile: safe to overwrite

        store(m, acc, m_i, l_i, out, lse)
        ### END SOLUTION

    return kernel
