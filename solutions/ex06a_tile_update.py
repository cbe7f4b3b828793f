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

### HINT 1: Follow the six formulas in order. Give m and l a column axis, `[:, None]`, wherever they
### HINT 1: meet a matrix.
### HINT 2: Only a row with m_new = -inf makes -inf - (-inf). Subtract a stand-in that is 0 there
### HINT 2: and m_new elsewhere: then every exp is exp(-inf) = 0, and nothing else changes.
### HINT 3: base = np.where(np.isneginf(m_new), 0, m_new); p = np.exp(s - base[:, None]) makes
### HINT 3: exp(m_ij - m_new) * p_ij in one step; alpha = np.exp(m - base); l_new = alpha * l +
### HINT 3: p.sum(axis=1). Divide by np.where(l_new == 0, 1, l_new).
### DEBRIEF: Out is a finished softmax after every tile: stop early, and you have attention over the
### DEBRIEF: keys seen so far. That costs a multiplication by l and a division by l_new for each
### DEBRIEF: element of out in each tile. FlashAttention-2 drops both (lesson 07). exp(m_ij - m_new)
### DEBRIEF: * exp(s - m_ij) is exp(s - m_new): the detour through m_ij is the paper's way to write
### DEBRIEF: it, and nothing forces you to compute it.


def tile_update(s, v, out, l, m):
    """Return (out, l, m) after one more tile of scores `s` with values `v`."""
    ### BEGIN SOLUTION
    m_new = np.maximum(m, s.max(axis=1))
    base = np.where(np.isneginf(m_new), np.float32(0), m_new)  # -inf - (-inf) would be NaN
    alpha = np.exp(m - base)  # rescales what was summed under the old max
    p = np.exp(s - base[:, None])  # this is exp(m_ij - m_new) * p_ij
    l_new = alpha * l + p.sum(axis=1)
    unnormalised = (l * alpha)[:, None] * out + p @ v
    divisor = np.where(l_new == 0, np.float32(1), l_new)  # no key seen yet: 0 / 1
    return unnormalised / divisor[:, None], l_new, m_new
    ### END SOLUTION
