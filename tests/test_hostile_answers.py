"""Files that hang, crash, shout and cheat: each fails alone, in time, with one clear sentence.

All of them are graded in one run, as exercises of a workbook made for the test. In the middle of
them are right answers, whose verdicts must stand.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fa_numba.workbook import catalog, grader, progress
from fa_numba.workbook.grading import wall

REPOSITORY = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits are those of Linux")

SOLUTION = '''"""{short} · Twice

Return twice x; in a kernel too.
"""

from numba import cuda

### HINT 1: a nudge
### HINT 2: the idea
### HINT 3: 2 * x
### DEBRIEF: SECRET OF THE DEBRIEF.


def double(x):
    """Twice x."""
    ### BEGIN SOLUTION
    return x + x  # SECRET OF THE SOLUTION
    ### END SOLUTION


def half(x):
    """Half of x."""
    ### BEGIN SOLUTION
    return x / 2
    ### END SOLUTION


@cuda.jit
def scale(x, out):
    """out = 2 x."""
    ### BEGIN SOLUTION
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = 2 * x[i]
    ### END SOLUTION
'''

GRADER = """
import numpy as np
import pytest

from fa_numba import simt

SECONDS_PER_CHECK = 0.4
SECONDS_IN_ALL = 3
MEMORY_GIB = 0.5
EXPECTED = [739152471, 739152473, 739152475]


@pytest.mark.parametrize("i", [0, 1, 2])
def test_double(exercise, i):
    '''doubles numbers'''
    got = exercise.double(EXPECTED[i] / 2)
    assert got == EXPECTED[i], f"must be {EXPECTED[i]}, got {got}"


def test_half(exercise):
    '''halves numbers'''
    assert exercise.half(4) == 2


def test_scale(exercise):
    '''scales in a kernel'''
    x, out = np.arange(5, dtype=np.float32), np.full(5, np.nan, np.float32)
    simt.run(exercise.scale, 1, 8, x, out)
    assert (out == 2 * x).all(), f"must be {2 * x}, got {out}"
"""

HEAD = "import os, sys, gc, builtins, signal, threading, time\nfrom numba import cuda\n"
DOUBLE = "def double(x): return 2 * x\n"
HALF = "def half(x): return x / 2\n"
SCALE = """
@cuda.jit
def scale(x, out):
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = 2 * x[i]
"""
REST = HALF + SCALE
RIGHT = HEAD + DOUBLE + REST


def at_import(lines):
    return HEAD + lines + "\n" + DOUBLE + REST


def in_double(lines):
    body = "".join(f"    {line}\n" for line in lines.splitlines())
    return HEAD + f"def double(x):\n{body}    return 2 * x\n" + REST


def cheat(lines, result="2"):
    """A function that is wrong unless it finds what it looks for."""
    body = "".join(f"        {line}\n" for line in lines.splitlines())
    return (
        HEAD
        + f"def double(x):\n    try:\n{body}        return {result}\n"
        + "    except BaseException as error:\n        print('CAUGHT', error)\n        return 0\n"
        + REST
    )


# name: (text of the file, what its first message must say, outcomes of double, half and scale)
PASS, FAIL = "passed", "failed"
ALL = FAIL, FAIL, FAIL
FIRST = FAIL, PASS, PASS
HOSTILE = {
    # --- when the file is imported
    "import_loop": (at_import("while True: pass"), "does not end.*It was in line 3", ALL),
    "import_sleep": (at_import("time.sleep(1000)"), "stopped after", ALL),
    "import_exit": (at_import("sys.exit(0)"), r"exit\(\)", ALL),
    "import_os_exit": (at_import("os._exit(0)"), r"ended its own process \(exit status 0\)", ALL),
    "import_skip": (at_import("import pytest; pytest.skip('x', allow_module_level=True)"),
                    "skips the check", ALL),
    "import_pytest_exit": (at_import("import pytest; pytest.exit('done', 0)"), "ends pytest", ALL),
    "import_keyboard": (at_import("raise KeyboardInterrupt"), "KeyboardInterrupt", ALL),
    "import_kill": (at_import("os.kill(os.getpid(), signal.SIGKILL)"), "SIGKILL", ALL),
    "import_stop": (at_import("os.kill(os.getpid(), signal.SIGSTOP)"), "stopped after", ALL),
    "import_builtins": (at_import("builtins.len = lambda *a: 7"), "changes builtins.len", ALL),
    "import_numpy": (at_import("import numpy\nnumpy.isnan = numpy.full = None"),
                     "changes numpy.", ALL),
    "import_syntax": ("def double(x:\n", "does not import.*\n  line 1", ALL),
    # --- when a function is called
    "loop": (in_double("while True: pass"), "does not end.*It was in line", FIRST),
    "loop_deaf": (in_double("signal.signal(signal.SIGUSR1, signal.SIG_IGN)\nwhile True: pass"),
                  "does not end", FIRST),
    "slow": (in_double("t = time.process_time() + 0.5\nwhile time.process_time() < t: pass"),
             r"^slow: took 0\.\d s, the limit is 0\.4 s"
             r"|^stopped after (0\.[45] s:|.* on a busy machine, 0\.[345] s)", FIRST),
    "sleeps": (in_double("time.sleep(1000)"), "stopped after", FIRST),
    "waits_for_input": (in_double("input()"), "EOFError", FIRST),
    "os_exit": (in_double("os._exit(3)"), r"exit status 3", FIRST),
    "sys_exit": (in_double("sys.exit()"), r"exit\(\)", FIRST),
    "abort": (in_double("os.abort()"), "abort.*\n  line", FIRST),
    "segfault": (in_double("import ctypes; ctypes.string_at(0)"), "segmentation fault", FIRST),
    "recursion": (in_double("return double(x) + 1"), "RecursionError", FIRST),
    "stack": (in_double("sys.setrecursionlimit(10**9)\nreturn eval('-' * 90000 + '1')"),
              "MemoryError|RecursionError|segmentation|too complex|nested", FIRST),
    "memory": (in_double("x = bytearray(1 << 40)"), "MemoryError: more memory", FIRST),
    "list_growth": (in_double("y = [0]\nwhile True: y = 100_000 * y"), "MemoryError", FIRST),
    "small_growth": (in_double("y = []\nwhile True: y.append(bytes(1 << 20))"),
                     "MemoryError: more memory than an answer may take\n  line", FIRST),
    "digits": (in_double("return 1 << 40_000_000"), "a whole number of 40,000,001 bits", FIRST),
    "skip": (in_double("import pytest; pytest.skip('no')"), "skips the check", FIRST),
    "skip_test": (in_double("import unittest; raise unittest.SkipTest('no')"), "skips", FIRST),
    "xfail": (in_double("import pytest; pytest.xfail('no')"), "expected failure", FIRST),
    "keyboard": (in_double("raise KeyboardInterrupt"), "KeyboardInterrupt", FIRST),
    "long_error": (in_double("raise ValueError('no ' * 2_000_000)"), "6,000,000 characters", FIRST),
    "bad_error": (in_double("class E(Exception):\n    def __str__(self): os._exit(0)\nraise E()"),
                  "exit status 0", FIRST),
    "long_output": (in_double("print('word ' * 1_000_000)\nreturn 0"), "must be 739152471", FIRST),
    "close_fds": (in_double("os.closerange(0, 100)"), "connection|ended its own", FIRST),
    "noise": (in_double("for f in range(3, 20):\n    try: os.write(f, b'x' * 100)\n"
                        "    except OSError: pass"), "no answer|is not", FIRST),
    "kernel_loop": (HEAD + DOUBLE + HALF + """
@cuda.jit
def scale(x, out):
    i = 0
    while i != -1:
        i += 1
""", "does not end.*It was in line", (PASS, PASS, FAIL)),
    # --- what is no text
    "utf16": (RIGHT.encode("utf-16"), "UTF-16: save it as UTF-8", ALL),
    "latin1": (RIGHT.encode() + b"# \xe9\n", "line 11, is not UTF-8", ALL),
    "zero_bytes": (RIGHT.encode() + b"\0\0", "zero bytes", ALL),
    "folder": (None, "is a folder", ALL),
    "large": (b"#" * (2 << 20), "2,097,152 bytes", ALL),
    # --- cheats
    "import_solution": (cheat("import solutions.ex70a_right"), "must be", FIRST),
    "read_solution": (cheat("text = open(ROOT + '/solutions/ex70a_right.py').read()"), "must be",
                      FIRST),
    "read_grader": (cheat("text = open(ROOT + '/exercises/test_ex70a_right.py').read()"),
                    "must be", FIRST),
    "list_solutions": (cheat("assert os.listdir(ROOT + '/solutions')"), "must be", FIRST),
    "write_progress": (cheat("open(ROOT + '/.progress.json', 'w').write('{}')"), "must be", FIRST),
    "write_elsewhere": (cheat("open(ROOT + '/exercises/new.py', 'w').write('')"), "must be", FIRST),
    "replace_file": (cheat("os.rename(__file__, __file__ + 'x')"), "must be", FIRST),
    "process": (cheat("import subprocess; subprocess.run(['true'])"), "must be", FIRST),
    "fork": (cheat("os.fork()"), "must be", FIRST),
    "kill_parent": (cheat("os.kill(os.getppid(), 9)"), "must be", FIRST),
    "import_checks": (cheat("import fa_numba.workbook.graders.attention"), "must be", FIRST),
    "import_grader": (cheat("sys.path.insert(0, ROOT + '/exercises'); import test_ex70a_right"),
                      "must be", FIRST),
    "other_memory": (cheat("open(f'/proc/{os.getppid()}/maps').read()"), "must be", FIRST),
    "look_around": (cheat("""
import re
found, frame, secrets = [], sys._getframe(), '73915247[3]|SECRET O[F] |test_hal[f]'
while frame: found += [str(frame.f_locals), str(list(frame.f_globals))]; frame = frame.f_back
for y in [z for y in gc.get_objects() for z in [y, *gc.get_referents(y)]]:
    if type(y) in (str, int): found.append(str(y)[:300])
found = [text for text in found if re.search(secrets, text)]
print('FOUND', found)
assert found
"""), "must be", FIRST),
    "dir_fd_read": (cheat("os.open('solutions/ex70a_right.py', 0, dir_fd=os.open(ROOT, 0))"),
                    "must be", FIRST),
    "dir_fd_of_scandir": (cheat("""
with os.scandir(ROOT) as entries:
    for fd in range(100):
        try: os.open('exercises/test_ex70a_right.py', 0, dir_fd=fd)
        except (FileNotFoundError, NotADirectoryError): pass
        except OSError as error:
            if error.errno != 9: raise
"""), "must be", FIRST),
    **{
        name: (cheat(f"d = os.open(ROOT, os.O_RDONLY)\n{line}"), "must be", FIRST)
        for name, line in {
            "dir_fd_unlink": "os.unlink('exercises/ex70a_right.py', dir_fd=d)",
            "dir_fd_grader": "os.unlink('exercises/test_ex70a_right.py', dir_fd=d)",
            "dir_fd_mkdir": "os.mkdir('made', dir_fd=d)",
            "dir_fd_rename": "os.rename('exercises/ex70a_right.py', 'x', src_dir_fd=d)",
            "dir_fd_link": "os.link('solutions/ex70a_right.py', 'x', src_dir_fd=d)",
        }.items()
    },
    "fchdir": (cheat("os.fchdir(os.open(ROOT, 0))\nopen('solutions/ex70a_right.py')"), "must be",
               FIRST),
    "scandir_solutions": (cheat("os.scandir(ROOT + '/solutions')"), "must be", FIRST),
    "hard_link": (cheat("open(ROOT + '/notes.txt')"), "must be", FIRST),
    "git_head": (cheat("open(ROOT + '/.git')"), "must be", FIRST),
    "git_elsewhere": (cheat("open(ROOT + '_git/HEAD')"), "must be", FIRST),
    "sqlite3": (cheat("import sqlite3; sqlite3.connect(ROOT + '/made')"), "must be", FIRST),
    "readline": (cheat("import readline; readline.read_history_file(ROOT + '/notes.txt')"),
                 "must be", FIRST),
    "interpreter": (cheat("""
try: import _interpreters as i
except ModuleNotFoundError: import _xxsubinterpreters as i
i.run_string(i.create(), 'open(' + repr(ROOT + '/notes.txt') + ')')
"""), "must be", FIRST),
    "fd_chmod": (cheat("os.chmod(os.open(ROOT + '/exercises/ex70a_right.py', 0), 0)"), "must be",
                 FIRST),
    "fd_utime": (cheat("os.utime(os.open(ROOT + '/exercises/ex70a_right.py', 0))"), "must be",
                 FIRST),
    "mkfifo": (cheat("os.mkfifo(ROOT + '/made')"), "must be", FIRST),
    "fork_exec": (cheat("import _posixsubprocess; _posixsubprocess.fork_exec()"), "must be", FIRST),
    "pidfd": (cheat("signal.pidfd_send_signal(os.pidfd_open(os.getppid()), 9)"), "must be", FIRST),
    "always_equal": (in_double("class E(float):\n    def __eq__(self, other): return True\n"
                               "    __hash__ = None\nreturn E(1)"), "got 1.0", FIRST),
    "always_equal_object": (in_double(
        "class E:\n    def yes(self, *other): return True\n"
        "    __eq__ = __le__ = __ge__ = __lt__ = __gt__ = __bool__ = __contains__ = yes\n"
        "    def __ne__(self, other): return False\n    __hash__ = object.__hash__\nreturn E()"),
        "must be", FIRST),
}  # fmt: skip
# C code, of which the audit hook hears nothing: the kernel's Landlock refuses it.
LIBC = "import ctypes\nc = ctypes.CDLL(None, use_errno=True)\n"
BY_C = {
    "read": "c.open((ROOT + '/solutions/ex70a_right.py').encode(), 0)",
    "read_git": "c.open((ROOT + '_git/HEAD').encode(), 0)",
    "unlink": "c.unlink((ROOT + '/exercises/ex70a_right.py').encode())",
    "unlink_grader": "c.unlink((ROOT + '/exercises/test_ex70a_right.py').encode())",
    "write": "c.open((ROOT + '/made').encode(), os.O_CREAT | os.O_WRONLY, 0o644)",
    "mkdir": "c.mkdir((ROOT + '/made').encode(), 0o755)",
    "kill_parent": "c.kill(os.getppid(), 9)",
    "other_memory": "c.open(f'/proc/{os.getppid()}/mem'.encode(), 0)",
    "unhooked": "c.open(os.path.relpath(ROOT + '/solutions/ex70a_right.py').encode(), 0)",
}
if wall.version():
    HOSTILE |= {
        f"c_{name}": (
            cheat(f"{LIBC}if {call} < 0: raise OSError(ctypes.get_errno(), 'by the kernel')"),
            "must be", FIRST,
        )
        for name, call in BY_C.items()
        if name != "kill_parent" or wall.version() >= 6
    }  # fmt: skip
# These change only their own process, and are right there.
HARMLESS = {
    "right": RIGHT,
    "patched_pytest": at_import("import pytest\npytest.fail = pytest.raises = lambda *a: None"),
    "closed_stdout": at_import("sys.stdout.close(); sys.stderr.close(); os.close(1); os.close(2)"),
    "no_stdout": at_import("sys.stdout = sys.stderr = None"),
    "endless_thread": at_import("threading.Thread(target=lambda: time.sleep(1000)).start()"),
    "exit_hooks": at_import("import atexit; atexit.register(lambda: time.sleep(1000))"),
    "other_names": RIGHT.replace("(x, out)", "(source, result)")
    .replace("out.shape", "result.shape")
    .replace("out[i] = 2 * x[i]", "result[i] = 2 * source[i]"),
    "own_folder": at_import(
        "import tempfile\n"
        "with tempfile.TemporaryDirectory() as d: open(d + '/x', 'w').write(open(__file__).read())"
    ),
    "right_again": RIGHT,
}


def make_exercise(root, number, name, text):
    full = f"ex{70 + number // 26}{'abcdefghijklmnopqrstuvwxyz'[number % 26]}_{name}"
    short = full.split("_")[0]
    (root / f"solutions/{full}.py").write_text(SOLUTION.format(short=short))
    (root / f"exercises/test_{full}.py").write_text(GRADER)
    path = root / f"exercises/{full}.py"
    if text is None:
        path.mkdir()
    elif isinstance(text, bytes):
        path.write_bytes(text)
    else:
        path.write_text(text.replace("ROOT", repr(str(root))))
    return full


def make_workbook(root, files):
    for folder in ("solutions", "exercises"):
        (root / folder).mkdir(parents=True)
    shutil.copy(REPOSITORY / "exercises/conftest.py", root / "exercises")
    names = {name: make_exercise(root, i, name, text) for i, (name, text) in enumerate(files)}
    history = root.parent / f"{root.name}_git"  # as of a worktree
    (history / "objects/pack").mkdir(parents=True)
    (history / "HEAD").touch()
    (root / ".git").write_text(f"gitdir: {history}\n")
    os.link(next(root.glob("solutions/ex70a*")), root / "notes.txt")
    return names


def command(*arguments):
    return [sys.executable, "-m", "pytest", "exercises", "-p", "no:cacheprovider", *arguments]


def environment():
    keep = {k: v for k, v in os.environ.items() if k != "PYTEST_ADDOPTS"}
    return keep | {"PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY}/engine"}


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """{name: checks} of all files above, by one run of pytest, and what it printed."""
    root = tmp_path_factory.mktemp("hostile")
    harmless = list(HARMLESS.items())
    files = [(name, text) for name, (text, _, _) in HOSTILE.items()]
    names = make_workbook(root, [*harmless[:4], *files, *harmless[4:]])
    answer, scratch = root / "grade.json", Path(f"{root}_temporary")
    scratch.mkdir()
    run = subprocess.run(
        command(f"--grade-json={answer}"), cwd=root, env=environment() | {"TMPDIR": str(scratch)},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert answer.exists(), run.stdout[-3000:] + run.stderr[-3000:]
    data = {d["name"]: d["checks"] for d in json.loads(answer.read_text())}
    return {name: data[full] for name, full in names.items()}, run, root, names


def by_function(checks):
    """The outcomes of double, half and scale."""
    double, half, scale = checks[:3], checks[3], checks[4]
    assert len(checks) == 5
    failed = [c["outcome"] for c in double if c["outcome"] != "passed"]
    return (failed or ["passed"])[0], half["outcome"], scale["outcome"]


# One test reads all verdicts: another worker would grade all files anew for some of them.
def test_hostile_files(graded):
    verdicts = graded[0]
    for name, (_, says, outcomes) in HOSTILE.items():
        checks = verdicts[name]
        assert by_function(checks) == outcomes, (name, checks)
        failed = [c for c in checks if c["outcome"] == "failed"]
        message = failed[0]["message"]
        assert re.search(says, message, re.DOTALL), (name, message)
        assert all(len(c["message"]) < 6000 and len(c["output"]) < 30_000 for c in checks), name
        seconds = sum(c["seconds"] for c in checks)
        assert seconds < 30, f"{name} took {seconds} s"
    for name in HARMLESS:
        assert by_function(verdicts[name]) == (PASS, PASS, PASS), (name, verdicts[name])
    cheats = [name for name in HOSTILE if "CAUGHT" in str(HOSTILE[name][0])]
    for name in cheats:
        output = verdicts[name][0]["output"]
        why = "by the kernel" if name.startswith("c_") else "an answer may not|No module named"
        assert re.search("CAUGHT" if name == "look_around" else f"CAUGHT .*({why})", output), output
    assert "FOUND []" in verdicts["look_around"][0]["output"] and len(cheats) > 40
    the_run_itself_ends_as_it_should(*graded)


def test_nobody_waits_long_for_a_file_without_an_end(tmp_path):
    """With the limits of every exercise: 5 s of the answer's time, however many checks."""
    make_workbook(tmp_path, [("loop", in_double("while True: pass").replace("/ 2", "/ double(2)"))])
    (path,) = tmp_path.glob("exercises/test_ex*")
    more = (
        "@pytest.mark.parametrize('i', range(30))\ndef test_30(exercise, i): test_half(exercise)\n"
    )
    path.write_text(re.sub("(?m)^(SECONDS|MEMORY).*", "", GRADER) + more)
    answer = tmp_path / "grade.json"
    run = command(f"--grade-json={answer}")
    subprocess.run(run, cwd=tmp_path, env=environment(), capture_output=True, timeout=120)
    checks = json.loads(answer.read_text())[0]["checks"]
    assert len(checks) == 35 and all(c["outcome"] == "failed" for c in checks)
    assert checks[-1]["message"] == "not run: two checks before did not end"
    assert sum(c["seconds"] for c in checks) < 6


def the_run_itself_ends_as_it_should(checks, run, root, names):
    assert run.returncode == 1
    assert "INTERNALERROR" not in run.stdout and "Traceback" not in run.stdout + run.stderr
    assert f"{len(HARMLESS)} of {len(names)} exercises passed" in run.stdout
    kept = json.loads((root / ".progress.json").read_text())
    for name, full in names.items():
        right = name in HARMLESS
        assert (kept[full]["passed"] == kept[full]["total"]) == right, name
    assert not [*root.glob("exercises/new.py"), *root.glob("made")]
    assert not list(Path(f"{root}_temporary").iterdir())
    assert all((root / f"exercises/{x}{full}.py").exists() for full in names.values()
               for x in ("", "test_"))  # fmt: skip
    assert "SECRET" not in "".join(c["output"] + c["message"] for cs in checks.values() for c in cs)


def test_the_hook_refuses_the_same_without_landlock(tmp_path):
    names = r"(dir_)?fd_|git|hard_link|pidfd|fchdir|interpreter|readline"
    some = [name for name in HOSTILE if re.match(names, name)]
    files = [("right", RIGHT), *((n, HOSTILE[n][0]) for n in some), ("right_again", RIGHT)]
    names = make_workbook(tmp_path / "root", files)
    env = environment() | {"FA_NUMBA_LANDLOCK": "0"}
    answer = tmp_path / "grade.json"
    subprocess.run(
        command(f"--grade-json={answer}"), cwd=tmp_path / "root", env=env, capture_output=True,
        timeout=300,
    )  # fmt: skip
    data = {d["name"]: d["checks"] for d in json.loads(answer.read_text())}
    for name, full in names.items():
        assert by_function(data[full]) == (FIRST if name in some else (PASS, PASS, PASS)), name
        if name in some:
            assert "CAUGHT an answer may not" in data[full][0]["output"], name
    assert not list(tmp_path.glob("**/made"))


@pytest.mark.thorough
def test_with_two_workers(tmp_path):
    pytest.importorskip("xdist")
    some = ("loop", "os_exit", "skip", "write_progress")
    files = [("right", RIGHT), *((n, HOSTILE[n][0]) for n in some), ("right_again", RIGHT)]
    names = make_workbook(tmp_path, files)
    answer = tmp_path / "grade.json"
    run = subprocess.run(
        command("-n", "2", f"--grade-json={answer}"), cwd=tmp_path, env=environment(),
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    data = {d["name"]: d["checks"] for d in json.loads(answer.read_text())}
    for name, full in names.items():
        wanted = HOSTILE[name][2] if name in HOSTILE else (PASS, PASS, PASS)
        assert by_function(data[full]) == wanted
        assert progress.is_passed(catalog.Exercise(full, tmp_path)) == (name not in HOSTILE)
    assert f"2 of {len(names)} exercises passed" in run.stdout and run.returncode == 1


def test_grade_and_check_tell_the_same(tmp_path, monkeypatch, capsys, warm_judges):
    from fa_numba.workbook import cli

    files = [("right", RIGHT), ("os_exit", HOSTILE["os_exit"][0]), ("loop", HOSTILE["loop"][0])]
    make_workbook(tmp_path, files)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    right, ends, loops = grader.grade("ex70").graded
    assert right.passed and not ends.passed and not loops.passed
    assert "exit status 3" in ends.first_failure.message
    assert cli.main(["check", "ex70b"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "3 of 5 checks fail, all most likely for one cause: " in out
    assert "First: doubles numbers" in out and "exit status 3" in out


def test_what_cannot_be_written_changes_no_verdict(tmp_path, monkeypatch, warm_judges):
    make_workbook(tmp_path, [("right", RIGHT), ("wrong", RIGHT.replace("2 * x\n", "3 * x\n"))])
    (tmp_path / ".progress.json").mkdir()  # for root too, who may write everywhere
    if os.getuid():
        tmp_path.chmod(0o555)
    run = subprocess.run(
        command(), cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120
    )
    assert "1 of 2 exercises passed" in run.stdout
    assert "must be 739152471, got 1108728706.5" in run.stdout
    assert "Progress was not kept" in run.stdout and "Traceback" not in run.stdout + run.stderr
    monkeypatch.chdir(tmp_path)
    right, wrong = (report := grader.grade("ex70")).graded
    assert right.passed and not wrong.passed and "Progress was not kept" in repr(report)
    assert "Hint 1" in grader.hint("ex70a").markdown
    tmp_path.chmod(0o755)


def children_of(session_marker):
    """Command lines of processes that have this text in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if session_marker.encode() in (path / "environ").read_bytes():
                state = (path / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z":
                    found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    "sign, seconds",
    # at once: the fork server is still importing, and has not read the request for an answer
    [(signal.SIGINT, 2), (signal.SIGKILL, 2), (signal.SIGKILL, 0)],
    ids=["Ctrl-C", "killed", "killed-at-once"],
)
@pytest.mark.parametrize("front", [pytest.param("pytest", marks=pytest.mark.thorough), "check"])
def test_no_process_is_left_behind(tmp_path, sign, seconds, front):
    make_workbook(tmp_path, [("loop", HOSTILE["import_loop"][0])])
    (path,) = tmp_path.glob("exercises/test_ex*")
    path.write_text(GRADER.replace("CHECK = 0.4", "CHECK = 100"))
    marker = f"MARKER=hostile-{os.getpid()}-{sign}-{seconds}-{front}"
    (scratch := tmp_path / "temporary").mkdir()
    env = environment() | dict([marker.split("=")], TMPDIR=str(scratch))
    check = [sys.executable, "-m", "fa_numba.workbook.cli", "check", "ex70a"]
    run = subprocess.Popen(
        command() if front == "pytest" else check, cwd=tmp_path, env=env,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    until = time.monotonic() + 60
    while not list(scratch.glob("answer-*")) and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(seconds)  # after two the answer hangs
    assert list(scratch.glob("answer-*"))
    if sign == signal.SIGINT:
        os.killpg(run.pid, sign)  # a terminal sends it to the whole group
    else:
        run.kill()
    run.wait(30)
    until = time.monotonic() + 20
    while (left := children_of(marker)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not left
    assert not list(scratch.iterdir())


def test_the_table_of_hostile_files_is_whole():
    text = (REPOSITORY / "docs/hostile_files.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \| (.*?) \| (\w+) \|", text, re.MULTILINE)[1:]
    told = {name: verdict for name, verdict, kept in rows if kept == "kept"}
    assert told.keys() | {f"c_{name}" for name in BY_C} == {
        *HOSTILE, *(f"c_{name}" for name in BY_C)
    }, "python -m tests.hostile_table"  # fmt: skip
    assert all("checks fail" in verdict for verdict in told.values())
