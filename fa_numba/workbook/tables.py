"""Rows as text: a record as JSON and a table as Markdown, each row in a line of its own."""

import json
import re


def as_json(value, indent=""):
    """JSON with one item of a list per line, so that a diff shows the rows that changed."""
    parts = value.values() if isinstance(value, dict) else value
    if not isinstance(value, dict | list) or not any(isinstance(x, dict | list) for x in parts):
        return json.dumps(value, ensure_ascii=False)
    deeper = indent + " "
    if isinstance(value, list):
        lines = (json.dumps(item, ensure_ascii=False) for item in value)
    else:
        lines = (
            f"{json.dumps(key, ensure_ascii=False)}: {as_json(item, deeper)}"
            for key, item in value.items()
        )
    opening, closing = "[]" if isinstance(value, list) else "{}"
    return f"{opening}\n{deeper}" + f",\n{deeper}".join(lines) + closing


def as_markdown(columns, rows, right=()):
    """A table in Markdown, without a newline at its end; a bar in a cell is escaped.

    `columns` are the titles, `rows` the cells in their order; columns in `right` are aligned to the
    right.
    """
    rule = "|".join("---:" if column in right else "---" for column in columns)
    return "\n".join([as_row(columns), f"|{rule}|", *map(as_row, rows)])


def as_row(cells):
    """One row of a table in Markdown."""
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def between_marks(text, parts):
    """A page with each part written anew between `<!-- name:begin -->` and `<!-- name:end -->`."""
    for name, part in parts.items():
        marks = rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)"
        text, found = re.subn(marks, lambda m, part=part: f"{m[1]}{part}\n{m[2]}", text, flags=re.S)
        if found != 1:
            raise ValueError(f"the page must have the marks of {name} once, got {found}")
    return text
