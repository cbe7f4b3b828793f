"""ex17d · Combine the splits

The second kernel of Flash-Decoding: for each row, one query of one head, merge the partial results
of all splits, one after the other. Your merge of two does the work: `fa-numba reset ex17d --from
ex17a`. What is left is a loop over splits.

shapes    out_partial (num_splits, batch, num_heads, HEAD_DIM);  lse_partial (num_splits, batch,
          num_heads);  out (batch, num_heads, HEAD_DIM);  lse (batch, num_heads). All float32.
          A split without keys has out_partial 0 and lse_partial -inf.
launch    kernel[(num_heads, batch), 32](out_partial, lse_partial, out, lse): a warp owns a row,
          thread tx the columns tx, tx + 32, ... of it
result    lse = log(sum over splits of e^lse_partial);
          out = sum over splits of e^(lse_partial - lse) out_partial.
          A row whose splits are all without keys is 0, its lse -inf. lse_partial may be as large
          as 1e4 or as small as -1e4
HBM       loads   out_partial once; lse_partial as often as you like
          stores  out and lse once; neither is loaded
access    neighbouring threads load neighbouring columns
memory    no shared memory and no barrier: a thread needs nothing of another one. It keeps its
          columns, and nothing for each split

About 9 lines beside the merge. num_splits is any number >= 1, known only when the kernel runs.
"""

import functools
import math

from numba import cuda, float32


@cuda.jit(device=True)
def merge_weights(lse_a, lse_b):
    """Return (w_a, w_b, lse): the weights of two parts in their merger, and its lse."""
    # YOUR CODE HERE
    raise NotImplementedError("ex17d: merge_weights")


@cuda.jit(device=True)
def mix(w_a, x_a, w_b, x_b):
    """w_a x_a + w_b x_b, without what weighs nothing."""
    # YOUR CODE HERE
    raise NotImplementedError("ex17d: mix")


@functools.cache
def make_kernel(HEAD_DIM):
    """The kernel for one head_dim, a compile-time constant."""

    @cuda.jit
    def kernel(out_partial, lse_partial, out, lse):
        """Merge the partial results of all splits: a warp per row.

        grid     (num_heads, batch); threads (32,)
        HBM      out_partial, out, lse once
        """
        # YOUR CODE HERE
        raise NotImplementedError("ex17d: kernel")

    return kernel


# Stub 2653993f of solutions/ex17d_combine_kernel.py: `fa-numba reset ex17d` brings it back.
