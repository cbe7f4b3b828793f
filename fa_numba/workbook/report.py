"""The result of grading, for a terminal and for a notebook."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape

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
    """

    graded: list[Graded] = field(default_factory=list)
    learner: bool = True

    @property
    def passed(self) -> bool:
        return bool(self.graded) and all(g.passed for g in self.graded)

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        return self.text(width=100)

    def __rich_console__(self, console, options):
        from rich.text import Text

        for line, style in self._lines(brief=False):
            yield Text(line, style=style)

    def text(self, *, width: int = 100, colour: bool = False, brief: bool = False) -> str:
        """The report as text; `brief` shows a line per finished or untouched exercise."""
        from rich.console import Console
        from rich.text import Text

        buffer = io.StringIO()
        console = Console(
            file=buffer,
            width=width,
            force_terminal=colour,
            color_system="standard" * colour or None,
        )
        for line, style in self._lines(brief=brief):
            indent = len(line) - len(line.lstrip())
            for part in Text(line.lstrip(), style=style).wrap(console, max(width - indent, 20)):
                console.print(Text(" " * indent) + part)
        return buffer.getvalue()

    def _lines(self, *, brief: bool) -> Iterator[tuple[str, str]]:
        for g in self.graded:
            state = "passed" if g.passed else "failed" if g.started else "not started"
            note = "" if g.started else "  not started"
            title = f"{g.exercise.short}  {g.exercise.title}  {g.score}{note}"
            yield f"{MARKS[state]} {title}", f"bold {COLOURS[state]}"
            if brief and state != "failed":
                continue
            yield from self._checks(g, brief)
            for line in self._after(g):
                yield line, ""
        if brief and self.learner:
            done = sum(g.passed for g in self.graded)
            yield "", ""
            yield f"{done} of {len(self.graded)} exercises passed", "bold"

    def _checks(self, g: Graded, brief: bool) -> Iterator[tuple[str, str]]:
        shown, last = 0, ""
        for c in g.checks:
            if brief and (c.outcome != "failed" or shown == 3):
                continue
            shown += 1
            yield f"    {MARKS[c.outcome]} {c.name}", COLOURS[c.outcome]
            message = "as above" if c.message and c.message == last else c.message
            last = c.message or last
            for line in message.splitlines():
                yield f"        {line}", ""
        if (rest := g.count("failed") - shown) > 0:
            yield f"    … and {rest} more: fa-numba check {g.exercise.short}", ""

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

        state = "passed" if g.passed else "failed" if g.started else "not started"
        head = f"{MARKS[state]} {g.exercise.short} · {g.exercise.title}"
        rows, last = [], ""
        for c in g.checks:
            message = "as above" if c.message and c.message == last else c.message
            last = c.message or last
            detail = (
                f'<pre style="margin:0 0 .4em 1.6em">{escape(message)}</pre>' if message else ""
            )
            rows.append(
                f"<div>{coloured(c.outcome, MARKS[c.outcome])} {escape(c.name)}{detail}</div>"
            )
        after = "".join(f"<div>{escape(line.strip())}</div>" for line in self._after(g))
        link = f'<a href="../exercises/{g.exercise.stub.name}">exercises/{g.exercise.stub.name}</a>'
        return (
            f'<div style="margin:.5em 0"><b>{coloured(state, head)}</b> {g.score} · {link}'
            f'<div style="margin:.3em 0 .3em 1em">{"".join(rows)}</div>'
            f'<div style="margin-left:1em">{after}</div></div>'
        )
