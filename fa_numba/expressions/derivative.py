"""The derivative of a score by s or by a number in an array, another expression.

Rules of calculus, node by node. Where a function has a kink (abs, min, max, a condition) it is the
derivative of the branch that is taken; integers and conditions have none.
"""

from __future__ import annotations

from fa_numba.expressions import nodes
from fa_numba.expressions.nodes import Node, const, make

S = Node("var", ("s",), "float")
ZERO, ONE = const(0.0), const(1.0)


def derivative(score: Node, by: Node = S) -> Node:
    """d score / d s, or by a "load" of the score."""
    score, found = nodes.as_float(score), {}
    for x in nodes.walk(score):
        found[x] = ONE if x == by else _of(x, [found[y] for y in nodes.children(x)])
    return found[score]


def _of(node, d):
    if node.kind != "float" or node.op in ("const", "var", "load") or set(d) <= {ZERO}:
        return ZERO
    x, *others = node.args
    if node.op == "where":
        return nodes.where(x, d[1], d[2])
    rule = _RULES[node.op]
    return rule(node, d, x, *others)


def _product(x, y):
    return ZERO if ZERO in (x, y) else make("mul", x, y)


def _sum(x, y, op="add"):
    if y == ZERO:
        return x
    return make("neg", y) if x == ZERO and op == "sub" else y if x == ZERO else make(op, x, y)


def _mul(node, d, x, y):
    return _sum(_product(d[0], y), _product(x, d[1]))


def _div(node, d, x, y):
    quotient = ZERO if d[0] == ZERO else make("div", d[0], y)
    return _sum(quotient, ZERO if d[1] == ZERO else make("div", _product(node, d[1]), y), "sub")


def _tanh(node, d, x):
    return _product(make("sub", ONE, make("mul", node, node)), d[0])


_RULES = {
    "add": lambda node, d, x, y: _sum(*d),
    "sub": lambda node, d, x, y: _sum(*d, "sub"),
    "mul": _mul,
    "div": _div,
    "neg": lambda node, d, x: make("neg", d[0]),
    "abs": lambda node, d, x: _product(make("copysign", ONE, x), d[0]),
    "min": lambda node, d, x, y: nodes.where(make("le", x, y), *d),
    "max": lambda node, d, x, y: nodes.where(make("le", y, x), *d),
    "exp": lambda node, d, x: _product(node, d[0]),
    "log": lambda node, d, x: make("div", d[0], x),
    "sqrt": lambda node, d, x: make("div", d[0], make("mul", const(2.0), node)),
    "tanh": _tanh,
    "copysign": lambda node, d, x, y: _product(make("copysign", ONE, make("mul", x, y)), d[0]),
    "float": lambda node, d, x: ZERO,
}  # fmt: skip
