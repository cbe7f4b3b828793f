"""Expressions of one mask or score, as trees, and the folding of constants.

A node is a named tuple ``(op, args, kind)``. It has no arrays and no addresses, so equal functions
give equal nodes: a node is the key of everything that is compiled for it.

kind   "bool", "int" (int32 on the GPU) or "float" (float32 there)
op     "const"  args = (value,)
       "var"    args = (name,): b, h, m, n or s; or a number of the user's, "arg0", "arg1", …
       "load"   args = (position of the array, *indices)
       "where"  args = (condition, if true, if false)
       others   the operators of `RULES`
"""

from __future__ import annotations

import math
import operator
from typing import NamedTuple


class Node(NamedTuple):
    """An expression: see the top of this file."""

    op: str
    args: tuple
    kind: str


def const(value) -> Node:
    """The node of a number or a truth value."""
    if isinstance(value, bool):
        return Node("const", (value,), "bool")
    if isinstance(value, int):
        return Node("const", (value,), "int")
    if not value and math.copysign(1, value) < 0:  # -0.0 is equal to 0.0, and another number
        return Node("neg", (const(0.0),), "float")
    return Node("const", (float(value),), "float")


def is_large(x: Node) -> bool:
    """Whether it is an integer that 32 bits do not hold."""
    return x.op == "const" and x.kind == "int" and not -(2**31) <= x.args[0] < 2**31


TRUE, FALSE = const(True), const(False)
COMPARISONS = ("lt", "le", "eq", "ne")
# The value of an operator for numbers of Python, which are those of the GPU as far as they fit.
RULES = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "neg": operator.neg,
    "abs": abs,
    "min": min,
    "max": max,
    "and": operator.and_,  # of truth values, and of the bits of integers
    "or": operator.or_,
    "xor": operator.xor,
    "not": operator.not_,
    "lshift": operator.lshift,
    "rshift": operator.rshift,
    "lt": operator.lt,
    "le": operator.le,
    "eq": operator.eq,
    "ne": operator.ne,
    "float": float,
    "exp": math.exp,
    "log": math.log,
    "sqrt": math.sqrt,
    "tanh": math.tanh,
    "copysign": math.copysign,
}
OF_FLOATS = ("div", "exp", "log", "sqrt", "tanh", "copysign", "float")


def make(op: str, *args: Node) -> Node:
    """The node of an operator; a constant where all its arguments are."""
    if op in OF_FLOATS and op != "float":
        args = tuple(map(as_float, args))
    elif op not in ("not", "and", "or", "xor"):
        args = tuple(as_number(x) for x in args)
        if any(x.kind == "float" for x in args):
            args = tuple(map(as_float, args))
    if all(x.op == "const" for x in args):
        return const(RULES[op](*(x.args[0] for x in args)))
    return _simpler(op, args) or _cancelled(op, args) or Node(op, args, _kind(op, args))


def _kind(op, args):
    if op in COMPARISONS or op == "not":
        return "bool"
    return "float" if op in OF_FLOATS else args[0].kind


def _simpler(op, args):
    """A node with the same value that is there already, or None."""
    if op == "not":
        (x,) = args
        opposite = {"lt": "le", "eq": "ne", "ne": "eq"}.get(x.op)
        if x.op == "not":
            return x.args[0]
        if opposite == "le" and x.args[0].kind == "int":  # not of NaN, which has no order
            return Node("le", x.args[::-1], "bool")
        if x.op == "le" and x.args[0].kind == "int":
            return Node("lt", x.args[::-1], "bool")
        return Node(opposite, x.args, "bool") if opposite in ("eq", "ne") else None
    if op in ("and", "or") and args[0].kind == "bool":
        decides, x, y = const(op == "or"), *args
        if decides in args or (op == "and" and x == make("not", y) and x.op != "not"):
            return decides if decides in args else None
        neutral = make("not", decides)
        return y if x == neutral else x if y in (neutral, x) else None
    if op in ("float", "abs", "neg"):
        return None
    x, y = (*args, None)[:2]
    zero, one = (const(type_of[x.kind](i)) for i in (0, 1)) if x.kind != "bool" else (None, None)
    if op == "add":
        return y if x == zero else x if y == zero else None
    if op == "sub" and y == zero:
        return x
    if op == "mul":
        if zero in args and x.kind == "int":
            return zero
        return y if x == one else x if y == one else None
    if op in ("div", "floordiv") and y == one:
        return x
    return None


def _cancelled(op, args):
    """Sums and comparisons of integers that have a term in common, with the term once; or None.

    For intervals a number that occurs twice is two numbers: m - n + 3 < m is maybe, 3 < n is not.
    """
    if op not in ("add", "sub", "lt", "le", "eq", "ne") or any(x.kind != "int" for x in args):
        return None
    (x, by_x), (y, by_y) = (_terms(x) for x in args)
    if not x.keys() & y.keys():
        return None
    sign = 1 if op == "add" else -1
    sums = {term: x.get(term, 0) + sign * y.get(term, 0) for term in x | y}
    sides = {True: const(by_x + sign * by_y), False: const(0)}  # what is added, what subtracted
    if op not in ("add", "sub"):
        sides = {True: const(0), False: const(by_y - by_x)}
    if any(map(is_large, sides.values())):
        return None
    for term, factor in sums.items():
        side = factor > 0
        sides[side] = make("add", sides[side], make("mul", term, const(abs(factor))))
    return make("sub" if op == "add" else op, sides[True], sides[False])


def _terms(node):
    """An integer as a sum: the factor of each term, and the constant."""
    if node.op == "const":
        return {}, node.args[0]
    if node.op == "neg":
        return _times(-1, *_terms(node.args[0]))
    if node.op == "mul" and "const" in (x.op for x in node.args):
        x, y = sorted(node.args, key=lambda a: a.op == "const")
        return _times(y.args[0], *_terms(x))
    if node.op in ("add", "sub"):
        (x, by_x), (y, by_y) = (_terms(x) for x in node.args)
        y, by_y = _times(1 if node.op == "add" else -1, y, by_y)
        return {term: x.get(term, 0) + y.get(term, 0) for term in x | y}, by_x + by_y
    return {node: 1}, 0


def _times(factor, terms, by):
    return {term: factor * x for term, x in terms.items()}, factor * by


type_of = {"int": int, "float": float, "bool": bool}


def as_float(x: Node) -> Node:
    if x.kind == "float":
        return x
    return make("float", as_number(x)) if x.op != "const" else const(float(x.args[0]))


def as_number(x: Node) -> Node:
    """A truth value as 1 or 0."""
    return where(x, const(1), const(0)) if x.kind == "bool" else x


def as_bool(x: Node) -> Node:
    """A number as a condition: whether it is not 0."""
    return x if x.kind == "bool" else make("ne", x, const(type_of[x.kind](0)))


def where(condition: Node, x: Node, y: Node) -> Node:
    """x where the condition holds, else y; of truth values an `and` or an `or` where it can be."""
    if x == y:
        return x
    if condition.op == "const":
        return x if condition.args[0] else y
    if {x.kind, y.kind} == {"bool"}:
        for op, a, b, decided in (
            ("and", condition, x, y == FALSE),
            ("or", condition, y, x == TRUE),
            ("and", make("not", condition), y, x == FALSE),
            ("or", make("not", condition), x, y == TRUE),
        ):
            if decided:
                return make(op, a, b)
        return Node("where", (condition, x, y), "bool")
    x, y = as_number(x), as_number(y)
    if "float" in (x.kind, y.kind):
        x, y = as_float(x), as_float(y)
    return Node("where", (condition, x, y), x.kind)


def children(node: Node) -> tuple:
    """The nodes that a node is computed from."""
    return tuple(x for x in node.args if isinstance(x, Node))


def walk(node: Node):
    """Every node of an expression once, each after those that it is computed from."""
    seen, waiting = set(), [(node, False)]
    while waiting:
        here, ready = waiting.pop()
        if here in seen:
            continue
        if ready:
            seen.add(here)
            yield here
        else:
            waiting.append((here, True))
            waiting += [(x, False) for x in reversed(children(here))]


def replaced(node: Node, variables: dict, first_argument: int = 0) -> Node:
    """An expression with others in place of variables, and its arguments numbered from a number on.

    Parameters
    ----------
    node : Node
    variables : dict of str to Node
    first_argument : int, default=0
        The new number of the user's argument 0.
    """
    found = {}
    for x in walk(node):
        args = tuple(found[y] for y in children(x))
        if x.op == "var":
            (name,) = x.args
            if name.startswith("arg"):
                name = f"arg{int(name[3:]) + first_argument}"
            found[x] = variables.get(name) or Node("var", (name,), x.kind)
        elif x.op == "load":
            found[x] = Node("load", (x.args[0] + first_argument, *args), x.kind)
        else:
            found[x] = x if x.op == "const" else Node(x.op, args, x.kind)
    return found[node]


def variables(node: Node) -> set:
    """The names of the variables in an expression."""
    return {x.args[0] for x in walk(node) if x.op == "var"}


SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%", "lt": "<",
    "le": "<=", "eq": "==", "ne": "!=", "and": "&", "or": "|", "xor": "^", "lshift": "<<",
    "rshift": ">>",
}  # fmt: skip


def described(node) -> str:
    """An expression in Python's notation, for errors."""
    if node.op == "const":
        return str(node.args[0])
    if node.op == "var":
        (name,) = node.args
        return f"args[{name.removeprefix('arg')}]" if name.startswith("arg") else name
    if node.op == "load":
        position, *indices = node.args
        return f"args[{position}][{', '.join(map(described, indices))}]"
    args = [described(x) for x in node.args]
    if node.op == "where":
        return f"({args[1]} if {args[0]} else {args[2]})"
    if node.op in SIGNS:
        return f"({args[0]} {SIGNS[node.op]} {args[1]})"
    return f"not {args[0]}" if node.op == "not" else f"{node.op}({', '.join(args)})"
