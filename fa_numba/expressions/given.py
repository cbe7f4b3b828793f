"""The mask and score that a call was given, with its causal mask, window, softcap and ALiBi.

All of them become one mask and one score, so a kernel that takes expressions has no other mask.
Numbers become arguments: another window or softcap compiles nothing anew.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fa_numba.expressions import nodes
from fa_numba.expressions.functions import Expressions, S
from fa_numba.expressions.nodes import Node, make
from fa_numba.expressions.trace import trace

H, M, N = (Node("var", (name,), "int") for name in "hmn")
LONGEST = 1 << 29  # a side of a window that sees everything: int32 positions do not overflow


class Given(NamedTuple):
    """What a call was given.

    Attributes
    ----------
    expressions : Expressions
    arguments : tuple of arrays and NumPy scalars
        Those of the mask, then those of the score, then the numbers of the options.
    num_mask_args : int
    """

    expressions: Expressions
    arguments: tuple
    num_mask_args: int


def given(mask, mask_args, score, score_args, options) -> Given:
    """Read the functions of a call.

    Parameters
    ----------
    mask : callable or Node, default=None
        ``mask(b, h, m, n, *mask_args)``: whether the query at position m sees key n.
    score : callable or Node, default=None
        ``score(s, b, h, m, n, *score_args)``: in place of s, after softcap and ALiBi.
    mask_args, score_args : tuple
    options : (causal, window_size, softcap, alibi_slopes)
        As `checks.check_mask` returns them; alibi_slopes an array, or None.

    Returns
    -------
    Given
    """
    arguments = [*mask_args, *score_args]

    def argument(value, kind):
        """The variable of one more argument."""
        arguments.append(value)
        return Node("var", (f"arg{len(arguments) - 1}",), kind)

    causal, (left, right), softcap, slopes = options
    seen = []
    if mask is not None:
        seen.append(_node(mask, "mask", "b h m n", mask_args))
    if causal:
        seen.append(make("le", N, M))
    for side, x, y in ((left, M, N), (right, N, M)):
        if side >= 0:
            most = argument(np.int32(min(side, LONGEST)), "int")
            seen.append(make("le", make("sub", x, y), most))
    s = S
    if softcap > 0:
        cap = argument(np.float32(softcap), "float")
        s = make("mul", cap, make("tanh", make("div", s, cap)))
    if slopes is not None:
        arguments.append(slopes)
        slope = Node("load", (len(arguments) - 1, H), "float")
        s = make("sub", s, make("mul", slope, make("abs", make("sub", M, N))))
    if score is not None:
        of_user = nodes.as_float(_node(score, "score", "s b h m n", score_args))
        s = nodes.replaced(of_user, {"s": s}, len(mask_args))
    one = None
    for x in map(nodes.as_bool, seen):
        one = x if one is None else make("and", one, x)
    expressions = Expressions(one, None if s == S else s)
    return Given(expressions, tuple(map(_scalar, arguments)), len(mask_args))


def _node(function, name, variables, arguments):
    return function if isinstance(function, Node) else trace(function, name, variables, arguments)


def _scalar(x):
    """A number of Python as the type that a kernel computes with; arrays as they are."""
    if isinstance(x, (bool, np.bool_)):
        return np.bool_(x)
    if isinstance(x, (int, np.integer)):
        return np.int32(x)
    return np.float32(x) if isinstance(x, (float, np.floating)) else x
