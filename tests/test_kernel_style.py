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
TENSOR_CORE = ("backward", "decoding", "dq_parts", "gradient_fragments", "flash_*_bwd_*")
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


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_results_of_factories_are_taken_by_name(path):
    """A result that is not used is not unpacked into a blank: a NamedTuple has names."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, (ast.Call, ast.Name)):
            continue
        made = ast.unparse(node.value)
        if re.search(r"\bmake_\w+\(|^tiling$", made) and isinstance(node.targets[0], ast.Tuple):
            names = [ast.unparse(target) for target in node.targets[0].elts]
            assert "_" not in names, f"line {node.lineno}: {', '.join(names)} = {made}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_no_kernel_is_too_long(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name.endswith("_kernel"):
            lines = {n.lineno for n in ast.walk(node) if isinstance(n, (ast.stmt, ast.expr))}
            lines -= set(range(node.lineno, node.body[1].lineno))  # signature and docstring
            assert len(lines) <= MAX_KERNEL_LINES, f"{node.name}: {len(lines)} lines of code"


def test_more_than_eight_arguments_are_explained():
    """Functions of a module, not kernels and their factories, whose docstrings say it otherwise."""
    said = re.compile(r"^ *Parameters$|^As `\w+`|the same arguments as", re.MULTILINE)
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        scopes = [tree, *(x for x in tree.body if isinstance(x, ast.ClassDef))]
        for node in (x for scope in scopes for x in scope.body if isinstance(x, ast.FunctionDef)):
            arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
            if len(arguments) > 8 and not node.name.startswith(("make_", "__init__")):
                assert said.search(ast.get_docstring(node) or ""), f"{path}: {node.name}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_prose_is_plain(path):
    """No idiom for which there is a plain word."""
    found = [f"line {line}: {text.strip()}" for line, text in prose_of(path) if IDIOMS.search(text)]
    assert not found, "\n".join(found)
