"""The answering process: imports the learner's file and serves the judge's requests.

Requests come one at a time over a socket: get an attribute, call a function, launch a kernel. The
reply is plain data, or an error as plain data. Functions, kernels, classes and other objects stay
here; the judge has numbers for them.
"""

from __future__ import annotations

import builtins
import collections.abc
import contextlib
import faulthandler
import functools
import importlib.util
import linecache
import marshal
import math
import os
import signal
import socket
import sys
import tempfile
import traceback
import types
import warnings

import numpy as np
from numba import cuda

from fa_numba import simt
from fa_numba.workbook.grading import guard
from fa_numba.workbook.grading.failures import describe
from fa_numba.workbook.grading.lifetime import die_with_parent
from fa_numba.workbook.grading.shapes import expect_constant_shapes
from fa_numba.workbook.grading.wire import Channel, Closed, ReceivingWindows, WireError
from numba_cuda_simulator import launch as engine
from numba_cuda_simulator.errors import KernelWarning
from numba_cuda_simulator.trace import Trace

MOST_REPEATED = 512  # items of an iterator that go at once
SPECIAL = "__getitem__", "__setitem__", "__delitem__", "__len__", "__repr__", "__str__"
SHARED = builtins, math, np, cuda, simt  # modules that a file uses, and may not change
GRADERS_KERNEL = "the grader's kernel"  # in place of a file name in errors


class Objects:
    """Objects that the judge knows by number."""

    def __init__(self):
        self.by_number, self.numbers = {}, {}

    def number(self, value):
        number = self.numbers.get(id(value))
        if number is None:
            number = self.numbers[id(value)] = len(self.by_number)
            self.by_number[number] = value  # kept, so that its id stays its own
        return number


def is_kernel(value):
    """Whether a value is a result of @cuda.jit."""
    return hasattr(value, "py_func") and hasattr(value, "targetoptions")


class AnswerCodec(ReceivingWindows):
    """Reads a request, writes its reply."""

    def __init__(self, worker, buffers=(), windows=()):
        super().__init__(buffers, windows)
        self.worker = worker
        self.replying = False

    def reply(self):
        """From here on buffers are those of the reply."""
        self.buffers = []
        return self

    def encode_array(self, array):
        for number, memory in enumerate(self.memory):  # a view of an argument stays one
            start, at = (x.__array_interface__["data"][0] for x in (memory, array))
            if start <= at < start + memory.nbytes:
                data = [number, np.dtype(array.dtype).str, list(array.shape), list(array.strides)]
                return ["w", *data, at - start]
        return super().encode_array(array)

    def encode_other(self, value):
        number = self.worker.objects.number(value)
        if isinstance(value, type):
            kind = "error" if issubclass(value, BaseException) else "class"
        elif is_kernel(value):
            kind = "kernel"
        elif isinstance(value, collections.abc.Iterator):
            kind = "iterator"
        elif callable(value) and hasattr(value, "__name__"):
            kind = "function"
        else:
            kind = "object"
        if kind == "error":
            return ["error", self.worker.encode_class(value)]
        name = getattr(value, "__name__", type(value).__name__)
        function = getattr(value, "py_func", value)
        code = getattr(function, "__code__", None)
        owner = getattr(code, "co_qualname", getattr(function, "__qualname__", ""))
        return ["o", number, kind, str(name)[:100], str(owner)[:200]]

    def read_p(self, path):
        return self.worker.resolve(path)

    def read_o(self, number):
        return self.worker.objects.by_number[number]

    def read_k(self, key, *made):
        return self.worker.wrapper_kernel(key, self, *made)

    def read_module(self, name):
        return importlib.import_module(name)

    def read_member(self, module, name):
        return functools.reduce(getattr, name.split("."), importlib.import_module(module))

    def read_code(self, index, name, names, defaults):
        """A function of the grader's: only the judge writes requests, so its code may run here."""
        code = marshal.loads(self.buffer(index))
        values = {n: self.decode(value) for n, value in names}
        cells = tuple(types.CellType(values[n]) for n in code.co_freevars)
        scope = {"__builtins__": builtins, **values}
        return types.FunctionType(code, scope, name, self.decode(defaults), cells)

    def read_cb(self, number):
        return self.worker.callback(number)


def not_written(kernel):
    """The message of a stub that the kernel calls, or None: Numba's own names no stub."""
    scope, called = kernel.py_func.__globals__, kernel.py_func.__code__.co_names
    for name in called:
        code = getattr(getattr(scope.get(name), "py_func", None), "__code__", None)
        if code is not None and "NotImplementedError" in code.co_names:
            return next((c for c in code.co_consts if str(c).endswith(f": {name}")), None)


class Worker:
    """The loop."""

    def __init__(self, channel, options):
        self.channel, self.options = channel, options
        self.objects = Objects()
        self.wrappers = {}
        self.module = None
        self.path = options["path"]

        def encode_class(kind):
            bases = [k.__name__ for k in kind.__mro__]
            return [self.objects.number(kind), kind.__name__, bases]

        encode_class.module = os.path.basename(self.path).removesuffix(".py")
        self.encode_class = encode_class

    def serve(self):
        while True:
            try:
                message, buffers = self.channel.receive()
            except Closed:
                return
            self.answer(message, buffers)

    def answer(self, message, buffers):
        codec = AnswerCodec(self, buffers, message["windows"])
        traces, reply = [], {}
        try:
            with np.errstate(**message.get("errstate", {})):
                if message.get("tracing"):
                    with engine.tracing() as traces:
                        value = self.do(message, codec)
                else:
                    value = self.do(message, codec)
            codec.reply()
            if isinstance(value, Trace):
                traces, value = [value], None
            reply["value"] = codec.encode(value)
            reply["traces"] = [trace_data(trace) for trace in traces]
        except BaseException as error:  # whatever a learner's file may raise
            codec.reply()
            if isinstance(error, WireError):
                error = TypeError(f"the result is {error}; a check cannot take that")
            traceback.clear_frames(error.__traceback__)  # what fills the memory is in there
            reply = {"error": describe(error, self.path, self.encode_class)}
        reply["changed"] = [[number, codec.add(data)] for number, data in codec.changed()]
        if (arguments := message.get("mutable")) is not None and "value" in reply:
            reply["arguments"] = codec.encode([self.last_arguments[i] for i in arguments])
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(BaseException):  # closed, or None, or not a stream any more
                stream.flush()
        try:
            self.channel.send(reply, codec.buffers)
        except MemoryError as error:
            del reply, codec
            said = describe(error, self.path, self.encode_class)
            self.channel.send({"error": said, "changed": []})

    def do(self, message, codec):
        do = message["do"]
        if do == "load":
            return self.load()
        target = codec.decode(message["of"])
        arguments = self.last_arguments = codec.decode(message.get("args", ["t", []]))
        keywords = codec.decode(message.get("kwargs", ["d", []]))
        if do == "get":
            return getattr(target, message["name"])
        if do == "call":
            return target(*arguments, **keywords)
        if do == "each":
            return [target(*each) for each in arguments]
        if do == "special":
            return self.special(target, message["name"], arguments)
        if do == "set":
            return setattr(target, message["name"], *arguments)
        if do == "next":
            return [x for _, x in zip(range(MOST_REPEATED), target, strict=False)]
        if do == "iter":
            return iter(target)
        if do in ("run", "trace") and is_kernel(target):
            expect_constant_shapes(target.py_func.__code__)
        # Never compiled: a check's time would depend on the compiler, and on the checks before it.
        with simt.options(**{"compiled": "never"} | message.get("options", {})):
            return getattr(self, f"launch_{do}")(target, *arguments, **keywords)

    def special(self, target, name, arguments):
        if name not in SPECIAL:
            raise AttributeError(name)
        if name in ("__repr__", "__str__"):
            return repr(target)[:2000] if name == "__repr__" else str(target)[:2000]
        return getattr(type(target), name)(target, *arguments)

    def load(self):
        name = os.path.basename(self.path).removesuffix(".py")
        spec = importlib.util.spec_from_file_location(name, self.path)
        self.module = importlib.util.module_from_spec(spec)
        sys.modules[name] = self.module
        before = {module: dict(vars(module)) for module in SHARED}
        try:
            spec.loader.exec_module(self.module)
        finally:
            changed = [
                f"{module.__name__}.{name}"
                for module, names in before.items()
                for name, value in names.items()
                if vars(module).get(name) is not value
            ]
            for module, names in before.items():  # or this very loop may not work any more
                vars(module).update(names)
        if changed:
            raise ImportError(
                f"{os.path.basename(self.path)} changes {changed[0]}, which all code shares: give "
                "your own function another name, and do not assign to the module"
            )

    def resolve(self, path):
        return functools.reduce(getattr, path, self.module)

    def callback(self, number):
        """A function of the judge's."""

        def call(*args):
            codec = AnswerCodec(self).reply()
            self.channel.send({"callback": number, "args": codec.encode(args)}, codec.buffers)
            reply, buffers = self.channel.receive()
            while "do" in reply:  # the function asks for something of the answer itself
                self.answer(reply, buffers)
                reply, buffers = self.channel.receive()
            if "raised" in reply:
                raise RuntimeError(f"the function that was passed in: {reply['raised']}")
            return AnswerCodec(self, buffers).decode(reply["value"])

        return call

    # --- kernels

    def launch_run(self, kernel, grid, block, *args, **options):
        if self.options["gpu"] and options.get("checked", True):
            return run_on_gpu(kernel, grid, block, *args, **options)
        return engine.run(kernel, grid, block, *args, **options)

    def launch_trace(self, kernel, grid, block, *args, **options):
        return engine.trace(kernel, grid, block, *args, **options)

    def launch_gpu_ready(self, kernel, args, **options):
        from fa_numba.analysis.gpu_ready import gpu_ready

        with self.lifted():
            try:
                return gpu_ready(kernel, args, **options)
            except Exception:
                if said := not_written(kernel):
                    raise NotImplementedError(said) from None
                raise

    def launch_parameters(self, kernel):
        code = getattr(kernel, "py_func", kernel).__code__
        return list(code.co_varnames[: code.co_argcount])

    def wrapper_kernel(self, key, codec, source, name, names):
        """A kernel of the grader that calls the learner's functions, made from its source."""
        if key not in self.wrappers:
            scope = {n: codec.decode(value) for n, value in names}
            scope["__name__"] = GRADERS_KERNEL
            file = GRADERS_KERNEL if not self.wrappers else f"{GRADERS_KERNEL} {key}"
            linecache.cache[file] = len(source), None, source.splitlines(True), file
            exec(compile(source, file, "exec"), scope)
            self.wrappers[key] = scope[name]
        return self.wrappers[key]


def run_on_gpu(kernel, grid, block, *args, shared_bytes=0, checked=True):
    """`simt.run` on the GPU: Numba copies the NumPy arrays there and back."""
    copies = [np.ascontiguousarray(x) if isinstance(x, np.ndarray) else x for x in args]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Numba's advice about copies and small grids
        kernel[grid, block, 0, shared_bytes](*copies)
    for array, copy in zip(args, copies, strict=True):
        if copy is not array and array.flags.writeable:
            array[...] = copy  # a strided view, which Numba cannot copy back


def trace_data(trace):
    """A Trace as JSON."""
    sites, numbers = [], {}

    def site(place):
        if id(place) not in numbers:
            numbers[id(place)] = len(sites)
            sites.append(vars(place) | {"variables": list(place.variables)})
        return numbers[id(place)]

    def plain(x):
        if isinstance(x, tuple | list | np.ndarray):
            return [plain(y) for y in x]
        return x.item() if isinstance(x, np.generic) else x

    def fields(x, **instead):
        return {k: instead[k] if k in instead else plain(v) for k, v in vars(x).items()}

    numbers_of_all = "grid", "block", "barriers", "shuffles", "shared_bytes", "local_bytes"
    return {
        "kernel": trace.kernel,
        **{name: plain(getattr(trace, name)) for name in numbers_of_all},
        "arrays": [[n, fields(a)] for n, a in trace.arrays.items()],
        "shared": [[n, fields(a)] for n, a in trace.shared.items()],
        "lines": [fields(line) for line in trace.lines],
        "flops": [[*key, plain(n)] for key, n in trace.flops.operations.items()],
        "races": [fields(x, sites=[site(s) for s in x.sites]) for x in trace.races],
        "uninitialised": [fields(x, site=site(x.site)) for x in trace.uninitialised],
        "sites": sites,
    }


def answer_with(sock, output, dump, options):
    """Become the answering process: limits, streams, guard, then the loop. Does not return."""
    die_with_parent()
    os.dup2(output, 1)
    os.dup2(output, 2)
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = open(number, "w", encoding="utf-8", errors="replace", closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.stdin = open(os.devnull, encoding="utf-8")
    os.dup2(sys.stdin.fileno(), 0)
    faulthandler.enable(dump, all_threads=False)
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, dump, all_threads=True, chain=False)
    sys.argv = [options["path"]]
    sys.path = [os.path.abspath(p) for p in sys.path]
    sys.dont_write_bytecode = True
    os.chdir(options["folder"])
    tempfile.tempdir = options["folder"]
    os.environ |= {"MPLCONFIGDIR": options["folder"], "HOME": options["folder"]}
    warnings.resetwarnings()
    warnings.simplefilter("error" if options["strict"] else "ignore")
    # An answer must keep CUDA's rules: that a GPU would let it pass as a rule is not enough.
    warnings.simplefilter("error", KernelWarning)
    if not options["gpu"]:
        simt.enable()  # for raw kernel[grid, block] too: CUDA does not survive a fork
    channel = Channel(sock)
    guard.limit_resources(options["memory"])
    worker = Worker(channel, options)
    worker.lifted = guard.install(
        options["root"], options["folder"], options["path"], tuple(options["forbidden"]),
        gpu=options["gpu"],
    )  # fmt: skip
    try:
        channel.send({"ready": os.getpid()})
        worker.serve()
    finally:
        os._exit(0)


def main():
    """A process started anew, where there is no fork or CUDA forbids it: socket, output, dump."""
    import json

    sock, output, dump = map(int, sys.argv[1:4])
    answer_with(socket.socket(fileno=sock), output, dump, json.loads(sys.argv[4]))


if __name__ == "__main__":
    main()
