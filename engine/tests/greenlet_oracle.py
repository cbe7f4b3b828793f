"""An oracle for the CPU engine: one greenlet per CUDA thread.

Each thread runs the kernel's own bytecode, alone, until it meets a barrier; nothing is rewritten
and nothing is vectorised, so nothing is shared with the engine. Numba's typing is imitated
where the two would differ: literals, scalars and loop counters are int64 and float64 (a Python
float would be "weak" and leave float32 alone), and integers widen to 64 bits when loaded.
"""

import builtins
import contextvars
import dis
import functools
import inspect
import itertools
import math
import sys
import types
from types import SimpleNamespace

import numpy as np
from greenlet import getcurrent, greenlet
from numba.types import float16

FULL_MASK = 0xFFFFFFFF


class Deadlock(Exception):
    """Some threads wait at a barrier that the others never reach."""


def launch(kernel, grid, block, *args, shared_bytes=0, order=None, observer=None):
    """Run `kernel` thread by thread; arrays in `args` are changed in place.

    Parameters
    ----------
    order : callable, default=None
        Takes the list of runnable threads and returns it in the order they shall run in.
        A kernel without races gives the same answer for every order.
    observer : object, default=None
        Its `access(thread, memory, op, address, value, site)` hears every array access: op is
        "load", "store" or "atomic", site (line, end line, column, end column). Its
        `barrier(threads, scope)` hears which threads pass a barrier of a "block" or "warp".
    """
    machine = _Machine(_three(grid), _three(block), shared_bytes, order, observer)
    names = inspect.signature(_python_function(kernel)).parameters
    args = [machine.argument(name, value) for name, value in zip(names, args, strict=True)]
    function = machine.function(kernel)
    with np.errstate(all="ignore"):
        for block in machine.places(machine.grid):
            machine.run_block(function, args, block)


class _Machine:
    """One grid: what `cuda`, `math` and the builtins mean to the thread that is running."""

    def __init__(self, grid, block, shared_bytes, order, observer):
        self.grid, self.block, self.shared_bytes = grid, block, shared_bytes
        self.order, self.observer = order or (lambda threads: threads), observer
        self.functions = {}
        self.cuda = _CudaModule(self)

    @staticmethod
    def places(extent):
        """Every index of a grid or block, x fastest."""
        axes = (range(n) for n in reversed(extent))
        return [(x, y, z) for z, y, x in itertools.product(*axes)]

    def run_block(self, function, args, block):
        self.main, self.shared = getcurrent(), {}
        alive = [_Thread(block, *place) for place in enumerate(self.places(self.block))]
        ready = alive
        for thread in alive:
            thread.greenlet = greenlet(function)
            thread.greenlet.gr_context = contextvars.copy_context()  # carries np.errstate
        start = args
        while alive:
            for thread in self.order(ready):
                self.current = thread
                thread.greenlet.switch(*start)
            start = ()
            alive = [t for t in alive if not t.greenlet.dead]
            ready = self.released(alive)
            if alive and not ready:
                first = alive[0]
                raise Deadlock(f"block {first.block}: {first.waits_for}, thread {first.rank}")

    def released(self, alive):
        """Threads whose barrier is complete; each finds in `heard` what the others said there."""
        ready = set()
        for scope, members in self.groups(alive):
            waiting = [t for t in members if t.waits_for and t.waits_for[0] == scope]
            for mask in {t.waits_for[1] for t in waiting}:
                group = [t for t in members if mask >> t.lane & 1 or scope != "warp"]
                if all(t in waiting and t.waits_for[1] == mask for t in group):
                    heard = {t.rank: t.says for t in group}
                    if self.observer and waiting[0].waits_for[2]:
                        self.observer.barrier(group, scope)
                    for thread in group:
                        thread.heard, thread.waits_for = heard, None
                    ready.update(group)
        return [t for t in alive if t in ready]

    @staticmethod
    def groups(alive):
        """The threads that a barrier may concern: those of the block and of each warp."""
        yield "block", alive
        for _, warp in itertools.groupby(alive, key=lambda t: t.rank // 32):
            yield "warp", list(warp)

    def meet(self, scope, says=None, mask=FULL_MASK, orders_memory=True):
        """Wait for the others of the warp or block; returns {thread rank: what it said}."""
        thread = self.current
        thread.says, thread.waits_for = says, (scope, int(mask), orders_memory)
        self.main.switch()
        return thread.heard

    def argument(self, name, value):
        if not isinstance(value, np.ndarray):
            return typed(value)
        owner = value
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        return Memory(self, value, name, "global", value.ctypes.data - owner.ctypes.data)

    def function(self, kernel):
        """The kernel's bytecode with typed literals, globals and closure."""
        source = _python_function(kernel)
        if source not in self.functions:
            code = _without_small_ints(source.__code__)
            code = code.replace(co_consts=tuple(typed(c) for c in code.co_consts))
            world = {**vars(builtins), **_BUILTINS, "range": self.range}
            world |= {name: self.name(value) for name, value in source.__globals__.items()}
            cells = [types.CellType(self.name(c.cell_contents)) for c in source.__closure__ or ()]
            self.functions[source] = types.FunctionType(
                code, world, argdefs=typed(source.__defaults__), closure=tuple(cells)
            )
        return self.functions[source]

    def name(self, value):
        if isinstance(value, types.ModuleType):
            modules = {"math": _MATH, "numpy": _NUMPY, "numba.cuda": self.cuda}
            return modules.get(value.__name__, value)
        if isinstance(value, np.ndarray):
            return Memory(self, value, "", "const")
        if hasattr(value, "cast_python_value") or isinstance(value, type(float16)):
            return _Cast(value.name)
        if _python_function(value):
            return lambda *args: self.function(value)(*args)
        return typed(value)

    def range(self, *bounds):
        """range() with int64 counters that notes which iteration the thread is in."""
        loops = self.current.loops
        depth = len(loops)
        try:
            for iteration, counter in enumerate(range(*bounds)):
                loops[depth:] = [iteration]
                yield np.int64(counter)
        finally:  # after a break, too
            del loops[depth:]


def _without_small_ints(code):
    """The code, with each integer that an instruction of Python 3.14 holds among the constants."""
    words, consts = bytearray(code.co_code), list(code.co_consts)
    for step in dis.get_instructions(code):
        if step.opname == "LOAD_SMALL_INT":
            words[step.offset : step.offset + 2] = dis.opmap["LOAD_CONST"], len(consts)
            consts.append(step.arg)
    return code.replace(co_code=bytes(words), co_consts=tuple(consts))


class _Thread:
    def __init__(self, block, rank, index):
        self.block, self.rank, self.lane, self.index = block, rank, rank % 32, _dim3(index)
        self.waits_for, self.loops = None, []


class Memory:
    """An array as a thread sees it: typed, bounds-checked, and observed unless it is local."""

    def __init__(self, machine, array, name, kind, address=0):
        self.machine, self.array, self.name, self.kind = machine, array, name, kind
        self.address = address  # of element 0, in bytes from where its allocation begins
        self.shape = typed(array.shape)
        self.size, self.ndim, self.dtype = np.int64(array.size), array.ndim, array.dtype

    def locate(self, index):
        index = index if isinstance(index, tuple) else (index,)
        if any(isinstance(i, slice) or i is ... for i in index):
            part = self.array[index]
            return index, self.address + (part.ctypes.data - self.array.ctypes.data)
        for axis, (i, n) in enumerate(zip(index, self.array.shape, strict=False)):
            if not 0 <= i < n:
                raise IndexError(f"{self.name}: {i} is outside axis {axis} of size {n}")
        strides = zip(index, self.array.strides, strict=False)
        return index, self.address + sum(int(i) * stride for i, stride in strides)

    def tell(self, op, address, value):
        if self.machine.observer and self.kind != "local":
            frame = sys._getframe(2)
            while frame.f_code.co_filename == __file__:
                frame = frame.f_back
            thread, site = self.machine.current, _positions(frame.f_code)[frame.f_lasti // 2]
            self.machine.observer.access(thread, self, op, address, value, site)

    def __getattr__(self, field):
        if field not in (self.dtype.names or ()):
            raise AttributeError(field)
        return self[field]

    T = property(lambda self: self.of(self.array.T, self.address))

    def of(self, part, address, name=""):
        return Memory(self.machine, part, self.name + name, self.kind, address)

    def __getitem__(self, index):
        if isinstance(index, str):
            part = self.array[index]
            return self.of(part, self.address + self.dtype.fields[index][1], f".{index}")
        index, address = self.locate(index)
        if isinstance(self.array[index], np.ndarray):
            return self.of(self.array[index], address)
        if self.dtype.names:
            return _Record(self, index)
        value = self.array[index]
        self.tell("load", address, value)
        return widened(value)

    def __setitem__(self, index, value):
        index, address = self.locate(index)
        if isinstance(value, _Record):
            for field in self.dtype.names:
                self[field][index] = value[field]
            return
        part = self.array[index]
        if isinstance(part, np.ndarray):
            for element in np.ndindex(part.shape):
                each = value[element] if isinstance(value, Memory) else value
                self.of(part, address)[element] = each
            return
        self.array[index] = np.asarray(value).astype(self.dtype)
        self.tell("store", address, self.array[index])

    def atomic(self, index, update):
        """Replace an element by update(element); returns the old one."""
        index, address = self.locate(index)
        old = self.array[index]
        self.array[index] = np.asarray(update(widened(old))).astype(self.dtype)
        self.tell("atomic", address, self.array[index])
        return widened(old)


class _Record:
    """One record of an array: its fields are loads and stores of the array's."""

    def __init__(self, memory, index):
        self.__dict__.update(_memory=memory, _index=index)

    def __getitem__(self, field):
        return self._memory[field][self._index]

    def __setitem__(self, field, value):
        self._memory[field][self._index] = value

    __getattr__, __setattr__ = __getitem__, __setitem__


class _CudaModule:
    """The part of numba.cuda that kernels use."""

    warpsize = np.int64(32)

    def __init__(self, machine):
        m = self.machine = machine
        self.blockDim, self.gridDim = _dim3(m.block), _dim3(m.grid)
        self.shared = SimpleNamespace(array=self.shared_array)
        self.local = SimpleNamespace(array=self.local_array)
        self.atomic = SimpleNamespace(
            add=lambda a, i, v: a.atomic(i, lambda old: old + v),
            sub=lambda a, i, v: a.atomic(i, lambda old: old - v),
            max=lambda a, i, v: a.atomic(i, lambda old: _maximum(old, v)),
            min=lambda a, i, v: a.atomic(i, lambda old: _minimum(old, v)),
            and_=lambda a, i, v: a.atomic(i, lambda old: old & v),
            or_=lambda a, i, v: a.atomic(i, lambda old: old | v),
            xor=lambda a, i, v: a.atomic(i, lambda old: old ^ v),
            exch=lambda a, i, v: a.atomic(i, lambda old: v),
            inc=lambda a, i, v: a.atomic(i, lambda old: 0 if old >= v else old + 1),
            dec=lambda a, i, v: a.atomic(i, lambda old: v if old == 0 or old > v else old - 1),
            cas=lambda a, i, if_, v: a.atomic(i, lambda old: v if old == if_ else old),
        )
        self.const = SimpleNamespace(array_like=lambda array: array)
        self.fp16 = _HALF

    threadIdx = property(lambda self: self.machine.current.index)
    blockIdx = property(lambda self: _dim3(self.machine.current.block))
    laneid = property(lambda self: np.int64(self.machine.current.lane))

    def grid(self, ndim):
        i, b, n = self.threadIdx, self.blockIdx, self.blockDim
        at = (b.x * n.x + i.x, b.y * n.y + i.y, b.z * n.z + i.z)
        return at[0] if ndim == 1 else at[:ndim]

    def gridsize(self, ndim):
        n, g = self.blockDim, self.gridDim
        sizes = (n.x * g.x, n.y * g.y, n.z * g.z)
        return sizes[0] if ndim == 1 else sizes[:ndim]

    def shared_array(self, shape, dtype):
        """One array per call site and block; shape 0 is the launch's dynamic shared memory."""
        machine, frame = self.machine, sys._getframe(1)
        block, site = machine.current.block, (frame.f_code, frame.f_lasti)
        if (block, site) not in machine.shared:
            dtype, shape = _dtype(dtype), tuple(np.atleast_1d(shape))
            if shape == (0,):
                key = block, "dynamic"
                buffer = machine.shared.setdefault(key, _garbage(machine.shared_bytes))
                array = np.frombuffer(buffer, dtype, machine.shared_bytes // dtype.itemsize)
            else:
                array = np.frombuffer(_garbage(math.prod(shape) * dtype.itemsize), dtype)
                array = array.reshape(shape)
            machine.shared[block, site] = Memory(machine, array, _assigned_name(*site), "shared")
        return machine.shared[block, site]

    def local_array(self, shape, dtype):
        return Memory(self.machine, np.zeros(shape, _dtype(dtype)), "local", "local")

    def shuffle(self, mask, value, lane):
        """The value of `lane` of this warp, or the thread's own where there is no such lane."""
        me = self.machine.current
        heard = self.machine.meet("warp", value, mask, orders_memory=False)
        return heard.get(me.rank - me.lane + int(lane), value) if 0 <= lane < 32 else value

    def ballot_sync(self, mask, predicate):
        votes = self.machine.meet("warp", predicate, mask, orders_memory=False)
        ballot = sum(1 << rank % 32 for rank, vote in votes.items() if vote)
        return np.uint32(ballot).astype(np.int32)  # Numba: signed, lane 31 is the sign

    def match_any_sync(self, mask, value):
        heard = self.machine.meet("warp", value, mask, orders_memory=False)
        same = sum(1 << rank % 32 for rank, other in heard.items() if other == value)
        return np.uint32(same).astype(np.int32)

    def match_all_sync(self, mask, value):
        heard = self.machine.meet("warp", value, mask, orders_memory=False)
        agree = len(set(heard.values())) == 1
        everyone = sum(1 << rank % 32 for rank in heard)
        return np.uint32(everyone * agree).astype(np.int32), np.bool_(agree)

    def fma(self, a, b, c):
        exact = np.float64(a) * b + np.float64(c)  # of float32: rounded once, below
        return np.result_type(a, b, c).type(exact)


def _vote(reduce):
    return lambda self, x: np.int64(reduce(map(bool, self.machine.meet("block", x).values())))


def _agreement(test):
    """A vote of a warp about what its lanes say."""
    return lambda self, mask, x: test(self.machine.meet("warp", x, mask, False).values())


_METHODS = {
    "syncthreads": lambda self: self.machine.meet("block"), "syncthreads_count": _vote(sum),
    "syncthreads_and": _vote(all), "syncthreads_or": _vote(any),
    "syncwarp": lambda self, mask=FULL_MASK: self.machine.meet("warp", mask=mask),
    "shfl_sync": lambda self, mask, x, lane: self.shuffle(mask, x, lane % 32),
    "shfl_xor_sync": lambda self, mask, x, bits: self.shuffle(mask, x, self.laneid ^ bits),
    "shfl_up_sync": lambda self, mask, x, delta: self.shuffle(mask, x, self.laneid - delta),
    "shfl_down_sync": lambda self, mask, x, delta: self.shuffle(mask, x, self.laneid + delta),
    "any_sync": _agreement(any), "all_sync": _agreement(all),
    "activemask": lambda self: np.int64(self.ballot_sync(FULL_MASK, True)) & FULL_MASK,
    "lanemask_lt": lambda self: np.int64((1 << int(self.laneid)) - 1),
    "popc": lambda self, x: np.int64(len(_bits(x).replace("0", ""))),
    "clz": lambda self, x: np.int64(len(_bits(x)) - len(_bits(x).lstrip("0"))),
    "ffs": lambda self, x: np.int64(_bits(x)[::-1].find("1") + 1),
    "brev": lambda self, x: np.uint64(int(_bits(x)[::-1], 2)),
}  # fmt: skip
for _name, _method in _METHODS.items():
    setattr(_CudaModule, _name, _method)


def typed(value):
    """A Python number as Numba types it; anything else unchanged."""
    if isinstance(value, tuple):
        return tuple(typed(item) for item in value)
    if isinstance(value, bool | np.bool_ | np.ndarray):
        return value
    if isinstance(value, int | np.integer):
        if isinstance(value, int):
            return np.int64(value) if value < 2**63 else np.uint64(value)
        return widened(value)
    return np.result_type(value).type(value) if type(value) in (float, complex) else value


def widened(value):
    """Numba computes with 64-bit integers, whatever the array holds."""
    return np.int64(value) if value.dtype.kind in "iu" and value.dtype.itemsize < 8 else value


class _Cast:
    """numba.float32 and its kind: a function, or the name of a dtype."""

    def __init__(self, name):
        self.name = name

    def __call__(self, x):
        return widened(np.asarray(x).astype(self.name)[()])


def _python_function(kernel):
    """The function under @cuda.jit, with or without Numba's simulator; None for anything else."""
    return getattr(kernel, "py_func", None) or getattr(kernel, "fn", None)


def _three(size):
    return (*(size if isinstance(size, tuple) else (size,)), 1, 1)[:3]


def _dim3(index):
    return SimpleNamespace(**{axis: np.int64(i) for axis, i in zip("xyz", index, strict=True)})


def _dtype(dtype):
    return np.dtype(getattr(dtype, "name", dtype))


@functools.cache
def _positions(code):
    """Where each instruction stands in the source: (line, end line, column, end column)."""
    return list(code.co_positions())


def _garbage(size):
    """What shared memory holds before anybody writes it: something no kernel expects."""
    return bytearray(b"\x7f" * size)


def _assigned_name(code, offset):
    """The variable that the call at bytecode `offset` is assigned to."""
    after = (i for i in dis.get_instructions(code) if i.offset > offset)
    return next(i.argval for i in after if i.opname == "STORE_FAST")


def _maximum(*values):
    return functools.reduce(np.fmax, values)  # like CUDA's: a NaN loses


def _minimum(*values):
    return functools.reduce(np.fmin, values)


def _bits(x):
    """The bits of an integer, highest first."""
    return f"{int(x) % 2 ** (8 * x.itemsize):0{8 * x.itemsize}b}"


def _float(x):
    return x if x.dtype.kind == "f" else np.float64(x)


def _complex(real, imag):
    return np.result_type(_float(real), _float(imag), np.complex64).type(complex(real, imag))


def _math_function(function):
    return lambda *xs: function(*map(_float, xs))  # Numba: integers become float64


def _fma_of_halves(a, b, c):
    return np.float16(np.float64(a) * b + c)


_BUILTINS = {
    "complex": _complex, "float": _float, "int": np.int64,
    "len": lambda x: np.int64(len(x) if isinstance(x, tuple) else x.shape[0]), "max": _maximum,
    "min": _minimum, "round": lambda x: np.int64(np.rint(x)),
}  # fmt: skip
_NUMPY = SimpleNamespace(**{name: _Cast(name) for name in np.sctypeDict if type(name) is str})
_HALF = SimpleNamespace(hadd=np.add, hfma=_fma_of_halves, hgt=np.greater)
_MATH = SimpleNamespace(
    inf=np.float64(math.inf),
    pi=np.float64(math.pi),
    **{name: _math_function(getattr(np, name)) for name in "cos exp log sin sqrt".split()},
)
