"""`fa-numba reset ex17c --from ex16c`: a later exercise starts from the learner's own one."""

import ast
import importlib.util
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from fa_numba import reference, simt
from fa_numba.workbook import carry, catalog, cli, grader, own, progress, stubs
from fa_numba.workbook.report import Check, Graded

ROOT = Path(__file__).parents[1]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A function that makes a workbook of these exercises; the first is solved and has passed."""

    def make(*names, extra=""):
        for folder in ("solutions", "exercises"):
            (tmp_path / folder).mkdir()
        for name in names:
            exercise = catalog.find_one(name, ROOT)
            for path in (exercise.grader, exercise.solution):
                shutil.copy(path, tmp_path / path.parent.name)
        monkeypatch.chdir(tmp_path)
        found = [catalog.find_one(name) for name in names]
        for exercise in found:
            stubs.write(exercise)
        lines = found[0].solution.read_text(encoding="utf-8").splitlines()
        kept = [x for x in lines if not x.strip().startswith("###")]
        found[0].stub.write_text("\n".join(kept) + "\n" + extra, encoding="utf-8")
        progress.record([Graded(found[0], [Check("all", "passed")])])
        return found

    return make


@pytest.mark.parametrize(
    "earlier, later, missing", [("ex07d", "ex16c", "k, v"), ("ex16c", "ex17c", "lse, out")]
)
def test_the_kernels_of_the_lessons(checkout, earlier, later, missing):
    first, second = checkout(earlier, later)
    text, done = carry.carried(second, first)
    assert done == ["kernel"]
    tree = ast.parse(text)
    assert ast.get_docstring(tree) == ast.get_docstring(ast.parse(stubs.read(second).stub))
    assert "NotImplementedError" not in text
    assert f"# From your {earlier}, where it was kernel(" in text
    assert re.search(rf"# Not defined here: (\w+, )*{missing}\.", text)
    second.stub.write_text(text, encoding="utf-8")
    assert carry.carried(second, second)[0].count("# From your") == 1  # the later place alone
    body = [line.strip() for line in first.stub.read_text().splitlines()]
    start = next(i for i, line in enumerate(body) if "cuda.shared.array" in line)
    assert body[start : start + 20] == [
        line.strip() for line in text[text.index(body[start]) :].splitlines()[:20]
    ]


def test_what_is_carried_runs(checkout):
    """From an exercise to itself: the frame of the stub around the learner's code."""
    (exercise,) = checkout("ex03c")
    text, _ = carry.carried(exercise, exercise)
    assert "# All its names are defined here." in text
    exercise.stub.write_text(text)
    progress.record([Graded(exercise, [Check("all", "passed")])])
    x = np.random.default_rng(0).standard_normal((3, 70), dtype=np.float32)
    with simt.tracing() as traces:
        y = own.mine("ex03c")(x)
    assert np.abs(y - reference.softmax(x.astype(np.float64))).max() < 1e-6
    assert traces[0].races == []


def test_dq_starts_from_dk_and_dv(checkout):
    """Both functions go over; P and dS are right at once, the sums are not yet."""
    first, second = checkout("ex08b", "ex08c")
    text, done = carry.carried(second, first)
    assert done == ["weights", "accumulate"] and "NotImplementedError" not in text
    weights, accumulate = text.split("def accumulate")
    assert "# All its names are defined here." in weights
    assert "# Not defined here: dk_acc, do_tile, dv_acc, p_tile, q_tile." in accumulate
    right = second.solution.read_text().split("### BEGIN SOLUTION")[2].split("### END")[0]
    lines = text.splitlines()
    start = next(i for i, x in enumerate(lines) if "# From your ex08b, where it was acc" in x)
    stop = next(i for i, x in enumerate(lines) if i > start and "@cuda.jit" in x)
    second.stub.write_text("\n".join([*lines[:start], right.strip("\n"), "", *lines[stop:]]))
    q, k, v, dout = np.random.default_rng(0).standard_normal((4, 8, 4), dtype=np.float32)
    arrays = [x[None, :, None] for x in (dout, q, k, v)]
    out, lse = reference.attention(*arrays[1:])
    delta = np.sum(dout * out[0, :, 0], axis=1, dtype=np.float32)
    spec = importlib.util.spec_from_file_location("carried_ex08c", second.stub)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    dq, lse = np.zeros((8, 4), np.float32), lse[0, 0].astype(np.float32)
    kernel = module.make_kernel(4, 4, 4, False)
    simt.run(kernel, 2, (4, 4), dout, q, k, v, lse, delta, dq, np.float32(0.5))
    assert np.abs(dq - reference.attention_bwd(*arrays)[0][0, :, 0]).max() < 1e-5


def test_functions_beside_a_kernel_go_with_it(checkout):
    first, second = checkout("ex07d", "ex16c")
    tree = ast.parse(carry.carried(second, first)[0])
    (factory,) = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name[:4] == "make"]
    inside = [n for n in factory.body if isinstance(n, ast.FunctionDef)]
    *beside, last = [n.name for n in inside]
    assert beside == ["bounds"] and last == "kernel"
    assert all("device=True" in ast.unparse(n.decorator_list[0]) for n in inside[:1])


def test_functions_of_one_name_and_helpers_go_along(checkout):
    helper = "\nfrom numba import int32\n\nSMALL = int32(7)\n\n\n@cuda.jit(device=True)\ndef helper(x):\n    return x + SMALL\n"  # noqa: E501
    first, second = checkout("ex03a", "ex03c", extra=helper)
    text, done = carry.carried(second, first)
    assert done == ["merge"]
    tree = ast.parse(text)
    names = [n.name for n in tree.body if isinstance(n, ast.FunctionDef)]
    assert names == ["helper", "merge", "write_row", "online_softmax_kernel"]
    assert "SMALL = int32(7)" in text
    assert "@cuda.jit(device=True)\ndef helper" in text
    assert 'NotImplementedError("ex03c: online_softmax_kernel")' in text
    assert 'NotImplementedError("ex03c: merge")' not in text


STARTED = [e for e in catalog.all_exercises(ROOT) if "### FROM:" in e.solution.read_text("utf-8")]


@pytest.mark.parametrize("later", STARTED, ids=lambda e: e.short)
def test_what_starts_from_an_earlier_one_changes_few_lines(checkout, later):
    start = stubs.read(later).start
    assert f"reset {later.short} --from {start}" in " ".join(stubs.read(later).stub.split())
    first, second = checkout(start, later.short)
    text, done = carry.carried(second, first)
    assert done and first.lesson <= second.lesson
    blanks = stubs.read(second).stub.count("NotImplementedError")
    assert text.count("NotImplementedError") == blanks - len(done)


def test_the_merge_of_ex17a_is_that_of_ex17d(checkout):
    first, second = checkout("ex17a", "ex17d")
    text, done = carry.carried(second, first)
    assert done == ["merge_weights", "mix"]
    assert text.count("NotImplementedError") == 1 and "ex17d: kernel" in text


def test_the_only_kernel_becomes_the_only_kernel(checkout):
    first, second = checkout("ex02d", "ex03c")
    text, done = carry.carried(second, first)
    assert done == ["online_softmax_kernel"]
    assert "where it was safe_softmax_kernel(x, y)" in text


def test_reset_writes_it_and_keeps_a_backup(checkout, capsys, monkeypatch):
    first, second = checkout("ex16c", "ex17c")
    assert cli.main(["reset", "ex17c", "--from", "ex16c"]) == 0, "untouched: nobody is asked"
    assert "make it fit its statement" in " ".join(capsys.readouterr().out.split())
    assert stubs.state(second) == "changed" and not progress.is_passed(second)
    second.stub.write_text(mine := second.stub.read_text() + "# mine\n")
    monkeypatch.setattr("builtins.input", lambda prompt: "n")
    assert "Nothing was changed" in grader.reset("ex17c", start="ex16c").markdown
    assert second.stub.read_text() == mine
    assert ".backup/ex17c" in grader.reset("ex17c", start="ex16c", yes=True).markdown
    assert "# mine" not in second.stub.read_text()
    (backup,) = (second.root / "exercises/.backup").iterdir()
    assert backup.read_text() == mine
    grader.reset("ex17c", yes=True)
    assert stubs.state(second) == "pristine"


def test_only_what_has_passed(checkout):
    first, second = checkout("ex16c", "ex17c")
    first.stub.write_text(first.stub.read_text() + "# edited\n")
    assert "has not passed" in grader.reset("ex17c", start="ex16c").markdown
    assert stubs.state(second) == "pristine"


def test_nothing_in_common(checkout):
    _, second = checkout("ex16c", "ex19a")
    said = grader.reset("ex19a", start="ex16c").markdown
    assert said == "ex19a and ex16c have no function in common. Nothing was changed."
    assert stubs.state(second) == "pristine"


def test_a_function_that_was_removed(checkout):
    first, second = checkout("ex16c", "ex17c")
    first.stub.write_text(first.stub.read_text().replace("def kernel(", "def other("))
    progress.record([Graded(first, [Check("all", "passed")])])
    said = grader.reset("ex17c", start="ex16c").markdown
    assert "has no function make_kernel.kernel" in said and stubs.state(second) == "pristine"


def test_where_an_exercise_starts_from_is_not_in_its_stub(checkout):
    first, second = checkout("ex16c", "ex17c")
    assert stubs.read(first).start == "ex07d" and stubs.read(second).start == "ex16c"
    assert "### FROM" not in stubs.read(second).stub
    text = second.solution.read_text(encoding="utf-8").replace("### FROM: ex16c\n", "")
    assert stubs.parse(text, second.name).start is None
