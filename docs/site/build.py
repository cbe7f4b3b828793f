"""Build the site into build/site/html: `make site`, or `python docs/site/build.py [--no-outputs]`.

The pages are README.md, docs/, the lessons with their outputs, and a page for each public function.
They are copied into build/site/source, where a link to a file without a page leads to the
repository. The lessons run in a fresh workbook, two at a time; a lesson runs again once it or the
code has changed. Sphinx makes the pages, and each of its warnings is an error. A lesson's page
leads to build/site/html/lite, the lessons for the browser, where that is there.
"""

import argparse
import functools
import hashlib
import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbclient
import nbformat

import fa_numba
from fa_numba import distributed, masks, simt
from fa_numba.workbook import folder

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "site"
SOURCE, HTML = BUILD / "source", BUILD / "html"
LITE = HTML / "lite"  # the lessons for the browser; their program puts them there
URLS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]
REPOSITORY = URLS["Repository"]
FRONT = {"README.md": "index.md"}  # the name of a page, where it is another
PAGES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md"]
PAGES += sorted(
    p.relative_to(ROOT).as_posix() for p in [*ROOT.glob("docs/**/*.md"), *ROOT.glob("engine/*.md")]
)
LESSONS = sorted(ROOT.glob("notebooks/[0-9]*.ipynb"))
MODULES = {"fa_numba": fa_numba, "fa_numba.masks": masks, "fa_numba.simt": simt,
           "fa_numba.distributed": distributed}  # fmt: skip
KINDS_OF_NAMES = {"class": inspect.isclass, "module": inspect.ismodule,
                  "function": inspect.isroutine, "data": bool}  # fmt: skip
LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)#\s]+)")
OUTPUT_LINK = re.compile(r"""(?:(?<=\]\()|(?<=href="))(\.\./[^)"#\s]+)""")  # of Markdown or HTML
FENCE = re.compile(r"(^ *```.*?^ *```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
KINDS = ".py", ".json", ".txt"  # of files that a lesson may read
OTHERS = "_static", "lite"  # folders of the site that are not made here
PICTURES = ".svg", ".png", ".gif"


def toctree(pages, *options):
    return "\n```{toctree}\n" + "\n".join([*options, ":hidden:", "", *pages]) + "\n```\n"


def with_links(text, page, pattern=LINK):
    """The Markdown of a page; a link to a file that is no page leads to the repository."""

    def led(link):
        target = (ROOT / page).parent / unquote(link[1])
        name = os.path.relpath(target, ROOT)
        if name in FRONT:
            return os.path.relpath(FRONT[name], Path(page).parent)
        if name in PAGES or ROOT / name in LESSONS or target.suffix in PICTURES:
            return link[1]
        if not target.exists():
            raise FileNotFoundError(f"{page} links to {link[1]}, which is not there")
        return f"{REPOSITORY}/{'tree' if target.is_dir() else 'blob'}/main/{name}"

    parts = FENCE.split(text)  # code has an odd number
    return "".join(part if i % 2 else pattern.sub(led, part) for i, part in enumerate(parts))


def functions():
    """Full names of everything public, each once, in the order of the modules."""
    return {f"{module}.{name}": getattr(there, name)
            for module, there in MODULES.items() for name in there.__all__}  # fmt: skip


def with_functions(text):
    """docs/functions.md; a function leads to its page, which is made here, and not to its file."""
    made = functions()
    in_modules = {}

    def led(match):
        name, file = match.groups()
        path = f"fa_numba.{name}"
        if path not in made:
            module = file.removesuffix(".py").replace("/", ".")
            path = f"{module}.{name}"
            path = path if path in made else in_modules.setdefault(f"{module}.{name}", path)
        return f"[`{name}`](../api/{path}.md)"

    text = re.sub(rf"\[`(\w+)`\]\({REPOSITORY}/blob/main/([\w/]+\.py)\)", led, text)
    titles = {"fa_numba.simt": "The CPU engine", "fa_numba.distributed": "Many GPUs"}
    for module, title in titles.items():
        links = (f"[`{name}`](../api/{module}.{name}.md)" for name in MODULES[module].__all__)
        text += f"\n## {title}: `{module}`\n\n{' · '.join(links)}\n"
    (SOURCE / "api").mkdir()
    names = [*made, *in_modules]
    for name in names:
        module, _, attribute = name.rpartition(".")
        what = getattr(importlib.import_module(module), attribute)
        kind = next(kind for kind, test in KINDS_OF_NAMES.items() if test(what))
        body = f"# {attribute}\n\n```{{eval-rst}}\n.. auto{kind}:: {name}\n"
        body += "   :members:\n" if kind in ("class", "module") else ""
        (SOURCE / "api" / f"{name}.md").write_text(f"{body}```\n", encoding="utf-8")
    return text + toctree(f"../api/{name}" for name in names)


def lessons_by_part(text):
    """docs/lessons.md with the lessons of each part in the table of contents."""
    parts = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)[1:]
    for title, rows in zip(parts[::2], parts[1::2], strict=True):
        pages = [f"../notebooks/{name}" for name in re.findall(r"notebooks/(\w+)\.ipynb", rows)]
        text += toctree(pages, f":caption: {title}")
    return text


def stage():
    """Write the pages without the lessons."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    SOURCE.mkdir(parents=True)
    shutil.copytree(ROOT / "docs" / "plots", SOURCE / "docs" / "plots")
    for page in PAGES:
        text = with_links((ROOT / page).read_text(encoding="utf-8"), page)
        if page == "docs/functions.md":
            text = with_functions(text)
        if page == "docs/lessons.md":
            text = lessons_by_part(text)
        if page == "README.md":
            text += toctree(["Lessons <docs/lessons>", "Functions <docs/functions>",
                             "Masks <docs/masks>", "Benchmarks <docs/benchmarks>",
                             "Documents <docs/README>"])  # fmt: skip
        if page == "docs/README.md":
            others = {"functions", "lessons", "masks", "benchmarks", "README", "notes/README"}
            names = [re.sub(r"^docs/|\.md$", "", p) for p in PAGES if p.startswith("docs/")]
            top = [name for name in names if "/" not in name and name not in others]
            more = ["notes/README", "../engine/README", "../CONTRIBUTING", "../CHANGELOG"]
            text += toctree([*top, *more])
        if page in ("docs/notes/README.md", "engine/README.md"):
            text += toctree(sorted(p.stem for p in (ROOT / page).parent.glob("[!R]*.md")))
        target = SOURCE / FRONT.get(page, page)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


@functools.cache
def code():
    """Digest of all that may change the outputs of any lesson."""
    found = hashlib.sha256()
    for room in ("fa_numba", "engine", "solutions", "exercises", "benchmarks/results", "notebooks"):
        for file in sorted((ROOT / room).rglob("*")):
            if file.suffix in KINDS and "tests" not in file.parts:
                found.update(file.read_bytes())
    return found


def executed(path, *, run):
    """A lesson with its outputs, from build/site/executed where it has run before."""
    digest = code().copy()
    digest.update(path.read_bytes())
    kept = BUILD / "executed" / f"{path.stem}-{digest.hexdigest()[:16]}.ipynb"
    if kept.exists():
        return nbformat.read(kept, 4)
    notebook = nbformat.read(path, 4)
    if run:
        start = time.monotonic()
        where = {"metadata": {"path": str(BUILD / "workbook" / "lessons")}}
        try:
            nbclient.NotebookClient(notebook, timeout=600, resources=where).execute()
        except nbclient.exceptions.CellExecutionError as error:
            error.add_note(f"in the lesson {path}")
            raise
        kept.parent.mkdir(exist_ok=True)
        nbformat.write(notebook, kept)
        print(f"ran {path.stem} in {time.monotonic() - start:.0f} s", flush=True)
    return notebook


def ways(name):
    """HTML below a lesson's title: the places where it runs without an installation."""
    colab = REPOSITORY.replace("github.com", "colab.research.google.com/github")
    found = {"Open in Colab": f"{colab}/blob/main/notebooks/{name}"}
    if LITE.is_dir():
        found["Run in the browser"] = f"../lite/lab/index.html?path={name}"
    return " · ".join(f'<a href="{address}">{text}</a>' for text, address in found.items())


def lesson(path, *, run):
    """Write the page of a lesson."""
    notebook = executed(path, run=run)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = with_links(cell.source, f"notebooks/{path.name}")
        if "outputs" in cell:  # a busy machine's launch says how long it will take, on stderr
            cell.outputs = [x for x in cell.outputs if x.get("name") != "stderr"]
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            for kind in {"text/html", "text/markdown"} & data.keys():
                data[kind] = with_links(data[kind], f"notebooks/{path.name}", OUTPUT_LINK)
    first = notebook.cells[0]
    first.source = first.source.replace("\n\n", f"\n\n{ways(path.name)}\n\n", 1)
    (SOURCE / "notebooks").mkdir(exist_ok=True)
    nbformat.write(notebook, SOURCE / "notebooks" / path.name)


class Links(HTMLParser):
    """Addresses of a page: what it loads, and where it leads."""

    def __init__(self, text):
        super().__init__()
        self.loads, self.leads, self.ids = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids |= {found.get("id"), found.get("name")}
        if tag in ("script", "img", "source", "iframe"):
            self.loads.append(found.get("src"))
        elif tag == "link" and found.get("rel") in ("stylesheet", "preload", "icon"):
            self.loads.append(found.get("href"))
        elif tag == "a":
            self.leads.append(found.get("href"))


def check(html):
    """Complain of links inside the site that lead nowhere, and of files loaded from outside."""
    files = (p for p in html.rglob("*.html") if p.relative_to(html).parts[0] not in OTHERS)
    pages = {p: Links(p.read_text("utf-8")) for p in files}
    wrong = []
    for path, page in pages.items():
        for address in filter(None, page.loads + page.leads):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                if address in page.loads and parts.scheme != "data":
                    wrong.append(f"{path.relative_to(html)} loads {address}")
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            missing = parts.fragment and there in pages
            missing = missing and unquote(parts.fragment) not in pages[there].ids
            if not there.exists() or missing:
                wrong.append(f"{path.relative_to(html)} leads to {address}")
    if wrong:
        sys.exit("\n".join(sorted(set(wrong))))
    size = sum(p.stat().st_size for p in html.rglob("*") if p.is_file()) / 1e6
    print(f"{len(pages)} pages, {size:.0f} MB; links lead somewhere, nothing comes from outside")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--no-outputs", action="store_true", help="do not run the lessons")
    options = parser.parse_args()
    stage()
    shutil.rmtree(BUILD / "workbook", ignore_errors=True)
    folder.init(BUILD / "workbook")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda path: lesson(path, run=not options.no_outputs), LESSONS))
    for old in set(HTML.glob("*")) - {LITE}:
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    sphinx = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-c", str(HERE)]
    subprocess.run([*sphinx, "-d", BUILD / "doctrees", SOURCE, HTML], check=True, cwd=ROOT)
    check(HTML)


if __name__ == "__main__":
    main()
