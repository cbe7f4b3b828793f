"""An answer in the judge's own process: in a browser, which starts none, and on Windows.

The same judge sends the same requests to the same worker, in memory instead of over a socket.
Nothing guards the judge from the answer here, and nobody can stop the process when it hangs. So
`Budget` counts the steps of the learner's code: turns of its loops, in kernels and outside of
them. `FA_NUMBA_GRADE_IN_PROCESS=1` asks for this way where there are processes too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import json
import linecache
import os
import sys
import time
import warnings

from fa_numba import simt
from fa_numba.workbook.grading.answer import MOST_OUTPUT, Answer, _line
from fa_numba.workbook.grading.answering import Worker
from numba_cuda_simulator import launch as engine
from numba_cuda_simulator.errors import KernelWarning
from numba_cuda_simulator.options import Options
from numba_cuda_simulator.transform import PREFIX

KERNEL_STEPS = 250  # of a turn in a kernel, where a statement runs for all threads
# Of one check. In Python 3.11 a step is a line, of which a turn may have ten.
MOST_STEPS = 10_000_000 if hasattr(sys, "monitoring") else 100_000_000
NOTE = f"Graded in this process, which stops a check after {MOST_STEPS:,} steps."
SLOWER = 10  # so many times the seconds of a process: WebAssembly and telephones are slow
LOOK_EVERY = 256  # steps between two looks at the clock


def is_wanted() -> bool:
    """Whether answers run in the judge's process."""
    if sys.platform in ("emscripten", "wasi", "win32"):  # win32: Popen without pass_fds
        return True
    return os.environ.get("FA_NUMBA_GRADE_IN_PROCESS") == "1"


class Endless(BaseException):
    """The learner's code has used up its steps."""


class Budget:
    """Counts the steps of the code in one file, and stops it when they are used up.

    From Python 3.12 on a step is a jump, which every loop makes in each turn. An error at a jump
    is raised outside of a `try` in the loop, so that no `except` swallows it. In 3.11 a step is a
    line, and an ``except BaseException`` in the loop does. A jump in a kernel is `KERNEL_STEPS`.
    """

    def __init__(self, path):
        self.path, self.left, self.until = path, 0, None
        self.line = None  # where the code was stopped
        self.is_late = False  # whether by the clock
        self.tool, self.depth, self.looked = None, 0, 0

    def __enter__(self):
        self.depth += 1
        if self.depth > 1:  # a function of the grader's asks for something of the answer
            return self
        if hasattr(sys, "monitoring"):
            monitoring = sys.monitoring
            self.tool = next(n for n in (3, 4, 2, 1) if monitoring.get_tool(n) is None)
            monitoring.use_tool_id(self.tool, "fa_numba")
            monitoring.register_callback(self.tool, monitoring.events.JUMP, self._jump)
            monitoring.set_events(self.tool, monitoring.events.JUMP)
        else:
            self.before = sys.gettrace()
            sys.settrace(self._call)
        return self

    def __exit__(self, *error):
        self.depth -= 1
        if self.depth:
            return
        if self.tool is not None:
            sys.monitoring.set_events(self.tool, 0)
            sys.monitoring.free_tool_id(self.tool)
        else:
            sys.settrace(self.before)

    def _jump(self, code, offset, destination):
        if code.co_filename != self.path:
            return sys.monitoring.DISABLE  # this jump is not looked at again
        if self._is_over(code):
            lines = (line for start, end, line in code.co_lines() if start <= destination < end)
            self._stop(next(lines, None))

    def _call(self, frame, event, arg):
        return self._step if frame.f_code.co_filename == self.path else None

    def _step(self, frame, event, arg):
        if event == "line" and self._is_over(frame.f_code):
            self._stop(frame.f_lineno)
        return self._step

    def _is_over(self, code):
        self.looked += 1
        self.left -= _steps(code)
        if self.looked % LOOK_EVERY == 0 and time.process_time() > self.until:
            self.left, self.is_late = -1, True
        return self.left < 0

    def _stop(self, line):
        self.line = line if self.line is None else self.line
        raise Endless


@functools.lru_cache(maxsize=1024)
def _steps(code):
    """The steps of one turn: many in a kernel as the engine has rewritten it."""
    return KERNEL_STEPS if any(name.startswith(PREFIX) for name in code.co_names) else 1


class Meter:
    """The time of a check that the answer spends on requests; see `answer.Meter`."""

    def __init__(self):
        self.used, self.depth = 0.0, 0
        self.before_request = self.began = 0.0

    clock = property(lambda self: self.used)
    of_request = property(lambda self: (self.used - self.before_request,) * 2)

    def begin_request(self):
        if not self.depth:
            self.before_request, self.began = self.used, time.process_time()
        self.depth += 1

    def read_now(self):
        """Seconds spent so far."""
        if self.depth:
            self.used = self.before_request + time.process_time() - self.began
        return self.used

    read = read_now

    def end_request(self):
        self.read_now()
        self.depth -= 1

    def forget_request(self, used):
        """Go on as if the request had not been: so many seconds were spent before it."""
        self.used = used


def copied(message, buffers):
    """A message as it would come out of a socket."""
    return json.loads(json.dumps(message)), [bytearray(buffer) for buffer in buffers]


class JudgeEnd:
    """The judge's end of the channel: to receive a reply is to have the worker make it."""

    def __init__(self, answer):
        self.answer, self.message = answer, None

    def send(self, message, buffers=()):
        self.message = copied(message, buffers)

    def receive(self, wait=None):
        return self.answer.work(*self.message)


class WorkerEnd:
    """The worker's end: to receive is to have the judge call the function that was asked for."""

    def __init__(self, answer):
        self.answer, self.sent = answer, None

    def send(self, message, buffers=()):
        self.sent = copied(message, buffers)

    def receive(self):
        return copied(*self.answer.callback(*self.sent))


class InsideAnswer(Answer):
    """An `Answer` without a process of its own."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.slower = SLOWER
        self.budget = Budget(str(self.path))
        self.said = io.StringIO()

    def start(self):
        self.stop()
        self.generation += 1
        self.process = self.channel = JudgeEnd(self)
        linecache.checkcache(str(self.path))  # it may have changed since the last time
        self.worker = Worker(WorkerEnd(self), self.options)
        self.worker.lifted = contextlib.nullcontext
        self.meter = self.new_meter()
        self.request("load")

    def stop(self):
        self.process = self.channel = None

    def new_meter(self):
        self.budget.left, self.budget.line, self.budget.is_late = MOST_STEPS, None, False
        return Meter()

    def work(self, message, buffers):
        """Have the worker answer one request, as a process of its own would."""
        self.budget.until = time.process_time() + self.patience - self.meter.read()
        with contextlib.ExitStack() as around:
            around.enter_context(_own_state(self.options["strict"]))
            around.enter_context(contextlib.redirect_stdout(self.said))
            around.enter_context(contextlib.redirect_stderr(self.said))
            around.enter_context(self.budget)
            self.worker.answer(message, buffers)
        if self.budget.line is not None:
            raise TimeoutError
        return self.worker.channel.sent

    def _hangs(self, used, clock):
        if self.budget.is_late:
            super()._hangs(used, clock)
        self.hung[self.check], self.endless = "did not end", True
        self._end(
            f"stopped after {MOST_STEPS:,} steps: is there a loop that does not end? "
            f"{self._line_now()}"
        )

    def _line_now(self):
        line = self.budget.line
        return f"It was in line {line}: {_line(self.path, line)}"

    def take_output(self):
        said, self.said = self.said, io.StringIO()
        before, self.said_last = getattr(self, "said_last", ""), ""
        return (before + said.getvalue())[:MOST_OUTPUT]


@contextlib.contextmanager
def _own_state(strict):
    """The settings with which an answering process begins; afterwards those of the judge."""
    lists = engine.tracing.lists[:]
    was_enabled, wrote = simt.is_enabled(), sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    simt.enable()
    engine.tracing.lists[:] = []
    try:
        with simt.options(**dataclasses.asdict(Options())), warnings.catch_warnings():
            warnings.resetwarnings()
            warnings.simplefilter("error" if strict else "ignore")
            warnings.simplefilter("error", KernelWarning)
            yield
    finally:
        engine.tracing.lists[:] = lists
        sys.dont_write_bytecode = wrote
        if not was_enabled:
            simt.disable()
