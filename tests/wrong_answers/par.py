"""Count our solutions and other right answers: ``python -m tests.wrong_answers.par [ex03a ...]``.

Writes `fa_numba/workbook/par.json`, from which learners' counts are judged: all of it, which takes
minutes, or the named exercises.
"""

import itertools
import sys
import tempfile
from pathlib import Path

from fa_numba.workbook import par
from fa_numba.workbook.catalog import all_exercises
from fa_numba.workbook.grader import grade_all
from fa_numba.workbook.tables import as_json

from . import FOLDER, answers


def counts_of(sources) -> dict[str, dict]:
    """Exercise -> counts, of {exercise: source}, graded in one session."""
    with tempfile.TemporaryDirectory() as folder:
        for exercise, source in sources.items():
            Path(folder, exercise.stub.name).write_text(source, encoding="utf-8")
        graded = grade_all(list(sources), impl=folder).graded
    for g in graded:
        assert g.passed, f"a right answer of {g.exercise.short} fails:\n{g.lead}"
    return {g.exercise: g.counts for g in graded}


def main(names=()):
    exercises = [e for e in all_exercises(FOLDER.parents[1]) if not names or e.short in names]
    solutions = {e: e.solution.read_text(encoding="utf-8") for e in exercises}
    solutions = {e: text for e, text in solutions.items() if "cuda.jit" in text}
    pars = {e: counts for e, counts in counts_of(solutions).items() if counts}
    others = {e: [] for e in pars}
    rights = {e: [source for _, source in answers(e, "RIGHT")] for e in pars}
    for i in itertools.count():
        some = {e: sources[i] for e, sources in rights.items() if len(sources) > i}
        if not some:
            break
        print(f"right answer {i + 1} of {len(some)} exercises", flush=True)
        for exercise, counts in counts_of(some).items():
            others[exercise].append(counts)
    entries = {e.short: par.record(counts, others[e]) for e, counts in pars.items()}
    entries = sorted(((par.all_known() if names else {}) | entries).items())
    rows = [{"exercise": short} | entry for short, entry in entries if entry["par"]]
    par.FILE.write_text(as_json(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
