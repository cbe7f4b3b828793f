"""Restrictions of an answering process: files, processes, memory, size of its output.

`install` adds an audit hook, which refuses with a clear sentence, upon the wall of `wall`, which
holds for C code too where the kernel has it. docs/grading.md says what remains possible.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import signal
import sys
from pathlib import Path
from threading import get_ident

from fa_numba.workbook.catalog import course
from fa_numba.workbook.grading import wall

MOST_OUTPUT = 64 << 20  # bytes of one file that it writes
STARTS_PROCESS = {
    "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "os.startfile",
    "pty.spawn", "subprocess.Popen",
}  # fmt: skip
CHANGES_FILES = {
    "os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir",
    "os.removexattr", "os.setxattr", "os.symlink", "os.truncate", "os.utime", "shutil.copyfile",
    "shutil.move", "shutil.rmtree",
}  # fmt: skip
NETWORK = {"socket.bind", "socket.connect", "socket.sendmsg", "socket.sendto"}
# Functions that tell no audit hook, and what each would do.
UNTOLD = {
    "start processes": ("_posixsubprocess.fork_exec", "subprocess._fork_exec"),
    "make devices and pipes": ("os.mkfifo", "os.mknod"),
    "send signals to other processes": ("os.pidfd_open", "signal.pidfd_send_signal"),
}
# They open files from C, or start an interpreter that has no audit hook.
UNWATCHED = (
    *("_sqlite3", "_gdbm", "_dbm", "readline", "_tkinter"),
    *("_interpreters", "_xxsubinterpreters", "_testcapi", "_testinternalcapi"),
)
OTHER_PROCESS = re.compile(r"/proc/(\d+)(/|$)")
OPEN_FILES = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
ADDRESS_SPACE = "/proc/self/statm"
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
NO_GRADER = "fa_numba.workbook", "fa_numba.course", "solutions"


class Refused(PermissionError):
    """The answer uses something that is not allowed."""


def limit_resources(memory_bytes: int | None) -> None:
    """No core dump, no endless file; on Linux with /proc no more than this additional memory."""
    try:
        import resource
    except ImportError:  # Windows
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_OUTPUT, MOST_OUTPUT))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # an OSError, no death
    if memory_bytes is not None and (now := _address_space()) is not None:
        resource.setrlimit(resource.RLIMIT_AS, (now + memory_bytes, now + memory_bytes))


def _address_space():
    """Bytes of this process's address space; None where the system does not tell."""
    try:
        with open(ADDRESS_SPACE, "rb") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # macOS, or a container without /proc
        return None


def histories(root: str) -> list[str]:
    """The folders with git's history of the workbook, wherever a `.git` file says that they are."""
    found = []
    for folder in (Path(root), *Path(root).parents):
        git = folder / ".git"
        with contextlib.suppress(OSError):
            if git.is_file():  # of a worktree: "gitdir: PATH"
                found.append(git)
                git = folder / os.fsdecode(git.read_bytes()).partition(":")[2].strip()
            if git.is_dir():
                common = git / "commondir"
                whole = git / os.fsdecode(common.read_bytes()).strip() if common.exists() else git
                borrowed = whole / "objects/info/alternates"
                there = borrowed.exists()
                others = os.fsdecode(borrowed.read_bytes()).splitlines() if there else []
                found += [git, whole, *(whole / "objects" / other for other in others)]
    return [os.path.realpath(path) for path in found]


def secrets(root: str, forbidden: tuple[str, ...]) -> list[str]:
    """The files and folders that an answer may not read, where they are there; without links."""
    found = []
    for place in {Path(root), course(root)}:
        found += [str(place / name) for name in ("solutions", "tests", ".progress.json")]
        # Each file of the folders, too: it may have another name elsewhere, as a hard link.
        for files in ("exercises/test_ex*", "solutions/*", "tests/wrong_answers/*"):
            found += map(str, place.glob(files))
        found += histories(str(place))
    found = [os.path.realpath(path) for path in (*found, *forbidden)]
    return [path for path in found if os.path.exists(path)]


def _identity(path):
    """Device and inode of a file, the same for all its names; None if it is not there."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def _open_folders():
    """The folders that are open: each may be the `dir_fd` of a path, which no event tells."""
    try:
        numbers = os.listdir(OPEN_FILES)
    except OSError:  # no /proc: paths from the working folder are all that is known
        return
    for number in numbers:
        with contextlib.suppress(OSError, ValueError):
            path = os.readlink(f"{OPEN_FILES}/{number}")
            if os.path.isdir(path):
                yield path


def _named(path):
    """The path of a file that is given by its open number."""
    if not isinstance(path, int):
        return path
    try:
        return os.readlink(f"{OPEN_FILES}/{path}")
    except OSError:  # no /proc, or no such number
        return os.sep


def install(root: str, folder: str, answer: str, forbidden: tuple[str, ...], *, gpu: bool = False):
    """Build the wall, add the audit hook; return the function that lifts the hook for our own code.

    Parameters
    ----------
    root : str
        The workbook. Its solutions, graders, tests, history and progress are not for the answer.
    folder : str
        The only folder where files may be written.
    answer : str
        The learner's file, which may be read wherever it is.
    forbidden : tuple of str
        Further files that are neither read nor written, such as the JSON of the results.
    gpu : bool, default=False
        Whether CUDA's driver must be able to open its devices.
    """
    root, folder, answer = (os.path.realpath(path) for path in (root, folder, answer))
    hidden = secrets(root, forbidden)
    identities = {_identity(path) for path in hidden}
    forbidden = frozenset(map(os.path.realpath, forbidden))
    exercises = os.path.join(root, "exercises")
    own_pid, null = os.getpid(), os.path.realpath(os.devnull)
    own_file = _identity(answer)
    lifted = []  # the threads in which our own code works

    def inside(path, parent):
        return path == parent or path.startswith(parent + os.sep)

    def is_secret(path):
        parents = [*map(str, Path(path).parents)]
        if any(_identity(x) in identities for x in (path, *parents)):
            return _identity(path) != own_file
        name = os.path.basename(path)
        if path in forbidden or name == ".progress.json" or ".git" in path.split(os.sep):
            return True
        if inside(path, exercises) and name.startswith("test_ex"):
            return True
        other = OTHER_PROCESS.match(path)
        return other is not None and int(other[1]) != own_pid

    def places(path):
        """Every file that the kernel may take this path for."""
        path = os.fsdecode(path)
        yield os.path.realpath(path)
        if not os.path.isabs(path):
            for base in _open_folders():
                yield os.path.realpath(os.path.join(base, path))

    def look_at(path, writes):
        if isinstance(path, int):
            return
        for place in places(path):
            if is_secret(place):
                name = os.path.basename(place)
                raise Refused(f"an answer may not open {name}: it is the grader's")
            if writes and not inside(place, folder) and place != null:
                raise Refused(f"an answer may not write files, here {place}")

    class Lifted:
        def __enter__(self):
            lifted.append(get_ident())

        def __exit__(self, *error):
            lifted.remove(get_ident())

    def see(event, args):
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
            if name in UNWATCHED:  # an ImportError: pdb does without readline
                raise ImportError(
                    f"an answer may not import {name}: the guard does not see the files it opens"
                )
        elif event in STARTS_PROCESS:
            raise Refused("an answer may not start processes")
        elif event in CHANGES_FILES:
            for path in (_named(args[0]), *args[1:]):
                if isinstance(path, str | bytes):
                    look_at(path, True)
        elif event in ("os.listdir", "os.scandir"):
            look_at(args[0] or ".", False)
        elif event in ("os.kill", "os.killpg") and args[0] != own_pid:
            raise Refused("an answer may not send signals to other processes")
        elif event == "resource.prlimit" and args[0] not in (0, own_pid):
            raise Refused("an answer may not limit other processes")
        elif event == "sqlite3.connect":
            raise Refused("an answer may not use databases, here sqlite3")
        elif event in NETWORK:
            raise Refused("an answer may not use the network")

    def hook(event, args):
        if get_ident() not in lifted:
            with Lifted():  # what the hook itself opens
                see(event, args)

    def refuses(function, does):
        def refused(*args, **keywords):
            if get_ident() not in lifted:
                raise Refused(f"an answer may not {does}")
            return function(*args, **keywords)

        return refused

    for does, names in UNTOLD.items():
        for name in names:
            module, _, name = name.rpartition(".")
            with contextlib.suppress(ImportError, AttributeError):  # of another system
                module = importlib.import_module(module)
                function = refuses(getattr(module, name), does)
                for each in (module, sys.modules[getattr(module, name).__module__]):
                    setattr(each, name, function)
    readable = [answer] if any(inside(answer, path) for path in hidden) else []
    for name in UNWATCHED:  # the next import is an event
        sys.modules.pop(name, None)
    wall.build(hidden, readable, None if gpu else folder)
    sys.addaudithook(hook)

    return Lifted
