"""The `fa-numba` command: what it lists, and what it says where something is missing."""

import builtins
import errno
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fa_numba_command
from fa_numba.microscope import command
from fa_numba.runtime import installing
from fa_numba.workbook import catalog, cli, doctor, grader, learn, lessons, progress, tour
from fa_numba.workbook.statement import wrapped

needs_jupyterlab = pytest.mark.skipif(
    importlib.util.find_spec("jupyterlab") is None, reason="needs jupyterlab"
)

ROOT = Path(__file__).parents[1]


@pytest.fixture
def without(monkeypatch):
    """Hides packages from the import system."""

    def hide(*packages):
        real_find, real_import = importlib.util.find_spec, builtins.__import__

        def find_spec(name, *more):
            return None if name.partition(".")[0] in packages else real_find(name, *more)

        def import_(name, *more, **options):
            if name.partition(".")[0] in packages:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            return real_import(name, *more, **options)

        monkeypatch.setattr(importlib.util, "find_spec", find_spec)
        monkeypatch.setattr(builtins, "__import__", import_)

    return hide


def test_alone_it_lists_every_command_in_a_line(capsys):
    assert cli.main([]) == 0
    said = capsys.readouterr().out
    listed = re.findall(r"^    (\w+) +(\S.*)$", said, re.MULTILINE)
    assert {"learn", "doctor", "check", "grade", "hint", "debrief", "trace"} <= {
        n for n, _ in listed
    }


def test_an_unknown_command_is_refused_with_the_list(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["chekc"])
    said = capsys.readouterr().err
    assert stop.value.code == 2 and "'chekc', maybe you meant 'check'?" in said and "tour" in said
    with pytest.raises(SystemExit):
        cli.main(["zzzzzz"])
    assert "maybe" not in capsys.readouterr().err


@pytest.mark.parametrize("command", ["check", "grade"])
def test_grade_is_check(command, monkeypatch, capsys):
    asked = []

    def grade_all(found, **options):
        asked.append([e.short for e in found])
        return grader.Report([])

    monkeypatch.setattr(grader, "grade_all", grade_all)
    assert cli.main([command, "ex06b", "7b"]) == 1
    assert asked == [["ex06b", "ex07b"]]


@pytest.mark.parametrize("name, said", [
    ("ex99", "no exercise called 'ex99': the lessons with exercises are 00 to 25"),
    ("99", "no lesson 99: the lessons with exercises are 00 to 25"),
    ("ex06z", "no exercise called 'ex06z': lesson 06 has ex06a, ex06b, ex06c"),
    ("flash_atn", "did you mean ex06b_flash_attn_v1"),
    ("zzzz", "see `fa-numba status` for the list"),
])  # fmt: skip
def test_an_unknown_exercise(name, said, capsys):
    assert cli.main(["show", name]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("number, said", [
    (errno.EACCES, "f: Permission denied. Work in a folder in which you may write"),
    (errno.ENOSPC, "f: No space left on device."),
])  # fmt: skip
def test_a_file_that_cannot_be_written(number, said, monkeypatch, capsys):
    def reset(*args, **options):
        raise OSError(number, os.strerror(number), "f")

    monkeypatch.setattr(grader, "reset", reset)
    assert cli.main(["reset", "ex02d", "--yes"]) == 2
    assert capsys.readouterr().err == f"fa-numba: {said}\n"


def test_a_zero_may_be_left_out():
    assert catalog.find("ex6b") == catalog.find("6b") == catalog.find("ex06b")


def test_the_debrief_waits_for_a_pass(monkeypatch, capsys):
    monkeypatch.setattr(progress, "is_passed", lambda exercise: False)
    assert "has not passed" in grader.debrief("ex02d").markdown
    assert cli.main(["debrief", "ex02d", "--force"]) == 0
    assert "17 barriers per row" in capsys.readouterr().out
    monkeypatch.setattr(progress, "is_passed", lambda exercise: True)
    assert "17 barriers per row" in grader.debrief("ex02d").markdown


# --- a narrow terminal


def test_statements_fit_and_keep_their_words():
    for exercise in catalog.all_exercises(ROOT):
        text = grader.show(exercise.name).markdown.split("```text\n")[1].split("\n```")[0]
        lines = wrapped(text, 80).splitlines()
        assert " ".join(text.split()) == " ".join(" ".join(lines).split()), exercise.short
        long = [line for line in lines if len(line) > 80 and " " in line.strip()]
        assert not long, exercise.short


def test_a_statement_is_wrapped_under_its_columns():
    text = (
        "Every row of x has a maximum, and this first sentence is as long as it can be in a file of\n"  # noqa: E501
        "100 columns.\n\n"
        "shapes    x (rows, cols);  y (rows, cols), and then so much more that the line is full, see\n"  # noqa: E501
        "          here\n"
        "    1  S = Q K^T      the first of three columns, which is continued in the line below, at\n"  # noqa: E501
        "                      its own column\n"
        "    m = a formula\n"
    )
    assert wrapped(text, 60).splitlines() == [
        "Every row of x has a maximum, and this first sentence is as",
        "long as it can be in a file of 100 columns.",
        "",
        "shapes    x (rows, cols);  y (rows, cols), and then so much",
        "          more that the line is full, see here",
        "    1  S = Q K^T      the first of three columns, which is",
        "                      continued in the line below, at its",
        "                      own column",
        "    m = a formula",
    ]


def test_a_statement_that_fits_is_left_alone():
    text = "shapes   q (n, d)\n   an indented   formula"
    assert wrapped(text, 40) == text


# --- what is not installed


@pytest.mark.parametrize("command, package", [
    ("check ex00a", "pytest"), ("grade", "pytest"), ("status", "rich"), ("hint ex00a", "rich"),
    ("tour", "rich"), ("learn", "jupyterlab"),
])  # fmt: skip
def test_a_missing_package_is_said_in_one_line(command, package, without, capsys):
    without(package)
    assert cli.main(command.split()) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"needs the package {package}" in said and 'pip install -e ".[lessons]"' in said


def test_outside_of_a_checkout_pip_is_told_the_package(without, capsys, monkeypatch):
    without("rich")
    monkeypatch.setattr(installing, "IN_CHECKOUT", False)
    assert cli.main(["status"]) == 2
    assert capsys.readouterr().err.endswith(' here. pip install "fa-numba[lessons]"\n')


def test_doctor_tells_a_reason_once(monkeypatch):
    def missing(*args):
        raise OSError("no library of this name " * 5)

    for probe in ("_compiler", "_tool"):
        monkeypatch.setattr(doctor, probe, missing)
    rows = dict(doctor.rows())
    assert "no library" in rows["compiler"] and rows["nvdisasm"] == "the same as for compiler"


def test_doctor_works_without_rich(without, capsys):
    without("rich")
    assert doctor.main() == 0
    said = capsys.readouterr().out
    assert re.search(r"^NumPy +\d", said, re.MULTILINE) and "Kernels run on" in said


# --- a checkout that cannot be written


def test_the_tour_goes_on_without_its_pictures(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("tour").touch()  # as a folder that cannot be made: also for root, who may write anywhere
    monkeypatch.setattr(tour, "cases", lambda text: [])
    assert tour.main() == 0
    assert "No pictures:" in capsys.readouterr().out


def test_hints_are_shown_where_progress_cannot_be_kept(tmp_path, monkeypatch, capsys):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_text", refuse)
    monkeypatch.setattr(os, "replace", refuse)
    assert cli.main(["hint", "ex00a"]) == 0
    assert "Hint 1 of 3" in capsys.readouterr().out


# --- trace, learn


def stop(*_):
    raise KeyboardInterrupt


def test_ctrl_c_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(command, "main", stop)
    monkeypatch.setattr(sys, "argv", ["fa-numba", "trace", "x.py:y"])
    assert fa_numba_command.main() == 130
    assert capsys.readouterr().err == "fa-numba: stopped\n"


def test_ctrl_c_while_the_package_is_imported_is_one_line():
    slow = "import sys, builtins, fa_numba_command as c; i = builtins.__import__\n"
    slow += "def stop(name, *more):\n    if name == 'numba': raise KeyboardInterrupt\n"
    slow += "    return i(name, *more)\n"
    slow += "builtins.__import__ = stop; sys.exit(c.main())"
    done = subprocess.run([sys.executable, "-c", slow], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "fa-numba: stopped\n")


def test_a_closed_pipe_is_no_traceback(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from numba import cuda\n\n\n@cuda.jit\ndef kernel(x):\n    x[0] = 1\n")
    trace = f"-m fa_numba.workbook.cli trace {file}:kernel --grid 1 --block 1 x=f4[4]"
    command_line = f"set -o pipefail; {sys.executable} {trace} | head -0"
    done = subprocess.run(["bash", "-c", command_line], capture_output=True, text=True)
    assert done.returncode == 141 and not done.stderr


@needs_jupyterlab
def test_learn_starts_jupyterlab_on_lesson_00(tmp_path, monkeypatch, capsys):
    started = []
    (tmp_path / "notebooks").mkdir()
    monkeypatch.setattr(learn, "find_root", lambda: tmp_path)
    monkeypatch.setattr(lessons, "update", lambda root: ["lessons/00_x.ipynb: brought up to date"])
    monkeypatch.setattr(os, "execv", lambda path, argv: started.append(argv))
    monkeypatch.setattr(os, "geteuid", lambda: 0, raising=False)
    monkeypatch.setattr(learn.sys, "prefix", str(tmp_path / "venv"))
    cli.main(["learn", "--no-browser"])
    (argv,) = started
    assert argv[:3] == [sys.executable, "-m", "jupyterlab"]
    assert "--LabApp.default_url=/lab/tree/lessons/00_first_kernels.ipynb" in argv
    assert argv[-2:] == ["--allow-root", "--no-browser"]
    said = capsys.readouterr().out
    assert "You are root" in said and "brought up to date" in said
    assert (ROOT / "notebooks" / learn.FIRST).exists()
    assert "--allow-root" not in learn.command(tmp_path, as_root=False)


@needs_jupyterlab
@pytest.mark.parametrize("name, opened", [("04", "04_standard_attention"), ("ex17b", "17_flash_")])
def test_learn_opens_the_lesson_that_is_named(tmp_path, monkeypatch, capsys, name, opened):
    started = []
    monkeypatch.setattr(lessons, "update", lambda root: [])
    monkeypatch.setattr(os, "execv", lambda path, argv: started.append(argv))
    monkeypatch.setattr(learn.sys, "prefix", str(tmp_path))
    cli.main(["learn", name, "--no-browser"])
    assert any(f"/lab/tree/lessons/{opened}" in word for word in started[0])
    assert started[0][-1] == "--no-browser" and name not in started[0]
    assert f"Lesson {opened[:2]} opens" in capsys.readouterr().out


@needs_jupyterlab
def test_learn_refuses_a_lesson_that_is_not_there(capsys):
    assert cli.main(["learn", "ex77"]) == 2
    assert "the lessons with exercises are 00 to 25" in capsys.readouterr().err


def test_nobody_is_asked_about_news_and_drawings_are_saved(tmp_path):
    learn.set_defaults(tmp_path)
    (path,) = tmp_path.rglob("overrides.json")
    news = "@jupyterlab/apputils-extension:notification"
    widgets = {"@jupyter-widgets/jupyterlab-manager:plugin": {"saveState": True}}
    assert json.loads(path.read_text()) == {news: {"fetchNews": "false"}} | widgets
    path.write_text(json.dumps({news: {"fetchNews": "true"}, "theme": "dark"}))
    learn.set_defaults(tmp_path)  # what somebody has said stays
    said = {news: {"fetchNews": "true"}, "theme": "dark"}
    assert json.loads(path.read_text()) == said | widgets
    path.write_text("no JSON")
    learn.set_defaults(tmp_path)
    assert path.read_text() == "no JSON"
