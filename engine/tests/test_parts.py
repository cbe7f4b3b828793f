"""The parts of the CPU engine: `simt/__init__` maps the files, each mixin names what it uses."""

import ast
import re
from pathlib import Path

import pytest

import numba_cuda_simulator as simt

FOLDER = Path(simt.__file__).parent
PARTS = ("Lanes", "Memory", "Warps", "Atomics", "Names", "Intrinsics", "Serial")
INTRODUCES = "Uses of a machine's other parts:"


def classes():
    """{name: its node} of the classes that a machine is made of."""
    found = {}
    for path in FOLDER.glob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and node.name in (*PARTS, "Machine"):
                assert node.name not in found
                found[node.name] = node
    return found


def attributes(node):
    """Names that a class defines or assigns, and names that it reads of `self`."""
    own = {f.name for f in node.body if isinstance(f, ast.FunctionDef)}
    own |= {t.id for a in node.body if isinstance(a, ast.Assign) for t in a.targets}
    read = set()
    for x in ast.walk(node):
        if isinstance(x, ast.Attribute) and isinstance(x.value, ast.Name) and x.value.id == "self":
            (own if isinstance(x.ctx, ast.Store) else read).add(x.attr)
    return own, read


@pytest.mark.parametrize("name", PARTS)
def test_a_part_says_what_it_uses_of_the_others(name):
    nodes = classes()
    defined = {part: attributes(node)[0] for part, node in nodes.items()}
    own, read = attributes(nodes[name])
    if name == "Names":  # it has Intrinsics as its base
        own |= defined["Intrinsics"]
    said = ast.get_docstring(nodes[name]).partition(INTRODUCES)[2]
    told = dict.fromkeys(re.findall(r"`(\w+)`", said))
    for phrase in said.rstrip(".").split(";"):
        names, part = re.findall(r"`(\w+)`", phrase), phrase.split()[-1]
        assert set(names) <= defined[part], f"{part} has no {set(names) - defined[part]}"
    assert set(told) == read - own
