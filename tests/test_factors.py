"""What sets failing checks apart: the sentence is true of the checks, and names the mistake."""

import random
import re

import numpy as np
import pytest
import wrong_answers
from cases import thorough

from fa_numba.workbook import grader
from fa_numba.workbook.catalog import find_one
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.grading.factors import (
    Evidence,
    Recorder,
    launch_traits,
    only_where,
    shapes_in,
    traits_of,
)


@pytest.mark.parametrize(
    "short, mistake, said",
    [
        ("ex05b", "whole tiles only", "only where K is not a multiple of TILE; "),
        thorough("ex05b", "no barrier after", "only where K is more than TILE; "),
        thorough("ex05b", "K taken from c", "only where K is more than N; "),
        thorough("ex17c", "all splits write the first", "only where num_splits is more than 1; "),
        thorough("ex03a", "a masked beginning has alpha NaN", "only where s holds -inf; "),
        ("ex00d", "no brackets", ""),  # wherever it is tried
    ],
)
def test_wrong_answers(short, mistake, said, tmp_path, warm_judges):
    exercise = find_one(short)
    source = dict(wrong_answers.answers(exercise, "WRONG"))[mistake]
    (tmp_path / f"{exercise.name}.py").write_text(source, encoding="utf-8")
    report = grader.grade(short, impl=str(tmp_path))
    (graded,) = report.graded
    assert not graded.passed
    assert (said in graded.only_where) if said else not graded.only_where, graded.only_where
    assert graded.only_where in report.text(width=200)
    assert graded.only_where in report._repr_html_()


# A mistake, by name or as [(text, instead), ...], and its cause, which was once not told.
CAUSES = {
    "ex00c": ("x down the columns", "x and y are exchanged"),
    "ex03a": ([("l_i * alpha + ", "l_i + ")], "l_i is not multiplied by alpha"),
    "ex04c": ("V per column of tiles", "v_reads counts the tiles side by side"),
    "ex14d": (
        [("if not BACK:", "if True:"), ("if BACK:", "if False:")],
        "Back goes in the other order: H first, then the signs.",
    ),
    "ex17c": ("a part-filled tile in two splits", "Some keys belong to two splits."),
}


def test_the_first_screen_names_the_cause(tmp_path, warm_judges):
    exercises = [find_one(short) for short in CAUSES]
    for exercise in exercises:
        change, _ = CAUSES[exercise.short]
        source = dict(wrong_answers.answers(exercise, "WRONG")).get(str(change))
        if source is None:
            source = wrong_answers.source_of("", wrong_answers.code_of(exercise), [change])
        (tmp_path / f"{exercise.name}.py").write_text(source, encoding="utf-8")
    for graded in grader.grade_all(exercises, impl=str(tmp_path)).graded:
        assert CAUSES[graded.exercise.short][1] in graded.lead


WORDS = "n is odd", "n is more than TILE", "n is 1", "with causal", "x holds -inf"


def test_the_sentence_is_true():
    for seed in range(200):
        the_sentence_is_true(random.Random(seed))


def the_sentence_is_true(rng):
    checks = []
    for _ in range(rng.randint(2, 30)):
        words = [word for word in WORDS if rng.random() < 0.4]
        traits = {"#n": -1, "#x": -1, "#causal": -1} | {word: WORDS.index(word) for word in words}
        checks.append(Evidence(traits, [rng.choice("ab")], rng.choice("ab")))
    cut = rng.randint(1, len(checks))
    failed, passed = checks[:cut], checks[cut:]
    said = only_where(failed, passed, len(failed))
    if said:
        told = [word for word in WORDS if word in said]
        assert told
        group = failed if said.startswith(("All", "Both")) else failed[: int(said.split()[0])]
        if group is not failed:
            group = [e for e in failed if e.raised_in == failed[0].raised_in]
        places = {e.raised_in for e in group}
        alike = [e for e in passed if places & set(e.reached)]
        assert all(word in e.traits for word in told for e in group)
        assert not any(word in e.traits for word in told for e in alike)
        assert int(re.search(r"(\d+) checks like them pass", said)[1]) == len(alike) >= 2


def test_traits_of_a_launch():
    a = np.zeros((9, 40), np.float32)
    axes = shapes_in("c = a @ b, with a (M, K), b (K, N) and c (M, N), float32")
    assert axes == {"a": ["M", "K"], "b": ["K", "N"], "c": ["M", "N"]}
    found = traits_of({"TILE": 8, "CAUSAL": True, "a": a}, axes)
    assert {"M is not a multiple of TILE", "K is more than TILE", "with CAUSAL"} < set(found)
    assert not {"K is not a multiple of TILE", "without CAUSAL", "a holds -inf"} & set(found)
    found = traits_of({"TILE": 8, "lens": np.array([8, 9])}, {})
    assert "an element of lens is not a multiple of TILE" in found
    a[0, 0] = -np.inf
    assert "a holds -inf" in traits_of({"a": a}, axes)
    assert "a thread block has more than one warp" in launch_traits((1,), (64,))
    assert "a thread block has more than one warp" not in launch_traits((1,), (32,))


def test_what_cannot_be_launched_has_no_traits():
    recorder = Recorder(None)
    recorder.launch(None, ["x"], None, 32, [np.zeros(3)])
    assert recorder.traits == {}


@pytest.mark.parametrize(
    "places, said",
    [
        (np.s_[:, 1:], "Wrong only in head 1 and later."),
        (np.s_[2, :2], "Wrong only in sequence 2, heads 0 to 1."),
        (np.s_[:, ::2], ""),  # here and there
        (np.s_[:], ""),
    ],
)
def test_the_part_of_an_output_that_is_wrong(places, said):
    wrong = np.zeros((3, 4, 8), bool)
    wrong[places] = True
    error = Wrong("no", wrong=wrong, axes=("sequence", "head", "column"))
    assert str(error) == ("no. " + said if said else "no") and error.causes == [said] * bool(said)
    assert Wrong("no", causes=["why"], wrong=wrong, axes=["sequence"]).causes == ["why"]
