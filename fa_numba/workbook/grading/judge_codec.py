"""How the judge writes a request to an answering process, and reads the reply."""

from __future__ import annotations

import types

import numpy as np

from fa_numba.workbook.counts import added, counted
from fa_numba.workbook.graders.causes import diagnosing
from fa_numba.workbook.grading import launches, proxies
from fa_numba.workbook.grading.wire import SendingWindows, WireError, dtype_of
from numba_cuda_simulator.errors import Site
from numba_cuda_simulator.findings import Race, Uninitialised
from numba_cuda_simulator.flops import Flops
from numba_cuda_simulator.trace import GlobalTraffic, LineTraffic, SharedTraffic, Trace


class JudgeCodec(SendingWindows):
    """Writes a request, reads its reply."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer
        self.arguments = ()

    def encode_other(self, value):
        if isinstance(value, proxies.Proxy):
            if value._answer is not self.answer:
                raise TypeError(f"{proxies.Proxy.__repr__(value)} belongs to another exercise")
            if value._path is not None:
                return ["p", value._path]
            if value._generation != self.answer.generation:
                raise TypeError(
                    f"{proxies.Proxy.__repr__(value)} is gone: its process was started anew"
                )
            return ["o", value._number]
        if isinstance(value, types.ModuleType):
            return ["module", value.__name__]
        if launches.is_kernel(value):
            return launches.encode_kernel(self, value)
        name = getattr(value, "__qualname__", getattr(value, "name", None))
        module = getattr(value, "__module__", "") or ""
        if str(module).startswith(("numba", "numpy", "math", "builtins")):
            for place in ("numba", "numba.cuda", "numba.types", module):
                if launches.member(place, name) is value:
                    return ["member", place, name]
        if launches.is_shippable(value):
            return launches.encode_function(self, value)
        if isinstance(value, types.FunctionType | types.MethodType):
            self.answer.callbacks.append(value)
            return ["cb", len(self.answer.callbacks) - 1]
        raise TypeError(f"{value!r} cannot be given to an answer")

    def read_w(self, number, dtype, shape, strides, offset):
        """A view of an argument: the very argument, where it is all of it."""
        window = list(self.windows.values())[int(number)]
        shape, strides = tuple(map(int, shape)), tuple(map(int, strides))
        at, dtype = window.low + int(offset), dtype_of(dtype)
        for array in window.arrays:
            data = array.__array_interface__["data"][0]
            if (data, array.shape, array.strides, array.dtype) == (at, shape, strides, dtype):
                return array
        memory = window.memory()
        last = sum((n - 1) * abs(s) for n, s in zip(shape, strides, strict=True)) + dtype.itemsize
        if not 0 <= int(offset) <= len(memory) or last > len(memory):
            raise WireError("a view outside of its memory")
        return np.ndarray(shape, dtype, memory, int(offset), strides)

    def read_o(self, number, kind, name, owner):
        return proxies.KINDS[kind](
            self.answer, number=int(number), name=str(name), owner=str(owner)
        )

    def read_error(self, data):
        return self.answer.own_class(data)

    def take_traces(self, traces):
        made = [trace_of(data) for data in traces]
        self.answer.last_traces = made
        if made and not diagnosing:
            self.answer.counts = added([self.answer.counts, counted(made)])
        for collected in self.answer.tracing:
            collected += made


def trace_of(data):
    """The Trace that an answer has sent."""
    sites = [Site(**{**site, "variables": tuple(site["variables"])}) for site in data["sites"]]

    def tuples(x):
        return tuple(tuples(y) for y in x) if isinstance(x, list) else x

    def filled(kind, values, **more):
        return kind(**{k: tuples(v) for k, v in values.items()} | more)

    return Trace(
        kernel=str(data["kernel"]),
        grid=tuples(data["grid"]),
        block=tuples(data["block"]),
        arrays={str(n): filled(GlobalTraffic, values) for n, values in data["arrays"]},
        shared={str(n): filled(SharedTraffic, values) for n, values in data["shared"]},
        barriers=data["barriers"],
        shuffles=data["shuffles"],
        races=[filled(Race, r, sites=tuple(sites[i] for i in r["sites"])) for r in data["races"]],
        uninitialised=[
            filled(Uninitialised, u, site=sites[u["site"]]) for u in data["uninitialised"]
        ],
        lines=[filled(LineTraffic, line) for line in data["lines"]],
        shared_bytes=data["shared_bytes"],
        local_bytes=data["local_bytes"],
        flops=Flops({(kind, dtype, line): n for kind, dtype, line, n in data["flops"]}),
    )
