"""What symbols do not see of a user's function, and the refusal of it.

A symbol is one object for all m and n. So what Python says of the object, its type, its place in
memory, its text, would be the same for all of them.
"""

from __future__ import annotations

import builtins
import dis
import functools
import operator
import random
import sys
import types

OURS = (__name__.rpartition(".")[0], "torch.")
SAME = "must compare numbers by == and !=, got `is`"
TEXT = "must not make a text of a number"
OBJECTS = "must not ask for the type or identity of a number: "


def is_ours(frame) -> bool:
    """Whether a frame is of this package or of PyTorch, not of the user's function."""
    return str(frame.f_globals.get("__name__", "")).startswith(OURS)


def place_of(code, last) -> str:
    """The place of an instruction of a function, for an error."""
    line, _, column, _ = list(code.co_positions())[last // 2]
    column = f", column {column + 1}" if column is not None else ""
    return f" ({code.co_name} in {code.co_filename}, line {line}{column})"


class Unassignable:
    """What a function computes with, and does not change; it says nothing of itself."""

    __slots__ = ()

    def __setattr__(self, name, value=None):
        self.trace.refuse(f"must not assign to an attribute, got .{name}")

    def __setitem__(self, index, value=None):
        self.trace.refuse("must not assign to an element")

    __delattr__, __delitem__ = __setattr__, __setitem__

    @property
    def __class__(self):
        """`isinstance`, `match` and `singledispatch` ask for it."""
        frame = sys._getframe(1)
        while frame.f_globals.get("__name__") == "abc":  # of `isinstance(m, numbers.Real)`
            frame = frame.f_back
        if not is_ours(frame):
            place = place_of(frame.f_code, frame.f_lasti)
            self.trace.refuse(OBJECTS + "isinstance", place)
        return type(self)

    def __hash__(self):
        self.trace.refuse(
            "must only compute with its parameters: a number is no key of a set or a dict; "
            "`h in (0, 2)` is there"
        )

    def __format__(self, how):
        self.trace.refuse(TEXT)

    def __repr__(self):
        if not is_ours(sys._getframe(1)):  # the user's `print`, or `str`
            self.trace.refuse(TEXT)
        return f"<{type(self).__name__}>"

    def _keep(self, **attributes):
        for name, value in attributes.items():
            object.__setattr__(self, name, value)


def _is_unknown(x):
    """Whether it is a symbol, or a tuple with one, as `*args` is."""
    return issubclass(type(x), Unassignable) or (type(x) is tuple and any(map(_is_unknown, x)))


def _refuse_symbol(name, args):
    if len(args) == 1 and issubclass(type(args[0]), Unassignable):
        args[0].trace.refuse(OBJECTS + name)


class TypeOfObjects(type):
    """A class that is `type` for all but symbols: a helper may ask `isinstance(x, type)`."""

    def __call__(cls, *args, **keywords):
        _refuse_symbol("type", args)
        made = type(*args, **keywords)
        return cls if made is type else made

    def __instancecheck__(cls, x):
        return isinstance(x, type)

    def __subclasscheck__(cls, x):
        return issubclass(x, type)


def identity(*args):
    _refuse_symbol("id", args)
    return id(*args)


# Builtins that would say something about our symbols, and what stands for them.
OF_OBJECTS = {"id": identity, "type": TypeOfObjects("type", (type,), {})}


def call_watched(function, arguments, trace):
    """Call a user's function; refuse what compares symbols as objects, wherever it is called.

    Methods and functions of modules are called as they are. So each frame that knows a symbol is
    looked at, by the profiler's hook of this thread.
    """
    before = sys.getprofile()
    sys.setprofile(functools.partial(_look, trace))
    try:
        return function(*arguments)
    finally:
        sys.setprofile(None)
        if before is not None:  # that of cProfile is no function, until Python 3.11
            getattr(before, "enable", functools.partial(sys.setprofile, before))()


def _look(trace, frame, event, called):
    if event not in ("call", "c_call") or is_ours(frame):
        return
    if event == "c_call":
        if called in (operator.is_, operator.is_not):
            trace.refuse(SAME)
        if issubclass(type(getattr(called, "__self__", None)), random.Random):
            trace.refuse("must compute the same in each call, got a random number")
        return
    copied = frame.f_builtins is not vars(builtins)  # by `on_symbols`
    known = frame.f_locals
    if copied or any(map(_is_unknown, known.values())):
        for name, argument, at in _about_objects(frame.f_code):
            if not name:
                trace.refuse(SAME, place_of(frame.f_code, at))
            theirs = frame.f_globals.get(name)
            if not copied and theirs is None and _is_unknown(known.get(argument)):
                trace.refuse(OBJECTS + name, place_of(frame.f_code, at))


@functools.lru_cache(1024)
def _about_objects(code):
    """Of each `is` ("", "", place), of each `type(x)` or `id(x)` (its name, x, place).

    On the right of `is` may stand what surely is no number: None, or a global.
    """
    found, no_number = [], False
    instructions = [x for x in dis.get_instructions(code) if x.opname != "PRECALL"]
    for x, argument, call in zip(
        instructions, instructions[1:] + [None], instructions[2:] + [None] * 2, strict=True
    ):
        if x.opname == "IS_OP" and not no_number:
            found.append(("", "", x.offset))
        if x.opname.startswith("LOAD_GLOBAL") and x.argval in OF_OBJECTS:
            of_local = argument.opname.startswith(("LOAD_FAST", "LOAD_DEREF"))
            if of_local and call.opname.startswith("CALL") and call.arg == 1:
                found.append((x.argval, argument.argval, call.offset))
        outside = x.opname.startswith(("LOAD_GLOBAL", "LOAD_DEREF", "LOAD_ATTR"))
        no_number = outside or (x.opname == "LOAD_CONST" and not isinstance(x.argval, (int, float)))
    return tuple(found)


def assigned_outside(code, outer):
    """A message and a place for each assignment to globals, or to variables `outer` of others."""
    for x in dis.get_instructions(code):
        kind = x.opname.partition("_")[2] if x.opname.startswith(("STORE_", "DELETE_")) else ""
        if kind == "GLOBAL" or (kind == "DEREF" and x.argval in outer):
            message = f"must not assign to a variable outside of it, got {x.argval}"
            yield message, place_of(code, x.offset)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from assigned_outside(inner, outer)
