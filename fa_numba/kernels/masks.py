"""Which keys a query sees, and what becomes of its scores: device functions for every kernel.

Query m stands at position m + seqlen_k − seqlen_q among the keys, so that the last query stands at
the last key. From there all is measured: with a window a query sees the keys from position − left
to position + right, causal is right = 0, and ALiBi takes slope · distance from a score.

What is asked for are compile-time constants. Where nothing is, the functions give back what they
are given, and the compiler leaves nothing of them.

Papers: Longformer, arXiv:2004.05150 (windows); Gemma 2, arXiv:2408.00118 (softcap); ALiBi,
arXiv:2108.12409.
"""

import functools
import math

import numpy as np
from numba import cuda, float32


@functools.cache
def make_bounds(CAUSAL, WINDOW):
    """The keys that a query sees: range(first_key(position), end_key(position, seqlen_k))."""
    left, right = WINDOW
    return _make_bounds(left, 0 if CAUSAL else right)


@functools.cache
def make_bounds_of_keys(CAUSAL, WINDOW):
    """The queries that see a key: range(first_query(position), end_query(position, seqlen_q)).

    Key n stands at position n + seqlen_q − seqlen_k among the queries; left and right swap.
    """
    left, right = WINDOW
    return _make_bounds(0 if CAUSAL else right, left)


def _make_bounds(BEFORE, AFTER):
    """What is seen from a position: so many before it and after it, −1 for all."""

    @cuda.jit(device=True)
    def first(position):
        return max(0, position - BEFORE) if BEFORE >= 0 else 0

    @cuda.jit(device=True)
    def end(position, seqlen):
        return min(seqlen, position + AFTER + 1) if AFTER >= 0 else seqlen

    @cuda.jit(device=True)
    def sees(position, n, seqlen):
        before = BEFORE < 0 or n >= position - BEFORE
        after = AFTER < 0 or n <= position + AFTER
        return n < seqlen and before and after

    return first, end, sees


@functools.cache
def make_score(SOFTCAP, ALIBI):
    """score(s, distance, slope): the score of a key `distance` away, where s = scale · q·k."""
    CAPPED, CAP = SOFTCAP > 0, np.float32(SOFTCAP)

    @cuda.jit(device=True)
    def score(s, distance, slope):
        if CAPPED:
            s = CAP * math.tanh(s / CAP)
        if ALIBI:
            s -= slope * float32(abs(distance))
        return s

    return score


@functools.cache
def make_score_bwd(SOFTCAP):
    """score_bwd(ds, s): the gradient by s, from ds, that by score(s); ALiBi only adds to it."""
    CAPPED, CAP = SOFTCAP > 0, np.float32(SOFTCAP)

    @cuda.jit(device=True)
    def score_bwd(ds, s):
        if CAPPED:
            t = math.tanh(s / CAP)
            ds *= float32(1.0) - t * t
        return ds

    return score_bwd
