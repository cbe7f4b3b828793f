"""Writes a function anew for the second gear: what one thread does, for Numba to compile.

    x[i] = y[i] // 2        store(c, x, i, FloorDiv(c, load(c, y, i), 2))

Every operation becomes a call of `native` or `watched`, so that nothing but control flow and
variables is left to Numba. `c` says which thread it is. What has no rule here is `Untranslatable`.
"""

import ast
import collections
import math
import types

import numpy as np
from numba import njit

from .dtypes import numpy_dtype
from .mathematics import MATH, NUMPY_FUNCTIONS
from .names import DIALECTS, INTRINSICS, as_lane, name_of, python_function, value_outside
from .native import CASTS, FUNCTIONS, OPERATORS
from .scopes import find_unsure_reads, names
from .signatures import signatures_of
from .syntax import indices_of, parameters_of, stored, walk
from .transform import PREFIX, Writer, assign, is_atomic, is_literal, is_part, load_name, tree_of
from .waits import decided_by
from .watched import ATOMICS, CONTEXT, data, flag_if, load, stopped, store

CALLS = {**OPERATORS, "load": load, "store": store, "data": data, "stopped": stopped}
CALLS |= {"flag_if": flag_if, **{f"to_{dtype}": cast for dtype, cast in CASTS.items()}}
CALLS |= {f"math_{name}": function for name, function in FUNCTIONS.items()}
OPTIONS = {"nogil": True, "error_model": "numpy", "boundscheck": False, "_nrt": False}
OPTIONS |= {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # see `machine_code`
C = PREFIX + "c"


class Untranslatable(Exception):
    """What the second gear has no rule for: the engine runs it."""


class Path(str):
    """A name of cuda.*, as 'threadIdx.x'."""


def value_of(owner, name):
    """Return what a name stands for in a function, or an attribute of a module."""
    if isinstance(owner, types.ModuleType):
        return getattr(owner, name, None)
    return value_outside(owner, name, None)


def position(path):
    """Return the place of threadIdx.x or its like in a thread's context."""
    name, _, axis = path.partition(".")
    short = {"threadIdx": "t", "blockIdx": "b", "blockDim": "bd", "gridDim": "gd"}.get(name)
    if f"{short}{axis}" not in CONTEXT:
        raise Untranslatable(f"cuda.{path}")
    return ast.Subscript(load_name(C), ast.Constant(CONTEXT.index(short + axis)), ast.Load())


class Program:
    """A kernel's module: the generated functions and what they call.

    Attributes
    ----------
    world : dict
        Its globals.
    atomics : bool
        Whether it has atomics at all.
    meaning : list of str
        All that its code depends on, beside the types of arguments.
    """

    def __init__(self):
        self.world = {PREFIX + name: value for name, value in CALLS.items()}
        self.world |= {PREFIX + "atomic_" + name: value for name, value in ATOMICS.items()}
        self.world |= {"range": range, "len": len, PREFIX + "uint8": np.uint8}
        self.functions, self.atomics, self.reads, self.meaning = {}, False, {}, []

    def read(self, owner, name):
        """Return what a name stands for, and remember it: at a later launch it may be another."""
        value = value_of(owner, name)
        self.reads[owner, name] = value
        return value

    def is_current(self):
        return all(value_of(*where) is value for where, value in self.reads.items())

    def name(self, prefix, value):
        name = f"{PREFIX}{prefix}{len(self.world)}"
        self.world[name] = value
        number = np.asarray(value)  # a device function is an object: its text is in `meaning`
        self.meaning.append(f"{name} {number.dtype} {number.dtype != object and number.tobytes()}")
        return name

    def device_function(self, function):
        """Return the name of a device function's compiled form."""
        if function not in self.functions:
            self.functions[function] = None  # while it is being written: it may call itself
            self.functions[function] = DeviceFunction(self, function).name
        if self.functions[function] is None:
            raise Untranslatable("a recursive function")
        return self.functions[function]

    def device_functions(self):
        """Return the compiled forms of all device functions."""
        return [self.world[name] for name in self.functions.values()]

    def build(self, definition, name):
        """Compile a generated definition to a Python function in this world."""
        # By way of text, so that every call has a place of its own.
        text = ast.unparse(ast.fix_missing_locations(ast.Module([definition], [])))
        self.meaning.append(text)
        namespace = {}
        exec(compile(text, f"<second gear of {name}>", "exec"), self.world, namespace)
        return namespace[definition.name]


class Inside(ast.Expr):
    """A comparison that must be true; otherwise the engine must look."""


class Rows(ast.NodeTransformer):
    """Writes x = a[i]; x[j] += 1 as row = i; Inside(0 <= row < a.shape[0]); a[row, j] += 1.

    axes : how many the parameters that are arrays have.
    """

    def __init__(self, tree, axes):
        self.axes, self.rows = axes, {}  # variable -> array and indices
        self.stores = collections.Counter(stored(tree))

    def visit_FunctionDef(self, function):
        self.generic_visit(function)
        if names(function) & set(self.rows):
            raise Untranslatable("a row that is not indexed")
        return function

    def visit_Assign(self, s):
        self.generic_visit(s)
        target, value = s.targets[0], s.value
        owner = value.value if isinstance(value, ast.Subscript) else None
        if not (isinstance(target, ast.Name) and isinstance(owner, ast.Name)):
            return s
        indices = indices_of(value.slice)
        if len(indices) >= self.axes.get(owner.id, 0) or is_part(value.slice):
            return s
        if self.stores[target.id] + len(s.targets) > 2 or target.id in self.axes:
            raise Untranslatable("a row that is not always the same")
        found = [f"{PREFIX}row{n}_{target.id}" for n in range(len(indices))]
        self.rows[target.id] = owner, list(map(load_name, found))
        inside = []
        for axis, name in enumerate(found):
            ends = [load_name(name), self.size(owner, axis)]
            inside.append(Inside(ast.Compare(ast.Constant(0), [ast.LtE(), ast.Lt()], ends)))
        return [*map(assign, found, indices), *inside]

    def size(self, owner, axis):
        shape = ast.Attribute(owner, "shape", ast.Load())
        return ast.Subscript(shape, ast.Constant(axis), ast.Load())

    def visit_Subscript(self, node):
        if isinstance(node.value, ast.Name) and node.value.id in self.rows:
            owner, first = self.rows[node.value.id]
            parts = [*first, *indices_of(self.visit(node.slice))]
            return ast.Subscript(owner, ast.Tuple(parts, ast.Load()), node.ctx)
        node = self.generic_visit(node)
        number = getattr(node.slice, "value", None)
        if isinstance(node.value, ast.Tuple) and type(number) is int:
            return node.value.elts[number]
        return node

    def visit_Attribute(self, node):
        if node.attr == "shape" and getattr(node.value, "id", None) in self.rows:
            owner, first = self.rows[node.value.id]
            sizes = [self.size(owner, n) for n in range(len(first), self.axes[owner.id])]
            return ast.Tuple(sizes, ast.Load())
        return self.generic_visit(node)

    def visit_Call(self, node):
        if getattr(node.func, "id", "") == "len" and getattr(node.args[0], "id", "") in self.rows:
            return self.visit_Attribute(ast.Attribute(node.args[0], "shape")).elts[0]
        return self.generic_visit(node)


class Emitter(Writer):
    """Writes the expressions and statements of one function, for one thread."""

    def __init__(self, program, function, axes):
        self.program, self.python = program, function
        code = function.__code__
        self.tree = tree_of(code, code.co_filename)
        if not isinstance(self.tree, ast.FunctionDef):
            raise Untranslatable("no plain function")
        Rows(self.tree, axes).visit(self.tree)
        arguments = self.tree.args
        if arguments.vararg or arguments.kwarg or arguments.kwonlyargs:
            raise Untranslatable("*args")
        self.parameters = parameters_of(self.tree)
        if find_unsure_reads(self.tree, self.parameters):
            raise Untranslatable("a variable that may not have been assigned")
        self.stores = collections.Counter(stored(self.tree))  # how often each is assigned
        self.stored = set(self.stores)
        self.locals = self.stored | set(self.parameters)
        self.aliases = {}
        self.find_aliases()
        self.loops = 0  # around the present statement

    def find_aliases(self):
        """Find ti = cuda.threadIdx and its like: names of what is no value."""
        for s in self.tree.body:
            if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name):
                name = s.targets[0].id
                found = self.static(s.value)
                once = len(s.targets) == self.stores[name] == 1 and name not in self.parameters
                if once and (isinstance(found, Path) or is_other(found)):
                    self.aliases[name] = found

    # ------------------------------------------------------------------ names

    def static(self, node):
        """Return the Python object that a name or dotted name stands for, else None."""
        if isinstance(node, ast.Name):
            if node.id in self.aliases:
                return self.aliases[node.id]
            if node.id in self.locals:
                return None
            return self.meaning(self.program.read(self.python, node.id))
        if isinstance(node, ast.Attribute):
            base = self.static(node.value)
            if isinstance(base, Path):
                return Path(f"{base}.{node.attr}")
            if isinstance(base, types.ModuleType):
                if base.__name__ in DIALECTS and node.attr in INTRINSICS:
                    return Path(node.attr)
                return self.meaning(self.program.read(base, node.attr))
        return None

    def meaning(self, value):
        name = name_of(value)
        return value if name is None else Path(name)

    def constant(self, value):
        """Return a number's node, None for anything else."""
        lane = None if isinstance(value, str) or value is None else as_lane(value)
        if lane is None:
            return None
        number = lane.item() if lane.dtype.char in "?lqd" else lane.reshape(-1)[0]
        if isinstance(number, (bool, int)) or (isinstance(number, float) and math.isfinite(number)):
            return ast.Constant(number)
        if isinstance(number, complex) or getattr(number, "dtype", None) in ("F", "D", "e"):
            raise Untranslatable("complex numbers and halves")
        return load_name(self.program.name("number", number))

    # ------------------------------------------------------------------ expressions

    def expression(self, node):
        write = getattr(self, "e_" + type(node).__name__, None)
        if write is None:
            raise Untranslatable(type(node).__name__)
        return write(node)

    def test(self, node):
        """Write a truth value; of `and` and `or` the parts are, too."""
        if isinstance(node, ast.BoolOp):
            return ast.BoolOp(node.op, list(map(self.test, node.values)))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return ast.UnaryOp(ast.Not(), self.test(node.operand))
        if isinstance(node, ast.Compare):
            tests = self.comparisons(node)
            return tests[0] if len(tests) == 1 else ast.BoolOp(ast.And(), tests)
        return self.call("truth", self.expression(node))

    def e_Constant(self, node):
        if isinstance(node.value, (bool, int, float)):
            return self.constant(node.value)
        raise Untranslatable(f"the constant {node.value!r}")

    def e_Name(self, node):
        if node.id in self.locals and node.id not in self.aliases:
            return load_name(node.id)
        return self.number_of(node)

    def number_of(self, node):
        value = self.static(node)
        if isinstance(value, Path):
            if value in ("warpsize", "laneid"):
                raise Untranslatable(value)
            return position(value)
        number = self.constant(value)
        if number is None:
            raise Untranslatable(f"the name {ast.unparse(node)}")
        return number

    def e_Attribute(self, node):
        if self.static(node) is not None:
            return self.number_of(node)
        if node.attr in ("shape", "size", "ndim") and isinstance(node.value, ast.Name):
            array = self.call("data", self.expression(node.value))
            return ast.Attribute(array, node.attr, ast.Load())
        raise Untranslatable(f".{node.attr}")

    def e_Tuple(self, node):
        return ast.Tuple(list(map(self.expression, node.elts)), ast.Load())

    def operation(self, op, left, right, exponent=None):
        name = type(op).__name__
        if name not in OPERATORS:
            raise Untranslatable(name)
        if name in ("FloorDiv", "Mod"):
            return self.call(name, load_name(C), left, right)
        if name == "Pow":
            return self.power(left, right, exponent)
        return self.call(name, left, right)

    def power(self, base, right, exponent):
        number = exponent.value if isinstance(exponent, ast.Constant) else None
        if type(number) is int and number in (2, 3):
            return self.call("square" if number == 2 else "cube", base)
        if number is None and not isinstance(exponent, ast.UnaryOp):
            raise Untranslatable("** of what is known only at run time")
        return self.call("Pow", base, right)

    def e_BinOp(self, node):
        left, right = self.expression(node.left), self.expression(node.right)
        return self.operation(node.op, left, right, node.right)

    def e_UnaryOp(self, node):
        value = getattr(node.operand, "value", None)
        if isinstance(node.op, ast.USub) and type(value) in (int, float):
            return self.constant(-value)
        return self.call(type(node.op).__name__, self.expression(node.operand))

    def e_Compare(self, node):
        tests = self.comparisons(node)
        return tests[0] if len(tests) == 1 else as_value(ast.BoolOp(ast.And(), tests))

    def comparisons(self, node):
        """Write the parts of a < b < c."""
        operands, tests = [node.left, *node.comparators], []
        for op, *sides in zip(node.ops, operands, operands[1:], strict=False):
            if type(op).__name__ not in OPERATORS:
                raise Untranslatable(type(op).__name__)
            tests.append(self.call(type(op).__name__, *map(self.expression, sides)))
        for x in (x for middle in operands[1:-1] for x in walk(middle)):
            if isinstance(x, ast.Call) and python_function(self.static(x.func)):
                raise Untranslatable("a call in the middle of a < b < c, which is written twice")
        return tests

    def e_BoolOp(self, node):
        parts = [self.call("only_truth", self.expression(value)) for value in node.values]
        return as_value(ast.BoolOp(node.op, parts))

    def e_IfExp(self, node):
        sides = self.expression(node.body), self.expression(node.orelse)
        wide = [
            self.call("widen", side, self.sample(other)) if self.sample(other) else side
            for side, other in zip(sides, (node.orelse, node.body), strict=True)
        ]
        return ast.IfExp(self.test(node.test), *wide)

    def sample(self, node):
        """Return what gives the type of one side of a conditional expression: see Operators.choose.

        Of another side the engine knows it only if a thread takes it.
        """
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            node = node.operand
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            return ast.Constant(node.value)
        if isinstance(node, ast.Attribute) and node.attr in ("inf", "nan", "pi", "e"):
            return ast.Constant(1.0)
        is_variable = isinstance(node, ast.Name)
        return self.expression(node) if is_variable else None

    def index(self, array, node):
        """Write an index; a literal that is negative counts from the end."""
        if is_part(node):
            raise Untranslatable("a slice")
        if not isinstance(node, ast.Tuple):
            return self.index_part(array, 0, node)
        parts = [self.index_part(array, i, part) for i, part in enumerate(node.elts)]
        return ast.Tuple(parts, ast.Load())

    def index_part(self, array, axis, node):
        value = self.expression(node)
        if isinstance(value, ast.Constant) and type(value.value) is int and value.value < 0:
            if not isinstance(node, ast.UnaryOp):
                raise Untranslatable("a negative constant as an index")
            return self.call("Add", self.size(array, axis), value)
        return value

    def size(self, array, axis):
        shape = ast.Attribute(self.call("data", array), "shape", ast.Load())
        return ast.Subscript(shape, ast.Constant(axis), ast.Load())

    def array(self, node):
        if not isinstance(node, ast.Name) or node.id not in self.locals:
            raise Untranslatable("an array that is no variable")
        return load_name(node.id)

    def e_Subscript(self, node):
        if isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
            number = node.slice.value if isinstance(node.slice, ast.Constant) else None
            if type(number) is not int:
                raise Untranslatable("an axis that is no literal")
            return ast.Subscript(self.expression(node.value), node.slice, ast.Load())
        array = self.array(node.value)
        return self.call("load", load_name(C), array, self.index(array, node.slice))

    def e_Call(self, node):
        function = self.static(node.func)
        if node.keywords or any(isinstance(a, ast.Starred) for a in node.args):
            raise Untranslatable("keywords in a call")
        if isinstance(function, Path):
            return self.cuda_call(function, node)
        if function is len:
            return self.size(self.array(node.args[0]), 0)
        python = python_function(function)
        if python is not None:
            if signatures_of(function):
                raise Untranslatable("a device function with a signature")
            arguments = [load_name(C), *map(self.expression, node.args)]
            return ast.Call(load_name(self.program.device_function(python)), arguments, [])
        arguments = list(map(self.expression, node.args))
        if function in (max, min) and len(arguments) > 1:
            result = arguments[0]
            for other in arguments[1:]:
                result = self.call(function.__name__, result, other)
            return result
        if function in (abs, int, float, bool) and len(arguments) == 1:
            if function is bool:
                return self.call("truth", *arguments)
            first = [load_name(C)] if function is not abs else []
            return self.call(function.__name__, *first, *arguments)
        found = self.mathematics(function)
        if found is None and len(arguments) == 1:
            try:
                found, arguments = f"to_{numpy_dtype(function)}", [load_name(C), *arguments]
            except TypeError:
                found = None
        if found not in CALLS:
            raise Untranslatable(f"{ast.unparse(node.func)}()")
        return self.call(found, *arguments)

    @staticmethod
    def mathematics(function):
        name = getattr(function, "__name__", "")
        if getattr(function, "__module__", "") == "math" and name in MATH:
            return f"math_{name}"
        known = NUMPY_FUNCTIONS.keys() - {"maximum", "minimum"}
        if isinstance(function, np.ufunc) and name in known:  # Numba has few of them
            return "math_" + name.replace("arc", "a")
        return None

    def cuda_call(self, path, node):
        arguments = node.args
        if path in ("grid", "gridsize") and len(arguments) == 1:
            count = getattr(arguments[0], "value", 0)
            if count not in (1, 2, 3):
                raise Untranslatable("cuda.grid of no literal")
            parts = []
            for axis in "xyz"[:count]:
                one, other = ("blockIdx", "blockDim") if path == "grid" else ("blockDim", "gridDim")
                part = self.call("Mult", position(f"{one}.{axis}"), position(f"{other}.{axis}"))
                if path == "grid":
                    part = self.call("Add", part, position(f"threadIdx.{axis}"))
                parts.append(part)
            return parts[0] if count == 1 else ast.Tuple(parts, ast.Load())
        if path == "fma":
            return self.call("fma", *map(self.expression, arguments))
        raise Untranslatable(f"cuda.{path}()")

    # ------------------------------------------------------------------ statements

    def statements(self, body):
        result = []
        for s in body:
            write = getattr(self, "s_" + type(s).__name__, None)
            if write is None:
                raise Untranslatable(type(s).__name__)
            result += write(s)
        return result or [ast.Pass()]

    def s_Pass(self, s):
        return []

    def s_Expr(self, s):
        node = s.value
        if isinstance(node, ast.Constant):
            return []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if is_atomic(node.func):
                return [ast.Expr(self.atomic(node))]
        return [ast.Expr(self.expression(node))]

    def s_Inside(self, s):
        bad = ast.UnaryOp(ast.Not(), self.expression(s.value))
        return [ast.Expr(self.call("flag_if", load_name(C), bad))]

    def atomic(self, node):
        self.program.atomics = True
        path, name = self.static(node.func), node.func.attr
        if path != f"atomic.{name}" or name not in ATOMICS or len(node.args) != 3:
            raise Untranslatable(ast.unparse(node.func))
        array = self.array(node.args[0])
        value = self.expression(node.args[2])
        if name == "sub":
            name, value = "add", self.call("USub", value)
        return self.call(
            f"atomic_{name}", load_name(C), array, self.index(array, node.args[1]), value
        )

    def s_Assign(self, s):
        if len(s.targets) > 1:
            name = self.temporary()
            value = self.assign(ast.Name(name, ast.Store()), self.expression(s.value))
            return value + [p for t in s.targets for p in self.assign(t, load_name(name))]
        target = s.targets[0]
        if isinstance(target, ast.Name) and target.id in self.aliases:
            return []
        if isinstance(target, ast.Tuple) and isinstance(s.value, ast.Tuple):
            if len(target.elts) != len(s.value.elts):
                raise Untranslatable("tuples of two lengths")
            result, parts = [], []
            for element in s.value.elts:
                parts.append(self.temporary())
                result += self.assign(ast.Name(parts[-1], ast.Store()), self.expression(element))
            for element, part in zip(target.elts, parts, strict=True):
                result += self.assign(element, load_name(part))
            return result
        return self.assign(target, self.expression(s.value))

    def s_AnnAssign(self, s):
        return self.assign(s.target, self.expression(s.value)) if s.value else []

    def assign(self, target, value):
        if isinstance(target, ast.Name):
            return [assign(target.id, value)]
        if isinstance(target, ast.Subscript):
            array = self.array(target.value)
            index = self.index(array, target.slice)
            return [ast.Expr(self.call("store", load_name(C), array, index, value))]
        if isinstance(target, ast.Tuple):
            name = self.temporary()
            result = [assign(name, value)]
            for i, element in enumerate(target.elts):
                part = ast.Subscript(load_name(name), ast.Constant(i), ast.Load())
                result += self.assign(element, part)
            return result
        raise Untranslatable(type(target).__name__)

    def s_AugAssign(self, s):
        value, target = self.expression(s.value), s.target
        if isinstance(target, ast.Name):
            new = self.operation(s.op, load_name(target.id), value, s.value)
            return self.assign(ast.Name(target.id, ast.Store()), new)
        if not isinstance(target, ast.Subscript):
            raise Untranslatable(type(target).__name__)
        array, name = self.array(target.value), self.temporary()
        index = assign(name, self.index(array, target.slice))
        old = self.call("load", load_name(C), array, load_name(name))
        new = self.operation(s.op, old, value, s.value)
        return [index, ast.Expr(self.call("store", load_name(C), array, load_name(name), new))]

    def s_If(self, s):
        otherwise = self.statements(s.orelse) if s.orelse else []
        return [ast.If(self.test(s.test), self.statements(s.body), otherwise)]

    def bounds(self, s):
        """Return the arguments of a loop's range(), as written; None if it is a tuple's loop."""
        node = s.iter
        if isinstance(node, ast.Call) and self.static(node.func) is range and not node.keywords:
            return node.args
        return None

    def s_For(self, s):
        bounds = self.bounds(s)
        if bounds is None:
            if not isinstance(s.iter, (ast.Tuple, ast.List)) or not is_literal(s.iter):
                raise Untranslatable("a loop over something else than range()")
            turns = ast.Tuple([self.expression(x) for x in s.iter.elts], ast.Load())
        else:
            turns = [self.call("whole", self.expression(x)) for x in bounds]
            turns = ast.Call(load_name("range"), turns, [])
        body = self.loop_body(s, bounds is not None and not all(map(is_small_literal, bounds)))
        return [ast.For(ast.Name(s.target.id, ast.Store()), turns, body, []), *self.leave(s)]

    def s_While(self, s):
        if decided_by(s):
            raise Untranslatable("a loop that waits for memory, or for ever")
        return [ast.While(self.test(s.test), self.loop_body(s, True), []), *self.leave(s)]

    def loop_body(self, s, long):
        """Write a loop's body; a long loop is left once something is flagged."""
        self.loops += 1
        body = self.statements(s.body)
        self.loops -= 1
        flags = ast.Subscript(load_name(C), ast.Constant(0), ast.Load())
        return [ast.If(self.call("stopped", flags), [ast.Break()], [])] * long + body

    def leave(self, s):
        return []

    def s_Break(self, s):
        return [ast.Break()]

    def s_Continue(self, s):
        return [ast.Continue()]

    def s_Return(self, s):
        return [ast.Return(self.expression(s.value) if s.value else None)]


class DeviceFunction(Emitter):
    """A device function: a function of the thread and its arguments."""

    def __init__(self, program, function):
        super().__init__(program, function, {})
        if function.__defaults__:
            raise Untranslatable("default arguments")
        parameters = [ast.arg(C), *map(ast.arg, self.parameters)]
        arguments = ast.arguments([], parameters, None, [], [], None, [])
        name = f"{PREFIX}function_{function.__name__}"
        body = self.statements(self.tree.body)
        definition = ast.FunctionDef(name, arguments, body, [], type_params=[])
        compiled = njit(**OPTIONS)(program.build(definition, function.__name__))
        self.name = program.name("device", compiled)


def as_value(test):
    """Return `a and b` as an expression; Numba knows it as a test alone."""
    return ast.IfExp(test, ast.Constant(True), ast.Constant(False))


def is_small_literal(node):
    return isinstance(node, ast.Constant) and node.value < 10**6


def is_other(value):
    """Tell whether a Python object is neither a number nor nothing."""
    return value is not None and not isinstance(value, str) and as_lane(value) is None
