"""What a check sees of an answer: plain values, and stand-ins for what stays in its process."""

from __future__ import annotations

import types

import numpy as np

from fa_numba.simt.errors import Site
from fa_numba.simt.findings import Race, Uninitialised
from fa_numba.simt.flops import Flops
from fa_numba.simt.trace import GlobalTraffic, LineTraffic, SharedTraffic, Trace
from fa_numba.workbook.grading.wire import SendingWindows, WireError, dtype_of


class Proxy:
    """Something that lives in the answering process.

    `path` leads there from the module, where it is known: then it outlives the process. Otherwise
    `number` is what the process of this generation calls it.
    """

    def __init__(self, answer, *, path=None, number=None, name="", owner=""):
        self.__dict__.update(
            _answer=answer,
            _path=path,
            _number=number,
            _generation=answer.generation,
            _owner=owner,
            __name__=name,
        )

    def _request(self, do, **more):
        return self._answer.request(do, self, **more)

    def __getattr__(self, name):
        if name.startswith("_") and not (name.startswith("__") and name.endswith("__")):
            return self._request("get", name=name)
        if name.startswith("__"):
            raise AttributeError(name)
        path = None if self._path is None else [*self._path, name]
        value = self._request("get", name=name)
        if isinstance(value, Proxy) and path is not None:
            value.__dict__["_path"] = path
        if isinstance(value, Function | Kernel):
            self.__dict__[name] = value  # a function stays one: ask for it once
        return value

    def __repr__(self):
        return f"<{self.__name__} of {self._answer.path.name}>"


class Module(Proxy):
    """The learner's module: what the fixture `exercise` is."""


class Function(Proxy):
    def __call__(self, *args, **kwargs):
        __tracebackhide__ = True
        return self._request("call", args=args, kwargs=kwargs)

    def __get__(self, instance, owner=None):
        return self


class Class(Function):
    pass


class Kernel(Proxy):
    """A kernel or a device function."""

    def __call__(self, *args, **kwargs):
        __tracebackhide__ = True
        return self._request("call", args=args, kwargs=kwargs)

    def __getitem__(self, configuration):
        def launch(*args):
            from fa_numba import simt

            grid, block, *rest = configuration
            return simt.run(self, grid, block, *args, shared_bytes=(rest[1:] or [0])[0])

        return launch


class Object(Proxy):
    """An instance of a class of the learner's; its special methods are called over there."""

    def __call__(self, *args, **kwargs):
        __tracebackhide__ = True
        return self._request("call", args=args, kwargs=kwargs)

    def __eq__(self, other):
        """Whether both are the same object over there; the answer is not asked."""
        return isinstance(other, Object) and (
            (self._answer, self._generation, self._number)
            == (other._answer, other._generation, other._number)
        )

    def __hash__(self):
        return hash((self._generation, self._number))

    def __setattr__(self, name, value):
        self._request("set", name=name, args=(value,))

    def __iter__(self):
        iterator = self._request("iter")
        while batch := iterator._request("next"):
            yield from batch


def _special(name):
    def method(self, *args):
        __tracebackhide__ = True
        return self._request("special", name=name, args=args)

    method.__name__ = name
    return method


# No comparison and no arithmetic: the judge would ask the answer whether it is right.
for _name in ("__getitem__", "__setitem__", "__delitem__", "__len__", "__repr__", "__str__"):
    setattr(Object, _name, _special(_name))


class Iterator(Proxy):
    """A generator or the like."""

    def __iter__(self):
        while batch := self._request("next"):
            yield from batch

    def __next__(self):
        if not self.__dict__.get("_waiting"):
            self.__dict__["_waiting"] = self._request("next")[::-1]
        if not self._waiting:
            raise StopIteration
        return self._waiting.pop()


KINDS = {
    "class": Class,
    "kernel": Kernel,
    "iterator": Iterator,
    "function": Function,
    "object": Object,
}


class JudgeCodec(SendingWindows):
    """Writes a request, reads its reply."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer
        self.arguments = ()

    def encode_other(self, value):
        from fa_numba.workbook.grading import launches

        if isinstance(value, Proxy):
            if value._answer is not self.answer:
                raise TypeError(f"{Proxy.__repr__(value)} belongs to another exercise")
            if value._path is not None:
                return ["p", value._path]
            if value._generation != self.answer.generation:
                raise TypeError(f"{Proxy.__repr__(value)} is gone: its process was started anew")
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
        return KINDS[kind](self.answer, number=int(number), name=str(name), owner=str(owner))

    def read_error(self, data):
        return self.answer.own_class(data)

    def take_traces(self, traces):
        made = [trace_of(data) for data in traces]
        self.answer.last_traces = made
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
        races=[filled(Race, r, sites=tuple(sites[i] for i in r["sites"])) for r in data["races"]],
        uninitialised=[
            filled(Uninitialised, u, site=sites[u["site"]]) for u in data["uninitialised"]
        ],
        lines=[filled(LineTraffic, line) for line in data["lines"]],
        shared_bytes=data["shared_bytes"],
        local_bytes=data["local_bytes"],
        flops=Flops({(kind, dtype, line): n for kind, dtype, line, n in data["flops"]}),
    )


def each(function, items):
    """``[function(item) for item in items]``, in one request where the function is an answer's."""
    __tracebackhide__ = True
    if not isinstance(function, Proxy):
        return [function(item) for item in items]
    return function._request("each", args=[(item,) for item in items])
