"""A stub that starts from the learner's earlier answer: ``fa-numba reset ex17c --from ex16c``.

The stub of the later exercise keeps its statement and its frame. The bodies that it leaves blank
are those of the earlier answer, and a comment says what does not fit yet.
"""

from __future__ import annotations

import ast
import builtins
import re
import symtable
import textwrap
from dataclasses import dataclass

from fa_numba.workbook import stubs
from fa_numba.workbook.catalog import Exercise

BLANK = "# YOUR CODE HERE"
WIDTH = 100
ALL_DEFINED = "All its names are defined here."
# The comment above a body that had itself come from an earlier exercise.
CARRIED = re.compile(rf"\A# From your ex(?:.*\n#)+? (?:Not defined here: .*|{ALL_DEFINED})\n")


class CannotStart(ValueError):
    """No body of the earlier exercise belongs into the later one; the message says why."""


@dataclass
class Blank:
    """A function that a stub leaves blank."""

    path: tuple[str, ...]  # the names of the functions around it, and its own
    is_kernel: bool

    @property
    def name(self) -> str:
        return self.path[-1]


def carried(later: Exercise, earlier: Exercise) -> tuple[str, list[str]]:
    """The stub of `later` with bodies of the learner's `earlier`, and the names of the functions.

    A body goes to the function of the same name, or from the only kernel to the only kernel.
    What else the learner defined beside the functions goes with it, and the other functions of
    a kernel's factory.
    """
    stub, given = stubs.read(later).stub, stubs.read(earlier).stub
    text = earlier.stub.read_text(encoding="utf-8")
    pairs = _pairs(_blanks(stub), _blanks(given, within=True))
    if not pairs:
        raise CannotStart(f"{later.short} and {earlier.short} have no function in common")
    theirs = {path: node for node, path in _functions(ast.parse(text))}
    taken = {source.name for _, source in pairs}
    done, beside = [], {}
    for to, source in pairs:
        node = theirs.get(source.path)
        if node is None:
            raise CannotStart(f"{earlier.stub.name} has no function {'.'.join(source.path)}")
        said = f"From your {earlier.short}, where it was {node.name}({ast.unparse(node.args)})."
        stub = _filled(stub, later.short, to.name, _body(text, node), said)
        there = {path[-1] for _, path in _functions(ast.parse(stub))} | taken | _stored(stub)
        beside[to.name] = [
            other
            for path, other in theirs.items()
            if len(path) > 1 and path[:-1] == source.path[:-1] and path[-1] not in there
        ]
        stub = _with_functions(stub, to.path, text, beside[to.name])
        done.append(to.name)
    stub = _with_additions(stub, text, given)
    for name in done:
        names = {name, *(node.name for node in beside[name])}
        stub = stub.replace(_marker(name), _unknown(stub, names))
    return stub, done


def _functions(tree, above=()):
    """Every function with its path of names."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            path = (*above, node.name)
            if isinstance(node, ast.FunctionDef):
                yield node, path
            yield from _functions(node, path)


def _blanks(stub, *, within=False) -> list[Blank]:
    """The functions whose body ends with a blank; `within`: also those with one in a loop."""
    found = []
    for node, path in _functions(ast.parse(stub)):
        if any(map(_is_blank, _own(node) if within else node.body[-1:])):
            marks = [ast.unparse(mark) for mark in node.decorator_list]
            is_kernel = any(m.startswith("cuda.jit") and "device" not in m for m in marks)
            found.append(Blank(path, is_kernel))
    return found


def _stored(text):
    """The names that statements anywhere in a text assign to."""
    nodes = ast.walk(ast.parse(text))
    return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _is_blank(node):
    return isinstance(node, ast.Raise) and "NotImplementedError" in ast.unparse(node)


def _own(function):
    """The nodes of a function, without those of functions in it."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node
            yield from _own(node)


def _with_functions(stub, path, text, functions):
    """The stub with these functions of the learner's text before the function of this path."""
    tree = dict((p, node) for node, p in _functions(ast.parse(stub)))
    lines, added = text.splitlines(), []
    indent = " " * tree[path].col_offset
    for node in functions:
        code = textwrap.dedent("\n".join(lines[_first_line(node) - 1 : node.end_lineno]))
        added += [*textwrap.indent(code, indent).splitlines(), ""]
    lines, start = stub.splitlines(), _first_line(tree[path]) - 1
    return "\n".join([*lines[:start], *added, *lines[start:]]) + "\n"


def _first_line(node):
    return min([node.lineno, *(mark.lineno for mark in getattr(node, "decorator_list", []))])


def _pairs(later, earlier):
    pairs = [(a, b) for a in later for b in earlier if a.name == b.name]
    if not any(a.is_kernel for a, _ in pairs):
        kernels = [[x for x in blanks if x.is_kernel] for blanks in (later, earlier)]
        if all(len(found) == 1 for found in kernels):
            pairs.append((kernels[0][0], kernels[1][0]))
    return pairs


def _body(text, node):
    """The lines of a function after its docstring."""
    lines = text.splitlines()
    first = node.body[0]
    start = first.end_lineno + 1 if ast.get_docstring(node) is not None else first.lineno
    while start > node.lineno + 1 and lines[start - 2].lstrip().startswith("#"):
        start -= 1  # comments above the first statement
    body = textwrap.dedent("\n".join(lines[start - 1 : node.end_lineno])).strip("\n")
    return CARRIED.sub("", body) or "pass"


def _filled(stub, short, name, body, said):
    """The stub with a body in place of the blank of this name."""
    lines = stub.splitlines()
    blank = f'raise NotImplementedError("{short}: {name}")'
    at = next(i for i, x in enumerate(lines) if x.strip() == blank)
    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    start = at - 1 if lines[at - 1].strip() == BLANK else at
    comment = textwrap.wrap(said, WIDTH - len(indent) - 2, initial_indent="# ",
                            subsequent_indent="# ")  # fmt: skip
    new = textwrap.indent("\n".join([*comment, _marker(name), body]), indent)
    return "\n".join([*lines[:start], *new.splitlines(), *lines[at + 1 :]]) + "\n"


def _marker(name):
    return f"# names of {name}"


def _unknown(stub, names):
    """A comment on the names that these functions use and this file does not define."""
    module = symtable.symtable(stub, "stub", "exec")
    known = set(module.get_identifiers()) | set(vars(builtins))
    unknown = set()

    def look(table):
        for inner in table.get_children():
            if inner.get_name() in names:
                unknown.update(s.get_name() for s in inner.get_symbols() if s.is_global())
            look(inner)

    look(module)
    missing = ", ".join(sorted(unknown - known))
    return f"# Not defined here: {missing}." if missing else f"# {ALL_DEFINED}"


def _with_additions(stub, text, given):
    """The stub with what the learner defined beside the functions: imports, helpers, constants."""
    in_given, there = _defined(given), _defined(stub)
    lines, added = text.splitlines(), []
    for node in ast.parse(text).body:
        names = _names(node)
        if names and not names & (in_given | there):
            start = _first_line(node)
            added.append("\n".join(lines[start - 1 : node.end_lineno]))
    if not added:
        return stub
    body = ast.parse(stub).body
    first = next(n for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef))
    at = _first_line(first) - 1
    lines = stub.splitlines()
    return "\n".join([*lines[:at], "\n\n\n".join(added), "", "", *lines[at:]]) + "\n"


def _defined(text):
    return set().union(*(_names(node) for node in ast.parse(text).body))


def _names(node):
    """The names that a statement at the top of a file defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    return set()
