"""Shared memory and threads that a launch needs, known without a GPU and without compiling."""

import ast
import functools
import inspect
import math
import textwrap
from typing import NamedTuple

import numpy as np


class Launch(NamedTuple):
    """A launch that a function of the package would make."""

    kernel: object
    threads: int
    dynamic_bytes: int


def static_shared_bytes(kernel) -> int:
    """Shared memory that a kernel and its device functions declare, each array where it is made.

    Each function counts once. `test_what_is_declared_is_what_is_compiled` compares with ptxas.
    """
    return sum(nbytes for function in functions_of(kernel) for nbytes in declared(function))


def functions_of(kernel) -> list:
    """The Python functions of a kernel and of the device functions it can reach."""
    found, todo = {}, [kernel]
    while todo:
        value = todo.pop()
        if isinstance(value, tuple):  # the functions of a NamedTuple
            todo += value
        elif (function := getattr(value, "py_func", None)) and id(function) not in found:
            found[id(function)] = function
            names = names_of(function)
            todo += [names[name] for name in mentioned(function.__code__)[0] if name in names]
    return list(found.values())


def names_of(function) -> dict:
    return function.__globals__ | inspect.getclosurevars(function).nonlocals


@functools.cache
def mentioned(code):
    """The names in a function's source, and its calls of ``cuda.shared.array``."""
    nodes = [*ast.walk(ast.parse(textwrap.dedent(inspect.getsource(code))))]
    calls = (node for node in nodes if isinstance(node, ast.Call))
    arrays = [call for call in calls if ast.unparse(call.func) == "cuda.shared.array"]
    return {node.id for node in nodes if isinstance(node, ast.Name)}, arrays


def declared(function):
    """Bytes of each ``cuda.shared.array(shape, dtype)`` in a function's source."""
    names = names_of(function)

    def value(node):
        return eval(compile(ast.Expression(node), "shape", "eval"), names)

    for node in mentioned(function.__code__)[1]:
        shape, dtype = map(value, node.args[:2])
        yield math.prod(np.atleast_1d(shape).tolist()) * dtype.bitwidth // 8


def launch_bounds(kernel):
    """Most threads of a thread block for which the compiler limits registers, or None."""
    bounds = kernel.targetoptions.get("launch_bounds")
    return bounds[0] if isinstance(bounds, tuple) else bounds
