"""The text of a function that computes an expression, for Numba and for the CPU engine.

All integers are int32: Numba adds two of them to an int64, which a GPU computes in two
instructions, so that each result is cast back. ``//`` and ``%`` of a power of two are a shift and
a mask, which is exact for negative numbers too. Nothing branches: ``and`` and ``or`` are ``&`` and
``|`` of both sides, and a condition chooses between two values that are both computed.
"""

from __future__ import annotations

from fa_numba.expressions import nodes
from fa_numba.expressions.nodes import SIGNS

INT = ("add", "sub", "mul", "and", "or", "xor", "lshift", "rshift", "floordiv", "mod")


def source_of(node, name: str, variables: str) -> str:
    """The text of ``def name(*variables, args)`` that returns an expression.

    Parameters
    ----------
    node : Node
    name : str
    variables : str
        Their names in order, "b h m n". The last parameter is the tuple of the user's arguments.

    Returns
    -------
    str
        It uses the names int32, float32, math and min, max, abs.
    """
    uses = {}
    for x in nodes.walk(node):
        for y in nodes.children(x):
            uses[y] = uses.get(y, 0) + 1
    lines, texts = [f"def {name}({', '.join([*variables.split(), 'args'])}):"], {}
    for x in nodes.walk(node):
        text = _text(x, texts)
        if uses.get(x, 0) > 1 and x.op not in ("const", "var"):
            lines.append(f"    x{len(lines)} = {text}")
            text = f"x{len(lines) - 1}"
        texts[x] = text
    return "\n".join([*lines, f"    return {texts[node]}", ""])


def _text(x, texts):
    if x.op == "const":
        (value,) = x.args
        if x.kind == "bool":
            return str(value)
        if x.kind == "int":
            return f"int32({value})"
        return f"float32({value!r})" if value == value and abs(value) != float("inf") else (
            f"float32({'-' if value < 0 else ''}math.inf)"
        )  # fmt: skip
    if x.op == "var":
        return nodes.described(x)
    args = [texts[y] for y in nodes.children(x)]
    if x.op == "load":
        text = f"args[{x.args[0]}][{', '.join(args)}]"
        return f"{x.kind}32({text})" if x.kind != "bool" else text
    if x.op == "where":
        return f"({args[1]} if {args[0]} else {args[2]})"
    power = _power_of_two(x)
    if power is not None:
        by = f">> int32({power})" if x.op == "floordiv" else f"& int32({(1 << power) - 1})"
        return f"int32({args[0]} {by})"
    if x.op in SIGNS:
        text = f"({args[0]} {SIGNS[x.op]} {args[1]})"
        return f"int32{text}" if x.op in INT and x.kind == "int" else text
    if x.op == "neg":
        return f"int32(-{args[0]})" if x.kind == "int" else f"(-{args[0]})"
    if x.op == "not":
        return f"(not {args[0]})"
    if x.op == "float":
        return f"float32({args[0]})"
    if x.op in ("abs", "min", "max"):
        text = f"{x.op}({', '.join(args)})"
        return f"int32({text})" if x.kind == "int" else text
    return f"math.{x.op}({', '.join(args)})"


def _power_of_two(x):
    if x.op not in ("floordiv", "mod") or x.args[1].op != "const":
        return None
    (divisor,) = x.args[1].args
    return divisor.bit_length() - 1 if divisor > 0 and divisor & (divisor - 1) == 0 else None
