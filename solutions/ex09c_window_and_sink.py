"""ex09c · A window and a sink in your own kernel

Your ex07d with two changes: a query sees the last WINDOW keys, and each row has a sink, as in
gpt-oss. Start from your own kernel: `fa-numba reset ex09c --from ex07d`. About seven lines are new
or change.

shapes    q, out (seqlen_q, HEAD_DIM);  k, v (seqlen_k, HEAD_DIM);  lse (seqlen_q,). All float32,
          of any length >= 1
launch    kernel[num_m_tiles, (BLOCK_N, BLOCK_M)](q, k, v, out, lse, softmax_scale, sink), with
          num_m_tiles = ceil(seqlen_q / BLOCK_M)
window    WINDOW is a compile-time int >= 1: with p = m + seqlen_k - seqlen_q, query m sees the keys
          max(0, p - WINDOW + 1) .. p
sink      a float32: a further score of every row, whose value is a row of zeros. It is neither
          scaled nor hidden: weights = softmax of the row's scores and the sink, the sink's weight
          multiplies the zeros, and lse is the log of the sum with exp(sink) in it. A row that
          sees no key has out = 0 and lse = sink
scores    any that float32 holds, -1e30 too; sinks of 1e4 and -1e4
as before shared and private memory, add_tile, store
HBM       q once; of k and v each n-tile in which a query of the m-tile sees a key, once per m-tile,
          from its first key on; other tiles never. The n-tiles begin at multiples of BLOCK_N
"""

import functools
import math

from numba import cuda, float32

from fa_numba.kernels.rows_of_out import make_row_functions

### KIND: write
### FROM: ex07d
### HINT 1: Do one after the other. For the window: which query of the m-tile sees the earliest key,
### HINT 1: and in which n-tile is it? For the sink: what is the state (m_i, l_i, acc) of a row that
### HINT 1: has seen one score, whose value is 0?
### HINT 2: The loop begins at the n-tile of the first key that the first query of the m-tile
### HINT 2: sees, and a score is hidden for n < first_n, too. The state after the sink alone is
### HINT 2: m_i = sink, l_i = 1, acc = 0: begin with it, and nothing else changes.
### HINT 3: first_n = m + seqlen_k - seqlen_q - WINDOW + 1; that of m_start, at least 0, rounded
### HINT 3: down to a multiple of BLOCK_N, is where the loop begins. m_i = float32(sink), l_i =
### HINT 3: float32(1.0). An m-tile without a key never enters the loop: out = 0, lse = sink.
### DEBRIEF: A sink costs two assignments. It is one more term of the online softmax, and which term
### DEBRIEF: comes first does not matter. With it the weights of the keys sum to less than 1: a head
### DEBRIEF: may look at nothing. And with a window the tiles of a row do not depend on N any more.


@functools.cache
def make_kernel(HEAD_DIM, BLOCK_M, BLOCK_N, WINDOW):
    """The kernel for one head_dim, tile sizes and window, compile-time constants."""
    NUM_COLS = math.ceil(HEAD_DIM / BLOCK_N)  # columns of out that a thread owns
    add_tile, store = make_row_functions(HEAD_DIM, BLOCK_N)

    @cuda.jit(device=True)
    def bounds(m, m_start, seqlen_q, seqlen_k):
        """(first_n, last_n, n_first, n_stop): the first and the last key that query m sees.

        The loop of the m-tile that begins at m_start begins at key n_first, and ends before n_stop.
        """
        ### BEGIN SOLUTION
        p = m + seqlen_k - seqlen_q
        first = max(0, m_start + seqlen_k - seqlen_q - WINDOW + 1)
        end_m = min(m_start + BLOCK_M, seqlen_q)  # behind the last query that exists
        return p - WINDOW + 1, p, first // BLOCK_N * BLOCK_N, end_m + seqlen_k - seqlen_q
        ### END SOLUTION

    @cuda.jit
    def kernel(q, k, v, out, lse, softmax_scale, sink):
        """FlashAttention-2 forward of one head: a thread block owns BLOCK_M query rows.

        grid     (num_m_tiles,); threads (BLOCK_N, BLOCK_M), one per score of the tile
        shared   q_tile (BLOCK_M, HEAD_DIM); k_tile, v_tile (BLOCK_N, HEAD_DIM);
                 s_tile, p_tile (BLOCK_M, BLOCK_N)
        private  acc (NUM_COLS,); m_i, l_i, the same in all threads of a row
        HBM      q, out, lse once; live tiles of k and v once per m-tile
        paper    FlashAttention-2, arXiv:2307.08691, Algorithm 1
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
        m_start = cuda.blockIdx.x * BLOCK_M
        m = m_start + ty  # this thread's query
        first_n, last_n, n_first, n_stop = bounds(m, m_start, seqlen_q, seqlen_k)
        for d in range(tx, HEAD_DIM, BLOCK_N):
            q_tile[ty, d] = q[m, d] if m < seqlen_q else float32(0.0)
        m_i = float32(sink)  # the sink is the first score of every row
        l_i = float32(1.0)
        for i in range(NUM_COLS):
            acc[i] = float32(0.0)

        for n_start in range(n_first, n_stop, BLOCK_N):
            for row in range(ty, BLOCK_N, BLOCK_M):
                for d in range(tx, HEAD_DIM, BLOCK_N):
                    inside = n_start + row < seqlen_k
                    k_tile[row, d] = k[n_start + row, d] if inside else float32(0.0)
                    v_tile[row, d] = v[n_start + row, d] if inside else float32(0.0)
            cuda.syncthreads()  # q_tile, k_tile, v_tile are complete: safe to read
            n = n_start + tx  # this thread's key
            s = float32(0.0)
            for d in range(HEAD_DIM):
                s += q_tile[ty, d] * k_tile[tx, d]
            s *= softmax_scale  # S = scale Q K^T                                line 8
            if n > last_n or n < first_n:
                s = float32(-math.inf)  # a key that is hidden or does not exist: exp gives 0
            s_tile[ty, tx] = s
            cuda.syncthreads()  # s_tile is complete: a row can be scanned

            m_new = m_i
            for c in range(BLOCK_N):
                m_new = max(m_new, s_tile[ty, c])  # m_i <- max(m_i, rowmax(S))  line 9
            m_safe = m_new if m_new > -math.inf else float32(0.0)  # -inf - (-inf) would be NaN
            alpha = math.exp(m_i - m_safe)  # rescales what was summed under the old max
            p_tile[ty, tx] = math.exp(s - m_safe)  # P = exp(S - m_i)            line 9
            m_i = m_new
            cuda.syncthreads()  # p_tile is complete: safe to read

            l_i = add_tile(acc, l_i, alpha, p_tile, v_tile)
            cuda.syncthreads()  # every thread is done with v_tile: safe to overwrite

        store(m, acc, m_i, l_i, out, lse)
        ### END SOLUTION

    return kernel
