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
    sizes : (seqlen_q, seqlen_k)
        Integers, or two arrays with the sizes of each sequence. The tiles are then those of the
        largest sizes; beyond the end of a sequence they have any class.
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
        HIDDEN, MIXED or WHOLE; an axis has one element if the mask has no b, or no h, and if all
        sequences have the same sizes.
    """
    sizes = [np.reshape(size, (-1, 1, 1, 1)) for size in sizes]
    m0 = np.arange(0, sizes[0].max(initial=0), block_m)[:, None]
    n0 = np.arange(0, sizes[1].max(initial=0), block_n)
    used = nodes.variables(mask)
    shape = (
        max(batch if "b" in used else 1, len(sizes[0])), num_heads if "h" in used else 1,
        m0.size, n0.size,
    )  # fmt: skip
    there = np.ravel((sizes[0] > 0) & (sizes[1] > 0))
    if 0 in shape or not there.any():
        return np.zeros(shape, np.int8)
    some = np.argmax(there)  # its tiles stand for those of a sequence without any
    seqlen_q, seqlen_k = (np.where(there.reshape(-1, 1, 1, 1), x, x[some]) for x in sizes)
    m0, n0 = np.minimum(m0, seqlen_q - 1), np.minimum(n0, seqlen_k - 1)
    start = seqlen_k - seqlen_q if first_position is None else first_position
    variables, arrays = _arguments(arguments)
    variables |= {
        "b": _every(batch, "b" in used, (-1, 1, 1, 1)),
        "h": _every(num_heads, "h" in used, (-1, 1, 1)),
        "m": (m0 + start, np.minimum(m0 + block_m, seqlen_q) - 1 + start),
        "n": (n0, np.minimum(n0 + block_n, seqlen_k) - 1),
    }
    may_not, may = Intervals(variables, arrays).truth(mask)
    classes = np.where(may, np.where(may_not, MIXED, WHOLE), HIDDEN).astype(np.int8)
    return np.broadcast_to(classes, shape)


def _arguments(arguments):
    """The intervals of the numbers among the user's arguments; the arrays, None for a number."""
    variables, arrays = {}, []
    for i, x in enumerate(arguments):
        is_array = getattr(x, "ndim", 0) > 0
        arrays.append(np.asarray(x) if is_array else None)
        if not is_array:
            value = x.item() if isinstance(x, np.generic) else x
            variables[f"arg{i}"] = (not value, value) if isinstance(value, bool) else (value, value)
    return variables, arrays


def _every(size, used, shape):
    """All numbers from 0 on, each alone, or one interval of all of them."""
    if used:
        numbers = np.arange(size).reshape(shape)
        return numbers, numbers
    return 0, max(size - 1, 0)


def runs(classes):
    """The runs of equal classes of each row of tiles, without those of class 0, HIDDEN.

    Parameters
    ----------
    classes : int array of shape (..., n tiles)

    Returns
    -------
    int32 array of shape (..., most runs, 3)
        First tile, tile after the last, class. Unused runs have zeros, and so end at 0.
    """
    *rows, num_tiles = classes.shape
    flat = classes.reshape(-1, num_tiles)
    padded = np.pad(flat, ((0, 0), (1, 1)))
    changes = padded[:, 1:] != padded[:, :-1]
    row, begin = np.nonzero(changes[:, :-1] & (flat != 0))
    _, end = np.nonzero(changes[:, 1:] & (flat != 0))
    counts = np.bincount(row, minlength=len(flat))
    table = np.zeros((len(flat), int(counts.max(initial=0)), 3), np.int32)
    at = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    table[row, at] = np.stack([begin, end + 1, flat[row, begin]], axis=-1)
    return table.reshape(*rows, *table.shape[1:])


def runs_both_ways(classes, sizes, block_m, block_n):
    """The runs of each tile of queries, and of each tile of keys, for a backward kernel to walk.

    A tile beyond the last query or the last key is mixed.

    Parameters
    ----------
    classes : int8 array of shape (batch or 1, num_heads or 1, m tiles, n tiles)
    sizes : (int, int)
        seqlen_q and seqlen_k.
    block_m, block_n : int

    Returns
    -------
    of_queries : int32 array of shape (batch or 1, num_heads or 1, m tiles, most runs, 3)
        As of `runs`, with one run at least, which may be unused.
    of_keys : int32 array of shape (batch or 1, num_heads or 1, n tiles, most runs, 3)
        Runs of tiles of queries.
    """
    classes = classes.copy()
    if sizes[0] % block_m:
        classes[..., -1:, :] = np.minimum(classes[..., -1:, :], MIXED)
    if sizes[1] % block_n:
        classes[..., -1:] = np.minimum(classes[..., -1:], MIXED)
    tables = runs(classes), runs(classes.swapaxes(-1, -2))
    return tuple(x if x.shape[-2] else np.zeros((*x.shape[:-2], 1, 3), np.int32) for x in tables)


def runs_of_warpgroups(classes, seqlen_k, block_n, parts):
    """The runs of a thread block whose warpgroups have rows of their own, for its kernel to walk.

    A thread block loads the tiles that one of its warpgroups sees. A warpgroup skips those before
    its first and after its last; between them a hidden tile is mixed. Each warpgroup has a tile,
    for its loop to begin with. A tile beyond the last key is mixed.

    Parameters
    ----------
    classes : int8 array of shape (batch or 1, num_heads or 1, tiles of queries, n tiles)
        A tile of queries has the rows of one warpgroup.
    seqlen_k, block_n : int
    parts : int
        Warpgroups of a thread block.

    Returns
    -------
    int32 array of shape (batch or 1, num_heads or 1, thread blocks, most runs, 3)
        First tile, tile after the last, classes: warpgroup w has bits 2 w and 2 w + 1. Unused runs
        have zeros.
    """
    *others, num_m_tiles, num_n_tiles = classes.shape
    blocks = -(-num_m_tiles // parts)
    classes = classes.copy()
    not_full = slice(seqlen_k // block_n, None)
    classes[..., not_full] = np.minimum(classes[..., not_full], MIXED)
    padding = [(0, 0)] * len(others) + [(0, blocks * parts - num_m_tiles), (0, 0)]
    of_parts = np.pad(classes, padding).reshape(*others, blocks, parts, num_n_tiles)
    seen = of_parts != HIDDEN
    loaded = seen.any(axis=-2, keepdims=True)
    nothing = ~loaded.any(axis=-1, keepdims=True)
    loaded[..., :1] |= nothing  # a thread block that sees no key loads one tile
    last = num_n_tiles - 1 - np.argmax(loaded[..., ::-1], axis=-1)[..., None]
    alone = ~seen.any(axis=-1, keepdims=True) & (np.arange(num_n_tiles) == last)
    begun, to_end = (np.maximum.accumulate(x, axis=-1) for x in (seen, seen[..., ::-1]))
    between = begun & to_end[..., ::-1] & loaded & ~seen
    of_parts = np.where(alone | between, MIXED, of_parts)
    flags = (of_parts.astype(np.int32) << (2 * np.arange(parts)[:, None])).sum(axis=-2)
    return runs(flags)
