"""Grade wrong and right answers: ``python -m tests.wrong_answers [NAMES]`` at the root.

The answers are those of this folder and the generated mutants of `fa_numba.workbook.mutants`,
each graded in a process of its own. ``--write`` brings the rows of the named exercises in
docs/wrong_answers.md up to date. With ``--json FILE`` the verdicts are kept: another run grades
only what has another source, or another grader, since.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from pathlib import Path

from fa_numba.workbook import mutants
from fa_numba.workbook.catalog import Exercise, all_exercises, find
from fa_numba.workbook.tables import as_row

from . import FOLDER, answers, equivalents

DOCUMENT = FOLDER.parents[1] / "docs" / "wrong_answers.md"
BEGIN, END = "<!-- table: python -m tests.wrong_answers --write -->", "<!-- end of table -->"
COLUMNS = "exercise | by hand, caught | generated, caught | right variants, passed | the survivors"


@dataclass
class Verdict:
    """What the grader said about one answer."""

    exercise: str
    kind: str  # wrong, right, generated
    name: str
    caught: bool
    report: str
    reason: str = ""  # of a survivor: why it is no mistake
    key: str = ""  # of the source and its grader

    @property
    def as_it_must_be(self) -> bool:
        return self.caught != (self.kind == "right") or bool(self.reason)


def tasks(exercise: Exercise, kinds) -> Iterator[tuple[Exercise, str, str, str]]:
    """(exercise, kind, name, source) of everything there is to grade."""
    for kind in ("wrong", "right"):
        if kind in kinds:
            for name, source in answers(exercise, kind.upper()):
                yield exercise, kind, name, source
    if "generated" in kinds:
        original = ast.unparse(ast.parse(exercise.solution.read_text(encoding="utf-8")))
        for mutant in mutants.mutants(exercise):
            yield exercise, "generated", changed_line(original, mutant.source), mutant.source


def changed_line(old: str, new: str) -> str:
    """The line in which two sources differ: "old line -> new line"."""
    before, after = old.splitlines(), new.splitlines()
    for tag, i, j, k, l in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag != "equal":
            lines = (" ".join(x.strip() for x in part) for part in (before[i:j], after[k:l]))
            return " -> ".join(lines)
    return "no line"


def key_of(task) -> str:
    exercise, _, _, source = task
    text = exercise.grader.read_text(encoding="utf-8") + source
    return hashlib.sha256(text.encode()).hexdigest()


def judged(task) -> Verdict:
    exercise, kind, name, source = task
    caught, report = mutants.judge(exercise, source)
    return Verdict(exercise.short, kind, name, caught, report, key=key_of(task))


def all_verdicts(exercise: Exercise, some, known: dict[str, dict], pool) -> list[Verdict]:
    """What the grader says of each task, or said the last time."""
    new = [task for task in some if key_of(task) not in known]
    known |= {v.key: asdict(v) for v in pool.map(judged, new)}
    verdicts = [
        Verdict(**known[key_of(task)] | {"kind": task[1], "name": task[2]}) for task in some
    ]
    reasons = equivalents(exercise)
    for verdict in verdicts:
        verdict.reason = reasons.get(verdict.name, "") if verdict.kind == "generated" else ""
    return verdicts


def row(exercise: Exercise, verdicts: list[Verdict]) -> str:
    """A row of the table in docs/."""

    def share(kind):
        of_kind = [v for v in verdicts if v.kind == kind]
        return f"{sum(v.caught != (kind == 'right') for v in of_kind)} of {len(of_kind)}"

    survivors = [v for v in verdicts if v.kind != "right" and not v.caught]
    explained = [f"`{v.name}`: {v.reason or 'not explained'}" for v in survivors]
    cells = [exercise.short, *map(share, ("wrong", "generated", "right")), "<br>".join(explained)]
    return as_row(cells)


def write_table(rows: dict[str, str]) -> None:
    """Put the rows into the document, and leave those of other exercises as they are."""
    head, rest = DOCUMENT.read_text(encoding="utf-8").split(BEGIN)
    table, tail = rest.split(END)
    old = {
        line.split("|")[1].strip(): line for line in table.splitlines() if line.startswith("| ex")
    }
    every = dict(sorted((old | rows).items()))
    every.pop("exercise", None)
    sums = []
    for column in (2, 3, 4):
        numbers = [line.split("|")[column].split(" of ") for line in every.values()]
        good, tried = (sum(int(n[i]) for n in numbers) for i in (0, 1))
        sums.append(f"{good} of {tried}")
    lines = [
        f"| {COLUMNS} |",
        "|---|---|---|---|---|",
        *every.values(),
        f"| all | {' | '.join(sums)} | |",
    ]
    DOCUMENT.write_text(f"{head}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{tail}", encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wrong_answers", description=__doc__)
    parser.add_argument("names", nargs="*", help="exercises or lessons; all when none is named")
    parser.add_argument(
        "--kind", choices=("wrong", "right", "generated"), action="append", help="only these"
    )
    parser.add_argument("--every", type=int, default=1, metavar="N", help="every N-th answer")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--reports", action="store_true", help="print what the grader said")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the verdicts in FILE")
    parser.add_argument("--write", action="store_true", help=f"update {DOCUMENT.name} in docs/")
    options = parser.parse_args(argv)
    kinds = options.kind or ("wrong", "right", "generated")
    if options.write and (options.kind or options.every > 1):
        parser.error("--write needs the whole set: leave out --kind and --every")

    mutants.import_graders()
    every, rows, known = [], {}, {}
    if options.json and options.json.exists():
        known = {v["key"]: v for v in json.loads(options.json.read_text(encoding="utf-8"))}
    forked = multiprocessing.get_context("fork")  # the judges have the graders from this process
    with ProcessPoolExecutor(options.jobs, mp_context=forked) as pool:
        for exercise in [e for n in options.names for e in find(n)] or all_exercises():
            some = list(tasks(exercise, kinds))[:: options.every]
            some = all_verdicts(exercise, some, known, pool)
            every += some
            if options.json:
                text = json.dumps(list(known.values()), indent=1)
                options.json.write_text(text, encoding="utf-8")
            for verdict in some:
                if options.reports and verdict.kind != "generated":
                    print(f"  {verdict.kind}  {verdict.name}\n{verdict.report}\n")
                if not verdict.as_it_must_be:
                    print(
                        f"  {'rejected' if verdict.caught else 'survived'}  {exercise.short}  "
                        f"{verdict.kind}  {verdict.name}"
                    )
                    if verdict.caught:
                        print(verdict.report)
            unused = set(equivalents(exercise)) - {v.name for v in some if not v.caught}
            if "generated" in kinds and options.every == 1 and unused:
                print(f"  no survivor  {exercise.short}  {unused}")
            rows[exercise.short] = row(exercise, some)
            print(rows[exercise.short].rsplit("|", 2)[0] + "|", flush=True)
    if options.write:
        write_table(rows)
    bad = [v for v in every if not v.as_it_must_be]
    tried = sum(v.kind != "right" for v in every)
    caught = sum(v.kind != "right" and v.caught for v in every)
    print(f"{caught} of {tried} wrong answers caught; {len(bad)} verdicts to look at")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
