"""A symbolic walk of a kernel: every access as indices, guards, and a place among the barriers.

What a kernel loads, and what is no integer, is `Data`: a condition or an index made of it becomes a
new, free variable. So the walk takes an execution for possible that is not, never the other way.

    if             both branches, under guards; a known condition takes one
    for, while     one iteration of number j, any; v += c becomes v0 + c * j, what else changes is
                   Data. A loop of known length is unrolled where that is not enough, as in a tree
    a call         of a device function: its body
"""

import ast
import builtins
import functools
import inspect
import itertools
import math
import operator
import types
from dataclasses import dataclass, field

import numpy as np
import z3

from .dtypes import numpy_dtype
from .errors import Site, UnsupportedError
from .integers import LARGE, Integers, choose, conj, disj, is_condition, is_number, neg, variables
from .names import DIALECTS, cuda, name_of, python_function, value_outside
from .race_rules import ATOMIC, LOAD, STORE
from .scopes import names as mentioned
from .syntax import indices_of, parameters_of, stored
from .transform import tree_of as new_tree

MOST_TURNS = 64  # of a loop that is unrolled
MOST_STATEMENTS = 20_000
WARP = 32
BLOCK_BARRIER, WARP_BARRIER, EXIT = "syncthreads", "syncwarp", "exit"
COMPARE = {ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne"}
COMPUTE = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.FloorDiv: "floordiv"}
COMPUTE |= {ast.Mod: "mod", ast.LShift: "lshift", ast.RShift: "rshift", ast.BitAnd: "and_"}
COMPUTE |= {ast.BitOr: "or_", ast.BitXor: "xor", ast.Pow: "pow", ast.Div: "truediv"}
MISSING = object()
tree_of = functools.lru_cache(maxsize=64)(new_tree)  # its nodes stay the same objects
RANK = 'Give prove the shapes of the arguments, as in "float32[n, m]".'


@dataclass
class Data:
    """A value that is not followed; `why` says where it comes from."""

    why: str
    contents: bool = False  # whether from the contents of an argument


@dataclass(eq=False)
class Array:
    """An array, or the part of it that the indices `prefix` choose."""

    name: str
    kind: str
    dims: list
    fixed: bool = True  # else its first index tells its rank
    prefix: tuple = ()
    base: object = None

    @property
    def whole(self):
        return self.base or self


@dataclass(eq=False)
class Node:
    """An access, a barrier, or a statement that leaves a loop or the kernel."""

    action: str
    site: Site
    guard: object  # the condition, from the beginning of the kernel on
    inner: object  # the part of it since the beginning of the innermost loop
    array: Array = None
    index: tuple = ()
    why: str = ""  # of an index that is Data; of an exit: its kind
    path: tuple = ()  # of (statements, number), from the outside in


@dataclass(eq=False)
class Loop:
    """A loop that is not unrolled: one iteration of it, number j."""

    j: object
    inner: object
    first: object = None  # of a for loop: whether it begins, and whether j + 1 follows j
    next: object = None
    body: list = field(default_factory=list)
    exits: bool = False


class Name(str):
    """A name of Numba, such as cuda.threadIdx."""


class Again(Exception):
    """The walk must unroll one more loop."""


class Sizes(dict):
    """The names in the text of a shape: each is a size."""

    def __init__(self, integers):
        super().__init__()
        self.integers = integers

    def __missing__(self, name):
        return self.integers.size(name)

    def __contains__(self, name):
        return name not in vars(builtins)


def first_data(*values):
    return next((v for v in values if isinstance(v, Data)), None)


def is_carried(body, name):
    """Tell whether an iteration may read what the one before has assigned."""
    for s in body:
        if isinstance(s, ast.Assign) and name in stored(s):
            return name in mentioned(s.value)
        if isinstance(s, ast.For) and name in stored(s.target):
            return name in mentioned(s.iter)
        if name in mentioned(s):
            return True
    return False


class Shape:
    """The shape of an array."""

    def __init__(self, array):
        self.array = array

    def unpacked(self, walk, count):
        array, depth = self.array.whole, len(self.array.prefix)
        dims = [walk.dimension(None, array, depth + i) for i in range(count)]
        array.fixed = True
        return tuple(dims)


def array_names(tree, resolve):
    """Return the names of a function's arrays, those that it hands on to others too."""
    found = set()
    for n in ast.walk(tree):
        if isinstance(n, (ast.Subscript, ast.Attribute)) and isinstance(n.value, ast.Name):
            found.add(n.value.id)
        elif isinstance(n, ast.Call) and "atomic" in ast.unparse(n.func):
            found |= mentioned(n.args[0])
        elif isinstance(n, ast.Call) and isinstance(n.func, ast.Name):
            inner = python_function(resolve(n.func.id))
            if inner is not None:
                inner = tree_of(inner.__code__, inner.__code__.co_filename)
                arrays = array_names(inner, lambda name: None)
                pairs = zip(inner.args.args, n.args, strict=False)
                found |= {a.id for p, a in pairs if p.arg in arrays and isinstance(a, ast.Name)}
    return found


def plain(value, name):
    """Return a Python object as the walk sees it."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return float(value)
    if isinstance(value, tuple):
        return tuple(plain(v, name) for v in value)
    if isinstance(value, np.ndarray):
        return Array(name, "global", list(value.shape))
    if value is None or isinstance(value, str):
        return value
    own = name_of(value)
    if own is not None:
        return Name(f"cuda.{own}")
    if isinstance(value, types.ModuleType) and (value is cuda or value.__name__ in DIALECTS):
        return Name("cuda")
    return value


def as_dtype(function):
    """Return the NumPy type that a call converts to, or None."""
    numbers = isinstance(function, type) and issubclass(function, (np.generic, int, float))
    if numbers or type(function).__module__.startswith("numba"):
        try:
            return np.dtype(numpy_dtype(function))
        except (TypeError, AttributeError, ValueError):
            return None
    return None


class Walk:
    """All that a kernel may do, at any size.

    Parameters
    ----------
    function : Python function
    grid, block : lists of sizes, as texts or ints; None: any grid
    arguments : texts, numbers and None, one for each parameter
    where : texts, facts about the sizes
    unroll : set of loops, which the walk extends before it raises `Again`

    Attributes
    ----------
    integers : Integers
    grid, block : three sizes each; of a grid None where nothing asks for that axis
    arguments : dict of name -> Array, integer or other value
    body : nodes and loops in order; nodes : the nodes alone
    """

    def __init__(self, function, grid, block, arguments, where, unroll):
        self.function, self.unroll, self.unrollable = function, unroll, {}
        self.integers, self.allocated = Integers(), {}
        self.body, self.nodes, self.guard, self.base = [], [], [], 0
        self.loops, self.count, self.returns, self.positive = 0, 0, [], []
        self.env, self.file = Sizes(self.integers), "<sizes>"
        self.integers.facts += map(self.size_of, where)
        self.make_axes(self.sizes(block), grid and self.sizes(grid))
        tree = tree_of(function.__code__, function.__code__.co_filename)
        names = parameters_of(tree)
        arrays = array_names(tree, self.resolve)
        pairs = zip(names, arguments, strict=True)
        self.arguments = {n: self.argument(n, given, n in arrays) for n, given in pairs}
        self.env, self.file = dict(self.arguments), function.__code__.co_filename
        self.run(tree.body)
        self.place(self.body, ())

    # ------------------------------------------------------------------ the launch

    def size_of(self, text):
        """Return a size, or a fact about sizes, that a text says."""
        if isinstance(text, (int, np.integer)):
            return int(text)
        value = self.value(ast.parse(text.strip(), mode="eval").body)
        if not is_number(value) and not is_condition(value):
            raise ValueError(f"{text!r} is no whole number of sizes")
        return value

    def sizes(self, parts):
        """Return sizes as a list of three."""
        values = [self.size_of(p) for p in parts]
        for text, v in zip(parts, values, strict=True):
            if not is_number(v) or isinstance(v, int) and v < 1:
                raise ValueError(f"grid and block must be of sizes from 1 on, got {text!r}")
        return values + [1] * (3 - len(values))

    def argument(self, name, given, is_array):
        """Return an argument that a text says, or any."""
        if given is None:
            any_integer = None if is_array else self.integers.size(name, least=-LARGE)
            return Array(name, "global", [], fixed=False) if is_array else any_integer
        if not isinstance(given, str):
            return plain(given, name)
        try:
            dtype, bracket, dims = given.strip().partition("[")
            if not bracket:
                return self.size_of(given)
            np.dtype(dtype)
            values = self.value(ast.parse(f"({dims[:-1]},)", mode="eval").body)
            if not dims.endswith("]") or not all(map(is_number, values)):
                raise ValueError("no sizes")
        except (SyntaxError, ValueError, TypeError) as error:
            what = "'float32[n, m]' for an array, 'n' for an integer, a number or None"
            raise ValueError(f"argument '{name}' must be {what}; got {given!r}") from error
        self.integers.facts += [d >= 0 for d in values]
        return Array(name, "global", list(values))

    def make_axes(self, block, grid):
        """Make threadIdx, and blockIdx where the grid is known; else `block_index` does."""
        integers = self.integers
        self.block, self.grid = block, grid or [None] * 3
        self.blockIdx, self.thread = [None] * 3, [0] * 3
        for i, axis in enumerate("xyz"):
            integers.facts.append(block[i] >= 1)
            if not isinstance(block[i], int) or block[i] > 1:
                t = self.thread[i] = integers.fresh(f"threadIdx.{axis}")
                integers.define([t], t >= 0, t < block[i])
            if grid is not None:
                self.block_index(i)
        x, y, z = self.thread
        flat = x + integers.product(block[0], y)
        flat += integers.product(integers.product(block[0], block[1]), z)
        self.warp, self.lane = integers.divide(flat, WARP)

    def block_index(self, i):
        """Return blockIdx along an axis, and gridDim."""
        integers, axis = self.integers, "xyz"[i]
        if self.blockIdx[i] is None:
            if self.grid[i] is None:
                self.grid[i] = integers.size(f"gridDim.{axis}", 1)
            extent = self.grid[i]
            integers.facts.append(extent >= 1)
            self.blockIdx[i] = 0
            if not isinstance(extent, int) or extent > 1:
                b = self.blockIdx[i] = integers.fresh(f"blockIdx.{axis}")
                integers.blocks.append(integers.threads.pop())
                integers.define([b], b >= 0, b < extent)
        return self.blockIdx[i], self.grid[i]

    # ------------------------------------------------------------------ helpers

    def site(self, node):
        end = node.end_col_offset if node.end_lineno == node.lineno else 1 << 30
        return Site(self.file, node.lineno, node.col_offset, end, self.function.__name__)

    def refuse(self, node, message, hint=None):
        raise UnsupportedError(message, sites=[self.site(node)], hint=hint)

    def note(self, action, node, **more):
        guards = conj(self.guard), conj(self.guard[self.base :])
        self.nodes.append(Node(action, self.site(node), *guards, **more))
        self.body.append(self.nodes[-1])

    def place(self, body, path):
        """Tell each node where it is."""
        for i, x in enumerate(body):
            x.path = (*path, (body, i))
            if isinstance(x, Loop):
                self.place(x.body, x.path)

    def condition(self, value):
        """Return a value as a condition."""
        if is_condition(value):
            return value
        if is_number(value):
            return value != 0
        if isinstance(value, (float, str, tuple, type(None))):
            return bool(value)
        return self.integers.fresh("data", sort=z3.Bool)

    def data(self, node, why):
        """Return Data for what is not linear; if a loop can be unrolled, do that first."""
        for name in mentioned(node):
            value = self.env.get(name) if name not in vars(builtins) else None
            if isinstance(value, z3.ArithRef):
                for v in variables(value):
                    if v.get_id() in self.unrollable:
                        self.unroll.add(self.unrollable[v.get_id()])
                        raise Again
        return Data(why)

    # ------------------------------------------------------------------ statements

    def run(self, statements):
        """Run statements; return how they are left: a list of (return, break or continue; when)."""
        for i, s in enumerate(statements):
            self.count += 1
            if self.count > MOST_STATEMENTS:
                self.refuse(s, "the kernel is too long once its loops are unrolled")
            rule = getattr(self, f"s_{type(s).__name__}", None)
            if rule is None:
                self.refuse(s, f"{type(s).__name__} is not followed")
            left = rule(s)
            if not left:
                continue
            stays = neg(disj([c for _, c in left]))
            if stays is False:
                return left
            before = dict(self.env)
            self.guard.append(stays)
            rest = self.run(statements[i + 1 :])
            self.guard.pop()
            self.env = self.merged(stays, self.env, before)
            return left + [(kind, conj([stays, c])) for kind, c in rest]
        return []

    def s_Pass(self, s):
        pass

    s_Assert = s_Pass

    def s_Expr(self, s):
        self.value(s.value)

    def s_Assign(self, s):
        value = self.value(s.value)
        for target in s.targets:
            self.assign(target, value)

    def s_AnnAssign(self, s):
        if s.value is not None:
            self.assign(s.target, self.value(s.value))

    def s_AugAssign(self, s):
        whole = ast.copy_location(ast.BinOp(s.target, s.op, s.value), s)
        self.assign(s.target, self.value(whole))

    def assign(self, target, value):
        if isinstance(target, ast.Name):
            if isinstance(value, Array):
                value.name = value.name or target.id
            self.env[target.id] = value
        elif isinstance(target, ast.Subscript):
            self.access(target, STORE)
        elif isinstance(target, (ast.Tuple, ast.List)):
            if isinstance(value, Data):
                value = [value] * len(target.elts)
            if isinstance(value, Shape):
                value = value.unpacked(self, len(target.elts))
            if not isinstance(value, (tuple, list)) or len(value) != len(target.elts):
                self.refuse(target, "this is not unpacked into as many names")
            for t, v in zip(target.elts, value, strict=True):
                self.assign(t, v)
        else:
            self.refuse(target, "this assignment is not followed")

    def s_If(self, s):
        test = self.condition(self.value(s.test))
        if isinstance(test, bool):
            return self.run(s.body if test else s.orelse)
        before, exits, ends = self.env, [], []
        for c, statements in ((test, s.body), (neg(test), s.orelse)):
            self.env = dict(before)
            self.guard.append(c)
            left = self.run(statements)
            self.guard.pop()
            exits += [(kind, conj([c, e])) for kind, e in left]
            ends.append(self.env)
        self.env = self.merged(test, *ends)
        return exits

    def merged(self, test, one, other):
        one, other = other | one, one | other  # a name of one branch alone: its value there
        return {name: self.merge(test, one[name], other[name], name) for name in one}

    def merge(self, test, a, b, name):
        """Return a where the condition holds, else b."""
        if a is b or type(a) is type(b) and not isinstance(a, z3.ExprRef) and a == b:
            return a
        if is_number(a) and is_number(b) or is_condition(a) and is_condition(b):
            return choose(test, a, b)
        if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
            return tuple(self.merge(test, x, y, name) for x, y in zip(a, b, strict=True))
        return first_data(a, b) or Data(f"'{name}' depends on a branch")

    def s_Return(self, s):
        value = self.value(s.value) if s.value else None
        if self.returns:
            depth, results = self.returns[-1]
            results.append((conj(self.guard[depth:]), value))
        return self.leave(s, "return")

    def s_Raise(self, s):
        return self.leave(s, "return")

    def s_Break(self, s):
        return self.leave(s, "break")

    def s_Continue(self, s):
        return [("continue", True)]

    def leave(self, s, kind):
        if self.loops:
            self.note(EXIT, s, why=kind)
        return [(kind, True)]

    # ------------------------------------------------------------------ loops

    def s_For(self, s):
        values = None
        if isinstance(s.iter, ast.Call) and self.value(s.iter.func) is range:
            bounds = [self.value(a) for a in s.iter.args]
            low, high = (0, bounds[0]) if len(bounds) == 1 else bounds[:2]
            step = bounds[2] if len(bounds) == 3 else 1
            if all(isinstance(x, int) for x in (low, high, step)) and step:
                values = range(low, high, step)
        else:
            values = self.value(s.iter)
            if not isinstance(values, tuple):
                self.refuse(s.iter, "only range(...) and tuples are followed in a for loop")
        if values is not None and (not isinstance(values, range) or self.must_unroll(s, values)):
            return self.unrolled(s, values)
        self.any_turn(s, low, self.integer(high), step, values)
        return None

    def must_unroll(self, s, values):
        if s in self.unroll:
            return True
        if len(values) > MOST_TURNS:
            return False
        grows = self.inductions(s.body)
        known = [n for n in set(stored(*s.body)) - set(grows) if self.is_known(n)]
        return any(is_carried(s.body, name) for name in known)

    def is_known(self, name):
        value = self.env.get(name)
        return is_number(value) or is_condition(value)

    def unrolled(self, s, values):
        """Run a for loop turn by turn."""
        turns = iter(values)

        def turn():
            for value in turns:
                self.assign(s.target, value)
                return True
            return False

        return self.turn_by_turn(s, turn)

    def turn_by_turn(self, s, turn):
        depth, exits, partly = len(self.guard), [], []
        while turn():
            left = [(k, conj([*self.guard[depth:], c])) for k, c in self.run(s.body)]
            exits += [(k, c) for k, c in left if k == "return"]
            stays = neg(disj([c for k, c in left if k != "continue"]))
            if stays is False:
                break
            if stays is not True:
                partly.append((stays, dict(self.env)))
                self.guard.append(stays)
        del self.guard[depth:]
        for stays, before in reversed(partly):
            self.env = self.merged(stays, self.env, before)
        return exits

    def s_While(self, s):
        quiet = not any(isinstance(n, (ast.Subscript, ast.Call)) for n in ast.walk(s.test))

        def turn():
            test = self.condition(self.value(s.test)) if quiet else None
            if isinstance(test, bool) and not isinstance(s.test, ast.Constant):
                return test
            self.any_turn(s)
            return False

        return self.turn_by_turn(s, turn)

    def inductions(self, body):
        """Return {name: (sign, amount)} of variables to which each turn adds the same."""
        names, found = stored(*body), {}
        skips = any(isinstance(n, ast.Continue) for s in body for n in ast.walk(s))
        for s in body:
            adds = isinstance(s, ast.AugAssign) and isinstance(s.op, (ast.Add, ast.Sub))
            if skips or not adds:
                continue
            calls = (n for n in ast.walk(s.value) if isinstance(n, (ast.Subscript, ast.Call)))
            quiet = all(getattr(getattr(n, "func", n), "attr", "") == "gridsize" for n in calls)
            name = getattr(s.target, "id", None)
            if quiet and names.count(name) == 1 and not mentioned(s.value) & set(names):
                if is_number(self.env.get(name)):
                    amount = self.value(s.value)
                    if is_number(amount):
                        found[name] = amount if isinstance(s.op, ast.Add) else -amount
        return found

    def any_turn(self, s, low=None, high=None, step=1, values=None):
        """Run iteration j of a loop, whatever j."""
        integers, j = self.integers, self.integers.fresh("turn")
        if values is not None and len(values) <= MOST_TURNS:
            self.unrollable[j.get_id()] = s
        grows, starts = self.inductions(s.body), dict(self.env)
        changed = {*stored(*s.body), *(stored(s.target) if low is not None else ())}

        def after(turns):
            for name in changed:
                change = integers.product(grows[name], turns) if name in grows else None
                why = f"'{name}' changes in a loop, at line {s.lineno}"
                self.env[name] = Data(why) if change is None else starts[name] + change

        after(j)
        loop = Loop(j, conj(self.guard[self.base :]))
        self.body.append(loop)
        outside, base, depth = self.body, self.base, len(self.guard)
        self.body = loop.body
        self.guard.append(j >= 0)
        if low is None:
            self.guard.append(self.condition(self.value(s.test)))
        else:
            low = self.integer(low)
            if not is_number(step) or (isinstance(step, int) and step == 0):
                self.refuse(s.iter, "the step of this loop is not known")
            jump = integers.product(step, j)
            if not isinstance(step, int):
                if not integers.is_shared(step):
                    self.refuse(s.iter, "the step of this loop differs between threads")
                self.positive.append((step, self.site(s.iter)))
            self.assign(s.target, low + jump)
            down = isinstance(step, int) and step < 0
            loop.first = low > high if down else low < high
            loop.next = low + jump + step > high if down else low + jump + step < high
            self.guard.append(low + jump > high if down else low + jump < high)
        self.base = len(self.guard)
        self.loops += 1
        left = self.run(s.body)
        self.loops -= 1
        loop.exits = any(kind != "continue" for kind, _ in left)
        self.body, self.base = outside, base
        del self.guard[depth:]
        turns = integers.fresh("turns")
        integers.define([turns], turns >= 0)
        after(turns)

    # ------------------------------------------------------------------ values

    def value(self, e):
        rule = getattr(self, f"e_{type(e).__name__}", None)
        if rule is None:
            self.refuse(e, f"{type(e).__name__} is not followed")
        return rule(e)

    def integer(self, value):
        """Return a value as an integer; Data is any integer."""
        if is_number(value):
            return value
        if is_condition(value):
            return choose(value, 1, 0)
        return self.integers.fresh("contents" if getattr(value, "contents", False) else "data")

    def e_Constant(self, e):
        return e.value

    def e_Tuple(self, e):
        return tuple(map(self.value, e.elts))

    def e_Name(self, e):
        if e.id in self.env:
            return self.env[e.id]
        value = self.resolve(e.id)
        if value is MISSING:
            self.refuse(e, f"name '{e.id}' is not defined")
        return value

    def resolve(self, name):
        """Return what a name outside of the kernel means."""
        value = value_outside(self.function, name, MISSING)
        return value if value is MISSING else plain(value, name)

    def e_Attribute(self, e):
        value = self.value(e.value)
        if isinstance(value, Name):
            return self.of_cuda(f"{value}.{e.attr}")
        if isinstance(value, Array):
            return self.of_array(e, value)
        if isinstance(value, Data):
            return value
        if isinstance(value, types.ModuleType) or hasattr(value, "_fields"):
            if hasattr(value, e.attr):
                return plain(getattr(value, e.attr), e.attr)
        self.refuse(e, f".{e.attr} is not followed here")
        return None

    def of_cuda(self, name):
        first, _, axis = name.rpartition(".")
        if axis in tuple("xyz"):
            i = "xyz".index(axis)
            if first in ("cuda.blockIdx", "cuda.gridDim"):
                return self.block_index(i)[first == "cuda.gridDim"]
            if first in ("cuda.threadIdx", "cuda.blockDim"):
                return (self.thread if first == "cuda.threadIdx" else self.block)[i]
        if name == "cuda.warpsize":
            return WARP
        if name == "cuda.laneid":
            return self.lane
        return Name(name)

    def of_array(self, e, array):
        depth = len(array.prefix)
        if e.attr == "shape":
            return Shape(array)
        if e.attr == "ndim" and array.whole.fixed:
            return len(array.whole.dims) - depth
        if e.attr == "size":
            if not array.whole.fixed:
                self.dimension(e, array.whole, 0)
                array.whole.fixed = True
            total = 1
            for d in array.whole.dims[depth:]:
                total = self.integers.product(total, d)
            return total
        if e.attr == "dtype":
            return Data("a type")
        self.refuse(e, f"'{array.name}.{e.attr}' is not followed")
        return None

    def dimension(self, e, array, i):
        """Return the extent of an axis of a whole array."""
        if i >= len(array.dims) and array.fixed:
            self.refuse(e, f"'{array.name}' has {len(array.dims)} axes, not {i + 1}")
        while i >= len(array.dims):
            array.dims.append(self.integers.size(f"{array.name}.shape[{len(array.dims)}]"))
        return array.dims[i]

    def e_Subscript(self, e):
        value = self.value(e.value)
        if not isinstance(value, (Shape, tuple)):
            return self.access(e, LOAD, value)
        i = self.value(e.slice)
        if isinstance(value, Shape) and isinstance(i, int) and i >= 0:
            return self.dimension(e, value.array.whole, i + len(value.array.prefix))
        if isinstance(value, Shape) and value.array.whole.fixed:
            value = value.unpacked(self, len(value.array.whole.dims) - len(value.array.prefix))
        if isinstance(value, tuple) and isinstance(i, int) and -len(value) <= i < len(value):
            return value[i]
        self.refuse(e, "a tuple that threads index differently is not followed", RANK)
        return None

    def access(self, e, action, array=None, index=None):
        """Note an access; return what is loaded, or the rows that the indices choose."""
        array = self.value(e.value) if array is None else array
        if not isinstance(array, Array):
            self.refuse(e, "only arrays are indexed", RANK)
        index = e.slice if index is None else index
        parts = indices_of(index)
        whole, places, why = array.whole, list(array.prefix), ""
        for p in parts:
            value = None if isinstance(p, ast.Slice) else self.value(p)
            for v in value if isinstance(value, tuple) else [value]:
                if isinstance(v, Data):
                    why = why or v.why
                elif not is_number(v) and not is_condition(v):
                    self.refuse(p, "slices and index arrays are not followed")
                v = self.integer(v)
                extent = self.dimension(p, whole, len(places))
                if isinstance(p, ast.UnaryOp) and isinstance(v, int) and v < 0:
                    v = v + extent  # a literal counts from the end
                places.append(v)
        whole.fixed = True
        if len(places) < len(whole.dims):
            if action != LOAD:
                self.refuse(e, "a whole row is not followed")
            return Array(array.name, array.kind, whole.dims, True, tuple(places), whole)
        self.note(action, e, array=whole, index=tuple(places), why=why)
        why = f"'{array.name}' is loaded at line {e.lineno}"
        return Data(why, whole.kind == "global")

    def e_BinOp(self, e):
        a, b = self.value(e.left), self.value(e.right)
        name = COMPUTE.get(type(e.op))
        if isinstance(a, Array) or isinstance(b, Array) or name is None:
            self.refuse(e, "whole arrays are not followed")
        if isinstance(a, (int, float)) and isinstance(b, (int, float)):
            try:
                return getattr(operator, name)(a, b)
            except (ArithmeticError, TypeError, ValueError):
                return Data("an error")
        if isinstance(a, tuple) and isinstance(b, tuple):
            return a + b
        unknown = first_data(a, b)
        if is_condition(a) or is_condition(b) or isinstance(b, int) and name == "mod":
            a, b = (self.integer(x) if is_condition(x) or x is a and unknown else x for x in (a, b))
        if not is_number(a) or not is_number(b):
            return unknown or Data("floating-point arithmetic")
        result = self.arithmetic(name, a, b)
        return self.data(e, f"line {e.lineno} is not linear") if result is None else result

    def arithmetic(self, name, a, b):
        """Return the result for integers, of which one at least is not known, or None."""
        integers = self.integers
        if name in ("add", "sub"):
            return a + b if name == "add" else a - b
        if name == "mul":
            return integers.product(a, b)
        if name in ("floordiv", "mod"):
            parts = integers.divide(a, b)
            return parts and parts[name == "mod"]
        if not isinstance(b, int):
            a, b = b, a
            if name in ("lshift", "rshift", "pow") or not isinstance(b, int):
                return None
        if b < 0:
            return None
        if name == "lshift":
            return a * 2**b
        if name == "rshift":
            return integers.divide(a, 2**b)[0]
        if name == "and_" and b & (b + 1) == 0:
            return integers.divide(a, b + 1)[1]
        if name in ("and_", "xor", "or_") and b & (b - 1) == 0:  # one bit
            bit = integers.divide(integers.divide(a, b)[0], 2)[1] if b else 0
            if name == "and_":
                return b * bit
            return a + b * (1 - bit) - (b * bit if name == "xor" else 0)
        return a if name == "pow" and b == 1 else None

    def e_UnaryOp(self, e):
        value = self.value(e.operand)
        if isinstance(e.op, ast.Not):
            return neg(self.condition(value))
        if not is_number(value) and not isinstance(value, float):
            return value if isinstance(value, Data) else Data("arithmetic")
        if isinstance(e.op, ast.USub):
            return -value
        return value if isinstance(e.op, ast.UAdd) else -value - 1

    def e_BoolOp(self, e):
        """Evaluate each part where the ones before do not decide."""
        depth, found, is_and = len(self.guard), [], isinstance(e.op, ast.And)
        for part in e.values:
            found.append(self.condition(self.value(part)))
            if found[-1] is (not is_and):
                break
            self.guard.append(found[-1] if is_and else neg(found[-1]))
        del self.guard[depth:]
        return (conj if is_and else disj)(found)

    def e_Compare(self, e):
        values = [self.value(x) for x in (e.left, *e.comparators)]
        pairs = zip(e.ops, itertools.pairwise(values), strict=True)
        return conj([self.compare(op, a, b) for op, (a, b) in pairs])

    def compare(self, op, a, b):
        if isinstance(op, (ast.Is, ast.IsNot)):
            return (a is b) == isinstance(op, ast.Is)
        known = (int, float, str, type(None))
        both_known = isinstance(a, known) and isinstance(b, known)
        if type(op) in COMPARE and (both_known or is_number(a) and is_number(b)):
            return getattr(operator, COMPARE[type(op)])(a, b)
        return self.integers.fresh("data", sort=z3.Bool)

    def e_IfExp(self, e):
        test = self.condition(self.value(e.test))
        if isinstance(test, bool):
            return self.value(e.body if test else e.orelse)
        values = []
        for c, part in ((test, e.body), (neg(test), e.orelse)):
            self.guard.append(c)
            values.append(self.value(part))
            self.guard.pop()
        return self.merge(test, *values, "a choice")

    # ------------------------------------------------------------------ calls

    def e_Call(self, e):
        function = self.value(e.func)
        if isinstance(function, Name):
            return self.call_cuda(e, function.removeprefix("cuda."))
        values = [self.value(a) for a in e.args]
        named = {k.arg: self.value(k.value) for k in e.keywords}
        inner = python_function(getattr(function, "on_the_engine", function))
        if inner is not None:
            return self.inline(e, inner, values, named)
        if function is len and isinstance(values[0], Array):
            return self.dimension(e, values[0].whole, len(values[0].prefix))
        numbers = bool(values) and all(map(is_number, values))
        if numbers and function in (min, max) and len(values) > 1:
            less = operator.lt if function is min else operator.gt
            return functools.reduce(lambda a, b: choose(less(a, b), a, b), values)
        if numbers and function is abs:
            return choose(values[0] < 0, -values[0], values[0])
        if any(isinstance(v, (Array, Shape)) for v in (*values, *named.values())):
            self.refuse(e, "what this call does with the array is not followed")
        dtype = as_dtype(function)
        if dtype is not None and len(values) == 1:
            return self.cast(values[0], dtype)
        if inspect.isbuiltin(function) and all(isinstance(v, (int, float)) for v in values):
            try:
                return function(*values, **named)  # of Python or math, as math.sqrt(64)
            except (ArithmeticError, TypeError, ValueError):
                return Data("an error")
        if function is range or inspect.isfunction(function):
            self.refuse(e, "this call is not followed")
        return first_data(*values) or Data("a function's result")

    def cast(self, value, dtype):
        """Return a signed integer as it is: it is taken to fit."""
        if dtype.kind == "b":
            return self.condition(value)
        if dtype.kind == "f" and isinstance(value, (int, float)):
            return float(dtype.type(value))
        if dtype.kind == "i" and dtype.itemsize >= 4:
            if isinstance(value, float) and math.isfinite(value):
                return int(value)
            if is_number(value) or is_condition(value):
                return self.integer(value)
        return value if isinstance(value, Data) else Data("another type")

    def call_cuda(self, e, name):
        if name == "syncwarp":
            masks = [self.value(a) for a in e.args]
            if all(isinstance(m, int) and m in (-1, 0xFFFFFFFF) for m in masks):
                self.note(WARP_BARRIER, e)
            return None
        if name in ("shared.array", "local.array", "shared_array", "local_array"):
            return self.allocate(e, name[: name.index("array") - 1])
        values = [self.value(a) for a in e.args]
        if name in ("grid", "gridsize"):
            pairs = [(self.block_index(i)[name == "gridsize"], i) for i in range(values[0])]
            found = [self.integers.product(self.block[i], which) for which, i in pairs]
            if name == "grid":
                found = [x + t for x, t in zip(found, self.thread, strict=False)]
            return found[0] if values[0] == 1 else tuple(found)
        if name.startswith("atomic."):
            first = ast.copy_location(ast.Constant(0), e)
            return self.access(e, ATOMIC, values[0], first if "swap" in name else e.args[1])
        if name.startswith("cg") or any(isinstance(v, (Array, Shape)) for v in values):
            self.refuse(e, f"cuda.{name} is not followed")
        if name.startswith("syncthreads"):
            self.note(BLOCK_BARRIER, e)
        if name == "selp":
            return self.merge(self.condition(values[0]), *values[1:], "a choice")
        dtype = as_dtype(getattr(cuda, name, None))
        if dtype is not None and len(values) == 1:
            return self.cast(values[0], dtype)
        return Data(f"the result of cuda.{name}")

    def allocate(self, e, kind):
        given = {k.arg: k.value for k in e.keywords}
        shape = self.value(given.get("shape", e.args[0] if e.args else None))
        dims = list(shape) if isinstance(shape, tuple) else [shape]
        if not all(isinstance(d, int) and d > 0 for d in dims):
            self.refuse(e, "an array whose shape is no number is not followed")
        return self.allocated.setdefault(e, Array("", kind, dims))

    def inline(self, e, function, values, named):
        """Run the body of a device function."""
        tree = tree_of(function.__code__, function.__code__.co_filename)
        names = parameters_of(tree)
        given = dict(zip(names, values, strict=False)) | named
        defaults = function.__defaults__ or ()
        for name, value in zip(names[len(names) - len(defaults) :], defaults, strict=True):
            given.setdefault(name, plain(value, name))
        if set(given) != set(names) or len(self.returns) > 20:
            self.refuse(e, "this call is not followed")
        outside = self.env, self.function, self.file
        self.env, self.function, self.file = given, function, function.__code__.co_filename
        self.returns.append((len(self.guard), []))
        loops, self.loops = self.loops, 0
        self.run(tree.body)
        self.loops = loops
        self.env, self.function, self.file = outside
        results = self.returns.pop()[1]
        if not results:
            return None
        value = results[-1][1]
        for c, other in reversed(results[:-1]):
            value = self.merge(c, other, value, function.__name__)
        return value
