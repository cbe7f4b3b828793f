"""Errors of an answer, sent as plain data and made into real exceptions again in the judge.

An error keeps its message, its lines in the learner's file, and the nearest class that both sides
know: a builtin one, or one of the engine's. A class of the learner's own becomes a class made here,
so that ``except exercise.OutOfPages`` works.
"""

from __future__ import annotations

import builtins
import dataclasses
import re
import traceback

from numba_cuda_simulator import errors as engine

UNPACKING = re.compile(r"cannot unpack (None|\d+ values?|\S+) into (\d+) variables")
CALLED = re.compile(r"= *(\w+)\(")
LONGEST = 2000  # characters of a message
MOST_LINES = 40
KNOWN = {
    name: kind
    for name, kind in {**vars(builtins), **vars(engine)}.items()
    if isinstance(kind, type) and issubclass(kind, Exception)
}
KNOWN_NAMES = {kind: name for name, kind in reversed(KNOWN.items())}


class AnswerError(Exception):
    """The check cannot go on: the answer ended its process, hung, or was skipped."""


def clipped(text: str, longest: int = LONGEST) -> str:
    """A message of reasonable length."""
    lines = text[: 4 * longest].splitlines()
    short = "\n".join(lines[:MOST_LINES])[:longest]
    if len(short) < len(text.rstrip()):
        short += f"\n... ({len(text):,} characters in all)"
    return short


def describe(error: BaseException, path: str, encode_class) -> dict:
    """An error of the answer, as JSON."""
    try:
        text = clipped(str(error))
    except BaseException:  # its __str__ is the learner's own
        text = "(an error that cannot be printed)"
    kind = type(error)
    frames = traceback.extract_tb(error.__traceback__)
    found = {
        "class": kind.__name__[:100],
        "module": str(kind.__module__)[:100],
        "known": [KNOWN_NAMES[k] for k in kind.__mro__ if k in KNOWN_NAMES],
        "own": [encode_class(k) for k in kind.__mro__ if k.__module__ == encode_class.module],
        "text": text,
        "lines": [[f.lineno, f.line] for f in frames if f.filename == path][-1:],
        "is_exception": isinstance(error, Exception),
    }
    if isinstance(error, SyntaxError) and error.filename == path:
        found["syntax"] = [str(error.msg), error.lineno, (error.text or "").strip()]
    if isinstance(error, engine.KernelError):
        found["sites"] = [dataclasses.asdict(site) for site in error.sites]
        found["message"] = clipped(str(error.message))
        found["text"] = _of_a_device_function(error, path) or text
    return found


def _of_a_device_function(error, path):
    """A clear word where a function that a kernel calls returns nothing, or too little."""
    got = UNPACKING.match(str(error.message))
    called = CALLED.search(error.sites[0].text) if got and error.sites else None
    if called is None:
        return ""
    name, values, wanted = called[1], got[1], got[2]
    with open(path, encoding="utf-8") as file:
        lines = file.read().splitlines()
    place = [(n, x) for n, x in enumerate(lines, 1) if re.match(rf"\s*def {name}\(", x)]
    where = f"\n  line {place[-1][0]}: {place[-1][1].strip()}" if place else ""
    if values == "None":
        return (
            f"{name} returned nothing, and {wanted} values are wanted: is a return missing?{where}"
        )
    return f"{name} returned {values}, and {wanted} values are wanted{where}"


STOPPERS = {
    "SystemExit": "it calls exit() or sys.exit()",
    "KeyboardInterrupt": "it raises KeyboardInterrupt",
    "GeneratorExit": "it raises GeneratorExit",
    "Skipped": "it skips the check, which only a grader may do",
    "SkipTest": "it skips the check, which only a grader may do",
    "XFailed": "it marks the check as an expected failure, which only a grader may do",
    "Exit": "it ends pytest",
    "Failed": "it calls pytest.fail",
}


def rebuild(data: dict, own_class, file_name: str) -> Exception:
    """The exception that `describe` described; `own_class` gives the judge's learner classes."""
    text, name = str(data["text"]), str(data["class"])
    of_a_runner = str(data["module"]).startswith(("_pytest", "unittest"))
    if name in STOPPERS and (of_a_runner or not data["is_exception"]):
        error = AnswerError(f"{file_name}: {STOPPERS[name]}" + (f" ({text})" if text else ""))
    elif not data["is_exception"]:
        error = AnswerError(f"{file_name} raises {name}: {text}")
    else:
        error = _exception(data, name, text, own_class)
    error.answer_lines = [(int(n), str(line or "")[:200]) for n, line in data["lines"]]
    if "syntax" in data:
        message, line, source = data["syntax"]
        error.answer_syntax = str(message), int(line or 0), str(source)[:200]
    return error


def _exception(data, name, text, own_class):
    known = [KNOWN[k] for k in data["known"] if k in KNOWN]
    base = known[0] if known else Exception
    if data["own"]:
        kind = own_class(data["own"][0])
    elif base.__name__ == name:
        kind = base
    else:
        kind = type(name, (base,), {})
    with_text = type(kind.__name__, (kind,), {"__str__": lambda self: text})
    if "sites" in data:  # an error of the engine, whose text was made where the source is
        error = with_text(data["message"])
        error.sites = tuple(engine.Site(**site) for site in data["sites"])
        return error
    # Their own __init__ or __str__ would change the words.
    changes = issubclass(kind, KeyError | UnicodeError | ImportError | SyntaxError) or data["own"]
    return with_text() if changes else kind(text)
