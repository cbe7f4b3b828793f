"""ex18e · Eight bits: dequantise in the load

The cache of ex18d in int8, with a scale for each page and K/V head. A key is k_cache[...] times
k_scale[page, kv_head]; a value likewise, with v_scale. The numbers become float32 on the way into
the tile, so that everything behind the load stays as it is. Start from your own kernel: `fa-numba
reset ex18e --from ex18d`. Some four lines change.

shapes    k_cache, v_cache (num_pages, PAGE_SIZE, num_kv_heads, HEAD_DIM) int8
          k_scale, v_scale (num_pages, num_kv_heads) float32
          the others as in ex18d
launch    kernel[(num_splits, num_kv_heads, batch), (BLOCK_N, GROUP_SIZE)](q, k_cache, v_cache,
          k_scale, v_scale, block_table, seq_lens, out_partial, lse_partial, softmax_scale)
pages     as in ex18d; the scales of a free page are NaN
HBM       loads   each key and value once in all: a quarter of ex18d's bytes. A thread loads the
                  scales of a key at most once per tile
          stores  out_partial and lse_partial once; neither is loaded

In float32 throughout: the product of an int8 and a float32 is float64 in Numba.
"""

import functools
import math

from numba import cuda, float32

### KIND: write
### FROM: ex18d
### HINT 1: The scale belongs to the page. You know the page of a row before you load its columns.
### HINT 2: Two more loads beside the lookup, and a product in each of the two lines that fill the
### HINT 2: tiles: float32(k_cache[...]) first, then times the scale.
### HINT 3: k_factor = k_scale[page, kv_head] if inside else float32(0); v_factor likewise; k_tile[
### HINT 3: row, d] = float32(k_cache[page, offset, kv_head, d]) * k_factor if inside else
### HINT 3: float32(0).
### DEBRIEF: Decoding waits for keys and values, so a quarter of the bytes is up to four times the
### DEBRIEF: speed, and four times as many tokens fit. The conversion costs an instruction per
### DEBRIEF: number, and CUDA cores have time for it. One scale per page means that a page is
### DEBRIEF: quantised when it is full, or again with each token: so servers often take a scale per
### DEBRIEF: tensor, or per token and head. With FP8 in place of int8 the same line reads e4m3:
### DEBRIEF: lesson 14.


@functools.cache
def make_kernel(HEAD_DIM, GROUP_SIZE, BLOCK_N, PAGE_SIZE):
    """The kernel for one head_dim, group, tile and page size, compile-time constants."""
    BLOCK_M = GROUP_SIZE  # the rows of a tile are the query heads of a group
    NUM_COLS = math.ceil(HEAD_DIM / BLOCK_N)  # columns of out that a thread owns

    @cuda.jit(device=True)
    def add_tile(acc, l_i, alpha, p_tile, v_tile):
        """Rescale acc and l_i by alpha, add a tile; return the new l_i."""
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        l_i *= alpha
        for c in range(BLOCK_N):
            l_i += p_tile[ty, c]
        for i in range(NUM_COLS):
            d = tx + i * BLOCK_N
            if d < HEAD_DIM:
                acc[i] *= alpha
                for c in range(BLOCK_N):
                    acc[i] += p_tile[ty, c] * v_tile[c, d]
        return l_i

    @cuda.jit(device=True)
    def store(m, acc, m_i, l_i, out, lse):
        """Divide acc by l_i, store this thread's columns of row m of out, and lse."""
        tx = cuda.threadIdx.x
        if m < out.shape[0]:
            for i in range(NUM_COLS):
                d = tx + i * BLOCK_N
                if d < HEAD_DIM:
                    out[m, d] = acc[i] / l_i if l_i > 0 else float32(0.0)
            if tx == 0:
                lse[m] = m_i + math.log(l_i) if l_i > 0 else float32(-math.inf)

    @cuda.jit
    def kernel(
        q,
        k_cache,
        v_cache,
        k_scale,
        v_scale,
        block_table,
        seq_lens,
        out_partial,
        lse_partial,
        softmax_scale,
    ):
        """Attention of one query per head to the keys of one split, in 8 bits.

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
                key = n_start + row
                inside = key < seqlen_k
                page = block_table[b, key // PAGE_SIZE] if inside else 0
                k_factor = k_scale[page, kv_head] if inside else float32(0)
                v_factor = v_scale[page, kv_head] if inside else float32(0)
                offset = key % PAGE_SIZE
                for d in range(tx, HEAD_DIM, BLOCK_N):
                    k = float32(k_cache[page, offset, kv_head, d]) if inside else float32(0)
                    k_tile[row, d] = k * k_factor
                    v = float32(v_cache[page, offset, kv_head, d]) if inside else float32(0)
                    v_tile[row, d] = v * v_factor
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
