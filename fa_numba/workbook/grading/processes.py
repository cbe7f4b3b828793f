"""Starting and ending answering processes, by the fork server or each anew."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import weakref
from pathlib import Path

import numba_cuda_simulator

PACKAGE = "fa_numba.workbook.grading"
# An answering process has the judge's own fa_numba and engine.
ROOTS = str(Path(__file__).parents[3]), str(Path(numba_cuda_simulator.__file__).parents[1])


def _environment():
    env = dict(os.environ)
    env["PYTHONPATH"] = os.pathsep.join([*ROOTS, *filter(None, [env.get("PYTHONPATH")])])
    # One thread for each answer: memory and time are those of its own code.
    env |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return env


class ServerGone(Exception):
    """The fork server has died; the next request starts another."""


class ForkServer:
    """The judge's end of the fork server. One for a session; it may be used from forked judges."""

    def __init__(self):
        self.control, other = socket.socketpair()
        self.control.settimeout(60)
        command = [sys.executable, "-m", f"{PACKAGE}.forkserver", str(other.fileno())]
        self.process = subprocess.Popen(
            command,
            pass_fds=[other.fileno()],
            stdin=subprocess.DEVNULL,
            env=_environment(),
            start_new_session=True,  # Ctrl-C is for the judge, which then ends this one
        )
        other.close()
        self.close = weakref.finalize(self, _close, self.control, self.process, os.getpid())

    def ask(self, fds=(), **request):
        try:
            socket.send_fds(self.control, [json.dumps(request).encode()], list(fds))
            reply = self.control.recv(1 << 16)
        except OSError as error:
            raise ServerGone from error
        if not reply:
            raise ServerGone
        return json.loads(reply)

    def start(self, sock, output, dump, options):
        return Forked(self, self.ask([sock, output, dump], do="fork", options=options)["pid"])


def _close(control, process, owner):
    control.close()
    if os.getpid() == owner:  # not in a judge that was forked, as the mutation script does
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            process.wait(5)
        with contextlib.suppress(OSError):
            process.kill()
            process.wait()


class Forked:
    """An answering process that the fork server has made."""

    def __init__(self, server, pid):
        self.server, self.pid = server, pid

    def status(self, seconds=1.0):
        try:
            return self.server.ask(do="status", pid=self.pid, seconds=seconds)["status"]
        except ServerGone:
            return -signal.SIGKILL

    def kill(self):
        with contextlib.suppress(ServerGone):
            self.server.ask(do="kill", pid=self.pid)


class Spawned:
    """An answering process with an interpreter of its own."""

    def __init__(self, sock, output, dump, options):
        os.mkdir(options["folder"], 0o700)
        fds = [sock, output, dump]
        command = [sys.executable, "-m", f"{PACKAGE}.answering", *map(str, fds)]
        self.process = subprocess.Popen(
            [*command, json.dumps(options)],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            env=_environment(),
            start_new_session=True,
        )
        self.pid = self.process.pid

    def status(self, seconds=1.0):
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        self._kill_group()
        return status

    def kill(self):
        self._kill_group()
        self.process.kill()
        self.process.wait()

    def _kill_group(self):
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)


_server = None


def fork_server(*, anew=False) -> ForkServer:
    """The session's fork server, started if need be."""
    global _server
    if _server is None or anew:
        close_fork_server()
        _server = ForkServer()
    return _server


def close_fork_server() -> None:
    global _server
    if _server is not None:
        _server.close()
        _server = None


def start(sock, output, dump, options):
    """An answering process on these file descriptors."""
    if options["gpu"] or not hasattr(os, "fork"):
        return Spawned(sock, output, dump, options)
    for anew in (False, True):
        try:
            return fork_server(anew=anew).start(sock, output, dump, options)
        except ServerGone:
            continue
    raise RuntimeError("the process that starts answers does not start itself")


def cpu_seconds(pid: int) -> float | None:
    """Processor time that a process has used; None if it is not known."""
    used, _ = cpu_and_state(pid)
    return used


def cpu_and_state(pid: int) -> tuple[float | None, str]:
    """Processor time of a process, and its state: "R" has work to do, whether or not it gets on."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None, ""
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), fields[0].decode()
