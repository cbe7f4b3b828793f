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

### KIND: find the bug
### HINT 1: Three rules, three bugs: which keys are hidden, in which order the score is made, and
### HINT 1: what becomes of a hidden key's -inf on the way to s. Set softcap to 1e6 and slope to 0
### HINT 1: to see one of them alone.
### HINT 2: tanh(-inf) is -1. What is then the score of a hidden key, and how many keys does the row
### HINT 2: softmax see?
### HINT 3: The mask comes last. The slope belongs to the score after softmax_scale and softcap. A
### HINT 3: window of W tokens hides n <= position - W.
### DEBRIEF: The order is scale, cap, ALiBi, mask, as in fa_numba.kernels.masks. After softcap no
### DEBRIEF: score is -inf any more: a mask in front of it hides nothing, and with a small cap a
### DEBRIEF: hidden key weighs nearly as much as a seen one. The window is the other classic: vLLM's
### DEBRIEF: sliding_window counts the token itself, window_size=(left, right) does not, so left = W
### DEBRIEF: - 1. None of the three makes a NaN, and a model with any of them still writes
### DEBRIEF: sentences.


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
    ### BEGIN SOLUTION
    n, m = cuda.grid(2)
    seqlen_q, seqlen_k = qk.shape
    if m < seqlen_q and n < seqlen_k:
        position = m + seqlen_k - seqlen_q
        x = qk[m, n] * softmax_scale
        x = softcap * math.tanh(x / softcap)
        x -= slope * float32(abs(position - n))
        if n > position or n <= position - W:
            x = float32(-math.inf)
        s[m, n] = x
    ### END SOLUTION
