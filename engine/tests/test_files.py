"""The engine's files: the map in the package's docstring names each, and no circle of imports."""

import ast
import re
import sys
from pathlib import Path

import numba_cuda_simulator as simt

FOLDER = Path(simt.__file__).parent
FILES = {path.stem: path for path in FOLDER.glob("[!_]*.py")}


def test_the_map_names_every_file():
    listed = re.findall(r"^- (\w+):", simt.__doc__, re.MULTILINE)
    assert sorted(listed) == sorted(FILES)


def imports_of(name):
    """Names of the engine's files that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(FILES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            found |= {node.module} if node.module else {alias.name for alias in node.names}
    # A folder with names of Numba, whose files import none of the engine's.
    return {name for name in found if name.partition(".")[0] != "without_numba"}


def test_no_circle():
    done = set()

    def walk(name, path=()):
        assert name not in path, " -> ".join((*path, name))
        if name not in done:
            for other in sorted(imports_of(name)):
                walk(other, (*path, name))
            done.add(name)

    for name in FILES:
        walk(name)


def test_it_imports_nothing_but_numpy_and_numba():
    # What Numba and numba-cuda import, and for `prove` alone z3
    theirs = {"numba", "llvmlite", "cuda", "z3"}
    allowed = {"numpy", *theirs, *sys.stdlib_module_names}
    for path in FILES.values():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                modules = [node.module]
            assert {module.partition(".")[0] for module in modules} <= allowed, path.name
