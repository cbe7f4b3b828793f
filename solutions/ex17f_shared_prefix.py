"""ex17f · A prefix that many share: two levels, one merge, bytes counted

All requests of a batch begin with the same prefix. Its keys are the same for all, so a thread block
loads a tile of them once, for rows of many requests. The result is one more split of each request:
ex17c attends to the suffixes, and your ex17d merges both levels in one launch. Write the kernel for
the prefix. Start from your own: `fa-numba reset ex17f --from ex17c`. Some ten lines change.

shapes    q (batch, num_heads, HEAD_DIM);  k_prefix, v_prefix (prefix, num_kv_heads, HEAD_DIM);
          out_partial (num_splits, batch, num_heads, HEAD_DIM);  lse_partial (num_splits, batch,
          num_heads). All float32; num_heads = num_kv_heads * GROUP_SIZE
launch    kernel[(num_splits, num_kv_heads, ceil(batch * GROUP_SIZE / BLOCK_M)), (BLOCK_N, BLOCK_M)]
          (q, k_prefix, v_prefix, out_partial, lse_partial, softmax_scale)
rows      a K/V head has batch * GROUP_SIZE rows: the query heads of its group in all requests.
          A thread block has BLOCK_M of them, of several requests. Which, is yours to choose. The
          last thread block may have fewer
result    as in ex17c: softmax over the keys of the split alone, and its lse; (0, -inf) for a split
          without keys. Shares of the tiles as in ex17c
HBM       loads   each key and value of the prefix once for each BLOCK_M rows, rounded up; q at most
                  once per split
          stores  out_partial and lse_partial once; neither is loaded

bytes_moved(prefix, suffixes, num_heads, num_kv_heads, head_dim, num_splits, BLOCK_M)
    two ints, the bytes of a step of all requests: of K and V that your kernel loads for the prefix
    and ex17c for the suffixes, and of partial results that both store; num_splits counts the splits
    of both. prefix and suffixes (one of each request, a list) are numbers of keys. Predict; the
    meter counts

About 5 lines for bytes_moved.
"""

import functools
import math

from numba import cuda, float32

from fa_numba.kernels.rows_of_out import make_row_functions

### KIND: write
### FROM: ex17c
### HINT 1: The rows of ex17c's tile are the heads of a group. Here they are the heads of a group in
### HINT 1: every request: number them from 0 to batch * GROUP_SIZE - 1. No key is masked: every
### HINT 1: request comes after the whole prefix.
### HINT 2: Row r of a K/V head: request r // GROUP_SIZE, head kv_head * GROUP_SIZE + r %
### HINT 2: GROUP_SIZE. A row past the last request loads no q and stores nothing, but its threads
### HINT 2: load their part of the tiles and meet every barrier.
### HINT 3: r = cuda.blockIdx.z * BLOCK_M + ty; exists = request < q.shape[0]; q_tile[ty, d] =
### HINT 3: q[...] if exists else float32(0); at the end `if exists: store(...)`. bytes_moved: with
### HINT 3: tiles = ceil(batch * group / BLOCK_M), K and V are 2 * num_kv_heads * head_dim * 4 bytes
### HINT 3: for each of tiles * prefix + sum(suffixes) keys.
### DEBRIEF: This is cascade attention. 32 requests on a prefix of 8192 tokens read it once, not 32
### DEBRIEF: times. A level costs a partial result of each request, written and read: the bytes of
### DEBRIEF: GROUP_SIZE keys and values. The same works for a tree of prefixes: each edge is a
### DEBRIEF: level, and all levels of a request are splits of one merge. A server finds the edges in
### DEBRIEF: its block tables: requests whose first pages are the same.


def bytes_moved(prefix, suffixes, num_heads, num_kv_heads, head_dim, num_splits, BLOCK_M):
    """(bytes of K and V that are loaded, bytes of partial results that are stored)."""
    ### BEGIN SOLUTION
    rows, row_bytes = len(suffixes) * num_heads, 4 * head_dim
    tiles = -(-rows // num_kv_heads // BLOCK_M)
    keys = tiles * prefix + sum(suffixes)
    return 2 * keys * num_kv_heads * row_bytes, num_splits * rows * (row_bytes + 4)
    ### END SOLUTION


@functools.cache
def make_kernel(HEAD_DIM, GROUP_SIZE, BLOCK_M, BLOCK_N):
    """The kernel for one head_dim, group size and tile sizes, compile-time constants."""
    NUM_COLS = math.ceil(HEAD_DIM / BLOCK_N)  # columns of out that a thread owns
    add_tile, store = make_row_functions(HEAD_DIM, BLOCK_N)

    @cuda.jit
    def kernel(q, k_prefix, v_prefix, out_partial, lse_partial, softmax_scale):
        """Attention of rows of several requests to the keys of one split of the prefix.

        grid     (num_splits, num_kv_heads, tiles of BLOCK_M rows); threads (BLOCK_N, BLOCK_M)
        shared   q_tile (BLOCK_M, HEAD_DIM); k_tile, v_tile (BLOCK_N, HEAD_DIM);
                 s_tile, p_tile (BLOCK_M, BLOCK_N)
        private  acc (NUM_COLS,); m_i, l_i, the same in all threads of a row
        HBM      k_prefix, v_prefix once per tile of rows; q, out_partial, lse_partial once per
                 split
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
        split, kv_head = cuda.blockIdx.x, cuda.blockIdx.y
        r = cuda.blockIdx.z * BLOCK_M + ty  # this thread's row, of batch * GROUP_SIZE
        b, head = r // GROUP_SIZE, kv_head * GROUP_SIZE + r % GROUP_SIZE
        exists = b < q.shape[0]
        seqlen_k = k_prefix.shape[0]
        num_splits = cuda.gridDim.x
        num_n_tiles = (seqlen_k + BLOCK_N - 1) // BLOCK_N
        n_first = split * num_n_tiles // num_splits * BLOCK_N
        n_stop = (split + 1) * num_n_tiles // num_splits * BLOCK_N

        for d in range(tx, HEAD_DIM, BLOCK_N):
            q_tile[ty, d] = q[b, head, d] if exists else float32(0)
        m_i = float32(-math.inf)
        l_i = float32(0.0)
        for i in range(NUM_COLS):
            acc[i] = float32(0.0)

        for n_start in range(n_first, n_stop, BLOCK_N):
            for row in range(ty, BLOCK_N, BLOCK_M):
                for d in range(tx, HEAD_DIM, BLOCK_N):
                    inside = n_start + row < seqlen_k
                    k_tile[row, d] = k_prefix[n_start + row, kv_head, d] if inside else float32(0)
                    v_tile[row, d] = v_prefix[n_start + row, kv_head, d] if inside else float32(0)
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

        if exists:
            store(head, acc, m_i, l_i, out_partial[split, b], lse_partial[split, b])
        ### END SOLUTION

    return kernel
