"""The second gear: a kernel that runs long is compiled, by Numba, for the CPU.

`split` writes the kernel anew as loops over blocks and threads, `watched` has its loads and stores
checked, `native` computes as the engine does. What comes out is right only if nothing was flagged:
a race, a stray index, a division by zero, a barrier that some threads miss. Then the arguments are
put back to what they were, and the engine runs the launch and says what is wrong.
"""

import functools
import gc
import threading
import time

import numpy as np
from numba import config, njit, typeof, types
from numba.core import compiler, ir, typed_passes
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import AnalysisPass, register_pass
from numba.core.errors import NumbaError

from . import machine_code
from .arrays import GlobalArray
from .devices import STATIC_SHARED_BYTES
from .emit import OPTIONS, Untranslatable
from .native import LOOP, dtype_of, numba_type
from .split import Kernel
from .watched import new_shadow

LARGEST = 1 << 27  # elements of an array that is watched; its shadow has 16 or 24 bytes for each
POLL = 0.05  # seconds between two looks at a running launch
GAVE_UP = 2  # in flags[0]: the host wants the launch to end
# Of the C library, that LLVM calls by itself. Another function would have to be looked up.
KNOWN = {"llvm", "memset", "memcpy", "memmove", "fma", "fmaf"}


class Found(Exception):
    """Ends Numba's work where it knows the types."""


@register_pass(mutates_CFG=False, analysis_only=True)
class EndHere(AnalysisPass):
    _name = "second_gear_end_here"

    def __init__(self):
        super().__init__()

    def run_pass(self, state):
        found = Found()
        found.types, found.blocks = state.typemap, state.func_ir.blocks
        raise found


class OnlyTypes(compiler.CompilerBase):
    """Numba's compiler, up to the types of variables."""

    def define_pipelines(self):
        manager = compiler.DefaultPassBuilder.define_untyped_pipeline(self.state)
        manager.add_pass(typed_passes.NopythonTypeInference, "types")
        manager.add_pass(EndHere, "end")
        manager.finalize()
        return [manager]


def types_of_variables(function, arguments):
    """Return the types of a function's variables, a name for each assignment, and its code."""
    try:
        njit(pipeline_class=OnlyTypes, **OPTIONS)(function).compile(arguments)
    except Found as found:
        return found.types, found.blocks


def check_types(typemap, blocks, harmless):
    """Refuse variables that Numba gives one type where the engine has two.

    harmless : tells whether the conversion changes no result.
    """
    for block in blocks.values():
        for s in block.find_insts(ir.Assign):
            value, sources = s.value, []
            if isinstance(value, ir.Var):
                sources = [value]
            elif isinstance(value, ir.Expr) and value.op == "phi":
                sources = [v for v in value.incoming_values if v is not ir.UNDEFINED]
            elif isinstance(value, ir.Expr) and value.op == "cast":
                sources = [value.value]
            to = typemap.get(s.target.name)
            for old in (typemap.get(source.name) for source in sources):
                if None not in (old, to) and not harmless(unliteral(old), unliteral(to)):
                    raise Untranslatable(f"{s.target.name} is {old} and {to}")


def unliteral(type_):
    if isinstance(type_, types.BaseTuple) and not isinstance(type_, types.BaseNamedTuple):
        return types.BaseTuple.from_types(tuple(map(types.unliteral, type_)))
    return types.unliteral(type_)


def keeps_results(old, new):
    """Tell whether a variable of one type may be kept as another."""
    if old == new or isinstance(old, types.Omitted):
        return True
    if not (isinstance(old, types.Integer) and old.signed):
        return not isinstance(old, (types.Number, types.Boolean))
    return new in (types.int64, types.float64) or old == new


def one_dtype(typemap, name):
    """Return the type of a variable that must be the same wherever it is assigned."""
    found = {unliteral(t) for n, t in typemap.items() if n.partition(".")[0] == name}
    if len(found) > 1 and all(isinstance(t, types.Integer) and t.signed for t in found):
        found = {types.int64}
    if len(found) != 1:
        raise Untranslatable(f"{name} is of several types")
    return dtype_of(found.pop())


class Compiled:
    """A kernel for one set of argument types, and its machine code once there is some.

    Parameters
    ----------
    function : Python function
    stored : list of str
        Parameters whose elements it may store to.
    values : list
        The arguments, arrays as NumPy has them.
    """

    def __init__(self, function, stored, names, values):
        given = zip(names, values, strict=True)
        self.arrays = {name: v.ndim for name, v in given if isinstance(v, np.ndarray)}
        self.kernel = kernel = Kernel(function, stored, self.arrays)
        bytes_ = sum(a.bytes for a in kernel.arrays.values() if a.kind == "shared")
        if bytes_ > STATIC_SHARED_BYTES:
            raise Untranslatable("too much shared memory")
        self.python = kernel.build(self.arrays)
        self.types = tuple(map(typeof, self.arguments((1, 1, 1), (1, 1, 1), values, {})))
        meaning = kernel.program.meaning, self.types, OPTIONS
        self.key = f"{function.__name__}-{machine_code.digest(*meaning)}"
        self.code = machine_code.load(self.key)

    def compile(self):
        """Compile the kernel unless it is; tell whether it can be."""
        if self.code is None:
            collects = gc.isenabled()
            gc.disable()  # a sixth of the time: Numba makes a million objects, and keeps most
            try:
                self.code = self.machine_code()
            except (Untranslatable, NumbaError):
                self.code = machine_code.MachineCode("", {}, [], b"")
            finally:
                if collects:
                    gc.enable()
            machine_code.save(self.key, self.code)
        return bool(self.code.entry)

    @functools.cached_property
    def function(self):
        return machine_code.Loaded(self.code)

    def machine_code(self):
        kernel, dtypes = self.kernel, {}
        if kernel.spilled:
            python = kernel.build_for_types(self.arrays)
            typemap, blocks = types_of_variables(python, self.types)
            check_types(typemap, blocks, keeps_results)
            dtypes = {name: one_dtype(typemap, name) for name in kernel.spilled}
        spilled = [types.Array(numba_type(dtypes[n]), 1, "C") for n in kernel.spilled]
        arguments = (*self.types[: len(self.types) - len(spilled)], *spilled)
        compiled = njit(**OPTIONS)(self.python)
        with global_compiler_lock:
            level, config.OPT = config.OPT, 1  # no slower code than with 3, and sooner
            try:
                compiled.compile(arguments)
            finally:
                config.OPT = level
        for function in (compiled, *kernel.program.device_functions()):
            for result in function.overloads.values():
                notes = result.type_annotation
                check_types(notes.typemap, notes.blocks, keeps_results)
        (result,) = compiled.overloads.values()
        library = result.library
        module = library._final_module
        outside = {f.name for f in module.functions if f.is_declaration}
        if not {name.partition(".")[0] for name in outside} <= KNOWN:
            raise Untranslatable(f"calls of {outside}")
        loops = [g.name for g in module.global_variables if g.name.startswith(LOOP)]
        names = {name: str(dtype) for name, dtype in dtypes.items()}
        entry = result.fndesc.llvm_func_name
        return machine_code.MachineCode(entry, names, loops, library._get_compiled_object())

    def is_current(self):
        """Tell whether global constants are what they were when the kernel was compiled."""
        return self.kernel.program.is_current()

    def arguments(self, grid, block, values, dtypes):
        """Return what the compiled function takes."""
        kernel, threads = self.kernel, int(np.prod(block))
        self.flags, self.progress = np.zeros(1, np.int64), np.zeros(1, np.int64)
        number = np.arange(threads)
        bx, by, _ = block
        result = [*block, *grid, threads, number % bx, number // bx % by, number // (bx * by)]
        result += [np.ones(threads, np.bool_), self.flags.ctypes.data, self.progress]
        given = dict(zip(kernel.parameters, values, strict=True))
        result += values
        atomics = kernel.program.atomics
        result += [new_shadow(given[n].size, atomics, False) for n in kernel.stored_parameters]
        local, rows = kernel.arrays.values(), threads if len(kernel.regions) > 1 else 1
        result += [new_shadow(a.size, atomics, True) for a in local if a.kind == "shared"]
        for a in local:
            shape = a.shape if a.kind == "shared" else (rows, *a.shape)
            result.append(np.zeros(shape, a.dtype))
        return result + [np.zeros(threads, dtypes.get(n, np.int64)) for n in kernel.spilled]

    def run(self, grid, block, values, watch=lambda share, seconds: None):
        """Run a launch; tell whether it is done, with nothing flagged.

        watch : called now and then with the share that is done and the processor's time; an
            exception that it raises ends the launch.
        """
        try:
            values = plain_values(values)
            check_arrays(self.kernel.parameters, values, self.kernel.stored_parameters)
        except Untranslatable:
            return False
        arguments, function = self.arguments(grid, block, values, self.code.dtypes), self.function
        flags, progress, failed = self.flags, self.progress, []
        # After a Ctrl-C in Thread.join, Python before 3.13 may take a running thread for ended.
        ended = threading.Event()

        def work():
            try:
                failed.append(function(arguments))
            finally:
                ended.set()

        start = time.process_time()
        threading.Thread(target=work, daemon=True).start()
        try:
            while not ended.wait(POLL):
                watch(progress[0] / np.prod(grid), time.process_time() - start)
        finally:
            if not ended.is_set():
                flags[0] = GAVE_UP
                ended.wait()
        return failed == [False] and flags[0] == 0


def plain_values(values):
    """Return a launch's lane values as Numba takes them."""
    result = []
    for value in values:
        if isinstance(value, GlobalArray):
            array = value.array.view(np.ndarray)
            result.append(array if array.dtype == value.dtype else array.view(value.dtype))
        elif isinstance(value, np.ndarray) and value.size == 1:
            result.append(value.view(np.ndarray).reshape(-1)[0])
        elif isinstance(value, np.generic):
            result.append(value)
        else:
            raise Untranslatable(f"an argument of type {type(value).__name__}")
    return result


def check_arrays(names, values, stored):
    """Refuse arrays that share memory, or whose elements do, where something is stored."""
    arrays = {n: v for n, v in zip(names, values, strict=True) if isinstance(v, np.ndarray)}
    if any(not a.size or a.ndim == 0 for a in arrays.values()):
        raise Untranslatable("an array without elements or axes")
    for name in stored:
        array = arrays[name]
        if not array.flags.writeable or array.size > LARGEST:
            raise Untranslatable("an array that is read-only, or too large")
        order = sorted(zip(map(abs, array.strides), array.shape, strict=True))
        extent = array.itemsize
        for stride, length in order:
            if length > 1 and stride < extent:
                raise Untranslatable("an array whose elements share memory")
            extent = max(extent, stride * length)
        for other, there in arrays.items():
            if other != name and np.may_share_memory(array, there):
                raise Untranslatable("arrays that share memory")


def stored_parameters(lockstep, values):
    """Return the parameters whose elements the kernel may store to."""
    pairs = zip(lockstep.parameters, values, strict=True)
    return [n for n, v in pairs if isinstance(v, np.ndarray) and lockstep.may_store(n, v.ndim)]


def rewritten(function, lockstep, values):
    """Return a kernel's `Compiled`; None if the engine must run it."""
    try:
        values = plain_values(values)
        stored = stored_parameters(lockstep, values)
        check_arrays(lockstep.parameters, values, stored)
        return Compiled(function, stored, lockstep.parameters, values)
    except Untranslatable:
        return None
