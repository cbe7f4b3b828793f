"""Judges that begin with pytest and Numba imported, as grading starts many of them.

`fa-numba check` and its like start ``python -m pytest``, and that the process which answers: two
seconds, nearly all of them imports. Here one process imports everything once, starts one fork
server, and is forked for each judge. `test_hostile_answers` and others start judges as users do.
So are the programs of tests that run kernels by `hopper_model`, which replaces names of Numba, and
those that grade many answers.
"""

import contextlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path

ROOT = Path(__file__).parents[1]
SECONDS = 600  # of a program, at most


class WarmJudges:
    """The process that is forked; `run` has the arguments and the result of `subprocess.run`."""

    def __init__(self):
        self.process, self.lock = None, threading.Lock()

    def run(self, *command, **how):
        with self.lock:
            return self._run(*command, **how)

    def _run(self, command, *, cwd, env=os.environ, **how):
        assert command[0] == sys.executable, command
        program, arguments = command[1], [*map(str, command[2:])]
        if module := program == "-m":
            program, *arguments = arguments
        assert how.pop("encoding", "utf-8") == "utf-8"
        if how.pop("pass_fds", ()):  # a process that is there already cannot inherit them
            ours = f"/proc/{os.getpid()}/fd/"
            arguments = [argument.replace("/dev/fd/", ours) for argument in arguments]
        assert how == {"capture_output": True, "text": True}, how
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT}/engine"},
            )
        with tempfile.TemporaryDirectory() as folder:
            request = {"program": str(program), "arguments": arguments, "out": folder}
            request |= {"module": module}
            request |= {"cwd": str(cwd), "env": dict(env)}
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            status = int(self.process.stdout.readline())
            texts = [Path(folder, name).read_text(encoding="utf-8") for name in ("1", "2")]
        return subprocess.CompletedProcess(command, status, *texts)

    def close(self):
        if self.process is not None:
            self.process.communicate()


def serve(request):
    """In a process of its own: all that pytest or a program does after its imports."""
    import pytest

    for number in (1, 2):
        with open(Path(request["out"], str(number)), "w", encoding="utf-8") as file:
            os.dup2(file.fileno(), number)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    program, arguments = request["program"], request["arguments"]
    if program == "pytest":
        sys.path[0] = request["cwd"]
        return int(pytest.main(arguments))
    sys.argv[:] = [program, *arguments]
    sys.path[0] = request["cwd"] if request["module"] else str(Path(program).parent)
    signal.alarm(SECONDS)
    try:
        if request["module"]:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main():
    from fa_numba.workbook import mutants
    from fa_numba.workbook.grading import processes

    mutants.import_graders()
    processes.fork_server()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            status = 70  # of an error in the lines above
            with contextlib.suppress(BaseException):
                status = serve(json.loads(line))
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    processes.close_fork_server()


if __name__ == "__main__":
    main()
