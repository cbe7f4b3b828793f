"""Threads as array elements, control flow as masks.

A *lane value* is what one variable holds in all threads of a batch of blocks at once: a
NumPy scalar if it is the same everywhere, else an array that broadcasts to
`Lanes.shape`, (threads in z, threads in y, threads in x, blocks). threadIdx.x has the shape
(1, 1, n, 1) and blockIdx.x (1, 1, 1, b), so `threadIdx.x * 2` costs n multiplications
whatever the number of blocks, and what is the same in all threads stays a scalar. The block
axis is last because neighbouring blocks do the same thing to neighbouring memory.

A *mask* says which threads execute: ALL, NOBODY, or a boolean lane value. Masks are compared
by identity: `mask is home` is how an assignment knows that it may overwrite (see scopes.py).
"""

from dataclasses import dataclass

import numpy as np

from .dtypes import BOOL, TypedInts, as_bool, as_index, select, stretch
from .errors import (
    KernelError,
    KernelNameError,
    UnsupportedError,
    thread_name,
)
from .progress import LEAVES
from .waits import Patience

ALL = None
NOBODY = False
WARP = 32
MOST_CALLS = 100  # device functions inside each other


class NoValue:
    """What no operator takes: each of them calls `fail`, which says why."""

    __array_ufunc__ = None
    __hash__ = None

    def refuse(self, *_):
        self.fail()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = refuse
    __rtruediv__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __neg__ = refuse
    __pos__ = __invert__ = __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = refuse
    __getitem__ = __bool__ = __call__ = __iter__ = __len__ = __index__ = refuse


class Dim3(NoValue):
    """threadIdx, blockIdx, blockDim or gridDim."""

    def __init__(self, name, x, y, z):
        self.name = name
        self.x, self.y, self.z = x, y, z

    def fail(self):
        raise UnsupportedError(
            f"cuda.{self.name} is no number: it has three parts, .x, .y and .z",
            hint=f"Write cuda.{self.name}.x.",
        )


class Undefined(NoValue):
    """Stands for a variable that no thread has assigned yet; any use raises."""

    def __init__(self, name):
        self.__dict__["name"] = name

    def fail(self, *_):
        raise KernelNameError(
            f"'{self.name}' is read before it is assigned",
            hint="Give it a value on every way that leads here.",
        )

    __getattr__ = fail


def union(a, b):
    """Return the mask of the threads in a or b."""
    if a is ALL or b is ALL:
        return ALL
    if a is NOBODY:
        return b
    if b is NOBODY:
        return a
    both = a | b
    return ALL if both.all() else both


def without(a, b):
    """Return the mask of the threads in a but not in b."""
    if b is NOBODY or a is NOBODY:
        return a
    if b is ALL:
        return NOBODY
    rest = ~b if a is ALL else a & ~b
    return rest if rest.any() else NOBODY


def varies(value):
    """Tell whether a lane value may differ between threads."""
    return isinstance(value, np.ndarray)


class ByMask:
    """Remembers what a function has returned for each mask.

    By identity: a mask stays the same object while a block of code runs.
    """

    MOST = 64

    def __init__(self, function):
        self.function = function
        self.known = {}  # id of a mask -> (the mask, result)

    def __call__(self, mask):
        known = self.known.get(id(mask))
        if known is None or known[0] is not mask:
            if len(self.known) > self.MOST:
                self.known.clear()
            known = self.known[id(mask)] = mask, self.function(mask)
        return known[1]


class Frame:
    """One running function: the kernel, or a device function that it called."""

    def __init__(self, code):
        self.code = code
        self.returned = self.valued = NOBODY  # the second: with a value
        self.value = None


@dataclass(slots=True)
class Branch:
    """One running `if`."""

    outer: object  # the threads that came to the `if`
    otherwise: object  # those for which the test does not hold
    # Those that came to the end of the `if` part; known when the `else` part begins
    left: object = ALL
    has_else: bool = False


class Loop:
    """One running loop."""

    def __init__(self, mask, returned):
        self.mask = mask  # at its entry
        self.returned = returned  # who had returned by then
        self.continued = NOBODY
        self.turns = 0
        self.patience = None  # of a while loop


class Lanes:
    """The threads of a batch of blocks: where they are, which of them run, control flow.

    Parameters
    ----------
    grid, block : tuple of three ints
    memory_state : callable
        Returns a copy of all memory, for a `while` loop that does not seem to end.
    """

    def __init__(self, grid, block, memory_state):
        self.grid, self.block, self.memory_state = grid, block, memory_state
        self.progress = None  # of the launch
        self.turns = None  # of the launch
        bx, by, bz = block
        self.num_threads = bx * by * bz
        self.padding = -self.num_threads % WARP  # lanes that the last warp lacks
        self.num_warps = (self.num_threads + self.padding) // WARP
        axes = [(1, 1, bx, 1), (1, by, 1, 1), (bz, 1, 1, 1)]
        self.thread_idx = Dim3(
            "threadIdx", *(lane_range(n, a) for n, a in zip(block, axes, strict=True))
        )
        self.block_idx = Dim3("blockIdx", None, None, None)  # changes from batch to batch
        self.block_dim = Dim3("blockDim", *map(np.int64, block))
        self.grid_dim = Dim3("gridDim", *map(np.int64, grid))
        self.thread_number = lane_range(self.num_threads, (bz, by, bx, 1))

    def start_batch(self, first_block, num_blocks):
        """Place a batch of blocks on the lanes."""
        self.first_block, self.num_blocks = first_block, num_blocks
        self.shape = (*self.block[::-1], num_blocks)
        gx, gy, _ = self.grid
        number = first_block + np.arange(num_blocks, dtype=np.int64)
        coordinates = number % gx, number // gx % gy, number // (gx * gy)
        # In place: the kernel's names are bound to this object.
        self.block_idx.x, self.block_idx.y, self.block_idx.z = map(per_block, coordinates)
        column = np.arange(num_blocks, dtype=np.int64).reshape(1, 1, 1, -1)
        self.block_column = column if num_blocks > 1 else np.int64(0)
        self.mask = ALL

    def start_kernel(self, mask, frame):
        """Let some threads begin with the kernel."""
        self.mask = mask
        self.exited = NOBODY
        self.branches = []
        self.loops = []
        self.whiles = []  # the `Patience` of each while loop that is running
        self.frames = [frame]

    # ------------------------------------------------------------------ if

    def split(self, test):
        """Return the masks of the active threads where test holds, and where it does not."""
        mask = self.mask
        if isinstance(test, np.ndarray):
            test = as_bool(test)
            if mask is ALL:
                if not (count := np.count_nonzero(test)):
                    return NOBODY, ALL
                return (ALL, NOBODY) if count == test.size else (test, ~test)
            yes = mask & test
            if not np.count_nonzero(yes):
                return NOBODY, mask
            no = mask & ~test
            if not np.count_nonzero(no):
                return mask, NOBODY
            return yes, no
        return (mask, NOBODY) if test else (NOBODY, mask)

    def if_(self, test):
        yes, no = self.split(test)
        self.branches.append(Branch(self.mask, no))
        self.mask = yes
        return yes is not NOBODY

    def else_(self):
        branch = self.branches[-1]
        branch.left, branch.has_else = self.mask, True
        self.mask = branch.otherwise
        return self.mask is not NOBODY

    def endif(self):
        self.mask = self.branches.pop().outer

    def endif_after_exit(self):
        """Threads that returned, broke or continued inside do not come back here."""
        branch = self.branches.pop()
        self.mask = union(branch.left if branch.has_else else branch.otherwise, self.mask)

    def alive(self):
        return self.mask is not NOBODY

    # ------------------------------------------------------------------ loops

    def loop_begin(self):
        loop = Loop(self.mask, self.frames[-1].returned)
        self.loops.append(loop)
        return loop

    def next_turn(self):
        """End one turn: threads that continued come back. Tell whether anyone goes on."""
        loop = self.loops[-1]
        if loop.continued is not NOBODY:
            self.mask = union(self.mask, loop.continued)
            loop.continued = NOBODY
        return self.mask is not NOBODY

    def loop_end(self):
        """Threads that left by break come back; those that returned do not."""
        loop = self.loops.pop()
        if loop.patience is not None:
            self.whiles.pop()
        returned = self.frames[-1].returned
        self.mask = loop.mask if returned is loop.returned else without(loop.mask, returned)

    def break_(self):
        self.mask = NOBODY

    def continue_(self):
        loop = self.loops[-1]
        loop.continued = union(loop.continued, self.mask)
        self.mask = NOBODY

    def range_turns(self, exits, start, stop=None, step=None):
        """Yield the loop variable of `for i in range(...)`, turn by turn."""
        if stop is None:
            start, stop = np.int64(0), start
        step = np.int64(1) if step is None else step
        start, stop, step = map(self.loop_bound, (start, stop, step))
        zero = step == 0
        if np.count_nonzero(zero):
            if self.split(zero)[0] is not NOBODY:
                raise KernelError("range() step is zero")
            step = np.where(zero, 1, step)
        if not (varies(start) or varies(stop) or varies(step)):
            turns = range(int(start), int(stop), int(step))
            turns = map(np.int64, self.watched_turns(turns, exits))
            return self.same_turns(turns) if exits else turns
        count = (stop - start + (step - np.sign(step))) // step
        if self.mask is not ALL:
            # Threads that are not here must not keep the others turning.
            count = np.where(self.mask, count, 0)
        longest = int(count.max()) if count.size else 0
        shortest = count if self.mask is ALL else np.where(self.mask, count, longest)
        if not exits and longest == shortest.min():
            turns = self.watched_turns(range(longest))
            return (start + step * turn for turn in map(np.int64, turns))
        return self.own_turns(exits, start, step, count, longest)

    def watched_turns(self, numbers, exits=0):
        """Watch how far a loop has come.

        One inside a while loop says nothing of the launch, nor does one that may be left early.
        """
        if self.whiles or exits == LEAVES:
            return self.progress.uncounted(numbers, self.whiles)
        return self.progress.turns(numbers)

    def range_numbers(self, *bounds):
        """Return the numbers of a range(...) inside enumerate or zip."""
        if any(varies(self.loop_bound(x)) for x in bounds):
            raise UnsupportedError(
                "enumerate() or zip() of a range() that differs between threads",
                hint="Loop over the range itself.",
            )
        return tuple(map(np.int64, range(*map(int, bounds))))

    def loop_bound(self, value):
        if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "iub":
            return as_index(value) if type(value) is TypedInts else value
        raise KernelError(f"range() needs integers, got {type_name(value)}")

    def same_turns(self, values):
        """A loop that threads can leave, over values that are the same for all threads."""
        self.loop_begin()
        for value in values:
            yield value
            if not self.next_turn():
                break
        self.loop_end()

    def own_turns(self, exits, start, step, count, longest):
        """A loop whose threads start at different values or take different numbers of turns."""
        self.loop_begin()
        value = start
        for turn in self.watched_turns(range(longest), exits):
            self.mask, _ = self.split(count > turn)
            if self.mask is NOBODY:
                break
            yield value
            if exits and not self.next_turn():
                break
            value = value + step
        self.loop_end()

    def while_begin(self, site, decided_by):
        patience = self.loop_begin().patience = Patience(self, site, decided_by)
        self.whiles.append(patience)

    def while_test(self, test):
        loop = self.loops[-1]
        self.mask, _ = self.split(test)
        turns = loop.turns = loop.turns + 1
        seldom = turns & 63 and turns & (turns - 1) and not loop.patience.waits
        if turns > 1 and self.mask is not NOBODY and not seldom:
            loop.patience.check()
        self.progress.turn(self.whiles)
        return self.mask is not NOBODY

    # ------------------------------------------------------------------ functions

    def return_(self, value):
        frame = self.frames[-1]
        if value is not None:
            if len(self.frames) == 1:
                refuse_result(frame.code.code.co_name)
            if frame.valued is not NOBODY:
                value = self.blend(frame.value, value)
            frame.value, frame.valued = value, union(frame.valued, self.mask)
        frame.returned = union(frame.returned, self.mask)
        if len(self.frames) == 1:
            self.exited = frame.returned
        self.mask = NOBODY

    def call_function(self, function, code, arguments):
        """Run a device function for the active threads."""
        if len(self.frames) > MOST_CALLS:
            raise KernelError(
                f"'{code.code.co_name}' is called {MOST_CALLS} levels deep",
                hint="Does it call itself for ever? Write it as a loop.",
            )
        mask, loops, branches = self.mask, self.loops, self.branches
        self.loops, self.branches = [], []
        self.frames.append(Frame(code))
        function(*arguments)
        frame = self.frames.pop()
        self.mask, self.loops, self.branches = mask, loops, branches
        if frame.valued is not NOBODY and frame.valued is not mask:
            missing = without(mask, frame.valued)
            if missing is not NOBODY:
                message = f"'{code.code.co_name}' returns a value, but none"
                hint = "End every way through it with a return, and a value."
                self.fail(missing, UnsupportedError, message, hint=hint)
        return frame.value

    # ------------------------------------------------------------------ values

    def bind(self, old, new, home):
        """Return what a variable holds after `x = new` under the present mask."""
        mask = self.mask
        if mask is ALL or mask is home or type(old) is Undefined:
            if type(new) is Undefined:
                new.fail()
            return new
        return self.blend(old, new)

    def blend(self, old, new):
        """Return new in the active threads and old in the others."""
        if new is old:
            return new
        if isinstance(new, tuple) and isinstance(old, tuple) and len(new) == len(old):
            return like(new, [self.blend(o, n) for o, n in zip(old, new, strict=True)])
        if hasattr(new, "blend_with"):
            return new.blend_with(old, self.mask)
        if not (is_value(new) and is_value(old)):
            refuse_mixture(old, new)
        return select(self.mask, new, old)

    def assign(self, assigned):
        """Return which threads have assigned a variable: those that had, and the active ones."""
        return union(assigned, self.mask)

    def read(self, name, value, assigned):
        """Return the value of a variable that only these threads have assigned."""
        if self.mask is not assigned and assigned is not NOBODY:  # nobody: any use raises
            missing = without(self.mask, assigned)
            if missing is not NOBODY:
                message = f"'{name}' is read before it is assigned,"
                hint = "Other threads assigned it. Give it a value on every way that leads here."
                self.fail(missing, KernelNameError, message, hint=hint)
        return value

    def under(self, mask, thunk):
        """Evaluate a thunk for the threads of a smaller mask."""
        outer, self.mask = self.mask, mask
        value = thunk()
        self.mask = outer
        return value

    # ------------------------------------------------------------------ who

    def full(self, value):
        """Return a lane value with one element per thread, shape (threads, blocks)."""
        return stretch(value, self.shape).reshape(self.num_threads, self.num_blocks)

    def active(self):
        """Return the mask as booleans, shape (threads, blocks)."""
        return self.full(True if self.mask is ALL else self.mask)

    def by_warp(self, rows):
        """Return (threads, blocks) values as (warps, 32, blocks)."""
        if self.padding:
            empty = np.zeros((self.padding, rows.shape[1]), rows.dtype)
            rows = np.concatenate([rows, empty])
        return rows.reshape(self.num_warps, WARP, -1)

    def members(self, mask):
        """Return which threads a warp's member mask names, (threads, 1 or blocks)."""
        lane = (np.arange(self.num_threads, dtype=np.int64) % WARP)[:, None]
        if isinstance(mask, np.ndarray):
            mask = self.full(as_index(mask) if type(mask) is TypedInts else mask)
        else:
            mask = np.int64(mask)
        return (mask >> lane & 1).astype(bool)

    def grid_position(self, ndim):
        """cuda.grid(ndim)."""
        i, b, n = self.thread_idx, self.block_idx, self.block_dim
        return of_axes(ndim, lambda a: getattr(b, a) * getattr(n, a) + getattr(i, a))

    def grid_size(self, ndim):
        """cuda.gridsize(ndim)."""
        return of_axes(ndim, lambda a: getattr(self.block_dim, a) * getattr(self.grid_dim, a))

    def culprit(self, bad):
        """Return thread, block and ' (and n more)' of the first thread where bad holds."""
        if bad is ALL:
            bad = True
        by_block = self.full(bad).T  # the first block's first thread first
        number = int(by_block.argmax())
        block, thread = divmod(number, self.num_threads)
        count = int(by_block.sum())
        more = f" (and {count - 1} more threads)" if count > 1 else ""
        return self.thread_coordinates(thread), self.block_coordinates(block), more

    def fail(self, bad, error, message, **more_about):
        """Raise an error that names the first thread where `bad` holds."""
        thread, block, more = self.culprit(bad)
        where = f"in {thread_name(thread, block)}{more}"
        raise error(f"{message} {where}", thread=thread, block=block, **more_about)

    def thread_coordinates(self, number):
        bx, by, _ = self.block
        number = int(number)
        return number % bx, number // bx % by, number // (bx * by)

    def block_coordinates(self, number):
        """Return blockIdx of a block of this batch."""
        return self.grid_coordinates(int(number) + self.first_block)

    def grid_coordinates(self, number):
        """Return blockIdx of a block of the grid."""
        gx, gy, _ = self.grid
        number = int(number)
        return number % gx, number // gx % gy, number // (gx * gy)


def of_axes(ndim, value):
    """Return a number for one axis, a tuple for more."""
    if ndim not in (1, 2, 3):
        raise KernelError(f"cuda.grid and cuda.gridsize take 1, 2 or 3, got {ndim}")
    found = tuple(map(value, "xyz"[: int(ndim)]))
    return found[0] if ndim == 1 else found


def refuse_result(name, sites=()):
    raise UnsupportedError(
        f"the kernel '{name}' returns a value; Numba says: CUDA kernel must have void return type",
        sites=sites,
        hint="Store it in an array, as out[i] = ...; only a device function returns a value.",
    )


def refuse_mixture(old, new, hint="A variable holds one kind of thing; use two variables."):
    raise UnsupportedError(
        f"threads choose between {type_name(old)} and {type_name(new)} for one variable", hint=hint
    )


def is_value(value):
    return isinstance(value, (np.ndarray, np.generic, bool, int, float))


class Member:
    """A member of an enum.Enum, which may be another one in each thread."""

    __array_ufunc__ = None
    __hash__ = None

    def __init__(self, enum, number, values):
        self.enum = enum
        self.number = number  # of the member, in the order of the Enum
        self.values = values  # of all members

    @property
    def value(self):
        """The member's value, a number or tuple."""
        if not varies(self.number):
            return self.values[int(self.number)]
        return np.array(self.values)[self.number]

    def __eq__(self, other):
        if not is_member(other) or other.enum is not self.enum:
            return np.False_
        return np.equal(self.number, other.number)

    def __ne__(self, other):
        return np.logical_not(self == other)

    def blend_with(self, old, mask):
        """Let a variable hold another member of the same Enum."""
        if not is_member(old) or old.enum is not self.enum:
            refuse_mixture(old, self)
        return Member(self.enum, select(mask, self.number, old.number), self.values)


def is_member(value):
    return isinstance(value, Member)


def like(model, parts):
    """Return parts as a tuple of the model's kind: a named one has names."""
    return model._make(parts) if hasattr(model, "_make") else tuple(parts)


def lane_dtype(value):
    """Return the type that Numba gives to a value."""
    dtype = getattr(value, "dtype", None)
    return np.asarray(value).dtype if dtype is None else dtype


def is_truth(value):
    return isinstance(value, bool) or getattr(value, "dtype", None) == BOOL


def lane_range(count, shape):
    return np.int64(0) if count == 1 else np.arange(count, dtype=np.int64).reshape(shape)


def per_block(values):
    if (values == values[0]).all():
        return np.int64(values[0])
    return values.reshape(1, 1, 1, -1)


def type_name(value):
    """Return what to call a value in a message."""
    if value is None:
        return "None"
    if is_member(value):
        return f"a member of {value.enum.__name__}"
    kind = getattr(value, "kind", None)
    if kind in ("global", "shared", "local"):
        return f"the {kind} array '{value.name}'"
    dtype = getattr(value, "dtype", None)
    if isinstance(dtype, np.dtype):
        return f"{'a ' if dtype.kind == 'f' else 'an '}{dtype}"
    return f"a {type(value).__name__}"
