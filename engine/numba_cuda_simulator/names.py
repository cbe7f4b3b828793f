"""The meaning of names inside a kernel.

A kernel's globals and closure are looked up at each launch and resolved by value, so that
`from numba import cuda`, `import numba.cuda as c` and `from numba.cuda import threadIdx` all
work, and a factory's constants are seen. Nothing of Numba's own implementation is called.
"""

import builtins
import difflib
import enum
import functools
import inspect
import sys
import types

import numpy as np
from numba import cuda

from .dtypes import typed
from .errors import FieldError, KernelError, LaunchError
from .host import DeviceArray, from_interface
from .intrinsics import (
    NUMPY,
    TYPES,
    VECTORS,
    Cast,
    EnumClass,
    Namespace,
    Refused,
    allocate,
    bit_count,
    builtin_names,
    cuda_namespace,
    operator_namespace,
)
from .lanes import Member, Undefined, like
from .mathematics import CMATH, MATH, NUMPY_FUNCTIONS
from .other_names import OF_MLIR, TRITON
from .records import Copies, kernel_frame, records_argument
from .reductions import FUNCTIONS
from .signatures import convert_call, converted, signatures_of
from .transform import PREFIX, refuse_shape

# The operations that rewritten code calls, `load` as `_simt_load`, by the part that has them.
OPERATIONS = {
    "lanes": """alive assign bind break_ continue_ else_ endif endif_after_exit if_ loop_end
        next_turn range_numbers range_turns read return_ while_begin while_test""",
    "operators": """and_ and_values arithmetic assert_ choose enum_value floordiv member mod not_
        or_ or_values power same shift_left shift_right""",
    "memory": """byte_strides fill load sequence sequence_turns store store_copy store_field unpack
        view""",
    "atomics": "atomic element_from",
}
OWNERS = {PREFIX + n: (part, n) for part, names in OPERATIONS.items() for n in names.split()}
COUNTED = "count count_call count_compare count_fma".split()  # in traced launches, of the meter

INTRINSICS = (
    """threadIdx blockIdx blockDim gridDim grid gridsize laneid warpsize shared local const
    atomic syncthreads syncthreads_count syncthreads_or syncthreads_and syncwarp shfl_sync
    shfl_up_sync shfl_down_sync shfl_xor_sync any_sync all_sync eq_sync ballot_sync match_any_sync
    match_all_sync activemask lanemask_lt threadfence threadfence_block threadfence_system
    nanosleep popc clz ffs brev cbrt fma selp fp16 libdevice ldca ldcg ldcs ldlu ldcv stcg stcs
    stwb stwt shared_array local_array vector""".split()
    + list(VECTORS)
)


class Placeholder:
    """What numba.cuda lacks under the simulator; only its identity matters."""


PLACEHOLDERS = {name: Placeholder() for name in INTRINSICS}
# The modules that are `cuda` in some dialect: Numba's and numba-cuda's, its simulator,
# numba-cuda-mlir's, and the engine's own.
MLIR = "numba_cuda_mlir.cuda"
DIALECTS = """numba.cuda numba.cuda.simulator numba.cuda.simulator_init numba_cuda_mlir.cuda
    numba_cuda_mlir.numba_cuda numba_cuda_simulator.cuda""".split()


def name_of(value):
    """Return the name of an intrinsic, as `from numba.cuda import grid` gives it, or None.

    It is Numba's own object, another dialect's, or a placeholder: recognised by identity.
    """
    return intrinsics_by_identity(MLIR in sys.modules).get(id(value))


@functools.cache
def intrinsics_by_identity(with_mlir):
    modules = [cuda, *((sys.modules[MLIR],) if with_mlir else ())]
    found = {id(x): name for name, x in PLACEHOLDERS.items()}
    for name in INTRINSICS:
        for x in (getattr(module, name, None) for module in modules):
            if x is not None and not isinstance(x, (int, str)):
                found[id(x)] = name
    return found


class ForeignModule:
    """Any other module: what its attributes mean is found when a kernel uses them."""

    def __init__(self, names, module):
        self._names, self._module = names, module

    def __getattr__(self, attribute):
        module = self._module
        if not hasattr(module, attribute):
            near = difflib.get_close_matches(attribute, dir(module), 1)
            raise FieldError(
                f"the module '{module.__name__}' has no attribute '{attribute}'",
                hint=f"Did you mean {near[0]}?" if near else None,
            )
        name = f"{module.__name__}.{attribute}"
        value = self._names.resolve(name, getattr(module, attribute))
        self.__dict__[attribute] = value
        return value


class Names:
    """The meaning of the global names in a launch's kernel and device functions.

    Parameters
    ----------
    machine : Machine
        Whose parts the rewritten code calls.
    rewrite : callable
        Takes a code object; returns its `LockstepCode`.
    """

    def __init__(self, machine, rewrite):
        self.machine, self.rewrite = machine, rewrite
        self.lanes, self.memory = machine.lanes, machine.memory
        self.environments = {}  # function -> its lockstep form, bound to this launch
        self.cuda = cuda_namespace(machine.lanes, machine.memory, machine.warps)
        numba = {**TYPES, "types": Namespace("numba.types", TYPES), "cuda": self.cuda}
        self.modules = {
            "cmath": Namespace("cmath", CMATH), "math": Namespace("math", MATH), "numpy": NUMPY,
            "numba": Namespace("numba", numba), "numba.cuda": self.cuda,
            "numba.cuda.cg": self.cuda.cg,
        }  # fmt: skip
        self.builtins = builtin_names(machine.operators)
        self.operations = {PREFIX + f.__name__: f for f in (slice, allocate, bit_count)}
        self.operations |= {PREFIX + "machine": machine, PREFIX + "lanes": machine.lanes}

    def add_operations(self, part, names):
        """Let the rewritten code call methods of a part."""
        self.operations |= {PREFIX + name: getattr(part, name) for name in names}

    @functools.cached_property
    def operator_module(self):
        return operator_namespace(self.machine.operators, self.memory)

    def lockstep_function(self, function):
        """Return the rewritten function, bound to this launch's names, and its LockstepCode."""
        found = self.environments.get(function)
        if found is None:
            code = function.__code__
            lockstep = self.rewrite(code)
            environment = {"__builtins__": self.builtins, **self.operations}
            for name in OWNERS.keys() & lockstep.names:
                part, operation = OWNERS[name]
                environment[name] = getattr(getattr(self.machine, part), operation)
            for name, value in lockstep.constants.items():
                # A variable that nobody has assigned yet is marked ("undefined", its name).
                environment[name] = Undefined(value[1]) if isinstance(value, tuple) else value
            closure = closure_of(function)
            for name in lockstep.names:
                if name.startswith(PREFIX + "\n"):
                    environment[name] = self.compile_time(name, function)
                elif name in closure:
                    environment[name] = self.resolve(name, closure[name])
                elif name in function.__globals__ and not name.startswith(PREFIX):
                    environment[name] = self.resolve(name, function.__globals__[name])
            for name in lockstep.shapes.keys() - set(lockstep.parameters):
                value, (site, kind, _) = value_outside(function, name, 0), lockstep.shapes[name]
                sizes = value if type(value) is tuple else (value,)
                if any(type(n) is not int for n in sizes):
                    refuse_shape(site, kind, f"'{name}' is {type(value).__name__}, not int")
            runnable = types.FunctionType(lockstep.code, environment)
            found = self.environments[function] = runnable, lockstep
        return found

    def compile_time(self, name, function):
        """Return the value of consteval(...): Python that numba-cuda-mlir runs when it compiles."""
        _, result, text = name.split("\n", 2)
        if (options := "current_target_options") in text:
            Refused(f"{options}()", OF_MLIR[options])()
        world = {**function.__globals__, **closure_of(function)}
        exec(text, world)
        value = world[result]
        if not isinstance(value, (str, np.ndarray)) and hasattr(value, "__iter__"):
            value = tuple(value)
        return self.resolve(f"consteval of {text}", value)

    def device_functions(self, function):
        """Return the device functions that a function names, by itself or in a module."""
        code, closure = function.__code__, closure_of(function)
        values = [closure.get(n, function.__globals__.get(n)) for n in code.co_names]
        values += [closure[n] for n in code.co_freevars if n in closure]
        modules = [m for m in values if isinstance(m, types.ModuleType) and m is not cuda]
        values += [getattr(m, n, None) for m in modules for n in code.co_names]
        return [f for f in map(python_function, values) if f is not None]

    def resolve(self, name, value):
        """Return what a Python object means inside a kernel."""
        own = name_of(value)
        if own is not None:
            return getattr(self.cuda, own)
        if isinstance(value, types.ModuleType):
            return self.resolve_module(value)
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, tuple):
            return like(value, [self.resolve(name, element) for element in value])
        if isinstance(value, enum.Enum):
            return member(value)
        scalar = as_lane(value)
        if scalar is not None:
            return scalar
        if isinstance(value, np.ndarray) and value.dtype.names:
            return records_argument(self.memory, Copies(), name, value)
        if isinstance(value, np.ndarray):
            return self.memory.global_array(value, name)  # Numba freezes it into the kernel
        if isinstance(value, DeviceArray):
            array = self.memory.global_array(value._simt_host, name)
            array.captured = True
            return array
        if isinstance(value, np.dtype):
            return Cast(value)
        if isinstance(value, type):
            if issubclass(value, BaseException):
                return value
            if issubclass(value, np.generic):
                return Cast(value)
            if issubclass(value, tuple) and hasattr(value, "_fields"):
                return value  # called, it makes a named tuple
            if issubclass(value, enum.Enum):
                members = {n: member(m) for n, m in value.__members__.items()}
                return EnumClass(value.__name__, members)
            return Refused(f"the class '{name}'")
        dialect, _, part = (getattr(value, "__module__", None) or "").rpartition(".")
        if "cuda" in dialect and part in ("libdevice", "shared", "local", "const"):
            return getattr(getattr(self.cuda, part), value.__name__)  # imported one by one
        if "numba_cuda_mlir" in f"{dialect} {type(value).__module__}":
            known = {part, getattr(value, "__name__", ""), type(value).__name__} & set(OF_MLIR)
            if known:
                return Refused(f"'{name}'", OF_MLIR[known.pop()])
        if dialect.startswith("numba_cuda_mlir") and part in ("experimental", "vector"):
            owner = self.cuda.vector if part == "vector" else self.cuda
            return getattr(owner, value.__name__)
        # An instruction that somebody has added to Numba may say what it does.
        value = getattr(value, "on_the_engine", value)
        function = python_function(value)
        if function is not None:
            return self.device_function(function, value)
        if dialect.startswith("numba") and getattr(value, "__name__", "") == "literal_unroll":
            return itself
        shown = from_interface(value)
        if shown is not None:  # a device array in another library's clothes
            return self.resolve(name, DeviceArray(shown))
        if type(value).__module__.startswith("numba"):
            try:
                return Cast(value)
            except TypeError:
                hint = "It is C++ or PTX, which a GPU runs. Write it in Python."
                foreign = type(value).__name__ == "ExternFunction"
                return Refused(f"'{name}'", hint if foreign else None)
        return self.resolve_callable(name, value)

    def resolve_module(self, module):
        name = module.__name__
        if name == "operator":
            return self.operator_module
        if name in self.modules:
            return self.modules[name]
        if name in DIALECTS or module is cuda:
            return self.cuda
        if name.startswith("numba"):
            last = name.rpartition(".")[2]
            if last == "types":
                return ForeignModule(self, module)
            if name == "numba_cuda_mlir":
                return self.modules["numba"]
            if last in OF_MLIR:
                return Refused(f"the module '{name}'", OF_MLIR[last])
            if last == "experimental":
                return self.cuda
            parts = "vector", "shared", "local", "const", "libdevice", "fp16", "cg"
            if last in parts and "cuda" in name:
                return getattr(self.cuda, last)
        if name.startswith("triton"):
            return Refused(f"the module '{name}'", TRITON)
        return ForeignModule(self, module)

    def resolve_callable(self, name, value):
        module = getattr(value, "__module__", None)
        own_name = getattr(value, "__name__", name)
        if module == "math" and own_name in MATH:
            return MATH[own_name]
        if module == "_operator" and own_name in vars(self.operator_module):
            return getattr(self.operator_module, own_name)
        if module == "cmath" and own_name in CMATH:
            return CMATH[own_name]
        known = {**NUMPY_FUNCTIONS, **FUNCTIONS}
        if own_name in known and getattr(np, own_name, None) is value:
            return known[own_name]
        if getattr(builtins, own_name, None) is value:
            return self.builtins.get(own_name)
        if inspect.isfunction(value) and (module or "").startswith("numba_cuda_mlir"):
            return self.device_function(value, value)  # its random numbers, for one
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
        signatures = signatures_of(original)

        def call(*arguments, **keywords):
            given = dict(zip(names.args, arguments, strict=False))
            others = arguments[len(names.args) :]
            surplus = (others and not names.varargs) or set(keywords) & set(given)
            given.update(keywords)
            for name, value in defaults.items():
                given.setdefault(name, self.resolve(name, value))
            if surplus or set(given) != set(names.args):
                count = len(arguments) + len(keywords)
                raise KernelError(
                    f"{function.__name__}({', '.join(names.args)}) is called with {count} "
                    f"argument{'s' * (count != 1)}"
                )
            runnable, lockstep = self.lockstep_function(function)
            if lockstep.shapes:
                self.check_shapes(lockstep, names.args)
            values, result = [given[n] for n in names.args], None
            values += [others] * bool(names.varargs)
            if signatures:
                values, result = convert_call(signatures, function.__name__, names.args, values)
            value = self.lanes.call_function(runnable, lockstep, values)
            return value if result is None else converted(result, value)

        return call

    def check_shapes(self, lockstep, parameters):
        """Refuse a shape that depends, by the call of a device function, on a kernel's argument.

        Numba compiles such a function where it is called with literals or global constants.
        """
        if len(self.lanes.frames) > 1:
            return  # called by a device function, which may have been given a literal
        kernel = self.lanes.frames[0].code
        call = kernel.calls.get(self.position_of_call(), {})
        for parameter in lockstep.shapes.keys() & set(parameters):
            names = call.get(parameter, call.get(parameters.index(parameter), set()))
            for origin in sorted(names & set(kernel.parameters)):
                site, kind, _ = lockstep.shapes[parameter]
                refuse_shape(site, kind, f"'{origin}' is an argument of the kernel")

    def position_of_call(self):
        """Return where the call stands that the kernel is making."""
        frame = kernel_frame()
        return list(frame.f_code.co_positions())[frame.f_lasti // 2]


def itself(values):
    """literal_unroll(values): loops over a tuple are unrolled anyway."""
    return values


def as_lane(value):
    """Return a scalar of Python or NumPy as a lane value, None for anything else."""
    if isinstance(value, (bool, np.bool_)):
        return typed(np.bool_(value))
    if isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise LaunchError(f"the integer {value} does not fit into 64 bits")
        return np.int64(value) if value < 2**63 else typed(np.uint64(value))
    if isinstance(value, np.generic):
        return typed(value) if value.dtype.kind in "iufc" else None
    if isinstance(value, (float, complex)):
        return np.result_type(value).type(value)
    return None


def member(value):
    """Return a member of an Enum as a kernel sees it; one of an IntEnum is an integer."""
    if isinstance(value, int):
        return as_lane(value.value)
    members = list(type(value))
    return Member(type(value), np.int64(members.index(value)), [plain(m.value) for m in members])


def plain(value):
    """Return a number, or a tuple of such, as lane values; anything else as it is."""
    if isinstance(value, tuple):
        return like(value, list(map(plain, value)))
    lane = as_lane(value)
    return value if lane is None else lane


def closure_of(function):
    """Return the variables of outer functions that a function reads, by name."""
    cells = function.__closure__ or ()
    names = function.__code__.co_freevars
    return {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)}


def value_outside(function, name, default):
    """Return the object for which a name stands that the function does not assign."""
    for known in closure_of(function), function.__globals__, vars(builtins):
        if name in known:
            return known[name]
    return default


def python_function(kernel):
    """Return the Python function under @cuda.jit (real or simulated) or @njit, or None."""
    function = getattr(kernel, "py_func", None)
    if function is None and type(kernel).__name__ == "FakeCUDAKernel":
        function = kernel.fn
    return function if inspect.isfunction(function) else None


def check_kernel(kernel):
    function = python_function(kernel)
    if function is None:
        if inspect.isfunction(kernel):
            return kernel  # a plain function, run as if it were decorated
        raise KernelError(
            f"expected a function decorated with @cuda.jit, got {type(kernel).__name__}"
        )
    if getattr(kernel, "targetoptions", {}).get("device"):
        raise LaunchError(
            f"'{function.__name__}' is a device function: kernels call it, nobody launches it",
            hint="Leave out device=True, or launch a kernel that calls it.",
        )
    return function
