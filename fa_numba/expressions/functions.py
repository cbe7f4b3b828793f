"""An expression as a device function, for Numba's compiler and for the CPU engine."""

from __future__ import annotations

import functools
import hashlib
import linecache
import math
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, int32

from fa_numba.expressions.derivative import S, derivative
from fa_numba.expressions.nodes import TRUE, Node
from fa_numba.expressions.source import source_of


class Expressions(NamedTuple):
    """The mask and the score of a call, None without one; the key of all that is compiled."""

    mask: Node | None
    score: Node | None

    @property
    def changes_gradients(self) -> bool:
        """Whether the derivative of the score by s is another number than 1."""
        return self.score is not None and derivative(self.score) != Node("const", (1.0,), "float")


NO_EXPRESSIONS = Expressions(None, None)


class Functions(NamedTuple):
    """Device functions of one call's `Expressions`: m is a position, integers are int32.

    Attributes
    ----------
    sees(b, h, m, n, args)
        Whether the query at position m sees key n.
    score(s, b, h, m, n, args)
        The score in place of s, which is softmax_scale · q·k.
    slope(s, b, h, m, n, args)
        The derivative of score by s.
    """

    sees: Any
    score: Any
    slope: Any


@cuda.jit(device=True, forceinline=True, fastmath=True)
def tanh(x):
    """To an error of 1e-7, in two instructions of the special function unit."""
    return float32(1) - float32(2) / (math.exp(float32(2) * x) + float32(1))


@cuda.jit(device=True, forceinline=True, fastmath=True)
def tanh_of_small(x):
    """For |x| up to 0.4, to a relative error of 6e-6."""
    square = x * x
    return x * (TANH[0] + square * (TANH[1] + square * TANH[2]))


# tanh(x) / x in powers of x², for |x| <= 0.4: the least relative error of three terms.
TANH = tuple(map(np.float32, (0.99999375, -0.33262579, 0.12127787)))
FAR = 2e30  # in place of infinity, which fastmath excludes; tensor_core.fragments.MASKED is −FAR
NAMES = {
    "int32": int32,
    "float32": float32,
    "math": math,
    "tanh": tanh,
    "tanh_of_small": tanh_of_small,
}
# Changes of the text of a function that is compiled with fastmath, as all of a kernel on tensor
# cores: a score of −inf is a number far below any other.
FAST = {"math.tanh(": "tanh(", "math.inf": f"{FAR}"}
SMALL_TANH = FAST | {"math.tanh(": "tanh_of_small("}
SCORE_VARIABLES = "s b h m n"


@functools.cache
def device_functions(expressions: Expressions, fast: bool = False) -> Functions:
    """The `Functions` of a call's expressions; `args` is the tuple of its arguments.

    With `fast` they are changed by FAST and compiled with fastmath.
    """
    mask, score = expressions
    score, changes = S if score is None else score, FAST if fast else None
    return Functions(
        device_function(TRUE if mask is None else mask, "sees", "b h m n", changes),
        device_function(score, "score", SCORE_VARIABLES, changes),
        device_function(derivative(score), "slope", SCORE_VARIABLES, changes),
    )


def device_function(node, name, variables, changes=None):
    """An expression as a device function; with changes to its text, compiled with fastmath."""
    function = python_function(node, name, variables, changes)
    return cuda.jit(device=True, forceinline=True, fastmath=changes is not None)(function)


def device_function_of(text, name, namespace):
    """The device function that a text defines."""
    return cuda.jit(device=True, forceinline=True)(function_of(text, name, namespace))


def python_function(node, name, variables, changes=None):
    """The function of `source_of`, with changes to its text."""
    text = source_of(node, name, variables)
    for old, new in (changes or {}).items():
        text = text.replace(old, new)
    return function_of(text, name, NAMES)


def function_of(text, name, namespace):
    """The function that a text defines; its attribute `source_text` is its meaning in any process.

    The names in `namespace` mean the same in every text.
    """
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    file = f"<{name} of fa_numba.expressions, {digest}>"
    # The CPU engine, tracebacks and debuggers read a function's lines here.
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    namespace = dict(namespace)
    exec(compile(text, file, "exec"), namespace)
    function = namespace[name]
    function.__module__, function.source_text = __name__, text
    return function
