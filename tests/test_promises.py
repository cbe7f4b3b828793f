"""Every "no ...", "one ..." and "not ..." of a statement is tied to a check of its grader.

`PROMISES` has, for each kind of promise, the words by which a statement makes it, and the code that
a check of it uses. A "no" or "without" that is of no kind must be listed in `PROSE`.
"""

import ast
import functools
import re
from pathlib import Path

from fa_numba.workbook.catalog import all_exercises

EXERCISES = all_exercises(Path(__file__).parents[1])

# words of the statement -> code of the grader
PROMISES = {
    "loop": (
        r"\bno (Python )?loops?\b|without a loop\b|\bOne loop, not two|\bloops? over (m|tokens)\b",
        r"expect_no_loop|expect_once|10\*\*1[0-9]|1 << \d\d|2\*\*[3-9]\d|budgets?_answer"
        r"|64 \* 2\*\*20|\d_000_000\b",
    ),
    "barrier": (
        r"\bno barrier|\bone barrier\b|without a further barrier|\bbarriers +at most \d+"
        r"|\bat most \d+ cuda.syncthreads|Barriers at most",
        r"\.barriers\b",
    ),
    "shuffle": (r"\bno shuffles?\b", r"\.shuffles\b"),
    "warning": (r"\bno warning", r"warning"),
    "chip memory": (
        r"\bno (shared memory|local arrays?|array (besides|but|of all))|\bregisters only"
        r"|\bone shared array|the arrays that are (given|there)|\bone array: ",
        r"expect_chip_memory|shared_bytes|local_bytes",
    ),
    "bank conflict": (r"\b(no|without a?) ?bank conflicts?\b", r"bank_conflicts|wavefronts"),
    "array": (r"\bno array\.|\bno \(d, d\)", r"expect_no_loop|2\*\*[1-9]\d|10\*\*1[0-9]"),
    "NaN": (r"\bno NaN|\bnever NaN|\bnothing may be NaN", r"nan|NaN|NAN|check_rows|expect_close"),
    "race": (r"\bno race|without the race", r"race|simt\.run|rows\.run"),
    "left alone": (
        r"\b(and|is|are) not (be )?(written|changed)|\bnever written\b|\bleaves x alone"
        r"|\bNo argument is changed|\bnot write to|\barguments stay as they are|\bNot changed\b",
        r"unchanged|before|untouched|copy\(\)|expect_clean",
    ),
    "loads and stores": (
        r"\b(loaded|read|stored|written) (at most |only )?(once|twice|three times)|\bnot loaded\b"
        r"|\bnever (be )?loaded|\bno load from|\bno HBM\b",
        r"expect_traffic|expect_once|expect_at_most|\.loads\b|\.stores\b|moved\[|traffic",
    ),
    "float32": (
        r"\bfloat32 throughout|\bin float32\b|\bno (operation on )?float64|no floating-point",
        r"gpu_ready|expect_float32|float64|float32",
    ),
    "exponentials": (r"\bno more exponentials", r"exp"),
    "finite differences": (r"\bno finite differences", r"calls|finite"),
    "budget": (r"\bBudget\b|\bbudget\b", r"BUDGET|budget|allowed|most"),
}
# Nouns behind "no" and "without" that promise nothing of an answer's.
PROSE = re.compile(
    r"\b(no|without) (an? |the )?(bugs?\b|two mistakes|finite score|float is|kernel|keys?\b|limit"
    r"|mask\b|model|need|order|others?\b|page|pairs|query|rank|scale|seqlen_q x|split|state|test"
    r"|byte|columns?\b|infinities|thread|tiles?\b|time|token|warp|waste|row|array:|element|asking"
    r"|S and P|work"
    r"|block table|more|requests|any$|array\.|NaN anywhere)"
)
# (exercise, kind) -> the reason that no check is needed
OF_PUBLISHED = "the sentence describes the given program, which has the bug"
EXEMPT = {
    ("ex01a", "loads and stores"): "the sentence says how bytes are counted",
    ("ex21e", "NaN"): OF_PUBLISHED,
    ("ex21f", "NaN"): OF_PUBLISHED,
}


@functools.cache
def statement_of(exercise):
    """The statement in one line."""
    tree = ast.parse(exercise.solution.read_text(encoding="utf-8"))
    return " ".join(ast.get_docstring(tree).split())


def test_every_promise_has_a_check():
    unchecked = {
        f"{exercise.short}: {kind}": found.group()
        for exercise in EXERCISES
        for kind, (words, code) in PROMISES.items()
        if (found := re.search(words, statement_of(exercise)))
        and not re.search(code, exercise.grader.read_text(encoding="utf-8"))
        and (exercise.short, kind) not in EXEMPT
    }
    assert not unchecked


def test_every_no_is_a_promise_or_prose():
    words = "|".join(f"(?:{words})" for words, _ in PROMISES.values())
    for exercise in EXERCISES:
        statement = statement_of(exercise)
        promised = [found.span() for found in re.finditer(words, statement)]
        for m in re.finditer(r"\b(no|without) ", statement):
            known = any(start <= m.start() < end for start, end in promised)
            unknown = statement[m.start() : m.start() + 50]
            assert known or PROSE.match(statement, m.start()), f"{exercise.short}: {unknown}"


def test_exemptions_are_of_promises():
    shorts = {e.short: e for e in EXERCISES}
    for short, kind in EXEMPT:
        assert re.search(PROMISES[kind][0], statement_of(shorts[short])), (short, kind)
