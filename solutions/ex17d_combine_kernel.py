"""ex17d · Combine the splits

The second kernel of Flash-Decoding: for each row, one query of one head, merge the partial results
of all splits into one.

shapes    out_partial (num_splits, batch, num_heads, HEAD_DIM);  lse_partial (num_splits, batch,
          num_heads);  out (batch, num_heads, HEAD_DIM);  lse (batch, num_heads). All float32.
          A split without keys has out_partial 0 and lse_partial -inf.
launch    kernel[(num_heads, batch), 32](out_partial, lse_partial, out, lse): a warp owns a row,
          thread tx the columns tx, tx + 32, ... of it
result    lse = log(sum over splits of e^lse_partial);
          out = sum over splits of e^(lse_partial - lse) out_partial.
          A row whose splits are all without keys is 0, its lse -inf. lse_partial may be as large
          as 1e4 or as small as -1e4: no e^lse_partial as it stands. A weight may be as far off as
          float32 can tell two lse apart: e^(lse_partial - lse) is good enough
HBM       loads   out_partial once; lse_partial as often as you like
          stores  out and lse once; neither is loaded
access    neighbouring threads load neighbouring columns
memory    no shared memory and no barrier: every thread of a row may compute the same m_i and l_i.
          A thread keeps its NUM_COLS columns, and nothing for each split

About 20 lines. num_splits is any number >= 1, known only when the kernel runs.
"""

import functools
import math

from numba import cuda, float32

### HINT 1: Online softmax once more: a split is a key, its score is lse_partial, its value is
### HINT 1: out_partial. Or two loops: the maximum of lse_partial first, then the sums.
### HINT 2: Each thread walks all splits with m_i, l_i and the accumulators of its own columns:
### HINT 2: m_new, alpha, p = exp(lse_partial - m_new); l_i and every acc get alpha * old + p * new.
### HINT 3: acc = cuda.local.array(NUM_COLS, float32), column d = tx + i * 32 in acc[i]. While only
### HINT 3: empty splits have come, m_new is -inf: subtract 0 in its place. At the end out = acc /
### HINT 3: l_i and lse = m_i + log(l_i), unless l_i == 0.
### DEBRIEF: The detour through HBM is HEAD_DIM + 1 numbers, written and read, per split and head:
### DEBRIEF: against the keys and values of a split that is GROUP_SIZE / (keys per split), next to
### DEBRIEF: nothing for splits of thousands of keys. The price that counts is another: a second
### DEBRIEF: launch, which starts when the last thread block of the first is done.


@functools.cache
def make_kernel(HEAD_DIM):
    """The kernel for one head_dim, a compile-time constant."""
    NUM_COLS = math.ceil(HEAD_DIM / 32)  # columns of out that a thread owns

    @cuda.jit
    def kernel(out_partial, lse_partial, out, lse):
        """Merge the partial results of all splits: a warp per row.

        grid     (num_heads, batch); threads (32,)
        private  acc (NUM_COLS,); m_i, l_i, the same in all threads
        HBM      out_partial, out, lse once
        """
        ### BEGIN SOLUTION
        acc = cuda.local.array(NUM_COLS, float32)
        tx, head, b = cuda.threadIdx.x, cuda.blockIdx.x, cuda.blockIdx.y
        m_i = float32(-math.inf)
        l_i = float32(0.0)
        for i in range(NUM_COLS):
            acc[i] = float32(0.0)
        for split in range(lse_partial.shape[0]):
            score = lse_partial[split, b, head]
            m_new = max(m_i, score)
            m_safe = m_new if m_new > -math.inf else float32(0.0)  # -inf - -inf would be NaN
            alpha = math.exp(m_i - m_safe)
            p = math.exp(score - m_safe)
            m_i = m_new
            l_i = alpha * l_i + p
            for i in range(NUM_COLS):
                d = tx + i * 32
                if d < HEAD_DIM:
                    acc[i] = alpha * acc[i] + p * out_partial[split, b, head, d]
        for i in range(NUM_COLS):
            d = tx + i * 32
            if d < HEAD_DIM:
                out[b, head, d] = acc[i] / l_i if l_i > 0 else float32(0.0)
        if tx == 0:
            lse[b, head] = m_i + math.log(l_i) if l_i > 0 else float32(-math.inf)
        ### END SOLUTION

    return kernel
