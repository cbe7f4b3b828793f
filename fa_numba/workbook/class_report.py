"""Which checks a class fails most, and the mistake behind each: `fa-numba grade ... --report`."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field

TRIED = "passed", "failed"  # states of an exercise that a student has worked on
PLACE = re.compile(r",? (in|at) lines? \d+( and \d+)?")  # every file has its own


@dataclass
class Failure:
    """One behaviour that a grader checks, and the students who fail it.

    Attributes
    ----------
    exercise, behaviour : str
    others : int
        Behaviours that the same students fail, for the same reason.
    tried : int
        Students who have worked on the exercise.
    students : list of str
        Those of them who fail at least one case.
    sentences : Counter of str
        How many students each mistake explains the failure of; without a known mistake, the first
        line of the message counts.
    """

    exercise: str
    behaviour: str
    tried: int
    students: list[str] = field(default_factory=list)
    sentences: Counter = field(default_factory=Counter)
    others: int = 0

    @property
    def sentence(self) -> str:
        """The most frequent one, and how many have it where not all do."""
        (said, count), *_ = self.sentences.most_common(1)
        return said if count == len(self.students) else f"{said} ({count} of {len(self.students)})"


def failures(students) -> list[Failure]:
    """The behaviours that anybody fails, those that most fail first.

    Parameters
    ----------
    students : list of Student
        As `classroom.grade_folders` returns them.
    """
    tried = Counter(m.name for s in students for m in s.marks if m.state in TRIED)
    found: dict[tuple[str, str], Failure] = {}
    for student in students:
        for mark in student.marks:
            failed = defaultdict(list)
            for check in mark.checks if mark.state in TRIED else ():
                if check.outcome == "failed":
                    failed[check.behaviour].append(check)
            for behaviour, checks in failed.items():
                key = mark.name, behaviour
                failure = found.setdefault(key, Failure(*key, tried[mark.name]))
                failure.students.append(student.name)
                failure.sentences[_sentence(checks)] += 1
    alike: dict[tuple, Failure] = {}
    for failure in found.values():
        first = alike.setdefault((failure.exercise, *failure.students, failure.sentence), failure)
        first.others += first is not failure
    return sorted(alike.values(), key=lambda f: (-len(f.students), f.exercise))


def _sentence(checks):
    """The mistake that explains most of one student's failures of a behaviour."""
    causes = Counter(cause for check in checks for cause in dict.fromkeys(check.causes))
    messages = (c.message.strip().splitlines()[0] for c in checks if c.message.strip())
    return PLACE.sub("", causes.most_common(1)[0][0] if causes else next(messages, ""))


def table(students, most):
    """The failures that most students have, for a terminal."""
    from rich.table import Table
    from rich.text import Text

    found = failures(students)
    if not found:
        return "No student fails a check of an exercise that is begun."
    title = f"The checks that most students fail: {min(most, len(found))} of {len(found)}"
    shown = Table(title=title, title_justify="left")
    for column in ("exercise", "check", "fail", "most likely"):
        shown.add_column(column, justify="right" if column == "fail" else "left", overflow="fold")
    for f in found[:most]:
        fail = f"{len(f.students)} of {f.tried}"
        others = f", and {f.others} more check{'s' * (f.others > 1)}" if f.others else ""
        check, sentence = Text(f.behaviour + others), Text(f.sentence)
        shown.add_row(f.exercise.split("_")[0], check, fail, sentence)
    return shown
