"""Do the checks catch wrong answers? ``python -m fa_numba.workbook.mutants [--barriers] [NAMES]``.

Each mutant is a solution with one change, which its grader must notice. `--barriers` deletes
one ``cuda.syncthreads()`` or ``cuda.syncwarp()`` at a time; that part runs with the tests. Without
it come the general mutants: comparisons flipped, off by one, operands swapped, a factor or a
statement dropped. A survivor is either a hole in the grader or a change that makes no difference;
the list is for a human to read.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from fa_numba.workbook.catalog import Exercise, all_exercises, find
from fa_numba.workbook.grading import processes
from fa_numba.workbook.stubs import BEGIN, END

SECONDS = 300  # the judge stops an answer that loops for ever long before
BARRIERS = ("syncthreads", "syncwarp")
FLIP = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
OTHER_NAME = {"max": "min", "min": "max", "maximum": "minimum", "minimum": "maximum"}


@dataclass
class Mutant:
    """One change of a solution, and the grader's report on it."""

    line: int
    change: str
    source: str
    caught: bool = False
    report: str = ""


def _is_barrier(node) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and getattr(node.value.func, "attr", "") in BARRIERS
    )


def _changes(node) -> Iterator[tuple[str, ast.AST]]:
    """Yield (description, replacement of `node`)."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in FLIP:
        yield "comparison", _with(node, ops=[FLIP[type(node.ops[0])](), *node.ops[1:]])
    if isinstance(node, ast.BoolOp):
        yield "and/or", _with(node, op=FLIP[type(node.op)]())
        for value in node.values:
            yield "one condition only", value
    if isinstance(node, ast.BinOp):
        if type(node.op) in FLIP:
            yield "operator", _with(node, op=FLIP[type(node.op)]())
        if isinstance(node.op, ast.Sub | ast.Div | ast.FloorDiv | ast.Mod):
            yield "operands swapped", _with(node, left=node.right, right=node.left)
        yield "right operand dropped", node.left
        yield "left operand dropped", node.right
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield "off by one", ast.Constant(node.value + 1)
    if isinstance(node, ast.UnaryOp):
        yield "sign dropped", node.operand
    if isinstance(node, ast.IfExp):
        yield "branches swapped", _with(node, body=node.orelse, orelse=node.body)
    if isinstance(node, ast.AugAssign):
        yield "not accumulated", ast.Assign([node.target], node.value, lineno=node.lineno)
    if isinstance(node, ast.Assign | ast.AugAssign) and isinstance(
        (node.targets[0] if isinstance(node, ast.Assign) else node.target), ast.Subscript
    ):
        yield "store dropped", ast.Pass()
    if isinstance(node, ast.Name) and node.id in OTHER_NAME and isinstance(node.ctx, ast.Load):
        yield "max/min", _with(node, id=OTHER_NAME[node.id])
    if isinstance(node, ast.Attribute) and node.attr in OTHER_NAME:
        yield "max/min", _with(node, attr=OTHER_NAME[node.attr])
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
        first, second, *rest = node.slice.elts
        yield "indices swapped", _with(node, slice=ast.Tuple([second, first, *rest], ast.Load()))
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "range":
        last = ast.BinOp(node.args[min(1, len(node.args) - 1)], ast.Sub(), ast.Constant(1))
        args = [last] if len(node.args) == 1 else [node.args[0], last, *node.args[2:]]
        yield "one iteration fewer", _with(node, args=args)
    if _is_barrier(node):
        yield "barrier deleted", ast.Pass()


def _with(node, **fields):
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


class _Replace(ast.NodeTransformer):
    def __init__(self, old, new):
        self.old, self.new = old, new

    def visit(self, node):
        return self.new if node is self.old else self.generic_visit(node)


def mutants(exercise: Exercise, *, barriers: bool = False) -> list[Mutant]:
    """The mutants of a solution: of its barriers everywhere, or of all else in its regions."""
    text = exercise.solution.read_text(encoding="utf-8")
    inside, regions = False, set()
    for number, line in enumerate(text.splitlines(), 1):
        inside = line.strip() == BEGIN or (inside and line.strip() != END)
        regions |= {number} if inside else set()

    found = []
    original = ast.unparse(ast.parse(text))
    for index, node in enumerate(ast.walk(ast.parse(text))):
        line = getattr(node, "lineno", 0)
        for number, (change, _) in enumerate(_changes(node)):
            is_barrier = change == "barrier deleted"
            if is_barrier != barriers or not (barriers or line in regions):
                continue
            tree = ast.parse(text)  # a fresh tree for each: nodes are replaced in place
            old = next(n for i, n in enumerate(ast.walk(tree)) if i == index)
            new = list(_changes(old))[number][1]
            source = ast.unparse(ast.fix_missing_locations(_Replace(old, new).visit(tree)))
            if source != original:
                found.append(Mutant(line, change, source))
    return found


def judge(exercise: Exercise, source: str, *, every_check: bool = False) -> tuple[bool, str]:
    """Grade a text as an exercise's file: whether a check fails, and the messages of those that do.

    With `every_check` it goes on after the first check that fails.
    """
    server = processes.fork_server()  # one for all, which has Numba imported
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, f"{exercise.name}.py").write_text(source + "\n", encoding="utf-8")
        answer = Path(folder, "grade.json")
        arguments = [str(exercise.grader), f"--impl={folder}", f"--grade-json={answer}"]
        arguments += ["-p", "no:cacheprovider", *([] if every_check else ["-x"])]
        child = multiprocessing.get_context("fork").Process(target=_grade, args=(arguments,))
        child.start()
        child.join(SECONDS)
        if child.is_alive():
            child.kill()
            child.join()
            server.close()
            processes.fork_server(anew=True)
            return True, "stopped: no end in sight"
        checks = json.loads(answer.read_text(encoding="utf-8"))[0]["checks"]
    failed = [c for c in checks if c["outcome"] == "failed"]
    return bool(failed), "\n".join(f"{c['name']}: {c['message']}" for c in failed)


def import_graders() -> None:
    """Import the modules that a judge needs: processes forked from this one then have them."""
    import importlib
    import pkgutil

    import pytest  # noqa: F401

    import fa_numba.analysis.gpu_ready
    import fa_numba.workbook.pytest_plugin  # noqa: F401
    from fa_numba.workbook import graders

    for module in pkgutil.iter_modules(graders.__path__):
        importlib.import_module(f"{graders.__name__}.{module.name}")


def _grade(arguments):
    """In a process forked from this one, so that pytest and Numba are not imported again."""
    import pytest

    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
        pytest.main(arguments)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fa_numba.workbook.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", help="exercises or lessons; all when none is named")
    parser.add_argument("--barriers", action="store_true", help="delete one barrier at a time")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="try every N-th mutant")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the mutants to FILE")
    options = parser.parse_args(argv)

    import_graders()
    tried = {}
    for exercise in [e for n in options.names for e in find(n)] or all_exercises():
        some = mutants(exercise, barriers=options.barriers)[:: options.every]
        for mutant in some:
            mutant.caught, mutant.report = judge(exercise, mutant.source)
            if not mutant.caught:
                print(f"  survived  {exercise.solution.name}:{mutant.line}  {mutant.change}")
        caught = sum(m.caught for m in some)
        print(f"{exercise.short}  {caught} of {len(some)} caught", flush=True)
        tried[exercise.name] = [asdict(m) for m in some]
    every = [m for some in tried.values() for m in some]
    caught = sum(m["caught"] for m in every)
    print(f"all    {caught} of {len(every)} caught ({caught / max(len(every), 1):.0%})")
    if options.json:
        options.json.write_text(json.dumps(tried), encoding="utf-8")
    return int(options.barriers and caught < len(every))


if __name__ == "__main__":
    sys.exit(main())
