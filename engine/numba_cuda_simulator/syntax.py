"""Which Python a kernel may be written in, and what to write instead of the rest."""

import ast
import collections
import copy

# What Numba does not compile for a GPU either: name, what to write instead.
REFUSED = {
    ast.AsyncFor: ("async for", "Write for."),
    ast.AsyncWith: ("async with", "Nothing is awaited in a kernel."),
    ast.Await: ("await", "Nothing is awaited in a kernel."),
    ast.ClassDef: ("a class", "Define it outside; a kernel works with numbers and arrays."),
    ast.Delete: ("del", "Leave it out: a variable costs nothing once it is not used."),
    ast.Dict: ("a dict", "Use an array indexed by number."),
    ast.DictComp: ("a dict comprehension", "Use an array and a for loop."),
    ast.FormattedValue: ("an f-string", 'Pass the values themselves: print("x", x).'),
    ast.GeneratorExp: ("a generator expression", "Use a for loop."),
    ast.Global: ("an assignment to a global variable", "Pass an array and store into it."),
    ast.Import: ("import", "Import at the top of the file or notebook."),
    ast.ImportFrom: ("import", "Import at the top of the file or notebook."),
    ast.JoinedStr: ("an f-string", 'Pass the values themselves: print("x", x).'),
    ast.List: ("a list", "Use a tuple, or cuda.local.array for what changes."),
    ast.ListComp: ("a list comprehension", "Use cuda.local.array and a for loop."),
    ast.MatMult: ("the @ operator", "Write the loops: each thread sums its own products."),
    ast.Match: ("match of what is to be taken apart", "Write if ... elif."),
    ast.NamedExpr: ("the := operator", "Assign in a statement of its own."),
    ast.Nonlocal: (
        "an assignment to a variable of an outer function",
        "Pass an array and store into it.",
    ),
    ast.Set: ("a set", "Use a tuple."),
    ast.SetComp: ("a set comprehension", "Use cuda.local.array and a for loop."),
    ast.Starred: ("*unpacking", "Name each element."),
    ast.Try: ("try", "Test for the bad case with if: a GPU thread cannot catch an exception."),
    ast.With: ("with", "A kernel opens nothing that must be closed."),
    ast.Yield: ("yield", "Store results into an array."),
    ast.YieldFrom: ("yield from", "Store results into an array."),
}
# What Numba compiles for a GPU but this engine does not run.
NOT_HERE = {
    ast.FunctionDef: (
        "a function defined inside a kernel",
        "Define it outside, with @cuda.jit(device=True).",
    ),
    ast.Lambda: ("a lambda", "Define a function outside, with @cuda.jit(device=True)."),
}


def refusal(what, instead="", numba_runs_it=False):
    """Return the message and the hint of a refusal."""
    if numba_runs_it:
        return f"{what} does not run on the CPU engine", f"A GPU would run it. {instead}".rstrip()
    why = f"Numba does not compile it for a GPU. {instead}".rstrip()
    return f"{what} cannot be used in a CUDA kernel", why


def refusal_of(node):
    """Return the message and the hint for a syntax node that the engine has no rule for."""
    kind = type(node)
    if kind in NOT_HERE:
        return refusal(*NOT_HERE[kind], numba_runs_it=True)
    return refusal(*REFUSED.get(kind, (f"this syntax ({kind.__name__})", "")))


LEAVES = {ast.Name, ast.Constant, ast.Load, ast.Store}


def walk(node):
    """Return the nodes of a syntax tree, as ast.walk gives them, in a third of the time."""
    if hasattr(node, "_simt_nodes"):  # a function that does not change any more
        return node._simt_nodes
    nodes = [node]
    for node in nodes:
        nodes += children(node)
    return nodes


def children(node):
    """Return the nodes right below one, as ast.iter_child_nodes gives them; of names none."""
    result = []
    if type(node) in LEAVES:
        return result
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, ast.AST):
            result.append(value)
        elif type(value) is list:
            result += [x for x in value if isinstance(x, ast.AST)]
    return result


def parameters_of(function):
    """Return the names of the parameters of a function's syntax tree."""
    others = [function.args.vararg] if function.args.vararg else []
    return [a.arg for a in function.args.posonlyargs + function.args.args + others]


def indices_of(index):
    """Return the parts of x[i, j], a list also of x[i]."""
    return index.elts if isinstance(index, ast.Tuple) else [index]


class FromEnd(int):
    """A negative index that is a literal, as in x[-1]: it counts from the end, as in Python."""


def is_consteval(node):
    """Recognise consteval(...) of numba-cuda-mlir."""
    return called(node) == "consteval"


def called(node):
    """Return the called function's name, without its module; an empty string for no call."""
    function = getattr(node, "func", None)
    return getattr(function, "attr", getattr(function, "id", ""))


def loads(node):
    """Count how often each name is read."""
    names = (x for x in walk(node) if isinstance(x, ast.Name))
    return collections.Counter(x.id for x in names if isinstance(x.ctx, ast.Load))


def stored(*nodes):
    """Return the variables that syntax trees assign, each as often as they do."""
    found = (x for node in nodes for x in walk(node))
    return [x.id for x in found if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)]


def is_special(node):
    """Tell whether `SimpleLoops` may write a node otherwise."""
    kind = type(node)
    if kind is ast.Call:
        return called(node) in ("consteval", "local_array_from")
    if kind is ast.For and not isinstance(node.target, ast.Name):
        return True
    return bool(node.orelse) if kind in (ast.For, ast.While) else kind in (ast.Match, ast.With)


class SimpleLoops(ast.NodeTransformer):
    """Write loops that have an `else`, or several variables, as plain ones.

    for ...:                    whole = True
        if found: break         for ...:
    else:                           if found:
        not_found()                     whole = False
                                        break
                                if whole:
                                    not_found()

    for a, b in pairs: ...      for pair in pairs:
                                    a, b = pair
                                    ...
    """

    def __init__(self, prefix):
        self.prefix = prefix
        self.count = 0
        self.flags = []  # of the loops around, from the outside in; None: no else
        self.before = []  # statements of consteval, which Python runs

    def visit_FunctionDef(self, function):
        self.loads = loads(function)
        self.local = {*stored(function), *parameters_of(function)}
        return self.generic_visit(function)

    def visit_Call(self, call):
        """Take consteval(...) out for Python to run, unless it names what only threads know."""
        if is_consteval(call) and len(call.args) == 1:
            own = set(stored(call))  # variables of comprehensions
            known = set(stored(*map(ast.parse, self.before)))
            if not (set(loads(call.args[0])) - own) & (self.local - known):
                return self.compile_time(f"value = {ast.unparse(call.args[0])}", "value", call)
        return self.generic_visit(call)

    def compile_time(self, text, name, like):
        """Return the name of a value that `Names.compile_time` computes."""
        name = "\n".join((self.prefix, name, *self.before, text))
        return ast.copy_location(ast.Name(name, ast.Load()), like)

    def visit_Assign(self, s):
        value, target = s.value, s.targets[0]
        if called(value) == "local_array_from":
            return self.local_array(s, target, *value.args, *value.keywords)
        s.value = self.visit(value)
        if is_consteval(value) and isinstance(s.value, ast.Name) and isinstance(target, ast.Name):
            self.before.append(f"{target.id} = {ast.unparse(value.args[0])}")
        return s

    def local_array(self, s, target, generator, *others):
        """Write x = local_array_from((a + 1 for a in b), dtype) of numba-cuda-mlir as a loop."""
        if not isinstance(generator, ast.GeneratorExp) or len(generator.generators) > 1:
            return s
        (loop,), turn, name = generator.generators, self.name(), ast.unparse(target)
        values, others = ast.unparse(loop.iter), ", ".join(map(ast.unparse, others))
        text = f"{name} = cuda.local.array(len({values}), {others})\n"
        text += f"for {turn} in range(len({values})):\n    {ast.unparse(loop.target)} = "
        text += f"{values}[{turn}]\n    {name}[{turn}] = {ast.unparse(generator.elt)}"
        result = ast.parse(text).body
        for node in (x for part in result for x in walk(part)):
            ast.copy_location(node, s)
        return self.statements(result)

    def visit_With(self, block):
        """Write `with consteval(): ...` as one assignment for each name that is used after it."""
        if not all(is_consteval(item.context_expr) for item in block.items):
            return block
        text = "\n".join(map(ast.unparse, block.body))
        result = []
        for name in sorted({*stored(block)} & {*(self.loads - loads(block))}):
            target = ast.copy_location(ast.Name(name, ast.Store()), block)
            result.append(self.assign(target, self.compile_time(text, name, block)))
        self.before.append(text)
        return result or ast.copy_location(ast.Pass(), block)

    def visit_For(self, loop):
        part = "iter" if isinstance(loop, ast.For) else "test"
        value = getattr(loop, part)
        if is_consteval(value) and value.args and called(value.args[0]) == "range":
            simple, call, value = (ast.Constant, ast.Name), value.func, value.args[0]
            for n, x in enumerate(value.args):  # a range stays one
                if not isinstance(x, simple):
                    value.args[n] = ast.copy_location(ast.Call(call, [x], []), x)
        setattr(loop, part, self.visit(value))
        flag = self.name() if loop.orelse else None
        self.flags.append(flag)
        loop.body = self.statements(loop.body)
        self.flags.pop()
        if isinstance(loop, ast.For) and not isinstance(loop.target, ast.Name):
            turn = self.name()
            loop.body.insert(0, self.assign(loop.target, ast.Name(turn, ast.Load())))
            loop.target = ast.copy_location(ast.Name(turn, ast.Store()), loop.target)
        if flag is None:
            return loop
        otherwise = ast.If(ast.Name(flag, ast.Load()), self.statements(loop.orelse), [])
        loop.orelse = []
        parts = self.set_flag(flag, True, loop), loop, ast.copy_location(otherwise, loop)
        return [ast.fix_missing_locations(part) for part in parts]

    visit_While = visit_For

    def visit_Match(self, match):
        """Write match as if ... elif; of patterns that take nothing apart, as Numba compiles."""
        subject, result = self.name(), []
        for case in reversed(match.cases):
            pattern, name, guard, body = case.pattern, None, case.guard, case.body
            if isinstance(pattern, ast.MatchAs):  # case n, or case 1 | 2 as n
                name, pattern = pattern.name, pattern.pattern
            test = pattern and self.matches(pattern, subject)
            if pattern and test is None:
                return match
            body = self.statements(body)
            if guard and test and not name:
                test = ast.BoolOp(ast.And(), [test, self.visit(guard)])
            elif guard:
                body = [ast.If(self.visit(guard), body, copy.deepcopy(result))]
            if name:
                target = ast.copy_location(ast.Name(name, ast.Store()), match)
                body.insert(0, self.assign(target, ast.Name(subject, ast.Load())))
            result = [ast.If(test, body, result)] if test else body
            for s in result:
                ast.fix_missing_locations(ast.copy_location(s, case.pattern))
        target = ast.copy_location(ast.Name(subject, ast.Store()), match)
        return [self.assign(target, self.visit(match.subject)), *result]

    def matches(self, pattern, subject):
        """Return the test of a pattern; None if it takes something apart."""
        if isinstance(pattern, ast.MatchOr):
            tests = [self.matches(p, subject) for p in pattern.patterns]
            return None if None in tests else ast.BoolOp(ast.Or(), tests)
        if isinstance(pattern, (ast.MatchValue, ast.MatchSingleton)):
            value, op = pattern.value, ast.Eq()
            if isinstance(pattern, ast.MatchSingleton):
                value, op = ast.Constant(value), ast.Is()
            return ast.Compare(ast.Name(subject, ast.Load()), [op], [value])
        return None

    def visit_Break(self, node):
        flag = self.flags[-1]
        return [self.set_flag(flag, False, node), node] if flag else node

    def statements(self, body):
        result = []
        for s in body:
            new = self.visit(s)
            result += new if isinstance(new, list) else [new]
        return result

    def name(self):
        self.count += 1
        return f"{self.prefix}loop{self.count}"

    def set_flag(self, flag, value, like):
        target = ast.copy_location(ast.Name(flag, ast.Store()), like)
        return self.assign(target, ast.Constant(value))

    def assign(self, target, value):
        s = ast.copy_location(ast.Assign([target], value), target)
        return ast.fix_missing_locations(s)
