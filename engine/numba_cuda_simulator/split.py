"""Splits a kernel at its barriers: the second gear's loops over blocks and threads.

    a = x[t]; tile[t] = a           for each block:
    cuda.syncthreads()                  for each thread: a = x[t]; tile[t] = a; a_of[t] = a
    out[t] = a + tile[n - t]            base += STRIDE
                                        for each thread: a = a_of[t]; out[t] = a + tile[n - t]

A stretch between two barriers is a `Region`. An `if` or a loop with a barrier inside is one for all
threads of the block: its test or its range is a region that asks every thread, and a flag is raised
where two threads disagree. A variable that a later region reads lives in an array, one element per
thread, unless all that it is made of is there again: then it is computed anew.
"""

import ast
import math

import numpy as np

from .dtypes import numpy_dtype
from .emit import Emitter, Path, Program, Untranslatable
from .scopes import names, read_before_written
from .syntax import walk
from .transform import PREFIX, assign, is_literal, load_name
from .watched import CONTEXT, KINDS, STRIDE, UNWRITTEN

VOTES = {  # of a block's threads: the result from how many say yes
    "syncthreads_count": "{1} = {2}",
    "syncthreads_or": "{1} = 1 if {2} > 0 else 0",
    "syncthreads_and": "{1} = 1 if {2} == {0}there else 0",
}
PURE_NODES = (ast.BinOp, ast.UnaryOp, ast.Name, ast.Attribute, ast.Constant, ast.Tuple, ast.Call)


INTEGER, TEST, VOTE = "integer", "test", "vote"  # kinds of what a region asks all threads


class Region:
    """What each thread does between two barriers.

    Attributes
    ----------
    nodes : list of ast.stmt
        As the kernel has them.
    place : list of ast.stmt
        Where the loop over threads is to be put, once it is known what it needs.
    result : list of (str, ast.expr)
        What every thread is asked, by the name that the block's code gives to it.
    kind : INTEGER or TEST, on which all must agree, or VOTE, where those are counted who say yes
    """

    def __init__(self, nodes, result=(), kind=INTEGER):
        self.nodes, self.result, self.kind = nodes, result, kind
        self.place = ast.If(ast.Constant(True), [ast.Pass()], [])

    def uses(self):
        """Return the region as statements, for questions about its variables."""
        return [*self.nodes, *(ast.Expr(value) for _, value in self.result)]


class Array:
    """A shared or local array of the kernel: one name, one call, one shape."""

    def __init__(self, kind, name, shape, dtype):
        self.kind, self.name, self.shape, self.dtype = kind, name, shape, dtype
        self.size, self.bytes = math.prod(shape), math.prod(shape) * dtype.itemsize


class Kernel(Emitter):
    """A kernel's compiled form.

    Attributes
    ----------
    arrays : dict
        Shared and local arrays, by name.
    spilled : list of str
        Variables that live in arrays, one element per thread.
    """

    def __init__(self, function, stored_parameters, axes):
        super().__init__(Program(), function, axes)
        self.stored_parameters = stored_parameters
        if self.stored & set(self.parameters):
            raise Untranslatable("a parameter that is assigned")
        self.arrays, self.regions, self.split_loops = {}, [], 0
        self.find_arrays()
        self.block_variables = self.find_block_variables()
        self.may_leave = any(isinstance(n, ast.Return) for n in walk(self.tree))
        self.typing = False  # writing the function that is asked for types
        self.code = self.block(self.tree.body)
        self.find_spilled()

    def find_arrays(self):
        """Find the statements x = cuda.shared.array(...), and of local ones."""
        for s in walk(self.tree):
            for node in ast.iter_child_nodes(s):
                if not isinstance(node, ast.Call):
                    continue
                path = self.static(node.func)
                if path not in ("shared.array", "local.array"):
                    continue
                target = s.targets[0] if isinstance(s, ast.Assign) and len(s.targets) == 1 else None
                if not isinstance(target, ast.Name) or self.stores[target.id] != 1:
                    raise Untranslatable("an array that has two names")
                given = dict(zip(("shape", "dtype"), node.args, strict=False))
                given |= {k.arg: k.value for k in node.keywords}
                if set(given) != {"shape", "dtype"}:
                    raise Untranslatable("alignment of an array")
                shape = self.number_or_tuple(given["shape"])
                shape = shape if isinstance(shape, tuple) else (shape,)
                try:
                    dtype = numpy_dtype(self.static(given["dtype"]))
                except TypeError:
                    raise Untranslatable("the type of an array") from None
                kind = path.partition(".")[0]
                if math.prod(shape) <= 0 or dtype.kind not in "biuf" or dtype.itemsize > 8:
                    raise Untranslatable("a dynamic or odd array")
                self.arrays[target.id] = Array(kind, target.id, shape, dtype)

    def number_or_tuple(self, node):
        """Return what an array's shape is, known before the launch."""
        if isinstance(node, ast.Tuple):
            return tuple(map(self.number_or_tuple, node.elts))
        if is_literal(node):
            value = eval(compile(ast.unparse(node), "", "eval"))
        else:
            value = self.static(node)
        if isinstance(value, tuple) and all(isinstance(n, int) for n in value):
            return value
        if isinstance(value, (bool, Path)) or not isinstance(value, (int, np.integer)):
            raise Untranslatable("a shape")
        return int(value)

    def find_block_variables(self):
        """Return the variables that only loops with a barrier inside set: one for all threads."""
        setters = {}
        for node in walk(self.tree):
            if isinstance(node, ast.For) and isinstance(node.target, ast.Name):
                setters.setdefault(node.target.id, []).append(self.has_barrier(node))
        return {n for n, found in setters.items() if all(found) and self.stores[n] == len(found)}

    # ------------------------------------------------------------------ the block's code

    def is_barrier(self, s):
        node = s.value if isinstance(s, (ast.Expr, ast.Assign)) else None
        path = self.static(node.func) if isinstance(node, ast.Call) else None
        return isinstance(path, Path) and (path == "syncthreads" or path in VOTES)

    def has_barrier(self, s):
        return any(self.is_barrier(x) for x in walk(s))

    def is_of_block(self, s):
        """Tell whether all threads of a block do a statement together."""
        return self.has_barrier(s) or (self.split_loops and leaves_loop(s))

    def block(self, statements):
        """Write statements of the kernel as code for a whole block."""
        result, own = [], []

        def end_region():
            if own:
                result.append(self.region(list(own)))
                own.clear()

        for s in statements:
            if not self.is_of_block(s):
                own.append(s)
                continue
            end_region()
            write = getattr(self, "block_" + type(s).__name__, None)
            if write is None:
                raise Untranslatable("a barrier inside " + type(s).__name__)
            result += write(s)
        end_region()
        return result or [ast.Pass()]

    def region(self, nodes, result=(), kind=INTEGER):
        region = Region(nodes, result, kind)
        self.regions.append(region)
        return region.place

    def agreed(self, *values, kind=INTEGER):
        """Return names for values that all threads must agree on, and the region that asks."""
        result = [(self.temporary(), value) for value in values]
        return [name for name, _ in result], self.region([], result, kind)

    def block_Expr(self, s):
        return lines("{0}base += {1}", STRIDE)

    def block_Assign(self, s):
        """x = cuda.syncthreads_count(y) and its like."""
        path = self.static(s.value.func)
        if path not in VOTES or len(s.value.args) != 1:
            raise Untranslatable(path)
        count, result = self.temporary(), self.temporary()
        ask = self.region([], [(count, s.value.args[0])], VOTE)
        self.locals.add(result)
        bind = self.region([ast.Assign(s.targets, load_name(result))])
        barrier = lines("{0}base += {3}\n" + VOTES[path], result, count, STRIDE)
        return [ask, *barrier, bind]

    def block_If(self, s):
        (test,), ask = self.agreed(s.test, kind=TEST)
        body, otherwise = self.block(s.body), self.block(s.orelse) if s.orelse else []
        if not otherwise:
            return [ask, ast.If(load_name(test), body, [])]
        # No thread is there: neither holds.
        some = lines("if {0}there > 0: pass")[0]
        some.body = otherwise
        return [ask, ast.If(load_name(test), body, [some])]

    def block_While(self, s):
        (test,), ask = self.agreed(s.test, kind=TEST)
        leave = ast.If(ast.UnaryOp(ast.Not(), load_name(test)), [ast.Break()], [])
        return [ast.While(ast.Constant(True), [ask, leave, *self.split_body(s)], [])]

    def block_For(self, s):
        bounds = self.bounds(s)
        if bounds is None:
            raise Untranslatable("a barrier in a loop over something else than range()")
        found, ask = self.agreed(*bounds)
        args = list(map(load_name, found))
        name = s.target.id
        turn = name if name in self.block_variables else self.temporary()
        bind = []
        if turn != name:
            bind = [self.region([assign(name, load_name(turn))])]
            self.locals.add(turn)
        loop = ast.For(
            ast.Name(turn, ast.Store()), ast.Call(load_name("range"), args, []),
            bind + self.split_body(s), [],
        )  # fmt: skip
        return [ask, loop]

    def split_body(self, s):
        self.split_loops += 1
        body = self.block(s.body)
        self.split_loops -= 1
        return lines("if {0}stopped({0}flags) or {0}there == 0: break") + body

    def block_Break(self, s):
        return [ast.Break()]

    def block_Continue(self, s):
        return [ast.Continue()]

    # ------------------------------------------------------------------ variables

    def find_spilled(self):
        """Find the variables that one region reads and another one has set."""
        exposed, whole = set(), self.block_variables | set(self.arrays) | set(self.aliases)
        for region in self.regions:
            region.exposed = read_before_written(region.uses(), set()) & self.stored - whole
            region.set = names(ast.Module(region.nodes, []), ast.Store) - whole
            exposed |= region.exposed
        if len(self.regions) == 1:
            exposed = set()
        self.again = self.find_again(exposed)
        self.spilled = sorted(exposed - set(self.again))

    def find_again(self, exposed):
        """Return the assignments to repeat in each region, by name: of values that never change."""
        again = {}
        for s in self.tree.body:
            if not isinstance(s, ast.Assign) or len(s.targets) != 1:
                continue
            targets = names(s.targets[0], ast.Store)
            once = all(self.stores[name] == 1 for name in targets)
            plain = all(
                isinstance(n, (*PURE_NODES, ast.operator, ast.unaryop, ast.expr_context))
                for n in walk(s.value)
            )
            used = names(s.value, ast.Load) & self.stored - set(self.aliases)
            calls = [n for n in walk(s.value) if isinstance(n, ast.Call)]
            calls_grid = all(self.static(n.func) in ("grid", "gridsize") for n in calls)
            if targets and once and plain and calls_grid and used <= set(again):
                if not (targets | used) & (set(self.arrays) | self.block_variables):
                    again |= {name: s for name in targets}
        return again

    # ------------------------------------------------------------------ threads

    def s_Assign(self, s):
        target = s.targets[0]
        if self.typing and self.is_barrier(s):
            return self.assign(target, ast.Constant(0))
        if isinstance(target, ast.Name) and target.id in self.arrays:
            array = self.arrays[target.id]
            if array.kind == "shared":
                return []
            return lines("{1}.data.view({0}uint8)[:] = {2}", target.id, UNWRITTEN)
        return super().s_Assign(s)

    def s_Expr(self, s):
        return [] if self.typing and self.is_barrier(s) else super().s_Expr(s)

    def s_Return(self, s):
        if s.value is not None and getattr(s.value, "value", self) is not None:
            raise Untranslatable("a kernel that returns a value")
        if self.typing:
            return [ast.Return(None)]
        leave = ast.Break() if self.loops else ast.Continue()
        return [*lines("{0}alive[{0}t] = False"), leave]

    def leave(self, s):
        """After a loop: a thread that has returned there goes no further."""
        if self.typing or not any(isinstance(x, ast.Return) for x in walk(s)):
            return []
        word = "break" if self.loops else "continue"
        return lines("if not {0}alive[{0}t]: {1}", word)

    def loop_over_threads(self, region):
        """Write a region's code."""
        spilled = set(self.spilled)
        needed = region.exposed | (region.set & spilled)
        used = names(ast.Module(region.uses(), []))
        body = lines("if not {0}alive[{0}t]: continue") if self.may_leave else []
        body += self.thread_names(used)
        body += self.written_again(needed)
        for name in sorted(needed & spilled):
            body += lines("{1} = {0}of_{1}[{0}t]", name)
        body += self.statements(region.nodes) if region.nodes else []
        for name in sorted(region.set & spilled):
            body += lines("{0}of_{1}[{0}t] = {1}", name)
        body += self.agreement(region)
        loop = lines("for {0}t in range({0}threads): pass")[0]
        loop.body = body
        if len(self.regions) == 1:
            return [loop]
        loop.body += lines("{0}there += 1")
        start = lines("{0}there = 0")
        for name, _ in region.result:
            start += lines("{1} = {2}", name, "False" if region.kind == TEST else "0")
        return [*start, loop]

    def thread_names(self, used):
        """Write what says which thread it is, and its local arrays."""
        dims = " ".join(CONTEXT[7:]).replace(" ", f", {PREFIX}")
        place = ", ".join(f"{PREFIX}t{axis}[{PREFIX}t]" for axis in "xyz")
        result = lines(
            "{0}c = ({0}flags, {0}first, {0}base, {0}base + {0}t, {1}, {0}{2})", place, dims
        )
        for array in self.arrays.values():
            if array.kind == "local" and array.name in used:
                row = f"{PREFIX}t" if len(self.regions) > 1 else "0"
                result += lines("{1} = {0}Local({0}local_{1}[{2}])", array.name, row)
        return result

    def written_again(self, needed):
        """Return the assignments of variables that a region computes anew, in their order."""
        wanted, result = set(needed) & set(self.again), []
        for s in reversed(self.tree.body):
            targets = names(s, ast.Store) if isinstance(s, ast.Assign) else set()
            if targets & wanted and any(self.again.get(n) is s for n in targets):
                result.insert(0, s)
                wanted |= names(s.value, ast.Load) & set(self.again)
        return [part for s in result for part in self.s_Assign(s)]

    def agreement(self, region):
        """Write what compares a thread's values with those of the threads before it."""
        result = []
        for name, value in region.result:
            mine = self.temporary()
            written = self.test(value)
            if region.kind == INTEGER:
                written = self.call("whole", self.expression(value))
            result.append(assign(mine, written))
            if region.kind == VOTE:
                result += lines("{1} += {2}", name, mine)
                continue
            result += lines("if {0}there == 0: {1} = {2}\n{0}flag_if({0}c, {1} != {2})", name, mine)
        return result

    # ------------------------------------------------------------------ the whole

    def parameter_names(self):
        """Return the parameters of the compiled function, in their order."""
        general = [*CONTEXT[10:], *"threads tx ty tz alive flags progress".split()]
        result = [PREFIX + name for name in general]
        result += [f"{PREFIX}given_{name}" for name in self.parameters]
        result += [f"{PREFIX}shadow_{name}" for name in self.shadowed()]
        result += [f"{PREFIX}local_{name}" for name in self.arrays]
        return result + [f"{PREFIX}of_{name}" for name in self.spilled]

    def shadowed(self):
        shared = [a.name for a in self.arrays.values() if a.kind == "shared"]
        return [*self.stored_parameters, *shared]

    def bundles(self, array_parameters):
        """Write the names of arrays, each with its shadow, and of numbers."""
        atomic, result = "Atomic" * self.program.atomics, []
        for name in self.parameters:
            if name in self.stored_parameters:
                how = f"{{0}}Global{atomic}({{0}}given_{{1}}, {{0}}shadow_{{1}})"
            else:
                how = "{0}Plain({0}given_{1})" if name in array_parameters else "{0}given_{1}"
            result += lines("{1} = " + how, name)
        for array in self.arrays.values():
            if array.kind == "shared":
                how = f"{{0}}Shared{atomic}({{0}}local_{{1}}, {{0}}shadow_{{1}})"
                result += lines("{1} = " + how, array.name)
        return result

    def build(self, array_parameters):
        """Return the Python function that Numba compiles.

        array_parameters : names of those that are arrays.
        """
        for region in self.regions:
            region.place.body = self.loop_over_threads(region)
        head = lines(
            "{0}base = 0\n"
            "for {0}block in range({0}gdx * {0}gdy * {0}gdz):\n"
            "    if {0}stopped({0}flags): break\n"
            "    {0}progress[0] = {0}block\n"
            "    {0}bx = {0}block % {0}gdx\n"
            "    {0}by = {0}block // {0}gdx % {0}gdy\n"
            "    {0}bz = {0}block // ({0}gdx * {0}gdy)\n"
            "    {0}base += {1}\n"
            "    {0}first = {0}base\n" + "    {0}alive[:] = True\n" * self.may_leave,
            STRIDE,
        )
        head[-1].body += self.code
        return self.built(self.bundles(array_parameters) + head)

    def build_for_types(self, array_parameters):
        """Return a function of the same variables, for one thread, to ask Numba for their types."""
        self.typing = True
        body = self.statements(self.tree.body)
        dims = lines("{0}first = {0}base = {0}bx = {0}by = {0}bz = {0}t = {0}whole(0)")
        head = self.bundles(array_parameters) + dims + self.thread_names(set(self.arrays))
        result = self.built(head + body)
        self.typing = False
        return result

    def built(self, body):
        kinds = {PREFIX + kind.__name__: kind for kind in KINDS}
        self.program.world |= kinds
        parameters = list(map(ast.arg, self.parameter_names()))
        arguments = ast.arguments([], parameters, None, [], [], None, [])
        name = f"{PREFIX}{self.python.__name__}"
        definition = ast.FunctionDef(name, arguments, body, [], type_params=[])
        return self.program.build(definition, self.python.__name__)


def lines(text, *parts):
    """Return source lines as syntax trees; {0} stands for the prefix of our names."""
    body = ast.parse("for _ in ():\n" + indented(text.format(PREFIX, *parts))).body
    return body[0].body


def indented(text):
    return "\n".join("    " + line for line in text.splitlines())


def leaves_loop(s):
    """Tell whether a statement has a break or continue of a loop around it."""
    if isinstance(s, (ast.Break, ast.Continue)):
        return True
    if isinstance(s, (ast.For, ast.While)):
        return False
    return any(map(leaves_loop, ast.iter_child_nodes(s)))
