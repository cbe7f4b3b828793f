"""An exercise's statement, in a terminal that is narrower than the statement's file.

A statement is up to 100 characters wide and has columns: a word, some spaces, its explanation. In a
narrow terminal each item is wrapped by itself, under its own column.
"""

from __future__ import annotations

import re
import textwrap

FULL = 90  # a line that ends here or later goes on in the next one
NARROWEST = 32  # least width for the text of an item
COLUMN = re.compile(r" {2,}(?=\S)")  # the space between two columns


class Statement:
    """A text that is wrapped if it does not fit."""

    def __init__(self, text: str):
        self.text = text

    def __rich_console__(self, console, options):
        from rich.text import Text

        yield Text(wrapped(self.text, options.max_width), no_wrap=True, overflow="ignore")


def wrapped(text: str, width: int) -> str:
    """A statement in lines of at most `width` columns, as far as its words allow."""
    if max(map(len, text.splitlines()), default=0) <= width:
        return text
    items: list[list] = []  # [its text in one line, where it may go on, where it goes on]
    last = ""
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        columns = [m.end() for m in COLUMN.finditer(line) if m.end() > indent]
        goes_on = (
            items
            and line.strip()
            and not columns
            and indent in items[-1][1]
            and len(last) + 1 + len(line.split()[0]) > FULL
        )
        if goes_on:
            items[-1][0] += " " + line.strip()
            items[-1][1:] = [indent], indent
        else:
            apart = [c for c in columns if line[c - 3 : c] == "   "]
            items.append([line, columns or [indent], (apart[-1:] or columns or [indent])[0]])
        last = line
    lines = []
    for item, _, column in items:
        lines += textwrap.wrap(
            item,
            width,
            subsequent_indent=" " * min(column, width - NARROWEST),
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return "\n".join(lines)
