"""Launching a kernel: check it as a driver would, then run its blocks batch by batch."""

import math
import time
from enum import Enum

import numpy as np

from .atomics import Atomics
from .devices import chip
from .errors import LaunchError, UnsupportedError, explain
from .host import host_value
from .lanes import Frame, Lanes, like, refuse_result
from .memory import Memory
from .names import COUNTED, Names, as_lane, check_kernel, member
from .operators import Operators
from .options import TOO_MUCH_SHARED, current_options
from .progress import Progress
from .records import Copies, records_argument
from .second_gear import Shift, gear_for
from .serial import SerialLanes, SerialMemory, SerialOperators, direct_arguments, rewrite
from .signatures import convert_arguments, signatures_of
from .syntax import refusal
from .trace import Launched, Trace
from .transform import PREFIX, STARRED, refuse_shape, transform
from .turns import Turns, may_wait
from .warps import Warps
from .watch import Watch

LANES_PER_BATCH = 32768  # threads that run at once; more makes the arrays fall out of the cache
MAX_THREADS = 1024
MAX_BLOCK = (1024, 1024, 64)
MOST_SYNCHRONISED = 132 * 2048  # threads of a grid that waits for itself: an H100 full of them
ELEMENTS = {np.dtype(code) for code in "?bBhHiIlLqQefdFD"}  # types of array elements
MAX_GRID = (2**31 - 1, 65535, 65535)


class Machine:
    """All threads of one launch, a batch of blocks at a time.

    Attributes
    ----------
    lanes : Lanes
        The threads of the present batch: which of them run, control flow.
    operators : Operators
        Operators and builtins that depend on the threads.
    memory : Memory
        Loads, stores, allocation.
    warps : Warps
        Barriers and warp intrinsics.
    atomics : Atomics
    names : Names
        What the kernel's global names mean.
    """

    kinds = Lanes, Operators, Memory  # the classes of the first three

    def __init__(self, grid, block, dynamic_bytes=0, options=None, watch=None):
        options = options or current_options()
        self.watch = watch
        lanes, operators, memory = self.kinds
        self.lanes = lanes(grid, block, self.memory_state)
        self.operators = operators(self.lanes)
        self.memory = memory(self.lanes, options, watch, dynamic_bytes)
        self.warps = Warps(self.lanes, options, watch)
        self.atomics = Atomics(self.lanes, self.memory, watch)
        self.names = Names(self, self.rewrite)
        if watch is not None and watch.collect:
            self.names.add_operations(watch.flops, COUNTED)

    def memory_state(self):
        return self.memory.state()

    def rewrite(self, code):
        """Return the lockstep form of a function."""
        return transform(code, code.co_filename, self.watch is not None and self.watch.collect)

    def run(self, function, arguments, signatures=()):
        """Run a kernel's Python function over the whole grid."""
        runnable, lockstep = self.names.lockstep_function(function)
        if lockstep.starred:
            message, hint = refusal(*STARRED)
            raise UnsupportedError(message, sites=[lockstep.starred], hint=hint)
        if lockstep.result:
            refuse_result(function.__name__, [lockstep.result])
        for parameter, value in zip(lockstep.parameters, arguments, strict=False):
            site, kind, is_length = lockstep.shapes.get(parameter, (None, None, True))
            if site and not (is_length and isinstance(value, tuple)):
                refuse_shape(site, kind, f"'{parameter}' is an argument of the kernel")
        copies = self.copies = Copies()
        values = self.lane_arguments(function, lockstep, arguments)
        try:
            self.run_values(function, runnable, lockstep, values, signatures)
        finally:
            copies.back()

    def run_values(self, function, runnable, lockstep, values, signatures):
        values = convert_arguments(signatures, function.__name__, lockstep.parameters, values)
        alone = self.lanes.num_threads * math.prod(self.lanes.grid) == 1
        waits = not alone and may_wait(function, self.names.device_functions)
        # Compiled threads run one after the other: one that waits for a later one would hang.
        gear = None if waits else gear_for(self, function, lockstep, values)
        if gear is None or not (gear.starts() and gear.run()):
            self.run_engine(function, runnable, lockstep, values, waits, gear)

    def run_engine(self, function, runnable, lockstep, values, waits, gear):
        """Run all blocks in lockstep, unless the second gear takes over."""
        start = time.process_time()
        if gear is not None:
            gear.prepare()
        try:
            self.run_turns(function, runnable, lockstep, values, waits, gear)
        except Shift:
            gear.shifted(time.process_time() - start)
            if not gear.run():
                self.run_turns(function, runnable, lockstep, values, waits)
            return
        if gear is not None:
            gear.ran(time.process_time() - start)

    def run_turns(self, function, runnable, lockstep, values, waits, gear=None):
        """Run all blocks; if threads wait for each other, again until all have had their turn."""
        turns = self.lanes.turns = Turns(function, self.lanes, self.memory.globals if waits else [])
        while True:
            try:
                self.run_batches(function, runnable, lockstep, values, gear)
                break
            except UnsupportedError as error:
                if not turns.again(error):
                    raise (turns.error if getattr(error, "waits", False) else error) from None
        turns.ended()
        if self.watch is not None:
            self.watch.end_launch()

    def run_batches(self, function, runnable, lockstep, values, gear=None):
        if self.watch is not None:
            self.watch.start_launch(self, lockstep, values)
        threads, total = self.lanes.num_threads, math.prod(self.lanes.grid)
        size = max(1, LANES_PER_BATCH // threads)
        size = -(-total // -(-total // size))  # batches of equal size
        if self.lanes.turns.order:
            size = 1
        if "this_grid" in lockstep.code.co_names:
            size = total  # blocks that wait for each other run together
            check_synchronised(total * threads)
        progress = self.lanes.progress = Progress(function.__name__, total, threads, gear)
        with np.errstate(all="ignore"):  # a GPU raises no flags either
            try:
                for first in range(0, total, size):
                    count = min(size, total - first)
                    progress.batch(first, count)
                    self.start_batch(first, count)
                    if self.watch is not None:
                        self.watch.start_batch()
                    for mask in self.lanes.turns.masks():
                        self.lanes.start_kernel(mask, Frame(lockstep))
                        runnable(*values)
            finally:
                progress.end()

    def start_batch(self, first, count):
        self.lanes.start_batch(first, count)
        self.memory.start_batch()
        self.warps.start_batch()

    def lane_arguments(self, function, lockstep, arguments):
        names = lockstep.parameters
        missing = len(names) - len(arguments)
        defaults = function.__defaults__ or ()
        if 0 < missing <= len(defaults):
            arguments = (*arguments, *defaults[-missing:])
        if len(arguments) != len(names):
            raise LaunchError(
                f"{function.__name__}({', '.join(names)}) takes {len(names)} "
                f"argument{'s' * (len(names) != 1)}, got {len(arguments)}"
            )
        return [
            self.lane_argument(name, value) for name, value in zip(names, arguments, strict=True)
        ]

    def lane_argument(self, name, value):
        value = host_value(value)
        if value is None:
            return None
        if isinstance(value, tuple):
            parts = [self.lane_argument(f"{name}[{i}]", v) for i, v in enumerate(value)]
            return like(value, parts)
        if isinstance(value, Enum):
            return member(value)
        if isinstance(value, np.ndarray) and is_element(value.dtype):
            return self.memory.global_array(self.copies.of(value, name), name)
        if isinstance(value, (np.ndarray, np.void)) and value.dtype.names:
            return records_argument(self.memory, self.copies, name, value)
        scalar = as_lane(value)
        if scalar is None:
            refuse_argument(name, value)
        return scalar


class OneThread(Machine):
    """The machine of a launch of one thread, unless it is to be traced."""

    kinds = SerialLanes, SerialOperators, SerialMemory

    def run(self, function, arguments, signatures=()):
        self.kernel_code = function.__code__
        self.memory.direct = direct_arguments(function.__code__, arguments, signatures)
        self.names.operations |= {PREFIX + x.__name__: x for x in (int, type, np.int64)}
        self.names.add_operations(self.lanes, "count_turns defined while_turns".split())
        self.names.add_operations(self.operators, ["widened"])
        super().run(function, arguments, signatures)

    def rewrite(self, code):
        direct = self.memory.direct if code is self.kernel_code else {}
        return rewrite(code, code.co_filename, tuple(direct.values()))


def machine_for(grid, block, watch):
    """Return the class of the machine that is quickest for a launch."""
    alone = math.prod(grid) * math.prod(block) == 1
    return OneThread if alone and not (watch and watch.collect) else Machine


def is_element(dtype):
    return dtype in ELEMENTS or dtype.name == "bfloat16"  # of the package ml_dtypes


def refuse_argument(name, value):
    if getattr(getattr(value, "dtype", None), "kind", "") in ("m", "M", "S", "U"):
        dates = value.dtype.kind in "mM"
        raise UnsupportedError(
            f"argument '{name}' holds {'dates and times' if dates else 'strings'}, {value.dtype}: "
            "the CPU engine runs no kernel of them",
            array=name,
            hint=f"A GPU would. Pass numbers: {name}.view(np.{'int64' if dates else 'uint32'}).",
        )
    got, hint = f"a {type(value).__name__}", None
    if isinstance(value, np.ndarray):
        got = f"an array of {value.dtype}"
        hint = "Arrays hold bool, integers, floats, complex numbers or records of these."
    elif hasattr(value, "__cuda_array_interface__"):
        hint = "It lives on a GPU; copy it to the host for the CPU engine."
    elif isinstance(value, list):
        hint = f"Pass np.array({name}, dtype=np.float32), or whichever type it has."
    raise LaunchError(
        f"argument '{name}' must be a NumPy array or a number, got {got}", array=name, hint=hint
    )


def dimensions(value, what, limits):
    """Return a grid or block as three checked ints."""
    parts = value if isinstance(value, (tuple, list)) else (value,)
    if not 1 <= len(parts) <= 3 or not all(isinstance(n, (int, np.integer)) for n in parts):
        raise LaunchError(
            f"the {what} must be an int or a tuple of 1 to 3 ints, got {value!r}",
            hint="Divide with //: (n + 255) // 256 blocks of 256 threads cover n."
            if any(isinstance(n, float) for n in parts)
            else None,
        )
    full = tuple(map(int, parts)) + (1,) * (3 - len(parts))
    for axis, n, limit in zip("xyz", full, limits, strict=True):
        if not 1 <= n <= limit:
            raise LaunchError(
                f"the {what} is {value!r}: its {axis} must be from 1 to {limit}, got {n}",
                hint="Where there is nothing to do, skip the launch." if n == 0 else None,
            )
    return full


def attempt(kernel, grid, block, arguments, shared_bytes=0, watch=None):
    """Run a kernel and return the error, or None.

    The error is returned and not raised so that its traceback goes from the caller's caller
    straight to the learner's own line.
    """
    try:
        function = check_kernel(kernel)
        grid = dimensions(grid, "grid", MAX_GRID)
        block = dimensions(block, "thread block", MAX_BLOCK)
        check_resources(block, shared_bytes)
        machine = machine_for(grid, block, watch)
        machine = machine(grid, block, shared_bytes, current_options(), watch)
        machine.run(function, arguments, signatures_of(kernel))
    except (Exception, KeyboardInterrupt) as error:
        error = explain(error)
        return watch.root_cause(error) if watch is not None else error
    return None


def launch(kernel, grid, block, arguments, shared_bytes=0, checked=True):
    """Run a kernel, watched as the options and `tracing` say; return the error, or None."""
    options = current_options()
    if tracing.lists:
        watch = Watch(options, collect=True)
    elif checked and (options.races or options.uninitialised):
        watch = Watch(options, collect=False)
    else:
        watch = None
    error = attempt(kernel, grid, block, arguments, shared_bytes, watch)
    if error is None and tracing.lists:
        made = Trace.of(watch, check_kernel(kernel), Launched(kernel, arguments, shared_bytes))
        for traces in tracing.lists:
            traces.append(made)
    return error


def check_resources(block, shared_bytes):
    if math.prod(block) > MAX_THREADS:
        raise LaunchError(
            f"a thread block of {block} has {math.prod(block)} threads: CUDA allows {MAX_THREADS}",
            hint="Use smaller blocks, and more of them.",
        )
    if not isinstance(shared_bytes, (int, np.integer)) or shared_bytes < 0:
        raise LaunchError(f"shared memory must be a number of bytes, got {shared_bytes!r}")
    device = current_options().device
    limit = chip(device).shared_bytes_per_block
    if shared_bytes > limit:
        raise LaunchError(
            f"{shared_bytes} bytes of dynamic shared memory are more than the {limit} that a "
            f"block can have on {device}",
            hint=TOO_MUCH_SHARED,
        )


def check_synchronised(num_threads):
    if num_threads > MOST_SYNCHRONISED:
        raise LaunchError(
            f"cuda.cg.this_grid() needs all {num_threads} threads of the grid on the GPU at once: "
            f"there is room for {MOST_SYNCHRONISED}",
            hint="Launch fewer blocks, and let each thread do more in a loop.",
        )


def run(kernel, grid, block, *args, shared_bytes=0, checked=True):
    """Run a Numba-CUDA kernel on NumPy arrays, on the CPU.

    Parameters
    ----------
    kernel : function decorated with @cuda.jit
    grid, block : int or tuple of 1 to 3 ints
        Numbers of blocks, and of threads in a block.
    *args : NumPy arrays and numbers
        Arrays are changed in place.
    shared_bytes : int, default=0
        Dynamic shared memory of a block, for `cuda.shared.array(0, dtype)`.
    checked : bool, default=True
        Look for races and reads of uninitialised shared memory, and raise. Index errors,
        illegal barriers and impossible launches raise either way.

    Raises
    ------
    KernelError
        One of its subclasses, which names the line, the array, the thread and the block.

    Notes
    -----
    A launch that will take more than a minute says so on stderr, with an estimate, and in a
    terminal or a notebook shows how far it is. Ctrl-C stops it.
    """
    __tracebackhide__ = True
    error = launch(kernel, grid, block, args, shared_bytes, checked)
    if error is not None:
        raise error


def trace(kernel, grid, block, *args, shared_bytes=0):
    """Run a kernel as `run` does and return what it did, as a `Trace`.

    Races and uninitialised reads do not raise but are listed in the trace; a load that races
    with a store sees the old value.
    """
    __tracebackhide__ = True
    watch = Watch(current_options(), collect=True)
    error = attempt(kernel, grid, block, args, shared_bytes, watch)
    if error is not None:
        raise error
    return Trace.of(watch, check_kernel(kernel), Launched(kernel, args, shared_bytes))


class tracing:
    """Collect a `Trace` of every launch made inside a `with` block.

    Examples
    --------
    >>> with simt.tracing() as traces:
    ...     flash_attn_v2(q, k, v)
    >>> [trace.kernel for trace in traces]
    """

    lists = []

    def __enter__(self):
        self.traces = []
        tracing.lists.append(self.traces)
        return self.traces

    def __exit__(self, *error):
        tracing.lists[:] = [t for t in tracing.lists if t is not self.traces]
