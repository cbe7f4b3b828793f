"""Tables for the lessons, and benchmark results of a real GPU."""

import json
import textwrap
from pathlib import Path

from fa_numba.workbook.catalog import course, find_root
from fa_numba.workbook.note import Note
from fa_numba.workbook.tables import as_markdown


def table(rows, *, title=""):
    """Rows of a table, shown as such in a notebook and in a terminal.

    Parameters
    ----------
    rows : list of dict
        The keys are the columns, in the order of their first appearance.
    title : str, default=""
        Shown above, Markdown.
    """
    columns = list(dict.fromkeys(key for row in rows for key in row))
    numeric = [x for x in columns if all(_is_number(row.get(x)) for row in rows)]
    cells = ([_text(row.get(column)) for column in columns] for row in rows)
    return Note((f"{title}\n\n" if title else "") + as_markdown(columns, cells, right=numeric))


def say(*sentences):
    """Print text in lines that fit on the page: a notebook would cut longer ones in mid-word.

    Parameters
    ----------
    *sentences : any
        Each begins a line of its own.
    """
    for sentence in sentences:
        print(textwrap.fill(str(sentence), 80, break_long_words=False, break_on_hyphens=False))


def recorded(question, *, keep=None, across=None, cells=None, by=(), beside=None, folder=None):
    """The results in `benchmarks/results/<question>.json`, or the command that makes them.

    Parameters
    ----------
    question : str
        Name of the benchmark, such as ``"softmax"``.
    keep : function of a row, optional
        Whether to show it.
    across, cells, by : str, str, sequence of str, optional
        One row for each combination of `by`, one column for each value of `across`, holding
        `cells`: the values to compare are side by side.
    beside : Mine, optional
        The learner's kernel. Where it has passed and there is a GPU, its time is a further column.
    folder : path, optional
        Where to look instead.

    Returns
    -------
    Note
        The rows, with the machine, the command and the date they come from.
    """
    record = _record(question, folder)
    if record is None:
        return Note(
            f"*No numbers recorded yet.* On a machine with a GPU, `python -m benchmarks {question}`"
            f" measures them and writes `benchmarks/results/{question}.json`; then run this cell"
            " again."
        )
    title = f"**{record['machine']}**, {record['date']}, `{record['command']}`"
    if note := record.get("note"):
        title += f"  \n{note}"
    rows = [row for row in record["rows"] if keep is None or keep(row)]
    if across is not None:
        title += f"  \n{cells} by {across}:"
        pivoted = {}
        for row in rows:
            key = tuple(row[name] for name in by)
            pivoted.setdefault(key, dict(zip(by, key, strict=True)))[row[across]] = row[cells]
        rows = list(pivoted.values())
    if beside is not None:
        rows = beside.with_times(rows)
    return table(rows, title=title)


def recorded_rows(question, *, folder=None):
    """The rows of `benchmarks/results/<question>.json`, to compute with; [] if there is none.

    Parameters
    ----------
    question : str
        Name of the benchmark, such as ``"softmax"``.
    folder : path, optional
        Where to look instead.

    Returns
    -------
    list of dict
    """
    record = _record(question, folder)
    return record["rows"] if record else []


def experiment(name, *, folder=None):
    """An explanation of a lesson, what it predicts, and what a GPU says about it.

    Parameters
    ----------
    name : str
        A function of `benchmarks/bench_explanations.py`.
    folder : path, optional
        Of the results, in place of benchmarks/results.

    Returns
    -------
    Note
        The variants that were timed; above them the ratio that the explanation predicts, the one
        without it, the one measured, and the verdict that follows.
    """
    record = _record("explanations", folder) or {"rows": []}
    rows = [row for row in record["rows"] if row["experiment"] == name]
    if not rows:
        return Note(
            "**Open: not measured yet.** On a machine with a GPU, `python -m benchmarks "
            "explanations` measures it; then run this cell again."
        )
    *variants, found = rows
    if_so, if_not, measured = (_text(found[x]) for x in ("predicted", "otherwise", "measured"))
    title = (
        f"**{record['machine']}**, {record['date']}: {found['question']}  \n{found['ratio']}: "
        f"{if_so} if so, {if_not} if not, {measured} measured. "
        f"**The explanation {found['verdict']}.**"
    )
    keys = "variant", "ms", "of the first"
    return table([{key: row[key] for key in keys} for row in variants], title=title)


def _record(question, folder):
    """The record of a benchmark; None if there is none."""
    folder = course(find_root()) / "benchmarks" / "results" if folder is None else Path(folder)
    path = folder / f"{question}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _is_number(value):
    return value is None or isinstance(value, (int, float))


def _text(value):
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    whole = isinstance(value, int) or abs(value) >= 1e4  # 17,340 rather than 1.734e+04
    return f"{value:,.0f}" if whole else f"{value:,.4g}"
