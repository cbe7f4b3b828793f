"""The result of grading, for a terminal and for a notebook."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from html import escape
from itertools import groupby

from fa_numba.workbook.catalog import Exercise

MARKS = {"passed": "✓", "failed": "✗", "not started": "·", "skipped": "–"}
COLOURS = {"passed": "green", "failed": "red", "not started": "yellow", "skipped": "cyan"}
HTML_COLOURS = {
    "passed": "#1a9850",
    "failed": "#d73027",
    "not started": "#b8860b",
    "skipped": "#4393c3",
}


@dataclass
class Check:
    """One named behaviour."""

    name: str
    outcome: str
    message: str = ""
    seconds: float = 0.0

    @property
    def behaviour(self) -> str:
        """The name without the case, `[...]`, that a parametrised check ends in."""
        return self.name.split(" [")[0]


@dataclass
class Graded:
    """One exercise's checks."""

    exercise: Exercise
    checks: list[Check]
    debrief: str = ""

    def count(self, outcome: str) -> int:
        return sum(c.outcome == outcome for c in self.checks)

    @property
    def passed(self) -> bool:
        done = self.count("passed") + self.count("skipped")
        return done == len(self.checks) and self.count("passed") > 0

    @property
    def started(self) -> bool:
        return self.count("not started") < len(self.checks)

    @property
    def state(self) -> str:
        return "passed" if self.passed else "failed" if self.started else "not started"

    def rows(self) -> Iterator[Check]:
        """The checks as shown: equal cases of one behaviour on one line, each message once."""
        reasons = {(c.outcome, c.message) for c in self.checks}
        if len(self.checks) > 1 and len(reasons) == 1 and self.checks[0].message:
            yield replace(self.checks[0], name=f"all {len(self.checks)} checks, for one reason")
            return
        last = ""
        for _, group in groupby(self.checks, key=lambda c: (c.behaviour, c.outcome, c.message)):
            first, *others = group
            name = f"{first.behaviour} ({len(others) + 1} cases)" if others else first.name
            repeated = first.message and first.message == last
            yield replace(first, name=name, message="as above" if repeated else first.message)
            last = first.message

    @property
    def score(self) -> str:
        return f"{self.count('passed')}/{len(self.checks) - self.count('skipped')}"


@dataclass(repr=False)
class Report:
    """What `grade` returns: falsy until every check of every exercise passes.

    Attributes
    ----------
    graded : list of Graded
        One entry per exercise, each with its `checks`.
    learner : bool
        Whether the learner's own files were graded, which is when advice makes sense.
    brief : bool
        One line per finished or untouched exercise, and a few failures of each other.
    """

    graded: list[Graded] = field(default_factory=list)
    learner: bool = True
    brief: bool = False

    @property
    def passed(self) -> bool:
        return bool(self.graded) and all(g.passed for g in self.graded)

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        return self.text().rstrip()

    def __rich_console__(self, console, options):
        from rich.text import Text

        for line, style in self._lines(self.brief):
            indent = len(line) - len(line.lstrip())
            words = Text(line.lstrip(), style=style)
            for part in words.wrap(console, max(options.max_width - indent, 20)) or [words]:
                yield Text(" " * indent) + part

    def text(self, *, width: int = 100, colour: bool = False) -> str:
        """The report as text, with terminal colours where asked."""
        from rich.console import Console

        buffer = io.StringIO()
        system = "standard" if colour else None
        console = Console(
            file=buffer,
            width=width,
            force_terminal=colour,
            color_system=system,
            force_jupyter=False,  # or a notebook shows it here, and once more as HTML
        )
        console.print(self)
        return buffer.getvalue()

    def _lines(self, brief: bool) -> Iterator[tuple[str, str]]:
        for g in self.graded:
            note = "" if g.started else "  not started"
            title = f"{g.exercise.short}  {g.exercise.title}  {g.score}{note}"
            yield f"{MARKS[g.state]} {title}", f"bold {COLOURS[g.state]}"
            if brief and g.state != "failed":
                continue
            yield from self._checks(g, brief)
            for line in self._after(g):
                yield line, ""
        if brief and self.learner:
            done = sum(g.passed for g in self.graded)
            yield "", ""
            yield f"{done} of {len(self.graded)} exercises passed", "bold"

    def _checks(self, g: Graded, brief: bool) -> Iterator[tuple[str, str]]:
        rows = list(g.rows())
        if brief:
            rows = [row for row in rows if row.outcome == "failed"]
        for row in rows[: 3 if brief else None]:
            yield f"    {MARKS[row.outcome]} {row.name}", COLOURS[row.outcome]
            for line in row.message.splitlines():
                yield f"        {line}", ""
        if brief and len(rows) > 3:
            yield f"    … and more: fa-numba check {g.exercise.short}", ""

    def _after(self, g: Graded) -> Iterator[str]:
        """What to do next."""
        if not self.learner:
            return
        short = g.exercise.short
        if g.passed:
            yield from (f"    {line}" for line in g.debrief.splitlines())
            yield f"    Compare with ours: solution('{short}'), or fa-numba solution {short}"
        elif not g.started:
            yield f"    Open exercises/{g.exercise.stub.name}, fill it in, save it, grade again."
            yield f"    Stuck? hint('{short}'), or fa-numba hint {short}"

    def _repr_html_(self) -> str:
        return "".join(self._html(g) for g in self.graded)

    def _html(self, g: Graded) -> str:
        def coloured(outcome, text):
            return f'<span style="color:{HTML_COLOURS[outcome]}">{escape(text)}</span>'

        head = f"{MARKS[g.state]} {g.exercise.short} · {g.exercise.title}"
        rows = []
        for row in g.rows():
            line = f"{coloured(row.outcome, MARKS[row.outcome])} {escape(row.name)}"
            style = "margin:0 0 .4em 1.6em; background:none"
            detail = f'<pre style="{style}">{escape(row.message)}</pre>' if row.message else ""
            rows.append(f"<div>{line}{detail}</div>")
        after = "".join(f"<div>{escape(line.strip())}</div>" for line in self._after(g))
        link = f'<a href="../exercises/{g.exercise.stub.name}">exercises/{g.exercise.stub.name}</a>'
        return (
            f'<div style="margin:.5em 0"><b>{coloured(g.state, head)}</b> {g.score} · {link}'
            f'<div style="margin:.3em 0 .3em 1em">{"".join(rows)}</div>'
            f'<div style="margin-left:1em">{after}</div></div>'
        )
