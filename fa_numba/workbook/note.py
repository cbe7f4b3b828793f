"""Text that a command or a lesson shows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape

from fa_numba.workbook.report import as_text
from fa_numba.workbook.statement import Statement

# Jupyter's own style has wide margins, and breaks long lines in the middle of a word.
PRE = "margin:0; font-size:13px; white-space:pre-wrap; word-break:normal"
STATEMENT = re.compile(r"```text(\n.*?\n)```", flags=re.DOTALL)


@dataclass(repr=False)
class Note:
    """Markdown, shown as such in a notebook and as plain rich text in a terminal."""

    markdown: str

    def _repr_markdown_(self) -> str:
        return STATEMENT.sub(lambda x: f'<pre style="{PRE}">{escape(x[1])}</pre>', self.markdown)

    def __repr__(self) -> str:
        return as_text(self).rstrip()

    def __rich__(self):
        from rich.console import Group
        from rich.markdown import Markdown, TableDataElement

        class Cell(TableDataElement):
            """A word that is wider than its column is broken: rich would cut it off."""

            def __init__(self, justify):
                super().__init__(justify)
                self.content.overflow = "fold"

        class Whole(Markdown):
            elements = Markdown.elements | {"td_open": Cell, "th_open": Cell}

        # a statement is as wide as a page: rich would indent it, and wrap it without its columns
        parts = STATEMENT.split(self.markdown)
        return Group(*(Statement(x) if i % 2 else Whole(x) for i, x in enumerate(parts)))
