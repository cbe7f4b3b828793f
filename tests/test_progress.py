"""What is kept of a learner: nothing is lost with two writers, and none waits for ever."""

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fa_numba.workbook import progress

ROOT = Path(__file__).parents[1]
WRITER = """
import sys
from pathlib import Path
from fa_numba.workbook import progress
root, name = Path(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
for i in range(200):
    progress.keep(root, {f"{name}{i}": {"passed": i}, "both": {"hints": i, name: i}})
"""


def test_two_writers_lose_nothing(tmp_path):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT}/engine"}
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, tmp_path, name], env=environment, **pipes)
        for name in ("left", "right")
    ]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:  # both at once
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    kept = progress.load(tmp_path)
    want = {f"{name}{i}": {"passed": i} for name in ("left", "right") for i in range(200)}
    assert kept == want | {"both": {"hints": 199, "left": 199, "right": 199}}
    assert [path.name for path in tmp_path.iterdir()] == [progress.FILE]


def test_a_lock_that_is_never_released_is_not_awaited_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "LONGEST_WAIT", 0.1)
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        start = time.monotonic()
        progress.keep(tmp_path, {"a": {"passed": 1}})
        assert time.monotonic() - start >= 0.1
    finally:
        os.close(folder)
    assert progress.load(tmp_path) == {"a": {"passed": 1}}


def test_progress_in_a_file_of_ones_own(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    progress.keep(here, {"ex00a_x": {"hints": 2, "passed": 3}})
    progress.keep(there, {"ex00a_x": {"hints": 3}, "ex00b_x": {"hints": 1}})
    saved = progress.save(tmp_path / "mine.json", here)
    progress.restore(saved, there)
    want = {"ex00a_x": {"hints": 3, "passed": 3}, "ex00b_x": {"hints": 1}}
    assert progress.load(there) == want
    saved.write_text("[1]")
    with pytest.raises(ValueError, match="file must be one that `save` has written, got"):
        progress.restore(saved, there)


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def flock(folder, operation):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(progress, "flock", flock)
    progress.keep(tmp_path, {"a": {"passed": 1}})
    progress.keep(tmp_path, {"a": {"hints": 2}})
    progress.keep(tmp_path, {"a": {"hints": 1}})
    assert progress.load(tmp_path) == {"a": {"passed": 1, "hints": 2}}
