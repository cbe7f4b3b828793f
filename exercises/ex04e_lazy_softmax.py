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


@cuda.jit
def summarize_chunks(q, k, v, acc, l, m, key_chunk_size, softmax_scale):
    """(acc, l, m) of each query and each chunk of keys; a thread owns a query."""
    # YOUR CODE HERE
    raise NotImplementedError("ex04e: summarize_chunks")


@cuda.jit
def merge_chunks(acc, l, m, out):
    """out of each query, from what its chunks left; a thread owns a query."""
    # YOUR CODE HERE
    raise NotImplementedError("ex04e: merge_chunks")


def traffic(seqlen_q, seqlen_k, d, query_chunk_size, key_chunk_size):
    """Floats of acc, l and m that are kept at a time, and elements of k that are read."""
    # YOUR CODE HERE
    raise NotImplementedError("ex04e: traffic")


# Stub 3cda1a45 of solutions/ex04e_lazy_softmax.py: `fa-numba reset ex04e` brings it back.
