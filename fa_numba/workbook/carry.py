"""A stub that starts from the learner's earlier answer: ``fa-numba reset ex17c --from ex16c``.

The stub of the later exercise keeps its statement and its frame. The bodies that it leaves blank
are those of the earlier answer, and a comment says what does not fit yet.
"""

from __future__ import annotations

import ast
import builtins
import symtable
import textwrap
from dataclasses import dataclass

from fa_numba.workbook import stubs
from fa_numba.workbook.catalog import Exercise

BLANK = "# YOUR CODE HERE"
WIDTH = 100


class CannotStart(ValueError):
    """No body of the earlier exercise belongs into the later one; the message says why."""


@dataclass
class Blank:
    """A function that a stub leaves blank."""

    path: tuple[str, ...]  # the names of the functions around it, and its own
    is_kernel: bool
    node: ast.FunctionDef

    @property
    def name(self) -> str:
        return self.path[-1]


def carried(later: Exercise, earlier: Exercise) -> tuple[str, list[str]]:
    """The stub of `later` with bodies of the learner's `earlier`, and the names of the functions.

    A body goes to the function of the same name, or from the only kernel to the only kernel.
    Where both stubs give the first lines of the function, such as the loads of a kernel, only what
    the learner wrote below them goes. What else the learner defined beside the functions goes with
    it.
    """
    stub, given = stubs.read(later).stub, stubs.read(earlier).stub
    text = earlier.stub.read_text(encoding="utf-8")
    pairs = _pairs(_blanks(stub), _blanks(given))
    if not pairs:
        raise CannotStart(f"{later.short} and {earlier.short} have no function in common")
    theirs = {path: node for node, path in _functions(ast.parse(text))}
    done = []
    for to, source in pairs:
        node = theirs.get(source.path)
        if node is None:
            raise CannotStart(f"{earlier.stub.name} has no function {'.'.join(source.path)}")
        body = _body(text, node)
        if frame := _frame(stub, to):
            theirs_given = _frame(given, source)
            if theirs_given and body[: len(theirs_given)] == theirs_given:
                body = body[len(theirs_given) :]
            else:  # the frame goes too
                stub = _without_frame(stub, to, len(frame))
        stub = _filled(stub, later.short, to.name, body, _from(earlier, node))
        done.append(to.name)
    stub = _with_additions(stub, text, given)
    for name in done:
        stub = stub.replace(_marker(name), _unknown(stub, name))
    return stub, done


def _functions(tree, above=()):
    """Every function with its path of names."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            path = (*above, node.name)
            if isinstance(node, ast.FunctionDef):
                yield node, path
            yield from _functions(node, path)


def _blanks(stub) -> list[Blank]:
    found = []
    for node, path in _functions(ast.parse(stub)):
        last = node.body[-1]
        while isinstance(last, ast.For | ast.While | ast.If | ast.With):  # a frame is given
            last = (getattr(last, "orelse", None) or last.body)[-1]
        if isinstance(last, ast.Raise) and "NotImplementedError" in ast.unparse(last):
            marks = [ast.unparse(mark) for mark in node.decorator_list]
            is_kernel = any(m.startswith("cuda.jit") and "device" not in m for m in marks)
            found.append(Blank(path, is_kernel, node))
    return found


def _pairs(later, earlier):
    pairs = [(a, b) for a in later for b in earlier if a.name == b.name]
    if not any(a.is_kernel for a, _ in pairs):
        kernels = [[x for x in blanks if x.is_kernel] for blanks in (later, earlier)]
        if all(len(found) == 1 for found in kernels):
            pairs.append((kernels[0][0], kernels[1][0]))
    return pairs


def _start(lines, node):
    """The number of the first line of a function's body, after its docstring."""
    first = node.body[0]
    start = first.end_lineno + 1 if ast.get_docstring(node) is not None else first.lineno
    while start > node.lineno + 1 and lines[start - 2].lstrip().startswith("#"):
        start -= 1  # comments above the first statement
    return start


def _body(text, node) -> list[str]:
    """The lines of a function after its docstring."""
    lines = text.splitlines()
    return lines[_start(lines, node) - 1 : node.end_lineno]


def _frame(stub, blank) -> list[str]:
    """The lines that a stub gives in a function above its blank."""
    lines = _body(stub, next(node for node, path in _functions(ast.parse(stub))
                             if path == blank.path))  # fmt: skip
    at = next((i for i, line in enumerate(lines) if line.strip() == BLANK), 0)
    return lines[:at]


def _without_frame(stub, blank, length):
    """The stub without the lines that it gives above a blank, and the blank where they began."""
    lines = stub.splitlines()
    node = next(node for node, path in _functions(ast.parse(stub)) if path == blank.path)
    start = _start(lines, node) - 1
    indent = " " * node.body[0].col_offset
    mark = [indent + line.strip() for line in lines[start + length : start + length + 2]]
    return "\n".join([*lines[:start], *mark, *lines[start + length + 2 :]]) + "\n"


def _from(earlier, node):
    return f"From your {earlier.short}, where it was {node.name}({ast.unparse(node.args)})."


def _filled(stub, short, name, body, said):
    """The stub with the lines of a body in place of the blank of this name."""
    lines = stub.splitlines()
    at = next(i for i, x in enumerate(lines) if x.strip() == f"raise {_error(short, name)}")
    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    start = at - 1 if lines[at - 1].strip() == BLANK else at
    comment = textwrap.wrap(said, WIDTH - len(indent) - 2, initial_indent="# ",
                            subsequent_indent="# ")  # fmt: skip
    new = [*(indent + line for line in [*comment, _marker(name)]), *_shifted(body, indent)]
    return "\n".join([*lines[:start], *new, *lines[at + 1 :]]) + "\n"


def _shifted(body, indent):
    """The lines of a body, the first of which begins at `indent`; some may begin further left."""
    written = [line for line in body if line.strip()]
    if not written:
        return [indent + "pass"]
    by = len(indent) - (len(written[0]) - len(written[0].lstrip()))
    return [(" " * (len(line) - len(line.lstrip()) + by) + line.lstrip()) if line.strip() else ""
            for line in body]  # fmt: skip


def _error(short, name):
    return f'NotImplementedError("{short}: {name}")'


def _marker(name):
    return f"# names of {name}"


def _unknown(stub, name):
    """A comment on the names that the body uses and this file does not define."""
    module = symtable.symtable(stub, "stub", "exec")
    known = set(module.get_identifiers()) | set(vars(builtins))
    unknown = set()

    def look(table):
        for inner in table.get_children():
            if inner.get_name() == name:
                unknown.update(s.get_name() for s in inner.get_symbols() if s.is_global())
            look(inner)

    look(module)
    missing = ", ".join(sorted(unknown - known))
    return f"# Not defined here: {missing}." if missing else "# All its names are defined here."


def _with_additions(stub, text, given):
    """The stub with what the learner defined beside the functions: imports, helpers, constants."""
    in_given, there = _defined(given), _defined(stub)
    lines, added = text.splitlines(), []
    for node in ast.parse(text).body:
        names = _names(node)
        if names and not names & (in_given | there):
            start = min([node.lineno, *(m.lineno for m in getattr(node, "decorator_list", []))])
            added.append("\n".join(lines[start - 1 : node.end_lineno]))
    if not added:
        return stub
    body = ast.parse(stub).body
    first = next(n for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef))
    at = min([first.lineno, *(mark.lineno for mark in first.decorator_list)]) - 1
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
