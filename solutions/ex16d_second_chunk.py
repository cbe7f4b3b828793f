"""ex16d · Find the bug: the second chunk

A long prompt goes through in chunks. For each chunk its keys and values are appended to the cache,
then `broken_kernel` attends: causally, to all tokens so far. The first chunk is right. The second
is not: no NaN, no race, every row a mean of values, and the text that follows is nonsense.

Write `kernel`. Copy broken_kernel and mend it: one line changes.

shapes    q, out (C, 16): the queries of the chunk. C differs from chunk to chunk
          k_cache, v_cache (max_len, 16);  all float32
seq_len   int: tokens in the cache, those of the chunk included. What lies past them is NaN
launch    kernel[ceil(C / 32), 32](q, k_cache, v_cache, seq_len, out, softmax_scale): thread m of
          the grid owns query m of the chunk
HBM       a key that a query may not see is not loaded for it
result    row m of out is the row of this token in attention to the whole prompt at once
"""

import math

from numba import cuda, float32

HEAD_DIM = 16

### KIND: find the bug
### HINT 1: Give it a prompt of 8 tokens in chunks of 4, and ask the meter how many keys each query
### HINT 1: loads: simt.trace(broken_kernel, 1, 32, ...).arrays["k_cache"].loads.
### HINT 2: Query 0 of the second chunk is token 4 of the prompt. Which keys may it see, and which
### HINT 2: does the loop visit?
### HINT 3: The chunk is the last q.shape[0] of seq_len tokens: query m is token
### HINT 3: seq_len - q.shape[0] + m, and sees its own key, too.
### DEBRIEF: A causal mask over a rectangle needs a corner to start from. Chunked prefill, decoding
### DEBRIEF: and speculation want the bottom-right one: the last query sees the last key. With as
### DEBRIEF: many queries as keys the two corners are one, so tests with squares pass. The library
### DEBRIEF: flash-attn changed its causal=True from top-left to bottom-right in version 2.1;
### DEBRIEF: PyTorch's is_causal=True is top-left. Ask of every library which one it has.


@cuda.jit
def broken_kernel(q, k_cache, v_cache, seq_len, out, softmax_scale):
    """Causal attention of a chunk, a thread per query; with a bug."""
    m = cuda.grid(1)
    acc = cuda.local.array(HEAD_DIM, float32)
    if m < q.shape[0]:
        m_i, l_i = float32(-math.inf), float32(0.0)
        for d in range(HEAD_DIM):
            acc[d] = float32(0.0)
        for n in range(m + 1):
            s = float32(0.0)
            for d in range(HEAD_DIM):
                s += q[m, d] * k_cache[n, d]
            m_new = max(m_i, s * softmax_scale)
            alpha, p = math.exp(m_i - m_new), math.exp(s * softmax_scale - m_new)
            m_i, l_i = m_new, alpha * l_i + p
            for d in range(HEAD_DIM):
                acc[d] = alpha * acc[d] + p * v_cache[n, d]
        for d in range(HEAD_DIM):
            out[m, d] = acc[d] / l_i


@cuda.jit
def kernel(q, k_cache, v_cache, seq_len, out, softmax_scale):
    """Causal attention of a chunk, a thread per query."""
    ### BEGIN SOLUTION
    m = cuda.grid(1)
    acc = cuda.local.array(HEAD_DIM, float32)
    if m < q.shape[0]:
        m_i, l_i = float32(-math.inf), float32(0.0)
        for d in range(HEAD_DIM):
            acc[d] = float32(0.0)
        for n in range(seq_len - q.shape[0] + m + 1):
            s = float32(0.0)
            for d in range(HEAD_DIM):
                s += q[m, d] * k_cache[n, d]
            m_new = max(m_i, s * softmax_scale)
            alpha, p = math.exp(m_i - m_new), math.exp(s * softmax_scale - m_new)
            m_i, l_i = m_new, alpha * l_i + p
            for d in range(HEAD_DIM):
                acc[d] = alpha * acc[d] + p * v_cache[n, d]
        for d in range(HEAD_DIM):
            out[m, d] = acc[d] / l_i
    ### END SOLUTION
