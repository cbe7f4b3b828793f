"""``fa-numba handout``: a copy of the workbook for a class, without solutions.

Everything else works in it. In place of `solutions/`, the workbook reads the untouched stubs, the
first hints and the debriefs from `exercises/.workbook.json`. The copy has no git history, which
would contain the solutions.

A document, hint or debrief with a line of an answer is left out, and named. The workbook needs all
else, so code with a passage of an answer is an error, which names the file and the line (see
`leaks`). A stub, grader, lesson or kernel of the package may give an answer: `open_book` lists the
exercises of which one does.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import numba_cuda_simulator
from fa_numba.workbook import leaks, stubs
from fa_numba.workbook.catalog import BUNDLE, PACKAGE, Refused, all_exercises, course, find_root

ENGINE = Path(numba_cuda_simulator.__file__).parent
COMMAND = "fa_numba_command.py"  # the entry point in pyproject.toml, beside the package
OPEN = 0.75  # share of an answer's lines in one file: whoever finds the file has the answer
LEFT_OUT = (".ci/", ".github/", "engine/tests/", "solutions/")
GIVEN = ("benchmarks/", "engine/", "exercises/", "fa_numba/", "notebooks/")
NOT_GIVEN = ("fa_numba/workbook/",)
# Kernels that a lesson runs until the learner's own pass.
LESSONS_KERNELS = "fa_numba/workbook/lesson_kernels.py"
# Of the tests those of the workbook's machinery, which need no solutions.
TESTS = (
    "colours.py",
    "conftest.py",
    "few_cases.py",
    "small_workbook.py",
    "test_install.py",
    "test_workbook.py",
    "warm_judges.py",
)


@dataclass
class Handout:
    """A handout."""

    folder: Path
    files: list[str] = field(default_factory=list)  # relative paths
    # Documents, hints and debriefs with lines of answers, which the handout does without
    left_out: list[str] = field(default_factory=list)


def open_book(root: Path) -> dict[str, tuple[str, int, int]]:
    """The exercises whose answer the handout gives.

    {exercise: (file, lines of the answer that it holds, lines of the answer)}, of the file with the
    most lines. Comments and lines of less than 8 characters do not count.
    """
    exercises = all_exercises(root)
    lines = {}
    for name, text in Workbook(root).texts():
        if text is not None and name != BUNDLE:
            if name.endswith(".ipynb"):
                cells = json.loads(text)["cells"]
                text = "\n".join("".join(cell["source"]) for cell in cells)
            lines[name] = {line for _, line in leaks.code_lines(text.splitlines())}
    found = {}
    for exercise in exercises:
        code = sum(map(leaks.code_lines, leaks.answers(exercise.text)), [])
        answer = [line for _, line in code if len(line) >= 8]
        held = {name: sum(x in there for x in answer) for name, there in lines.items()}
        best = max(held, key=held.get)
        if answer and held[best] >= OPEN * len(answer):
            found[exercise.name] = best, held[best], len(answer)
    return found


def files(root: Path) -> dict[str, Path]:
    """{name in the repository: path} of its files; of a wheel, those that it has of them.

    Without git, all but those that it would ignore.

    Parameters
    ----------
    root : path
        A checkout, or the course in a wheel.
    """
    found = {name: root / name for name in tracked(root)}
    if root != PACKAGE / "course":
        return found
    for above, package in (("fa_numba", PACKAGE), ("engine/numba_cuda_simulator", ENGINE)):
        names = (name for name in tracked(package) if not name.startswith("course/"))
        found |= {f"{above}/{name}": package / name for name in names}
    return found | {COMMAND: PACKAGE.parent / COMMAND}


def tracked(root: Path) -> list[str]:
    """The files of a repository; without git, all but those that it would ignore."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True)
    if listed.returncode == 0 and listed.stdout:
        return [name for name in listed.stdout.split("\0") if (root / name).is_file()]
    skipped = {"__pycache__", "lessons", "handout", "tour", "build", "dist", ".backup"}
    paths = (p.relative_to(root) for p in sorted(root.rglob("*")) if p.is_file())
    return [
        p.as_posix()
        for p in paths
        if not skipped & set(p.parts)
        and not any(part.startswith(".venv") or part.endswith(".egg-info") for part in p.parts)
        and p.name not in (".progress.json", "handout.zip")
    ]


def make(folder: Path, *, tiers: int = 2, root: Path | None = None) -> Handout:
    """Make the handout in `folder`, which must not exist, or be a handout.

    `tiers` says how many of the three hints each exercise keeps: the third is nearly the code.
    """
    root = course(find_root() if root is None else root)
    folder = Path(folder)
    if not (root / "solutions").is_dir():
        raise Refused(f"{root} has no solutions/: it is a handout already")
    if not 0 <= tiers <= 3:
        raise Refused(f"--hints must be 0 to 3, got {tiers}")
    if folder.exists() and any(folder.iterdir()) and not (folder / BUNDLE).exists():
        raise Refused(f"{folder} is there and is no handout: name another folder, or remove it")
    with tempfile.TemporaryDirectory(dir=folder.absolute().parent) as scratch:
        made = _fill(root, Path(scratch, "handout"), tiers)
        if folder.exists():
            shutil.rmtree(folder)
        made.folder.replace(folder)
    made.folder = folder
    return made


class Workbook:
    """The course, with untouched stubs and no outputs: the handout is made of it."""

    def __init__(self, root):
        self.files, self.exercises = files(root), all_exercises(root)
        self.parsed = {e.name: stubs.read(e) for e in self.exercises}

    def texts(self):
        """(name, text) of each file; None for what is no text."""
        stub_of = {f"exercises/{name}.py": told.stub for name, told in self.parsed.items()}
        yield from stub_of.items()  # not somebody's work
        for name, path in self.files.items():
            if name.startswith(LEFT_OUT) or name == BUNDLE or name in stub_of:
                continue
            if name.startswith("tests/") and name.removeprefix("tests/") not in TESTS:
                continue
            try:
                text = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                text = None
            yield name, _without_outputs(text) if name.endswith(".ipynb") else text


def is_given(name):
    return name == LESSONS_KERNELS or (name.startswith(GIVEN) and not name.startswith(NOT_GIVEN))


def _fill(root, folder, tiers):
    workbook = Workbook(root)
    texts = dict(workbook.texts())
    given = [text for name, text in texts.items() if text is not None and is_given(name)]
    whole = "\n".join(given)
    lines = {line for line in leaks.answer_lines(root) if line not in whole}
    secret = leaks.secret_passages(workbook.exercises, given)

    def tells(text):
        return any(line in text for line in lines)

    made, told_in_code = Handout(folder), []
    for name, content in texts.items():
        if content is not None and name.startswith("docs/") and tells(content):
            made.left_out.append(name)
            continue
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            shutil.copyfile(workbook.files[name], target)
        else:
            told_in_code += leaks.told_passages(name, content, secret)
            target.write_text(content, encoding="utf-8", newline="\n")
        if name in workbook.files:
            shutil.copymode(workbook.files[name], target)
        made.files.append(name)
    if told_in_code:
        raise Refused(
            "the workbook needs these files, which hold an answer: write it there in another "
            "way, or in a lesson, where all may read it\n  " + "\n  ".join(told_in_code)
        )
    bundle = {}
    for name, told in workbook.parsed.items():
        hints = {n: words for n, words in told.hints.items() if n <= tiers}
        kept = {n: words for n, words in hints.items() if tiers == 3 or not tells(words)}
        made.left_out += [f"hint {n} of {name}" for n in hints.keys() - kept.keys()]
        debrief = "" if tells(told.debrief) else told.debrief
        made.left_out += [f"the debrief of {name}"] * (debrief != told.debrief)
        numbered = {n: kept[tier] for n, tier in enumerate(sorted(kept), 1)}
        told_of_it = {"hints": numbered, "debrief": debrief, "kind": told.kind}
        bundle[name] = {"stub": told.stub, **told_of_it}
    (folder / BUNDLE).write_text(json.dumps(bundle, indent=1, sort_keys=True) + "\n", "utf-8")
    made.files.append(BUNDLE)
    return made


def _without_outputs(text):
    """A notebook as it was before somebody ran it."""
    notebook = json.loads(text)
    if not any(cell.get("outputs") for cell in notebook["cells"]):
        return text
    from fa_numba.workbook.notebooks import canonical

    return canonical(text)


def pack(handout: Handout, path: Path) -> None:
    """The handout as a zip file, in a folder of its name."""
    top = Path(path).stem
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(handout.files):
            archive.write(handout.folder / name, f"{top}/{name}")


def add_options(parser):
    """Declare the options of ``fa-numba handout``."""
    parser.add_argument("folder", nargs="?", default="handout", help="the default is handout/")
    parser.add_argument("--zip", metavar="FILE", help="also a zip file, such as handout.zip")
    parser.add_argument(
        "--hints", type=int, default=2, choices=range(4),
        help="how many hints each exercise keeps, of three; the default is 2, for the third is "
        "nearly the code",
    )  # fmt: skip


def main(options) -> int:
    """Make the handout and print its contents."""
    made = make(Path(options.folder), tiers=options.hints)
    print(f"{made.folder}/: {len(made.files)} files, without solutions/ and git's history")
    for name in made.left_out:
        print(f"left out, as it holds lines of an answer: {name}")
    if options.zip:
        pack(made, Path(options.zip))
        print(f"{options.zip}: the same, packed")
    return 0
