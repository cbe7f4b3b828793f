"""ex17c · The split kernel of Flash-Decoding

One query for each sequence, over a cache of many keys. The tiles of keys of a sequence are shared
out among num_splits thread blocks; each attends to its own and leaves a partial result, which
ex17d combines.

shapes    q (batch, num_heads, HEAD_DIM);  k_cache, v_cache (batch, max_len, num_kv_heads, HEAD_DIM)
          out_partial (num_splits, batch, num_heads, HEAD_DIM)
          lse_partial (num_splits, batch, num_heads). All float32.
          seq_lens (batch,) int32: how many keys each sequence has, 0 allowed. What the caches hold
          beyond may be anything, NaN too, and must not be loaded.
launch    kernel[(num_splits, num_kv_heads, batch), (BLOCK_N, GROUP_SIZE)](q, k_cache, v_cache,
          seq_lens, out_partial, lse_partial, softmax_scale).
          Packed: the GROUP_SIZE query heads that share a K/V head are the rows of one tile. Thread
          (ty, tx) computes the score of head kv_head * GROUP_SIZE + ty with key n_start + tx, and
          owns the columns tx, tx + BLOCK_N, ... of that head's row of out.
splits    a sequence has ceil(seq_len / BLOCK_N) tiles of BLOCK_N keys, the last one maybe
          part-filled. Each tile belongs to one split, and no split has more than
          ceil(tiles / num_splits) of them. Which, is yours to choose. With more splits than tiles
          some get none.
result    out_partial = softmax(softmax_scale q k^T) v and lse_partial = log(sum of exp(score)),
          natural logarithm, over the keys of the split alone; (0, -inf) for a split without keys
scores    any that float32 holds, -1e30 too: what stands for "no key" is -inf, no large number
shared    q, k, v, s tiles and one for p, at most. A padded column in each, or four floats per row
          besides, are allowed; acc, m_i and l_i are not there
HBM       loads   each key and value of a sequence once in all, whatever num_splits and GROUP_SIZE;
                  q at most once per split; each element by one thread
          stores  out_partial and lse_partial once; neither is loaded

About 45 lines, most of them those of ex07d. Write float32(0.0), not 0.0.
"""

import functools
import math

from numba import cuda, float32

### HINT 1: Start from ex07d without CAUSAL. The m-tile is now a group of heads, one query each;
### HINT 1: every row of it exists. What changes is where the loop over n_start begins and ends.
### HINT 2: num_n_tiles = ceil(seq_lens[b] / BLOCK_N), of this sequence and not of the cache. Split
### HINT 2: s may take the tiles s * num_n_tiles // num_splits up to, not including,
### HINT 2: (s + 1) * num_n_tiles // num_splits: shares that differ by one at most. num_splits is
### HINT 2: cuda.gridDim.x.
### HINT 3: for n_start in range(n_first, n_stop, BLOCK_N), n_first = the first tile * BLOCK_N; a
### HINT 3: key n exists if n < seq_len: else load 0, score -inf. A tile that is in a share has a
### HINT 3: key that exists, so m_new is finite after it; an empty share never enters the loop, and
### HINT 3: l_i == 0 at the end tells: store 0 and -inf.
### DEBRIEF: Splitting costs no byte of K or V: the same keys, read by other thread blocks. What it
### DEBRIEF: costs is a partial result per split and head, HEAD_DIM + 1 numbers written and read
### DEBRIEF: again: about what one more key and value would cost. And packing a group divides the
### DEBRIEF: traffic of the cache by GROUP_SIZE.


@functools.cache
def make_kernel(HEAD_DIM, GROUP_SIZE, BLOCK_N):
    """The kernel for one head_dim, one group size and one tile size, compile-time constants."""
    NUM_COLS = math.ceil(HEAD_DIM / BLOCK_N)  # columns of out that a thread owns

    @cuda.jit
    def kernel(q, k_cache, v_cache, seq_lens, out_partial, lse_partial, softmax_scale):
        """Attention of one query per head to the keys of one split.

        grid     (num_splits, num_kv_heads, batch); threads (BLOCK_N, GROUP_SIZE)
        shared   q_tile (GROUP_SIZE, HEAD_DIM); k_tile, v_tile (BLOCK_N, HEAD_DIM);
                 s_tile, p_tile (GROUP_SIZE, BLOCK_N)
        private  acc (NUM_COLS,); m_i, l_i, the same in all threads of a row
        HBM      k_cache, v_cache once; q, out_partial, lse_partial once per split
        paper    FlashAttention-2, Algorithm 1, over a part of the keys
        """
        ### BEGIN SOLUTION
        q_tile = cuda.shared.array((GROUP_SIZE, HEAD_DIM), float32)
        k_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        v_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        s_tile = cuda.shared.array((GROUP_SIZE, BLOCK_N), float32)
        p_tile = cuda.shared.array((GROUP_SIZE, BLOCK_N), float32)
        acc = cuda.local.array(NUM_COLS, float32)  # a row of out, not yet divided by l_i
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        split, kv_head, b = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
        num_splits = cuda.gridDim.x
        head = kv_head * GROUP_SIZE + ty
        seq_len = seq_lens[b]
        num_n_tiles = (seq_len + BLOCK_N - 1) // BLOCK_N
        n_first = split * num_n_tiles // num_splits * BLOCK_N
        n_stop = (split + 1) * num_n_tiles // num_splits * BLOCK_N

        for d in range(tx, HEAD_DIM, BLOCK_N):
            q_tile[ty, d] = q[b, head, d]
        m_i = float32(-math.inf)
        l_i = float32(0.0)
        for i in range(NUM_COLS):
            acc[i] = float32(0.0)

        for n_start in range(n_first, n_stop, BLOCK_N):
            for row in range(ty, BLOCK_N, GROUP_SIZE):
                n = n_start + row
                for d in range(tx, HEAD_DIM, BLOCK_N):
                    k_tile[row, d] = k_cache[b, n, kv_head, d] if n < seq_len else float32(0.0)
                    v_tile[row, d] = v_cache[b, n, kv_head, d] if n < seq_len else float32(0.0)
            cuda.syncthreads()  # q_tile, k_tile, v_tile are complete: safe to read

            s = float32(-math.inf)  # a key that does not exist: exp gives 0
            if n_start + tx < seq_len:
                s = float32(0.0)
                for d in range(HEAD_DIM):
                    s += q_tile[ty, d] * k_tile[tx, d]
                s *= softmax_scale
            s_tile[ty, tx] = s
            cuda.syncthreads()  # s_tile is complete: a row can be scanned

            m_new = m_i
            for c in range(BLOCK_N):
                m_new = max(m_new, s_tile[ty, c])
            alpha = math.exp(m_i - m_new)  # m_new is finite: the tile has a key
            p_tile[ty, tx] = math.exp(s - m_new)
            m_i = m_new
            cuda.syncthreads()  # p_tile is complete: safe to read

            l_i *= alpha
            for c in range(BLOCK_N):
                l_i += p_tile[ty, c]
            for i in range(NUM_COLS):
                d = tx + i * BLOCK_N
                if d < HEAD_DIM:
                    acc[i] *= alpha
                    for c in range(BLOCK_N):
                        acc[i] += p_tile[ty, c] * v_tile[c, d]
            cuda.syncthreads()  # every thread is done with v_tile: safe to overwrite

        for i in range(NUM_COLS):
            d = tx + i * BLOCK_N
            if d < HEAD_DIM:
                out_partial[split, b, head, d] = acc[i] / l_i if l_i > 0 else float32(0.0)
        if tx == 0:
            lse_partial[split, b, head] = m_i + math.log(l_i) if l_i > 0 else float32(-math.inf)
        ### END SOLUTION

    return kernel
