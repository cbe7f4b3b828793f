"""``fa-numba trace``: the report on a kernel that the command line names.

fa-numba trace my.py:kernel --grid 4,2 --block 32,8 x=f4[1024,64] y=f4[1024,64]:zeros n=1024
fa-numba trace fa_numba:flash_attn_v2 q=f4[1,256,2,64] k=f4[1,256,2,64] v=f4[1,256,2,64]
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from functools import reduce
from pathlib import Path

import numpy as np

from fa_numba import analysis, simt
from fa_numba.microscope import report
from numba_cuda_simulator.devices import CHIPS
from numba_cuda_simulator.hook import kernel_class

EPILOG = """\
TARGET is a file or a module, a colon, and the name of
  a kernel               with --grid and --block
  a factory of kernels   it gets the arguments that it has; the kernel gets the others
  a function             that launches kernels on NumPy arrays, such as fa_numba:flash_attn_v2,
                         or that returns (kernel, grid, block, arguments)

An argument is NAME=VALUE:
  x=f4[1024,64]          an array of this dtype and shape, random; integers are 0 to 9
  x=f4[1024,64]:zeros    or :ones, or :arange
  x=@file.npy            an array from a file
  n=1024  causal=True    numbers as Python has them: an int is int64, a float is float64
  scale=0.125:f4         a number of this dtype

Use quotes if the shell expands patterns: 'x=f4[1024,64]'.
"""

FILLS = {
    "random": None,
    "zeros": np.zeros,
    "ones": np.ones,
    "arange": lambda shape, dtype: np.arange(np.prod(shape, dtype=int)).astype(dtype),
}
CONSTANTS = {"True": True, "False": False, "None": None}


class BadRequest(ValueError):
    """The command line is wrong; the message names the option or argument."""


def add_options(parser):
    """Declare the options of ``fa-numba trace``."""
    parser.add_argument("target", metavar="TARGET", help="my.py:kernel, or package.module:function")
    parser.add_argument("arguments", metavar="NAME=VALUE", nargs="*", help="its arguments")
    parser.add_argument("--grid", metavar="X[,Y[,Z]]", help="thread blocks")
    parser.add_argument("--block", metavar="X[,Y[,Z]]", help="threads of a block")
    parser.add_argument(
        "--shared", metavar="BYTES", type=int, default=0, help="dynamic shared memory of a block"
    )
    add_report_options(parser)
    parser.add_argument(
        "--seed", type=int, default=0, help="of the random arrays; the default is 0"
    )


def add_report_options(parser):
    """Declare the options that the command and the cell magic have in common."""
    parser.add_argument(
        "--device",
        default=report.DEVICE,
        help=f"the GPU to compile and compute for; the default is {report.DEVICE}",
    )
    parser.add_argument("--figures", metavar="FOLDER", help="write the drawings there, as PNG")


def main(options) -> int:
    """Print the report; return 1 if it has races or uninitialised reads."""
    reports = trace(
        options.target,
        options.arguments,
        grid=options.grid,
        block=options.block,
        shared_bytes=options.shared,
        device=options.device,
        seed=options.seed,
    )
    print(reports)
    if options.figures:
        print()
        for path in reports.write_figures(options.figures):
            print(path)
    return int(bool(reports.problems))


def trace(
    target, arguments=(), *, grid=None, block=None, shared_bytes=0, device="H100", seed=0
) -> report.LaunchReports:
    """Trace the target of a command line.

    Parameters
    ----------
    target : str
        "my.py:kernel" or "package.module:function".
    arguments : sequence of str
        "x=f4[1024,64]" and the like; see `EPILOG`.
    grid, block : str, optional
        "4,2".
    shared_bytes : int, default=0
    device : str, default="H100"
    seed : int, default=0

    Raises
    ------
    BadRequest
        The message names the option or argument that is wrong.
    KernelError
        An error of the kernel itself, apart from races and uninitialised reads.
    """
    try:
        gpu = analysis.device(device)
    except ValueError as error:
        raise BadRequest(f"--device: {error}") from None
    rng = np.random.default_rng(seed)
    values = parse_arguments(arguments, rng)
    grid, block = parse_dims("--grid", grid), parse_dims("--block", block)
    if shared_bytes < 0:
        raise BadRequest(f"--shared must not be negative, got {shared_bytes}")
    found = load(target)
    with simt.options(device=engine_device(gpu)), launches_on_the_engine():
        with simt.tracing() as traces:
            if not isinstance(found, kernel_class()):
                found, values = call(target, found, values)
        if isinstance(found, kernel_class()):
            traces = [trace_kernel(found, grid, block, values, shared_bytes)]
        elif is_launch(found):
            kernel, its_grid, its_block, its_arguments = found
            traces = [simt.trace(kernel, grid or its_grid, block or its_block, *its_arguments,
                                 shared_bytes=shared_bytes)]  # fmt: skip
        elif not traces:
            raise BadRequest(
                f"{target} launched no kernel on NumPy arrays, and returned none: a function "
                "returns (kernel, grid, block, arguments), or launches kernels itself"
            )
    return report.LaunchReports.of(traces, device=gpu)


def engine_device(gpu) -> str:
    """A device of the engine with as much shared memory per thread block."""
    alike = (
        name
        for name, chip in CHIPS.items()
        if chip.shared_bytes_per_block == gpu.shared_bytes_per_block
    )
    return next(alike, simt.options().previous.device)


class launches_on_the_engine:
    """Inside, kernel[grid, block](...) runs on the CPU engine, with or without a GPU."""

    def __enter__(self):
        self.mine = not simt.is_enabled()
        if self.mine:
            simt.enable()

    def __exit__(self, *error):
        if self.mine:
            simt.disable()


def load(target):
    """The object that a target names."""
    where, colon, name = target.rpartition(":")
    if not (where and colon and name):
        raise BadRequest(f"the target must be file.py:name or package.module:name, got {target!r}")
    if where.endswith(".py"):
        module = load_file(Path(where))
    else:
        module = _imported(where, Path.cwd(), lambda: importlib.import_module(where))
    try:
        return reduce(getattr, name.split("."), module)
    except AttributeError:
        kernels = [n for n, x in vars(module).items() if isinstance(x, kernel_class())]
        there = f"its kernels are {', '.join(kernels)}" if kernels else "it has no kernels either"
        raise BadRequest(f"{where} has no {name!r}; {there}") from None


def load_file(path):
    if not path.is_file():
        raise BadRequest(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    return _imported(path, path.parent.resolve(), lambda: spec.loader.exec_module(module) or module)


def _imported(where, folder, run):
    """The module that `run` returns, which may import others from the folder."""
    sys.path.insert(0, str(folder))
    try:
        return run()
    except Exception as error:  # whatever a learner's file may raise
        raise BadRequest(f"{where} does not import: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)


def call(target, function, values):
    """Call a function with the arguments that it has; return its result and the others.

    The others are for the kernel that it returns; without a kernel there must be no others.
    """
    if not callable(function):
        raise BadRequest(f"{target} must be a kernel or a function, got {type(function).__name__}")
    signature = inspect.signature(function)
    known = {name: value for name, value in values.items() if name in signature.parameters}
    others = {name: value for name, value in values.items() if name not in known}
    try:
        signature.bind(**known)
    except TypeError as error:
        raise BadRequest(f"{target}{signature}: {error}") from None
    if others and not _makes_kernels(function):
        raise BadRequest(f"{target}{signature} has no argument {next(iter(others))!r}")
    try:
        return function(**known), others
    except (TypeError, ValueError) as error:
        if isinstance(error, simt.errors.KernelError):
            raise
        raise BadRequest(f"{target}: {error}") from error


def _makes_kernels(function):
    """Tell whether a function may be a factory: whether it defines functions itself."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code is None or any(inspect.iscode(constant) for constant in code.co_consts)


def is_launch(result):
    """Tell whether a function returned (kernel, grid, block, arguments)."""
    return (
        isinstance(result, (tuple, list))
        and len(result) == 4
        and isinstance(result[0], kernel_class())
    )


def trace_kernel(kernel, grid, block, values, shared_bytes):
    name = kernel.py_func.__name__
    parameters = list(inspect.signature(kernel.py_func).parameters)
    shown = f"{name}({', '.join(parameters)})"
    for option, dims in (("--grid", grid), ("--block", block)):
        if dims is None:
            raise BadRequest(f"{shown} is a kernel: it needs {option}, such as {option} 32,8")
    for argument in values:
        if argument not in parameters:
            raise BadRequest(f"{shown} has no argument {argument!r}")
    for parameter in parameters:
        if parameter not in values:
            raise BadRequest(
                f"{shown} needs {parameter}, such as {parameter}=f4[1024] or {parameter}=1024"
            )
    arguments = (values[parameter] for parameter in parameters)
    return simt.trace(kernel, grid, block, *arguments, shared_bytes=shared_bytes)


def parse_dims(option, text):
    """ "4,2" as a tuple of ints."""
    if text is None:
        return None
    parts = text.strip("() ").split(",")
    if not (len(parts) <= 3 and all(re.fullmatch(r"\s*\d+\s*", part) for part in parts)):
        raise BadRequest(f"{option} must be one to three ints, such as 32,8; got {text!r}")
    return tuple(int(part) for part in parts)


def parse_arguments(arguments, rng):
    """{name: value} of "name=value" strings."""
    values = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        if not (equals and name.isidentifier()):
            raise BadRequest(f"an argument is NAME=VALUE, got {argument!r}")
        if name in values:
            raise BadRequest(f"{name} is given twice")
        values[name] = parse_value(name, text, rng)
    return values


def parse_value(name, text, rng):
    """The value of an argument's text."""
    if text.startswith("@"):
        return _array_of_file(name, text[1:])
    array = re.fullmatch(r"(\w+)\[([\d,\s]*)\](?::(\w+))?", text)
    if array:
        return _array(name, *array.groups(), rng)
    if text in CONSTANTS:
        return CONSTANTS[text]
    number, colon, dtype = text.partition(":")
    for kind in (int, float):
        try:
            value = kind(number)
        except ValueError:
            continue
        return _dtype(name, dtype).type(value) if colon else value
    raise BadRequest(
        f"{name}={text}: must be an array such as f4[1024,64], @file.npy, a number, True or False"
    )


def _array_of_file(name, path):
    try:
        loaded = np.load(path)
    except (OSError, ValueError) as error:
        raise BadRequest(f"{name}=@{path}: cannot be read: {error}") from None
    if not isinstance(loaded, np.ndarray):
        raise BadRequest(f"{name}=@{path}: the file must hold one array (.npy), got several")
    return loaded


def _array(name, dtype, shape, fill, rng):
    dtype = _dtype(name, dtype)
    shape = tuple(int(n) for n in shape.split(",") if n.strip())
    if fill is None or fill == "random":
        return _random(shape, dtype, rng)
    if fill not in FILLS:
        raise BadRequest(f"{name}: the fill must be one of :{', :'.join(FILLS)}; got :{fill}")
    return FILLS[fill](shape, dtype)


def _random(shape, dtype, rng):
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        return rng.integers(0, 10, shape).astype(dtype)
    if dtype.kind == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def _dtype(name, text):
    try:
        dtype = np.dtype(text)
    except TypeError:
        dtype = None
    if dtype is None or dtype.kind not in "biufc" or not text:
        raise BadRequest(
            f"{name}: the dtype must be one of f4, f8, f2, i4, i8, u1, bool, c8; got {text!r}"
        )
    return dtype
