"""Recorded measurements and the tables of the lessons."""

import json
import os
import time
from pathlib import Path

import pytest

import benchmarks.__main__ as benchmarks
from benchmarks import timing
from fa_numba.workbook.recorded import recorded, recorded_rows, say, table
from fa_numba.workbook.tables import as_json

ROWS = [
    {"kernel": kernel, "seqlen": n, "ms": n * factor}
    for n in (512, 8192)
    for kernel, factor in (("slow", 4.0), ("fast", 0.5))
]


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "benchmarks" / "results"
    folder.mkdir(parents=True)
    record = {"machine": "A GPU", "date": "today", "command": "measure", "rows": ROWS}
    (folder / "speed.json").write_text(json.dumps(record), encoding="utf-8")
    return folder


def test_all_rows_with_their_machine(results):
    lines = recorded("speed", folder=results).markdown.splitlines()
    assert lines[0] == "**A GPU**, today, `measure`"
    assert lines[-4:-2] == ["| slow | 512 | 2,048 |", "| fast | 512 | 256 |"]


def test_side_by_side(results):
    note = recorded("speed", across="kernel", cells="ms", by=["seqlen"], folder=results)
    assert note.markdown.splitlines()[-4:] == [
        "| seqlen | slow | fast |",
        "|---:|---:|---:|",
        "| 512 | 2,048 | 256 |",
        "| 8,192 | 32,768 | 4,096 |",
    ]


def test_only_what_is_kept(results):
    note = recorded("speed", keep=lambda row: row["kernel"] == "fast", folder=results)
    assert "slow" not in note.markdown and note.markdown.count("fast") == 2


def test_nothing_recorded_says_how_to(results):
    assert "`python -m benchmarks other`" in recorded("other", folder=results).markdown


def test_rows_to_compute_with(results):
    assert recorded_rows("speed", folder=results) == ROWS
    assert recorded_rows("other", folder=results) == []


def test_numbers_are_readable():
    note = table([{"n": 17340.4, "x": 0.123456, "none": None}])
    assert note.markdown.splitlines()[-1] == "| 17,340 | 0.1235 | – |"


def test_say_fits_a_page_and_breaks_no_word(capsys):
    long = "a_very_long_name " * 20
    say(long, "short", ValueError("an error"))
    said = capsys.readouterr().out
    assert said.split() == [*long.split(), "short", "an", "error"]
    assert max(map(len, said.splitlines())) <= 80 and said.endswith("\nshort\nan error\n")


@pytest.mark.parametrize(
    "value, lines",
    [
        ({"ü": 1, "b": [1, 2]}, ["{", '"ü": 1,', '"b": [1, 2]}']),
        ({"b": 1, "none": None}, ['{"b": 1, "none": null}']),
        ([{"n": 1, "ms": {"x": 0.5}}, [2]], ["[", '{"n": 1, "ms": {"x": 0.5}},', "[2]]"]),
        ({"b": {"c": {"MOV": 2}}, "d": []}, ["{", '"b": {', '"c": {"MOV": 2}},', '"d": []}']),
    ],
)
def test_a_row_of_a_record_is_a_line(value, lines):
    assert [line.strip() for line in as_json(value).splitlines()] == lines
    assert json.loads(as_json(value)) == value


def test_every_record_is_written_so():
    root = Path(__file__).parents[1]
    records = sorted([*root.glob("benchmarks/results/**/*.json"), root / "notebooks/compiled.json"])
    assert len(records) > 40
    for path in records:
        text = path.read_text(encoding="utf-8")
        assert text == as_json(json.loads(text)) + "\n", path


def test_questions_on_a_cpu_are_those_with_a_record_of_one():
    """`python -m benchmarks` says of all others that they need a GPU, where there is none."""
    records = timing.RESULTS.glob("*.json")
    machines = {path.stem: json.loads(path.read_text("utf-8"))["machine"] for path in records}
    on_a_gpu = {name for name, machine in machines.items() if "NVIDIA" in machine}
    assert {*benchmarks.ON_A_CPU} == {*benchmarks.QUESTIONS} - on_a_gpu


def test_without_a_gpu_a_question_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(benchmarks.arrays, "gpu_available", lambda: False)
    monkeypatch.setattr(benchmarks.readme, "write", lambda: pytest.fail("nothing was asked"))
    benchmarks.main(["softmax", "serving_gpu"])
    assert capsys.readouterr().out == "softmax: needs a GPU\nserving_gpu: needs a GPU\n"


def test_an_interrupted_run_leaves_no_half_of_a_record(monkeypatch, tmp_path):
    def interrupt(*names):
        raise KeyboardInterrupt

    monkeypatch.setattr(timing, "RESULTS", tmp_path)
    timing.save("speed", [{"ms": 1}], on="A CPU")
    before = (tmp_path / "speed.json").read_text(encoding="utf-8")
    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        timing.save("speed", [{"ms": 2}], on="A CPU")
    assert [x.name for x in tmp_path.iterdir()] == ["speed.json"]
    assert (tmp_path / "speed.json").read_text(encoding="utf-8") == before


def test_parts_are_saved_one_after_the_other(monkeypatch, tmp_path):
    monkeypatch.setattr(timing, "RESULTS", tmp_path)
    notes = []

    def part():
        if (path := tmp_path / "speed.json").exists():
            notes.append(json.loads(path.read_text(encoding="utf-8"))["note"])
        if len(notes) == 2:
            monkeypatch.setattr(timing, "ends", time.monotonic())
        return [{"ms": len(notes)}]

    parts = {"a": part, "fails": list, "b": part, "c": part, "d": part}
    timing.save_each("speed", parts, note="ms", on="A GPU")
    record = json.loads((tmp_path / "speed.json").read_text(encoding="utf-8"))
    assert notes == ["ms. Not measured: fails; b; c; d", "ms. Not measured: fails; c; d"]
    assert record["note"] == "ms. Not measured: fails; d"
    assert record["rows"] == [{"ms": 0}, {"ms": 1}, {"ms": 2}]
