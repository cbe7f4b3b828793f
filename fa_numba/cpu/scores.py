"""Scores of a tile: Sᵀ = K Qᵀ, then scale, softcap, ALiBi and mask, as the options ask.

S is transposed: the queries of a panel lie along vectors, WIDTH of them, and the keys along rows.
Where no option asks for more than a positive scale, it is left to the caller, who multiplies the
scores by a factor anyway. Only tiles that some query does not see whole are masked. A user's mask
and score, which have the options in them, are in `expressions`.
"""

import numpy as np

from fa_numba.constants import NEG_INF, ONE, ZERO
from fa_numba.cpu import expressions, tiles, vectors
from fa_numba.cpu.exponential import tanh
from fa_numba.cpu.tiles import LONGEST_SUM, ROW, WIDTH, product
from fa_numba.cpu.vectors import (
    COLUMNS,
    LANES,
    ROWS,
    absolute,
    broadcast,
    inner,
    load,
    store,
    where_less,
    zeros,
)


@inner
def scores(w, k, qt, st, num_keys, head_dim, ahead, left, right, mod, slope_at, user, at):
    """Sᵀ = K Qᵀ of a tile of keys and a panel of queries, with all that the options ask for.

    Parameters
    ----------
    w : float32 array
        The workspace; k, qt and st say where in it the tiles begin.
    num_keys, head_dim : int
    ahead : int
        How far key 0 of the tile lies beyond the position of query 0 of the panel.
    left, right : int
        Query m sees the keys n with −left <= ahead + n − m <= right.
    mod : (softmax_scale, softcap, slope of ALiBi)
    slope_at : int
        Where the derivative of each score is written; −1: nowhere.
    user, at : tuples
        As for `forward.forward`, and for `expressions.modified`.

    Returns
    -------
    float32
        The factor, greater than 0, that what was written is still to be multiplied by.
    """
    rows = tiles.round_up(num_keys, ROWS)
    scale, softcap, slope = mod
    multiply(w, k, qt, st, rows, head_dim)
    if user.given:
        return expressions.modified(w, st, rows, num_keys, scale, slope_at, user, at)
    if softcap or slope or scale <= ZERO:
        modify(w, st, rows, ahead, scale, softcap, slope, slope_at)
        scale = ONE
    if num_keys < rows or ahead + num_keys - 1 > right or ahead - (WIDTH - 1) < -left:
        mask(w, st, num_keys, rows, ahead, left, right)
    return scale


@inner
def multiply(w, k, qt, st, rows, head_dim):
    """Sᵀ = K Qᵀ, or dPᵀ = V dOᵀ, summed by parts: one sum of 512 terms would lose more digits."""
    for n in range(0, rows, ROWS):
        depth = min(head_dim, LONGEST_SUM)
        acc = product(zeros(), w, k + n * ROW, ROW, 1, w, qt, WIDTH, depth)
        for i in range(ROWS):
            for j in range(COLUMNS):
                store(w, st + (n + i) * WIDTH + j * LANES, acc[i * COLUMNS + j])
        if depth < head_dim:
            a, b = k + n * ROW + depth, qt + depth * WIDTH
            acc = product(zeros(), w, a, ROW, 1, w, b, WIDTH, head_dim - depth)
            for i in range(ROWS):
                for j in range(COLUMNS):
                    at = st + (n + i) * WIDTH + j * LANES
                    store(w, at, load(w, at) + acc[i * COLUMNS + j])


@inner
def modify(w, st, rows, ahead, scale, softcap, slope, slope_at):
    """Scale, softcap and ALiBi."""
    cap, per_cap = np.float32(softcap), np.float32(scale / softcap) if softcap else ZERO
    for n in range(rows):
        for m in range(0, WIDTH, LANES):
            s = load(w, st + n * WIDTH + m)
            if softcap:
                t = tanh(s * broadcast(per_cap))
                s = t * broadcast(cap)
                if slope_at >= 0:
                    store(w, slope_at + n * WIDTH + m, broadcast(ONE) - t * t)
            else:
                s = s * broadcast(scale)
            if slope:
                distance = broadcast(np.float32(ahead + n - m)) - vectors.lane_numbers()
                s = s - absolute(distance) * broadcast(slope)
            store(w, st + n * WIDTH + m, s)


@inner
def mask(w, st, num_keys, rows, ahead, left, right):
    """−∞ for keys that a query does not see, and for those past the end.

    Key n is seen by the queries from ahead + n − right to ahead + n + left.
    """
    for n in range(rows):
        first = min(max(ahead + n - right, 0), WIDTH) if n < num_keys else WIDTH
        stop = max(min(ahead + n + left + 1, WIDTH), first)
        if first == 0 and stop == WIDTH:
            continue
        low, high = broadcast(np.float32(first)), broadcast(np.float32(stop))
        for m in range(0, WIDTH, LANES):
            query, at = vectors.lane_numbers() + broadcast(np.float32(m)), st + n * WIDTH + m
            x = where_less(query, low, broadcast(NEG_INF), load(w, at))
            store(w, at, where_less(query, high, x, broadcast(NEG_INF)))
