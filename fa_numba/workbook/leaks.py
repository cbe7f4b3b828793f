"""Finds answers in files: which lines and passages of the solutions a text holds.

An answer is the code between ``### BEGIN SOLUTION`` and ``### END SOLUTION``. Two units count:

line      30 characters or more.
passage   three lines in a row, or all of a shorter answer, of 30 characters or more together;
          comments and empty lines do not count. A single line of a longer answer is none:
          `with np.errstate(divide="ignore"):` is in many programs.
"""

from __future__ import annotations

import re
from pathlib import Path

from fa_numba.workbook import stubs
from fa_numba.workbook.catalog import all_exercises

LONG = 30  # characters: a shorter line or passage is no answer by itself
PASSAGE = 3  # lines


def answers(text: str) -> list[list[str]]:
    """The answers in the text of a solution: the lines of each, without their indentation."""
    found, inside = [], False
    for line in map(str.strip, text.splitlines()):
        if line in (stubs.BEGIN, stubs.END):
            inside = line == stubs.BEGIN
            found += [[]] * inside
        elif inside:
            found[-1] = [*found[-1], line]
    return found


def answer_lines(root: Path) -> set[str]:
    """Every long line of an answer."""
    lines = (x for e in all_exercises(root) for answer in answers(e.text) for x in answer)
    return {line for line in lines if len(line) >= LONG}


def code_lines(lines) -> list[tuple[int, str]]:
    """(number, line) of the lines that are neither empty nor comments, without trailing ones."""
    cut = (
        (n, (re.sub(r"\s+#.*", "", line) if "#" in line else line).strip())
        for n, line in enumerate(lines, 1)
    )
    return [(n, line) for n, line in cut if line and not line.startswith("#")]


def passages(code: list[tuple[int, str]], length: int = PASSAGE) -> dict[tuple[str, ...], int]:
    """{passage: number of its first line} of `code_lines`; all of them if they are few."""
    starts = range(max(len(code) - length, 0) + 1) if code else ()
    return {tuple(x for _, x in code[i : i + length]): code[i][0] for i in reversed(starts)}


def secret_passages(exercises, given) -> dict[tuple[str, ...], str]:
    """{passage: its exercise} of all answers, but those in the given texts."""
    found = {}
    for exercise in exercises:
        for answer in answers(exercise.text):
            code = passages(code_lines(answer))
            found |= {p: exercise.short for p in code if sum(map(len, p)) >= LONG}
    for text in given:
        code = code_lines(text.splitlines())
        for length in range(1, PASSAGE + 1):
            for passage in passages(code, length):
                found.pop(passage, None)
    return found


def told_passages(name, text, secret) -> list[str]:
    """Where a file holds secret passages, a line for each."""
    found, code = {}, code_lines(text.splitlines())
    for length in range(1, PASSAGE + 1):
        for passage, line in passages(code, length).items():
            if passage in secret:
                found.setdefault((line, secret[passage]), passage[0])
    return [
        f"{name}, line {line}, holds the answer of {exercise}: {code}"
        for (line, exercise), code in sorted(found.items())
    ]
