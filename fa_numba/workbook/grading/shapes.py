"""A shape that is no constant is reported before the errors that follow from it.

On the engine `cuda.shared.array(n, float32)` runs with any n; on a GPU it does not compile.
Without this report a learner would first see an index error of a tile whose size is wrong.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import textwrap

from numba_cuda_simulator.errors import Site, UnsupportedError

MAKERS = ("shared.array", "local.array")


@functools.cache  # by the code, which all kernels of a factory share
def expect_constant_shapes(code) -> None:
    """Raise where a kernel's shared or local array has a shape that it computes or is given."""
    try:
        # inspect.getsourcelines would look for the code's module in the files of all modules.
        first = code.co_firstlineno
        lines = inspect.getblock(linecache.getlines(code.co_filename)[first - 1 :])
        tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    except (OSError, SyntaxError, IndexError):
        return
    indent = len(lines[0]) - len(lines[0].lstrip())
    varying, local = _varying(tree), _assigned(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(MAKERS):
            shape = next(iter([*node.args, *(k.value for k in node.keywords if k.arg == "shape")]))
            reason, hint = _not_constant(shape, varying, local)
            if reason:
                column = node.col_offset + indent
                raise UnsupportedError(
                    f"the shape of {ast.unparse(node.func)} must be a constant, and {reason}",
                    sites=[
                        Site(
                            code.co_filename, first + node.lineno - 1, column,
                            node.end_col_offset + indent, code.co_name,
                        )
                    ],
                    hint=hint,
                )  # fmt: skip


def _not_constant(shape, varying, local):
    """(reason, hint) of a shape that Numba does not take, or ("", "")."""
    parts = list(ast.walk(shape))
    names = [part.id for part in parts if isinstance(part, ast.Name)]
    parts += [part for name in names if name in local for part in ast.walk(local[name])]
    for part in parts:
        if isinstance(part, ast.Name) and part.id in varying:
            return (
                f"{part.id} is known only when the kernel runs",
                "Take a number, or a name of the module or of the function around the kernel.",
            )
    for part in parts:
        if isinstance(part, ast.BinOp | ast.UnaryOp | ast.Call) and any(
            isinstance(name, ast.Name) for name in ast.walk(part)
        ):
            return (
                f"Numba computes no {ast.unparse(part)} there",
                f"Write SIZE = {ast.unparse(part)} above the kernel's @cuda.jit, and SIZE in the "
                "shape.",
            )
    return "", ""


def _assigned(tree):
    """The values that a function assigns to names, by name."""
    return {
        node.targets[0].id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }


def _varying(tree):
    """The names of a function's arguments, and of values computed from them."""
    varying = {a.arg for a in tree.args.args}
    for _ in range(3):  # a name may depend on one that is defined below it
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign | ast.AugAssign | ast.For | ast.AnnAssign):
                value = node.iter if isinstance(node, ast.For) else node.value
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if value is not None and _is_varying(value, varying):
                    names = (n for t in targets for n in ast.walk(t) if isinstance(n, ast.Name))
                    # x[i] = ... changes an element of x, and no name
                    varying |= {n.id for n in names if isinstance(n.ctx, ast.Store)}
    return varying


def _is_varying(value, varying):
    for node in ast.walk(value):
        if isinstance(node, ast.Name) and node.id in varying:
            return True
        if isinstance(node, ast.Attribute) and node.attr in ("threadIdx", "blockIdx", "blockDim",
                                                             "gridDim"):  # fmt: skip
            return True
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("cuda.grid", "cuda.gridsize"):
            return True
    return False
