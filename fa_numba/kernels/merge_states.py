"""Merge attention over two sets of keys into attention over both sets.

Attention over a set of keys gives a state (out, lse). Two states merge,

    (out_a, lse_a) ⊕ (out_b, lse_b) = ((w_a out_a + w_b out_b) / (w_a + w_b), log(w_a + w_b)),
    with w_a = e^lse_a and w_b = e^lse_b, the divisors of the two softmaxes,

in any order and any grouping, as the pairs (m, l) of online_softmax do. (0, −inf) is the state of
the empty set; merging it changes nothing. So the keys may be cut anywhere: into the splits of
flash_decode, into a shared prefix and the rest, over several GPUs.

Paper: Milakov & Gimelshein 2018, arXiv:1805.02867, section 3.1; of attention states,
Ye et al. 2025, FlashInfer, arXiv:2501.01005.
"""

import math

from numba import cuda, float32

from fa_numba import checks
from fa_numba.checks.argument_names import refuses_other_names
from fa_numba.constants import NEG_INF
from fa_numba.runtime import arrays

THREADS = 32  # one warp per row of head_dim numbers


@cuda.jit
def merge_states_kernel(out_a, lse_a, out_b, lse_b, out, lse):
    """A warp owns a row of out: one query, one head.

    grid      (seqlen_q, num_heads, batch); threads (THREADS,): thread tx takes columns
              tx, tx + THREADS, ...
    shared    none
    private   w_a, w_b, total: the same in every thread
    HBM       out, lse once; out_a, out_b once where they are not empty; lse_a, lse_b in every
              thread
    paper     Online normalizer calculation for softmax, section 3.1
    budget    48 registers, 0 bytes shared (THREADS=32)
    """
    tx = cuda.threadIdx.x
    m, head, b = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
    s_a, s_b = lse_a[b, head, m], lse_b[b, head, m]

    lse_max = max(s_a, s_b)
    shift = float32(0.0) if lse_max == NEG_INF else lse_max  # both empty: -inf - -inf is NaN
    w_a = math.exp(s_a - shift)
    w_b = math.exp(s_b - shift)
    total = w_a + w_b
    divisor = float32(1.0) if total == float32(0.0) else total
    for d in range(tx, out.shape[3], cuda.blockDim.x):
        # The out of an empty part is not read: it may be anything, even NaN.
        x_a = float32(out_a[b, m, head, d]) if s_a != NEG_INF else float32(0.0)
        x_b = float32(out_b[b, m, head, d]) if s_b != NEG_INF else float32(0.0)
        out[b, m, head, d] = (w_a * x_a + w_b * x_b) / divisor
    if tx == 0:
        lse[b, head, m] = lse_max + math.log(total)  # -inf where both are empty


@refuses_other_names
def merge_states(out_a, lse_a, out_b, lse_b):
    """The ⊕ of two states: attention over the keys of both.

    Parameters
    ----------
    out_a, out_b : arrays of shape (batch, seqlen_q, num_heads, head_dim)
        float32, float16 or bfloat16. Any strides with a contiguous last axis; head_dim from 1 to
        256.
    lse_a, lse_b : arrays of shape (batch, num_heads, seqlen_q), float32
        As `flash_attn_v2` returns them; −inf where a part is empty, and its out is not read.

    Returns
    -------
    out : array of the shape, dtype and library of out_a
        0 where both parts are empty.
    lse : array of shape (batch, num_heads, seqlen_q), float32
        −inf where both parts are empty.
    """
    checks.check_states(out_a, lse_a, out_b, lse_b)
    batch, seqlen_q, num_heads, _ = out_a.shape
    out = arrays.empty(out_a, out_a.shape, out_a.dtype)
    lse = arrays.empty(out_a, (batch, num_heads, seqlen_q))
    grid = (seqlen_q, num_heads, batch)
    arrays.launch(merge_states_kernel, grid, (THREADS,), out_a, lse_a, out_b, lse_b, out, lse)
    return out, lse
