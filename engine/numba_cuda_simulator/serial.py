"""Launches of one thread: Python's own control flow instead of masks.

One thread needs no lockstep. `if`, `while`, `for` and `return` remain Python's, variables are
assigned and not blended, and loads and stores of single elements take a short way. Values,
operators, errors and everything else are those of the lockstep machine.

    x = a[i] + 1            x = load(a, i) + 1
    while test: A           for _ in while_turns():
                                if not test: break
                                A
    return e                return_(e); return
"""

import ast
import functools
import math

import numpy as np

from .arrays import GlobalArray, LocalArray
from .host import host_value
from .lanes import Lanes, Undefined
from .memory import Memory
from .operators import Operators
from .scopes import names
from .syntax import children, indices_of, parameters_of, stored, walk
from .transform import PREFIX, Transformer, assign, is_part, load_name
from .waits import Patience, decided_by

INT64 = np.int64
TURNS = 64  # of a while loop, between two looks at whether it can end
SIZES = {1: ("length",), 2: ("rows", "columns")}  # attributes of a `Direct` array, by its axes

# How narrow an integer may be where it stands in for an int64, without a difference.
ANY, INT32, NONE = 2, 1, 0
PLAIN = "int64 float16 float32 float64 complex64 complex128".split()
NARROW = "bool int8 int16 int32 uint8 uint16 uint32".split()
SAFE_OPERATORS = (
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod),
    *(ast.BitAnd, ast.BitOr, ast.BitXor),
)


@functools.lru_cache(maxsize=512)
def rewrite(code, file, direct):
    """Return the form of a function for one thread, as a `LockstepCode`.

    direct : (name, number of axes, dtype's name) of the parameters that are `Direct` arrays.
    """
    return SerialTransformer(code, file, direct).run()


class Direct(GlobalArray):
    """An array whose elements the rewritten kernel takes from NumPy itself.

    x[i]   x.cells[p] if type(t := i) is int64 and 0 <= (p := int(t)) < x.length else load(x, t)

    Everything but a good index goes the usual way, where errors are made.
    """

    def __init__(self, array, name):
        super().__init__(array, name)
        self.cells = array if type(array) is np.ndarray else array.view(np.ndarray)
        # The type of what may be stored without ado.
        self.taken = (INT64 if self.needs_type else self.dtype.type) if self.writeable else None
        if self.needs_type:
            self.item = self.cells.item
        if self.dtype.kind == "i":
            ends = np.iinfo(self.dtype)
            self.low, self.high = INT64(ends.min), INT64(ends.max)
        for size, attribute in zip(self.dims, SIZES[len(self.dims)], strict=True):
            setattr(self, attribute, size)

    def view(self, *place):
        part = super().view(*place)
        part.__class__ = GlobalArray
        return part


class SerialTransformer(Transformer):
    """Rewrites one function for one thread."""

    def __init__(self, code, file, direct):
        super().__init__(code, file, counting=False)
        known = names(self.function, ast.Store)
        self.direct = {name: axes for name, axes, _ in direct if name not in known}
        self.widths = {name: ANY if dtype != "int32" else INT32 for name, _, dtype in direct}
        self.narrow = {name for name, _, dtype in direct if dtype in NARROW}
        self.signed = {name for name, _, dtype in direct if dtype in ("int8", "int16", "int32")}
        self.uses = Uses(self.function)
        self.counters = loop_variables(self.function) - set(parameters_of(self.function))

    def block_statements(self, statements, number):
        result = []
        if number == 0:  # no index is in range before its loop has begun
            nowhere = [assign(f"{PREFIX}at_{n}", ast.Constant(math.nan)) for n in self.counters]
            result += self.mark(nowhere, statements[0])
        for s in statements:
            rewrite = getattr(self, "s_" + type(s).__name__, None)
            if rewrite is None:
                self.refuse(s)
            result += self.mark(rewrite(s), s)
        return result

    def bind(self, name, value, number=None):
        computed = isinstance(value, (ast.BinOp, ast.Compare, ast.IfExp)) or is_call(value, "load")
        if not computed:  # a variable, perhaps, that nothing has been assigned to
            value = self.call("defined", value)
        return [assign(name, value)]

    def find_unsure_reads(self):
        return ()  # of one thread: `defined` finds them

    # ------------------------------------------------------------------ direct arrays

    def is_direct(self, node):
        """Tell whether an expression is an element of a direct array."""
        if not (isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)):
            return False
        axes = self.direct.get(node.value.id)
        return axes == len(indices_of(node.slice)) and not is_part(node.slice)

    def in_range(self, array, indices):
        """Return a test of indices, the indices again, and the plain integers they stand for."""
        types, tests, again, places = [], [], [], []
        for index, size in zip(indices, SIZES[len(indices)], strict=True):
            place = self.temporary()
            places.append(place)
            number = self.plain(index)
            if number is None:
                name = self.temporary()
                index = ast.NamedExpr(ast.Name(name, ast.Store()), self.index(index))
                types.append(self.call("type", index))
                again.append(load_name(name))
                number = self.call("int", load_name(name))
            else:
                again.append(self.expression(index))
            number = ast.NamedExpr(ast.Name(place, ast.Store()), number)
            size = ast.Attribute(load_name(array), size, ast.Load())
            tests.append(ast.Compare(ast.Constant(0), [ast.LtE(), ast.Lt()], [number, size]))
        if types:
            whole = [*types[1:], load_name(PREFIX + "int64")]
            tests.insert(0, ast.Compare(types[0], [ast.Is()] * len(whole), whole))
        return tests, one_or_tuple(again), one_or_tuple(list(map(load_name, places)))

    def plain(self, index):
        """Return an index of loop variables and literals as Python's own integers, else None.

        They do not overflow as int64 does, but an int64 that is in range is never beside it.
        """
        if isinstance(index, ast.Constant) and type(index.value) is int:
            return ast.Constant(index.value)
        if isinstance(index, ast.Name) and index.id in self.counters:
            return load_name(PREFIX + "at_" + index.id)
        if isinstance(index, ast.BinOp) and isinstance(index.op, (ast.Add, ast.Sub, ast.Mult)):
            left, right = self.plain(index.left), self.plain(index.right)
            return left and right and ast.BinOp(left, index.op, right)
        return None

    def element(self, array, place, context):
        cells = ast.Attribute(load_name(array), "cells", ast.Load())
        return ast.Subscript(cells, place, context)

    def load_directly(self, array, indices, site):
        tests, index, place = self.in_range(array, indices)
        usual = self.call("load", load_name(array), index, site)
        element = self.element(array, place, ast.Load())
        if array in self.narrow:
            item = ast.Attribute(load_name(array), "item", ast.Load())
            places = place.elts if isinstance(place, ast.Tuple) else [place]
            element = self.call("int64", ast.Call(item, places, []))
        return ast.IfExp(all_of(tests), element, usual)

    def store_directly(self, array, indices, value, site):
        new = self.temporary()
        tests, index, place = self.in_range(array, indices)
        taken = ast.Attribute(load_name(array), "taken", ast.Load())
        tests.append(ast.Compare(self.call("type", load_name(new)), [ast.Is()], [taken]))
        if array in self.signed:  # NumPy wraps unsigned numbers round, and raises for signed ones
            ends = [ast.Attribute(load_name(array), end, ast.Load()) for end in ("low", "high")]
            within = [load_name(new), ends[1]]
            tests.append(ast.Compare(ends[0], [ast.LtE(), ast.LtE()], within))
        usual = self.call("store", load_name(array), index, load_name(new), site)
        put = ast.Assign([self.element(array, place, ast.Store())], load_name(new))
        return [assign(new, value), ast.If(all_of(tests), [put], [ast.Expr(usual)])]

    def e_Subscript(self, node):
        if not self.is_direct(node):
            return super().e_Subscript(node)
        if node.value.id in self.narrow and self.uses.width(node) < self.widths[node.value.id]:
            return super().e_Subscript(node)
        site = self.site_constant(node, index=node.slice)
        return self.load_directly(node.value.id, indices_of(node.slice), site)

    def store(self, target, value, node, source=None):
        if not self.is_direct(target):
            return super().store(target, value, node)
        site, indices = self.site_constant(target, index=target.slice), indices_of(target.slice)
        return self.mark(self.store_directly(target.value.id, indices, value, site), target)

    def s_AugAssign(self, s):
        target = s.target
        if not self.is_direct(target) or target.value.id in self.narrow:
            return super().s_AugAssign(s)
        value, array = self.expression(s.value), target.value.id
        result, indices = [], []
        for index in indices_of(target.slice):
            if self.plain(index) is None:  # to be evaluated once
                name = self.temporary()
                result.append(assign(name, self.index(index)))
                index = load_name(name)
            indices.append(index)
        site = self.site_constant(target, index=target.slice)
        old = self.load_directly(array, indices, site)
        new = self.operation(s, s.op, old, value, target, s.value)
        return result + self.store_directly(array, indices, new, site)

    # ------------------------------------------------------------------ control flow

    def both(self, a, b, b_is_pure):
        return ast.BoolOp(ast.And(), [a, b])

    def e_BoolOp(self, node):
        return ast.BoolOp(node.op, [self.expression(value) for value in node.values])

    def e_IfExp(self, node):
        sides = node.body, node.orelse
        result = ast.IfExp(*map(self.expression, (node.test, *sides)))
        names = [load_name(side.id) for side in sides if isinstance(side, ast.Name)]
        return self.call("widened", result, self.literal_dtype(*sides), *names)

    def uncounted(self, node, op, left, right, left_source, right_source):
        divides = isinstance(op, (ast.FloorDiv, ast.Mod)) and not isinstance(left, ast.Constant)
        number = getattr(right_source, "value", None)
        if divides and type(number) is int and number:  # what floordiv and mod make sure of
            return ast.BinOp(left, op, right)
        return super().uncounted(node, op, left, right, left_source, right_source)

    def s_If(self, s):
        otherwise = self.block(s.orelse) if s.orelse else []
        return [ast.If(self.expression(s.test), self.block(s.body), otherwise)]

    def s_For(self, s):
        (loop,) = super().s_For(s)
        name = s.target.id
        if loop.target.id != name:  # set by the loop: there is nothing to blend
            loop.target, loop.body = ast.Name(name, ast.Store()), loop.body[1:]
        if name in self.counters and loop.iter.func.id == PREFIX + "range_turns":
            loop.target = ast.Name(PREFIX + "at_" + name, ast.Store())
            loop.iter.func.id = PREFIX + "count_turns"
            value = self.call("int64", load_name(loop.target.id))
            loop.body.insert(0, assign(name, value))
        return [loop]

    def s_While(self, s):
        decides = ast.Constant(decided_by(s))
        turns = self.call("while_turns", self.site_constant(s.test), decides)
        leave = ast.If(ast.UnaryOp(ast.Not(), self.expression(s.test)), [ast.Break()], [])
        body = self.mark([leave], s.test) + self.block(s.body)
        return [ast.For(ast.Name(self.temporary(), ast.Store()), turns, body, [])]

    def s_Break(self, s):
        return [ast.Break()]

    def s_Continue(self, s):
        return [ast.Continue()]

    def s_Return(self, s):
        return [*super().s_Return(s), ast.Return(None)]


class Uses:
    """What becomes of the values of a function's expressions.

    A loaded int32 is a TypedInts, an array even of one. Where it is only compared, or meets other
    numbers in arithmetic, whose result is the same as of an int64, it may be an int64 at once.
    """

    def __init__(self, function):
        self.parents = {child: node for node in walk(function) for child in children(node)}
        self.loads = {}  # variable -> where it is read
        for node in self.parents:
            if isinstance(node, ast.Name):
                self.loads.setdefault(node.id, []).append(node)
        self.parameters = set(parameters_of(function))
        self.widths = {}  # of variables

    def width(self, node):
        """Return ANY, INT32 or NONE: which narrow integers may be an int64 here."""
        parent = self.parents.get(node)
        if isinstance(parent, ast.Compare):
            odd = (ast.Is, ast.IsNot, ast.In, ast.NotIn)
            return NONE if any(isinstance(op, odd) for op in parent.ops) else ANY
        if isinstance(parent, (ast.If, ast.While)) and node is parent.test:
            return ANY
        if isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not):
            return ANY
        if isinstance(parent, ast.BoolOp):
            return self.width(parent)
        if isinstance(parent, ast.Subscript) and node is parent.slice:
            return ANY
        if isinstance(parent, (ast.BinOp, ast.AugAssign)):
            return INT32 if isinstance(parent.op, SAFE_OPERATORS) else NONE
        if isinstance(parent, ast.Assign):
            return min(map(self.target_width, parent.targets))
        if isinstance(parent, ast.Tuple):
            return self.part_width(node, parent)
        return NONE

    def part_width(self, node, whole):
        """Return the same of a part of a tuple."""
        parent = self.parents[whole]
        if isinstance(parent, ast.Subscript):
            return ANY
        if isinstance(parent, ast.Assign) and whole is parent.value:
            number = whole.elts.index(node)
            targets = [t for t in parent.targets if isinstance(t, ast.Tuple)]
            if len(targets) == len(parent.targets) == 1 and len(targets[0].elts) > number:
                return self.target_width(targets[0].elts[number])
        return NONE

    def target_width(self, target):
        if isinstance(target, ast.Subscript):
            return ANY
        return self.variable_width(target.id) if isinstance(target, ast.Name) else NONE

    def variable_width(self, name):
        if name in self.parameters:
            return NONE
        if name not in self.widths:
            self.widths[name] = ANY  # while its uses are looked at, one of which may be itself
            reads = [n for n in self.loads[name] if isinstance(n.ctx, ast.Load)]
            changes = [n for n in self.loads[name] if self.is_changed(n)]
            found = [*map(self.width, reads), *(self.change_width(n) for n in changes)]
            self.widths[name] = min(found, default=ANY)
        return self.widths[name]

    def is_changed(self, node):
        return isinstance(self.parents[node], ast.AugAssign) and isinstance(node.ctx, ast.Store)

    def change_width(self, node):
        return INT32 if isinstance(self.parents[node].op, SAFE_OPERATORS) else NONE


def is_call(node, operation):
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == PREFIX + operation


def loop_variables(function):
    """Return the variables that nothing but `for ... in range(...)` sets."""
    assigned = stored(function)
    set_by_loops = [
        x.target.id
        for x in walk(function)
        if isinstance(x, ast.For)
        and isinstance(x.target, ast.Name)
        and isinstance(x.iter, ast.Call)
        and getattr(x.iter.func, "id", "") == "range"
        and not x.iter.keywords
    ]
    if "range" in assigned:
        return set()
    return {name for name in set_by_loops if set_by_loops.count(name) == assigned.count(name)}


def all_of(tests):
    return tests[0] if len(tests) == 1 else ast.BoolOp(ast.And(), tests)


def one_or_tuple(parts):
    """Return `i`, or `(i, j)`."""
    return parts[0] if len(parts) == 1 else ast.Tuple(parts, ast.Load())


class SerialLanes(Lanes):
    """One thread: loops are Python's own."""

    def range_turns(self, *arguments):
        return map(INT64, self.count_turns(*arguments))

    def count_turns(self, exits, *bounds):
        """Yield Python's own integers."""
        numbers = [x.item() if type(x) is INT64 else self.loop_bound(x).item() for x in bounds]
        if len(numbers) == 3 and numbers[2] == 0:
            return super().range_turns(exits, *bounds)  # raises
        numbers = range(*numbers)
        return self.watched_turns(numbers, exits)

    def same_turns(self, values):
        return values

    def while_turns(self, site, decided_by):
        """Turn by turn, see that a while loop can end."""
        patience, turns = Patience(self, site, decided_by), 1
        self.whiles.append(patience)
        try:
            while True:
                for _ in range(turns):
                    yield
                turns = 1 if patience.waits else min(2 * turns, TURNS)
                patience.check()
                self.progress.turn(self.whiles)
        finally:
            self.whiles.remove(patience)

    def defined(self, value):
        """Return the value that a variable is bound to."""
        if type(value) is Undefined:
            value.fail()
        return value


class SerialOperators(Operators):
    """Those of one thread: of two int64, only a divisor of 0 needs the general rule."""

    def floordiv(self, a, b):
        return a // b if type(a) is type(b) is INT64 and b else super().floordiv(a, b)

    def mod(self, a, b):
        return a % b if type(a) is type(b) is INT64 and b else super().mod(a, b)


class SerialMemory(Memory):
    """One thread: a single element takes a short way.

    `direct` are the arguments that the rewritten code indexes itself, by name.
    """

    direct = {}

    def global_array(self, array, name):
        if name not in self.direct or array.ndim not in SIZES:
            return super().global_array(array, name)
        array = Direct(array, name)
        self.globals.append(array)
        return array

    def load(self, array, index, site):
        if isinstance(array, (GlobalArray, LocalArray)) and not array.needs_type:
            place = element_place(array, index)
            if place is not None:
                if array.kind == "global":
                    return array.flat[place]
                if array.stored is None or array.stored.values[place]:
                    return array.values[place]
        return Memory.load(self, array, index, site)

    def store(self, array, index, value, site):
        if isinstance(array, (GlobalArray, LocalArray)) and isinstance(value, np.generic):
            place = element_place(array, index)
            if place is not None and array.writeable:
                same = value.dtype is array.dtype
                value = value if same else value.astype(array.dtype)
                (array.values if array.kind == "local" else array.flat)[place] = value
                if array.kind == "local" and array.stored is not None:
                    array.stored.values[place] = np.True_
                return
        Memory.store(self, array, index, value, site)


def direct_arguments(code, arguments, signatures):
    """Return {name: (name, number of axes, dtype's name)} of the arguments that may be `Direct`."""
    direct = {}
    for name, value in zip(code.co_varnames, arguments, strict=False):
        value = host_value(value)
        if isinstance(value, np.ndarray) and value.ndim in SIZES and value.size:
            if signatures and value.dtype.kind in "iu":
                continue  # it may be taken for one of the other signedness
            dtype = value.dtype.name
            if dtype in NARROW or dtype in PLAIN:
                direct[name] = name, value.ndim, dtype
    return direct


def element_place(array, index):
    """Return where in its memory an element is; None where `locate` must say, or raise."""
    axes = array.axes
    if array.lanes is not None or (array.kind == "local" and array.values.matrix is not None):
        return None
    if type(index) is INT64:
        if len(axes) != 1:
            return None
        size, stride = axes[0]
        i = int(index)
        return array.offset + i * stride if 0 <= i < size else None
    if type(index) is not tuple or len(index) != len(axes):
        return None
    place = array.offset
    for i, (size, stride) in zip(index, axes, strict=True):
        if type(i) is not INT64:
            return None
        i = int(i)
        if not 0 <= i < size:
            return None
        place += i * stride
    return place
