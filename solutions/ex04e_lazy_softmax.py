"""ex04e · Lazy softmax: chunks of keys, and one division

Optional (†). Attention of one head without S and P, after Rabe and Staats. The keys are cut into
chunks. Every query walks every chunk for itself, which leaves three things in HBM: m, the largest
score of the chunk; l, the sum of exp(score - m) over its keys; acc, the sum of exp(score - m) v.
Then each query merges what its chunks left, and divides, once. Loads, scores and stores are given.

add_key      what one more key, of score s, does to the three: changes acc_row in place, and returns
             the new m_i and l_i. Not both of m_i and s are -inf.
add_chunk    what one chunk adds to the sums of all: alpha = exp(m of the chunk - m of all) is given

Launch    thread cuda.grid(1) owns a query, blockIdx.y is the chunk
Shapes    q, out (seqlen_q, HEAD_DIM);  k, v (seqlen_k, HEAD_DIM);  acc (num_chunks, seqlen_q,
          HEAD_DIM);  l, m (num_chunks, seqlen_q); float32
-inf      a chunk of masked keys only leaves acc = 0, l = 0, m = -inf. The given code does that.
HBM       v is read once per query; acc and l are read once, m twice

About 6 lines and 3 lines.
"""

import math

from numba import cuda, float32

HEAD_DIM = 8  # leave it as it is

### KIND: fill a loop
### HINT 1: It is ex03a's update of l, with acc as a second sum under the same maximum: both shrink
### HINT 1: by alpha when the maximum rises.
### HINT 2: alpha = exp(m_i - m_new) and p = exp(s - m_new), where m_new is the larger of m_i and s.
### HINT 2: In the merge all that a chunk left was summed under its own m; alpha brings it to the
### HINT 2: common maximum.
### HINT 3: acc_row[c] = acc_row[c] * alpha + p * v[n, c] for each c; return m_new, l_i * alpha + p.
### HINT 3: The merge: acc_row[c] += alpha * acc[chunk, m_row, c] for each c; return l_i + alpha *
### HINT 3: l[chunk, m_row].
### DEBRIEF: With chunks of sqrt(seqlen_k) keys, a query keeps (d + 2) sqrt(seqlen_k) floats: at
### seqlen_k = 16384 and d = 64, 8448 instead of a row of 16384 scores and as many probabilities.
### With chunks of 1024 queries it does not grow with seqlen_q at all. The traffic is another story:
### every query reads every key, which is N^2 d elements of k, more than S ever cost. The same
### (m, l, acc) with a tile of keys that many queries share is FlashAttention; with chunks that run
### side by side for ONE query it is Flash-Decoding.


@cuda.jit(device=True)
def add_key(m_i, l_i, acc_row, s, v, n):
    """Add key n, of score s, to a query's acc_row; return the new m_i and l_i."""
    ### BEGIN SOLUTION
    m_new = max(m_i, s)
    alpha = math.exp(m_i - m_new)
    p = math.exp(s - m_new)
    for c in range(HEAD_DIM):
        acc_row[c] = acc_row[c] * alpha + p * v[n, c]
    return m_new, l_i * alpha + p
    ### END SOLUTION


@cuda.jit
def summarize_chunks(q, k, v, acc, l, m, key_chunk_size, softmax_scale):
    """(acc, l, m) of each query and each chunk of keys; a thread owns a query."""
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
        if max(m_i, s) > -math.inf:  # -inf - -inf would be NaN
            m_i, l_i = add_key(m_i, l_i, acc_row, s, v, n)
    l[chunk, m_row] = l_i
    m[chunk, m_row] = m_i
    for c in range(HEAD_DIM):
        acc[chunk, m_row, c] = acc_row[c]


@cuda.jit(device=True)
def add_chunk(l_i, acc_row, alpha, acc, l, chunk, m_row):
    """Add a chunk's sums, times alpha, to acc_row; return the new l_i."""
    ### BEGIN SOLUTION
    for c in range(HEAD_DIM):
        acc_row[c] += alpha * acc[chunk, m_row, c]
    return l_i + alpha * l[chunk, m_row]
    ### END SOLUTION


@cuda.jit
def merge_chunks(acc, l, m, out):
    """out of each query, from what its chunks left; a thread owns a query."""
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
        l_i = add_chunk(l_i, acc_row, alpha, acc, l, chunk, m_row)
    for c in range(HEAD_DIM):
        out[m_row, c] = acc_row[c] / l_i if l_i != 0 else float32(0.0)
