"""Where a variable lives: its home block, and whether it can hold a truth value.

Lockstep execution runs `x = e` for all threads at once while some of them are masked off,
so the old value of x must survive in the masked threads: the new value is blended in.
Blending costs time and, worse, turns a value that is the same in all threads (a loop
counter) into one per thread. It is needed only if a masked thread can still read the old
value. The home of x is the innermost block of statements that contains every use of x and
writes x before reading it; a thread that is masked off when the block is entered never
reads this x, so an assignment under the block's own mask may simply overwrite. Where several
inner blocks use x and each writes it first, as two loops over one name do, each is a home.
"""

import ast

from .syntax import walk


def names(node, context=(ast.Load, ast.Store)):
    """Return the variable names used in a syntax tree."""
    if not hasattr(node, "_simt_names"):  # each statement is asked for several times
        node._simt_names = [x for x in walk(node) if isinstance(x, ast.Name)]
    return {x.id for x in node._simt_names if isinstance(x.ctx, context)}


def find_homes(function, parameters):
    """Find the home of each variable, wherever it is used.

    Blocks are numbered in source order; 0 is the function's body. Returns a mapping from
    (variable, number of a block that uses it) to the number of its home there, and one from
    the identity of a statement list to its number.
    """
    blocks = []  # number -> (statements, numbers of the enclosing blocks, names it starts with)
    number_of = {}
    uses = {}  # variable -> list of paths (block numbers from the outside in)

    def note(node, path):
        for name in names(node):
            uses.setdefault(name, []).append(path)

    def visit(statements, outer, given=()):
        number = number_of[id(statements)] = len(blocks)
        path = outer + (number,)
        blocks.append((statements, outer, set(given)))
        for s in statements:
            if isinstance(s, ast.If):
                note(s.test, path)
                visit(s.body, path)
                if s.orelse:
                    visit(s.orelse, path)
            elif isinstance(s, ast.While):
                note(s.test, path)
                visit(s.body, path)
            elif isinstance(s, ast.For):
                note(s.iter, path)
                note(s.target, path + (len(blocks),))  # the loop sets it at the body's entry
                visit(s.body, path, given=names(s.target))
            else:
                note(s, path)

    visit(function.body, ())
    exposed = [read_before_written(statements, set(given)) for statements, _, given in blocks]
    homes = {}

    def settle(name, paths, depth):
        """Give a home to the uses below one block, paths[...][depth]."""
        number = paths[0][depth]
        inner = {}  # block inside -> the uses there
        for path in paths:
            inner.setdefault(path[depth + 1] if len(path) > depth + 1 else None, []).append(path)
        if None in inner or name in parameters or any(name in exposed[n] for n in inner):
            homes.update(((name, path[-1]), number) for path in paths)
        else:
            for part in inner.values():
                settle(name, part, depth + 1)

    for name, paths in uses.items():
        settle(name, paths, 0)
    return homes, number_of


def read_before_written(statements, written):
    """Return the names read before they are surely written; `written` grows on the way."""
    exposed = set()
    for s in statements:
        if isinstance(s, ast.If):
            exposed |= names(s.test) - written
            then, otherwise = set(written), set(written)
            exposed |= read_before_written(s.body, then)
            exposed |= read_before_written(s.orelse, otherwise)
            written |= then & otherwise
        elif isinstance(s, ast.While):
            exposed |= names(s.test) - written
            exposed |= read_before_written(s.body, set(written))
        elif isinstance(s, ast.For):
            exposed |= names(s.iter) - written
            exposed |= read_before_written(s.body, written | names(s.target))
        elif isinstance(s, ast.AugAssign):
            exposed |= names(s) - written
            written |= names(s.target, ast.Store)
        else:
            exposed |= names(s, ast.Load) - written
            written |= names(s, ast.Store)
    return exposed


def find_unsure_reads(function, parameters):
    """Return the nodes that may read a variable which some thread has not assigned by then.

    A loop's body may never run, and of an `if` one branch alone.
    """
    stored, unsure = names(function, ast.Store) - set(parameters), set()

    def read(node, written):
        kinds = (ast.Load, ast.Store) if isinstance(node, ast.Name) else ast.Load
        doubtful = names(node, kinds) & stored - written
        unsure.update(
            x
            for x in walk(node)
            if isinstance(x, ast.Name) and isinstance(x.ctx, kinds) and x.id in doubtful
        )

    def visit(statements, written):
        """Extend `written`; return whether no thread gets to the end."""
        for s in statements:
            if isinstance(s, ast.If):
                read(s.test, written)
                then, otherwise = set(written), set(written)
                leaves = visit(s.body, then), visit(s.orelse, otherwise)
                if all(leaves):
                    return True
                written |= otherwise if leaves[0] else then if leaves[1] else then & otherwise
            elif isinstance(s, ast.While):
                read(s.test, written)
                visit(s.body, set(written))
            elif isinstance(s, ast.For):
                read(s.iter, written)
                visit(s.body, written | names(s.target))
            else:
                if isinstance(s, ast.AugAssign):
                    read(s.target, written)
                read(s, written)
                written |= names(s, ast.Store)
                if isinstance(s, (ast.Return, ast.Raise, ast.Break, ast.Continue)):
                    return True
        return False

    visit(function.body, set())
    return unsure


TRUTH_CALLS = {"isnan", "isinf", "isfinite", "bool", "bool_", "boolean", "any_sync", "all_sync"}
TRUTH_CALLS |= {"eq_sync", "signbit"}
NUMBER_CALLS = {"min", "max", "abs", "len", "int", "float", "round", "pow"}
NUMBER_CALLS |= {f"{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)}


def find_numbers(function, parameters):
    """Return a predicate: can this expression be proved to be a number, not a truth value?

    NumPy's True + True is True, Numba's is 2. Sums whose operands could both be truth values
    take a slower path; this keeps all others on NumPy's own operators.
    """
    bindings = {}  # variable -> list of value expressions; None = unknown
    for s in walk(function):
        if isinstance(s, ast.Assign):
            for target in s.targets:
                pair(target, s.value, bindings)
        elif isinstance(s, ast.AnnAssign) and s.value is not None:
            pair(s.target, s.value, bindings)
        elif isinstance(s, ast.AugAssign) and isinstance(s.target, ast.Name):
            both = ast.BinOp(ast.Name(s.target.id, ast.Load()), s.op, s.value)
            bindings.setdefault(s.target.id, []).append(both)
        elif isinstance(s, ast.For):
            pair(s.target, ast.Constant(0), bindings)
    numbers = set(bindings) | set(parameters)

    def is_number(e):
        if isinstance(e, ast.Constant):
            return type(e.value) in (int, float)
        if isinstance(e, ast.Name):
            return e.id in numbers
        if isinstance(e, ast.BinOp):
            if isinstance(e.op, (ast.BitAnd, ast.BitOr, ast.BitXor)):
                return is_number(e.left) or is_number(e.right)
            return True
        if isinstance(e, ast.UnaryOp):
            return isinstance(e.op, (ast.UAdd, ast.USub)) or (
                isinstance(e.op, ast.Invert) and is_number(e.operand)
            )
        if isinstance(e, ast.IfExp):
            return is_number(e.body) and is_number(e.orelse)
        if isinstance(e, ast.Call):
            f = e.func
            if isinstance(f, ast.Attribute):
                return isinstance(f.value, ast.Name) and f.attr not in TRUTH_CALLS
            return isinstance(f, ast.Name) and f.id in NUMBER_CALLS
        return isinstance(e, (ast.Subscript, ast.Attribute))  # loads return TypedInts for bool

    changed = True
    while changed:
        doubtful = {n for n in numbers & set(bindings) if not all(map(is_number, bindings[n]))}
        numbers -= doubtful
        changed = bool(doubtful)
    return is_number


def pair(target, value, bindings):
    """Note which expressions each name of an assignment's target is bound to."""
    if isinstance(target, ast.Name):
        bindings.setdefault(target.id, []).append(value)
    elif isinstance(target, ast.Tuple):
        values = value.elts if isinstance(value, ast.Tuple) else [value] * len(target.elts)
        for t, v in zip(target.elts, values, strict=False):
            # one element of a returned tuple: unknown unless the call is known
            pair(t, v, bindings)
