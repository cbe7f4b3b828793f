"""The judge's side of an answer: its process, its limits, and how it ended."""

from __future__ import annotations

import ast
import builtins
import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import tempfile
import time
import weakref
from pathlib import Path

import numpy as np

from fa_numba.workbook.grading import processes
from fa_numba.workbook.grading.factors import Recorder
from fa_numba.workbook.grading.failures import AnswerError, rebuild
from fa_numba.workbook.grading.judge_codec import JudgeCodec
from fa_numba.workbook.grading.limits import AFTER_ENDLESS, GRACE, MOST_HUNG, Limits
from fa_numba.workbook.grading.proxies import Kernel
from fa_numba.workbook.grading.wire import Channel, Closed, Codec, WireError

START_SECONDS = 60
MOST_COMPILING = 30  # seconds of one compilation
MOST_OUTPUT = 20_000  # bytes of output in one check
FRAME = re.compile(r'File "(.*)", line (\d+) in (.*)')
SIGNALS = {
    "SIGSEGV": "it crashed (segmentation fault): too deep a recursion, or a wild pointer",
    "SIGBUS": "it crashed (bus error)",
    "SIGABRT": "it crashed (abort)",
    "SIGFPE": "it crashed (arithmetic error)",
    "SIGILL": "it crashed (illegal instruction)",
    "SIGKILL": "it was killed (SIGKILL): by itself, or because the machine has no memory left",
}


def _seconds(number):
    return f"{number:.0f} s" if number >= 3 else f"{number:.1f} s"


class Meter:
    """The time that a process spends on the requests of one check.

    It is processor time, so that a busy machine makes no answer wrong, and the time in which the
    process sleeps though it has been asked for something. Where the system does not tell, it is
    the clock on the wall.

    An answer that has not come back is charged half the clock, at most twice its own time: so a
    loop without an end is found on a busy machine too.
    """

    def __init__(self, pid):
        self.pid, self.before = pid, processes.cpu_seconds(pid)
        self.waited = self.used = self.clock = 0.0
        self.begin_request()

    def begin_request(self):
        self.last = time.monotonic()
        self.before_request = self.used, self.clock
        self.last_cpu = None

    @property
    def of_request(self):
        """Seconds of the request under way: its own, and by the clock."""
        used, clock = self.before_request
        return self.used - used, self.clock - clock

    def read(self):
        """Seconds spent so far; called again and again while a request is under way."""
        now = time.monotonic()
        passed, self.last = now - self.last, now
        self.clock += passed
        cpu, state = processes.cpu_and_state(self.pid)
        if self.before is None:
            self.waited += passed
            self.used = self.waited
        elif cpu is not None:  # else it has just ended: keep the last reading
            new = 0.0 if self.last_cpu is None else cpu - self.last_cpu
            # Asleep, or one of too many: a process that never gets on must end some day, too.
            self.waited += passed if state != "R" and new < 0.2 * passed else passed / 50
            self.last_cpu = cpu
            self.used = cpu - self.before + self.waited
        return self.used

    def end_request(self):
        """Called after each request; a quick one costs nothing."""
        if self.before is None:
            self.read()

    def forget_request(self, used):
        """Go on as if the request had not been: so many seconds were spent before it."""
        self.waited -= self.read_now() - used
        self.used, self.clock = used, self.before_request[1]

    def read_now(self):
        """Seconds spent, between two requests."""
        cpu = processes.cpu_seconds(self.pid)
        if self.before is not None and cpu is not None:
            self.used = cpu - self.before + self.waited
        return self.used


def charged(used, clock):
    """Seconds for which an answer is stopped, from its own and those by the clock."""
    return max(used, min(clock / 2, 2 * used))


class Ended(AnswerError):
    """The answering process is gone: it has crashed, ended itself, or was stopped."""


class Answer:
    """One exercise's answer.

    Parameters
    ----------
    path : Path
        The learner's file.
    root : Path
        The workbook.
    limits : Limits
    gpu, strict, compiles : bool
        Launch on the GPU; turn warnings into errors; whether a check will compile kernels.
    forbidden : sequence of str
        Files that the answer may not open, beside the grader's.
    reference : str, optional
        Text of the stub or the solution, which has the statement's names of parameters.
    """

    def __init__(
        self, path, root, limits=None, *, gpu=False, strict=False, compiles=False, forbidden=(),
        reference=None,
    ):  # fmt: skip
        self.path, self.limits = Path(path).absolute(), limits or Limits()
        self.slower = 6 if gpu else 1  # compilation and copies are not the learner's time
        self.options = {
            "path": str(self.path),
            "root": str(root),
            "gpu": gpu,
            "strict": strict,
            "compiles": compiles,
            "forbidden": [str(p) for p in forbidden],
            "memory": None if gpu else int(self.limits.memory_gib * 2**30),
        }
        self.process = self.channel = self.folder = None
        self.generation = 0  # of the process: objects of an earlier one are gone
        self.meter = None
        self.spent_before = 0.0  # in the checks before this one
        self.callbacks = []  # functions of the grader's that the answer may call
        self.ended = None  # why there is no process in this check any more
        self.hung = {}  # checks in which the answer had to be stopped, or failed late: what it did
        self.endless = False  # whether it looked endless in one of them
        self.check = None
        self.classes = {}
        self.output_from = 0
        self.tracing = []
        self.counts = {}  # of the launches that this check has traced
        self.compiled = True  # whether all was that a check wanted compiled
        self.never_written = False  # whether the last launch left NaN where there was NaN
        self.reference = reference
        self.recorder = Recorder(reference)
        self.parameter_names = {}

    # --- the process

    def start(self):
        """Start a process and import the file there."""
        self.stop()
        if self.generation > self.limits.restarts:
            raise Ended(f"not run: {self.path.name} has hung or crashed {self.generation} times")
        self.generation += 1
        # Made by who starts the process: a folder of a judge that is killed here has no remover.
        folder = os.path.join(tempfile.gettempdir(), f"answer-{secrets.token_hex(8)}")
        self.folder = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.output, self.dump = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self.output_from = 0
        ours, theirs = socket.socketpair()
        fds = [theirs.fileno(), self.output.fileno(), self.dump.fileno()]
        self.process = processes.start(*fds, self.options | {"folder": folder})
        theirs.close()
        self.channel = Channel(ours)
        until = time.monotonic() + START_SECONDS

        def wait():
            if time.monotonic() > until:
                raise AnswerError("the process for the answer does not start")

        try:
            self.channel.receive(wait)
        except Closed:
            said = self.take_output()
            raise AnswerError(f"the process for the answer does not start: {said}") from None
        self.meter = self.new_meter()
        self.request("load")

    def stop(self):
        """End the process, if there is one."""
        if self.process is not None:
            self.process.kill()
            self.channel.close()
            self.process = self.channel = None
            self.output.close()
            self.dump.close()
        if self.folder is not None:
            self.folder()
            self.folder = None

    def begin_check(self, name):
        """A new check: a new allowance, and a new process if the last one has ended."""
        self.check, self.ended, self.compiled = name, None, True
        self.recorder.begin()
        self.counts = {}
        if self.meter is not None:
            self.spent_before += self.spent
            self.meter = None
        if name in self.hung:
            self.ended = Ended(f"not run: another case of this check {self.hung[name]}")
        elif len(self.hung) >= MOST_HUNG:
            first, second = list(self.hung.values())[:2]
            both = (
                f"two checks before {first}" if first == second else "two checks before took long"
            )
            self.ended = Ended(f"not run: {both}")
        elif self.spent_before > self.limits.seconds_in_all * self.slower:
            limit = _seconds(self.limits.seconds_in_all)
            self.ended = Ended(f"not run: the checks before have used up the {limit} for all")
        if self.ended:
            raise self.ended
        if self.process is None:
            self.start()
        else:
            self.meter = self.new_meter()

    def new_meter(self):
        """The time of one check."""
        return Meter(self.process.pid)

    @property
    def spent(self):
        """Seconds that this check has taken of the answer's time."""
        return 0.0 if self.meter is None else self.meter.read_now()

    @property
    def limit(self):
        return self.limits.seconds * self.slower

    @property
    def patience(self):
        """Seconds after which the answer is stopped.

        Fewer once a check did not end: the next one most likely meets the same loop.
        """
        return self.limit * (AFTER_ENDLESS if self.endless else GRACE)

    @property
    def slow(self):
        """The message about a check that was right and took too long, else ""."""
        if self.spent <= self.limit:
            return ""
        return f"slow: took {self.spent:.1f} s, the limit is {_seconds(self.limit)}"

    # --- requests

    def request(self, do, of=None, *, args=(), kwargs=None, **more):
        """Have the answer do something; return its value, or raise its error."""
        if self.ended is not None:
            raise self.ended
        writing = JudgeCodec(self)
        message = {"do": do, **more}
        if do != "load":
            message["of"] = writing.encode(of)
            message["args"] = writing.encode(tuple(args))
            message["kwargs"] = writing.encode(kwargs or {})
            if mutable := _mutable(args):
                message["mutable"] = mutable
        message["windows"] = writing.finish()
        if (state := np.geterr()) != DEFAULT_ERRSTATE:
            message["errstate"] = state
        if self.tracing:
            message["tracing"] = True
        made = None
        try:
            reply, buffers = self._exchange(message, writing.buffers)
            made = self._take(reply, buffers, writing, args)
            return made
        except (WireError, LookupError, ValueError, TypeError, RecursionError) as error:
            if getattr(error, "from_answer", False):
                raise
            self._end(f"{self.path.name} has sent a message that is no answer")
        finally:
            if do == "call":
                self.recorder.call(of.__name__, args, kwargs or {}, kernels_in(made))

    def _take(self, reply, buffers, writing, args):
        writing.buffers = buffers
        writing.arguments = args
        writing.write_back(reply["changed"], buffers)
        if "error" in reply:
            error = rebuild(reply["error"], self.own_class, self.path.name)
            late = charged(*self.meter.of_request) > self.limit * AFTER_ENDLESS  # memory, recursion
            if late and not isinstance(error, NotImplementedError):  # a stub on a busy machine
                self.hung[self.check] = f"took {_seconds(self.spent)} and failed"
            error.from_answer = True
            raise error
        for i, data in zip(_mutable(args), reply.get("arguments", [0, []])[1], strict=False):
            _replace(args[i], writing.decode(data))
        writing.take_traces(reply["traces"])
        return writing.decode(reply["value"])

    def _exchange(self, message, buffers):
        meter = self.meter
        meter.begin_request()
        left = max(self.limits.seconds_in_all * self.slower - self.spent_before, 0) + self.limit
        compiles = message["do"] == "gpu_ready"  # the compiler's time is not the learner's
        used_before = meter.read_now() if compiles else 0.0

        def wait():
            used = meter.read()
            if compiles:
                stop = used - used_before > MOST_COMPILING * self.slower
            else:
                stop = charged(used, meter.clock) > self.patience or used > left
            if stop:
                raise TimeoutError

        try:
            self.channel.send(message, buffers)
            reply, buffers = self.channel.receive(wait)
            while "callback" in reply:
                self.channel.send(*self.callback(reply, buffers))
                reply, buffers = self.channel.receive(wait)
            return reply, buffers
        except TimeoutError:
            self._hangs(*meter.of_request)
        except Closed:
            self._ends_itself()
        except WireError as error:
            self._end(f"{self.path.name} has sent a message that is no answer: {error}")
        finally:
            meter.end_request()
            if compiles:
                meter.forget_request(used_before)

    def callback(self, reply, buffers):
        """Call a function of the grader's that was given to the answer; return what to send."""
        function, writing = self.callbacks[reply["callback"]], Codec()  # of plain values
        try:
            value = function(*Codec(buffers).decode(reply["args"]))
            return {"value": writing.encode(value)}, writing.buffers
        except Exception as error:  # goes through the answer, as it would without processes
            return {"raised": f"{type(error).__name__}: {error}"}, ()

    def _hangs(self, used, clock):
        where = self._line_now()
        if self.endless:
            why = f"stopped after {_seconds(self.spent)}, because another check did not end."
        elif charged(used, clock) < self.limit:  # of the check alone: calls before it have ended
            spent = _seconds(charged(self.spent, self.meter.clock))
            why = f"slow: stopped after {spent}, the limit is {_seconds(self.limit)}."
        else:
            busy = (
                f" on a busy machine, {_seconds(used)} of them its own" if used < self.limit else ""
            )
            after = _seconds(clock if busy else used)
            why = f"stopped after {after}{busy}: is there a loop that does not end?"
            self.endless = True
        self.hung[self.check] = "did not end"
        self._end(why + (f" {where}" if where else ""))

    def _ends_itself(self):
        status = self.process.status()
        name = self.path.name
        if status is None:
            why = f"{name} has closed the connection to the grader"
        elif status >= 0:
            why = f"{name} ended its own process (exit status {status}), by os._exit or the like"
        else:
            signal_name = signal.Signals(-status).name
            why = f"{name}: " + SIGNALS.get(signal_name, f"it ended by the signal {signal_name}")
            if where := self._lines_of_dump():
                why += f"\n  {where[0]}"
        self._end(why)

    def _end(self, why):
        self.said_last = self.take_output()
        self.stop()
        self.ended = Ended(why)
        raise self.ended

    def _line_now(self):
        """Where the learner's code is at this moment, by a signal that dumps its stack."""
        if not hasattr(signal, "SIGUSR1"):
            return ""
        with contextlib.suppress(OSError):
            os.kill(self.process.pid, signal.SIGUSR1)
        for _ in range(20):
            time.sleep(0.02)
            if found := self._lines_of_dump():
                return f"It was in {found[0]}"
        return ""

    def _lines_of_dump(self):
        """Lines of the learner's file in faulthandler's output, the innermost first."""
        size = os.fstat(self.dump.fileno()).st_size
        text = os.pread(self.dump.fileno(), min(size, 1 << 16), 0).decode(errors="replace")
        found = []
        for file, line, _ in FRAME.findall(text):
            if os.path.basename(file) == self.path.name:
                source = _line(self.path, int(line))
                found.append(f"line {line}: {source}" if source else f"line {line}")
        return found

    # --- the statement's names

    def parameters(self, kernel, number):
        """The statement's names of the parameters of a kernel that has so many, or None.

        A kernel that the learner has named or nested otherwise is told by their number: those of
        the statement's kernels with as many parameters must agree on their names.
        """
        key = kernel._owner, number
        if key not in self.parameter_names:
            self.parameter_names[key] = self._parameters(kernel, number)
        return self.parameter_names[key]

    def _parameters(self, kernel, number):
        if self.reference is None:
            return None
        outer, *inner = kernel._owner.split(".<locals>.")
        tree = ast.parse(self.reference)
        functions = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == outer]
        if functions and inner:
            nested = [n for n in ast.walk(functions[0]) if isinstance(n, ast.FunctionDef)][1:]
            functions = [n for n in nested if n.name == inner[-1]] or nested
        if len(functions) != 1:
            functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and _jits(n)]
        names = {tuple(a.arg for a in f.args.args) for f in functions}
        names = {own for own in names if len(own) == number}
        return list(*names) if len(names) == 1 else None

    # --- output

    def take_output(self):
        """Output of the answer since the last call, at most some kilobytes."""
        if self.process is None:
            said, self.said_last = getattr(self, "said_last", ""), ""
            return said
        size = os.fstat(self.output.fileno()).st_size
        data = os.pread(
            self.output.fileno(), min(size - self.output_from, MOST_OUTPUT), self.output_from
        )
        self.output_from = size
        return data.decode("utf-8", errors="replace")

    # --- classes of its own

    def own_class(self, data):
        """The judge's class for an exception class of the learner's."""
        number, name, bases = data
        key = str(name)
        if key not in self.classes:
            known = (getattr(builtins, str(b), None) for b in bases)
            base = next(
                (k for k in known if isinstance(k, type) and issubclass(k, Exception)), Exception
            )
            self.classes[key] = type(key, (base,), {"_answer_number": number})
        return self.classes[key]


def kernels_in(value):
    """Numbers of the kernels that a call returned, alone or in a tuple."""
    items = value if isinstance(value, tuple) else (value,)
    return [x._number for x in items if isinstance(x, Kernel)]


def _line(path, number):
    with contextlib.suppress(OSError, UnicodeDecodeError, IndexError):
        return path.read_text(encoding="utf-8").splitlines()[number - 1].strip()[:200]
    return ""


def _mutable(args):
    """The places of arguments that the answer may change, and that are no arrays."""
    return [i for i, x in enumerate(args) if isinstance(x, list | dict | set)]


def _jits(function):
    """Whether a function of the stub is a kernel: decorated with ``@cuda.jit`` and no options."""
    return any(ast.unparse(decorator) == "cuda.jit" for decorator in function.decorator_list)


def _replace(container, new):
    """Give a list, dict or set of the judge the items that the answer has left in its copy."""
    if isinstance(container, list) and isinstance(new, list):
        container[:] = new
    elif isinstance(container, dict | set) and isinstance(new, type(container)):
        container.clear()
        container.update(new)


DEFAULT_ERRSTATE = np.geterr()
