"""A check's view of an answer: plain values, and proxies for objects in its process."""

from __future__ import annotations


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

    def __call__(self, *args, **kwargs):
        __tracebackhide__ = True
        return self._request("call", args=args, kwargs=kwargs)

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
    """The learner's module, the value of the fixture `exercise`."""


class Function(Proxy):
    def __get__(self, instance, owner=None):
        return self


class Class(Function):
    pass


class Kernel(Proxy):
    """A kernel or a device function."""

    def __getitem__(self, configuration):
        def launch(*args):
            from fa_numba import simt

            grid, block, *rest = configuration
            return simt.run(self, grid, block, *args, shared_bytes=(rest[1:] or [0])[0])

        return launch


class Object(Proxy):
    """An instance of a class of the learner's; its special methods are called over there."""

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


def each(function, items):
    """``[function(item) for item in items]``, in one request where the function is an answer's."""
    __tracebackhide__ = True
    if not isinstance(function, Proxy):
        return [function(item) for item in items]
    return function._request("each", args=[(item,) for item in items])
