"""The exercises, generated: ``python -m fa_numba.workbook.stubs [--write | --check]``.

A file of ``solutions/`` is the only source. The text between ``### BEGIN SOLUTION`` and ``### END
SOLUTION`` becomes one ``raise NotImplementedError``; every other line that starts with ``###``
(kind, the exercise to start from, hints, debrief) is dropped. The last line of a stub carries a
checksum of the lines above it, which tells three cases apart without asking git:

pristine   the checksum fits and the text is what the solution generates today
stale      the checksum fits, but the solution has moved on: drift, and `--check` fails
changed    the checksum does not fit: a learner's work, never overwritten without ``--force``

A learner's own work is therefore no drift, committed or not. `--check --strict` counts it as drift,
for the repository itself.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

from fa_numba.workbook.catalog import Exercise, all_exercises, bundled, course, find

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
HINT = re.compile(r"### HINT (\d):\s*(.*)")
KIND = re.compile(r"### KIND:\s*(.*)")
FROM = re.compile(r"### FROM:\s*(ex\d\d[a-z])$")  # `fa-numba reset exNNx --from` this one
KINDS = "fill a line", "fill a loop", "write", "find the bug", "beat a budget", "predict"
DEBRIEF = re.compile(r"### DEBRIEF:\s*(.*)")
BEGAN = re.compile(r"# Stub (\w{8}) of \S+: `fa-numba reset \w+` brings it back\.")
SEAL = re.compile(BEGAN.pattern + r"\n?\Z")


class SolutionError(ValueError):
    """A solution file breaks the format; the message names the file and the line."""


@dataclass
class Parsed:
    """The parts of a solution file: the learner's stub, hints and debrief; one of `KINDS`.

    `start` is the exercise whose answer this one starts from.
    """

    stub: str
    hints: dict[int, str] = field(default_factory=dict)
    debrief: str = ""
    kind: str = "write"
    start: str | None = None


def parse(text: str, name: str) -> Parsed:
    """Split the text of a solution into stub, hints and debrief."""

    def fail(line, message):
        raise SolutionError(f"solutions/{name}.py, line {line}: {message}")

    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)]
    short = name.split("_", 1)[0]
    kept, told, heading, begin, kind, start = [], {}, None, 0, "write", None
    for number, line in enumerate(text.splitlines(), 1):
        word = line.strip()
        if word == BEGIN:
            begin and fail(number, f"a second {BEGIN} before {END}")
            begin, indent = number, line[: line.index("#")]
        elif word == END:
            begin or fail(number, f"{END} without {BEGIN}")
            owners = [f for f in functions if f.lineno < begin and number > f.end_lineno > begin]
            owners or fail(begin, "the region is not the end of a function's body")
            function = max(owners, key=lambda f: f.lineno)
            kept.append(f"{indent}# YOUR CODE HERE")
            kept.append(f'{indent}raise NotImplementedError("{short}: {function.name}")')
            begin = 0
        elif begin:
            continue
        elif match := KIND.match(word):
            kind = match[1]
            kind in KINDS or fail(number, f"KIND is one of {', '.join(KINDS)}, not {kind!r}")
        elif match := FROM.match(word):
            start = match[1]
        elif word.startswith("###"):
            if match := HINT.match(word):
                heading, words = int(match[1]), match[2]
            elif match := DEBRIEF.match(word):
                heading, words = "debrief", match[1]
            else:
                heading is None and fail(
                    number, "### is for KIND:, FROM:, HINT n:, DEBRIEF: and the markers"
                )
                words = word[3:].removeprefix(" ")
            told.setdefault(heading, []).append(words)
        else:
            heading = None
            kept.append(line.rstrip())
    begin and fail(begin, f"{BEGIN} without {END}")

    body = re.sub(r"\n{4,}", "\n\n\n", "\n".join(kept)).rstrip() + "\n"
    debrief = "\n".join(told.pop("debrief", []))
    hints = {n: "\n".join(lines) for n, lines in told.items()}
    return Parsed(_sealed(body, name), hints, debrief, kind, start)


def read(exercise: Exercise) -> Parsed:
    """The parsed solution of one exercise, or a handout's substitute for it."""
    if not exercise.solution.exists():
        told = bundled(exercise.root, exercise.name)
        hints = {int(tier): text for tier, text in told["hints"].items()}
        return Parsed(told["stub"], hints, told["debrief"], told.get("kind", "write"))
    return parse(exercise.solution.read_text(encoding="utf-8"), exercise.name)


def _checksum(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:8]


def _sealed(body: str, name: str) -> str:
    short = name.split("_", 1)[0]
    seal = (
        f"# Stub {_checksum(body)} of solutions/{name}.py: `fa-numba reset {short}` brings it back."
    )
    return f"{body}\n\n{seal}\n"  # two blank lines, as ruff format wants


def is_untouched(text: str) -> bool:
    """Whether this is a stub as it was generated, today or earlier."""
    seal = SEAL.search(text)
    return seal is not None and _checksum(text[: seal.start()].removesuffix("\n\n")) == seal[1]


def is_of_another_stub(exercise: Exercise) -> bool:
    """Whether a file began as another stub than the present one, as far as a line of it says."""
    if not exercise.stub.is_file():  # a folder, which is no stub
        return False
    began = BEGAN.search(exercise.stub.read_text(encoding="utf-8", errors="replace"))
    return began is not None and began[1] != SEAL.search(read(exercise).stub)[1]


def state(exercise: Exercise) -> str:
    """``pristine``, ``stale``, ``changed`` or ``missing``."""
    if not exercise.stub.exists():
        return "missing"
    try:
        text = exercise.stub.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):  # a folder, another encoding
        return "changed"
    if text == read(exercise).stub:
        return "pristine"
    return "stale" if is_untouched(text) else "changed"


def write(exercise: Exercise, *, force: bool = False) -> str:
    """Generate one stub; return its state before. A changed file is kept unless `force`."""
    before = state(exercise)
    if before != "pristine" and (force or before != "changed"):
        exercise.stub.write_text(read(exercise).stub, encoding="utf-8", newline="\n")
    return before


def orphans(root: Path) -> list[Path]:
    """Files of ``exercises/`` that belong to no solution, and graders that are missing."""
    exercises = all_exercises(root)
    known = {e.stub for e in exercises} | {e.grader for e in exercises}
    folders = {root / "exercises", course(root) / "exercises"}
    there = {p for folder in folders for p in folder.glob("*ex[0-9]*.py")}
    strangers = {p for p in (course(root) / "solutions").glob("*.py")}
    strangers -= {e.solution for e in exercises}
    return sorted((known ^ there) | strangers)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fa_numba.workbook.stubs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="fail on drift (the default)")
    mode.add_argument("--write", action="store_true", help="generate the stubs")
    parser.add_argument("--force", action="store_true", help="overwrite changed files too")
    parser.add_argument("--strict", action="store_true", help="a changed file is drift too")
    parser.add_argument("names", nargs="*", help="exercises or lessons; all when none is named")
    options = parser.parse_args(argv)

    named = [e for name in options.names for e in find(name)] or all_exercises()
    bad = not named
    for exercise in named:
        if options.write:
            before = write(exercise, force=options.force)
            if before == "changed" and not options.force:
                print(f"kept      {exercise.stub.name}: changed by hand (--force overwrites it)")
            elif before != "pristine":
                print(f"written   {exercise.stub.name}")
        elif (now := state(exercise)) != "pristine":
            bad |= now in ("stale", "missing") or options.strict
            print(f"{now:<9} {exercise.stub.name}")
    print(f"{len(named)} exercises")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
