"""What a compiler says of a lesson's kernel, made here or recorded."""

import json
import os
from pathlib import Path

import nbformat
import pytest

from fa_numba.analysis.cuda_tools import CompilerMissingError
from fa_numba.workbook import compiled as module
from fa_numba.workbook.compiled import compiled

ROOT = Path(__file__).parents[1]
RECORD = {
    "command": module.COMMAND,
    "date": "a day",
    "made": {"kernel": {"registers": 40}},
    "python": "3.11",
    "pythons": {},
    "tools": "ptxas 13.5",
}


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    monkeypatch.setenv(module.RECORD_TO, "")  # and as before, after the test
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "engine")]))
    monkeypatch.setattr(module, "find_root", lambda: tmp_path)
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "compiled.json").write_text(json.dumps(RECORD), encoding="utf-8")
    return tmp_path


def test_what_is_made_here_is_shown_without_a_word(checkout, capsys):
    made = compiled("kernel", lambda: {"registers": 41, 8: [("a", 1)]})
    assert made == {"registers": 41, "8": [["a", 1]]}, "as it would come from the record"
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "error",
    [
        CompilerMissingError("machine code needs ptxas: pip install it"),
        RuntimeError("ptxas refused the kernel for sm_90a: Unsupported .version 9.5\nmore"),
    ],
)
def test_without_a_compiler_the_record_is_shown_and_said_to_be_one(checkout, capsys, error):
    def make():
        raise error

    assert compiled("kernel", make) == {"registers": 40}
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith(f"Recorded, not compiled here ({str(error).splitlines()[0]}).")
    assert "ptxas 13.5, a day" in said and module.COMMAND in said


def test_other_errors_are_raised(checkout):
    with pytest.raises(ZeroDivisionError):
        compiled("kernel", lambda: 1 / 0)


def test_what_nobody_recorded_says_how_to(checkout):
    def make():
        raise CompilerMissingError("no ptxas")

    with pytest.raises(RuntimeError, match="no ptxas; .*'other'.*workbook.compiled"):
        compiled("other", make)


def test_recording_runs_the_lessons_that_compile(checkout):
    def lesson(name, *sources):
        cells = [nbformat.v4.new_code_cell(source) for source in sources]
        path = checkout / "notebooks" / name
        path.write_text(nbformat.writes(nbformat.v4.new_notebook(cells=cells)), encoding="utf-8")

    lesson("00_plain.ipynb", "1 / 0")
    lesson(
        "01_compiles.ipynb",
        "from fa_numba.workbook.compiled import compiled",
        "compiled('two', lambda: [1, 2])",
        "grade('ex00a')",
    )
    assert [module.calls(p) for p in sorted(checkout.glob("notebooks/*.ipynb"))] == [False, True]
    assert module.main([]) == 0
    record = json.loads((checkout / "notebooks" / "compiled.json").read_text(encoding="utf-8"))
    assert record["made"] == {"two": [1, 2]} and record["tools"] == module.versions()
    assert "numba-cuda" in record["tools"] and record["command"] == module.COMMAND


def test_another_python_adds_what_differs(checkout, monkeypatch):
    path, own = checkout / "notebooks/compiled.json", module.PYTHON
    (checkout / "notebooks/01_compiles.ipynb").touch()
    monkeypatch.setattr(module, "calls", lambda lesson: True)
    for python, b in ((own, 2), ("3.99", 3)):

        def run(lesson, b=b):
            module._add(Path(os.environ[module.RECORD_TO]), "a", 1)
            module._add(Path(os.environ[module.RECORD_TO]), "b", b)

        monkeypatch.setattr(module, "_run", run)
        monkeypatch.setattr(module, "PYTHON", python)
        assert module.main([]) == 0
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["made"] == {"a": 1, "b": 2} and record["pythons"] == {"3.99": {"b": 3}}
    assert module.expected(record) == {"a": 1, "b": 3}
    monkeypatch.setattr(module, "PYTHON", own)
    assert module.expected(record) == {"a": 1, "b": 2}


def test_recording_nothing_fails(checkout, capsys):
    assert module.main([]) == 1
    assert "nothing was compiled" in capsys.readouterr().err
