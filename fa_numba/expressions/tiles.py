"""The class of each tile of a mask, hidden, mixed or whole, and the runs of equal classes.

No pair of a query and a key is looked at: `intervals` says for a whole tile whether the mask may be
true in it, and whether it may be false. A row of tiles has few runs, so a kernel walks a short list
of them: (first tile, tile after the last one, whether each score of it needs the mask).
"""

from __future__ import annotations

import numpy as np

from fa_numba.expressions import nodes
from fa_numba.expressions.intervals import Intervals

HIDDEN, MIXED, WHOLE = 0, 1, 2


def tile_classes(
    mask, sizes, block_m, block_n, arguments=(), batch=1, num_heads=1, *, first_position=None
):
    """The classes of the tiles of a mask.

    Parameters
    ----------
    mask : Node
        Of `trace.trace`.
    sizes : (int, int)
        seqlen_q and seqlen_k.
    block_m, block_n : int
        Rows and columns of a tile.
    arguments : sequence of arrays and numbers
        The mask's.
    batch, num_heads : int
    first_position : int, optional
        The position of the first query; by default that which puts the last query at the last key.

    Returns
    -------
    int8 array of shape (batch or 1, num_heads or 1, m tiles, n tiles)
        HIDDEN, MIXED or WHOLE; an axis has one element if the mask has no b, or no h.
    """
    seqlen_q, seqlen_k = sizes
    start = seqlen_k - seqlen_q if first_position is None else first_position
    m0 = np.arange(0, seqlen_q, block_m)[:, None]
    n0 = np.arange(0, seqlen_k, block_n)
    used = nodes.variables(mask)
    variables = {
        "b": _every(batch, "b" in used, (-1, 1, 1, 1)),
        "h": _every(num_heads, "h" in used, (-1, 1, 1)),
        "m": (m0 + start, np.minimum(m0 + block_m, seqlen_q) - 1 + start),
        "n": (n0, np.minimum(n0 + block_n, seqlen_k) - 1),
    }
    arrays = []
    for i, x in enumerate(arguments):
        is_array = getattr(x, "ndim", 0) > 0
        arrays.append(np.asarray(x) if is_array else None)
        if not is_array:
            value = x.item() if isinstance(x, np.generic) else x
            variables[f"arg{i}"] = (not value, value) if isinstance(value, bool) else (value, value)
    may_not, may = Intervals(variables, arrays).truth(mask)
    shape = np.broadcast_shapes(*(np.shape(variables[x][0]) for x in "bhmn"), (1, 1, 1, 1))
    classes = np.where(may, np.where(may_not, MIXED, WHOLE), HIDDEN).astype(np.int8)
    return np.broadcast_to(classes, shape)


def _every(size, used, shape):
    """All numbers from 0 on, each alone, or one interval of all of them."""
    if used:
        numbers = np.arange(size).reshape(shape)
        return numbers, numbers
    return 0, max(size - 1, 0)


def runs(classes):
    """The runs of visible tiles of each row of tiles.

    Parameters
    ----------
    classes : int8 array of shape (..., n tiles)

    Returns
    -------
    table : int32 array of shape (..., most runs, 3)
        First tile, tile after the last, 1 if each score needs the mask, else 0. Unused runs have
        zeros.
    counts : int32 array of shape (...)
    """
    *rows, num_tiles = classes.shape
    flat = classes.reshape(-1, num_tiles)
    padded = np.pad(flat, ((0, 0), (1, 1)), constant_values=HIDDEN)
    changes = padded[:, 1:] != padded[:, :-1]
    row, begin = np.nonzero(changes[:, :-1] & (flat != HIDDEN))
    ended, end = np.nonzero(changes[:, 1:] & (flat != HIDDEN))
    counts = np.bincount(row, minlength=len(flat)).astype(np.int32)
    most = int(counts.max(initial=0))
    table = np.zeros((len(flat), most, 3), np.int32)
    at = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    table[row, at] = np.stack([begin, end + 1, flat[row, begin] == MIXED], axis=-1)
    return table.reshape(*rows, most, 3), counts.reshape(rows)
