"""House rules of the rooms of kernels: step tables, named results, length, plain English."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

import fa_numba

PACKAGE = Path(fa_numba.__file__).parent
ROOMS = ("kernels", "on_cuda_cores", "kv_cache", "tiling")
FILES = [path for room in ROOMS for path in sorted((PACKAGE / room).glob("*.py"))]
TENSOR_CORE = ("*backward", "decoding", "dq_parts", "gradient_fragments", "flash_*_bwd_*")
TENSOR_CORE += ("flash_decode_*",)
FILES += [x for name in TENSOR_CORE for x in sorted((PACKAGE / "tensor_core").glob(f"{name}.py"))]
LADDER = {  # each file with the neighbours that its table names
    "kernels/naive_softmax": ("naive", "safe"),
    "kernels/safe_softmax": ("naive", "safe", "online"),
    "kernels/online_softmax": ("safe", "online"),
    "on_cuda_cores/softmax_registers": ("online", "registers"),
    "kernels/naive_attn": ("naive_attn", "flash_attn_v1"),
    "kernels/flash_attn_v1": ("naive_attn", "flash_attn_v1", "flash_attn_v2"),
    "kernels/flash_attn_v2": ("flash_attn_v1", "flash_attn_v2"),
    "on_cuda_cores/flash_attn_v2_unsigned": (
        "flash_attn_v2",
        "flash_attn_v2_unsigned",
        "flash_attn_v2_4x4",
    ),
    "on_cuda_cores/flash_attn_v2_4x4": (
        "flash_attn_v2_unsigned",
        "flash_attn_v2_4x4",
        "flash_attn_registers",
    ),
    "on_cuda_cores/flash_attn_registers": (
        "flash_attn_v2_4x4",
        "flash_attn_registers",
        "flash_attn_tf32x3",
    ),
    "on_cuda_cores/flash_attn_bwd_registers": ("flash_attn_bwd", "flash_attn_bwd_registers"),
}
MAX_KERNEL_LINES = 200
IDIOMS = re.compile(
    r"\b(what|nobody|somebody|but for|gives? back|given back|in turn|looked at|of which|"
    r"to and fro|(on|under) (its|their|the) way|copy engine|comes? to lie|dealt|bent)\b",
    re.IGNORECASE,
)


def name_of(path):
    return str(path.relative_to(PACKAGE).with_suffix(""))


def prose_of(path):
    """The comments and the docstrings of a file, as (line, text)."""
    source = path.read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            if text := ast.get_docstring(node, clean=False):
                first = node.body[0].lineno
                yield from enumerate(text.splitlines(), first)


@pytest.mark.parametrize("name", LADDER)
def test_a_step_names_itself_and_its_neighbours(name):
    header = ast.get_docstring(ast.parse((PACKAGE / f"{name}.py").read_text(encoding="utf-8")))
    table = header.split("\n\n")[1]
    steps = [line.split()[0].rstrip(",") for line in table.splitlines() if line[0] != " "]
    assert [step for step in steps if step in LADDER[name]] == list(LADDER[name])
    # The arrow is at the end of this file's own line, or of the line that continues it.
    before = table[: table.index("<- this file")].splitlines()
    step = next(line.split()[0] for line in reversed(before) if line[0] != " ")
    assert table.count("<- this file") == 1
    assert step == max((own for own in LADDER[name] if own in name.split("/")[1]), key=len)


def nodes():
    """Every node of the files, with its file's name."""
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            yield name_of(path), node


def test_results_of_factories_are_taken_by_name():
    """A result that is not used is not unpacked into a blank: a NamedTuple has names."""
    found = []
    for name, node in nodes():
        if not isinstance(node, ast.Assign) or not isinstance(node.value, (ast.Call, ast.Name)):
            continue
        made = ast.unparse(node.value)
        if re.search(r"\bmake_\w+\(|^tiling$", made) and isinstance(node.targets[0], ast.Tuple):
            if "_" in [ast.unparse(target) for target in node.targets[0].elts]:
                found.append(f"{name}:{node.lineno}: {ast.unparse(node)}")
    assert not found, "\n".join(found)


def test_no_kernel_is_too_long():
    found = []
    for name, node in nodes():
        if isinstance(node, ast.FunctionDef) and node.name.endswith("_kernel"):
            lines = {n.lineno for n in ast.walk(node) if isinstance(n, (ast.stmt, ast.expr))}
            lines -= set(range(node.lineno, node.body[1].lineno))  # signature and docstring
            if len(lines) > MAX_KERNEL_LINES:
                found.append(f"{name}: {node.name} has {len(lines)} lines of code")
    assert not found, "\n".join(found)


def test_more_than_eight_arguments_are_explained():
    """Functions of a module, not kernels and their factories, whose docstrings say it otherwise."""
    said = re.compile(r"^ *Parameters$|^As `\w+`|the same arguments as", re.MULTILINE)
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        scopes = [tree, *(x for x in tree.body if isinstance(x, ast.ClassDef))]
        for node in (x for scope in scopes for x in scope.body if isinstance(x, ast.FunctionDef)):
            arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
            if len(arguments) > 8 and not node.name.startswith(("make_", "__init__")):
                if not said.search(ast.get_docstring(node) or ""):
                    found.append(f"{path}: {node.name}")
    assert not found, "\n".join(found)


def test_prose_is_plain():
    """No idiom for which there is a plain word."""
    prose = [(name_of(path), *found) for path in FILES for found in prose_of(path)]
    found = [f"{name}:{line}: {text.strip()}" for name, line, text in prose if IDIOMS.search(text)]
    assert not found, "\n".join(found)
