"""A process that has Numba and the engine imported, and forks answering processes on request.

Importing them takes a second, forking a few milliseconds. It knows no grader, no expected value
and no solution, so that nothing of the kind is in the memory that an answer can look at.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import shutil
import signal
import socket
import sys
import time

import numpy as np

from fa_numba import simt  # noqa: F401  the import is the point
from fa_numba.workbook.grading import answering
from fa_numba.workbook.grading.lifetime import die_with_parent


class ForkServer:
    """The loop of the server."""

    def __init__(self, control):
        self.control = control
        self.children = set()
        self.folders = []  # of the children, for a judge that is killed and cannot remove them
        self.warm = False
        # SIGTERM makes `wake` readable. An exception could be raised between two lines of
        # `do_fork`, and a child or its folder would be forgotten.
        self.wake, self.woken = socket.socketpair()
        self.woken.setblocking(False)
        signal.set_wakeup_fd(self.woken.fileno())
        signal.signal(signal.SIGTERM, lambda *_: None)

    def serve(self):
        try:
            while self.wake not in select.select([self.control, self.wake], [], [])[0]:
                text, fds, _, _ = socket.recv_fds(self.control, 1 << 16, 4)
                if not text:
                    break
                request = json.loads(text)
                reply = getattr(self, f"do_{request.pop('do')}")(fds, **request)
                for fd in fds:
                    os.close(fd)
                self.control.send(json.dumps(reply).encode())
        except BrokenPipeError:  # the judge was killed
            pass
        finally:
            for pid in list(self.children):
                self.do_kill([], pid)
            for folder in self.folders:
                shutil.rmtree(folder, ignore_errors=True)

    def do_fork(self, fds, options):
        if options["compiles"] and not self.warm:
            self.warm = True
            warm_up()
        os.mkdir(options["folder"], 0o700)
        self.folders.append(options["folder"])
        pid = os.fork()
        if pid:
            self.children.add(pid)
            return {"pid": pid}
        try:
            os.setsid()  # a group of its own, to be killed as one
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            for ours in (self.control, self.wake, self.woken):
                ours.close()
            answering.answer_with(socket.socket(fileno=fds[0]), fds[1], fds[2], options)
        finally:
            os._exit(1)

    def do_status(self, fds, pid, seconds):
        """How a child has ended, as `os.waitstatus_to_exitcode`, or None."""
        if pid not in self.children:  # killed on request
            return {"status": -signal.SIGKILL}
        until = time.monotonic() + seconds
        while pid in self.children:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self.children.discard(pid)
                with contextlib.suppress(OSError):  # what it has started
                    os.killpg(pid, signal.SIGKILL)
                return {"status": os.waitstatus_to_exitcode(status)}
            if time.monotonic() > until:
                break
            select.select([], [], [], 0.005)
        return {"status": None}

    def do_kill(self, fds, pid):
        if pid in self.children:
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self.children.discard(pid)
        return {}


def warm_up():
    """Compile a kernel, so that no answer waits while the compiler sets itself up."""
    from numba import cuda

    from fa_numba.analysis.gpu_ready import gpu_ready

    @cuda.jit
    def kernel(x):
        x[0] = x[1] * x[2]

    with contextlib.suppress(Exception):  # each answer will then say so itself
        gpu_ready(kernel, (np.zeros(4, np.float32),))


def main():
    server = ForkServer(socket.socket(fileno=int(sys.argv[1])))
    die_with_parent(signal.SIGTERM)
    gc.collect()
    gc.freeze()  # children do not copy pages only because the collector has looked at them
    server.serve()


if __name__ == "__main__":
    main()
