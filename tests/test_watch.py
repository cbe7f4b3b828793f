"""`fa-numba watch`: a file that is saved is graded, and the next exercise named."""

import io

import pytest
from rich.console import Console

from fa_numba.workbook import catalog, cli, grader, progress, stubs, watch
from fa_numba.workbook.report import Check, Graded, Report

SOLUTION = '''"""{short} · Title of {short}"""


def f(x):
    """x."""
    ### BEGIN SOLUTION
    return x
    ### END SOLUTION
'''


@pytest.fixture
def exercises(tmp_path, monkeypatch):
    """A workbook of three untouched exercises; grading passes what returns x."""
    for folder in ("solutions", "exercises"):
        (tmp_path / folder).mkdir()
    for short in ("ex98a", "ex98b", "ex99a"):
        (tmp_path / f"solutions/{short}_x.py").write_text(SOLUTION.format(short=short))
        (tmp_path / f"exercises/test_{short}_x.py").write_text("")
    monkeypatch.chdir(tmp_path)
    found = catalog.all_exercises()
    for exercise in found:
        stubs.write(exercise)

    def grade_all(exercises, **_):
        graded = []
        for exercise in exercises:
            right = "return x" in exercise.stub.read_text()
            graded.append(Graded(exercise, [Check("is x", "passed" if right else "failed", "no")]))
        progress.record(graded)
        return Report(graded)

    monkeypatch.setattr(grader, "grade_all", grade_all)
    return found


def run(exercises, *steps):
    """Watch while these happen, one between two looks each; returns the printed text."""
    steps = iter(steps)

    def wait(seconds):
        for step in steps:
            if step is not None:
                step()
            return
        raise KeyboardInterrupt

    text = io.StringIO()
    watch.watch(exercises, console=Console(file=text, width=120), wait=wait)
    return text.getvalue()


def save(exercise, line):
    return lambda: exercise.stub.write_text(f"def f(x):\n    {line}\n")


def test_it_says_what_comes_next(exercises):
    said = run(exercises)
    assert "0 of 3 exercises passed; next: ex98a · Title of ex98a" in said
    assert said.endswith("stopped\n") and "is x" not in said, "nothing was saved"


def test_a_saved_file_is_graded_once(exercises):
    said = run(exercises, save(exercises[0], "return x"), None, None, None)
    assert said.count("✓ ex98a") == 1 and "ex98b  " not in said
    assert "█" * 8 + "░" * 16 + " 1 of 3 exercises passed; next: ex98b" in said


def test_each_save_counts_and_the_last_verdict_stays(exercises):
    said = run(
        exercises,
        save(exercises[1], "return 3 + x"), None,
        save(exercises[1], "return x"), None,
        save(exercises[0], "return x"), None,
        save(exercises[2], "return x"), None,
    )  # fmt: skip
    verdicts = [line.split()[:2] for line in said.splitlines() if line[:1] in "✗✓"]
    wanted = [["✗", "ex98b"], ["✓", "ex98b"], ["✓", "ex98a"], ["✓", "ex99a"]]
    assert [v for v in verdicts if v] == wanted
    assert "1 of 3 exercises passed; next: ex98a" in said
    assert "3 of 3 exercises passed; all done" in said


def test_a_file_still_being_written_waits(exercises):
    first = exercises[0]
    said = run(
        exercises, first.stub.unlink, save(first, "ret"), save(first, "return x"), None, None
    )
    assert said.count("ex98a  Title") == 1 and "✓ ex98a" in said


def test_saved_while_it_grades(exercises, monkeypatch):
    grade_all, steps = grader.grade_all, iter([save(exercises[0], "return x")])

    def grade(found):
        report = grade_all(found)
        next(steps, lambda: None)()
        return report

    monkeypatch.setattr(grader, "grade_all", grade)
    said = run(exercises, save(exercises[0], "return 30 + x"), None, None, None)
    assert said.index("✗ ex98a") < said.index("✓ ex98a")


def test_a_grader_that_fails_does_not_end_it(exercises, monkeypatch):
    def broken(_):
        raise RuntimeError("the grader itself failed: [no]")

    monkeypatch.setattr(grader, "grade_all", broken)
    said = run(exercises, save(exercises[0], "return x"), None, save(exercises[1], "x"), None)
    assert said.count("the grader itself failed: [no]") == 2


def test_status_has_the_same_line(exercises):
    grader.grade_all(exercises[:1])
    save(exercises[0], "return x")()
    grader.grade_all(exercises[:1])
    line = "1 of 3 exercises passed; next: ex98b · Title of ex98b"
    assert line in grader.status()._repr_markdown_()
    assert grader.progress_line(exercises) in " ".join(repr(grader.status()).split())
    assert "1 of 2 exercises passed; next: ex98b" in grader.status("98").line


def test_the_command_watches_what_is_named(exercises, monkeypatch):
    watched = []
    monkeypatch.setattr(watch, "watch", lambda found: watched.append([e.short for e in found]))
    assert cli.main(["watch", "98"]) == 0 and cli.main(["watch"]) == 0
    assert watched == [["ex98a", "ex98b"], ["ex98a", "ex98b", "ex99a"]]
    assert cli.main(["watch", "ex97a"]) == 2
