"""Masks and score modification: device functions for every attention kernel.

Query m is at position m + seqlen_k − seqlen_q among the keys, so that the last query is at the last
key. With a window it sees the keys from position − left to position + right; causal is right = 0;
ALiBi subtracts slope · |position − n| from the score of key n.

    seqlen_q = 2, seqlen_k = 5       key  0 1 2 3 4
    query 0 at position 3                 1 1 1 1 0       causal
    query 1 at position 4                 1 1 1 1 1

Options are compile-time constants. With an option off, the function returns its argument and the
compiler removes it.

Papers: Longformer, arXiv:2004.05150 (windows); Gemma 2, arXiv:2408.00118 (softcap); ALiBi,
arXiv:2108.12409.
"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32

from fa_numba.expressions import tiles
from fa_numba.expressions.tiles import HIDDEN
from fa_numba.runtime import arrays


class KeyBounds(NamedTuple):
    """The keys that a query sees: range(first_key(position), end_key(position, seqlen_k)).

    sees(position, n, seqlen_k) is True for a key n of that range.
    """

    first_key: Any
    end_key: Any
    sees: Any


class QueryBounds(NamedTuple):
    """The queries that see a key: range(first_query(position), end_query(position, seqlen_q)).

    sees(position, m, seqlen_q) is True for a query m of that range. Key n is at position
    n + seqlen_q − seqlen_k among the queries.
    """

    first_query: Any
    end_query: Any
    sees: Any


@functools.cache
def make_bounds(CAUSAL, WINDOW):
    """The `KeyBounds` of a mask."""
    left, right = WINDOW
    return KeyBounds(*_make_bounds(left, 0 if CAUSAL else right))


@functools.cache
def make_bounds_of_keys(CAUSAL, WINDOW):
    """The `QueryBounds` of a mask: left and right are exchanged."""
    left, right = WINDOW
    return QueryBounds(*_make_bounds(0 if CAUSAL else right, left))


def _make_bounds(BEFORE, AFTER):
    """first, end, sees: BEFORE indices before a position, AFTER after it; −1 is no limit."""

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
    """score(s, distance, slope): the score of s = scale · q·k, for a key `distance` away."""
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
    """score_bwd(ds, s): the gradient with respect to s, from ds with respect to score(s).

    ALiBi adds a constant to a score, so it changes no gradient.
    """
    CAPPED, CAP = SOFTCAP > 0, np.float32(SOFTCAP)

    @cuda.jit(device=True)
    def score_bwd(ds, s):
        if CAPPED:
            t = math.tanh(s / CAP)
            ds *= float32(1.0) - t * t
        return ds

    return score_bwd


@functools.cache
def make_tile_is_hidden(HAS_MASK):
    """tile_is_hidden(classes, b, head, m_tile, n_tile): of the user's mask, by `tile_classes`."""

    @cuda.jit(device=True)
    def tile_is_hidden(classes, b, head, m_tile, n_tile):
        if not HAS_MASK:
            return False
        b, head = min(b, classes.shape[0] - 1), min(head, classes.shape[1] - 1)
        return classes[b, head, m_tile, n_tile] == HIDDEN

    return tile_is_hidden


def tile_classes(q, k, scores, block_m, block_n):
    """The class of each tile of the user's mask (`expressions.tiles`); a scalar without a mask."""
    mask = scores.expressions.mask
    if mask is None:
        return np.int8(0)
    args = [arrays.to_numpy(x) if arrays.library_of(x) else x for x in scores.expression_args]
    (batch, seqlen_q, num_heads, _), seqlen_k = q.shape, k.shape[1]
    found = tiles.tile_classes(mask, (seqlen_q, seqlen_k), block_m, block_n, args, batch, num_heads)
    return arrays.from_numpy(q, np.ascontiguousarray(found))
