"""A user's mask and score in a step of a ring, where a kernel has some of the queries and keys.

A kernel numbers the queries and keys that it is given, and a user's function reads positions in the
whole sequence. Both spans of a part are evenly spaced, so the two numbers differ by a factor, which
is the layout's, and by a start, which is the part's:

    position = start + step · number

The starts are arguments, behind the user's own: all parts run the same machine code, and errors
name the arguments as the user numbers them.
"""

import functools
from typing import Any, NamedTuple

import numpy as np

from fa_numba import checks
from fa_numba.expressions.given import LONGEST
from fa_numba.expressions.mask_function import written
from fa_numba.expressions.source import source_of

NO_OPTIONS = checks.Mask()


class Written(NamedTuple):
    """The functions of a call, checked; `facts` and `arrays` are what all ranks must agree on."""

    mask: Any
    mask_args: tuple
    score: Any
    score_args: tuple
    facts: dict
    arrays: dict

    @property
    def is_empty(self):
        """Whether there is neither a mask nor a score."""
        return self.mask is None and self.score is None


def check_written(q, mask, mask_args, score, score_args, alibi_slopes=None) -> Written:
    """The functions of a call; alibi_slopes become a part of the score."""
    given = checks.check_expressions(q, mask, mask_args, score, score_args, NO_OPTIONS, None)
    facts, equal = {"mask": "None", "score": "None"}, {}
    if given is not None:
        for name, node, variables in zip(facts, given.expressions, ("bhmn", "sbhmn"), strict=True):
            if node is not None:
                facts[name] = source_of(node, name, " ".join(variables))
        facts["numbers"] = tuple(x.item() for x in given.arguments if not np.ndim(x))
        equal = {
            f"an argument of mask or score, {i}": x
            for i, x in enumerate(given.arguments)
            if np.ndim(x)
        }
    mask, mask_args = written(mask, tuple(mask_args))
    score_args = tuple(score_args)
    if alibi_slopes is not None:
        score, score_args = _with_alibi(score), (*score_args, alibi_slopes)
    return Written(mask, tuple(mask_args), score, score_args, facts, equal)


def placed(functions, part, first_head=0, masked=False) -> dict:
    """The keyword arguments of a kernel's call for a part; head 0 of the call is first_head.

    With `masked`, the call over ranks is causal or has a window: then every part has one, which may
    be as long as all tokens. Its sides are arguments, so the parts run the same machine code.
    """
    if functions.is_empty:
        return part.mask
    first_position = part.first_query - part.step * part.corner
    starts = part.sequence, first_head, first_position, part.first_key
    starts, options = tuple(map(np.int32, starts)), {}
    if masked:
        left, right = part.window_size
        right = 0 if part.causal else right
        options["window_size"] = tuple(side if side >= 0 else LONGEST for side in (left, right))
    if functions.mask is not None:
        options["mask"] = _placed_mask(functions.mask, part.step)
        options["mask_args"] = (*functions.mask_args, *starts)
    if functions.score is not None:
        options["score"] = _placed_score(functions.score, part.step)
        options["score_args"] = (*functions.score_args, *starts)
    return options


def _position(b, h, m, n, step, args):
    """Sequence, head and positions in the whole batch, and the user's arguments."""
    *args, b_start, h_start, m_start, n_start = args
    return b + b_start, h + h_start, m_start + step * m, n_start + step * n, *args


@functools.lru_cache(256)
def _placed_mask(mask, step):
    return lambda b, h, m, n, *args: mask(*_position(b, h, m, n, step, args))


@functools.lru_cache(256)
def _placed_score(score, step):
    return lambda s, b, h, m, n, *args: score(s, *_position(b, h, m, n, step, args))


@functools.lru_cache(256)
def _with_alibi(score):
    def of(s, b, h, m, n, *args):
        s = s - args[-1][h] * abs(m - n)
        return s if score is None else score(s, b, h, m, n, *args[:-1])

    return of
