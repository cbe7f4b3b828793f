"""Launches and compilation asked for by a check: those of an answer's kernels happen over there.

`install` replaces `simt.run`, `simt.trace`, `simt.tracing` and `gpu_ready`
before any grader is imported. A kernel that does not belong to an answer takes the old way. A
grader's own kernel that calls functions of the answer goes over as source text, with the values
of the names that it uses, and nothing else of the grader.
"""

from __future__ import annotations

import ast
import dataclasses
import dis
import functools
import importlib
import inspect
import marshal
import textwrap
import types

import numpy as np

from fa_numba import simt
from fa_numba.workbook.grading.answering import is_kernel
from fa_numba.workbook.grading.proxies import Kernel, Proxy
from numba_cuda_simulator.launch import tracing as engine_tracing
from numba_cuda_simulator.options import Options, current_options
from numba_cuda_simulator.trace import Launched

_run, _trace = simt.run, simt.trace
_gpu_ready = None


def member(place, name):
    try:
        return functools.reduce(getattr, str(name).split("."), importlib.import_module(place))
    except (ImportError, AttributeError):
        return None


# --- a grader's own kernels


def names_used(function):
    """{name: value} of the global and enclosing names that a function uses."""
    code = function.__code__
    enclosing = zip(code.co_freevars, function.__closure__ or (), strict=True)
    found = {name: cell.cell_contents for name, cell in enclosing}
    scope = function.__globals__
    return {name: scope[name] for name in global_names(code) if name in scope} | found


@functools.cache
def global_names(code):
    """The global names that a function loads, and the functions inside it."""
    names = {
        i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return names.union(*map(global_names, inner))


def answer_of(kernel, seen=()):
    """The answer that a kernel belongs to or calls into, or None."""
    if isinstance(kernel, Proxy):
        return kernel._answer
    if not is_kernel(kernel) or kernel in seen:
        return None
    values = names_used(kernel.py_func).values()
    return next((a for v in values if (a := answer_of(v, (*seen, kernel))) is not None), None)


def encode_kernel(codec, kernel):
    """A grader's kernel: its key, source, name, and the values of the names in it."""
    function = kernel.py_func
    source = textwrap.dedent(inspect.getsource(function))
    names = names_used(function)
    for node in ast.walk(ast.parse(source)):  # those of the decorators
        if isinstance(node, ast.Name) and node.id in function.__globals__:
            names.setdefault(node.id, function.__globals__[node.id])
    _keep.append(kernel)  # its id stays its own
    values = [[name, codec.encode(value)] for name, value in names.items()]
    return ["k", id(kernel), source, function.__name__, values]


_keep = []


# --- a grader's own functions that it passes to the answer


def is_shippable(value, seen=()):
    """Whether a function can go over as code: all that it uses is plain, or the answer's own.

    Any other, such as one that notes its calls in a list, stays here and is called from there.
    """
    if not isinstance(value, types.FunctionType) or value in seen:
        return False
    used = [*names_used(value).values(), *(value.__defaults__ or ())]
    return not value.__kwdefaults__ and all(
        isinstance(x, Proxy | types.ModuleType | int | float | str | None)
        or is_shippable(x, (*seen, value))
        for x in used
    )


def encode_function(codec, function):
    """A function as code, with the values of the names in it."""
    values = [[name, codec.encode(value)] for name, value in names_used(function).items()]
    defaults = codec.encode(function.__defaults__)
    code = codec.add(marshal.dumps(function.__code__))
    return ["code", code, function.__name__, values, defaults]


# --- called by checks


def _options():
    changed = dataclasses.asdict(current_options())
    return {k: v for k, v in changed.items() if v != getattr(Options(), k)}


def _launch(answer, do, kernel, grid, block, args, **keywords):
    __tracebackhide__ = True
    own = isinstance(kernel, Kernel)
    names = answer.parameters(kernel, len(args)) if own else _parameters_of(kernel)
    answer.recorder.launch(kernel._number if own else None, names, grid, block, args)
    floats = [x for x in args if isinstance(x, np.ndarray) and x.dtype.kind == "f"]
    before = [x.copy() for x in floats]
    answer.request(do, kernel, args=(grid, block, *args), kwargs=keywords, options=_options())
    # Graders fill outputs with NaN: an element with the same NaN was never written. One that comes
    # out of a computation has its sign bit set.
    nans = [np.isnan(x) for x in floats]
    same = [
        nan & np.isnan(old) & (np.signbit(x) == np.signbit(old))
        for x, old, nan in zip(floats, before, nans, strict=True)
    ]
    answer.never_written = any(s.any() for s in same) and not any(
        (nan & ~s).any() for nan, s in zip(nans, same, strict=True)
    )


def _parameters_of(kernel):
    code = kernel.py_func.__code__
    return code.co_varnames[: code.co_argcount]


def run(kernel, grid, block, *args, shared_bytes=0, checked=True):
    """`simt.run`, in the answering process where the kernel is the learner's."""
    __tracebackhide__ = True
    answer = answer_of(kernel)
    if answer is None:
        return _run(kernel, grid, block, *args, shared_bytes=shared_bytes, checked=checked)
    keywords = {"shared_bytes": shared_bytes, "checked": checked}
    return _launch(answer, "run", kernel, grid, block, args, **keywords)


def trace(kernel, grid, block, *args, shared_bytes=0):
    """`simt.trace`, in the answering process where the kernel is the learner's."""
    __tracebackhide__ = True
    answer = answer_of(kernel)
    if answer is None:
        return _trace(kernel, grid, block, *args, shared_bytes=shared_bytes)
    _launch(answer, "trace", kernel, grid, block, args, shared_bytes=shared_bytes)
    (made,) = answer.last_traces
    made.launched = Launched(kernel, args, shared_bytes)
    if isinstance(kernel, Kernel):
        _rename(made, answer, kernel)
    return made


class tracing(engine_tracing):
    """`simt.tracing`, which also collects the launches of answers."""

    answers = []  # those of the session

    def __enter__(self):
        traces = super().__enter__()
        for answer in self.answers:
            answer.tracing.append(traces)
        return traces

    def __exit__(self, *error):
        super().__exit__(*error)
        for answer in self.answers:
            answer.tracing = [t for t in answer.tracing if t is not self.traces]


def gpu_ready(kernel, args, **keywords):
    """`gpu_ready`, in the answering process where the kernel is the learner's."""
    __tracebackhide__ = True
    answer = answer_of(kernel)
    if answer is None:
        return _gpu_ready(kernel, args, **keywords)
    if isinstance(kernel, Proxy) and not isinstance(kernel, Kernel):
        raise AssertionError(
            f"{kernel.__name__} is a plain Python function: write @cuda.jit in the line above it"
        )
    answer.compiled = answer.request("gpu_ready", kernel, args=(tuple(args),), kwargs=keywords)
    return answer.compiled


def _rename(trace, answer, kernel):
    """Call the arrays by the statement's names: a learner may choose others."""
    own = answer.request("parameters", kernel)
    wanted = answer.parameters(kernel, len(own))
    if not wanted or wanted == own:
        return
    names = dict(zip(own, wanted, strict=True))

    def name(array):
        head, bracket, rest = array.partition("[")
        return names.get(head, head) + bracket + rest

    trace.arrays = {name(n): traffic for n, traffic in trace.arrays.items()}
    for line in trace.lines:
        if line.kind == "global":
            line.array = name(line.array)


def install(*, to_machine_code=False):
    """Replace the engine's functions by the judge's, before any grader is imported.

    Returns what was there, for `uninstall`.
    """
    global _gpu_ready
    module = importlib.import_module("fa_numba.analysis.gpu_ready")
    before = simt.run, simt.trace, simt.tracing, module.gpu_ready
    if _gpu_ready is None:
        _gpu_ready = module.gpu_ready
    simt.run, simt.trace, simt.tracing = run, trace, tracing
    module.gpu_ready = (
        functools.partial(gpu_ready, to_machine_code=True) if to_machine_code else (gpu_ready)
    )
    return before


def uninstall(before=None):
    """Restore the engine's functions, or what was there `before`."""
    module = importlib.import_module("fa_numba.analysis.gpu_ready")
    before = before or (_run, _trace, engine_tracing, _gpu_ready)
    simt.run, simt.trace, simt.tracing, module.gpu_ready = before
