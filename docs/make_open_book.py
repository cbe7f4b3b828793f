"""Write into docs/instructors.md which exercises' answers the handout gives.

python docs/make_open_book.py
"""

from pathlib import Path

from fa_numba.workbook import handout, own
from fa_numba.workbook.catalog import all_exercises
from fa_numba.workbook.tables import as_markdown, between_marks

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "instructors.md"


def page():
    """The text of docs/instructors.md with a new list."""
    exercises = {e.name: e.short for e in all_exercises(ROOT)}
    rows, given = [], []
    for name, (file, held, of) in handout.open_book(ROOT).items():
        if file == f"exercises/{name}.py":
            given.append(exercises[name])
        else:
            rows.append((exercises[name], f"{held} of {of}", f"`{file}`"))
    kernels = ", ".join(sorted(own.JOBS))
    text = "\n".join([
        as_markdown(["exercise", "lines of its answer", "file"], rows),
        "",
        f"The stubs of these hold {handout.OPEN:.0%} or more of their own answers, mostly as the "
        f"program that is to be mended: {', '.join(given)}.",
        "",
        "For these the package or a lesson has a kernel that does the same, in other words or in "
        f"the same ones: {kernels}.",
    ])  # fmt: skip
    return between_marks(PAGE.read_text(encoding="utf-8"), {"open_book": text})


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
