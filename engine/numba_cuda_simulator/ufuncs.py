"""@vectorize and @guvectorize with target="cuda", on the engine.

A ufunc is a kernel of one line, out[i] = f(x[i], y[i]): its source is made here, for the number of
arguments, and its threads are checked as those of any kernel.
"""

import functools
import linecache
import re

import numpy as np

from .dtypes import numpy_dtype
from .errors import LaunchError
from .host import DeviceArray, host_value
from .launch import launch
from .names import PLACEHOLDERS
from .signatures import parsed_signatures

THREADS = 128


class DeviceFunction:
    """A function that the kernel calls, as @cuda.jit(device=True) makes one."""

    def __init__(self, function):
        self.py_func = function


def kernel_of(function, statement, parameters):
    """Return the kernel that runs a statement, which calls `core`, in each thread below `count`."""
    name = function.__name__ if function.__name__.isidentifier() else "ufunc"  # of a lambda
    source = (
        f"def {name}({', '.join(parameters)}, count):\n"
        f"    i = grid(1)\n    if i < count:\n        {statement}\n"
    )
    file = f"<the kernel of {function.__module__}.{function.__qualname__}>"
    linecache.cache[file] = len(source), None, source.splitlines(True), file
    world = {"core": DeviceFunction(function), "grid": PLACEHOLDERS["grid"]}
    exec(compile(source, file, "exec"), world)
    return world[name]


def run(kernel, arguments, count):
    __tracebackhide__ = True
    if count:
        error = launch(kernel, -(-count // THREADS), THREADS, (*arguments, count))
        if error is not None:
            raise error


class Builder:
    """What the decorators of Numba fill with signatures, and take the function from.

    identity, cache : taken and not needed.
    """

    def __init__(self, function, identity=None, cache=False, targetoptions=None, **others):
        function = getattr(function, "py_func", function)
        self.function, self.signatures = function, []
        known = {"nopython", "max_blocksize", "inline"}
        for name in sorted({*(targetoptions or {}), *others} - known):
            raise TypeError(f"{function.__name__}: the target cuda has no option '{name}'")

    def add(self, sig=None):
        self.signatures += parsed_signatures(sig, device=True)

    def disable_compile(self):
        """Do nothing: Numba calls it after the last signature."""

    def build_ufunc(self):
        return self.ufunc(self)


class Function:
    """What calls of both kinds of function have in common."""

    def __init__(self, builder):
        self.function, self.signatures = builder.function, builder.signatures
        functools.update_wrapper(self, self.function)
        if not self.signatures:
            raise TypeError(
                f'{self.__name__}: with target="cuda" a signature must be given, as '
                '@vectorize(["float32(float32)"], target="cuda")'
            )

    def signature_for(self, inputs):
        """Return the signature for these inputs: arrays must have its types exactly."""
        for signature in self.signatures:
            pairs = zip(signature.args, inputs, strict=False)
            if all(fits(element_type(t), x) for t, x in pairs):
                return signature
        got = ", ".join(str(x.dtype) for x in inputs)
        raise TypeError(
            f"{self.__name__}: no signature takes ({got}); a GPU casts no array. There are "
            + " and ".join(map(str, self.signatures))
        )

    @staticmethod
    def take_inputs(arguments, keywords):
        """Return the inputs as arrays, whether one is a device array, and `out`."""
        keywords.pop("stream", None)
        out = keywords.pop("out", None)
        for name in keywords:
            raise TypeError(f"the keyword '{name}' is unknown: there are out and stream")
        on_device = any(host_value(x) is not x for x in (*arguments, out))
        return [np.asarray(host_value(x)) for x in arguments], on_device, out


def element_type(type_):
    return numpy_dtype(getattr(type_, "dtype", type_))


def fits(dtype, value):
    """Tell whether an array has this type, or a number can become it."""
    return value.dtype == dtype or (not value.ndim and np.can_cast(value.dtype, dtype, "same_kind"))


def delivered(result, on_device, out):
    """Return a result where the caller wants it: in `out`, as device array or NumPy array."""
    if out is not None:
        host_value(out)[...] = result
        return out
    return DeviceArray(result) if on_device else result


class Elementwise(Function):
    """A function made by @vectorize."""

    def __init__(self, builder):
        super().__init__(builder)
        count = self.function.__code__.co_argcount
        names = [f"x{n}" for n in range(count)]
        call = ", ".join(f"{name}[i]" for name in names)
        self.nin = count
        self.kernel = kernel_of(self.function, f"out[i] = core({call})", [*names, "out"])

    def __call__(self, *arguments, **keywords):
        __tracebackhide__ = True
        if len(arguments) == self.nin + 1:
            keywords["out"] = arguments[-1]
            arguments = arguments[:-1]
        if len(arguments) != self.nin:
            raise TypeError(f"{self.__name__}() takes {self.nin} inputs, got {len(arguments)}")
        inputs, on_device, out = self.take_inputs(arguments, keywords)
        signature = self.signature_for(inputs)
        shape = np.broadcast_shapes(*(x.shape for x in inputs))
        inputs = [
            np.broadcast_to(x.astype(element_type(t), copy=False), shape).ravel()
            for x, t in zip(inputs, signature.args, strict=True)
        ]
        dtype = element_type(signature.result) if signature.result else np.result_type(*inputs)
        result = np.empty(shape, dtype)
        run(self.kernel, [*inputs, result.reshape(-1)], result.size)
        return delivered(result, on_device, out)

    def reduce(self, arg, stream=0):
        """Combine all elements of an array of one axis by a function of two arguments."""
        values = np.asarray(host_value(arg))
        if self.nin != 2 or values.ndim != 1 or not values.size:
            raise TypeError(
                f"{self.__name__}.reduce() needs a function of two arguments, and an array of one "
                f"axis that is not empty; got {self.nin} arguments, shape {np.shape(values)}"
            )
        left = values.copy()
        while len(left) > 1:
            half = len(left) // 2
            rest = left[2 * half :]
            left = np.concatenate([self(left[:half], left[half : 2 * half]), rest])
        return left[0]


class Generalised(Function):
    """A function made by @guvectorize."""

    def __init__(self, builder):
        super().__init__(builder)
        self.inputs, self.outputs = builder.layout
        count = len(self.inputs) + len(self.outputs)
        names = [f"x{n}" for n in range(count)]
        call = ", ".join(f"{name}[i]" for name in names)
        self.kernel = kernel_of(self.function, f"core({call})", names)

    def __call__(self, *arguments, **keywords):
        __tracebackhide__ = True
        nin, nout = len(self.inputs), len(self.outputs)
        given = arguments[nin:]
        if len(arguments) not in (nin, nin + nout):
            raise TypeError(
                f"{self.__name__}() takes {nin} inputs and {nout} outputs, got {len(arguments)} "
                "arguments"
            )
        inputs, on_device, out = self.take_inputs(arguments[:nin], keywords)
        on_device = on_device or any(isinstance(x, DeviceArray) for x in given)
        if out is not None:
            given = out if isinstance(out, tuple) else (out,)
        signature, sizes, outer = self.signature_for(inputs), {}, []
        for x, axes in zip(inputs, self.inputs, strict=True):
            self.match(x, axes, sizes)
            outer.append(x.shape[: x.ndim - len(axes)])
        loop = np.broadcast_shapes(*outer)
        count = int(np.prod(loop, dtype=np.int64))
        parts = []
        for x, axes, type_ in zip(inputs, self.inputs, signature.args, strict=False):
            core = x.shape[x.ndim - len(axes) :]
            full = np.broadcast_to(x.astype(element_type(type_), copy=False), (*loop, *core))
            parts.append(self.rows(full, count, core, type_))
        results = []
        for n, (axes, type_) in enumerate(zip(self.outputs, signature.args[nin:], strict=True)):
            core = tuple(self.size(axis, sizes) for axis in axes)
            result = np.zeros((*loop, *core), element_type(type_))
            if given:
                result[...] = host_value(given[n])
            results.append(result)
            parts.append(self.rows(result, count, core, type_))
        run(self.kernel, parts, count)
        wanted = given or [None] * nout
        found = [delivered(r, on_device, o) for r, o in zip(results, wanted, strict=True)]
        return found[0] if nout == 1 else tuple(found)

    def match(self, x, axes, sizes):
        if x.ndim < len(axes):
            raise ValueError(
                f"{self.__name__}: an input needs the axes ({', '.join(axes)}), got {x.ndim} axes"
            )
        for axis, n in zip(axes, x.shape[x.ndim - len(axes) :], strict=True):
            if sizes.setdefault(axis, n) != n:
                raise ValueError(f"{self.__name__}: the axis '{axis}' has {sizes[axis]} and {n}")

    def size(self, axis, sizes):
        if axis not in sizes:
            raise LaunchError(f"{self.__name__}: no input tells the size of the axis '{axis}'")
        return sizes[axis]

    @staticmethod
    def rows(x, count, core, type_):
        """Return an array with one row for each thread; one element is an array or a number."""
        axes = core
        if not core and hasattr(type_, "ndim"):
            axes = (1,)
        return x.reshape(count, *axes)


class VectorizeBuilder(Builder):
    ufunc = Elementwise


class GUVectorizeBuilder(Builder):
    ufunc = Generalised

    def __init__(self, function, signature, writable_args=(), **options):
        super().__init__(function, **options)
        left, arrow, right = signature.replace(" ", "").partition("->")
        if not arrow:
            raise ValueError(f"a layout has inputs -> outputs, as (n),(n)->(), got {signature!r}")
        self.layout = tuple(
            [tuple(filter(None, axes.split(","))) for axes in re.findall(r"\(([^)]*)\)", side)]
            for side in (left, right)
        )


BUILDERS = {"Vectorize": VectorizeBuilder, "GUVectorize": GUVectorizeBuilder}
