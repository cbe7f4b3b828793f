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

### KIND: write
### HINT 1: q . (c @ W) is a sum over columns of q and rows of W: write it as (something) . c. Which
### HINT 1: product is the something, and of which shape?
### HINT 2: q . (c @ W) = (W @ q) . c, and sum p (c @ W) = (sum p c) @ W: the first product is with
### HINT 2: W transposed, the second one is not. Each head has its own W: np.einsum with an h.
### HINT 3: absorb: np.einsum("hd,hcd->hc", q_nope, w_uk), then q_rope behind it, np.concatenate
### HINT 3: along axis 1. expand: np.einsum("hc,hcd->hd", out_latent, w_uv).
### DEBRIEF: Both forms are one product with three factors, put in brackets differently. The plain
### DEBRIEF: brackets cost a product with W for each token and head, the absorbed ones for each head
### DEBRIEF: alone; in exchange each score costs LATENT_DIM + ROPE_DIM multiplications in place of
### DEBRIEF: HEAD_DIM + ROPE_DIM. The rotation must stay out: it depends on the token's position, so
### DEBRIEF: it cannot move through W. That is why k_r is there at all.


def absorb(q_nope, q_rope, w_uk):
    """Queries for the rows of the cache."""
    ### BEGIN SOLUTION
    return np.concatenate([np.einsum("hd,hcd->hc", q_nope, w_uk), q_rope], axis=1)
    ### END SOLUTION


def scale(head_dim, rope_dim, latent_dim):
    """softmax_scale of both forms."""
    ### BEGIN SOLUTION
    return 1 / math.sqrt(head_dim + rope_dim)
    ### END SOLUTION


def expand(out_latent, w_uv):
    """Outputs of the heads, from their weighted sums of latents."""
    ### BEGIN SOLUTION
    return np.einsum("hc,hcd->hd", out_latent, w_uv)
    ### END SOLUTION
