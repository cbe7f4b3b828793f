"""The workbook's machinery, on a workbook of one exercise made for the test."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from colours import contrast
from matplotlib.colors import to_rgb
from small_workbook import make_small_workbook

from fa_numba.runtime import arrays
from fa_numba.workbook import catalog, cli, grader, progress, report, stubs
from fa_numba.workbook.note import Note

REPOSITORY = Path(__file__).parents[1]

SOLUTION = '''"""ex99a · Double it

Return twice x.
"""

import math

### HINT 1: a nudge
###   that goes on
### HINT 2: the idea
### HINT 3: 2 * x
### DEBRIEF: Doubling is adding.


def double(x):
    """Twice x."""
    ### BEGIN SOLUTION
    y = x
    return x + y
    ### END SOLUTION


def half(x):
    """Half of x."""
    ### BEGIN SOLUTION
    return x / 2
    ### END SOLUTION
'''

STUB = '''"""ex99a · Double it

Return twice x.
"""

import math


def double(x):
    """Twice x."""
    # YOUR CODE HERE
    raise NotImplementedError("ex99a: double")


def half(x):
    """Half of x."""
    # YOUR CODE HERE
    raise NotImplementedError("ex99a: half")
'''

GRADER = '''
import pytest


@pytest.mark.parametrize("x", [0, 3])
def test_double(exercise, x):
    """doubles numbers"""
    got = exercise.double(x)
    assert got == 2 * x, f"double({x}) must be {2 * x}, got {got}"


def test_half(exercise):
    """halves numbers"""
    assert exercise.half(4) == 2
'''


@pytest.fixture
def workbook(tmp_path, monkeypatch, warm_judges):
    """A workbook with one pristine exercise; its root is the working directory."""
    return make_small_workbook(tmp_path, monkeypatch, SOLUTION, GRADER)


def solve(exercise, double="2 * x", half="x / 2"):
    text = exercise.stub.read_text()
    for name, answer in (("double", double), ("half", half)):
        if answer:
            text = text.replace(f'raise NotImplementedError("ex99a: {name}")', f"return {answer}")
    exercise.stub.write_text(text)


# --- stubs


def test_stub_hides_answers_hints_and_debrief(workbook):
    text = workbook.stub.read_text()
    assert text.startswith(STUB)
    assert "fa-numba reset ex99a" in text.removeprefix(STUB)


def test_hints_and_debrief_are_parsed():
    parsed = stubs.parse(SOLUTION, "ex99a_double")
    assert parsed.hints == {1: "a nudge\n  that goes on", 2: "the idea", 3: "2 * x"}
    assert parsed.debrief == "Doubling is adding."


def test_state_tells_pristine_stale_and_changed_apart(workbook):
    assert stubs.state(workbook) == "pristine"
    workbook.solution.write_text(SOLUTION.replace("Return twice x.", "Return x + x."))
    assert stubs.state(workbook) == "stale"
    solve(workbook)
    assert stubs.state(workbook) == "changed"
    workbook.stub.unlink()
    assert stubs.state(workbook) == "missing"


def test_check_fails_on_drift_and_not_on_a_learners_work(workbook, capsys):
    assert stubs.main(["--check"]) == 0
    solve(workbook)
    assert stubs.main(["--check"]) == 0
    assert stubs.main(["--check", "--strict"]) == 1
    stubs.write(workbook, force=True)
    workbook.solution.write_text(SOLUTION.replace("Return twice x.", "Return x + x."))
    assert stubs.main(["--check"]) == 1
    assert "stale" in capsys.readouterr().out


def test_check_fails_where_there_is_nothing_to_check(workbook):
    workbook.solution.unlink()
    assert stubs.main(["--check"]) == 1


def test_write_keeps_changed_files(workbook, capsys):
    solve(workbook)
    mine = workbook.stub.read_text()
    assert stubs.main(["--write"]) == 0
    assert workbook.stub.read_text() == mine
    assert "kept" in capsys.readouterr().out
    stubs.main(["--write", "--force"])
    assert workbook.stub.read_text().startswith(STUB)


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("    ### END SOLUTION\n\n\ndef half", "\n\ndef half", "second ### BEGIN"),
        ("    ### BEGIN SOLUTION\n    y = x", "    y = x", "without ### BEGIN"),
        ("    return x / 2\n    ### END SOLUTION\n", "    return x / 2\n", "without ### END"),
        (
            "    ### END SOLUTION\n\n\ndef half",
            "    ### END SOLUTION\n    pass\n\n\ndef half",
            "end",
        ),
        ("### HINT 1: a", "### HINTS: a", "### is for"),
    ],
)
def test_broken_solution_files_are_refused_by_line(old, new, message):
    assert old in SOLUTION
    with pytest.raises(stubs.SolutionError, match=rf"ex99a_double\.py, line \d+: .*{message}"):
        stubs.parse(SOLUTION.replace(old, new), "ex99a_double")


def test_orphans(workbook):
    assert stubs.orphans(workbook.root) == []
    stranger = workbook.stub.with_name("ex98a_alone.py")
    stranger.write_text("")
    workbook.grader.unlink()
    assert stubs.orphans(workbook.root) == [stranger, workbook.grader]


# --- names


@pytest.mark.parametrize(
    "name", ["ex99a", "99a", "ex99", "99", "ex99a_double", "EX99A", "exercises/ex99a_double.py"]
)
def test_find(workbook, name):
    assert catalog.find(name) == [workbook]


def test_unknown_names_list_the_close_ones(workbook, capsys):
    with pytest.raises(catalog.UnknownExercise, match="ex98a.*with exercises are 99 to 99"):
        catalog.find("ex98a")
    assert cli.main(["hint", "dubble"]) == 2
    assert "ex99a_double" in capsys.readouterr().err


def test_outside_a_checkout_the_installed_one_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert catalog.find_root() == REPOSITORY


# --- grading


def test_untouched_exercise_is_not_started(workbook):
    result = grader.grade("ex99a")
    assert not result
    assert [c.outcome for c in result.graded[0].checks] == ["not started"] * 3
    assert "Traceback" not in repr(result)
    assert "fill it in" in repr(result)


def test_wrong_answer_is_named_and_quoted(workbook):
    solve(workbook, double="2 * x + y", half=None)
    first, second, last = grader.grade("ex99a").graded[0].checks
    assert first.name == "doubles numbers [0]" and first.outcome == "failed"
    assert re.search(r"NameError: .*\n +line 12: return 2 \* x \+ y", first.message)
    assert last.outcome == "not started"


def test_teaching_message_comes_without_pytests_own(workbook):
    solve(workbook, double="3 * x")
    checks = grader.grade("ex99a").graded[0].checks
    assert [c.outcome for c in checks] == ["passed", "failed", "passed"]
    assert checks[1].message == "double(3) must be 6, got 9"


def test_file_that_does_not_import_is_quoted(workbook):
    workbook.stub.write_text("def double(x:\n    pass\n")
    message = grader.grade("ex99a").graded[0].checks[0].message
    assert "does not import" in message and "line 1: def double(x:" in message


def test_missing_file_says_how_to_get_it_back(workbook):
    workbook.stub.unlink()
    message = grader.grade("ex99a").graded[0].checks[0].message
    assert message == "ex99a_double.py is not there: `fa-numba reset ex99a` brings it back"
    assert grader.status().rows[0][2] == "not started"
    grader.reset("ex99a", yes=True)
    assert stubs.state(workbook) == "pristine"


def test_passing_shows_the_debrief_and_unlocks_the_solution(workbook):
    assert "has not passed" in grader.solution("ex99a").markdown
    assert "return x + y" in grader.solution("ex99a", force=True).markdown
    solve(workbook)
    result = grader.grade("ex99a")
    assert result
    assert "Doubling is adding." in repr(result)
    unlocked = grader.solution("ex99a").markdown
    assert "return x + y" in unlocked and "###" not in unlocked


def test_the_file_is_read_fresh(workbook):
    solve(workbook, double="3 * x")
    assert not grader.grade("ex99a")
    workbook.stub.write_text(workbook.stub.read_text().replace("3 * x", "2 * x"))
    assert grader.grade("ex99a")


def test_solutions_and_folders_are_graded_by_the_same_checks(workbook, tmp_path):
    assert grader.grade("ex99a", impl="solutions")
    other = tmp_path / "other"
    other.mkdir()
    (other / "ex99a_double.py").write_text("def double(x): return 0\ndef half(x): return 2\n")
    outcomes = [c.outcome for c in grader.grade("ex99a", impl=str(other)).graded[0].checks]
    assert outcomes == ["passed", "failed", "passed"]
    assert progress.result(workbook) is None, "only the learner's own file counts as progress"


def test_progress_is_kept_with_the_settings_of_this_repository(workbook, tmp_path):
    """Its pyproject.toml deselects tests by a marker that exercises do not have."""
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    solve(workbook)
    assert grader.grade("ex99a")
    assert progress.is_passed(workbook)


def test_a_part_of_the_checks_is_no_progress(workbook, pytester_free_run):
    solve(workbook)
    said = pytester_free_run("exercises", "-q", "-k", "half")
    assert "1 passed" in said, said
    assert progress.result(workbook) is None


def test_endless_loop_is_stopped(workbook):
    with workbook.grader.open("a") as file:
        file.write("\nSECONDS_PER_CHECK = 0.5\n")
    workbook.stub.write_text("while True:\n    pass\n")
    message = grader.grade("ex99a").graded[0].checks[0].message
    assert re.search(r"is there a loop that does not end\? It was in line [12]: ", message)


def test_after_an_endless_loop_the_others_are_stopped_sooner(workbook):
    with workbook.grader.open("a") as file:
        file.write("\nSECONDS_PER_CHECK = 1.0\n")
    loop = "def {}(x):\n    while True:\n        pass\n"
    with workbook.grader.open("a") as file:
        file.write("\n\ndef test_third(exercise):\n    assert exercise.triple(1) == 3\n")
    workbook.stub.write_text(loop.format("double") + loop.format("half") + "triple = [].pop\n")
    double, another_case, half, third = grader.grade("ex99a").graded[0].checks
    busy = r"(?: on a busy machine, [\d.]+ s of them its own)?"
    said = rf"stopped after [\d.]+ s{busy}: is there a loop that does not end\?"
    assert re.match(said, double.message)
    assert another_case.message == "not run: another case of this check did not end"
    said = r"stopped after ([\d.]+) s, because another check did not end\. It was in line [456]: "
    assert 0.2 <= float(re.match(said, half.message)[1]) < 1.0  # the limit of a check
    assert third.message == "not run: two checks before did not end"


def test_status_follows_the_files(workbook):
    def state():
        return grader.status().rows[0][2:]

    assert state() == ("not started", "")
    solve(workbook, double="3 * x")
    assert state() == ("not checked", "")
    grader.grade("ex99a")
    assert state() == ("started", "2/3")
    workbook.stub.write_text(workbook.stub.read_text().replace("3 * x", "2 * x"))
    assert state() == ("not checked", "")
    grader.grade("ex99a")
    assert state() == ("passed", "3/3")
    assert "1 of 1" in repr(grader.status()) and "| ex99a |" in grader.status()._repr_markdown_()


def test_a_statement_is_shown_in_a_notebook_without_breaking_words():
    """As HTML: Jupyter's own style of a block of code breaks lines in mid-word."""
    shown = Note("### A title\n\n```text\nrow    a < b,\n       `m` and *n*\n```\n\nmore")
    page = shown._repr_markdown_()
    assert "word-break:normal" in page and "row    a &lt; b,\n       `m` and *n*\n</pre>" in page
    assert page.startswith("### A title\n\n<pre ") and page.endswith("</pre>\n\nmore")
    assert "       `m` and *n*" in repr(shown) and "<pre" not in repr(shown)


def test_hints_come_one_at_a_time(workbook):
    assert "Hint 1 of 3" in grader.hint("ex99a").markdown
    second = grader.hint("ex99a").markdown
    assert "a nudge" in second and "the idea" in second and "2 \\* x" not in second
    grader.hint("ex99a")
    assert "2 \\* x" in grader.hint("ex99a").markdown, "after the last, the last again"
    assert "the idea" not in grader.hint("ex99a", tier=1).markdown
    with pytest.raises(ValueError, match="tier"):
        grader.hint("ex99a", tier=4)


def test_reset_asks_and_keeps_a_backup(workbook, monkeypatch):
    assert "nothing to reset" in grader.reset("ex99a").markdown
    solve(workbook)
    mine = workbook.stub.read_text()
    monkeypatch.setattr("builtins.input", lambda prompt: "n")
    grader.reset("ex99a")
    assert workbook.stub.read_text() == mine
    grader.reset("ex99a", yes=True)
    assert stubs.state(workbook) == "pristine"
    (backup,) = (workbook.root / "exercises/.backup").iterdir()
    assert backup.read_text() == mine


def test_a_reset_that_nobody_answers_changes_nothing(workbook, monkeypatch):
    def closed(prompt):
        raise EOFError

    monkeypatch.setattr("builtins.input", closed)
    solve(workbook)
    mine = workbook.stub.read_text()
    assert "nothing was changed" in grader.reset("ex99a").markdown
    assert workbook.stub.read_text() == mine
    workbook.stub.unlink()  # nothing to lose: nothing to ask
    grader.reset("ex99a")
    assert stubs.state(workbook) == "pristine"


def test_one_reason_for_all_checks_is_told_once(workbook):
    workbook.stub.write_text("import\n")
    text = repr(grader.grade("ex99a"))
    assert "3 of 3 checks fail, all most likely for one cause: line 1 is no Python" in text
    assert text.count("does not import") == 1 and "2 more like it" in text


def test_a_statement_keeps_its_lines():
    line = "a" * 49 + " " + "b" * 50
    shown = repr(grader.Note(f"### title\n\n```text\n{line}\n```\n\nafter"))
    assert line in shown.splitlines() and "```" not in shown


def test_a_debrief_is_markdown_and_is_wrapped_once(workbook):
    debrief = "This pattern is called\n**map**, and `x` is < 2**24 or 2**25, "
    debrief += "as long as a line of a solution is, and longer.\n\nThe next one."
    graded = report.Graded(workbook, [report.Check("one", "passed")], debrief)
    html = report.Report([graded])._repr_html_()
    assert "**map**, and `x` is \\< 2\\*\\*24" in grader._prose(debrief)
    assert "<b>map</b>, and <code>x</code> is &lt; 2**24 or 2**25, as" in html
    shown = report.Report([graded]).text(width=60).splitlines()[2:]
    first = shown[: shown.index("    The next one.")]
    assert "called map, and x is" in first[0] and "2**24 or 2**25" in "".join(first)
    assert len(first) == 2 and len(first[0]) > 50


@pytest.mark.parametrize("name, ground", [("ON_LIGHT", "#ffffff"), ("ON_DARK", "#1f1f1f")])
def test_colours_have_the_contrast_that_wcag_asks_for(name, ground):
    for colour in getattr(report, name).values():
        assert contrast(to_rgb(colour), to_rgb(ground)) >= 4.5, colour


def test_every_outcome_has_a_colour(workbook):
    checks = [report.Check(outcome, outcome, "why") for outcome in report.MARKS]
    html = report.Report([report.Graded(workbook, checks)], verbose=True)._repr_html_()
    for name in report.ON_LIGHT:
        assert f'<span class="fa-{name}">' in html and f" .fa-{name}{{color:#" in html


def test_report_escapes_what_a_learner_wrote(workbook):
    checks = [report.Check("a < b", "failed", "<script>")]
    html = report.Report([report.Graded(workbook, checks)])._repr_html_()
    assert "a &lt; b" in html and "&lt;script&gt;" in html and "<script>" not in html


def failing(*causes, name="{n}", where=""):
    """Failed checks with these causes, then one that passes."""
    checks = [
        report.Check(name.format(n=n), "failed", f"message {n}", causes=list(c), where=where)
        for n, c in enumerate(causes)
    ]
    return [*checks, report.Check("fine", "passed"), report.Check("no compiler", "skipped")]


ALPHA, MASK = "alpha is missing.", "the mask is wrong."


@pytest.mark.parametrize(
    "checks, lead",
    [
        # each failure by itself has two explanations: the cause is the one that they share
        (
            failing([MASK, ALPHA], [ALPHA], [ALPHA], where="out[1]"),
            "3 of 4 checks fail, all most likely for one cause: alpha is missing. First: 0, out[1]",
        ),
        (
            failing([], [ALPHA], [ALPHA]),
            "3 of 4 checks fail, 2 most likely for one cause: alpha is missing. First: 1",
        ),
        (failing([], [], [ALPHA]), "3 of 4 checks fail; first: 0"),
        # three mistakes: that of the first failure, unless it has several explanations
        (failing([ALPHA], [MASK], []), "3 of 4 checks fail; first: 0: alpha is missing"),
        (failing([ALPHA, MASK], [], []), "3 of 4 checks fail; first: 0"),
        (failing([MASK]), "1 of 2 checks fails: the mask is wrong. First: 0"),
        (failing([]), "1 of 2 checks fails; first: 0"),
        (failing([MASK], name="compiles {n}"), "1 of 2 checks fails: the mask is wrong. "
         "First: compiles 0"),
    ],
)  # fmt: skip
def test_the_report_leads_with_the_single_cause(workbook, checks, lead):
    graded = report.Graded(workbook, checks)
    assert graded.lead == lead
    shown = report.Report([graded])
    assert shown.text(width=200).splitlines()[1].strip() == lead
    assert shown._repr_html_().index(lead) < shown._repr_html_().index("message")


def test_all_but_the_first_failure_is_folded(workbook):
    names = [f"behaviour {n}" for n in range(report.NAMES + 3)]
    checks = failing([ALPHA], [ALPHA]) + [report.Check(n, "failed", f"of {n}") for n in names]
    checks[2:2] = failing(*[[ALPHA]] * 20)[:-1]
    shown = report.Report([report.Graded(workbook, checks)])
    text = shown.text()
    assert "message 0" in text and "message 1" not in text and "21 more like it" in text
    assert names[report.NAMES - 1] in text and names[report.NAMES] not in text
    assert "and 3 more" in text
    open_, _, folded = shown._repr_html_().partition("<details>")
    assert "message 0" in open_ and "message 1" not in open_
    assert "message 1" in folded and all(f"of {name}" in folded for name in names)
    shown.verbose = True
    assert "message 1" in shown.text() and shown.graded[0].lead[:20] in shown.text()


def test_a_notebook_shows_each_result_once(workbook, monkeypatch, capsys):
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    for result in (grader.grade("ex99a"), grader.show("ex99a"), grader.status()):
        assert repr(result)
    assert capsys.readouterr().out == "", "repr() has printed, beside what it returns"


def test_whole_folder_prints_a_line_per_exercise(workbook, pytester_free_run):
    out = pytester_free_run("exercises")
    assert "· ex99a  Double it  0/3  not started" in out
    assert "Traceback" not in out and "Error" not in out
    solve(workbook, double="3 * x", half=None)
    out = pytester_free_run("exercises")
    assert "double(3) must be 6, got 9" in out and "0 of 1 exercises passed" in out


@pytest.fixture
def pytester_free_run(workbook, warm_judges):
    def run(*arguments):
        command = [sys.executable, "-m", "pytest", *arguments, "-p", "no:cacheprovider"]
        run = warm_judges(
            command, cwd=workbook.root, env=os.environ, capture_output=True, text=True
        )
        return run.stdout + run.stderr

    return run


# --- the command


def test_check_sets_the_exit_status(workbook, capsys):
    assert cli.main(["check", "ex99a"]) == 1
    solve(workbook)
    assert cli.main(["check"]) == 0
    assert "✓ ex99a" in capsys.readouterr().out


@pytest.mark.parametrize(
    "command", ["status", "show ex99a", "hint ex99a", "reset ex99a", "solution ex99a"]
)
def test_commands_answer(workbook, capsys, command):
    assert cli.main(command.split()) == 0
    assert "ex99a" in capsys.readouterr().out


def test_doctor_says_which_backend_runs_and_why(capsys):
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    for word in ("Python", "NumPy", "numba-cuda", "compiler", "driver", "GPU", "Kernels run on"):
        assert word in out
    assert not re.search(r"speed-?up|\d× faster", out)


def test_doctor_survives_a_half_broken_cuda(monkeypatch, capsys):
    from numba import cuda

    def broken(*_):
        raise OSError("libcuda.so: wrong ELF class")

    monkeypatch.setattr(cuda, "is_available", broken)
    monkeypatch.setenv("PATH", os.devnull)
    assert cli.main(["doctor"]) == 0
    assert "wrong ELF class" in capsys.readouterr().out
    assert arrays.backend().gpu is None


WITHOUT_UNIX = """
import asyncio, os, signal, sys  # on Unix asyncio asks for sysconf, from Python 3.13 on
unix = "fork forkpty geteuid getpgid killpg register_at_fork sched_getaffinity setsid sysconf"
for module, names in (os, unix), (signal, "SIGKILL SIGUSR1 SIGXFSZ"):
    for name in names.split():
        vars(module).pop(name, None)
sys.modules |= dict.fromkeys(("fcntl", "grp", "pwd", "resource", "termios"))
from fa_numba.workbook import cli
print("status", cli.main(sys.argv[1:]))
"""


def test_what_windows_lacks(workbook):
    """Names of Unix that are missing, and an encoding without a check mark."""
    solve(workbook)
    environment = os.environ | {"FA_NUMBA_GRADE_IN_PROCESS": "1", "PYTHONIOENCODING": "cp1252"}
    command = [sys.executable, "-c", WITHOUT_UNIX, "check", "ex99a"]
    done = subprocess.run(command, env=environment, capture_output=True, encoding="cp1252")
    assert "? ex99a" in done.stdout and "status 0" in done.stdout, done.stderr
