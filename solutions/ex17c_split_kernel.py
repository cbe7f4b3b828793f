"""ex17c · The split kernel of Flash-Decoding

ex16c with the tiles of a sequence shared out among num_splits thread blocks. Each attends to its
own keys and leaves a partial result, which ex17d combines. Start from your own kernel: `fa-numba
reset ex17c --from ex16c`. Seven lines are new or change.

shapes    q, k_cache, v_cache, seq_lens as in ex16c
          out_partial (num_splits, batch, num_heads, HEAD_DIM), float32
          lse_partial (num_splits, batch, num_heads), float32
launch    kernel[(num_splits, num_kv_heads, batch), (BLOCK_N, GROUP_SIZE)](q, k_cache, v_cache,
          seq_lens, out_partial, lse_partial, softmax_scale)
splits    a sequence has ceil(seq_len / BLOCK_N) tiles of BLOCK_N keys, the last one maybe
          part-filled. Each tile belongs to one split, and no split has more than
          ceil(tiles / num_splits) of them. Which, is yours to choose. With more splits than tiles
          some get none
result    out_partial = softmax(softmax_scale q k^T) v and lse_partial = log(sum of exp(score)),
          natural logarithm, over the keys of the split alone; (0, -inf) for a split without keys
as before shared and private memory, add_tile, store, scores of -1e30, NaN beyond seq_lens
HBM       loads   each key and value of a sequence once in all, whatever num_splits and GROUP_SIZE;
                  q at most once per split; each element by one thread
          stores  out_partial and lse_partial once; neither is loaded
"""

import functools
import math

from numba import cuda, float32

from fa_numba.kernels.rows_of_out import make_row_functions

### KIND: write
### FROM: ex16c
### HINT 1: The loop over n_start begins and ends elsewhere, and the results go elsewhere. Nothing
### HINT 1: between changes.
### HINT 2: num_n_tiles = ceil(seq_lens[b] / BLOCK_N), of this sequence and not of the cache. Split
### HINT 2: s may take the tiles s * num_n_tiles // num_splits up to, not including,
### HINT 2: (s + 1) * num_n_tiles // num_splits: shares that differ by one at most. num_splits is
### HINT 2: cuda.gridDim.x.
### HINT 3: split, kv_head, b = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z; for n_start in
### HINT 3: range(n_first, n_stop, BLOCK_N), where both are tiles times BLOCK_N. An empty share
### HINT 3: never enters the loop: l_i is 0 at the end, and 0 and -inf are stored.
### DEBRIEF: Splitting costs no byte of K or V: the same keys, read by other thread blocks. What it
### DEBRIEF: costs is a partial result per split and head, HEAD_DIM + 1 numbers written and read
### DEBRIEF: again: about what one more key and value would cost. And packing a group divides the
### DEBRIEF: traffic of the cache by GROUP_SIZE.


@functools.cache
def make_kernel(HEAD_DIM, GROUP_SIZE, BLOCK_N):
    """The kernel for one head_dim, group size and tile size, compile-time constants."""
    BLOCK_M = GROUP_SIZE  # the rows of a tile are the query heads of a group
    NUM_COLS = math.ceil(HEAD_DIM / BLOCK_N)  # columns of out that a thread owns
    add_tile, store = make_row_functions(HEAD_DIM, BLOCK_N)

    @cuda.jit
    def kernel(q, k_cache, v_cache, seq_lens, out_partial, lse_partial, softmax_scale):
        """Attention of one query per head to the keys of one split.

        grid     (num_splits, num_kv_heads, batch); threads (BLOCK_N, BLOCK_M)
        shared   q_tile (BLOCK_M, HEAD_DIM); k_tile, v_tile (BLOCK_N, HEAD_DIM);
                 s_tile, p_tile (BLOCK_M, BLOCK_N)
        private  acc (NUM_COLS,); m_i, l_i, the same in all threads of a row
        HBM      k_cache, v_cache once; q, out_partial, lse_partial once per split
        paper    FlashAttention-2, Algorithm 1, over a part of the keys
        """
        ### BEGIN SOLUTION
        q_tile = cuda.shared.array((BLOCK_M, HEAD_DIM), float32)
        k_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        v_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        s_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        p_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        acc = cuda.local.array(NUM_COLS, float32)  # a row of out, not yet divided by l_i
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        split, kv_head, b = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
        head = kv_head * GROUP_SIZE + ty  # this thread's row
        seqlen_k = seq_lens[b]
        num_splits = cuda.gridDim.x
        num_n_tiles = (seqlen_k + BLOCK_N - 1) // BLOCK_N
        n_first = split * num_n_tiles // num_splits * BLOCK_N
        n_stop = (split + 1) * num_n_tiles // num_splits * BLOCK_N

        for d in range(tx, HEAD_DIM, BLOCK_N):
            q_tile[ty, d] = q[b, head, d]
        m_i = float32(-math.inf)
        l_i = float32(0.0)
        for i in range(NUM_COLS):
            acc[i] = float32(0.0)

        for n_start in range(n_first, n_stop, BLOCK_N):
            for row in range(ty, BLOCK_N, BLOCK_M):
                for d in range(tx, HEAD_DIM, BLOCK_N):
                    inside = n_start + row < seqlen_k
                    k_tile[row, d] = k_cache[b, n_start + row, kv_head, d] if inside else float32(0)
                    v_tile[row, d] = v_cache[b, n_start + row, kv_head, d] if inside else float32(0)
            cuda.syncthreads()  # q_tile, k_tile, v_tile are complete: safe to read

            n = n_start + tx  # this thread's key
            s = float32(0.0)
            for d in range(HEAD_DIM):
                s += q_tile[ty, d] * k_tile[tx, d]
            s *= softmax_scale
            if n >= seqlen_k:
                s = float32(-math.inf)  # a key that does not exist: exp gives 0
            s_tile[ty, tx] = s
            cuda.syncthreads()  # s_tile is complete: a row can be scanned

            m_new = m_i
            for c in range(BLOCK_N):
                m_new = max(m_new, s_tile[ty, c])
            m_safe = m_new if m_new > -math.inf else float32(0.0)  # -inf - (-inf) would be NaN
            alpha = math.exp(m_i - m_safe)  # rescales what was summed under the old max
            p_tile[ty, tx] = math.exp(s - m_safe)
            m_i = m_new
            cuda.syncthreads()  # p_tile is complete: safe to read

            l_i = add_tile(acc, l_i, alpha, p_tile, v_tile)
            cuda.syncthreads()  # every thread is done with v_tile: safe to overwrite

        store(head, acc, m_i, l_i, out_partial[split, b], lse_partial[split, b])
        ### END SOLUTION

    return kernel
