"""A mask or a score that options of the kernels say too: then no kernel needs the functions.

``n <= m and m - n < 512`` is a window, ``30 * tanh(s / 30)`` a softcap. With the option nothing is
compiled for the function, windows leave out halves of tiles, and a softcap is a part of the
exponent.
"""

from __future__ import annotations

from fa_numba.expressions.nodes import TRUE, Node, make

NEARLY = 1e-6  # relative; of two numbers that are equal in float32


def window_of(mask: Node | None, arguments) -> tuple | None:
    """The (left, right) of ``window_size`` that says the same; None if there is none.

    Parameters
    ----------
    mask : Node or None
    arguments : sequence of arrays and numbers
        The mask's.
    """
    sides, waiting = [-1, -1], [] if mask is None else [mask]
    while waiting:
        node = waiting.pop()
        if node.op == "and" and node.kind == "bool":
            waiting += node.args
            continue
        if node == TRUE:
            continue
        if node.op not in ("le", "lt"):
            return None
        x, y = node.args
        for low in (x.args[0], make("neg", x.args[0])) if x.op == "abs" else (x,):
            of_m, of_n, more = _linear(make("sub", y, low), arguments) or (0, 0, 0)
            more -= node.op == "lt"
            if (of_m, of_n) not in ((1, -1), (-1, 1)) or more < 0:
                return None
            side = int(of_m > 0)  # n <= m + more, or m <= n + more
            sides[side] = more if sides[side] < 0 else min(sides[side], more)
    return tuple(sides)


def _linear(node, arguments):
    """x, y and z of an integer that is x m + y n + z; None of any other."""
    if node.kind != "int":
        return None
    if node.op == "const":
        return 0, 0, node.args[0]
    if node.op == "var":
        (name,) = node.args
        if name.startswith("arg"):
            return 0, 0, int(arguments[int(name[3:])])
        return {"m": (1, 0, 0), "n": (0, 1, 0)}.get(name)
    if node.op not in ("add", "sub", "neg"):
        return None
    parts = [_linear(x, arguments) for x in node.args]
    if None in parts:
        return None
    sign = 1 if node.op == "add" else -1
    if node.op == "neg":
        parts = [(0, 0, 0), *parts]
    return tuple(x + sign * y for x, y in zip(*parts, strict=True))


def softcap_of(score: Node | None) -> float | None:
    """The c of ``c * tanh(s / c)``, 0 without a score; None of any other."""
    if score is None:
        return 0.0
    if score.op != "mul":
        return None
    for cap, tanh in (score.args, score.args[::-1]):
        if cap.op != "const" or tanh.op != "tanh" or not 0 < cap.args[0] < float("inf"):
            continue
        (angle,), (c,) = tanh.args, cap.args
        if angle.op not in ("mul", "div") or len(angle.args) != 2:
            continue
        for s, factor in (angle.args, angle.args[::-1] if angle.op == "mul" else angle.args):
            if s == Node("var", ("s",), "float") and factor.op == "const" and factor.args[0]:
                by = factor.args[0] if angle.op == "mul" else 1 / factor.args[0]
                if abs(c * by - 1) <= NEARLY:
                    return c
    return None
