"""Which Python a kernel may be written in, and what to write instead of the rest."""

import ast
import collections

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
    ast.Match: ("match", "Write if ... elif."),
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


def parameters_of(function):
    """Return the names of the parameters of a function's syntax tree."""
    return [a.arg for a in function.args.posonlyargs + function.args.args]


def indices_of(index):
    """Return the parts of x[i, j], a list also of x[i]."""
    return index.elts if isinstance(index, ast.Tuple) else [index]


class FromEnd(int):
    """A negative index that is a literal, as in x[-1]: it counts from the end, as in Python."""


def is_consteval(node):
    """Recognise consteval(...) of numba-cuda-mlir."""
    if not isinstance(node, ast.Call):
        return False
    return getattr(node.func, "attr", getattr(node.func, "id", "")) == "consteval"


def compile_time(node, local):
    """Return the statements and the name of the value of consteval(...); None: threads run it.

    Python runs it where it names no variable of the kernel, as numba-cuda-mlir does.
    """
    if len(node.args) == 2:  # of a `with consteval():`
        return [x.value for x in node.args]
    own = {x.id for x in ast.walk(node) if is_stored(x)}  # of a comprehension
    if len(node.args) != 1 or (set(loads(node.args[0])) - own) & local:
        return None
    return f"value = {ast.unparse(node.args[0])}", "value"


def loads(node):
    """Count how often each name is read."""
    names = (x for x in ast.walk(node) if isinstance(x, ast.Name))
    return collections.Counter(x.id for x in names if isinstance(x.ctx, ast.Load))


def is_stored(node):
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def contexts(block):
    return [item.context_expr for item in block.items]


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

    def visit_FunctionDef(self, function):
        self.loads = loads(function)
        return self.generic_visit(function)

    def visit_With(self, block):
        """Write `with consteval(): ...` as one assignment for each name that is used after it."""
        if not all(map(is_consteval, contexts(block))):
            return block
        text = "\n".join(map(ast.unparse, block.body))
        used = self.loads - loads(block)
        names = sorted({x.id for x in ast.walk(block) if is_stored(x)} & set(used))
        call = block.items[0].context_expr
        calls = [ast.Call(call.func, [ast.Constant(text), ast.Constant(n)], []) for n in names]
        targets = [ast.copy_location(ast.Name(n, ast.Store()), block) for n in names]
        pairs = zip(targets, (ast.copy_location(c, call) for c in calls), strict=True)
        return [self.assign(*pair) for pair in pairs] or ast.copy_location(ast.Pass(), block)

    def visit_For(self, loop):
        if isinstance(loop, ast.For) and is_consteval(loop.iter) and loop.iter.args:
            numbers, wrap = loop.iter.args[0], loop.iter.func
            if getattr(getattr(numbers, "func", None), "id", "") == "range":
                simple = ast.Constant, ast.Name
                numbers.args = [
                    x if isinstance(x, simple) else ast.copy_location(ast.Call(wrap, [x], []), x)
                    for x in numbers.args
                ]
                loop.iter = numbers
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
