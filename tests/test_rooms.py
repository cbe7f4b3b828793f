"""Rooms of the package: imports go from an upper floor to a lower one, and files form no circle.

docs/architecture.md draws the floors.
"""

import ast
import functools
import re
from pathlib import Path

import fa_numba

PACKAGE = Path(fa_numba.__file__).parent
FLOORS = (  # from the ground up; a room imports from rooms below it
    ("constants", "reference", "simt"),  # simt: another name of the engine
    ("ptx", "tiling", "expressions"),
    ("runtime",),
    ("checks", "analysis"),
    ("kernels", "cpu", "masks"),
    ("on_cuda_cores",),
    ("kv_cache", "tensor_core"),
    ("dispatch",),
    ("distributed",),
    ("torch",),
    ("__init__",),
    ("figures",),
    ("microscope", "language_model"),
    ("workbook",),
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


def name_of(path):
    """Dotted name of a file, without the package's own: ("simt", "lanes")."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts


FILES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@functools.cache
def imports_of(name):
    """Names of the files that a file imports, anywhere in it."""
    path, found = FILES[name], set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules = [alias.name.split(".") for alias in node.names]
            found |= {
                tuple(parts[1:]) or ("__init__",) for parts in modules if parts[0] == "fa_numba"
            }
        if not isinstance(node, ast.ImportFrom):
            continue
        if node.level:
            folder = path.relative_to(PACKAGE).parent.parts
            base = folder[: len(folder) + 1 - node.level]
        elif (node.module or "").split(".")[0] == "fa_numba":
            base = ()
        else:
            continue
        parts = (node.module or "").split(".")
        base += tuple(parts if node.level else parts[1:])
        base = tuple(part for part in base if part)
        for alias in node.names:
            module = (*base, alias.name)
            found.add(module if module in FILES else base or ("__init__",))
    return found - {name}


def test_every_room_has_a_floor():
    assert {name[0] for name in FILES} == set(FLOOR)


def test_imports_go_down():
    imports = [(name, other) for name in FILES for other in imports_of(name)]
    assert not [pair for pair in imports if pair[1] not in FILES], "imports what is not there"
    between = [(name, other) for name, other in imports if name[0] != other[0]]
    wrong = [f"{name} imports {other}" for name, other in between if not below(other, name)]
    assert not wrong, "of a room that is not below their own"


def below(name, other):
    return FLOOR[name[0]] < FLOOR[other[0]]


def test_no_circle():
    done, path = set(), []

    def walk(name):
        assert name not in path, " -> ".join(".".join(n) for n in (*path, name))
        if name in done:
            return
        path.append(name)
        for other in sorted(imports_of(name)):
            # A package's __init__ may gather its own files.
            if not (len(name) == 1 and other[0] == name[0]) and other in FILES:
                walk(other)
        path.pop()
        done.add(name)

    for name in FILES:
        walk(name)


def test_no_launcher_imports_analysis():
    """A call needs no prediction: the choosers of tile sizes and splits are in `tiling`."""
    readers = {"analysis", "figures", "microscope", "workbook"}
    for name in FILES:
        imports = imports_of(name)
        if name[0] not in readers:
            assert "analysis" not in {other[0] for other in imports}, ".".join(name)


def test_rooms_of_kernels_leave_arguments_to_checks():
    """Not refusals, by which a job passes to its next candidate."""
    rooms = {"kernels", "cpu", "kv_cache", "on_cuda_cores", "tensor_core", "dispatch", "runtime"}
    errors = re.compile(r"raise (TypeError|ValueError)\b")
    raising = {
        name for name in FILES if errors.search(FILES[name].read_text()) and name[0] in rooms
    }
    assert raising == {("tensor_core", "shared_plan")}  # a factory's argument, not a caller's


def test_every_cache_of_a_call_is_listed():
    """In docs/architecture.md and in the header of fa_numba.runtime."""
    pages = (PACKAGE.parent / "docs/architecture.md", PACKAGE / "runtime/__init__.py")
    first = re.compile(r"^(_\w+) = (?:\{\}|functools\.lru_cache)", re.MULTILINE)
    # Not caches: memory that a graph or a kernel uses, names of jobs; the driver's own.
    others = {"_captured", "_blocks", "_job_calls"}
    rooms = {"runtime", "torch", "cpu", "dispatch"}
    found = {
        x for name in FILES if name[0] in rooms for x in first.findall(FILES[name].read_text())
    }
    for page in pages:
        text = page.read_text(encoding="utf-8")
        named = ("plans", "disk_cache", "launching", "kernel_cache", "graphs", "tensor_maps")
        for name in (*named, *(found - others - {"_prepared", "_maps"})):
            assert re.search(rf"\b{name}\b", text), f"{page.name} lacks {name}"


def test_no_name_is_taken_for_numba_cuda():
    """numba-cuda's import hook takes every module for its own whose name contains "numba.cuda"."""
    assert not [name for name in FILES if name[0].startswith("cuda")]


def test_the_picture_in_the_docs_has_these_floors():
    text = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawn = re.findall(r"^ +floor +(\d+) │ (\w+(?: · \w+)*)", text, re.MULTILINE)
    assert [(int(n), tuple(rooms.split(" · "))) for n, rooms in drawn] == [
        (n, rooms) for n, rooms in reversed(list(enumerate(FLOORS)))
    ]
