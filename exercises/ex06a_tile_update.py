"""ex06a · One tile of FlashAttention-1

FlashAttention-1 keeps, for every query row, three things: `out` (the attention output over the keys
seen so far, already divided), `l` (the sum of exp(score - m) over those keys) and `m` (their
largest score). Here is one iteration of its inner loop in NumPy: a tile of scores arrives, the
three are brought up to date. The kernel of ex06b does the same, with threads.

With _ij for what the tile says on its own (Algorithm 1, lines 10 to 12):

    m_ij = rowmax(s)          p_ij = exp(s - m_ij)       l_ij = rowsum(p_ij)
    m_new = max(m, m_ij)      l_new = exp(m - m_new) * l + exp(m_ij - m_new) * l_ij
    out_new = (l * exp(m - m_new) * out + exp(m_ij - m_new) * p_ij @ v) / l_new

shapes    s (rows, cols): scaled scores, -inf where a key is masked out;  v (cols, head_dim);
          out (rows, head_dim);  l, m (rows,).  All float32
start     before the first tile a row has out = 0, l = 0, m = -inf
returns   out, l, m: new float32 arrays; the arguments stay as they are
-inf      a row whose scores so far are all -inf keeps out = 0, l = 0, m = -inf. In floating point
          -inf - (-inf) is NaN, and so is 0 / 0. Any finite score counts, -2e30 as well
speed     no Python loop: millions of rows, or of columns, at once take a second or two

About 10 lines of NumPy, no loop.
"""

import numpy as np


def tile_update(s, v, out, l, m):
    """Return (out, l, m) after one more tile of scores `s` with values `v`."""
    # YOUR CODE HERE
    raise NotImplementedError("ex06a: tile_update")


# Stub 29034e4a of solutions/ex06a_tile_update.py: `fa-numba reset ex06a` brings it back.
