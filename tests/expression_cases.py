"""Masks and scores that a user might write, for the tests of every kernel that takes them."""

import math
from typing import Any, NamedTuple

import numpy as np
from numba import int32, types

from fa_numba import masks
from fa_numba.checks import Mask, check_expressions
from fa_numba.expressions import nodes, tiles
from fa_numba.expressions.interval_source import NoIntervalError
from fa_numba.tensor_core.run_tables import interval_function


class Case(NamedTuple):
    """Functions of `flash_attn`, with arguments for a number of queries, of keys and of heads.

    Attributes
    ----------
    mask, score : callable or None
    mask_args_of, score_args_of : callable
        ``mask_args_of(num_heads, seqlen)`` returns the arguments, arrays of NumPy and numbers.
    sinks : bool
    """

    mask: Any = None
    mask_args_of: Any = lambda num_heads, seqlen: ()
    score: Any = None
    score_args_of: Any = lambda num_heads, seqlen: ()
    sinks: bool = False


def gallery(make):
    """A case of a mask of `fa_numba.masks`, made for a number of heads and keys."""
    return Case(make(1, 64).function, lambda num_heads, seqlen: make(num_heads, seqlen).args)


def documents(seqlen):
    numbers = np.sort(np.random.default_rng(5).integers(0, 4, seqlen)).astype(np.int32)
    return masks.causal & masks.documents(numbers)


def tree(seqlen):
    parents = np.arange(-1, max(seqlen - 8, 0)) // 2
    return masks.tree(parents, 7)


def diffusion(seqlen):
    return masks.block_diffusion(4, max(seqlen // 2, 1))


def buckets(num_heads, seqlen):
    return (np.random.default_rng(6).standard_normal((num_heads, 16)).astype(np.float32),)


def slopes(num_heads, seqlen):
    return (np.linspace(0.1, 0.5, num_heads, dtype=np.float32),)


def widths(num_heads):
    return np.arange(1, num_heads + 1, dtype=np.int32) * 7


def t5(s, b, h, m, n, bias):
    return s + bias[h, min(abs(m - n) // 2, 15)]


def biased(s, b, h, m, n, scales, buckets, of_query, of_key, i):
    """A score that reads arrays by the head, m - n, m and n."""
    return (
        s * scales[h] + buckets[h, min(abs(m - n), 9)] + of_query[b, m] * math.tanh(of_key[n] + i)
    )


CASES = {
    "causal": gallery(lambda *_: masks.causal),
    "a window": gallery(lambda *_: masks.window(9)),
    "prefix": gallery(lambda *_: masks.prefix_lm(12)),
    "documents": gallery(lambda num_heads, seqlen: documents(seqlen)),
    "window and first keys": gallery(lambda *_: masks.window_and_first(8, 4)),
    "dilated": gallery(lambda *_: masks.dilated(3)),
    "block diffusion": gallery(lambda num_heads, seqlen: diffusion(seqlen)),
    "neighbours in 2-D": gallery(lambda *_: masks.neighbours_2d(8, 1)),
    "neighbours in 3-D": gallery(lambda *_: masks.neighbours_3d(3, 5, 1)),
    "a window per head": gallery(lambda num_heads, _: masks.window_per_head(widths(num_heads))),
    "a tree": gallery(lambda num_heads, seqlen: tree(seqlen)),
    "nothing for some rows": Case(lambda b, h, m, n: 0 <= m - n < 9 and m % 5 != 0),
    "sequences differ": Case(lambda b, h, m, n: n <= m + 3 * b),
    "softcap": Case(score=lambda s, b, h, m, n: 5 * math.tanh(s / 5)),
    "ALiBi": Case(score=lambda s, b, h, m, n, a: s - a[h] * abs(m - n), score_args_of=slopes),
    "T5": Case(score=t5, score_args_of=buckets),
    "a score and a mask": Case(
        lambda b, h, m, n, w: n <= m and m - n < w[h],
        lambda num_heads, _: (widths(num_heads),),
        lambda s, b, h, m, n, c: c * math.tanh(s / c) * math.log(m + 2),
        lambda *_: (3.0,),
    ),
    "not monotone": Case(score=lambda s, b, h, m, n: s * s + s),
    "sinks": Case(sinks=True),
    "a softcap and a mask": Case(
        lambda b, h, m, n: n <= m and m % 5 != 0, score=lambda s, b, h, m, n: 5 * math.tanh(s / 5)
    ),
    "sinks and a mask": Case(lambda b, h, m, n: n <= m and m % 5 != 0, sinks=True),
}


def options_of(name, num_heads, seqlen, convert=lambda x: x):
    """The options of `flash_attn` for a case, and those of `fa_numba.reference.attention`.

    `convert` makes an array of another library from one of NumPy.
    """
    case, ours, definition = CASES[name], {}, {}
    for which, function, args_of in (
        ("mask", case.mask, case.mask_args_of),
        ("score", case.score, case.score_args_of),
    ):
        if function is None:
            continue
        args = args_of(num_heads, seqlen)
        ours |= {which: function, f"{which}_args": tuple(
            convert(x) if isinstance(x, np.ndarray) else x for x in args
        )}  # fmt: skip
        definition[which] = lambda *at, function=function, args=args: function(*at, *args)
    if case.sinks:
        sinks = np.random.default_rng(7).standard_normal(num_heads).astype(np.float32)
        ours["sinks"], definition["sinks"] = convert(sinks), sinks
    return ours, definition


def given_of(name):
    """The checked functions of a case, for 4 heads and 500 tokens in float16."""
    q = np.zeros((1, 500, 4, 8), np.float16)
    written, _ = options_of(name, 4, 500)
    names = ("mask", None), ("mask_args", ()), ("score", None), ("score_args", ())
    return check_expressions(q, *(written.get(*x) for x in names), Mask(), None)


def runs_type(expressions, taken=False):
    """The type of `expression_tiles.runs_of`, for kernels that are compiled only.

    With `taken` also that of `run_tables.queue_of`.
    """
    try:
        _, needs = interval_function(
            nodes.TRUE if expressions.mask is None else expressions.mask, int32
        )
    except NoIntervalError:
        num_ranges = 0
    else:
        num_ranges = len(needs.ranged)
    ndims = (5, *taken * (3, 1), *num_ranges * (4,))
    return types.Tuple([types.Array(types.int32, ndim, "C") for ndim in ndims])


def packed_runs(mask, arguments, starts, num_heads, blocks, parts=None):
    """The tables of runs of a packed batch, by those of its sequences (`tiles`).

    Parameters
    ----------
    mask : Node
    starts : (cu_seqlens_q, cu_seqlens_k)
    blocks : (block_m, block_n)
    parts : int, optional
        Then one table, `tiles.runs_of_warpgroups`, else those of `tiles.runs_both_ways`.

    Returns
    -------
    list of int32 arrays of shape (1, num_heads, rows, most runs, 3)
        A row that no sequence has is −1.
    """
    batch, lengths = len(starts[0]) - 1, [np.diff(x) for x in starts]
    sizes = [blocks[0] * (parts or 1)] if parts else blocks
    most = max(-(-x.max() // y) for x, y in zip(lengths, blocks, strict=True))
    tables = [
        np.full((1, num_heads, x[-1] // size + batch, most, 3), -1, np.int32)
        for x, size in zip(starts, sizes)  # noqa: B905 one table with parts
    ]
    for b in range(batch):
        of_one = int(lengths[0][b]), int(lengths[1][b])
        if 0 in of_one:  # a thread block loads one tile
            one_run = (
                0,
                int(parts is not None),
                sum(tiles.MIXED << 2 * w for w in range(parts or 0)),
            )
            found = [np.array([[[[one_run]]]])] * len(tables)
        else:
            classes = tiles.tile_classes(mask, of_one, *blocks, arguments, batch, num_heads)
            classes = classes[b : b + 1] if len(classes) > 1 else classes
            if parts:
                found = [tiles.runs_of_warpgroups(classes, of_one[1], blocks[1], parts)]
            else:
                found = tiles.runs_both_ways(classes, of_one, *blocks)
        for table, x, size, runs in zip(tables, starts, sizes, found):  # noqa: B905
            first = x[b] // size + b
            rows = slice(first, first + -(-int(np.diff(x)[b]) // size))
            table[:, :, rows] = 0
            table[:, :, rows, : runs.shape[3]] = runs
    return tables
