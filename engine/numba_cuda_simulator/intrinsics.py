"""The vocabulary of kernels: cuda.*, types used as casts, and the few builtins."""

import builtins
import difflib
import functools
import operator
from collections import namedtuple
from functools import partial

import numpy as np

from .arrays import LaneArray
from .atomics import OTHERS, UFUNCS, Atomic
from .dtypes import BOOL, cast, numpy_dtype, typed
from .errors import UnsupportedError
from .libdevice import LIBDEVICE
from .mathematics import BUILTINS, HALF, MATH, NUMPY_FUNCTIONS, to_bool
from .other_names import meant
from .records import present_site
from .reductions import FUNCTIONS, sum_of

NUMBERS = ("float16", "float32", "float64", "complex64", "complex128") + tuple(
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
)


class Namespace:
    """A module as kernels see it."""

    def __init__(self, name, members):
        self.__dict__.update(members)
        self._name = name

    def __getattr__(self, attribute):
        near = difflib.get_close_matches(attribute, vars(self), 1, 0.75)
        hint = f"Did you mean {self._name}.{near[0]}?" if near else None
        if self._name in ("cuda", "math") and (other := meant(attribute)):
            hint = f"Numba has {other}."
        if self._name == "numpy":
            hint = "Work on single elements in a loop, with math.*."
            if attribute in ("array", "empty", "full", "ones", "zeros"):
                hint = "Use cuda.local.array or cuda.shared.array, and fill it in a loop."
            elif attribute in MATH:
                hint = f"Use math.{attribute}."
            elif attribute in BUILTINS:
                hint = f"Use {attribute}()."
        raise UnsupportedError(
            f"{self._name}.{attribute} is not available inside a kernel", hint=hint
        )


class Cast:
    """A type, called to convert: float32(x), np.int32(x), float64(x)."""

    def __init__(self, type_):
        self.dtype = numpy_dtype(type_)
        if str(type_).startswith("complex") and self.dtype.kind != "c":
            raise TypeError(f"{type_}: NumPy has no such type")  # numba-cuda-mlir's complex32

    def __call__(self, value=0, imaginary=None):
        if imaginary is not None and self.dtype.kind == "c":
            value = BUILTINS["complex"](value, imaginary)
        if isinstance(value, LaneArray) or hasattr(value, "fail"):
            raise UnsupportedError(f"{self.dtype}() does not convert an array")
        return cast(value, self.dtype)


class EnumClass(Namespace):
    """A subclass of enum.Enum: its members by Colour.RED and Colour["RED"]."""

    def __getitem__(self, name):
        return getattr(self, name)


class Allocator:
    """cuda.shared.array or cuda.local.array."""

    def __init__(self, allocate):
        self.allocate = allocate

    def __call__(self, *arguments, **keywords):
        raise UnsupportedError("call it as cuda.shared.array(...) or cuda.local.array(...)")


class Refused:
    """A name that kernels cannot use; says so when it is used."""

    def __init__(self, what, hint=None):
        self._what, self._hint = what, hint

    def __call__(self, *arguments, **keywords):
        raise UnsupportedError(f"{self._what} is not supported in a CUDA kernel", hint=self._hint)

    def __getattr__(self, attribute):
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        self()


def unsigned(x):
    """Return integers as unsigned ones of the same width, and that width."""
    plain = np.asarray(x).view(np.ndarray)
    bits = plain.dtype.itemsize * 8
    return plain.astype(f"uint{bits}"), bits


def popc(x):
    count = np.bitwise_count(unsigned(x)[0])
    return typed(count.astype(np.asarray(x).dtype)[()])


def bit_count(x):
    """n.bit_count()"""
    if getattr(x, "dtype", BOOL).kind not in "iu":
        raise UnsupportedError("bit_count() is a method of integers")
    return popc(x)


def clz(x):
    """Return the number of leading zero bits."""
    value, bits = unsigned(x)
    length = np.zeros(value.shape, np.int64)
    for shift in (32, 16, 8, 4, 2, 1):
        if shift < bits:
            big = value >> value.dtype.type(shift) != 0
            length += np.where(big, shift, 0)
            value = np.where(big, value >> value.dtype.type(shift), value)
    return typed((bits - length - (value != 0)).astype(np.asarray(x).dtype)[()])


def ffs(x):
    """Return the position of the lowest set bit, from 1; 0 if there is none."""
    value, bits = unsigned(x)
    lowest = value & (~value + value.dtype.type(1))
    position = np.bitwise_count(lowest - value.dtype.type(1)) + 1
    return typed(np.where(value == 0, 0, position).astype(np.uint32)[()])


def brev(x):
    """Return the bits in reverse order."""
    value, bits = unsigned(x)
    wide = value.dtype == np.uint64 and np.asarray(x).dtype == np.uint64
    value = value.astype(np.uint64 if wide else np.uint32)
    bits = 64 if wide else 32
    result = np.zeros_like(value)
    for bit in range(bits):
        one = value.dtype.type(1)
        result |= ((value >> value.dtype.type(bit)) & one) << value.dtype.type(bits - 1 - bit)
    return typed(result[()])


def fma(a, b, c):
    """a * b + c rounded once (float32 exactly, through float64)."""
    dtype = np.result_type(a.dtype, b.dtype, c.dtype)
    if dtype == np.float32:
        return (a.astype(np.float64) * b + c).astype(np.float32)
    return a * b + c


def by_parts(operation):
    """Return an operator of vectors: part by part, a number for each part."""

    def apply(*operands):
        (vector, *_) = (x for x in operands if isinstance(x, tuple))
        rows = [x if isinstance(x, tuple) else [x] * len(vector) for x in operands]
        return vector._make(operation(*parts) for parts in zip(*rows, strict=True))

    return apply


OF_VECTORS = {"__array_ufunc__": None}  # so that 2.0 * vector asks the vector
for _f in operator.add, operator.sub, operator.mul, operator.truediv:
    OF_VECTORS[f"__{_f.__name__}__"] = by_parts(_f)
    OF_VECTORS[f"__r{_f.__name__}__"] = by_parts(lambda b, a, f=_f: f(a, b))
OF_VECTORS |= {f"__{name}__": by_parts(getattr(operator, name)) for name in ("neg", "pos")}


class Vector:
    """float32x4(1, 2, 3, 4), float3(v2, z): a vector type, called to make a vector of its parts."""

    def __init__(self, name, dtype, count):
        self.name, self.dtype, self.count = name, np.dtype(dtype), count

    @functools.cached_property
    def kind(self):
        """The class of the vectors; made late, since there are many types and few are used."""
        parts = namedtuple(self.name, tuple("xyzw"[: self.count]))
        return type(self.name, (parts,), OF_VECTORS)

    def __call__(self, *parts):
        flat = []
        for part in parts:
            flat.extend(part if isinstance(part, tuple) else [part])
        if len(flat) != self.count:
            raise UnsupportedError(f"{self.name}() takes {self.count} parts, got {len(flat)}")
        return self.kind._make(cast(part, self.dtype) for part in flat)


def vector_types():
    """Return the vector types by all their names: float32x4 is float4 too."""
    aliases = {"int8": "char", "int16": "short", "int32": "int", "int64": "longlong"}
    aliases |= {f"u{name}": f"u{alias}" for name, alias in aliases.items()}
    aliases |= {"float16": "half", "float32": "float", "float64": "double"}
    found = {}
    for name, alias in aliases.items():
        for count in (1, 2, 3, 4):
            made = found[f"{name}x{count}"] = Vector(f"{name}x{count}", name, count)
            found[f"{alias}{count}"] = made
            if alias.endswith("longlong"):
                found[f"{alias.removesuffix('long')}{count}"] = made
    return found


def limits(of, names):
    """Return np.finfo or np.iinfo of a type."""

    def call(type_):
        found = of(type_.dtype)
        values = {name: np.asarray(getattr(found, name))[()] for name in names.split()}
        return Namespace(f"numpy.{of.__name__}()", values)

    return call


CASTS = {name: Cast(name) for name in NUMBERS}
TYPES = CASTS | {"boolean": Cast(bool)}
ATOMICS = Namespace(
    "cuda.atomic", {name: Atomic(name) for name in (*UFUNCS, *OTHERS, "cas", "compare_and_swap")}
)
NUMPY = Namespace("numpy", {**CASTS, **NUMPY_FUNCTIONS, **FUNCTIONS, "bool_": Cast(bool)})
NUMPY.finfo = limits(np.finfo, "eps max min tiny resolution bits")
NUMPY.iinfo = limits(np.iinfo, "max min bits")
VECTORS = vector_types()

# What does not depend on the launch.
CONSTANT_INTRINSICS = {
    **TYPES,
    **VECTORS,
    "types": Namespace("cuda.types", TYPES),
    "consteval": lambda value: value,  # of what threads know; see syntax.compile_time
    "libdevice": Namespace("cuda.libdevice", LIBDEVICE),
    "warpsize": np.int64(32),
    "atomic": ATOMICS,
    "const": Namespace("cuda.const", {"array_like": Allocator(lambda site, array: array)}),
    "threadfence_block": lambda: None,  # within a block, races are told by its barriers alone
    "nanosleep": lambda nanoseconds: None,
    "popc": popc,
    "clz": clz,
    "ffs": ffs,
    "brev": brev,
    "cbrt": np.cbrt,
    "fma": fma,
    "fp16": Namespace("cuda.fp16", HALF),
    "selp": lambda condition, a, b: np.where(condition, a, b)[()],
}

# Functions of the module operator that mean the same for lane values.
PLAIN_OPERATORS = {
    name: getattr(operator, name)
    for name in """and_ or_ xor invert inv truediv eq ne lt le gt ge pos abs iand ior ixor
    itruediv""".split()
}

INDEX_INSTEAD = "Loop over range(...) and index."
# What `__builtins__` holds for a kernel: all exceptions, few functions; the others say no.
CONSTANT_BUILTINS = {
    **{
        name: value
        if isinstance(value, type) and issubclass(value, BaseException)
        else Refused(f"{name}()")
        for name, value in vars(builtins).items()
        if callable(value) and not name.startswith("__")
    },
    **BUILTINS,
    "range": Refused("range() other than as a for loop's range"),
    "enumerate": Refused("enumerate()", INDEX_INSTEAD),
    "zip": Refused("zip()", INDEX_INSTEAD),
    "sum": sum_of,
}


def allocate(allocator, site, *arguments, **keywords):
    """Call cuda.shared.array or its like, which want to know where they are called."""
    if not isinstance(allocator, Allocator):
        return allocator(*arguments, **keywords)
    return allocator.allocate(site, *arguments, **keywords)


LOADS = "ldca ldcg ldcs ldlu ldcv".split()  # loads and stores with a hint for the caches
STORES = "stcg stcs stwb stwt".split()
OF_WARPS = """syncthreads syncwarp threadfence any_sync all_sync eq_sync ballot_sync match_any_sync
    match_all_sync activemask lanemask_lt""".split()


def load_vector(memory, array, index, shape, alignment=None):
    """cuda.vector.load(x, i, 4): elements that lie side by side, as a vector."""
    made = VECTORS.get(f"{array.dtype}x{shape}")
    if made is None:
        raise UnsupportedError(f"a vector of {shape} {array.dtype} does not run on the CPU engine")
    places = side_by_side(index, int(shape))
    return made(*(memory.load(array, place, present_site()) for place in places))


def store_vector(memory, array, index, vector, alignment=None):
    """cuda.vector.store(x, i, v)."""
    for place, part in zip(side_by_side(index, len(vector)), vector, strict=True):
        memory.store(array, place, part, present_site())


def side_by_side(index, count):
    *rows, first = index if isinstance(index, tuple) else (index,)
    return [(*rows, first + np.int64(n)) for n in range(count)]


def load_element(memory, array, index):
    return memory.load(array, index, present_site())


def store_element(memory, array, index, value):
    memory.store(array, index, value, present_site())


def cuda_namespace(lanes, memory, warps):
    """Return `cuda` as the kernels of a launch see it."""
    allocators = {
        "shared": Namespace("cuda.shared", {"array": Allocator(memory.shared_array)}),
        "local": Namespace("cuda.local", {"array": Allocator(memory.local_array)}),
    }
    threads = {
        "threadIdx": lanes.thread_idx, "blockIdx": lanes.block_idx, "blockDim": lanes.block_dim,
        "gridDim": lanes.grid_dim, "grid": lanes.grid_position, "gridsize": lanes.grid_size,
        "laneid": warps.lane_id(),
    }  # fmt: skip
    of_warps = {name: getattr(warps, name) for name in OF_WARPS}
    of_warps |= {
        "syncthreads_count": warps.syncthreads_vote("count", lambda votes: votes.sum(0)),
        "syncthreads_or": warps.syncthreads_vote("or", lambda votes: votes.any(0)),
        "syncthreads_and": warps.syncthreads_vote(
            "and", lambda against: ~against.any(0), np.logical_not
        ),
        "threadfence_system": warps.threadfence,
        "shfl_sync": warps.shuffle(""),
    }
    of_warps |= {f"shfl_{kind}_sync": warps.shuffle(kind) for kind in ("up", "down", "xor")}
    grid = Namespace("this_grid()", {"sync": warps.grid_sync})
    groups = {"cg": Namespace("cuda.cg", {"this_grid": lambda: grid})}
    vectors = {
        name: partial(f, memory) for name, f in (("load", load_vector), ("store", store_vector))
    }
    allocators["shared_array"] = allocators["shared"].array  # numba-cuda-mlir's other names
    allocators["local_array"] = allocators["local"].array
    allocators["vector"] = Namespace("cuda.vector", vectors)
    hints = {name: partial(load_element, memory) for name in LOADS}
    hints |= {name: partial(store_element, memory) for name in STORES}
    parts = CONSTANT_INTRINSICS, allocators, threads, of_warps, groups, hints
    return Namespace("cuda", {name: value for part in parts for name, value in part.items()})


def operator_namespace(operators, memory):
    """Return the module `operator` as the kernels of a launch see it."""
    special = {
        "floordiv": operators.floordiv, "mod": operators.mod, "pow": operators.power,
        "lshift": operators.shift_left, "rshift": operators.shift_right, "not_": operators.not_,
        "is_": operators.same, "is_not": lambda a, b: operators.not_(operators.same(a, b)),
        "truth": to_bool, "getitem": lambda array, index: memory.load(array, index, present_site()),
    }  # fmt: skip
    sums = {"add": "add", "sub": "subtract", "mul": "multiply", "neg": "negative"}
    special |= {name: partial(operators.arithmetic, ufunc) for name, ufunc in sums.items()}
    inplace = ("add", "sub", "mul", "floordiv", "mod", "pow", "lshift", "rshift")
    special |= {f"i{name}": special[name] for name in inplace}
    return Namespace("operator", PLAIN_OPERATORS | special)


def builtin_names(operators):
    """Return what `__builtins__` holds for the kernels of a launch."""
    return {
        **CONSTANT_BUILTINS,
        "divmod": operators.divmod,
        "pow": operators.power,
        "print": operators.print,
    }
