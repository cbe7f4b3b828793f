"""What an exercise asks for, in a terminal that is narrower than the file it is written in.

A statement is up to 100 columns wide and uses columns: a word, some spaces, what there is to say of
it. Where it does not fit, each such item is wrapped by itself, under its own column.
"""

from __future__ import annotations

import re
import textwrap

FULL = 90  # a line that ends here or later goes on in the next one
ITEM = re.compile(r"( *\S+(?: \S+){0,3} {2,})\S")  # "launch    kernel[1, ...]"


class Statement:
    """Prints as it is where it fits, and wrapped where it does not."""

    def __init__(self, text: str):
        self.text = text

    def __rich_console__(self, console, options):
        from rich.text import Text

        yield Text(wrapped(self.text, options.max_width), no_wrap=True, overflow="ignore")


def wrapped(text: str, width: int) -> str:
    """A statement in lines of at most `width` columns, as far as its words allow.

    Parameters
    ----------
    text : str
    width : int

    Returns
    -------
    str
    """
    if max(map(len, text.splitlines()), default=0) <= width:
        return text
    items: list[list] = []  # [first line with all that follows it, column of what follows]
    last = ""
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        goes_on = (
            items
            and line.strip()
            and not ITEM.match(line)
            and indent == items[-1][1]
            and len(last) + 1 + len(line.split()[0]) > FULL
        )
        if goes_on:
            items[-1][0] += " " + line.strip()
        else:
            found = ITEM.match(line)
            items.append([line, len(found[1]) if found else indent])
        last = line
    lines = []
    for item, column in items:
        lines += textwrap.wrap(
            item,
            width,
            subsequent_indent=" " * min(column, width // 2),
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return "\n".join(lines)
