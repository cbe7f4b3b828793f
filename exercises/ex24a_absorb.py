"""ex24a · Absorb two matrices

A model with latent attention (MLA) keeps of each token a latent c and one rotated key k_r. The key
and the value of head h are

    k_h = [c @ w_uk[h] ; k_r]        v_h = c @ w_uv[h]        ([a ; b]: a, and b behind it)

For decoding nobody wants to compute them for every token of the cache. Move the two matrices to the
other side, where there is one row for each head and not one for each token:

absorb   queries q' such that the dot product of q'[h] and the row [c ; k_r] is that of
         [q_nope[h] ; q_rope[h]] and k_h, for any token
scale    the softmax_scale of the plain form, 1 / sqrt(columns of k_h); scores are scaled after
         absorb, not in it
expand   out of each head, given out_latent[h] = sum over tokens n of p[h, n] c_n: the same sum
         over v_h

shapes   q_nope (num_heads, HEAD_DIM); q_rope (num_heads, ROPE_DIM);
         w_uk, w_uv (num_heads, LATENT_DIM, HEAD_DIM);
         absorb returns (num_heads, LATENT_DIM + ROPE_DIM), in the order of the cache's row
         out_latent (num_heads, LATENT_DIM); expand returns (num_heads, HEAD_DIM)
dtype    that of the arguments; they stay as they are. All sizes are >= 1 and may differ

NumPy, one or two lines each.
"""

import math

import numpy as np


def absorb(q_nope, q_rope, w_uk):
    """Queries for the rows of the cache."""
    # YOUR CODE HERE
    raise NotImplementedError("ex24a: absorb")


def scale(head_dim, rope_dim, latent_dim):
    """softmax_scale of both forms."""
    # YOUR CODE HERE
    raise NotImplementedError("ex24a: scale")


def expand(out_latent, w_uv):
    """Outputs of the heads, from their weighted sums of latents."""
    # YOUR CODE HERE
    raise NotImplementedError("ex24a: expand")


# Stub 5324a287 of solutions/ex24a_absorb.py: `fa-numba reset ex24a` brings it back.
