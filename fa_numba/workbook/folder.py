"""A learner's folder without a checkout: ``fa-numba init my-workbook``, ``fa-numba update``.

The folder holds what a learner writes: stubs, copies of the lessons, progress. Everything else is
read where the package is installed (see `catalog`); links of the lessons to the package's files and
to the documents lead there, through symbolic links.

`update` brings the folder up to the installed package. It writes a stub that is missing or has not
been touched, and a lesson as `lessons` says. It never writes over an answer, and removes no file.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from fa_numba.workbook import lessons, stubs
from fa_numba.workbook.catalog import (
    MARKER,
    NAME,
    PACKAGE,
    Refused,
    all_exercises,
    course,
    find_root,
)

TEXTS = {
    "README.md": """\
# Kernels of attention, a workbook

    fa-numba learn          # the lessons in JupyterLab, as copies in lessons/
    fa-numba watch          # grades a file of exercises/ whenever you save it
    fa-numba check ex00a    # grades one
    fa-numba status         # which have passed, and the next
    fa-numba board          # your kernels' counts, beside par and the best known
    fa-numba hint ex00a     # the next of three hints
    fa-numba reset ex00a    # the untouched stub again; your file is kept as a backup
    fa-numba update         # after `pip install --upgrade fa-numba`: new lessons and exercises
    fa-numba doctor         # what is installed, and where kernels run

With uv, `uv run` before each of them installs what pyproject.toml names.
""",
    "pyproject.toml": """\
[project]
name = "my-fa-numba-workbook"
version = "0"
requires-python = "{python}"
# With an NVIDIA GPU, cuda12 or cuda13 in place of compiler: the CUDA that nvidia-smi names.
dependencies = ["fa-numba[lessons,compiler]>={version}"]

[tool.uv]
package = false
""",
    ".gitignore": """\
.venv/
__pycache__/
.ipynb_checkpoints/
/exercises/.backup/
/lessons/.originals/
/benchmarks
/docs
/fa_numba
""",
}


def init(folder: Path) -> list[str]:
    """Make a learner's folder.

    Parameters
    ----------
    folder : path
        It must not exist, or hold nothing but hidden files.

    Returns
    -------
    list of str
        What to tell the learner.
    """
    folder = Path(folder)
    if (folder / MARKER).is_file():
        raise Refused(f"{folder} is a workbook already; `fa-numba update` brings new lessons")
    if folder.exists() and not folder.is_dir():
        raise Refused(f"folder must be a folder, got the file {folder}")
    if folder.is_dir() and (there := [p.name for p in folder.glob("[!.]*")]):
        raise Refused(f"{folder} holds {min(there)}: name a new folder, or an empty one")
    if not folder.absolute().parent.is_dir():
        raise Refused(f"{folder}: there is no folder {folder.absolute().parent}")
    (folder / "exercises").mkdir(parents=True)
    fields = {"version": _version(), "python": metadata.metadata("fa-numba")["Requires-Python"]}
    for name, text in TEXTS.items():
        if not (folder / name).exists():
            (folder / name).write_text(text.format(**fields), encoding="utf-8")
    (folder / MARKER).touch()
    made = update(folder)
    counts = [
        sum(line.startswith(f"{kind}/") for line in made) for kind in ("exercises", "lessons")
    ]
    problems = [line for line in made if not line.startswith(("exercises/", "lessons/"))]
    return [
        f"{folder}: {counts[0]} exercises, {counts[1]} lessons. Next:",
        f"cd {folder}; fa-numba learn",
        *problems,
    ]


def update(root: Path | None = None) -> list[str]:
    """Bring a learner's folder up to the installed package; in a checkout, `lessons/` alone.

    Parameters
    ----------
    root : path, optional
        The folder; by default the one around the working directory.

    Returns
    -------
    list of str
        A line for each file that was written, or that its exercise has left behind.
    """
    root = find_root() if root is None else Path(root)
    said = lessons.update(root)
    if not (root / MARKER).is_file():
        return said
    exercises = all_exercises(root)
    (root / "exercises").mkdir(exist_ok=True)
    for exercise in exercises:
        name, before = f"exercises/{exercise.stub.name}", stubs.write(exercise)
        if before == "missing":
            said.append(f"{name}: added")
        elif before == "stale":
            said.append(
                f"{name}: the exercise has changed. This is its new stub; you had not begun"
            )
        elif before == "changed" and stubs.is_of_another_stub(exercise):
            said.append(
                f"{name}: the exercise has changed, and your file is kept. `fa-numba reset "
                f"{exercise.short}` brings its new stub, and keeps your file as a backup"
            )
    known = {exercise.stub.name for exercise in exercises}
    for path in sorted((root / "exercises").glob("ex*.py")):
        if path.name not in known and NAME.fullmatch(path.stem):
            said.append(f"exercises/{path.name}: no exercise has this name; the file is kept")
    said += _link(root)
    if (root / MARKER).read_text(encoding="utf-8").strip() != _version():
        (root / MARKER).write_text(f"{_version()}\n", encoding="utf-8")
    return said


def _version():
    return metadata.version("fa-numba")


def _link(root):
    """Make what the lessons link to reachable from the folder; a line where that fails.

    The folder `fa_numba` gets no `__init__.py`: so Python, which looks into the working directory
    first, still imports the installed package, and not what an older link leads to.
    """
    targets = {name: course(root) / name for name in ("benchmarks", "docs")}
    rooms = (path for path in PACKAGE.iterdir() if path.name[0] != "_" and path.name != "course")
    targets |= {f"fa_numba/{path.name}": path for path in rooms}
    for name, target in sorted(targets.items()):
        link = root / name
        try:
            if link.is_symlink() and link.readlink() != target:  # of an environment that has gone
                link.unlink()
            if not link.is_symlink() and not link.exists():  # else it is the learner's own
                link.parent.mkdir(exist_ok=True)
                link.symlink_to(target, target_is_directory=target.is_dir())
        except OSError as error:
            yield f"{name}: no symbolic link could be made ({error}); it stands for {target}"


def main(options) -> int:
    """``fa-numba init`` and ``fa-numba update``."""
    if options.command == "init":
        print("\n".join(init(Path(options.folder))))
        return 0
    root = find_root()
    said = update(root)
    print("\n".join(said or [f"{root}: nothing to update"]))
    if (root / MARKER).is_file():
        print(f"This is the course of fa-numba {_version()}; pip install --upgrade fa-numba, then")
        print("`fa-numba update`, brings a newer one.")
    else:
        print("This is a checkout: `git pull --rebase --autostash` brings new exercises.")
    return 0
