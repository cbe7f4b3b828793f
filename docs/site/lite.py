"""The workbook in a browser: `make lite`, or ``python docs/site/lite.py [--pyodide FOLDER]``.

Makes a JupyterLite, plain files for any web server, in build/site/html/lite: every lesson, the
stubs, what the lessons link to, and the wheels of this package and of what it needs. Python is
Pyodide, and comes from Pyodide's own server unless FOLDER has its files (docs/browser.md).

A kernel loads all packages when it starts, so that a lesson needs no cell that installs them.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nbformat

from fa_numba.workbook import folder, notebooks

ROOT = Path(__file__).parents[2]
WORK, OUT = ROOT / "build" / "lite", ROOT / "build" / "site" / "html" / "lite"
LOCAL = ROOT / "build" / "pyodide"  # where `docs/site/pyodide.py` puts its files
VERSION = "0.27.7"  # of Pyodide; the one that jupyterlite-pyodide-kernel 0.6 is made for
SERVER = f"https://cdn.jsdelivr.net/pyodide/v{VERSION}/full/pyodide.js"
KERNEL = "@jupyterlite/pyodide-kernel-extension"
EXTENSIONS = Path(sys.prefix, "share", "jupyter", "labextensions")
EXTENSIONS_USED = KERNEL, "jupyterlab_pygments"
SLIDERS = "jupyterlab-widgets==3.0.15"  # the last for JupyterLab 4.4, which JupyterLite 0.6 is
# Wheels of pure Python that Pyodide lacks or has in a version too old.
WHEELS = "comm iniconfig ipywidgets markdown-it-py mdurl pluggy pytest rich".split()
CORE = "pyodide.js pyodide.asm.js pyodide.asm.wasm python_stdlib.zip".split()
PACKAGES = "ipython jedi matplotlib micropip numpy sqlite3 ssl".split()  # Pyodide's own
STARTUP = "/lib/python3.12/site-packages/fa_numba/workbook/browser.py"
# A telephone has no room beside a list of files: there a lesson opens in Jupyter Notebook.
NARROW = """<script>
if (innerWidth < 700) location.replace("../notebooks/index.html" + location.search)
</script>
"""
# There its button "Not Trusted" would take two lines of a bar that has one.
BUTTON = "<style>.jp-NotebookTrustedStatus{white-space:nowrap;font-size:10px;padding:0}</style>"
UP = "../../../../"  # from the kernel's script, to which addresses of packages are relative


def run(*command, **options):
    """Run a module of this Python."""
    subprocess.run([sys.executable, "-m", *map(str, command)], check=True, **options)


def wheels():
    """Build and download the wheels; return their folder."""
    made = WORK / "wheels"
    constraints = ROOT / "constraints" / "cuda13.txt"
    pip = ["pip", "--quiet", "--disable-pip-version-check"]
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", made,
        ROOT / "engine", ROOT)  # fmt: skip
    run(*pip, "download", "--no-deps", "--only-binary=:all:", "--dest", made,
        "--constraint", constraints, *WHEELS)  # fmt: skip
    run(*pip, "download", "--no-deps", "--dest", WORK / "extensions", SLIDERS)
    return made


def contents():
    """A learner's folder as the browser shows it, with the lessons at its top; return it."""
    made, top = WORK / "workbook", WORK / "contents"
    folder.init(made)
    junk = shutil.ignore_patterns("__pycache__", "*.py[cod]", ".gitignore", "README.md",
                                  "pyproject.toml", "lessons")  # fmt: skip
    shutil.copytree(made, top, ignore=junk)  # files in place of the links
    for path in sorted((made / "lessons").glob("[0-9]*.ipynb")):
        notebook = nbformat.read(path, 4)
        notebook.cells = [
            c for c in notebook.cells if notebooks.COLAB not in c.metadata.get("tags", [])
        ]
        notebook.metadata.kernelspec = {"name": "python", "display_name": "Python (Pyodide)"}
        nbformat.write(notebook, top / path.name)
    return top


def pyodide_files(source):
    """Copy Pyodide, with those of its packages that a kernel loads, to where JupyterLite looks."""
    target = WORK / "lite" / "static" / "pyodide"
    target.mkdir(parents=True)
    lock = json.loads((source / "pyodide-lock.json").read_text(encoding="utf-8"))
    every, wanted, needed = lock["packages"], list(PACKAGES), {}
    while wanted:
        name = wanted.pop().lower().replace("_", "-")
        if name not in needed:
            needed[name] = every[name]
            wanted += every[name]["depends"]
    lock["packages"] = needed
    (target / "pyodide-lock.json").write_text(json.dumps(lock), encoding="utf-8")
    for name in [*CORE, *(entry["file_name"] for entry in needed.values())]:
        shutil.copyfile(source / name, target / name)


def settings(made, pyodide):
    """JupyterLite's configuration: the kernel and its packages."""
    kernel = {
        "disablePyPIFallback": pyodide is not None,
        "loadPyodideOptions": {
            "env": {"PYTHONSTARTUP": STARTUP},
            "packages": PACKAGES + [f"{UP}pypi/{path.name}" for path in sorted(made.glob("*.whl"))],
        },
    }
    if pyodide is None:
        kernel["pyodideUrl"] = SERVER
    return {
        "jupyter-lite-schema-version": 0,
        "jupyter-config-data": {
            "appName": "fa-numba",
            "exposeAppInBrowser": True,  # test_lite.py asks it
            "contentsStorageName": "fa-numba",  # other sites at this address have other drives
            "settingsStorageName": "fa-numba",
            "workspacesStorageName": "fa-numba",
            "litePluginSettings": {f"{KERNEL}:kernel": kernel},
        },
    }


def build(pyodide=None, out=OUT):
    """Write the JupyterLite into `out`; `pyodide` is a folder with the files of Pyodide."""
    shutil.rmtree(WORK, ignore_errors=True)
    shutil.rmtree(out, ignore_errors=True)
    WORK.mkdir(parents=True)
    made, top = wheels(), contents()
    configuration = {
        "LiteBuildConfig": {
            "apps": ["lab", "notebooks", "edit", "tree"],
            "contents": [str(top)],
            "output_dir": str(out),
            "federated_extensions": [str(p) for p in (WORK / "extensions").glob("*.whl")],
            "ignore_sys_prefix": ["federated_extensions"],  # whatever else is installed here
            "no_sourcemaps": True,
            "no_unused_shared_packages": True,
        },
        "ContentsManager": {"allow_hidden": True},  # .fa-numba, by which the workbook is found
        "FederatedExtensionAddon": {"extra_labextensions_path": [str(WORK / "labextensions")]},
        "PipliteAddon": {"piplite_urls": [str(made)]},
    }
    (WORK / "lite").mkdir()
    for name in EXTENSIONS_USED:
        shutil.copytree(EXTENSIONS / name, WORK / "labextensions" / name)
    if pyodide is not None:
        pyodide_files(pyodide)
    for name, content in (("jupyter_lite_config.json", configuration),
                          ("jupyter-lite.json", settings(made, pyodide))):  # fmt: skip
        (WORK / "lite" / name).write_text(json.dumps(content, indent=1), encoding="utf-8")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JUPYTERLITE_")}
    run("jupyterlite_core", "build", cwd=WORK / "lite", env=environment, stdout=subprocess.DEVNULL)
    for app, head in (("lab", NARROW), ("notebooks", BUTTON)):
        page = out / app / "index.html"
        text = page.read_text(encoding="utf-8")
        page.write_text(text.replace("<head>", f"<head>\n{head}", 1), encoding="utf-8")


def size(folder):
    """Megabytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def local_pyodide():
    """The folder with Pyodide's files that this machine has, or None."""
    there = Path(os.environ.get("JUPYTERLITE_PYODIDE_URL", LOCAL))
    return there if (there / "pyodide-lock.json").is_file() else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--pyodide", type=Path, default=local_pyodide(),
                        help="a folder with its files, by default build/pyodide")  # fmt: skip
    options = parser.parse_args()
    if options.pyodide is not None and not (options.pyodide / "pyodide-lock.json").is_file():
        parser.error(f"--pyodide must be a folder with pyodide-lock.json, got {options.pyodide}")
    began = time.monotonic()
    build(options.pyodide)
    parts = ", ".join(f"{p.name} {size(p):.0f}" for p in sorted(OUT.iterdir()) if size(p) >= 1)
    took = time.monotonic() - began
    print(f"{OUT.relative_to(ROOT)}: {size(OUT):.0f} MB ({parts}), in {took:.0f} s")


if __name__ == "__main__":
    main()
