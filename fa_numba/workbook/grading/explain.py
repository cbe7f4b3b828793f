"""The message to a learner about a failed check, with the lines of the file that it is about."""

from __future__ import annotations

import ast
import functools
import re
import traceback
from pathlib import Path

import pytest

from fa_numba.workbook.graders.meter import race_cause
from fa_numba.workbook.grading.failures import LONGEST, AnswerError, clipped
from fa_numba.workbook.grading.files import BadFile

PYTEST_NOT_MATCHED = re.compile(
    r"(?:Regex pattern did not match|Expected regex).*?(?:Regex|regex):\s*(?P<want>.*?)\n\s*"
    r"(?:Input|Actual message|input):\s*(?P<got>.*)",
    re.DOTALL | re.IGNORECASE,
)

NOT_COMPARED = "the check cannot compare what the file returned"  # an error in the grader's code


def explain(error: BaseException, path: Path, *, never_written: bool = False) -> str:
    """The message, and the lines of `path` that it is about."""
    if syntax := getattr(error, "answer_syntax", None):
        message, line, source = syntax
        return f"{path.name} does not import: {message}\n  line {line}: {source}"
    text = str(error).strip()
    if isinstance(error, AnswerError | BadFile):
        pass
    elif isinstance(error, AssertionError):
        # pytest appends its own account of the comparison; the grader's words are enough.
        text = re.split(r"^assert |\nassert ", text)[0].strip() or text or "the check failed"
        text = _pytests_own(text, error)
    elif not isinstance(error, pytest.fail.Exception):
        if wanted := _wanted(error):
            text = f"wanted {wanted}, got {type(error).__name__}: {text}"
        elif isinstance(error, MemoryError):
            text = f"MemoryError: more memory than an answer may take. {text}".rstrip(". ")
        else:
            text = f"{type(error).__name__}: {text}"
            if not (hasattr(error, "from_answer") or hasattr(error, "answer_lines")):
                text = f"{NOT_COMPARED}: {text}"
    elif text.startswith("DID NOT RAISE"):
        text = f"want {_class_name(text)}, and nothing was raised"
    if never_written:
        text = re.sub(r"\b(got|is) nan\b", r"\1 nan: it was never written", text)
    if not hasattr(error, "sites"):  # the engine's own errors quote their lines already
        text += "".join(f"\n  line {n}: {line}" for n, line in getattr(error, "answer_lines", ()))
    return clipped(text, 2 * LONGEST)


def causes_of(error: BaseException) -> tuple[list[str], str]:
    """Likely causes of a failure, each in a sentence that says nothing of the case, and the place.

    The causes come from the grader. Where it gives none: the error in short, and its line.
    """
    if hasattr(error, "causes"):
        return error.causes, error.where
    if syntax := getattr(error, "answer_syntax", None):
        return [f"line {syntax[1]} is no Python: {syntax[0]}."], ""
    name = type(error).__name__
    if sites := getattr(error, "sites", ()):
        if name == "RaceError":
            return [race_cause(str(error.message), sites)], ""
        return [f"{_in_short(str(error.message))} in line {sites[0].line}."], ""
    if isinstance(error, AnswerError | BadFile):
        return [clipped(line, 200) for line in str(error).strip().splitlines()[:1]], ""
    lines = getattr(error, "answer_lines", ())
    if isinstance(error, TypeError) and "NoneType" in str(error):
        return ["Something is None there: is a `return` missing?"], ""
    if lines and not isinstance(error, AssertionError | pytest.fail.Exception):
        return [f"{name} in line {lines[-1][0]}."], ""
    return [], ""


IN_SHORT = (  # of the engine's messages
    (r"index .* is out of bounds for axis \d+ of '([\w.]+)'", r"an index of \1 is out of bounds"),
    (r"uninitialised read of ([\w.]+)\[.*", r"nothing has been stored yet where \1 is read"),
    (r"([\w.]+\(\))(?: is reached by |: thread ).*", r"not all threads reach \1"),
)


def _in_short(message):
    """Return an engine error's message without threads and numbers, which differ by the case."""
    message = message.split("\n")[0]
    for pattern, words in IN_SHORT:
        if found := re.match(pattern, message):
            return found.expand(words)
    return re.split(r": |[:,]? (?:in )?thread \(", message)[0].rstrip(".,")


def _class_name(text):
    found = re.search(r"<class '(?:\w+\.)*(\w+)'>", text)
    return found[1] if found else text.removeprefix("DID NOT RAISE").strip()


def _pytests_own(text, error):
    """The failure of `pytest.raises(..., match=...)` in plain words."""
    if found := PYTEST_NOT_MATCHED.search(text):
        kind = _wanted(error) or "the error"
        return f"the message of {kind} must have {found['want']} in it, got {found['got']}"
    return text


def _wanted(error):
    """The exception that the grader's `with pytest.raises(...)` expects, or None."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if Path(frame.filename).name.startswith("test_ex"):
            tree = ast.parse(Path(frame.filename).read_text(encoding="utf-8"))
            for node in ast.walk(tree):
                if isinstance(node, ast.With) and node.lineno <= frame.lineno <= node.end_lineno:
                    for item in node.items:
                        call = item.context_expr
                        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("raises"):
                            return ast.unparse(call.args[0]).removeprefix("exercise.")
    return None


# --- a stub's own NotImplementedError


def is_not_written(error: BaseException, path: Path) -> bool:
    """Whether this is the stub's own error."""
    short = path.stem.split("_", 1)[0]
    return isinstance(error, NotImplementedError) and str(error).startswith(f"{short}: ")


def left_over(error: BaseException, text: str, stub: str) -> str:
    """The message about a written function with the stub's `raise` left in it, else ""."""
    return _left_over(str(error).partition(": ")[2].strip(), text, stub)


@functools.lru_cache(maxsize=256)  # most checks of a file ask for the same functions
def _left_over(name: str, text: str, stub: str) -> str:
    try:
        mine, given = (_function(ast.parse(source), name) for source in (text, stub))
    except SyntaxError:
        return ""
    if mine is None or given is None or ast.dump(mine) == ast.dump(given):
        return ""
    for node in ast.walk(mine):
        if isinstance(node, ast.Raise) and "NotImplementedError" in ast.unparse(node):
            return f"line {node.lineno} still raises the stub's NotImplementedError: delete it"
    return ""


def _function(tree, name):
    """The last function of this name, without its docstring."""
    found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name]
    if not found:
        return None
    function = found[-1]
    if ast.get_docstring(function) is not None:
        function.body = function.body[1:]
    return function
