"""What names mean inside a kernel.

A kernel's globals and closure are looked up at each launch and resolved by value, so that
`from numba import cuda`, `import numba.cuda as c` and `from numba.cuda import threadIdx` all
work, and a factory's constants are seen. Nothing of Numba's own implementation is called.
"""

import builtins
import inspect
import types

import numpy as np
from numba import cuda

from .atomics import OTHERS, UFUNCS, Atomic
from .dtypes import INT64, cast, numpy_dtype, typed
from .errors import KernelError, LaunchError, UnsupportedError
from .lanes import Undefined
from .mathematics import BUILTINS, MATH, NUMPY_FUNCTIONS
from .memory import LaneArray
from .transform import PREFIX, transform

NUMBERS = ("float16", "float32", "float64") + tuple(
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
)


INTRINSICS = """threadIdx blockIdx blockDim gridDim grid gridsize laneid warpsize shared local const
    atomic syncthreads syncthreads_count syncthreads_or syncthreads_and syncwarp shfl_sync
    shfl_up_sync shfl_down_sync shfl_xor_sync any_sync all_sync eq_sync ballot_sync match_any_sync
    match_all_sync activemask lanemask_lt threadfence threadfence_block threadfence_system
    nanosleep popc clz ffs brev cbrt fma selp""".split()


class Placeholder:
    """What numba.cuda lacks under the simulator; only its identity matters."""


PLACEHOLDERS = {name: Placeholder() for name in INTRINSICS}


class Namespace:
    """A module as kernels see it."""

    def __init__(self, name, members):
        self.__dict__.update(members)
        self._name = name

    def __getattr__(self, attribute):
        raise UnsupportedError(f"{self._name}.{attribute} is not available inside a kernel")


class Cast:
    """A type, called to convert: float32(x), np.int32(x), float64(x)."""

    def __init__(self, type_):
        self.dtype = numpy_dtype(type_)

    def __call__(self, value=0):
        if isinstance(value, LaneArray) or hasattr(value, "fail"):
            raise UnsupportedError(f"{self.dtype}() of an array")
        return cast(value, self.dtype)


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


class Names:
    """Resolution of a kernel's global names; part of the machine."""

    def start_names(self):
        self.environments = {}  # function -> its globals during this launch
        self.cuda = self.cuda_namespace()
        self.modules = {
            "math": Namespace("math", MATH),
            "numpy": Namespace("numpy", {**self.casts(np), **NUMPY_FUNCTIONS, "bool_": Cast(bool)}),
            "numba": Namespace(
                "numba", {**self.casts(np), "boolean": Cast(bool), "cuda": self.cuda}
            ),
            "numba.cuda": self.cuda,
        }
        # `from numba.cuda import grid` gives Numba's own object: recognised by identity.
        self.by_identity = {
            id(getattr(cuda, name)): value
            for name, value in vars(self.cuda).items()
            if hasattr(cuda, name)
        }
        self.builtins = self.builtin_names()

    def casts(self, module):
        return {name: Cast(getattr(module, name)) for name in NUMBERS}

    def cuda_namespace(self):
        def each(function, names, **how):
            return {name: function(name, **how) for name in names}

        atomics = each(Atomic, (*UFUNCS, *OTHERS, "cas", "compare_and_swap"))
        return Namespace(
            "cuda",
            {
                **self.casts(np),
                "threadIdx": self.thread_idx,
                "blockIdx": self.block_idx,
                "blockDim": self.block_dim,
                "gridDim": self.grid_dim,
                "grid": self.grid_position,
                "gridsize": self.grid_size,
                "laneid": self.lane_id(),
                "warpsize": np.int64(32),
                "shared": Namespace("cuda.shared", {"array": Allocator(self.allocate_shared)}),
                "local": Namespace("cuda.local", {"array": Allocator(self.allocate_local)}),
                "const": Namespace("cuda.const", {"array_like": Allocator(lambda site, x: x)}),
                "atomic": Namespace("cuda.atomic", atomics),
                "syncthreads": self.syncthreads,
                "syncthreads_count": self.syncthreads_vote(
                    "cuda.syncthreads_count()", lambda votes: votes.sum(0)
                ),
                "syncthreads_or": self.syncthreads_vote(
                    "cuda.syncthreads_or()", lambda votes: votes.any(0)
                ),
                "syncthreads_and": self.syncthreads_and,
                "syncwarp": self.syncwarp,
                "shfl_sync": self.shuffle(""),
                "shfl_up_sync": self.shuffle("up"),
                "shfl_down_sync": self.shuffle("down"),
                "shfl_xor_sync": self.shuffle("xor"),
                "any_sync": self.any_sync,
                "all_sync": self.all_sync,
                "eq_sync": self.eq_sync,
                "ballot_sync": self.ballot_sync,
                "match_any_sync": self.match_any_sync,
                "match_all_sync": self.match_all_sync,
                "activemask": self.activemask,
                "lanemask_lt": self.lanemask_lt,
                # Lockstep stores are seen by all threads at once: fences have nothing to do.
                "threadfence": lambda: None,
                "threadfence_block": lambda: None,
                "threadfence_system": lambda: None,
                "nanosleep": lambda ns: None,
                "popc": popc,
                "clz": clz,
                "ffs": ffs,
                "brev": brev,
                "cbrt": np.cbrt,
                "fma": fma,
                "selp": lambda c, a, b: np.where(c, a, b)[()],
            },
        )

    def builtin_names(self):
        """Return what `__builtins__` holds for a kernel: few functions, all exceptions."""
        refused = {
            name: Refused(f"{name}()")
            for name, value in vars(builtins).items()
            if callable(value) and not name.startswith("__")
        }
        exceptions = {
            name: value
            for name, value in vars(builtins).items()
            if isinstance(value, type) and issubclass(value, BaseException)
        }
        hint = "Loop over range(...) and index."
        return {
            **refused,
            **exceptions,
            **BUILTINS,
            "divmod": lambda x, y: (self.floordiv(x, y), self.mod(x, y)),
            "pow": self.power,
            "print": self.print,
            "range": Refused("range() other than as a for loop's range"),
            "enumerate": Refused("enumerate()", hint),
            "zip": Refused("zip()", hint),
            "sum": Refused("sum()", "Write the loop: it is what a thread does."),
        }

    def operations(self):
        """Return what the rewritten code calls, by its name there."""
        names = """alive allocate and_ and_values arithmetic assert_ atomic bind break_ choose
            continue_ else_ endif endif_after_exit floordiv if_ load loop_end member mod next_turn
            not_ or_ or_values power range_turns return_ shift_left shift_right store tuple_turns
            unpack while_begin while_test"""
        found = {PREFIX + name: getattr(self, name) for name in names.split()}
        return {**found, PREFIX + "slice": slice, PREFIX + "machine": self}

    def lockstep_function(self, function):
        """Return the rewritten function, bound to this launch's names, and its LockstepCode."""
        found = self.environments.get(function)
        if found is None:
            lockstep = transform(function.__code__, inspect.getsourcefile(function) or "")
            environment = {"__builtins__": self.builtins, **self.operations()}
            for name, value in lockstep.constants.items():
                # A variable that nobody has assigned yet is marked ("undefined", its name).
                environment[name] = Undefined(value[1]) if isinstance(value, tuple) else value
            closure = inspect.getclosurevars(function).nonlocals
            for name in lockstep.names:
                if name in closure:
                    environment[name] = self.resolve(name, closure[name])
                elif name in function.__globals__ and not name.startswith(PREFIX):
                    environment[name] = self.resolve(name, function.__globals__[name])
            runnable = types.FunctionType(lockstep.code, environment)
            found = self.environments[function] = runnable, lockstep
        return found

    def resolve(self, name, value):
        """Return what a Python object means inside a kernel."""
        if id(value) in self.by_identity:
            return self.by_identity[id(value)]
        if isinstance(value, types.ModuleType):
            return self.resolve_module(value)
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, tuple):
            return tuple(self.resolve(name, element) for element in value)
        scalar = as_lane(value)
        if scalar is not None:
            return scalar
        if isinstance(value, np.ndarray):
            return self.global_array(value, name)  # Numba freezes it into the kernel
        if isinstance(value, type):
            if issubclass(value, BaseException):
                return value
            if issubclass(value, np.generic):
                return Cast(value)
            return Refused(f"the class '{name}'")
        function = python_function(value)
        if function is not None:
            return self.device_function(function, value)
        if type(value).__module__.startswith("numba"):
            try:
                return Cast(value)
            except TypeError:
                return Refused(f"'{name}'")
        return self.resolve_callable(name, value)

    def resolve_module(self, module):
        name = module.__name__
        if name in self.modules:
            return self.modules[name]
        if name in ("numba.cuda.simulator", "numba.cuda.simulator_init") or module is cuda:
            return self.cuda
        if name.endswith("types") and name.startswith("numba"):
            return self.modules["numba"]
        return Refused(f"the module '{name}'")

    def resolve_callable(self, name, value):
        module = getattr(value, "__module__", None)
        own_name = getattr(value, "__name__", name)
        if module == "math" and own_name in MATH:
            return MATH[own_name]
        if isinstance(value, np.ufunc) and own_name in NUMPY_FUNCTIONS:
            return NUMPY_FUNCTIONS[own_name]
        if getattr(builtins, own_name, None) is value:
            return self.builtins.get(own_name)
        if inspect.isfunction(value):
            return Refused(
                f"calling the plain Python function '{name}'",
                "Decorate it with @cuda.jit(device=True).",
            )
        return Refused(f"'{name}', {type(value).__name__},")

    def device_function(self, function, original):
        """Return a callable that runs another kernel-language function for the active threads."""
        names = inspect.getfullargspec(function)
        defaults = dict(zip(reversed(names.args), reversed(names.defaults or ()), strict=False))

        def call(*arguments, **keywords):
            given = dict(zip(names.args, arguments, strict=False))
            surplus = len(arguments) > len(names.args) or set(keywords) & set(given)
            given.update(keywords)
            for name, value in defaults.items():
                given.setdefault(name, self.resolve(name, value))
            if surplus or set(given) != set(names.args):
                raise TypeError(
                    f"{function.__name__}({', '.join(names.args)}) is called with "
                    f"{len(arguments) + len(keywords)} arguments"
                )
            runnable, lockstep = self.lockstep_function(function)
            return self.call_function(runnable, lockstep, [given[n] for n in names.args])

        return call

    # ------------------------------------------------------------------ small intrinsics

    def allocate(self, allocator, site, *arguments, **keywords):
        if not isinstance(allocator, Allocator):
            return allocator(*arguments, **keywords)
        return allocator.allocate(site, *arguments, **keywords)

    def allocate_shared(self, site, shape, dtype, alignment=None):
        return self.shared_array(site, shape, numpy_dtype(dtype))

    def allocate_local(self, site, shape, dtype, alignment=None):
        return self.local_array(site, shape, numpy_dtype(dtype))

    def grid_position(self, ndim):
        position = tuple(
            getattr(self.block_idx, a) * getattr(self.block_dim, a) + getattr(self.thread_idx, a)
            for a in "xyz"[: int(ndim)]
        )
        return position[0] if ndim == 1 else position

    def grid_size(self, ndim):
        size = tuple(
            getattr(self.block_dim, a) * getattr(self.grid_dim, a) for a in "xyz"[: int(ndim)]
        )
        return size[0] if ndim == 1 else size

    def print(self, *values):
        """Print for each active thread, one line each."""
        active = self.active().T
        columns = [v if isinstance(v, str) else self.full(v).T[active] for v in values]
        for i in range(int(active.sum())):
            print(*(c if isinstance(c, str) else c[i] for c in columns))


def as_lane(value):
    """Return a scalar of Python or NumPy as a lane value, None for anything else."""
    if isinstance(value, (bool, np.bool_)):
        return typed(np.bool_(value))
    if isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise LaunchError(f"the integer {value} does not fit into 64 bits")
        return np.int64(value) if value < 2**63 else typed(np.uint64(value))
    if isinstance(value, float):
        return np.float64(value)
    if isinstance(value, np.generic) and value.dtype.kind in "iuf":
        return value if value.dtype.kind == "f" or value.dtype == INT64 else typed(value)
    return None


def python_function(kernel):
    """Return the Python function under @cuda.jit (real or simulated) or @njit, or None."""
    function = getattr(kernel, "py_func", None)
    if function is None and type(kernel).__name__ == "FakeCUDAKernel":
        function = kernel.fn
    return function if inspect.isfunction(function) else None


def unsigned(x):
    """Return integers as unsigned ones of the same width, and that width."""
    plain = np.asarray(x).view(np.ndarray)
    bits = plain.dtype.itemsize * 8
    return plain.astype(f"uint{bits}"), bits


def popc(x):
    count = np.bitwise_count(unsigned(x)[0])
    return typed(count.astype(np.asarray(x).dtype)[()])


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


def check_kernel(kernel):
    function = python_function(kernel)
    if function is None:
        if inspect.isfunction(kernel):
            return kernel  # a plain function, run as if it were decorated
        raise KernelError(
            f"expected a function decorated with @cuda.jit, got {type(kernel).__name__}"
        )
    return function
