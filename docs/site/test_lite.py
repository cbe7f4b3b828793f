"""The workbook in a headless Chromium, as a learner uses it: `make lite-test`.

All files are local, and a request to anywhere else fails the test. It needs `pip install
playwright`, a Chromium and Pyodide's files (docs/browser.md), and takes minutes: it does not lie
in tests/, so that `make test` does not run it.
"""

import functools
import http.server
import json
import shutil
import threading
import time

import lite
import pytest

from fa_numba.workbook import catalog

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install it")
pytest.importorskip("jupyterlite_core", reason="needs the packages of the extra `site`")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
                None)  # fmt: skip
PYODIDE = lite.local_pyodide()
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium on the path"),
    pytest.mark.skipif(
        PYODIDE is None,
        reason=f"Pyodide's files are not in {lite.LOCAL}: `make pyodide`, or docs/browser.md",
    ),
]
LESSONS = "00_first_kernels 02_safe_softmax 06_flash_attention_1 07_flash_attention_2 \
18_paged_attention 21_many_gpus".split()
MINUTES = 60_000  # playwright counts milliseconds


@pytest.fixture(scope="session")
def address(tmp_path_factory):
    """A server of the built pages."""
    out = tmp_path_factory.mktemp("site") / "lite"
    lite.build(PYODIDE, out)
    handler = functools.partial(Quiet, directory=out)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="session")
def chromium():
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def lab(chromium, address):
    """A fresh browser, without any progress."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(10 * MINUTES)
    found = Lab(context.new_page(), address)
    yield found
    context.close()
    assert not found.outside, "requests to elsewhere"


class Lab:
    """JupyterLite in a tab."""

    def __init__(self, page, address):
        self.page, self.address, self.outside = page, address, []
        page.on("request", self._look_at)

    def _look_at(self, request):
        if not request.url.startswith((self.address, "data:", "blob:")):
            self.outside.append(request.url)

    def open(self, lesson):
        """Open a lesson; return the seconds until it can be read."""
        began = time.monotonic()
        self.page.goto(f"{self.address}/lab/index.html?path={lesson}.ipynb")
        self.page.wait_for_selector(".jp-NotebookPanel .jp-Cell")
        seconds = time.monotonic() - began
        kernel = "window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel"
        self.page.wait_for_function(kernel)
        return seconds

    def cells(self):
        """(number, tags) of the code cells."""
        return self.page.evaluate(
            """() => [...window.jupyterapp.shell.currentWidget.content.model.cells]
                .map((cell, i) => [i, cell.type, cell.getMetadata('tags') ?? []])
                .filter(([i, type]) => type == 'code').map(([i, type, tags]) => [i, tags])"""
        )

    def run(self, number):
        """Run a cell; return its outputs."""
        return self.page.evaluate(
            """async number => {
                const {shell, commands} = window.jupyterapp;
                const notebook = shell.currentWidget.content;
                notebook.activeCellIndex = number;
                await commands.execute('notebook:run-cell');
                return notebook.model.cells.get(number).sharedModel.toJSON().outputs;
            }""",
            number,
        )

    def ask(self, code):
        """Run code in the kernel; return its printed text, its result as text, or its error."""
        return self.page.evaluate(
            """async code => {
                const {kernel} = window.jupyterapp.shell.currentWidget.sessionContext.session;
                const future = kernel.requestExecute({code});
                let said = '';
                future.onIOPub = ({content}) => {
                    said += content.text ?? content.evalue ?? content.data?.['text/plain'] ?? '';
                };
                await future.done;
                return said;
            }""",
            code,
        )

    def read(self, path):
        """The text of a file on the browser's drive, as a download has it."""
        return self.page.evaluate(
            """async path => {
                const {contents} = window.jupyterapp.serviceManager;
                const {content} = await contents.get(path, {content: true});
                return typeof content == 'string' ? content : JSON.stringify(content);
            }""",
            path,
        )

    def write(self, path, text):
        """Save a file, as JupyterLab's editor does."""
        self.page.evaluate(
            """([path, content]) => window.jupyterapp.serviceManager.contents
                .save(path, {type: 'file', format: 'text', content})""",
            [path, text],
        )


def errors(outputs):
    return [f"{o['ename']}: {o['evalue']}" for o in outputs if o["output_type"] == "error"]


@pytest.mark.parametrize("lesson", LESSONS)
def test_every_cell_of_a_lesson_runs(lab, lesson):
    seconds = lab.open(lesson)
    pictures, wrong = 0, {}
    for number, tags in lab.cells():
        outputs = lab.run(number)
        if bool(found := errors(outputs)) != ("raises-exception" in tags):
            wrong[number] = found or "no error"
        pictures += any("<img" in str(o.get("data", {}).get("text/html")) for o in outputs)
    assert not wrong
    assert pictures
    print(f"{lesson}: readable after {seconds:.1f} s, {pictures} pictures")


def test_an_exercise_is_written_graded_measured_and_kept(lab):
    exercise = catalog.find_one("ex07d", lite.ROOT)
    lab.open("07_flash_attention_2")
    lab.ask("from fa_numba.workbook import *; from fa_numba.workbook.own import mine")
    assert "Hint 1" in lab.ask("hint('ex07d')")
    lab.write(f"exercises/{exercise.stub.name}", exercise.solution.read_text("utf-8"))
    began = time.monotonic()
    said = lab.ask("grade('ex07d')")
    print(f"ex07d graded after {time.monotonic() - began:.1f} s")
    assert said.startswith("✓ ex07d") and "which stops a check after" in said
    assert "your" in lab.ask("print(mine('ex07d').name)")
    lab.ask("from fa_numba.workbook.progress import save; save('mine.json')")
    assert json.loads(lab.read("mine.json"))[exercise.name]["passed"] == 64
    lab.open("07_flash_attention_2")  # the page anew, with a new kernel
    assert "64/64" in lab.ask("from fa_numba.workbook import status; status('ex07d')")


def test_a_loop_that_does_not_end_is_stopped(lab):
    exercise = catalog.find_one("ex00b", lite.ROOT)
    text = exercise.solution.read_text("utf-8")
    lab.open("00_first_kernels")
    lab.write(f"exercises/{exercise.stub.name}", f"{text}\nwhile True:\n    pass\n")
    assert "steps: is there a loop that does not end?" in lab.ask(
        "from fa_numba.workbook import grade; grade('ex00b')"
    )
