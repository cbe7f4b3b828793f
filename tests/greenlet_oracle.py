"""An oracle for the CPU engine: one greenlet per CUDA thread.

Each thread runs the kernel's own bytecode, alone, until it meets a barrier; nothing is rewritten
and nothing is vectorised, so nothing is shared with `fa_numba.simt`. Numba's typing is imitated
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
        for z, y, x in itertools.product(*(range(n) for n in reversed(machine.grid))):
            machine.run_block(function, args, (x, y, z))


class _Machine:
    """One grid: what `cuda`, `math` and the builtins mean to the thread that is running."""

    def __init__(self, grid, block, shared_bytes, order, observer):
        self.grid, self.block, self.shared_bytes = grid, block, shared_bytes
        self.order, self.observer = order or (lambda threads: threads), observer
        self.functions = {}
        self.cuda = _CudaModule(self)

    def run_block(self, function, args, block_index):
        self.block_index, self.main, self.shared = block_index, getcurrent(), {}
        extent = reversed(self.block)
        places = [(x, y, z) for z, y, x in itertools.product(*(range(n) for n in extent))]
        alive = ready = [_Thread(block_index, rank, at) for rank, at in enumerate(places)]
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
                raise Deadlock(f"block {block_index}: {alive[0].waits_for}, thread {alive[0].rank}")

    def released(self, alive):
        """Threads whose barrier is complete; each finds in `heard` what the others said there."""
        ready = []
        for members in [alive, *self.warps(alive)]:
            scope = "block" if members is alive else "warp"
            waiting = [t for t in members if t.waits_for and t.waits_for[0] == scope]
            for mask in {t.waits_for[1] for t in waiting}:
                group = [t for t in members if mask >> t.lane & 1 or scope == "block"]
                if all(t in waiting and t.waits_for[1] == mask for t in group):
                    heard = {t.rank: t.says for t in group}
                    if self.observer and waiting[0].waits_for[2]:
                        self.observer.barrier(group, scope)
                    for thread in group:
                        thread.heard, thread.waits_for = heard, None
                    ready += group
        return sorted(ready, key=lambda t: t.rank)

    def warps(self, alive):
        return [list(g) for _, g in itertools.groupby(alive, key=lambda t: t.rank // 32)]

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
            code = source.__code__
            code = code.replace(co_consts=tuple(typed(c) for c in code.co_consts))
            world = {**vars(builtins), "range": self.range, "len": lambda a: a.shape[0]}
            world |= {"max": _maximum, "min": _minimum, "int": np.int64}
            world |= {name: self.name(value) for name, value in source.__globals__.items()}
            cells = [types.CellType(self.name(c.cell_contents)) for c in source.__closure__ or ()]
            self.functions[source] = types.FunctionType(code, world, closure=tuple(cells))
        return self.functions[source]

    def name(self, value):
        if isinstance(value, types.ModuleType):
            return {"math": _MATH, "numba.cuda": self.cuda}.get(value.__name__, value)
        if hasattr(value, "cast_python_value"):  # numba.float32 and its kind
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

    def __getitem__(self, index):
        index, address = self.locate(index)
        if len(index) < self.ndim:
            return Memory(self.machine, self.array[index], self.name, self.kind, address)
        value = self.array[index]
        self.tell("load", address, value)
        return widened(value)

    def __setitem__(self, index, value):
        index, address = self.locate(index)
        self.array[index] = np.asarray(value).astype(self.dtype)
        self.tell("store", address, self.array[index])

    def atomic(self, index, update):
        """Replace an element by update(element); returns the old one."""
        index, address = self.locate(index)
        old = self.array[index]
        self.array[index] = np.asarray(update(widened(old))).astype(self.dtype)
        self.tell("atomic", address, self.array[index])
        return widened(old)


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

    threadIdx = property(lambda self: self.machine.current.index)
    blockIdx = property(lambda self: _dim3(self.machine.block_index))
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
        site = (frame.f_code, frame.f_lasti)
        if site not in machine.shared:
            dtype, shape = _dtype(dtype), tuple(np.atleast_1d(shape))
            if shape == (0,):
                buffer = machine.shared.setdefault("dynamic", _garbage(machine.shared_bytes))
                array = np.frombuffer(buffer, dtype, machine.shared_bytes // dtype.itemsize)
            else:
                array = np.frombuffer(_garbage(math.prod(shape) * dtype.itemsize), dtype)
                array = array.reshape(shape)
            machine.shared[site] = Memory(machine, array, _assigned_name(*site), "shared")
        return machine.shared[site]

    def local_array(self, shape, dtype):
        return Memory(self.machine, np.zeros(shape, _dtype(dtype)), "local", "local")

    def syncthreads(self):
        self.machine.meet("block")

    def syncthreads_count(self, predicate):
        return np.int64(sum(map(bool, self.machine.meet("block", predicate).values())))

    def syncthreads_and(self, predicate):
        return np.int64(all(self.machine.meet("block", predicate).values()))

    def syncthreads_or(self, predicate):
        return np.int64(any(self.machine.meet("block", predicate).values()))

    def syncwarp(self, mask=FULL_MASK):
        self.machine.meet("warp", mask=mask)

    def shuffle(self, mask, value, lane):
        """The value of `lane` of this warp, or the thread's own where there is no such lane."""
        me = self.machine.current
        heard = self.machine.meet("warp", value, mask, orders_memory=False)
        return heard.get(me.rank - me.lane + int(lane), value) if 0 <= lane < 32 else value

    def shfl_sync(self, mask, value, lane):
        return self.shuffle(mask, value, lane % 32)

    def shfl_xor_sync(self, mask, value, lane_mask):
        return self.shuffle(mask, value, self.laneid ^ lane_mask)

    def shfl_up_sync(self, mask, value, delta):
        return self.shuffle(mask, value, self.laneid - delta)

    def shfl_down_sync(self, mask, value, delta):
        return self.shuffle(mask, value, self.laneid + delta)

    def ballot_sync(self, mask, predicate):
        votes = self.machine.meet("warp", predicate, mask, orders_memory=False)
        ballot = sum(1 << rank % 32 for rank, vote in votes.items() if vote)
        return np.uint32(ballot).astype(np.int32)  # Numba: signed, lane 31 is the sign

    def any_sync(self, mask, predicate):
        return self.ballot_sync(mask, predicate) != 0

    def all_sync(self, mask, predicate):
        return all(self.machine.meet("warp", predicate, mask, orders_memory=False).values())

    def popc(self, x):
        return np.int64((int(x) % 2 ** (8 * x.itemsize)).bit_count())

    def selp(self, condition, a, b):
        return a if condition else b

    def fma(self, a, b, c):
        return a * b + c


def typed(value):
    """A Python number as Numba types it; anything else unchanged."""
    if isinstance(value, tuple):
        return tuple(typed(item) for item in value)
    if isinstance(value, bool | np.bool_):
        return value
    if isinstance(value, int | np.integer):
        return widened(np.int64(value) if isinstance(value, int) else value)
    return np.float64(value) if type(value) is float else value


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


def _math_function(function):
    def typed_function(*xs):  # Numba: float32 stays float32, integers become float64
        return function(*(x if x.dtype.kind == "f" else np.float64(x) for x in xs))

    return typed_function


_NUMPY_NAMES = {"fabs": "abs", "pow": "power", "isnan": "isnan", "isinf": "isinf"} | {
    name: name for name in "exp exp2 log log2 log1p sqrt sin cos tanh floor ceil fmod".split()
}
_MATH = SimpleNamespace(
    inf=np.float64(math.inf),
    pi=np.float64(math.pi),
    **{name: _math_function(getattr(np, numpy)) for name, numpy in _NUMPY_NAMES.items()},
)
