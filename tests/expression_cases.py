"""Masks and scores that a user might write, for the tests of every kernel that takes them."""

import math
from typing import Any, NamedTuple

import numpy as np


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


def documents(num_heads, seqlen):
    return (np.sort(np.random.default_rng(5).integers(0, 4, seqlen)).astype(np.int32),)


def buckets(num_heads, seqlen):
    return (np.random.default_rng(6).standard_normal((num_heads, 16)).astype(np.float32),)


def slopes(num_heads, seqlen):
    return (np.linspace(0.1, 0.5, num_heads, dtype=np.float32),)


def widths(num_heads, seqlen):
    return (np.arange(1, num_heads + 1, dtype=np.int32) * 7,)


def t5(s, b, h, m, n, bias):
    return s + bias[h, min(abs(m - n) // 2, 15)]


CASES = {
    "causal": Case(lambda b, h, m, n: n <= m),
    "a window": Case(lambda b, h, m, n, w: 0 <= m - n < w, lambda *_: (9,)),
    "prefix": Case(lambda b, h, m, n: n <= m or n < 12),
    "documents": Case(lambda b, h, m, n, doc: doc[m] == doc[n] and n <= m, documents),
    "window and first keys": Case(lambda b, h, m, n: n <= m and (m - n < 8 or n < 4)),
    "dilated": Case(lambda b, h, m, n: n <= m and (m - n) % 3 == 0),
    "blocks": Case(lambda b, h, m, n: n // 16 <= m // 16),
    "neighbours in 2-D": Case(
        lambda b, h, m, n: abs(m // 8 - n // 8) <= 1 and abs(m % 8 - n % 8) <= 1
    ),
    "a window per head": Case(lambda b, h, m, n, w: n <= m and m - n < w[h], widths),
    "nothing for some rows": Case(lambda b, h, m, n: n <= m and m % 5 != 0),
    "sequences differ": Case(lambda b, h, m, n: n <= m + 3 * b),
    "softcap": Case(score=lambda s, b, h, m, n: 5 * math.tanh(s / 5)),
    "ALiBi": Case(score=lambda s, b, h, m, n, a: s - a[h] * abs(m - n), score_args_of=slopes),
    "T5": Case(score=t5, score_args_of=buckets),
    "a score and a mask": Case(
        lambda b, h, m, n, w: n <= m and m - n < w[h],
        widths,
        lambda s, b, h, m, n, c: c * math.tanh(s / c) * math.log(m + 2),
        lambda *_: (3.0,),
    ),
    "not monotone": Case(score=lambda s, b, h, m, n: s * s + s),
    "sinks": Case(sinks=True),
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
