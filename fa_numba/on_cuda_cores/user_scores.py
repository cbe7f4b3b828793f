"""The user's mask and score in kernels whose threads have tiles of scores in registers.

A tile has rows and keys that do not exist, past the end. The user's function reads arrays by m and
n, so for these it is called with the last position and the last key, without a branch; the kernel
discards its value. It is called only in tiles that a mask leaves mixed, or where there is a score.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, int32

from fa_numba.constants import NEG_INF
from fa_numba.expressions.functions import device_functions
from fa_numba.expressions.tiles import MIXED, WHOLE


class UserScores(NamedTuple):
    """Device functions of a call's `Expressions`; m is a position among the keys.

    Attributes
    ----------
    class_of(classes, b, head, m_tile, n_tile)
        HIDDEN, MIXED or WHOLE: of the user's mask in a tile.
    modified(s, b, head, m, n, seqlen_k, tile_class, args)
        The user's score; −inf where the mask hides the key.
    slope(s, b, head, m, n, seqlen_k, args)
        The derivative of the score by s.
    """

    class_of: Any
    modified: Any
    slope: Any


@functools.cache
def make_user_scores(EXPRESSIONS):
    """The `UserScores` of a call."""
    sees, score, slope_of_score = device_functions(EXPRESSIONS)
    MASK = EXPRESSIONS.mask is not None

    @cuda.jit(device=True, forceinline=True)
    def class_of(classes, b, head, m_tile, n_tile):
        if not MASK:
            return WHOLE
        b, head = min(b, classes.shape[0] - 1), min(head, classes.shape[1] - 1)
        return int32(classes[b, head, m_tile, n_tile])

    @cuda.jit(device=True, forceinline=True)
    def modified(s, b, head, m, n, seqlen_k, tile_class, args):
        last = int32(seqlen_k - 1)
        m, n = min(int32(m), last), min(int32(n), last)
        s = score(s, b, head, m, n, args)
        if MASK and tile_class == MIXED:
            s = s if sees(b, head, m, n, args) else NEG_INF
        return s

    @cuda.jit(device=True, forceinline=True)
    def slope(s, b, head, m, n, seqlen_k, args):
        last = int32(seqlen_k - 1)
        m, n = min(int32(m), last), min(int32(n), last)
        return slope_of_score(s, b, head, m, n, args)

    return UserScores(class_of, modified, slope)
