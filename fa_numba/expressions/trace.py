"""Reads a user's function by running it once on symbols: no source text, no syntax tree.

Each operator on a `Symbol` makes a node. Where Python asks for a truth value (`and`, `or`, `not`,
`if`, a chain of comparisons, `min`), the function is run again for the other answer, and the two
results become one ``where``. So a function may have more than one expression, may call functions
of its own, and may repeat something a fixed number of times.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import math
import re
import sys
import types

import numpy as np

from fa_numba.expressions import nodes
from fa_numba.expressions.nodes import Node, const, make
from fa_numba.expressions.unseen import (
    OF_OBJECTS,
    Unassignable,
    assigned_outside,
    call_watched,
    is_ours,
    place_of,
)

MAX_QUESTIONS = 64  # for a truth value in one run
MAX_PATHS = 512  # of "and", "or" and conditions in one function
ENDLESS = "does a loop end only for some m or n?"
MODULES = ("math", "numpy", "torch")  # whose functions are known, by name
OURS = re.compile(r"(?:object of type )?'(?:Symbol|Array)'(?: object)?")  # in a message of Python's
KINDS = {"b": "bool", "i": "int", "u": "int", "f": "float"}  # of a dtype


class Trace:
    """One run of the function.

    Parameters
    ----------
    name : str
        "mask" or "score", for errors.
    answers : tuple of bool
        To the first questions for a truth value; True to all later ones.
    captured : list of arrays, optional
        Receives the arrays that the function finds in its closure and globals. They are arguments
        after the others, of which there are `num_given`. Without a list they are refused.
    """

    def __init__(self, name, answers=(), captured=None, num_given=0):
        self.name, self.answers, self.asked, self.refused = name, answers, {}, None
        self.captured, self.num_given = captured, num_given

    def decide(self, node):
        """The truth value of a node in this run."""
        if node.op == "const":
            return bool(node.args[0])
        node = nodes.as_bool(node)
        if node not in self.asked:
            more = len(self.asked)
            if more >= MAX_QUESTIONS:
                self.refuse(f"must ask at most {MAX_QUESTIONS} questions; {ENDLESS}")
            self.asked[node] = self.answers[more] if more < len(self.answers) else True
        return self.asked[node]

    def made(self, op, *args):
        """A symbol for an operator; truth values may have `and`, `or`, `^`, floats have no bits."""
        kinds = {x.kind for x in args}
        if "float" not in kinds and any(x.op != "const" for x in args):
            if op not in nodes.COMPARISONS:
                self.require_32_bits(*args)
            elif any(map(nodes.is_large, args)):  # greater, or less, than all of 32 bits
                args = [x if nodes.is_large(x) else const(0) for x in args]
        if op in ("and", "or", "xor", "lshift", "rshift"):
            if "float" in kinds:
                self.refuse(f"must not have the bits of a float: {op}")
            if kinds != {"bool"} or op in ("lshift", "rshift"):
                args = tuple(map(nodes.as_number, args))
            elif op == "xor":
                op = "ne"
                args = tuple(map(nodes.as_number, args))
        if op in ("floordiv", "mod") and "float" in kinds:
            self.refuse(f"must have integers on both sides of {'//' if op == 'floordiv' else '%'}")
        if op in ("floordiv", "mod", "div") and args[1].op == "const" and not args[1].args[0]:
            self.refuse("must not divide by 0")
        return Symbol(self, make(op, *args))

    def require_32_bits(self, *args):
        for x in filter(nodes.is_large, args):
            self.refuse(f"must compute with integers of 32 bits, got {x.args[0]}")

    def refuse(self, message, place=None):
        place = self.place() if place is None else place
        self.refused = TypeError(f"{self.name} {message}{place}")
        raise self.refused

    def place(self):
        """Where in the user's function, for an error: the innermost frame that is not of ours."""
        frame = sys._getframe(1)
        while frame and is_ours(frame):
            frame = frame.f_back
        return "" if frame is None else place_of(frame.f_code, frame.f_lasti)

    def refusal_of(self, error):
        """For what Python itself refuses to do with our objects, such as ``m @ n``; else None."""
        reason, place = str(error), _place_of_error(error)
        of_ours = getattr(getattr(error, "obj", None), "__module__", None) == __name__
        called = reason.partition("() ")[0] in KNOWN and isinstance(error, TypeError)
        if not (of_ours or called or re.search("'Symbol'|'Array'|read-only", reason)):
            return None
        reason = OURS.sub(lambda x: "a number" if "Symbol" in x[0] else "an array", reason)
        return TypeError(f"{self.name} must only compute with its parameters: {reason}{place}")

    def no_value(self, error):
        """The error where the user's function raises one for some answers to its conditions."""
        conditions = ", ".join(
            nodes.described(x if answer else make("not", x)) for x, answer in self.asked.items()
        )
        return ValueError(
            f"{self.name} must have a value whatever its conditions are, got {error!r:.90} for "
            f"{conditions:.90}{_place_of_error(error)}"
        )


def _place_of_error(error):
    """The innermost place of the user's where it was raised."""
    place, at = "", error.__traceback__
    while at:
        if not is_ours(at.tb_frame):
            place = place_of(at.tb_frame.f_code, at.tb_lasti)
        at = at.tb_next
    return place


def symbol_of(trace, x):
    """The node of a symbol or of a number; anything else is refused."""
    if isinstance(x, Symbol):
        return x.node
    if isinstance(x, (bool, int, float)):
        return const(x)
    if isinstance(x, np.generic) and x.dtype.kind in KINDS:
        return const(x.item())
    trace.refuse(
        f"must compute with numbers and the arrays of {trace.name}_args, got {type(x).__name__}"
    )


def _binary(op, swapped=False):
    def method(self, other):
        x, y = self.node, symbol_of(self.trace, other)
        return self.trace.made(op, *((y, x) if swapped else (x, y)))

    return method


class Symbol(Unassignable):
    """A number that is not known yet."""

    __slots__ = ("trace", "node")
    __array_ufunc__ = None  # NumPy leaves an operator of ours to us

    def __init__(self, trace, node):
        self._keep(trace=trace, node=node)

    def __bool__(self):
        return self.trace.decide(self.node)

    def __neg__(self):
        return self.trace.made("neg", self.node)

    def __pos__(self):
        return self

    def __rpow__(self, base):
        self.trace.refuse("must have no unknown exponent; exp(x * log(base)) and 1 << x are there")

    def __divmod__(self, other):
        return self // other, self % other

    def __rdivmod__(self, other):
        return other // self, other % self

    def __abs__(self):
        return self.trace.made("abs", self.node)

    def __invert__(self):
        if self.node.kind == "bool":  # as for tensors
            return self.trace.made("not", self.node)
        if self.node.kind == "float":
            self.trace.refuse("must not have the bits of a float: ~")
        return self.trace.made("sub", const(-1), self.node)

    def __pow__(self, power, modulus=None):
        if isinstance(power, Symbol):
            return self.__rpow__(power)
        if modulus is not None or power not in (1, 2, 3, 4):
            got = power if modulus is None else f"{power!r} modulo {modulus!r}"
            self.trace.refuse(f"must have powers of 1 to 4, got {got}")
        product = base = self * type(power)(1)  # a float to the power 2.0 is one
        for _ in range(int(power) - 1):
            product = product * base
        return product

    def __index__(self):
        self.trace.refuse(
            "must index arrays of its arguments alone, and has no loop over a symbol: give the "
            f"array in {self.trace.name}_args"
        )

    def __int__(self):
        self.trace.refuse("must not turn a number into an int; // and % are there")

    def __round__(self, digits=None):
        self.trace.refuse("must not round a number; // and % are there")

    def __float__(self):
        self.trace.refuse(
            "must take functions from math, in a function written in Python: exp, log, sqrt, tanh"
        )

    def __iter__(self):
        self.trace.refuse("must not iterate over a number")

    def __getitem__(self, index):
        self.trace.refuse("must not index a number")

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name in METHODS:
            return functools.partial(library(self.trace)[1][name], self)
        self.trace.refuse(f"must not use an attribute, got .{name}")

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        """PyTorch calls this for a function of its own that is given a symbol."""
        trace = next(x for x in (*args, *(kwargs or {}).values()) if isinstance(x, cls)).trace
        trace.refuse(f"must use of torch only what is known, got {function.__name__}")


for _name, _op in {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "floordiv": "floordiv",
    "mod": "mod", "and": "and", "or": "or", "xor": "xor", "lshift": "lshift", "rshift": "rshift",
}.items():  # fmt: skip
    setattr(Symbol, f"__{_name}__", _binary(_op))
    setattr(Symbol, f"__r{_name}__", _binary(_op, swapped=True))
for _op in nodes.COMPARISONS:
    setattr(Symbol, f"__{_op}__", _binary(_op))
Symbol.__gt__, Symbol.__ge__ = _binary("lt", swapped=True), _binary("le", swapped=True)


class Array(Unassignable):
    """An array among the user's arguments: it can be indexed, and has a shape.

    `before` are the indices that it has already, of one that is captured: x[i][j] is x[i, j].
    """

    __slots__ = ("trace", "position", "shape", "kind", "before")

    def __init__(self, trace, position, shape, kind, before=()):
        self._keep(trace=trace, position=position, shape=shape, kind=kind, before=before)

    @property
    def _name(self):
        return f"{self.trace.name}_args[{self.position}]"

    def __getitem__(self, index):
        index = (*self.before, *(index if isinstance(index, tuple) else (index,)))
        name = self._name
        if self.trace.captured is not None and len(index) < len(self.shape):
            return Array(self.trace, self.position, self.shape, self.kind, index)
        if len(index) != len(self.shape):
            self.trace.refuse(f"must index {name} with {len(self.shape)} numbers, got {len(index)}")
        found = tuple(symbol_of(self.trace, i) for i in index)
        if any(x.kind != "int" for x in found):
            self.trace.refuse(f"must index {name} with integers")
        return Symbol(self.trace, Node("load", (self.position, *found), self.kind))

    def __len__(self):
        return self.shape[0]

    def __iter__(self):
        if len(self) > MAX_QUESTIONS:
            self.trace.refuse(f"must walk at most {MAX_QUESTIONS} elements, {self._name} has more")
        return (self[i] for i in range(len(self)))

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        self.trace.refuse(f"must not use an attribute of an array but shape, got .{name}")


def _whole_array(self, *others):
    self.trace.refuse(f"must index {self._name}: it computes with numbers")


# Of any object Python knows whether it is true, and equal to another one.
for _name in ("bool", "eq", "ne", "lt", "le", "gt", "ge", "add", "sub", "mul", "mod", "floordiv"):
    setattr(Array, f"__{_name}__", _whole_array)


METHODS = {  # of tensors, which are functions of torch too
    "abs", "clamp", "clip", "eq", "exp", "exp2", "float", "ge", "gt", "int", "le", "log",
    "logical_and", "logical_not", "logical_or", "long", "lt", "maximum", "minimum", "ne",
    "new_ones", "new_zeros", "sigmoid", "sqrt", "square", "tanh", "to", "where",
}  # fmt: skip


def library(trace):
    """The functions that stand for those of Python, math, NumPy and PyTorch, and for methods."""

    def known(op):
        def function(x, *more):
            if len(more) != (op == "copysign"):
                trace.refuse(f"must give {op} one number, copysign two, got {1 + len(more)}")
            return trace.made(op, *(symbol_of(trace, y) for y in (x, *more)))

        return function

    def least_or_most(op):
        def function(*args):
            first, *others = (symbol_of(trace, x) for x in (args[0] if len(args) == 1 else args))
            for x in others:
                first = trace.made(op, first, x).node
            return Symbol(trace, first)

        return function

    def where(condition, x, y):
        condition, x, y = (symbol_of(trace, a) for a in (condition, x, y))
        trace.require_32_bits(x, y)
        return Symbol(trace, nodes.where(nodes.as_bool(condition), x, y))

    def logical(op):
        def function(*args):
            return trace.made(op, *(nodes.as_bool(symbol_of(trace, x)) for x in args))

        return function

    def clamp(x, min=None, max=None):
        x = symbol_of(trace, x)
        for op, end in (("max", min), ("min", max)):
            x = x if end is None else trace.made(op, x, symbol_of(trace, end)).node
        return Symbol(trace, x)

    def to(x, kind=None, *, dtype=None, **_):
        x, kind = symbol_of(trace, x), _kind_of(kind if dtype is None else dtype)
        if kind is None:
            trace.refuse("must turn a number into a number, got another dtype")
        if kind == "float":
            return Symbol(trace, nodes.as_float(x))
        if kind == "int" and x.kind == "float":
            trace.refuse("must not turn a float into an int; // and % are there")
        return Symbol(trace, nodes.as_bool(x) if kind == "bool" else nodes.as_number(x))

    def full(value):
        """`x.new_ones(())` and its like, of one element."""

        def function(x, shape=(), *, dtype=None, **_):
            if tuple(shape):
                trace.refuse(f"must make tensors without axes alone, got shape {tuple(shape)}")
            kind = "float" if dtype is None else _kind_of(dtype)
            return Symbol(trace, const(nodes.type_of[kind](value)))

        return function

    def operation(op, swapped=False):
        def function(x, y):
            x, y = symbol_of(trace, x), symbol_of(trace, y)
            return trace.made(op, *((y, x) if swapped else (x, y)))

        return function

    def of_exponential(function):
        """A function of x by e to some power."""
        exp, numbers = known("exp"), known("float")
        return lambda x: function(exp, numbers(x))

    plain = {"abs": known("abs"), "min": least_or_most("min"), "max": least_or_most("max")}
    more = {name: known(name) for name in ("exp", "log", "sqrt", "tanh", "copysign")}
    more |= {"fabs": known("abs"), "where": where, "pi": math.pi, "e": math.e, "inf": math.inf}
    more |= {f"logical_{op}": logical(op) for op in ("and", "or", "not")}
    more |= {"minimum": plain["min"], "maximum": plain["max"], "clamp": clamp, "clip": clamp}
    more |= {op: operation(op) for op in ("add", "sub", "mul", "lt", "le", "eq", "ne")}
    more |= {"gt": operation("lt", True), "ge": operation("le", True), "div": operation("div")}
    more |= {"floor_divide": operation("floordiv"), "remainder": operation("mod")}
    more |= {f"bitwise_{op}": operation(op) for op in ("and", "or", "xor")}
    more |= {
        "exp2": of_exponential(lambda exp, x: exp(x * math.log(2))),
        "sigmoid": of_exponential(lambda exp, x: 1 / (1 + exp(-x))),
        "square": lambda x: x * x,
        "to": to,
        "float": lambda x: to(x, "float"),
        "long": lambda x: to(x, "int"),
        "int": lambda x: to(x, "int"),
        "new_ones": full(1.0),
        "new_zeros": full(0.0),
    }
    for name, function in (more | plain).items():
        if callable(function):
            function.__qualname__ = name  # Python names it where it is called with other arguments
    return plain, plain | more


KNOWN = frozenset(library(None)[1])


class Module(Unassignable):
    """What a user's function sees as math, numpy or torch."""

    def __init__(self, trace, name, functions):
        self._keep(trace=trace, _name=name, _functions=functions)

    def __getattr__(self, name):
        known = getattr(sys.modules[self._name], name, None)
        of_numpy = known if isinstance(known, type) else type(known)
        if type(known).__name__ == "dtype" or issubclass(of_numpy, np.generic):
            return known  # `torch.float` is a dtype, and `float` a method of its tensors
        if name not in self._functions or known is math.remainder:
            there = [x for x in sorted(self._functions) if hasattr(sys.modules[self._name], x)]
            self.trace.refuse(f"must use of {self._name} only {', '.join(there)}, got {name}")
        return self._functions[name]


def on_symbols(function, trace, made=None):
    """The function, with symbols' functions in place of those of Python, math and NumPy."""
    made = {} if made is None else made
    if isinstance(function, functools.partial):
        given = function.args, tuple(function.keywords.items())
        args, keywords = on_symbols(lambda: given, trace, made)()
        return functools.partial(on_symbols(function.func, trace, made), *args, **dict(keywords))
    if not isinstance(function, types.FunctionType):
        return function
    if function in made:
        return made[function]
    for message, place in assigned_outside(function.__code__, function.__code__.co_freevars):

        def refuse(*args, message=message, place=place, **keywords):
            trace.refuse(message, place)

        made[function] = refuse
        return refuse
    plain, functions = library(trace)
    plain |= OF_OBJECTS
    # a function looks for builtins where its globals say when it is made
    seen = {**function.__globals__, "__builtins__": vars(builtins) | plain}
    copy = types.FunctionType(
        function.__code__, seen, function.__name__, function.__defaults__, None
        if function.__closure__ is None
        else tuple(types.CellType() for _ in function.__closure__),
    )  # fmt: skip
    made[function] = copy

    def changed(value):
        if trace.captured is not None and _is_array(value):
            return _captured(trace, value)
        if type(value) in (tuple, list):
            return type(value)(map(changed, value))
        if isinstance(value, np.ndarray):  # the user's own
            value = value.view()
            value.flags.writeable = False
            return value
        if isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] in MODULES:
            return Module(trace, value.__name__, functions)
        for name, ours in plain.items():
            if value is getattr(builtins, name):
                return ours
        if _is_of_math(value):
            return functions[value.__name__]
        return on_symbols(value, trace, made)

    copy.__defaults__ = tuple(map(changed, function.__defaults__ or ()))
    copy.__kwdefaults__ = {x: changed(y) for x, y in (function.__kwdefaults__ or {}).items()}
    for name in _names(function.__code__):
        if name in seen:
            seen[name] = changed(seen[name])
    for ours, theirs in zip(copy.__closure__ or (), function.__closure__ or (), strict=True):
        try:
            ours.cell_contents = changed(theirs.cell_contents)
        except ValueError:  # nothing is in it yet
            pass
    return copy


def _is_of_math(value):
    """Whether a known module has this function: `from torch import where`.

    `math.remainder` rounds to the nearest number and is not `%`, as those of others are.
    """
    name = None if value is math.remainder else getattr(value, "__name__", None)
    if not isinstance(value, (types.BuiltinFunctionType, np.ufunc)) or name not in KNOWN:
        return False
    return any(getattr(sys.modules.get(x), name, None) is value for x in MODULES)


def _is_array(value):
    return not isinstance(value, (np.generic, type)) and hasattr(value, "shape") and hasattr(
        value, "dtype"
    )  # fmt: skip


def _position_in(captured, array):
    """The array's place in a list, which it is added to if it is not there."""
    position = next((i for i, x in enumerate(captured) if x is array), len(captured))
    if position == len(captured):
        captured.append(array)
    return position


def _captured(trace, array):
    """What a function sees in place of an array that it has found."""
    position = trace.num_given + _position_in(trace.captured, array)
    kind = _kind_of(array.dtype)
    if kind is None:
        trace.refuse(f"must capture tensors of numbers, got one of {array.dtype}")
    if not array.shape:  # a tensor without axes is an argument with one
        return Symbol(trace, Node("load", (position, const(0)), kind))
    return Array(trace, position, tuple(array.shape), kind)


def _names(code):
    yield from code.co_names
    for x in code.co_consts:
        if isinstance(x, types.CodeType):
            yield from _names(x)


_traced = {}  # expressions by what decides them
MAX_TRACED = 1024  # when full, all are dropped


def trace(function, name: str, first: str, arguments=(), captured=None) -> Node:
    """The expression that a user's function computes; kept for the next call.

    Parameters
    ----------
    function : callable
        ``function(*first, *arguments)``.
    name : str
        "mask" or "score": the argument of ours, for errors; its arguments are ``name_args``.
    first : str
        The names of the first parameters: "b h m n" or "s b h m n".
    arguments : sequence of arrays and numbers
        Of the arrays only shape and dtype are looked at.
    captured : list, optional
        Empty. It receives the arrays in the function's closure and globals, which are arguments
        after the others. One without axes has to be given with one.

    Returns
    -------
    Node

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what it must be, what it got, and the place in the user's function.
    """
    try:
        key = name, first, meaning(function, captured), *map(_meaning_of_argument, arguments)
        found = _traced.get(key)
    except TypeError:  # it uses something that cannot be compared
        return _trace(function, name, first.split(), arguments, captured)
    if found is None:
        if len(_traced) >= MAX_TRACED:
            _traced.clear()
        found = _traced[key] = _trace(function, name, first.split(), arguments, captured)
    return found


def _meaning_of_argument(x):
    shape = getattr(x, "shape", ())
    return (tuple(shape), str(x.dtype)) if shape else type(x)


def meaning(x, captured=None):
    """All that decides what a function computes; a TypeError where that cannot be compared.

    Arrays are added to `captured`, and count by shape, dtype and place in it.
    """
    if isinstance(x, types.FunctionType):
        used = (x.__globals__[name] for name in _names(x.__code__) if name in x.__globals__)
        cells = (cell.cell_contents for cell in x.__closure__ or ())
        try:
            defaults = *(x.__defaults__ or ()), *(x.__kwdefaults__ or {}).values()
            others = tuple([meaning(y, captured) for y in (*used, *cells, *defaults)])
        except (RecursionError, ValueError):  # calls itself; a cell without contents
            raise TypeError from None
        return x.__code__, *others
    if isinstance(x, functools.partial):
        return meaning((x.func, x.args, tuple(x.keywords.items())), captured)
    if isinstance(x, (bool, int, float, str, np.generic)) or x is None:
        return type(x), x or repr(x)  # 0.0 and -0.0 are equal, and not the same
    if isinstance(x, (types.ModuleType, types.BuiltinFunctionType, type)):
        return x
    if captured is not None and _is_array(x):
        return _position_in(captured, x), tuple(x.shape), str(x.dtype)
    if type(x) in (tuple, list):
        return type(x), *[meaning(y, captured) for y in x]
    raise TypeError


def _trace(function, name, first, arguments, captured=None):
    if not callable(function) or isinstance(function, type):  # a class, such as int, has no code
        raise TypeError(
            f"{name} must be a function of {', '.join(first)}, got {type(function).__name__}"
        )
    _check_parameters(function, name, first, arguments)
    of = getattr(inspect.unwrap(function), "__code__", None)
    place = f" ({of.co_name} in {of.co_filename}, line {of.co_firstlineno})" if of else ""
    count = 0

    def build(answers):
        """The expression of all runs that begin with these answers."""
        nonlocal count
        count += 1
        if count > MAX_PATHS:
            raise ValueError(
                f"{name} must have at most {MAX_PATHS} ways through its conditions; {ENDLESS}"
            )
        run = Trace(name, answers, captured, len(arguments))
        try:
            copy, given = on_symbols(function, run), tuple(_symbols(run, first, arguments))
            result = call_watched(copy, given, run)
        except RecursionError:
            raise ValueError(f"{name} must not call itself without end") from None
        except Exception as error:
            if run.refused:  # NumPy raises an error of its own instead
                raise run.refused from None
            if refusal := run.refusal_of(error):
                raise refusal from None
            if run.asked:
                raise run.no_value(error) from error
            raise
        if run.refused:  # and the function went on: `except`, `suppress`
            raise run.refused
        if not isinstance(result, (Symbol, bool, int, float, np.generic)):
            got = "None" if result is None else type(result).__name__
            raise TypeError(
                f"{name} must return one value, a number or a condition, got {got}{place}"
            )
        node = symbol_of(run, result)
        if node in run.asked:  # `a and b` is a where a is false
            node = const(run.asked[node])
        asked = list(run.asked.items())
        for i in reversed(range(len(answers), len(asked))):
            before = tuple(answer for _, answer in asked[:i])
            node = nodes.where(asked[i][0], node, build((*before, False)))
        return node

    node, count = build(()), 0
    again = build(())
    if node != again and repr(node) != repr(again):  # NaN is not equal to itself
        raise ValueError(
            f"{name} must compute the same in each call, got another expression the second time: "
            f"does it count, draw numbers, or read an iterator?{place}"
        )
    return node


def _symbols(run, first, arguments):
    for name in first:
        yield Symbol(run, Node("var", (name,), "float" if name == "s" else "int"))
    for i, x in enumerate(arguments):
        if isinstance(x, (bool, int, float)) or (isinstance(x, np.generic) and x.ndim == 0):
            kind = KINDS.get(np.asarray(x).dtype.kind)
            if kind is None:
                _refuse_argument(run.name, i, x)
            yield Symbol(run, Node("var", (f"arg{i}",), kind))
        else:
            try:
                shape, kind = tuple(x.shape), _kind_of(x.dtype)
            except AttributeError:
                _refuse_argument(run.name, i, x)
            if kind is None or not shape:
                _refuse_argument(run.name, i, x)
            yield Array(run, i, shape, kind)


def _kind_of(dtype):
    """The kind of a dtype of NumPy, CuPy or PyTorch."""
    found = re.match("(bool)|u?(int)|b?(float)", str(dtype).removeprefix("torch."))
    return found and found[found.lastindex]


def _refuse_argument(name, i, x):
    raise TypeError(
        f"{name}_args[{i}] must be a number, or an array of numbers with at least one axis, got "
        f"{type(x).__name__}" + (f" of {x.dtype}" if hasattr(x, "dtype") else "")
    )


def _check_parameters(function, name, first, arguments):
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a callable without one: the call will say
    try:
        signature.bind(*first, *arguments)
    except TypeError:
        raise TypeError(
            f"{name} must take {', '.join(first)} and the {len(arguments)} of {name}_args, got "
            f"parameters {signature}"
        ) from None
