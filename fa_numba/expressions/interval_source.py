"""The rules of `intervals` for one tile, as the text of a function that a kernel can call.

It serves where a kernel classifies tiles: on a GPU, whose arrays the CPU would have to wait for. A
mask with floats, or with a divisor or a shift that depends on m or n has no such function:
`intervals` classifies its tiles on the CPU. Nor has one that indexes an array by two ranges, unless
the function may walk them: block lists have few numbers of a tile.
"""

from __future__ import annotations

from typing import NamedTuple

from fa_numba.expressions import nodes

MOST_WALKED = 256  # numbers of an array with several ranges
SIGNS = {"lt": "<", "le": "<=", "add": "+", "sub": "-"}


class Needs(NamedTuple):
    """What a function of `interval_source` needs of its arguments, by their numbers.

    Attributes
    ----------
    ranged : list of int
        Arrays that are indexed by a range, along their last axis: ``ranges`` has a table of each.
    positive : list of int
        Numbers that must be positive: divisors.
    """

    ranged: list
    positive: list


class NoIntervalError(Exception):
    """A kernel cannot compute the interval of this expression."""


def interval_source(mask, name: str, walks=False) -> tuple:
    """The text of ``def name(b, h, m0, m1, n0, n1, args, ranges)``: (may be false, may be true).

    Parameters
    ----------
    mask : Node
    name : str
    walks : bool, default=False
        Whether it may look at all numbers of an array with several ranges. It knows nothing of more
        than MOST_WALKED.

    Returns
    -------
    text : str
        m0 to m1 are the positions of a tile, n0 to n1 its keys. It uses min, max, abs, `integer`,
        the type to compute with, and ``least(table, row, low, high)``, ``most(…)``: see `ranged`.
    needs : Needs

    Raises
    ------
    NoIntervalError
    """
    lines, ends, needs = [f"def {name}(b, h, m0, m1, n0, n1, args, ranges):"], {}, Needs([], [])
    for i, x in enumerate(nodes.walk(mask)):
        if x.kind == "float":
            raise NoIntervalError("a float")
        args = [ends[y] for y in nodes.children(x)]
        if x.op == "load" and walks and len(ranged := _ranged(x)) > 1:
            lines += _walked(x, args, ranged, i)
            ends[x] = (f"(l{i} == 0)", f"(u{i} != 0)") if x.kind == "bool" else (f"l{i}", f"u{i}")
            continue
        low, high = _interval(x, args, needs)
        if x.op in ("const", "var"):
            ends[x] = low, high
            continue
        lines.append(f"    l{i}, u{i} = {low}, {high}")
        ends[x] = f"l{i}", f"u{i}"
    low, high = ends[mask]
    return "\n".join([*lines, f"    return {low}, {high}", ""]), needs


def _interval(node, args, needs):
    """The texts of both ends; of a truth value whether it may be false, and whether true."""
    op = node.op
    if op == "const":
        (value,) = node.args
        return (str(not value), str(value)) if node.kind == "bool" else (f"integer({value})",) * 2
    if op == "var":
        return _variable(node)
    if op == "load":
        return _load(node, args, needs.ranged)
    if op == "where":
        return _where(node, *args)
    if op in ("and", "or", "xor", "lshift", "rshift") and node.kind != "bool":
        return _of_bits(node, *args)
    if op in ("floordiv", "mod"):
        return _divided(node, args[0], needs)
    (a, b), (c, d) = (*args, ("", ""))[:2]
    if op in ("lt", "le"):
        return f"{b} {'>=' if op == 'lt' else '>'} {c}", f"{a} {SIGNS[op]} {d}"
    if op in ("eq", "ne"):
        meet = f"({a} <= {d} and {c} <= {b})"
        differ = f"not ({a} == {b} and {c} == {d} and {a} == {c})"
        return (differ, meet) if op == "eq" else (meet, differ)
    both = {
        "not": (b, a),
        "and": (f"{a} or {c}", f"{b} and {d}"),
        "or": (f"{a} and {c}", f"{b} or {d}"),
        "add": (f"{a} + {c}", f"{b} + {d}"),
        "sub": (f"{a} - {d}", f"{b} - {c}"),
        "neg": (f"-{b}", f"-{a}"),
        "min": (f"min({a}, {c})", f"min({b}, {d})"),
        "max": (f"max({a}, {c})", f"max({b}, {d})"),
        "abs": (
            f"integer(0) if {a} <= 0 <= {b} else min(abs({a}), abs({b}))",
            f"max(abs({a}), abs({b}))",
        ),
    }
    if op == "mul":
        products = [f"{x} * {y}" for x in (a, b) for y in (c, d)]
        return tuple(
            "{0}({0}({1}, {2}), {0}({3}, {4}))".format(which, *products) for which in ("min", "max")
        )
    if op not in both:
        raise NoIntervalError(op)
    return both[op]


def _variable(node):
    (name,) = node.args
    if name in ("m", "n"):
        return f"{name}0", f"{name}1"
    text = nodes.described(node)
    if node.kind == "bool":
        return f"not {text}", text
    return (f"integer({text})",) * 2


def _ranged(load):
    """The axes along which an array is indexed by a range."""
    return [i for i, x in enumerate(load.args[1:]) if nodes.variables(x) & {"m", "n"}]


def _walked(node, args, ranged, i):
    """Lines that set l{i} and u{i} to the least and the greatest number of several ranges."""
    array, index = f"args[{node.args[0]}]", [low for low, _ in args]
    least, most = (0, 1) if node.kind == "bool" else (-(2**31), 2**31 - 1)
    count, loops, indent = [], [], " " * 8
    for axis in ranged:
        low, high = args[axis]
        index[axis] = f"x{i}_{axis}"
        count.append(f"({high} - {low} + 1)")
        last = f"min({high}, {array}.shape[{axis}] - 1)"
        loops.append(f"{indent}for {index[axis]} in range(max({low}, 0), {last} + 1):")
        indent += " " * 4
    return [
        f"    l{i}, u{i} = integer({least}), integer({most})",
        f"    if {' * '.join(count)} <= {MOST_WALKED}:",
        f"        l{i}, u{i} = u{i}, l{i}",
        *loops,
        f"{indent}x{i} = integer({array}[{', '.join(index)}])",
        f"{indent}l{i}, u{i} = min(l{i}, x{i}), max(u{i}, x{i})",
    ]


def _load(node, args, ranged):
    position, *indices = node.args
    fixed = [i not in _ranged(node) for i in range(len(indices))]
    if not all(fixed[:-1]) or (node.kind == "bool" and not fixed[-1]):
        raise NoIntervalError("an index")
    if fixed[-1]:
        text = f"args[{position}][{', '.join(low for low, _ in args)}]"
        return (f"not {text}", text) if node.kind == "bool" else (f"integer({text})",) * 2
    if len(args) > 2:
        raise NoIntervalError("an index of three or more")
    if position not in ranged:
        ranged.append(position)
    row, (low, high) = args[0][0] if len(args) == 2 else "0", args[-1]
    where = f"ranges[{ranged.index(position)}], {row}, {low}, {high}"
    return f"least({where})", f"most({where})"


def _where(node, condition, x, y):
    may_not, may = condition
    if node.kind == "bool":
        return tuple(f"({may} and {x[i]}) or ({may_not} and {y[i]})" for i in range(2))
    return tuple(
        f"({which}({x[i]}, {y[i]}) if {may_not} else {x[i]}) if {may} else {y[i]}"
        for i, which in enumerate(("min", "max"))
    )


def _constant(node):
    if node.op != "const" or node.args[0] <= 0:
        raise NoIntervalError("a divisor, a shift or bits that are no positive constant")
    return node.args[0]


def _of_bits(node, x, y):
    """A shift to the right, and the lowest bits: all others are for the CPU."""
    by, (a, b) = _constant(node.args[1]), x
    if node.op == "rshift":
        return f"{a} >> {by}", f"{b} >> {by}"
    if node.op == "and" and by & (by + 1) == 0:
        return _remainder(a, b, by + 1)
    raise NoIntervalError(node.op)


def _divided(node, x, needs):
    (a, b), divisor = x, node.args[1]
    if divisor.op == "var" and divisor.args[0].startswith("arg"):
        needs.positive.append(int(divisor.args[0][3:]))
        by = f"integer({nodes.described(divisor)})"
    else:
        by = _constant(divisor)
    if node.op == "mod":
        return _remainder(a, b, by)
    return _quotient(a, by), _quotient(b, by)


def _quotient(x, by):
    if isinstance(by, int) and by & (by - 1) == 0:
        return f"({x} >> {by.bit_length() - 1})"
    return f"({x} // {by})"


def _remainder(a, b, by):
    """Of all numbers from a to b: those of the ends where both have one quotient."""
    one = f"{_quotient(a, by)} == {_quotient(b, by)}"
    low = f"({a} - {_quotient(a, by)} * {by} if {one} else integer(0))"
    high = f"({b} - {_quotient(b, by)} * {by} if {one} else integer({by} - 1))"
    return low, f"(min({high}, {b}) if {a} >= 0 else {high})"
