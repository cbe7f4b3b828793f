"""House rules of the rooms of kernels: length, plain English."""

import ast
import io
import re
import tokenize
from pathlib import Path

import fa_numba

PACKAGE = Path(fa_numba.__file__).parent
ROOMS = ("kernels", "on_cuda_cores", "kv_cache", "tiling")
FILES = [path for room in ROOMS for path in sorted((PACKAGE / room).glob("*.py"))]
TENSOR_CORE = ("*backward", "decoding", "dq_parts", "gradient_fragments", "flash_*_bwd_*")
TENSOR_CORE += ("flash_decode_*",)
FILES += [x for name in TENSOR_CORE for x in sorted((PACKAGE / "tensor_core").glob(f"{name}.py"))]
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


def nodes():
    """Every node of the files, with its file's name."""
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            yield name_of(path), node


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
