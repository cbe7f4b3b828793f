"""A CPU that enqueues and a GPU that works: the clocks of both, computed and not measured.

    gpu = SimulatedGpu(enqueue=10)
    kernel = gpu.kernel("softmax", cold=50, warm=30)
    begin = gpu.perf_counter()
    kernel()  # returns when it is enqueued, not when it has run
    gpu.synchronize()
    print(gpu.perf_counter() - begin)

All times are microseconds. The methods have the names of `time` and `numba.cuda`. One stream; the
queue has room for everything.
"""

import math
from numbers import Real

LAUNCHES, COMPILES, WAITS, RUNS, FLUSHES = "enqueues", "compiles", "waits", "runs", "flushes L2"


class SimulatedGpu:
    """A host, a stream of a GPU, and their clocks.

    Parameters
    ----------
    enqueue : float, default=10
        Time of the host for a launch.
    graph_enqueue : float, default=2
        Time of the host for the launch of a CUDA graph.
    compile : float, default=0
        Time of the host for the first launch of each kernel.
    flush : float, default=2000
        Time of the GPU for `flush`.

    Attributes
    ----------
    bars : list of (str, str, str, float, float)
        Unit, words, kind, start and end of everything so far, for `figures.timelines`.
    """

    def __init__(self, *, enqueue=10, graph_enqueue=2, compile=0, flush=2000):
        given = {"enqueue": enqueue, "graph_enqueue": graph_enqueue, "compile": compile}
        for name, value in {**given, "flush": flush}.items():
            check_time(name, value)
        self._enqueue, self._graph_enqueue = enqueue, graph_enqueue
        self._compile, self._flush = compile, flush
        self._now = 0.0  # of the host
        self._free_at = 0.0  # when the GPU has done all that is enqueued
        self._compiled, self._in_l2 = set(), None
        self._captured = None  # kernels of the graph that is being captured
        self.bars = []

    def kernel(self, name, *, cold, warm=None, disturbed=()):
        """A function that launches a kernel and returns at once.

        Parameters
        ----------
        name : str
        cold : float
            Duration with its inputs in HBM.
        warm : float, default=cold
            Duration right after itself, with its inputs in L2.
        disturbed : sequence of float
            What comes on top in the first, second, ... launch: something else kept the GPU busy.
        """
        warm = cold if warm is None else warm
        check_time("cold", cold)
        check_time("warm", warm)
        extra = iter(disturbed)

        def launch():
            operation = name, cold, warm, next(extra, 0)
            if self._captured is not None:
                self._captured.append(operation)
                return
            if name not in self._compiled and self._compile:
                self._host(name, COMPILES, self._compile)
            self._compiled.add(name)
            self._host(name, LAUNCHES, self._enqueue)
            self._run(*operation)

        return launch

    def flush(self):
        """Enqueue a kernel that writes more than L2 holds; it takes long."""
        self._host("flush", LAUNCHES, self._enqueue)
        self._device("flush", FLUSHES, self._flush)
        self._in_l2 = None

    def graph(self, function):
        """Capture the launches of `function()` in a CUDA graph; returns what launches it."""
        self._captured = []
        try:
            function()
        finally:
            operations, self._captured = self._captured, None

        def launch():
            self._host("", LAUNCHES, self._graph_enqueue)
            for operation in operations:
                self._run(*operation)

        return launch

    def synchronize(self):
        """Let the host wait until the GPU has done everything."""
        self._wait(self._free_at)

    def event(self):
        """An event, to be recorded."""
        return Event(self)

    def event_elapsed_time(self, start, end):
        """Time between two events on the GPU; the host must have waited for the second."""
        for name, event in (("start", start), ("end", end)):
            if event._at is None:
                raise RuntimeError(f"{name} was not recorded")
            if event._at > self._now:
                raise RuntimeError(f"the GPU has not reached {name} yet: synchronize first")
        return end._at - start._at

    def perf_counter(self):
        """The clock of the host."""
        return self._now

    def _host(self, words, kind, duration):
        begin, self._now = self._now, self._now + duration
        self.bars.append(("CPU", words, kind, begin, self._now))

    def _device(self, words, kind, duration):
        begin = max(self._now, self._free_at)
        self._free_at = begin + duration
        self.bars.append(("GPU", words, kind, begin, self._free_at))

    def _run(self, name, cold, warm, extra):
        self._device(name, RUNS, (warm if self._in_l2 == name else cold) + extra)
        self._in_l2 = name

    def _wait(self, until):
        if until > self._now:
            self._host("waits", WAITS, until - self._now)


class Event:
    """A point in the stream; see `numba.cuda.event`."""

    def __init__(self, gpu):
        self._gpu, self._at = gpu, None

    def record(self):
        """Enqueue the event, behind all that is enqueued."""
        self._at = max(self._gpu._now, self._gpu._free_at)

    def synchronize(self):
        """Let the host wait until the GPU has reached the event."""
        if self._at is None:
            raise RuntimeError("the event was not recorded")
        self._gpu._wait(self._at)


def check_time(name, value):
    """Refuse what is no number of microseconds."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number of microseconds, got {value!r}")
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} must be finite and not negative, got {value!r}")
