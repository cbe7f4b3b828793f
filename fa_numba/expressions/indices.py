"""Does every index that a mask or a score can have lie in its array?

By intervals of all positions and keys. An index that is read from another array is not known: its
numbers may be on a GPU.
"""

from __future__ import annotations

import functools

import numpy as np

from fa_numba.expressions import nodes
from fa_numba.expressions.intervals import Intervals


def check_indices(given, batch, num_heads, seqlen_q, seqlen_k):
    """Raise unless all indices are there.

    Parameters
    ----------
    given : Given
    batch, num_heads, seqlen_q, seqlen_k : int
    """
    if min(batch, num_heads, seqlen_q, seqlen_k) > 0:
        shapes = tuple(tuple(x.shape) if np.ndim(x) else x.item() for x in given.arguments)
        _check(given.expressions, given.num_mask_args, shapes, batch, num_heads, seqlen_q, seqlen_k)


@functools.lru_cache(1024)
def _check(expressions, num_mask_args, arguments, batch, num_heads, seqlen_q, seqlen_k):
    variables = {
        "b": (0, batch - 1),
        "h": (0, num_heads - 1),
        "m": (seqlen_k - seqlen_q, seqlen_k - 1),
        "n": (0, seqlen_k - 1),
        "s": (-np.inf, np.inf),
    }
    for i, x in enumerate(arguments):
        if not isinstance(x, tuple):
            variables[f"arg{i}"] = (not x, x) if isinstance(x, bool) else (x, x)
    of_mask, of_score = ("mask", 0), ("score", num_mask_args)
    for (name, first), expression in zip((of_mask, of_score), expressions, strict=True):
        intervals = Intervals(variables, name=name, first=first)
        for node in nodes.walk(expression) if expression is not None else ():
            if node.op != "load":
                continue
            shape, indices = arguments[node.args[0]], nodes.children(node)
            if not any(x.op == "load" for index in indices for x in nodes.walk(index)):
                intervals.require_indices(node, shape, [intervals.of(x) for x in indices])
