"""Write the tables of docs/features.md: which function takes which option, by the signatures.

python docs/make_features.py
"""

import importlib
import inspect
import sys
from collections import Counter
from pathlib import Path

import fa_numba
from fa_numba.dispatch import JOBS
from fa_numba.dispatch.candidates import CPU
from fa_numba.workbook.tables import as_markdown, between_marks

sys.path.insert(0, str(Path(__file__).parent))
make_functions = importlib.import_module("make_functions")

PAGE = Path(__file__).with_name("features.md")


def options_of(function):
    """The names of a function's keyword-only parameters, without arguments of the others."""
    parameters = inspect.signature(function).parameters.values()
    left_out = "seed", "mask_args", "score_args"
    return [x.name for x in parameters if x.kind == x.KEYWORD_ONLY and x.name not in left_out]


OFFERED = Counter(name for job in JOBS.values() for name in options_of(job.check))
OPTIONS = [name for name, number in OFFERED.items() if number > 1]  # the columns


def jobs():
    """A row for the candidates of a job that take the same options, of each job that has any."""
    for name, job in JOBS.items():
        offered, alike = options_of(job.check), {}
        for title, candidate in job.candidates.items() if offered else ():
            has = {x: "yes" if x in candidate.options else "no" for x in offered}
            has |= dict.fromkeys(candidate.always, "always")
            if has.get("score") == "no" and "score_args_grad" in has:
                has["score_args_grad"] = "no"  # there are no score_args
            where = "NumPy, on the CPU" if candidate.package == CPU else "on a GPU"
            limit = f" (up to {most} queries)" if (most := candidate.most_queries) else ""
            key = where, *(has.get(x, "–") for x in OPTIONS)
            alike.setdefault(key, []).append(f"`{title}`{limit}")
        for (where, *has), titles in alike.items():
            yield f"`{name}`", where, ", ".join(titles), *has


def kernels():
    """A row for each other function that takes one of the options, and the names of the rest."""
    public = {name: getattr(fa_numba, name) for name in fa_numba.__all__ if name not in JOBS}
    rows, others = [], []
    for name, function in (public | make_functions.modules()).items():
        given = options_of(function)
        more = ", ".join(f"`{x}`" for x in given if x not in OPTIONS)
        if {*given} & {*OPTIONS}:
            rows.append([f"`{name}`", *("yes" if x in given else "no" for x in OPTIONS), more])
        else:
            others.append(f"`{name}`" + (f" ({more})" if more else ""))
    others += [f"`{name}`" for name, job in JOBS.items() if not options_of(job.check)]
    return rows, dict.fromkeys(others)


def page():
    """The text of docs/features.md with new tables."""
    columns = [f"`{name}`" for name in OPTIONS]
    rows, others = kernels()
    parts = {
        "jobs": as_markdown(["job", "arrays", "functions", *columns], jobs()),
        "kernels": as_markdown(["function", *columns, "more"], rows)
        + f"\n\nFunctions without these options: {', '.join(others)}.",
    }
    return between_marks(PAGE.read_text(encoding="utf-8"), parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8", newline="\n")
