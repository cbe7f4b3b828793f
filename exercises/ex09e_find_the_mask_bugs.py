"""ex09e · Find the bugs: window, softcap and ALiBi

`broken_kernel` turns the products q · k of one head into scores. It has a causal window, softcap
and ALiBi, in the wrong way three times. Write `kernel`, the same without the bugs. Copy
broken_kernel; at most five lines change.

A key that query m sees has the score

    softcap · tanh(softmax_scale · qk[m, n] / softcap) - slope · |position - n|

with position = m + seqlen_k - seqlen_q, and every other key has the score -inf. Query m sees W
keys, its own position included: position - W < n <= position, as far as these keys exist.

Arrays   qk, s (seqlen_q, seqlen_k), float32
Launch   kernel[grid, (16, 16)](qk, s, softmax_scale, softcap, slope, W): one thread for each pair,
         cuda.grid(2) is (n, m); softcap > 0, slope >= 0, W >= 1, floats are float32
HBM      each element of qk is loaded at most once, each of s is stored once
Compute  in float32
"""

import math

from numba import cuda, float32


@cuda.jit
def broken_kernel(qk, s, softmax_scale, softcap, slope, W):
    """Scores with three bugs, to read and to run. Leave it as it is."""
    n, m = cuda.grid(2)
    seqlen_q, seqlen_k = qk.shape
    if m < seqlen_q and n < seqlen_k:
        position = m + seqlen_k - seqlen_q
        x = qk[m, n] - slope * float32(abs(position - n))
        x = x * softmax_scale
        if n > position or n < position - W:
            x = float32(-math.inf)
        s[m, n] = softcap * math.tanh(x / softcap)


@cuda.jit
def kernel(qk, s, softmax_scale, softcap, slope, W):
    """Scores of a causal window with softcap and ALiBi."""
    # YOUR CODE HERE
    raise NotImplementedError("ex09e: kernel")


# Stub b7cebfb9 of solutions/ex09e_find_the_mask_bugs.py: `fa-numba reset ex09e` brings it back.
