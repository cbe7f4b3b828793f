"""The result of grading, for a terminal and for a notebook."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from html import escape
from itertools import groupby

from fa_numba.figures.themes import words_style
from fa_numba.workbook import par
from fa_numba.workbook.catalog import Exercise
from fa_numba.workbook.counts import added

MARKS = {"passed": "✓", "failed": "✗", "not started": "·", "skipped": "–"}
COLOURS = {"passed": "green", "failed": "red", "not started": "yellow", "skipped": "cyan"}
PROSE = "prose"  # the style of a line with Markdown in it
INLINE = re.compile(r"(?<!\w)\*\*(\w[^*]*\w)\*\*(?!\w)|`([^`]+)`")  # not 2**3
OUTPUT_LINES = 20
# Jupyter's own style breaks long lines in the middle of a word.
PRE = "margin:0 0 .4em 1.6em; background:none; white-space:pre-wrap; word-break:normal"
NAMES = 8  # of further checks that fail
# 4.5 : 1 at least, on white and on the grey of a dark page
ON_LIGHT = {"passed": "#178747", "failed": "#d73027", "new": "#986f09", "skipped": "#387ca5"}
ON_DARK = {"passed": "#3fb96f", "failed": "#ff7b72", "new": "#d9a520", "skipped": "#6db3e0"}
STYLE = words_style(ON_LIGHT, ON_DARK)


def as_text(shown, *, width: int = 100, colour: bool = False) -> str:
    """An object as rich prints it."""
    from rich.console import Console

    buffer = io.StringIO()
    Console(
        file=buffer,
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        force_jupyter=False,  # or a notebook shows it here, and once more as HTML
    ).print(shown)
    return buffer.getvalue()


def behaviour_of(name: str) -> str:
    """The name of a check without its case, `[...]`."""
    return name.split(" [")[0]


@dataclass
class Check:
    """One named behaviour.

    Attributes
    ----------
    name : str
    outcome : str
        "passed", "failed", "not started" or "skipped".
    message : str
        Why it failed.
    seconds : float
    output : str
        Output of the learner's file during the check.
    causes : list of str
        Mistakes that explain the failure, each by itself; the likeliest first.
    where : str
        The first wrong place.
    only_where : str
        A sentence on what failures have in common that no check like them has which passes.
    counts : dict of str to int
        `counts.QUANTITIES` of the launches that it traced; {} if it traced none.
    """

    name: str
    outcome: str
    message: str = ""
    seconds: float = 0.0
    output: str = ""
    causes: list[str] = field(default_factory=list)
    where: str = ""
    only_where: str = ""
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def behaviour(self) -> str:
        """The name without the case, `[...]`, that a parametrised check ends in."""
        return behaviour_of(self.name)


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
            repeated = first.message and first.message == last
            message = "as above" if repeated else first.message
            yield replace(first, name=_named(first, others), message=message)
            last = first.message

    @property
    def failed(self) -> list[Check]:
        return [c for c in self.checks if c.outcome == "failed"]

    @property
    def likely_cause(self) -> str:
        """The one mistake that explains most of the failures, "" where none explains half of them.

        A failure by itself often has several explanations; the mistake is the one that they share.
        """
        failed = self.failed
        telling = [c for c in failed if not says_little(c)] or failed
        votes = Counter(cause for c in telling for cause in dict.fromkeys(c.causes))
        cause, number = max(votes.items(), key=lambda item: item[1], default=("", 0))
        return cause if 2 * number >= len(telling) else ""

    @property
    def first_failure(self) -> Check | None:
        """The failure to read first: of the likely cause, and not about compiling for a GPU.

        Checks go from the plain case to the hard ones. A compiler's error about a kernel with wrong
        results is mostly the same mistake in other words.
        """
        cause = self.likely_cause
        return min(self.failed, key=lambda c: (says_little(c), cause not in c.causes), default=None)

    @property
    def lead(self) -> str:
        """How many checks fail, the most likely cause, and where it shows first; in one line."""
        failed, first, cause = self.failed, self.first_failure, self.likely_cause
        if not failed:
            return ""
        run = len(self.checks) - self.count("skipped")
        line = f"{len(failed)} of {run} checks fail{'s' * (len(failed) == 1)}"
        if not cause:
            own = first.causes[0].rstrip(".") if len(first.causes) == 1 else ""
            return f"{line}; first: {first.name}{own and f': {own}'}"
        number = sum(cause in c.causes for c in failed)
        if number > 1:
            line += f", {'all' if number == len(failed) else number} most likely for one cause"
        place = f", {first.where}" if first.where and first.where not in cause else ""
        end = "" if cause.endswith("?") else "."
        return f"{line}: {cause.rstrip('.')}{end} First: {first.name}{place}"

    @property
    def only_where(self) -> str:
        """The sentence that sets the failures apart, or nothing."""
        return self.first_failure.only_where if self.failed else ""

    def folded(self) -> tuple[int, list[tuple[str, str]]]:
        """Number of failures like the first, and (outcome, name) of the others that do not pass."""
        first, cause = self.first_failure, self.likely_cause
        like_it = [
            c
            for c in self.failed
            if c is not first and (c.message == first.message or (cause and cause in c.causes))
        ]
        rest = [
            c
            for c in self.checks
            if c.outcome in ("failed", "not started") and c is not first and c not in like_it
        ]
        named = []
        for (outcome, _), group in groupby(rest, key=lambda c: (c.outcome, c.behaviour)):
            one, *others = group
            named.append((outcome, _named(one, others)))
        return len(like_it), named

    @property
    def output(self) -> str:
        """Output of the file in the first failure, else in the first check that printed."""
        first = self.first_failure
        if first is not None and first.output:
            return first.output
        return next((c.output for c in self.checks if c.output), "")

    @property
    def score(self) -> str:
        return f"{self.count('passed')}/{len(self.checks) - self.count('skipped')}"

    @property
    def counts(self) -> dict[str, int]:
        """What its launches move and wait for: the checks' counts, added; {} until it passes."""
        return added(c.counts for c in self.checks) if self.passed else {}


def _named(first: Check, others: list[Check]) -> str:
    """One name for cases of one behaviour, or for checks that fail for one reason."""
    if not others:
        return first.name
    return f"{first.behaviour} ({len(others) + 1} cases)"


def says_little(check: Check) -> bool:
    return "compile" in check.name or check.message.startswith("not run")


def _inline(text: str) -> list[tuple[str, str]]:
    """(words, style) of prose with Markdown's **bold** and `code`."""
    parts = INLINE.split(text)
    return [
        (part, style)
        for i in range(0, len(parts), 3)
        for part, style in zip(parts[i : i + 3], ("", "bold", "cyan"), strict=False)
        if part
    ]


def _as_html(text: str, style: str) -> str:
    if style != PROSE:
        return escape(text)
    tags = {"": "{}", "bold": "<b>{}</b>", "cyan": "<code>{}</code>"}
    return "".join(tags[style].format(escape(part)) for part, style in _inline(text))


def _fold(summary: str, rows: list[str]) -> str:
    """HTML that opens with a click."""
    return f"<details><summary>{escape(summary)}</summary>{''.join(rows)}</details>"


def _first_lines(text: str) -> list[str]:
    """At most twenty lines, none of them endless."""
    lines = [line[:200] for line in text.rstrip().splitlines()]
    more = len(lines) - OUTPUT_LINES
    return lines if more <= 0 else [*lines[:OUTPUT_LINES], f"... and {more} lines more"]


@dataclass(repr=False)
class Report:
    """The result of `grade`: falsy until every check of every exercise passes.

    Attributes
    ----------
    graded : list of Graded
        One entry per exercise, each with its `checks`.
    learner : bool
        Whether the learner's own files were graded, which is when advice makes sense.
    brief : bool
        One line per finished or untouched exercise, and the first failure of each other.
    verbose : bool
        Every failure in full, and every check by name.
    note : str
        A further message, such as why progress was not kept.
    """

    graded: list[Graded] = field(default_factory=list)
    learner: bool = True
    brief: bool = False
    verbose: bool = False
    note: str = ""

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
            words = Text(line.lstrip(), style=style if style != PROSE else "")
            if style == PROSE:
                words = Text.assemble(*_inline(line.lstrip()))
            for part in words.wrap(console, max(options.max_width - indent, 20)) or [words]:
                yield Text(" " * indent) + part

    def text(self, *, width: int = 100, colour: bool = False) -> str:
        """The report as text, with terminal colours where asked."""
        return as_text(self, width=width, colour=colour)

    def _lines(self, brief: bool) -> Iterator[tuple[str, str]]:
        for g in self.graded:
            note = "" if g.started else "  not started"
            title = f"{g.exercise.short}  {g.exercise.title}  {g.score}{note}"
            yield f"{MARKS[g.state]} {title}", f"bold {COLOURS[g.state]}"
            if brief and g.state != "failed" and not (self.verbose and g.started):
                continue
            yield from self._checks(g, brief)
            for line, style in self._after(g):
                yield f"    {line}", style
        if self.note:
            yield "", ""
            yield self.note, "yellow"
        if brief and self.learner:
            done = sum(g.passed for g in self.graded)
            yield "", ""
            yield f"{done} of {len(self.graded)} exercises passed", "bold"

    def _checks(self, g: Graded, brief: bool) -> Iterator[tuple[str, str]]:
        """All checks where all is well or asked for; else the first failure, and names."""
        for line in filter(None, (g.lead, g.only_where)):
            yield f"    {line}", "bold"
        if self.verbose or g.first_failure is None:
            for row in g.rows():
                yield f"    {MARKS[row.outcome]} {row.name}", COLOURS[row.outcome]
                for line in row.message.splitlines():
                    yield f"        {line}", ""
                if self.verbose:
                    yield from self._printed(row.output)
            if not self.verbose and not brief:
                yield from self._printed(g.output)
            return
        first, (like_it, others) = g.first_failure, g.folded()
        yield f"    {MARKS['failed']} {first.name}", COLOURS["failed"]
        for line in first.message.splitlines():
            yield f"        {line}", ""
        yield from self._printed(g.output)
        if brief and (like_it or others):
            yield f"    … and more: fa-numba check {g.exercise.short}", ""
            return
        if like_it:
            yield f"    {MARKS['failed']} {like_it} more like it", COLOURS["failed"]
        for outcome, name in others[:NAMES]:
            yield f"    {MARKS[outcome]} {name}", COLOURS[outcome]
        if len(others) > NAMES:
            yield f"    {MARKS['failed']} and {len(others) - NAMES} more", COLOURS["failed"]
        if passed := g.count("passed"):
            yield f"    {MARKS['passed']} {passed} check{'s' * (passed > 1)}", COLOURS["passed"]
        if len(g.failed) > 1:
            short = g.exercise.short
            yield f"    Every failure in full: fa-numba check {short} --verbose", ""

    def _printed(self, output: str) -> Iterator[tuple[str, str]]:
        if output.strip():
            yield "      it printed:", "dim"
            for line in _first_lines(output):
                yield f"        | {line}", "dim"

    def _after(self, g: Graded) -> Iterator[tuple[str, str]]:
        """The debrief, and advice on the next step: (line, style)."""
        if not self.learner:
            return
        short = g.exercise.short
        if g.passed:
            if line := par.line(g.exercise, g.counts):
                yield f"{line} Drawn: fa-numba board {short}", ""
            for paragraph in filter(None, g.debrief.split("\n\n")):
                yield " ".join(paragraph.split()), PROSE
            if g.exercise.solution.exists():  # a handout has none
                yield f"Compare with ours: solution('{short}'), or fa-numba solution {short}", ""
        elif not g.started:
            yield f"Open exercises/{g.exercise.stub.name}, fill it in, save it, grade again.", ""
            yield f"Stuck? hint('{short}'), or fa-numba hint {short}", ""

    def _repr_html_(self) -> str:
        note = f"<div>{escape(self.note)}</div>" if self.note else ""
        return STYLE + "".join(self._html(g) for g in self.graded) + note

    def _html(self, g: Graded) -> str:
        def coloured(outcome, text):
            name = "new" if outcome == "not started" else outcome
            return f'<span class="fa-{name}">{escape(text)}</span>'

        def row_of(outcome, name, message="", output=""):
            text = message
            if output.strip():
                printed = "\n".join(f"| {line}" for line in _first_lines(output))
                text = f"{text}\nit printed:\n{printed}".strip()
            detail = f'<pre style="{PRE}">{escape(text)}</pre>' if text else ""
            return f"<div>{coloured(outcome, MARKS[outcome])} {escape(name)}{detail}</div>"

        head = f"{MARKS[g.state]} {g.exercise.short} · {g.exercise.title}"
        lead = "<br>".join(escape(line) for line in (g.lead, g.only_where) if line)
        lead = f'<div style="margin:.3em 0"><b>{lead}</b></div>' if lead else ""
        if self.verbose:
            rows = [row_of(row.outcome, row.name, row.message, row.output) for row in g.rows()]
        elif g.first_failure is None:
            rows = [row_of(row.outcome, row.name, row.message) for row in g.rows()]
            if g.output.strip():
                rows.append(row_of(g.state, "your file printed something", "", g.output))
        else:
            rows = [row_of("failed", g.first_failure.name, g.first_failure.message, g.output)]
            known = "passed", "skipped"
            rest = [c for c in g.checks if c.outcome not in known and c is not g.first_failure]
            if rest:
                others = [
                    row_of(row.outcome, row.name, row.message)
                    for row in replace(g, checks=rest).rows()
                ]
                summary = f"{len(rest)} more check{'s' * (len(rest) > 1)} without a pass"
                rows.append(_fold(f"{MARKS['failed']} {summary}", others))
            if g.count("passed"):
                names = [row_of("passed", c.name) for c in g.checks if c.outcome == "passed"]
                passed = f"{len(names)} check{'s' * (len(names) > 1)}"
                rows.append(_fold(f"{MARKS['passed']} {passed}", names))
        after = "".join(f"<div>{_as_html(*line)}</div>" for line in self._after(g))
        link = f'<a href="../exercises/{g.exercise.stub.name}">exercises/{g.exercise.stub.name}</a>'
        return (
            f'<div style="margin:.5em 0"><b>{coloured(g.state, head)}</b> {g.score} · {link}'
            f'<div style="margin:.3em 0 .3em 1em">{lead}{"".join(rows)}</div>'
            f'<div style="margin-left:1em">{after}</div></div>'
        )
