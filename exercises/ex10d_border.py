"""ex10d · Find the bug: neighbours in a batch

`make_broken_kernel` computes attention over a packed batch, one head. With one sequence it is
right. With two, some rows are wrong, and they change with the tokens of another sequence: the
answer to one user depends on what another one wrote.

Write `make_kernel`: copy make_broken_kernel and mend it. Two lines change. The grader says which
row sees which foreign key, and which lines race.

Launch    grid (tokens // BLOCK + batch,), thread block (BLOCK,): a thread block has a tile of
          BLOCK queries of a sequence, thread tx the query m_start + tx
Arrays    q, k, v, out (tokens, HEAD_DIM) float32, cu_seqlens (batch + 1,) int32; queries and keys
          have the same sequences
Mask      query m of a sequence sees its keys 0 ... m if CAUSAL, else all keys of its sequence
Compute   in float32, as in broken_kernel

In the kernel m and n count within the sequence, start + m and start + n within the batch.
"""

import math

from numba import cuda, float32

from fa_numba.constants import NEG_INF
from fa_numba.kernels.sequence_of import make_sequence_of


def make_broken_kernel(HEAD_DIM, BLOCK, CAUSAL):
    """The kernel with the bug, to read and to run. Leave it as it is."""
    sequence_of = make_sequence_of(BLOCK)

    @cuda.jit
    def broken_kernel(q, k, v, cu_seqlens, out, softmax_scale):
        k_tile = cuda.shared.array((BLOCK, HEAD_DIM), float32)
        v_tile = cuda.shared.array((BLOCK, HEAD_DIM), float32)
        acc = cuda.local.array(HEAD_DIM, float32)
        tx = cuda.threadIdx.x
        b, start, seqlen, m_start = sequence_of(cuda.blockIdx.x, cu_seqlens)
        if m_start >= seqlen:  # an unused tile: the whole thread block returns
            return
        m = m_start + tx
        is_query = start + m < q.shape[0]
        for d in range(HEAD_DIM):
            acc[d] = float32(0)
        m_i, l_i = NEG_INF, float32(0)
        for n_start in range(0, min(m_start + BLOCK, seqlen) if CAUSAL else seqlen, BLOCK):
            row = start + n_start + tx
            for d in range(HEAD_DIM):
                k_tile[tx, d] = k[row, d] if row < k.shape[0] else float32(0)
                v_tile[tx, d] = v[row, d] if row < k.shape[0] else float32(0)
            cuda.syncthreads()  # the tiles are complete: safe to read
            for c in range(BLOCK):
                n = n_start + c
                if is_query and start + n < k.shape[0] and (n <= m or not CAUSAL):
                    s = float32(0)
                    for d in range(HEAD_DIM):
                        s += q[start + m, d] * k_tile[c, d]
                    s *= softmax_scale
                    m_new = max(m_i, s)
                    alpha, p = math.exp(m_i - m_new), math.exp(s - m_new)
                    l_i = alpha * l_i + p
                    for d in range(HEAD_DIM):
                        acc[d] = alpha * acc[d] + p * v_tile[c, d]
                    m_i = m_new
            cuda.syncthreads()  # everyone is done with the tiles: safe to overwrite
        if is_query:
            for d in range(HEAD_DIM):
                out[start + m, d] = acc[d] / l_i

    return broken_kernel


def make_kernel(HEAD_DIM, BLOCK, CAUSAL):
    """Attention over a packed batch: each sequence attends only to itself."""
    # YOUR CODE HERE
    raise NotImplementedError("ex10d: make_kernel")


# Stub 736ba30a of solutions/ex10d_border.py: `fa-numba reset ex10d` brings it back.
