"""Jupyter kernels that begin with Numba, Matplotlib and the package imported.

A lesson's kernel spends more on its imports than many a lesson on its cells. Here one process, in
the environment that the kernels are to have, imports what lessons import and is forked for each
kernel; the command that Jupyter starts asks it to, and waits for the end.
"""

import contextlib
import gc
import json
import os
import socket
import sys


@contextlib.contextmanager
def server(env):
    """The process, with these variables; the start of a kernel's command, up to ``-f``."""
    import subprocess
    import tempfile

    with tempfile.TemporaryDirectory() as folder:  # its path is short, as a socket's must be
        address = os.path.join(folder, "socket")
        serve = [sys.executable, __file__, "serve", address]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(serve, env=env, **pipes) as process:
            assert process.stdout.readline() == b"ready\n"
            yield [sys.executable, "-I", "-S", __file__, "ask", address]


def ask(address, *arguments):
    """Have a kernel forked, with this process's files and variables; wait until it has ended."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        request = {"arguments": arguments, "env": dict(os.environ), "cwd": os.getcwd()}
        socket.send_fds(connection, [json.dumps(request).encode() + b"\n"], [0, 1, 2])
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)


def serve(address):
    """Fork kernels until the input ends."""
    import select

    import ipykernel.kernelapp  # noqa: F401
    import matplotlib.pyplot  # noqa: F401

    import fa_numba.analysis.machine_code
    import fa_numba.figures
    import fa_numba.simt
    import fa_numba.workbook  # noqa: F401

    gc.collect()
    gc.freeze()  # kernels do not copy pages only because the collector has looked at them
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        print("ready", flush=True)
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                with contextlib.suppress(BaseException):
                    be_a_kernel(connection)
                os._exit(0)
            connection.close()
            reap()
    reap()


def reap():
    """Forget the kernels that have ended. Others end by themselves once this process has."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def be_a_kernel(connection):
    """What ``python -m ipykernel_launcher`` does; the connection closes with the process."""
    from ipykernel import kernelapp

    text, files, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    while not text.endswith(b"\n"):
        text += connection.recv(1 << 20)
    request = json.loads(text)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["env"], JPY_PARENT_PID=str(os.getppid()))
    os.chdir(request["cwd"])
    sys.argv[:] = ["ipykernel_launcher", *request["arguments"]]
    kernelapp.launch_new_instance()


if __name__ == "__main__":
    {"ask": ask, "serve": serve}[sys.argv[1]](*sys.argv[2:])
