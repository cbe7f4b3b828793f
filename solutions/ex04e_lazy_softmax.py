"""ex04e · Lazy softmax: chunks of keys, and one division

Attention of one head without S and P, after Rabe and Staats. The keys are cut into chunks of
key_chunk_size, the last one may be shorter. Every query walks every chunk for itself, which leaves
three things in HBM: m, the largest score of the chunk; l, the sum of exp(score - m) over its keys;
acc, the sum of exp(score - m) v over its keys. Then each query merges what its chunks left, and
divides, once.

summarize_chunks(q, k, v, acc, l, m, key_chunk_size, softmax_scale)
    launched with grid (ceil(seqlen_q / 32), num_chunks), 32 threads a block: thread
    cuda.grid(1) owns a query; blockIdx.y is the chunk. Each score is softmax_scale * q k^T.
merge_chunks(acc, l, m, out)
    launched with grid (ceil(seqlen_q / 32),): thread cuda.grid(1) owns a row of out, and divides.
traffic(seqlen_q, seqlen_k, d, query_chunk_size, key_chunk_size) -> (kept, k_reads), both int
    predict of fa_numba.lazy_softmax_attn, one head, which takes query_chunk_size queries at a time
    and lets every query chunk use the same memory: how many floats acc, l and m are together; and
    how many elements of k are read in all. Compared with the engine's meter; exact for any length.

shapes    q, out (seqlen_q, HEAD_DIM);  k, v (seqlen_k, HEAD_DIM);  acc (num_chunks, seqlen_q,
          HEAD_DIM);  l, m (num_chunks, seqlen_q). All float32; seqlen_q, seqlen_k >= 1
-inf      a score may be -inf (a masked key). A chunk of such keys only leaves acc = 0, l = 0,
          m = -inf; a row that sees no key at all is 0. Any finite score counts, -2e30 as well
memory    q is read once per chunk, k and v once per query; acc, l, m are written once and read
          once, m up to twice; out is written once. A thread keeps at most four rows of HEAD_DIM
          floats, a thread block nothing in shared memory: nothing grows with a length

About 25, 20 and 3 lines. Write float32(0.0), not 0.0: a bare literal is float64 to Numba.
"""

import math

from numba import cuda, float32

HEAD_DIM = 8  # leave it as it is

### HINT 1: The walk over a chunk is that of lazy_rows in the lesson, from n_start to n_end instead
### of over all keys, and without the division. Guard -inf - -inf as in ex03a.
### HINT 2: Merging: all that was summed in a chunk, acc and l, was summed under that chunk's m. So
### find the largest m of the query first, and bring every chunk to it by exp(m[chunk] - m_i).
### HINT 3: n_start = chunk * key_chunk_size; n_end = min(n_start + key_chunk_size, k.shape[0])
### In merge_chunks: m_i = the maximum over the chunks; then for each chunk
### alpha = exp(m[chunk, m_row] - m_i); l_i += alpha * l[chunk, m_row]
### acc_row[c] += alpha * acc[chunk, m_row, c]; at the end out[m_row, c] = acc_row[c] / l_i
### If m_i is -inf, use 0 in its place: every alpha is then 0.
### traffic: each of min(query_chunk_size, seqlen_q) queries keeps d + 2 floats of every chunk.
### DEBRIEF: With chunks of sqrt(seqlen_k) keys, a query keeps (d + 2) sqrt(seqlen_k) floats: at
### seqlen_k = 16384 and d = 64, 8448 instead of a row of 16384 scores and as many probabilities.
### With chunks of 1024 queries it does not grow with seqlen_q at all. The traffic is another story:
### every query reads every key, which is N^2 d elements of k, more than S ever cost. The same
### (m, l, acc) with a tile of keys that many queries share is FlashAttention; with chunks that run
### side by side for ONE query it is Flash-Decoding.


@cuda.jit
def summarize_chunks(q, k, v, acc, l, m, key_chunk_size, softmax_scale):
    """(acc, l, m) of each query and each chunk of keys; a thread owns a query."""
    ### BEGIN SOLUTION
    m_row = cuda.grid(1)
    chunk = cuda.blockIdx.y
    if m_row >= q.shape[0]:
        return
    q_row = cuda.local.array(HEAD_DIM, float32)
    acc_row = cuda.local.array(HEAD_DIM, float32)
    for c in range(HEAD_DIM):
        q_row[c] = q[m_row, c]
        acc_row[c] = float32(0.0)
    m_i = float32(-math.inf)
    l_i = float32(0.0)
    n_start = chunk * key_chunk_size
    for n in range(n_start, min(n_start + key_chunk_size, k.shape[0])):
        s = float32(0.0)
        for c in range(HEAD_DIM):
            s += q_row[c] * k[n, c]
        s *= softmax_scale
        m_new = max(m_i, s)
        if m_new > -math.inf:  # -inf - -inf would be NaN
            alpha = math.exp(m_i - m_new)
            p = math.exp(s - m_new)
            l_i = l_i * alpha + p
            for c in range(HEAD_DIM):
                acc_row[c] = acc_row[c] * alpha + p * v[n, c]
            m_i = m_new
    l[chunk, m_row] = l_i
    m[chunk, m_row] = m_i
    for c in range(HEAD_DIM):
        acc[chunk, m_row, c] = acc_row[c]
    ### END SOLUTION


@cuda.jit
def merge_chunks(acc, l, m, out):
    """out of each query, from what its chunks left; a thread owns a query."""
    ### BEGIN SOLUTION
    m_row = cuda.grid(1)
    if m_row >= out.shape[0]:
        return
    m_i = float32(-math.inf)
    for chunk in range(m.shape[0]):
        m_i = max(m_i, m[chunk, m_row])
    if m_i == -math.inf:  # no key was seen: every alpha below is 0
        m_i = float32(0.0)
    acc_row = cuda.local.array(HEAD_DIM, float32)
    for c in range(HEAD_DIM):
        acc_row[c] = float32(0.0)
    l_i = float32(0.0)
    for chunk in range(m.shape[0]):
        alpha = math.exp(m[chunk, m_row] - m_i)
        l_i += alpha * l[chunk, m_row]
        for c in range(HEAD_DIM):
            acc_row[c] += alpha * acc[chunk, m_row, c]
    for c in range(HEAD_DIM):
        out[m_row, c] = acc_row[c] / l_i if l_i != 0 else float32(0.0)
    ### END SOLUTION


def traffic(seqlen_q, seqlen_k, d, query_chunk_size, key_chunk_size):
    """Floats of acc, l and m that are kept at a time, and elements of k that are read."""
    ### BEGIN SOLUTION
    num_chunks = -(-seqlen_k // key_chunk_size)
    kept = min(query_chunk_size, seqlen_q) * num_chunks * (d + 2)
    return kept, seqlen_q * seqlen_k * d
    ### END SOLUTION
