"""Landlock around an answer: what is read and written, in each version of it; git's history."""

import os
import subprocess
import sys

import pytest

from fa_numba.workbook.grading import guard, wall

landlock = pytest.mark.skipif(not wall.version(), reason="this kernel has no Landlock")
PROGRAM = """
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("wall", sys.argv[4])
wall = importlib.util.module_from_spec(spec)  # without Numba, which takes seconds to import
spec.loader.exec_module(wall)
version, root, gpu = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "gpu"
wall.version = lambda: version
secret, folder = root + "/solutions", root + "/folder"
assert wall.build([secret], [secret + "/own"], None if gpu else folder)
def works(do, *args):
    try: return bool(do(*args)) or True
    except PermissionError: return False
write = lambda path: open(path, "w").write("x")
print(*map(int, [
    works(open, secret + "/a"), works(open, secret + "/own"), works(open, root + "/beside"),
    works(open, root + "/link"), works(open, f"/proc/{os.getppid()}/mem"),
    works(write, root + "/new"), works(write, os.devnull), works(write, folder + "/new"),
    works(os.kill, os.getppid(), 0),
]))
"""


@landlock
@pytest.mark.parametrize("gpu", ["", "gpu"])
@pytest.mark.parametrize("version", range(1, wall.version() + 1))
def test_each_version_refuses_and_allows(tmp_path, version, gpu):
    for folder in ("solutions", "folder"):
        (tmp_path / folder).mkdir()
    for name in ("solutions/a", "solutions/own", "beside"):
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to("solutions/a")
    command = [sys.executable, "-c", PROGRAM, str(version), str(tmp_path), gpu, wall.__file__]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    writes, signals = int(bool(gpu)), int(version < 6)
    assert run.stdout.split() == [*"01100", str(writes), "1", "1", str(signals)]


def test_beside_holds_all_but_the_forbidden_files(tmp_path):
    for name in ("a/b", "a/c/d", "e"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "link").symlink_to("a")
    os.link(tmp_path / "a/b", tmp_path / "other_name_of_b")
    found = set(wall.beside([str(tmp_path / "a/b")]))
    mine = {path.removeprefix(f"{tmp_path}/") for path in found if path.startswith(str(tmp_path))}
    assert mine == {"a/c", "e"} and "/" not in found and str(tmp_path.parent) not in found
    # Other processes remove files of theirs meanwhile: what is gone is not found again.
    gone = {path for path in found if not os.path.lexists(path)}
    assert not gone & set(wall.beside([str(tmp_path / "a/b")]))


def test_histories_are_found_wherever_they_lie(tmp_path):
    main, borrowed, tree = tmp_path / "main/.git", tmp_path / "other.git/objects", tmp_path / "tree"
    (main / "worktrees/tree").mkdir(parents=True)
    (main / "objects/info").mkdir(parents=True)
    borrowed.mkdir(parents=True)
    tree.mkdir()
    (tree / ".git").write_text(f"gitdir: {main}/worktrees/tree\n")
    (main / "worktrees/tree/commondir").write_text("../..\n")
    (main / "objects/info/alternates").write_text(f"{borrowed}\n")
    found = guard.histories(str(tree))
    assert {tree / ".git", main / "worktrees/tree", main, borrowed} <= set(map(type(tree), found))
    assert str(main) in guard.histories(str(tmp_path / "main"))


def test_without_proc_the_memory_is_not_limited_and_paths_are_those_of_the_folder(monkeypatch):
    monkeypatch.setattr(guard, "OPEN_FILES", "/nowhere")
    monkeypatch.setattr(guard, "ADDRESS_SPACE", "/nowhere")
    assert list(guard._open_folders()) == [] and guard._address_space() is None
