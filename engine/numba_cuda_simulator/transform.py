"""Rewrite a kernel so that each statement runs for all threads at once.

The learner's `x = a[i] + 1` for one thread becomes `x = bind(x, load(a, i) + 1)` for all
threads of many blocks, where every value is a NumPy scalar (the same in all threads) or an
array (one element per thread). Control flow becomes masks:

    if test: A              if if_(test): A          # threads where test holds
    else:    B              if else_():   B          # the others
                            endif()

    while test: A           while_begin()
                            while alive() and while_test(test): A; next_turn()
                            loop_end()

    return e                return_(e)               # these threads are masked off from here

Statements after a possible return, break or continue go under `if alive():`. In traced launches
`a * b + c` becomes `count_fma(line, (t := a * b) + c, t)` (see flops.py). Line and
column numbers of the original are kept and the code is compiled with the learner's file
name: tracebacks, carets and debuggers show the learner's own source.
"""

import __future__

import ast
import dis
import functools
import inspect
import linecache
import operator
import os
from collections import Counter
from dataclasses import dataclass

import numpy as np

from .errors import Site, UnsupportedError
from .progress import LEAVES
from .scopes import NUMBER_CALLS, find_homes, find_numbers, find_unsure_reads, names
from .syntax import (
    REFUSED,
    FromEnd,
    SimpleLoops,
    children,
    indices_of,
    is_special,
    parameters_of,
    refusal,
    refusal_of,
    stored,
    walk,
)
from .waits import decided_by

PREFIX = "_simt_"  # of every name that the engine adds to a kernel

# Operators whose Numba meaning needs more than NumPy's own operator.
SPECIAL_OPERATORS = {
    ast.FloorDiv: "floordiv", ast.Mod: "mod", ast.Pow: "power", ast.LShift: "shift_left",
    ast.RShift: "shift_right",
}  # fmt: skip
FUTURE = functools.reduce(
    operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)
STARRED = "*args or **kwargs", "List the parameters one by one."
TRUTH_SENSITIVE = {ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply"}
# What operators count as where floating-point operations are counted.
KINDS = {
    ast.Add: "add", ast.Sub: "add", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floordiv",
    ast.Mod: "mod", ast.Pow: "pow", ast.USub: "neg",
}  # fmt: skip


@functools.lru_cache(maxsize=512)
def transform(code, file, counting=False):
    """Return the lockstep form of a function, as a `LockstepCode`.

    counting : whether it counts its floating-point operations.
    Cached by code object: a kernel is rewritten once per edit, and once more to be traced.
    """
    return Transformer(code, file, counting).run()


@dataclass(eq=False)
class LockstepCode:
    """The rewritten code object of a function and what running it needs."""

    code: object
    constants: dict  # globals to add: literals and sites
    parameters: list
    names: set  # global names that the function may look up
    stored: set  # variable names whose elements are stored to
    handed_on: dict  # variable names -> fewest indices; see element_uses
    # Parameters and globals that an array's shape depends on -> (Site, kind, on its len alone?)
    shapes: dict
    calls: dict  # position of a call -> the names in each argument, by number or name
    result: object  # Site of a `return` with a value, else None; see find_result
    starred: object  # Site of a function with *args, else None

    def may_store(self, name, ndim):
        """Tell whether elements of an array may be stored to."""
        return name in self.stored or self.handed_on.get(name, ndim) < ndim


def named(code, name):
    """Return code whose lambdas, too, appear in tracebacks under the function's name."""
    consts = (named(c, name) if inspect.iscode(c) else c for c in code.co_consts)
    return code.replace(co_name=name, co_qualname=name, co_consts=tuple(consts))


def contains(nodes, kinds, barrier=()):
    """Tell whether a node of these kinds occurs, not looking inside `barrier` nodes."""
    left = list(nodes)
    for node in left:
        if isinstance(node, kinds):
            return True
        if not isinstance(node, barrier):
            left += children(node)
    return False


def may_exit(statements):
    """Tell whether a thread can leave these statements before their end."""
    return contains(statements, ast.Return, ast.expr) or contains(
        statements, (ast.Break, ast.Continue), (ast.For, ast.While, ast.expr)
    )


def surely_returns(statements):
    """Tell whether no thread gets to the end of some statements."""
    if not statements:
        return False
    last = statements[-1]
    if isinstance(last, ast.If):
        return surely_returns(last.body) and surely_returns(last.orelse)
    return isinstance(last, (ast.Return, ast.Raise))


def is_pure(e):
    """Tell whether an expression can be evaluated for threads that should not reach it."""
    return not contains([e], (ast.Subscript, ast.Call, ast.FloorDiv, ast.Mod, ast.IfExp))


def is_literal(e):
    """Tell whether an expression is made of literals alone: Python computes it, no thread does."""
    return not contains([e], (ast.Name, ast.Attribute, ast.Subscript, ast.Call))


def is_part(index):
    """Tell whether an index stands for a part of an array: x[2:5], x[::-1, 0] or x[..., 0]."""
    parts = indices_of(index)
    return any(isinstance(p, ast.Slice) or getattr(p, "value", None) is ... for p in parts)


def as_products(exponent):
    """Return what x ** exponent counts as, and how often: Numba multiplies for a literal int."""
    if type(exponent) is int and exponent > 1:
        return "mul", exponent.bit_length() + exponent.bit_count() - 2
    return "pow", 1


def is_name(node):
    return isinstance(node, ast.Name)


def load_name(name):
    return ast.Name(name, ast.Load())


def assigned(name):
    """The variable that holds which threads have assigned another one."""
    return f"{PREFIX}assigned_{name}"


def thunk(body):
    """Return `lambda: body`: an expression to be evaluated later, under a smaller mask."""
    return ast.Lambda(ast.arguments([], [], None, [], [], None, []), body)


def assign(name, value):
    return ast.Assign([ast.Name(name, ast.Store())], value)


def tree_of(code, file):
    """Return the syntax tree of a function, its loops written as plain ones."""
    tree = parsed(code, file)
    if any(map(is_special, walk(tree))):
        SimpleLoops(PREFIX).visit(tree)
    return tree


def parsed(code, file):
    """Return the syntax tree of a function, its lines numbered as in the file."""
    linecache.checkcache(file)  # the file may have been edited since it was imported
    first = code.co_firstlineno
    source = linecache.getlines(file)
    if len(source) < first:
        raise UnsupportedError(
            f"the source of '{code.co_name}' cannot be found: kernels must be written in a "
            "file or a notebook cell, not typed at the plain Python prompt",
            hint="Of a function made by exec, it is kept after simt.enable(as_gpu=True).",
        )
    if code.co_name == "<lambda>":
        return parsed_lambda(code, file, source)
    check_unchanged(code, file, source)
    function = definition(source, first)
    if getattr(function, "name", None) != code.co_name:
        raise changed(code, file)
    function.decorator_list = []  # ran at definition time
    return function


def definition(source, first):
    """Return the syntax tree of the function that begins on a line; None if there is none.

    It may end before any line that is indented no further. The first such end is right with which
    Python can read it: no string, bracket or list of decorators is open.
    """
    indent = indentation(source[first - 1])
    # An enclosing `if` lets an indented definition parse with its columns unchanged.
    head = "\n" * (first - 2) + "if True:\n" if indent else "\n" * (first - 1)
    for end in range(first, len(source) + 1):
        if end == len(source) or (source[end].strip() and indentation(source[end]) <= indent):
            try:
                found = ast.parse(head + "".join(source[first - 1 : end])).body
            except SyntaxError:
                continue
            return (found[0].body if indent else found or [None])[0]
    return None


def indentation(line):
    return len(line) - len(line.lstrip())


def check_unchanged(code, file, source):
    """Refuse a function whose text is no longer what was imported."""
    if not os.path.exists(file):
        # A notebook's cell: its name is made of its text, so it cannot have changed. And IPython
        # compiles it statement by statement, which gives other bytecode than the whole would.
        return
    present = compiled_functions(file, "".join(source), code.co_flags & FUTURE)
    if present is None:
        return
    here = present.get((code.co_qualname, code.co_firstlineno), [])
    # pytest rewrites functions with an assert on import.
    if not any(same_code(code, other) or has_assert(other) for other in here):
        raise changed(code, file)


@functools.lru_cache(maxsize=16)
def compiled_functions(file, text, flags):
    """Return {(name, first line): code objects} of the functions in a text; None: no Python."""
    try:
        module = compile(text, file, "exec", flags, dont_inherit=True)
    except SyntaxError:
        return None  # a notebook cell with magic commands
    found, left = {}, [module]
    while left:
        code = left.pop()
        found.setdefault((code.co_qualname, code.co_firstlineno), []).append(code)
        left += filter(inspect.iscode, code.co_consts)
    return found


def same_code(a, b):
    """Compare what two code objects do."""
    return a.co_code == b.co_code and a.co_names == b.co_names and literals(a) == literals(b)


def literals(code):
    return repr([x for x in code.co_consts if not inspect.iscode(x)])


def has_assert(code):
    instructions = dis.get_instructions(code)
    return any("ASSERTION" in i.opname or i.argrepr == "AssertionError" for i in instructions)


def parsed_lambda(code, file, source):
    """Return a lambda as a function that returns its expression."""
    inside = {p for p in code.co_positions() if None not in p}
    for node in walk(ast.parse("".join(source))):
        if isinstance(node, ast.Lambda) and position(node.body) in inside:
            result = ast.copy_location(ast.Return(node.body), node.body)
            function = ast.FunctionDef(f"{PREFIX}lambda", node.args, [result], [])
            return ast.copy_location(function, node)
    raise changed(code, file)


def position(node):
    """Return where a syntax node stands, as code objects say it."""
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def changed(code, file):
    return UnsupportedError(
        f"{file} has changed since '{code.co_name}' was imported",
        hint="Reload the module, or restart.",
    )


class Writer:
    """Writes syntax trees."""

    temporaries = 0

    def call(self, function, *arguments, keywords=()):
        return ast.Call(load_name(PREFIX + function), list(arguments), list(keywords))

    def temporary(self):
        self.temporaries += 1
        return f"{PREFIX}t{self.temporaries}"


class Transformer(Writer):
    """Rewrites one function; each method e_X or s_X rewrites one kind of syntax node."""

    def __init__(self, code, file, counting):
        self.file, self.counting = file, counting
        self.function = tree_of(code, file)
        self.function._simt_nodes = walk(self.function)
        self.name = code.co_name
        self.shape_names = {}  # a name that the shape of an array depends on -> its place
        self.calls = {}  # position of a call -> the variables in each argument
        self.constants = {}
        self.target_name = ""  # the variable that the current statement assigns
        self.discarded = None  # the call whose result the current statement throws away

    def run(self):
        function = self.function
        if not isinstance(function, ast.FunctionDef):
            self.refuse(function, "async def", "Write def.")
        arguments = function.args
        if arguments.kwarg or arguments.kwonlyargs:  # Numba fails at these in a device function
            what = STARRED[0] if arguments.kwarg else "a keyword-only parameter"
            self.refuse(function, what, STARRED[1])
        self.parameters = parameters_of(function)
        stored = names(function, ast.Store)
        self.locals = stored | set(self.parameters)
        self.homes, self.block_number = find_homes(function, self.parameters)
        self.home_blocks = {home for (name, _), home in self.homes.items() if name in stored}
        self.unsure = self.find_unsure_reads()  # nodes
        self.partial = {x.id for x in self.unsure}  # whose assignments are noted
        self.present = 0  # the number of the block that is being rewritten
        self.is_number = find_numbers(function, self.parameters)
        body = self.block(function.body)
        declare = []
        for name in sorted(stored - set(self.parameters)):
            undefined = self.constant_name(f"undefined_{name}", ("undefined", name))
            declare.append(assign(name, load_name(undefined)))
        for name in sorted(self.partial):
            declare.append(assign(assigned(name), ast.Constant(False)))
        lockstep = ast.FunctionDef(
            function.name,
            ast.arguments([], [ast.arg(p) for p in self.parameters], None, [], [], None, []),
            declare + body,
            [],
        )
        lockstep.type_params = []
        module = ast.Module(self.mark([lockstep], function), [])
        namespace = {}
        exec(compile(module, self.file, "exec"), namespace)
        written, read = element_uses(function)
        code = named(namespace[function.name].__code__, self.name)
        return LockstepCode(
            code, self.constants, self.parameters, self.global_names(code), written, read,
            self.shape_names, self.calls, self.find_result(),
            self.site(function) if arguments.vararg else None,
        )  # fmt: skip

    def global_names(self, code):
        """Return the names that rewritten code looks up: the function's and the engine's."""
        inner = [self.global_names(c) for c in code.co_consts if inspect.iscode(c)]
        used = names(self.function, ast.Load) - self.locals
        return {n for n in code.co_names if n in used or n.startswith(PREFIX)}.union(*inner)

    def find_unsure_reads(self):
        return find_unsure_reads(self.function, self.parameters)

    def find_result(self):
        """Return the Site of a `return` with a value; of a call, only running it tells."""
        for node in walk(self.function):
            if isinstance(node, ast.Return) and not isinstance(node.value, (ast.Call, type(None))):
                if getattr(node.value, "value", node) is not None:
                    return self.site(node)
        return None

    # ------------------------------------------------------------------ helpers

    def site(self, node, name="", index=None):
        variables = tuple(map(is_name, indices_of(index)))
        end = node.end_col_offset if node.end_lineno == node.lineno else 1 << 30
        return Site(self.file, node.lineno, node.col_offset, end, self.name, name, variables)

    def refuse(self, node, *what, numba_runs_it=False):
        """Refuse a piece of syntax; `what` it is and what to write instead, if that is special."""
        message, hint = refusal(*what, numba_runs_it=numba_runs_it) if what else refusal_of(node)
        raise UnsupportedError(message, sites=[self.site(node)], hint=hint)

    def mark(self, nodes, like):
        """Give new nodes the position of the source they stand for."""
        left = list(nodes) if hasattr(like, "lineno") else []  # else it is new, too
        for node in left:
            if "lineno" in node._attributes:
                if hasattr(node, "lineno"):
                    continue  # marked before, with all below it
                node.lineno, node.end_lineno = like.lineno, like.end_lineno
                node.col_offset, node.end_col_offset = like.col_offset, like.end_col_offset
            left += children(node)
        return nodes

    def constant_name(self, name, value):
        name = PREFIX + name
        self.constants[name] = value
        return name

    def site_constant(self, node, name="", index=None):
        number = len(self.constants)
        return load_name(self.constant_name(f"site{number}", self.site(node, name, index)))

    def number(self, value):
        """Literals are strong: Numba types 2 as int64 and 2.0 as float64, whatever they meet."""
        if isinstance(value, (float, complex)):
            strong = np.result_type(value).type(value)
        else:
            strong = np.int64(value) if -(2**63) <= value < 2**63 else np.uint64(value)
        text = repr(value).translate(str.maketrans({"-": "m", "+": "", ".": "p"}))
        return load_name(self.constant_name(f"{type(value).__name__}_{text}", strong))

    # ------------------------------------------------------------------ expressions

    def expression(self, node):
        rewrite = getattr(self, "e_" + type(node).__name__, None)
        if rewrite is None:
            self.refuse(node)
        return self.mark([rewrite(node)], node)[0]

    def e_Constant(self, node):
        if type(node.value) in (int, float, complex):
            return self.number(node.value)
        if node.value is None or node.value is ... or isinstance(node.value, (bool, str)):
            return ast.Constant(node.value)
        self.refuse(node, f"a {type(node.value).__name__} constant")

    def e_Name(self, node):
        value = load_name(node.id)
        if node in self.unsure:
            who = load_name(assigned(node.id))
            return self.call("read", ast.Constant(node.id), value, who)
        return value

    def e_Attribute(self, node):
        if node.attr == "value":
            return self.call("enum_value", self.expression(node.value))
        if node.attr == "strides":
            return self.call("byte_strides", self.expression(node.value))
        if node.attr == "view":
            instead = "Index the array."
            self.refuse(node, ".view of an array", instead, numba_runs_it=True)
        if node.attr == "flat":
            ravel = ast.Attribute(self.expression(node.value), "ravel", ast.Load())
            return ast.Call(ravel, [], [])
        return ast.Attribute(self.expression(node.value), node.attr, ast.Load())

    def e_Tuple(self, node):
        return ast.Tuple([self.expression(x) for x in node.elts], ast.Load())

    def e_BinOp(self, node):
        left, right = self.expression(node.left), self.expression(node.right)
        return self.operation(node, node.op, left, right, node.left, node.right)

    def operation(self, node, op, left, right, left_source, right_source):
        if not self.counting or (is_literal(left_source) and is_literal(right_source)):
            return self.uncounted(node, op, left, right, left_source, right_source)
        product = None
        if isinstance(op, (ast.Add, ast.Sub)):
            left, right, product = self.named_product(left, right)
        result = self.uncounted(node, op, left, right, left_source, right_source)
        if product:
            return self.call("count_fma", ast.Constant(node.lineno), result, load_name(product))
        kind, times = KINDS.get(type(op)), 1
        if kind == "pow" and isinstance(right_source, ast.Constant):
            kind, times = as_products(right_source.value)
        for _ in range(times if kind else 0):
            result = self.count(kind, node, result)
        return result

    def count(self, kind, node, result):
        if not self.counting:
            return result
        return self.call("count", ast.Constant(kind), ast.Constant(node.lineno), result)

    def named_product(self, left, right):
        """Give the product in `a * b + c` or `c + a * b` a name; it is not counted by itself."""
        for is_left, side in ((True, left), (False, right)):
            if isinstance(side, ast.Call) and getattr(side.func, "id", "") == PREFIX + "count":
                kind, _, product = side.args
                if kind.value == "mul":
                    name = self.temporary()
                    named = ast.NamedExpr(ast.Name(name, ast.Store()), product)
                    return (named, right, name) if is_left else (left, named, name)
        return left, right, None

    def uncounted(self, node, op, left, right, left_source, right_source):
        special = SPECIAL_OPERATORS.get(type(op))
        if special:
            return self.call(special, left, right)
        if isinstance(op, ast.MatMult):
            self.refuse(node, *REFUSED[ast.MatMult])
        sensitive = TRUTH_SENSITIVE.get(type(op))
        if sensitive and not (self.is_number(left_source) or self.is_number(right_source)):
            return self.call("arithmetic", ast.Constant(sensitive), left, right)
        return ast.BinOp(left, op, right)

    def e_UnaryOp(self, node):
        operand = node.operand
        if isinstance(node.op, ast.Not):
            return self.call("not_", self.expression(operand))
        if isinstance(node.op, ast.USub) and isinstance(operand, ast.Constant):
            if type(operand.value) in (int, float):
                return self.number(-operand.value)
        if isinstance(node.op, (ast.USub, ast.UAdd)) and not self.is_number(operand):
            name = "negative" if isinstance(node.op, ast.USub) else "positive"
            result = self.call("arithmetic", ast.Constant(name), self.expression(operand))
        else:
            result = ast.UnaryOp(node.op, self.expression(operand))
        return self.count("neg", node, result) if isinstance(node.op, ast.USub) else result

    def e_Compare(self, node):
        return self.compare(self.expression(node.left), node.ops, node.comparators, node)

    def compare(self, left, ops, comparators, node):
        """a < b < c is `a < b and b < c` with b evaluated once."""
        op, right = ops[0], self.expression(comparators[0])
        if isinstance(op, (ast.In, ast.NotIn)):
            member = self.call("member", left, right)
            return self.call("not_", member) if isinstance(op, ast.NotIn) else member
        if len(ops) == 1:
            return self.comparison(left, op, right, node)
        middle = self.temporary()
        right = ast.NamedExpr(ast.Name(middle, ast.Store()), right)
        first = self.comparison(left, op, right, node)
        rest = self.compare(load_name(middle), ops[1:], comparators[1:], node)
        return self.both(first, rest, all(map(self.is_pure, comparators[1:])))

    def comparison(self, left, op, right, node):
        if isinstance(op, (ast.Is, ast.IsNot)):
            same = self.call("same", left, right)
            return self.call("not_", same) if isinstance(op, ast.IsNot) else same
        if not self.counting:
            return ast.Compare(left, [op], [right])
        names = [self.temporary(), self.temporary()]
        left, right = (
            ast.NamedExpr(ast.Name(name, ast.Store()), side)
            for name, side in zip(names, (left, right), strict=True)
        )
        result = ast.Compare(left, [op], [right])
        line = ast.Constant(node.lineno)
        return self.call("count_compare", line, result, *map(load_name, names))

    def is_pure(self, e):
        """Tell the same, but for what is counted: of the threads that get there."""
        return is_pure(e) and not self.counting and self.partial.isdisjoint(names(e))

    def both(self, a, b, b_is_pure):
        """`a and b`; b is put off until the mask is that of a unless it can do no harm."""
        if b_is_pure:
            return self.call("and_values", a, b)
        return self.call("and_", a, thunk(b))

    def e_BoolOp(self, node):
        *first, last = node.values
        result = self.expression(last)
        pure = self.is_pure(last)
        for value in reversed(first):
            a = self.expression(value)
            if isinstance(node.op, ast.And):
                result = self.both(a, result, pure)
            else:
                result = (
                    self.call("or_values", a, result)
                    if pure
                    else self.call("or_", a, thunk(result))
                )
            pure = pure and self.is_pure(value)
        return result

    def e_IfExp(self, node):
        body, otherwise = node.body, node.orelse
        return self.call(
            "choose", self.expression(node.test), thunk(self.expression(body)),
            thunk(self.expression(otherwise)), self.literal_dtype(body, otherwise),
            *(load_name(side.id) for side in (body, otherwise) if is_name(side)),
        )  # fmt: skip

    def literal_dtype(self, *sources):
        """Return the type that literal branches force on a conditional expression.

        Numba's `x if c else 0` has one type, that of x and int64 together, whichever branch
        is taken.
        """
        kinds = []
        for e in sources:
            if isinstance(e, ast.UnaryOp) and isinstance(e.op, ast.USub):
                e = e.operand
            if isinstance(e, ast.Constant):
                kinds.append(type(e.value))
            elif isinstance(e, ast.Attribute) and e.attr in ("inf", "nan", "pi", "e"):
                kinds.append(float)
        if float in kinds:
            return ast.Constant("float64")
        return ast.Constant("int64" if int in kinds else None)

    def e_Slice(self, node):
        parts = [
            self.expression(p) if p else ast.Constant(None)
            for p in (node.lower, node.upper, node.step)
        ]
        return self.call("slice", *parts)

    def e_Subscript(self, node):
        array, index = self.expression(node.value), self.index(node.slice)
        if is_part(node.slice):
            return self.call("view", array, index)
        return self.call("load", array, index, self.site_constant(node, index=node.slice))

    def index(self, node):
        """Rewrite an index; a literal that is negative counts from the end."""
        if isinstance(node, ast.Tuple):
            return self.mark([ast.Tuple([self.index(x) for x in node.elts], ast.Load())], node)[0]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = getattr(node.operand, "value", None)
            if type(value) is int and value:
                return load_name(self.constant_name(f"from_end_{value}", FromEnd(-value)))
        return self.expression(node)

    def e_Call(self, node):
        function = node.func
        if getattr(function, "attr", "") == "bit_count" and not node.args:
            return self.call("bit_count", self.expression(function.value))
        atomic = isinstance(function, ast.Attribute) and is_atomic(function)
        if None in {k.arg for k in node.keywords}:
            self.refuse(node, "**keywords in a call", "Name the arguments.")
        if atomic and any(isinstance(a, ast.Starred) for a in node.args):
            self.refuse(node, "*args in an atomic", "List the arguments.", numba_runs_it=True)
        arguments = [self.argument(a) for a in node.args]
        if atomic and len(arguments) > 1:
            arguments[1] = self.index(node.args[1])
        if atomic and arguments and (start := slice_start(node.args[0])):
            array = self.expression(node.args[0].value)
            arguments[0] = self.call("element_from", array, self.expression(start))
        keywords = [ast.keyword(k.arg, self.expression(k.value)) for k in node.keywords]
        called = getattr(function, "attr", getattr(function, "id", ""))
        allocates = called in ("shared_array", "local_array")
        if allocates or (isinstance(function, ast.Attribute) and called in ("array", "array_like")):
            if called != "array_like":
                self.check_shape(node)
            arguments = [self.site_constant(node, self.target_name), *arguments]
            return self.call("allocate", self.expression(function), *arguments, keywords=keywords)
        if atomic:
            index = node.args[1] if len(node.args) > 1 else None
            keep = ast.Constant(node is not self.discarded)
            arguments = [self.site_constant(node, index=index), keep, *arguments]
            return self.call("atomic", self.expression(function), *arguments, keywords=keywords)
        given = [*enumerate(node.args), *((k.arg, k.value) for k in node.keywords)]
        self.calls[position(node)] = {key: names(value) for key, value in given}
        called = self.expression(function)
        if self.counting:
            arguments = [ast.Constant(node.lineno), called, *arguments]
            return self.call("count_call", *arguments, keywords=keywords)
        return ast.Call(called, arguments, keywords)

    def argument(self, node):
        if isinstance(node, ast.Starred):  # f(*pair)
            return ast.Starred(self.expression(node.value), ast.Load())
        return self.expression(node)

    def check_shape(self, node):
        """cuda.shared.array and cuda.local.array need a shape known at compile time."""
        shape = next((k.value for k in node.keywords if k.arg == "shape"), None)
        shape = node.args[0] if node.args else shape
        kind, known = ast.unparse(node.func), dict(assigned_once(self.function))
        nodes = [(x, x) for x in walk(shape)] if shape is not None else []
        sized, other, computed = set(), set(), computed_part(shape)
        for x, shown in nodes:  # grows by the values of variables
            named = getattr(getattr(x, "value", None), "attr", "")
            if isinstance(x, ast.Attribute) and named in ("blockDim", "gridDim"):
                refuse_shape(self.site(shown), kind, f"{ast.unparse(x)} is known at the launch")
            if getattr(x, "args", ()) and getattr(x.func, "id", "") == "len":
                sized.add(x.args[0])
            is_ndim = isinstance(x, ast.Attribute) and x.attr == "ndim"
            no_size = getattr(x, "func", None) or getattr(x, "test", is_ndim and x.value)
            other.update(walk(no_size) if no_size else ())
            if x in other or not isinstance(x, ast.Name):
                continue
            if x.id not in self.locals:
                self.shape_names[x.id] = self.site(shown), kind, False
            elif x.id in self.parameters:
                if x.id not in self.shape_names or x not in sized:
                    self.shape_names[x.id] = self.site(shown), kind, x in sized
            elif x.id in known:
                value = known.pop(x.id)
                nodes += [(y, shown) for y in walk(value)]
                computed = computed or computed_part(value)
        if computed is not None and self.shape_names.keys().isdisjoint(self.parameters):
            refuse_shape(self.site(computed), kind, f"{ast.unparse(computed)} is computed")

    # ------------------------------------------------------------------ statements

    def block(self, statements, number=None):
        """Rewrite a list of statements; what follows a possible exit goes under alive()."""
        if number is None:
            number = self.block_number[id(statements)]
        outer, self.present = self.present, number
        result = self.block_statements(statements, number)
        self.present = outer
        return result

    def block_statements(self, statements, number):
        result = []
        if number in self.home_blocks:
            mask = ast.Attribute(load_name(PREFIX + "lanes"), "mask", ast.Load())
            result += self.mark([assign(f"{PREFIX}home{number}", mask)], statements[0])
        for i, s in enumerate(statements):
            rewrite = getattr(self, "s_" + type(s).__name__, None)
            if rewrite is None:
                self.refuse(s)
            result += self.mark(rewrite(s), s)
            rest = statements[i + 1 :]
            if rest and may_exit([s]):
                guard = ast.If(self.call("alive"), self.block(rest, number), [])
                return result + self.mark([guard], rest[0])
        return result

    def s_Pass(self, s):
        return [ast.Pass()]

    def s_Global(self, s):
        if self.locals & set(s.names):
            self.refuse(s)
        return [ast.Pass()]

    s_Nonlocal = s_Global

    def s_Expr(self, s):
        if isinstance(s.value, ast.Constant):  # a docstring
            return [ast.Pass()]
        self.discarded = s.value
        return [ast.Expr(self.expression(s.value))]

    def bind(self, name, value, number=None):
        """Statements: `name = value` for the active threads; the others keep their values."""
        number = self.present if number is None else number
        home = load_name(f"{PREFIX}home{self.homes[name, number]}")
        value = self.call("bind", load_name(name), value, home)
        result = [assign(name, value)]
        if name in self.partial:
            who = assigned(name)
            result.append(assign(who, self.call("assign", load_name(who))))
        return result

    def store(self, target, value, node, source=None):
        """Rewrite `target = value`; source: the value as the learner wrote it."""
        if isinstance(target, ast.Name):
            return self.bind(target.id, value)
        if isinstance(target, ast.Tuple):
            count = ast.Constant(len(target.elts))
            parts = self.temporary()
            unpack = self.call("unpack", value, count, self.site_constant(target))
            result = [assign(parts, unpack)]
            for i, element in enumerate(target.elts):
                part = ast.Subscript(load_name(parts), ast.Constant(i), ast.Load())
                result += self.store(element, part, node)
            return result
        if isinstance(target, ast.Subscript):
            array, index = self.expression(target.value), self.index(target.slice)
            site = self.site_constant(target, index=target.slice)
            if copies(target, source):
                copy = self.call("store_copy", array, index, value, site, self.index(source.slice))
                return self.mark([ast.Expr(copy)], target)
            how = "fill" if is_part(target.slice) else "store"
            return self.mark([ast.Expr(self.call(how, array, index, value, site))], target)
        if isinstance(target, ast.Attribute):
            record, field = self.expression(target.value), ast.Constant(target.attr)
            call = self.call("store_field", record, field, value, self.site_constant(target))
            return self.mark([ast.Expr(call)], target)
        self.refuse(target)

    def named_value(self, target, value):
        """Rewrite an assigned value; an array made in it gets the name of its variable."""
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            if len(target.elts) == len(value.elts):
                parts = map(self.named_value, target.elts, value.elts)
                return ast.Tuple(list(parts), ast.Load())
        self.target_name = target.id if isinstance(target, ast.Name) else ""
        rewritten = self.expression(value)
        self.target_name = ""
        return rewritten

    def s_Assign(self, s):
        target = s.targets[0]
        value = self.named_value(target, s.value)
        if len(s.targets) == 1:
            return self.store(target, value, s, s.value)
        shared = self.temporary()
        result = [assign(shared, value)]
        for target in s.targets:
            result += self.store(target, load_name(shared), s)
        return result

    def s_AnnAssign(self, s):
        return self.store(s.target, self.expression(s.value), s) if s.value else [ast.Pass()]

    def s_AugAssign(self, s):
        value = self.expression(s.value)
        target = s.target
        if isinstance(target, ast.Name):
            old = self.e_Name(target)
            return self.bind(target.id, self.operation(s, s.op, old, value, target, s.value))
        if isinstance(target, ast.Attribute):
            record = self.temporary()
            old = ast.Attribute(load_name(record), target.attr, ast.Load())
            new = self.operation(s, s.op, old, value, target, s.value)
            site = self.site_constant(target)
            call = self.call("store_field", load_name(record), ast.Constant(target.attr), new, site)
            return [assign(record, self.expression(target.value)), ast.Expr(call)]
        if is_part(target.slice):
            instead = "Loop over its elements."
            self.refuse(target, "changing a slice in place", instead)
        array, index = self.temporary(), self.temporary()
        site = self.site_constant(target, index=target.slice)
        old = self.call("load", load_name(array), load_name(index), site)
        new = self.operation(s, s.op, old, value, target, s.value)
        return [
            assign(array, self.expression(target.value)),
            assign(index, self.index(target.slice)),
            ast.Expr(self.call("store", load_name(array), load_name(index), new, site)),
        ]

    def s_If(self, s):
        test, body, otherwise = self.expression(s.test), s.body, s.orelse
        if surely_returns(otherwise) and not surely_returns(body):
            # Those who return go first: who then waits at a barrier need not wait for them.
            test, body, otherwise = self.call("not_", test), otherwise, body
        result = [ast.If(self.call("if_", test), self.block(body), [])]
        if otherwise:
            result.append(ast.If(self.call("else_"), self.block(otherwise), []))
        exits = may_exit(s.body) or may_exit(s.orelse)
        result.append(ast.Expr(self.call("endif_after_exit" if exits else "endif")))
        return result

    def s_For(self, s):
        called = s.iter.func.id if isinstance(s.iter, ast.Call) and is_name(s.iter.func) else ""
        loops = ast.For, ast.While, ast.expr
        leaves = contains(s.body, ast.Return, ast.expr) or contains(s.body, ast.Break, loops)
        exits = ast.Constant(LEAVES if leaves else int(may_exit(s.body)))
        if called == "range" and "range" not in self.locals and not s.iter.keywords:
            turns = self.call("range_turns", exits, *map(self.expression, s.iter.args))
        else:
            values = ast.Tuple(s.iter.elts, ast.Load()) if isinstance(s.iter, ast.List) else s.iter
            values = [values]
            if called in ("enumerate", "zip") and not s.iter.keywords:
                values = s.iter.args
            if called not in ("enumerate", "zip"):
                called = ""
            how, site = ast.Constant(called), self.site_constant(s.iter)
            values = map(self.sequence, values)
            turns = self.call("sequence_turns", exits, site, how, *values)
        name, number = s.target.id, self.block_number[id(s.body)]
        if self.homes[name, number] == number:
            # Lives only inside the body, where it is set for every thread: nothing to blend.
            return [ast.For(ast.Name(name, ast.Store()), turns, self.block(s.body), [])]
        turn = self.temporary()
        body = [*self.bind(name, load_name(turn), number), *self.block(s.body)]
        return [ast.For(ast.Name(turn, ast.Store()), turns, body, [])]

    def sequence(self, node):
        """Rewrite what a loop goes over, by way of enumerate or zip."""
        called = getattr(getattr(node, "func", None), "id", "")
        if called in self.locals or getattr(node, "keywords", ()):
            return self.expression(node)
        if called == "range":
            numbers = self.call("range_numbers", *map(self.expression, node.args))
        elif called in ("enumerate", "zip"):
            how, site = ast.Constant(called), self.site_constant(node)
            numbers = self.call("sequence", site, how, *map(self.sequence, node.args))
        else:
            return self.expression(node)
        return self.mark([numbers], node)[0]

    def s_While(self, s):
        test = self.call("while_test", self.expression(s.test))
        decides = ast.Constant(decided_by(s))
        body = self.block(s.body) + [ast.Expr(self.call("next_turn"))]
        return [
            ast.Expr(self.call("while_begin", self.site_constant(s.test), decides)),
            ast.While(ast.BoolOp(ast.And(), [self.call("alive"), test]), body, []),
            ast.Expr(self.call("loop_end")),
        ]

    def s_Break(self, s):
        return [ast.Expr(self.call("break_"))]

    def s_Continue(self, s):
        return [ast.Expr(self.call("continue_"))]

    def s_Return(self, s):
        value = self.expression(s.value) if s.value else ast.Constant(None)
        return [ast.Expr(self.call("return_", value))]

    def s_Raise(self, s):
        """Raised as written, once a thread gets there."""
        return [ast.If(self.call("alive"), [ast.Raise(s.exc, s.cause)], [])]

    def s_Assert(self, s):
        message = s.msg if s.msg else ast.Constant("")
        return [ast.Expr(self.call("assert_", self.expression(s.test), thunk(message)))]


def refuse_shape(site, kind, why):
    raise UnsupportedError(
        f"{kind}: the shape must be a compile-time constant, but {why}",
        sites=[site],
        hint="Make it a global, or build the kernel in a factory function.",
    )


def computed_part(node):
    """Return the part of a shape that Numba computes at run time, None if there is none.

    It knows literals, what Python makes of these alone, global numbers and tuples, their elements.
    """
    if isinstance(node, ast.Subscript):
        return computed_part(node.value)
    if isinstance(node, ast.Tuple):
        return next(filter(None, map(computed_part, node.elts)), None)
    if isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Compare)):
        return None if is_literal(node) else node
    name = getattr(getattr(node, "func", None), "id", "")
    if isinstance(node, ast.Attribute) and node.attr != "ndim" or name in NUMBER_CALLS - {"len"}:
        return node
    return None


@functools.lru_cache(maxsize=1)
def assigned_once(function):
    """Return the value of each variable that has one assignment."""
    counts, found = Counter(stored(function)), {}
    for s in (s for s in walk(function) if isinstance(s, ast.Assign)):
        pairs = [(s.targets[0], s.value)]
        if isinstance(s.targets[0], ast.Tuple) and isinstance(s.value, ast.Tuple):
            pairs = zip(s.targets[0].elts, s.value.elts, strict=False)
        for target, value in pairs:
            found |= {name: value for name in names(target, ast.Store) if counts[name] == 1}
    return found


def is_atomic(function):
    """Recognise cuda.atomic.add, c.atomic.add and atomic.add."""
    base = function.value
    name = base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")
    return name == "atomic"


def slice_start(node):
    """Return the start of a slice x[start:]."""
    part = node.slice if isinstance(node, ast.Subscript) else None
    if isinstance(part, ast.Slice) and part.upper is None and part.step is None:
        return part.lower
    return None


def copies(target, source):
    """Recognise x[i] = x[j], with indices that may be evaluated twice."""
    if not isinstance(source, ast.Subscript) or is_part(target.slice) or is_part(source.slice):
        return False
    same = is_name(target.value) and is_name(source.value) and target.value.id == source.value.id
    return same and is_pure(target.slice) and is_pure(source.slice)


def element_uses(function):
    """Return the names whose elements a function stores to, and those that it hands on.

    To hand on is to give a name or x[...] to a call or another variable. The second result maps
    the name to the fewest indices with which that happens: fewer than the array has dimensions,
    and it is not an element but memory that can be stored to elsewhere.
    """
    stored, handed_on = set(), {}
    givers = (ast.Call, ast.keyword, ast.Assign, ast.AnnAssign, ast.For, ast.Tuple, ast.IfExp)
    for node in walk(function):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            stored.add(root(node)[0])
        elif isinstance(node, givers):
            for part in children(node):
                name, indices = root(part)
                handed_on[name] = min(indices, handed_on.get(name, indices))
    return stored, handed_on


# Attributes that show the same memory, or store to it.
VIEWS = "T", "real", "imag", "reshape", "ravel", "transpose", "fill", "flat"


def root(node):
    """Return the name of x in x[i][j, k:l], else None, and how many indices it has: 2."""
    indices = 0
    while True:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func  # x.reshape(2, 16)
        if isinstance(node, ast.Attribute) and node.attr in VIEWS:
            node = node.value
            continue
        if not isinstance(node, ast.Subscript):
            break
        indices += sum(not isinstance(part, ast.Slice) for part in indices_of(node.slice))
        node = node.value
    return node.id if isinstance(node, ast.Name) else None, indices
