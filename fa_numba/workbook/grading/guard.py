"""Restrictions of an answering process: files, processes, memory, size of its output.

This stops accidents and plain attempts, with a clear error. It is no sandbox: docs/grading.md
says what remains possible.
"""

from __future__ import annotations

import os
import re
import signal
import sys

MOST_OUTPUT = 64 << 20  # bytes of one file that it writes
STARTS_PROCESS = {
    "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "os.startfile",
    "pty.spawn", "subprocess.Popen",
}  # fmt: skip
CHANGES_FILES = {
    "os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir",
    "os.symlink", "os.truncate", "os.utime", "shutil.copyfile", "shutil.move", "shutil.rmtree",
}  # fmt: skip
OTHER_PROCESS = re.compile(r"/proc/(\d+)(/|$)")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
NO_GRADER = "fa_numba.workbook", "solutions"


class Refused(PermissionError):
    """The answer uses something that is not allowed."""


def limit_resources(memory_bytes: int | None) -> None:
    """No core dump, no endless file, and no more than this much additional memory."""
    try:
        import resource
    except ImportError:  # Windows
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_OUTPUT, MOST_OUTPUT))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # an OSError, no death
    if memory_bytes is not None and sys.platform == "linux":
        with open("/proc/self/statm", "rb") as file:
            now = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (now + memory_bytes, now + memory_bytes))


def install(root: str, folder: str, answer: str, forbidden: tuple[str, ...]):
    """Add the audit hook; return the function that lifts it while our own code works.

    Parameters
    ----------
    root : str
        The workbook. Its solutions, graders and progress are not for the answer.
    folder : str
        The only folder where files may be written.
    answer : str
        The learner's file, which may be read wherever it is.
    forbidden : tuple of str
        Further files that are neither read nor written, such as the JSON of the results.
    """
    root, folder, answer = (os.path.realpath(path) for path in (root, folder, answer))
    solutions, exercises = os.path.join(root, "solutions"), os.path.join(root, "exercises")
    forbidden = frozenset(map(os.path.realpath, forbidden))
    own_pid, null = os.getpid(), os.path.realpath(os.devnull)
    lifted = []

    def inside(path, parent):
        return path == parent or path.startswith(parent + os.sep)

    def is_secret(path):
        name = os.path.basename(path)
        if path == answer:
            return False
        if inside(path, solutions) or path in forbidden:
            return True
        if name == ".progress.json" or (inside(path, exercises) and name.startswith("test_ex")):
            return True
        other = OTHER_PROCESS.match(path)
        return other is not None and int(other[1]) != own_pid

    def look_at(path, writes):
        if isinstance(path, int):
            return
        path = os.path.realpath(os.fsdecode(path))
        if is_secret(path):
            raise Refused(f"an answer may not open {os.path.basename(path)}: it is the grader's")
        if writes and not inside(path, folder) and path != null:
            raise Refused(f"an answer may not write files, here {path}")

    def hook(event, args):
        if lifted:
            return
        if event == "open":
            path, mode, flags = args
            if path is None:
                return
            writes = flags & WRITES if flags is not None else 0
            look_at(path, writes or (isinstance(mode, str) and set(mode) & set("wax+")))
        elif event == "import":
            name = args[0]
            if name.startswith(NO_GRADER) or name.rpartition(".")[2].startswith("test_ex"):
                raise Refused(f"an answer may not import {name}: it is the grader's")
        elif event in STARTS_PROCESS:
            raise Refused("an answer may not start processes")
        elif event in CHANGES_FILES:
            for path in args:
                if isinstance(path, str | bytes):
                    look_at(path, True)
        elif event == "os.listdir":
            path = args[0] or "."
            if not isinstance(path, int) and inside(os.path.realpath(path), solutions):
                raise Refused("an answer may not look into solutions/: it is the grader's")
        elif event in ("os.kill", "os.killpg") and args[0] != own_pid:
            raise Refused("an answer may not send signals to other processes")
        elif event in ("socket.connect", "socket.bind"):
            raise Refused("an answer may not use the network")

    sys.addaudithook(hook)

    class Lifted:
        def __enter__(self):
            lifted.append(True)

        def __exit__(self, *error):
            lifted.pop()

    return Lifted
