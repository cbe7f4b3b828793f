"""Every notebook is in the canonical form and runs from top to bottom in a clean kernel."""

import ast
import contextlib
import dis
import functools
import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import learner
import nbclient
import nbformat
import pytest
import warm_kernels
from cases import thorough

from fa_numba import workbook
from fa_numba.workbook import catalog, compiled, notebooks

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "notebooks"
LEARN_PYTHON = learner.PYTHON
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
GRADING = ("00",)  # lessons whose first `grade` runs here; all are alike
# They compile longest. By default they run without a compiler, and where there is one in CI's
# thorough run.
COMPILE_LONGEST = "11", "12", "13"
MARKED = [thorough(p) if p.name[:2] in COMPILE_LONGEST else p for p in NOTEBOOKS]
EACH = pytest.mark.parametrize("path", MARKED, ids=lambda p: p.stem)


def test_the_lessons_are_there():
    lessons = [path.name[:2] for path in NOTEBOOKS]
    assert lessons == [f"{number:02}" for number in range(26)]


@functools.cache
def texts(cell_type):
    """The lessons' text, or their code, by the name of the file: a list of cells."""
    return {
        path.name: [c.source for c in nbformat.read(path, 4).cells if c.cell_type == cell_type]
        for path in NOTEBOOKS
    }


def test_lessons_are_canonical():
    drifted = [
        path
        for path in NOTEBOOKS
        if path.read_text(encoding="utf-8") != notebooks.canonical_of(path)
    ]
    assert not drifted, "python -m fa_numba.workbook.notebooks --write"


def test_links_lead_to_files():
    links = [
        (name, target)
        for name, cells in texts("markdown").items()
        for target in re.findall(r"\]\(([^)#\s]+)[)#]", "".join(cells))
        if not target.startswith(("http", "mailto"))
    ]
    # JupyterLab opens no folder. The learners' copies lie in another folder, as deep as this one.
    assert not [link for link in links if not (FOLDER / link[1]).is_file()]


def test_a_lesson_names_its_own_number():
    for name, cells in texts("markdown").items():
        assert cells[0].startswith(f"# {name[:2]} · "), name
    for name, cells in texts("code").items():
        assert set(re.findall(r'status\("(\d\d)"\)', "".join(cells))) == {name[:2]}, name


def test_all_words_are_there():
    """The grader says hint('ex06b'): that must not be a NameError."""
    for name, cells in texts("code").items():
        (words,) = re.findall(r"from fa_numba\.workbook import (.*?)  #", "\n".join(cells))
        assert set(words.split(", ")) == set(workbook.__all__), name


def test_nobody_is_shown_a_solution():
    """Lessons run without solutions/, as a class may have them."""
    words = re.compile(r"solutions|\.solution")
    assert not [p.name for p in NOTEBOOKS if words.search(p.read_text(encoding="utf-8"))]


def test_code_in_the_text_fits_the_page():
    """Jupyter breaks a longer line of Markdown's code in the middle of a word, in a window of 1300
    pixels."""
    for name, cells in texts("markdown").items():
        blocks = re.findall(r"```\w*\n(.*?)```", "\n".join(cells), re.DOTALL)
        assert not [x for block in blocks for x in block.splitlines() if len(x) > 90], name


def test_a_compiler_is_asked_through_compiled():
    """So that every lesson has something to show where there is none."""
    calls = ("compile_kernel(", "machine_code(", "compile_ptx(", "compile_for(")
    for path in NOTEBOOKS:
        text = "\n".join(texts("code")[path.name])
        assert any(call in text for call in calls) == compiled.calls(path), path.name
        assert not re.search(r"(compiler|assembler)_available", text), path.name


def test_a_lesson_begins_with_a_story_and_ends_with_what_you_can_do():
    for name, cells in texts("markdown").items():
        story = cells[0].split("\n\n")[2]
        assert story.startswith("**A true story.** ") and len(story.split()) <= 90, name
        assert re.search(r"\]\(http| 20\d\d\)", story), f"{name}: a story has a public source"
        end = cells[-1].partition("## What you can do now\n\n")[2].partition("\n\n## ")[0]
        assert f"ex{name[:2]}" in end, name


def test_no_paragraph_and_no_cell_is_too_long():
    for name, cells in texts("markdown").items():
        for paragraph in re.split(r"\n\s*\n|\n(?=[-*] |\d+\. )", "\n\n".join(cells)):
            prose = not paragraph.startswith(("|", "$$", "```"))
            assert len(paragraph.split()) <= 110 or not prose, f"{name}: {paragraph}"
    subjects = "make_published_kernel(HEAD_DIM", "def warp_attention", "def by_you(weights"
    for name, cells in texts("code").items():
        long = [cell for cell in cells if cell.count("\n") >= 30]
        assert not [cell for cell in long if not any(x in cell for x in subjects)], name


def test_the_glossary_names_lessons_that_have_the_term():
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    entries = re.findall(r"^- \*\*(.+?)\*\*: .*\[(\d\d)\]\(\.\./notebooks/(.+?)\)$", page, re.M)
    assert page.count("\n- ") == len(entries) in range(60, 91)
    assert entries == sorted(entries, key=lambda entry: entry[0].lower())
    for term, number, name in entries:
        text = "\n".join(texts("markdown")[name]).lower()
        assert name[:2] == number and re.split(r",| \(", term)[0].lower() in text, term
    for name, cells in texts("markdown").items():
        assert "(../docs/glossary.md)" in cells[0], name


def names_of(source):
    """(names that a cell takes from earlier ones, names that it sets)."""
    takes, sets = set(), set()
    code = compile(source, "cell", "exec")
    for step in dis.get_instructions(code):
        if step.opname == "STORE_NAME":
            sets.add(step.argval)
        elif step.opname == "LOAD_NAME" and step.argval not in sets:
            takes.add(step.argval)
    inner = [x for x in code.co_consts if isinstance(x, types.CodeType)]
    while inner:  # functions, and in Python 3.11 comprehensions
        function = inner.pop()
        inner += [x for x in function.co_consts if isinstance(x, types.CodeType)]
        steps = dis.get_instructions(function)
        takes |= {s.argval for s in steps if s.opname == "LOAD_GLOBAL" and s.argval not in sets}
    return takes, sets


def test_an_answer_can_be_asked_for_again():
    """After "Run All" every answer says "run this cell once more".

    No other cell may change a name that an answer reads: no later cell, and no earlier answer,
    which may have run again.
    """
    for name, cells in texts("code").items():
        an_answer_can_be_asked_for_again(name, cells)


def an_answer_can_be_asked_for_again(lesson, cells):
    names = [names_of(source) for source in cells]
    answers = [i for i, source in enumerate(cells) if re.search(r"^answer\(", source, re.MULTILINE)]
    for i in answers:
        for name in names[i][0]:
            setters = [j for j, (_, sets) in enumerate(names) if name in sets]
            first = max((j for j in setters if j < i), default=i)
            others = [j for j in setters if j > i or (j < first and j in answers)]
            assert not others, (
                f"{lesson}: {name}, taken by the answer in {i}, is set again: {others}"
            )


@pytest.mark.parametrize(
    "lesson, exercise, name",
    [("06_flash_attention_1", "ex06c_find_the_bug", "make_published_kernel")],
)
def test_kernels_of_exercises_are_quoted_to_the_letter(lesson, exercise, name):
    text = "\n".join(c.source for c in nbformat.read(FOLDER / f"{lesson}.ipynb", 4).cells)
    quoted, original = (
        function_named(name, source)
        for source in (text, (ROOT / "exercises" / f"{exercise}.py").read_text(encoding="utf-8"))
    )
    assert quoted == original


def function_named(name, source):
    """The function's code without its docstring, as Python reads it."""
    source = source[source.index(f"def {name}(") :]
    tree = ast.parse(source[: re.search(r"\n(?=\S)", source).start()])
    tree.body[0].body = tree.body[0].body[1:]
    return ast.unparse(tree)


# In a namespace of its own: a lesson must not need a name of it.
WATCH = (
    f"import sys; sys.path.append({str(Path(__file__).parent)!r}); import legible; legible.watch()"
)
WATCH_DRAWINGS = f"exec({WATCH!r}, {{}})"
DRAWINGS_ARE_LEGIBLE = "__import__('legible').verdict()"
BACKEND = {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}


def run(path, env, monkeypatch, tmp_path, *, grades, last=None, command=None):
    """Execute a lesson in a kernel with these variables; returns it with its outputs.

    Of the cells that grade an exercise the first `grades` run; each takes a process of its own.
    With `last` the lesson ends with the last cell that has this text. The kernel is started by
    `command`, or else by Python.
    """
    for name, value in (env | BACKEND).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))  # a clean kernel: no profile of the user's
    spec = tmp_path / "kernels" / "learner"
    spec.mkdir(parents=True)
    command = command or [LEARN_PYTHON or sys.executable, "-m", "ipykernel_launcher"]
    kernel = {
        "argv": [*command, "-f", "{connection_file}"],
        "display_name": "learner",
        "language": "python",
    }
    (spec / "kernel.json").write_text(json.dumps(kernel), encoding="utf-8")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    notebook = nbformat.read(path, as_version=4)
    if last:
        end = max(i for i, cell in enumerate(notebook.cells) if last in cell.source)
        notebook.cells = notebook.cells[: end + 1]
    graded = [cell for cell in notebook.cells if cell.source.startswith("grade(")]
    cells = [cell for cell in notebook.cells if cell not in graded[grades:]]
    first, end = map(nbformat.v4.new_code_cell, (WATCH_DRAWINGS, DRAWINGS_ARE_LEGIBLE))
    notebook.cells = [first, *cells, end]
    client = nbclient.NotebookClient(
        notebook,
        timeout=120,
        kernel_name="learner",
        resources={"metadata": {"path": str(path.parent)}},
    )
    try:
        client.execute()
    except nbclient.exceptions.CellExecutionError as error:
        pytest.fail(f"{path.name}: {error}", pytrace=False)
    for cell in notebook.cells:
        if "raises-exception" in cell.metadata.get("tags", []):
            raised = [o for o in cell.outputs if o.output_type == "error"]
            assert raised, f"meant to fail, but ran:\n{cell.source}"
    return notebook


def printed(notebook):
    outputs = [o for c in notebook.cells if c.cell_type == "code" for o in c.outputs]
    return "".join(o.text for o in outputs if o.output_type == "stream")


def messages(notebook):
    """The lines of all errors, without the code above them and without colours."""
    outputs = [o for c in notebook.cells if c.cell_type == "code" for o in c.outputs]
    last = [o.traceback[-1] for o in outputs if o.output_type == "error"]
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(last)).splitlines()


@contextlib.contextmanager
def kernels(folder, hidden=()):
    """Variables and command of a learner's kernel, forked from a process with its imports."""
    env = learner.environment(folder / "site", learner.not_for_learners(), hidden)
    if hidden:
        env |= {"PATH": learner.path_without_tools()}
    if not hasattr(os, "fork"):
        yield env, None
        return
    with warm_kernels.server(os.environ | env | BACKEND) as command:
        yield env, command


@pytest.fixture(scope="module")
def learners(tmp_path_factory):
    if LEARN_PYTHON is not None:
        yield {}, None
        return
    with kernels(tmp_path_factory.mktemp("kernels")) as env_and_command:
        yield env_and_command


@pytest.fixture(scope="module")
def learners_without_compiler(tmp_path_factory):
    with kernels(tmp_path_factory.mktemp("kernels"), learner.COMPILERS) as env_and_command:
        yield env_and_command


@EACH
def test_runs_top_to_bottom(path, tmp_path, monkeypatch, learners):
    """In what `make learn` installs: in FA_NUMBA_LEARN_PYTHON, or with everything else hidden."""
    env, command = learners
    made = tmp_path / "made.json"
    env = env | {compiled.RECORD_TO: str(made)}
    grades = path.name[:2] in GRADING
    notebook = run(path, env, monkeypatch, tmp_path, grades=grades, command=command)
    said = printed(notebook)
    if compiled.calls(path) and "Recorded, not compiled here" not in said:
        check_record(json.loads(made.read_text(encoding="utf-8")))
    for cell in notebook.cells:
        if cell.cell_type == "code" and "compiled(" in cell.source:
            assert "execute_result" in {o.output_type for o in cell.outputs}, "a table"
    for line in [*said.splitlines(), *messages(notebook)]:
        assert len(line) <= 100, f"too long for a page, which would cut it in mid-word: {line}"


def test_every_exercise_is_graded_in_its_lesson():
    """`test_exercises` grades the stubs, all at once, in what `make learn` installs."""
    asked = []
    for path in NOTEBOOKS:
        cells = [c.source for c in nbformat.read(path, 4).cells if c.source.startswith("grade(")]
        names = [re.fullmatch(r'grade\("(\w+)"\)', cell)[1] for cell in cells]
        assert all(name.startswith(f"ex{path.name[:2]}") for name in names), path.name
        asked += names
    assert sorted(asked) == [e.short for e in catalog.all_exercises(ROOT)]


def check_record(made):
    """What was compiled here is what is recorded, if the tools are the same."""
    record = json.loads((FOLDER / "compiled.json").read_text(encoding="utf-8"))
    assert made.keys() <= record["made"].keys(), compiled.COMMAND
    if record["tools"] == compiled.versions():
        wanted = compiled.expected(record)
        assert made == {name: wanted[name] for name in made}, compiled.COMMAND


# The others show what `check_record` has found to be the record, and are thorough.
RECORDED = [p for p in NOTEBOOKS if compiled.calls(p)]
RECORDED = [p if p.name[:2] in COMPILE_LONGEST else thorough(p) for p in RECORDED]


@pytest.mark.parametrize("path", RECORDED, ids=lambda p: p.stem)
def test_runs_without_compiler_and_disassembler(
    path, tmp_path, monkeypatch, learners_without_compiler
):
    """Every table is there all the same, from the record, and the lesson says so.

    No cell after the last table asks a compiler: `test_a_compiler_is_asked_through_compiled`.
    """
    env, command = learners_without_compiler
    monkeypatch.setattr(sys.modules[__name__], "LEARN_PYTHON", None)
    last = None if path.name[:2] in COMPILE_LONGEST else "compiled("
    # Stubs need no compiler.
    notebook = run(path, env, monkeypatch, tmp_path, grades=0, last=last, command=command)
    calls = 0
    for cell in notebook.cells:
        if cell.cell_type != "code" or "compiled(" not in cell.source:
            continue
        calls += cell.source.count("compiled(")
        kinds = {o.output_type for o in cell.outputs}
        assert {"stream", "execute_result"} <= kinds, "the reason, and the table"
    assert printed(notebook).count("Recorded, not compiled here") == calls > 0


def test_status_of_a_lesson_is_that_of_its_exercises():
    rows = workbook.status("08").rows
    assert [row[0] for row in rows] == ["ex08a", "ex08b", "ex08c", "ex08d", "ex08e"]
    assert len(workbook.status().rows) > 40


def test_learners_have_what_lessons_need_and_nothing_of_the_tests():
    theirs, hidden = learner.learner_distributions(), learner.not_for_learners()
    assert {"jupyterlab", "ipykernel", "nbclient", "matplotlib", "pytest", "numba"} <= theirs
    assert {"greenlet", "hypothesis"} <= set(hidden)
    assert not {"numpy", "numba", "IPython", "cuda", "rich"} & set(hidden)


def test_canonical_form():
    cells = [
        nbformat.v4.new_markdown_cell("same"),
        nbformat.v4.new_markdown_cell("same"),
        nbformat.v4.new_code_cell("print(1)\n", execution_count=3, metadata={"collapsed": True}),
        nbformat.v4.new_code_cell("  \n"),
    ]
    cells[2].outputs = [nbformat.v4.new_output("stream", text="1")]
    messy = nbformat.writes(nbformat.v4.new_notebook(cells=cells, metadata={"author": "me"}))
    clean = notebooks.canonical(messy)
    assert notebooks.canonical(clean) == clean
    data = json.loads(clean)
    assert (data["nbformat"], data["nbformat_minor"]) == (4, 5)
    assert set(data["metadata"]) == {"kernelspec", "language_info"}
    ids = [cell["id"] for cell in data["cells"]]
    assert len(ids) == len(set(ids)) == 3, "the empty cell is gone, equal cells differ in id"
    assert data["cells"][2]["outputs"] == [] and data["cells"][2]["execution_count"] is None
    assert clean.endswith("}\n")


def test_check_fails_on_drift_and_write_mends_it(tmp_path, capsys):
    path = tmp_path / "a.ipynb"
    path.write_text(nbformat.writes(nbformat.v4.new_notebook()), encoding="utf-8")
    assert notebooks.main(["--check", str(path)]) == 1
    assert notebooks.main(["--write", str(path)]) == 0
    assert notebooks.main(["--check", str(path)]) == 0
    assert os.fspath(path) in capsys.readouterr().out


class FakeColab:
    """A Colab runtime: its shell, and a record of the commands, which it does not run."""

    def __init__(self, monkeypatch, tmp_path, driver=None):
        self.commands, self.checkout = [], tmp_path / "content" / "fa-numba"
        monkeypatch.setattr(subprocess, "run", self.run)
        monkeypatch.setattr("shutil.which", lambda name: driver and f"/usr/bin/{name}")
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.chdir(tmp_path)
        self.driver = driver

    def __str__(self):
        return "<google.colab._shell.Shell object at 0x7f0000000000>"

    def run(self, command, **options):
        self.commands.append(command)
        return types.SimpleNamespace(stdout=self.driver)

    def run_cell(self, cell):
        shell, magic = cell.split("\n")
        assert shell.startswith("!") and magic == "%run /content/fa-numba/notebooks/colab.py"
        self.commands.append(shell[1:].split())
        (self.checkout / "notebooks").mkdir(parents=True, exist_ok=True)
        script = (ROOT / "notebooks" / "colab.py").read_text(encoding="utf-8")
        exec(script.replace("/content/fa-numba", self.checkout.as_posix()), {})

    def installs(self):
        return [command[-1].partition("[")[2] for command in self.commands if "pip" in command]


def cell_for_colab():
    """Source of the cell that a lesson has once the repository has an address."""
    text = (FOLDER / "06_flash_attention_1.ipynb").read_text(encoding="utf-8")
    text = notebooks.canonical(text, repository="https://example.org/fa-numba")
    assert notebooks.canonical(text, repository="https://example.org/fa-numba") == text, "once"
    cell = nbformat.reads(text, 4).cells[1]
    assert cell.metadata.jupyter.source_hidden is True and "\n" not in cell.source
    return cell.source


@pytest.mark.parametrize(
    "driver, extras",
    [
        (None, "lessons,compiler]"),
        ("| Driver Version: 550.54  CUDA Version: 12.4 |", "lessons,cuda12]"),
        ("| Driver Version: 580.65  CUDA Version: 13.0 |", "lessons,cuda13]"),
    ],
)
def test_the_cell_for_colab_sets_up_a_fresh_machine(monkeypatch, tmp_path, driver, extras):
    colab = FakeColab(monkeypatch, tmp_path, driver)
    for _ in range(2):  # the second time is another Run All
        exec(cell_for_colab(), {"get_ipython": lambda: colab})
        assert Path.cwd() == colab.checkout / "notebooks" and sys.path[0] == str(colab.checkout)
    there = "/content/fa-numba"
    clone = ["git", "clone", "-q", "--depth=1", "https://example.org/fa-numba", there]
    assert colab.commands[0] == ["test", "-d", there, "||", *clone]
    assert colab.installs() == [extras] * 2
    assert sys.path.count(str(colab.checkout)) == 1


def test_the_cell_for_colab_does_nothing_elsewhere():
    exec(cell_for_colab(), {"get_ipython": object})


def test_the_address_for_colab_is_that_of_the_project(monkeypatch, tmp_path):
    """One setting; without it no lesson has the cell."""
    monkeypatch.setattr(notebooks, "installed_course", lambda: tmp_path)
    for owner, colab in ("somebody", 1), ("OWNER", 0):
        address = f"https://github.com/{owner}/fa-numba"
        urls = f'[project.urls]\nRepository = "{address}"\n'
        (tmp_path / "pyproject.toml").write_text(urls, encoding="utf-8")
        assert notebooks.canonical_of(NOTEBOOKS[0]).count(address) == colab
