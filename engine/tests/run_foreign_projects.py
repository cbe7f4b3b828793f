"""Run the GPU tests of other projects on the engine, and count: the tables of a page in docs.

    python engine/tests/run_foreign_projects.py stumpy fbpic --folder /tmp/projects --write

The page holds every project whose report is in the folder, of this run or an earlier one.

Each project is fetched from the package index into the folder, at the version below, with a virtual
environment of its own that sees the packages of this Python. Nothing of it is kept in this
repository, and no other test runs this: it takes an hour on two cores.

numba-cuda's own tests have a script of their own, run_numba_cuda_suite.py. numba-cuda-mlir has no
tests in its distribution: give the `tests` folder of its repository by --mlir.
"""

import argparse
import ast
import collections
import datetime
import re
import subprocess
import sys
import tarfile
import venv
import xml.etree.ElementTree as ET
from pathlib import Path

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
PAGE = HERE.parents[1] / "docs" / "foreign_projects.md"
CHECKS = HERE / "foreign_projects"
STUMPY = "aamp aamp_ostinato aamp_stimp aampdist mpdist ostinato stimp stump".split()
# Name -> version, what is run, other packages, its own tests or None: those of foreign_projects.
PROJECTS = {
    "stumpy": ("1.14.1", "all of its GPU tests", ["pandas", "scipy", "polars"],
               [f"tests/test_gpu_{n}.py" for n in STUMPY]),
    "fbpic": ("0.27.1", "deposition, gathering, pushing beside its CPU code",
              ["scipy", "h5py", "pyfftw"], None),
    "datashader": ("0.19.1", "merging, its lock, interpolation beside its CPU code",
                   ["xarray", "dask[array]", "param", "colorcet", "multipledispatch", "toolz",
                    "scipy", "pyct"], None),
    "xarray-spatial": ("0.5.3", "surfaces, focal statistics, bands beside its CPU code",
                       ["xarray", "dask[array]", "scipy", "datashader"], None),
}  # fmt: skip
MLIR_VERSION = "0.6.0"
# Those that ask what a kernel computes. Others need NVRTC, a GPU in a subprocess, or test dates.
MLIR = """array_methods array_reductions array_view atomics bitwise bool captured_array_constants
    captured_constants complex cuda_builtins device_functions dynamic_shared_memory enum
    flow_control forall integer_division intrinsics iterators kernel_exceptions literals
    loop_early_return math matmul matmul_sharedmem numpy range record_dtype slicing string_types
    tuple type_conversions""".split()
KINDS = "right", "refused", "found", "wrong", "skipped"
# Why a test is not right: the first text that is found in its name or in what was said.
REASONS = [
    ("libnvrtc|NVRTC", "compiles C++"),
    ("DID NOT RAISE|not raised", "wants an error that a compiler would give"),
    ("Actual message: 'Error'|RuntimeError: Error", "the kernel's own error, in other words"),
    ("forall.. takes|out of bounds for a tuple|range.. needs", "an error is wanted, and found"),
    ("has 3 dimensions but is indexed with 1", "x[i] = 5 of a row: taken for a forgotten index"),
    ("assert '.const' in", "asks for PTX"),
    ("string_literal_eq_module_global", "asks for MLIR code"),
]


def environment(folder, name, packages):
    """Make the project's virtual environment; return its Python and its sources, if it has any."""
    python = folder / name / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    if not python.exists():
        venv.create(folder / name, with_pip=True)
        site = next((folder / name).glob("**/site-packages"))
        ours = [p for p in sys.path if p.endswith("site-packages")]
        (site / "ours.pth").write_text("\n".join([*ours, str(HERE.parent)]))
        pip = [python, "-m", "pip", "-q", "--disable-pip-version-check"]
        for words in packages:
            subprocess.run([*pip, *words], check=True)
    return python


def sources(folder, name, version, python):
    """Fetch a project's source distribution; return its folder."""
    words = "-m pip -q download --no-deps --no-binary :all: -d".split()
    package = f"{name}=={version}"
    found = folder / f"{name}-{version}"
    if not found.exists():
        subprocess.run([python, *words, folder, package], check=True)
        with tarfile.open(next(folder.glob(f"{name}-{version}.tar.gz"))) as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(folder)
    return found


def run(python, cwd, files, report):
    """Run tests under --simt, and write their report."""
    words = "-m pytest -q -p no:simt -p pytest_simt --simt -p no:cacheprovider -W ignore".split()
    subprocess.run([python, *words, f"--junitxml={report}", *files], cwd=cwd)


def outcomes(report):
    """Return the kind of each test of a report, its name, and what was said of it."""
    found = []
    for case in ET.parse(report).iter("testcase"):
        said = case.find("properties/property[@name='simt']")
        problem = next((x for x in case if x.tag in ("failure", "error")), None)
        kind, why = "right", ""
        if case.find("skipped") is not None:
            kind, why = "skipped", case.find("skipped").get("message", "")
        elif said is not None:
            kind, error, message = ast.literal_eval(said.get("value"))
            why = f"{error}: {message}"
        elif problem is not None:
            kind, why = "wrong", " ".join(problem.get("message", "").split())
        found.append((kind, f"{case.get('classname')}.{case.get('name')}", why))
    return found


def reason(test, why):
    """Return why a test is not right: a known reason, or what was said."""
    text = f"{test}\n{why}"
    return next((known for pattern, known in REASONS if re.search(pattern, text)), why[:150])


def page(folder):
    """Return the text of the page, of all reports in the folder, and {project: its row}."""
    rows = {}
    lines = ["# Other projects on the CPU engine", ""]
    day = f"{datetime.date.today()}"
    lines += [f"`python engine/tests/run_foreign_projects.py`, which fetches them; {day}.", ""]
    lines += ["| project | tests | " + " | ".join(KINDS) + " |", "|---|" + "---:|" * 6]
    why = collections.Counter()
    what = {name: f"{name} {version}: {what}" for name, (version, what, *_) in PROJECTS.items()}
    what["numba-cuda-mlir"] = f"numba-cuda-mlir {MLIR_VERSION}: {len(MLIR)} files of its tests"
    for name, title in what.items():
        report = folder / f"{name}.xml"
        if report.exists():
            found = outcomes(report)
            counts = collections.Counter(kind for kind, *_ in found)
            numbers = (counts.total(), *(counts[kind] for kind in KINDS))
            lines.append(f"| {title} | {' | '.join(map(str, numbers))} |")
            rows[name] = lines[-1]
            why.update((name, kind, reason(*rest)) for kind, *rest in found if kind != "right")
    lines += ["", "Right: as on a GPU. Refused: the engine says that it does not run the kernel."]
    lines += ["Found: it finds an error in it, a race for one. Wrong: another result or error."]
    lines += ["", "| project | outcome | tests | reason |", "|---|---|---:|---|"]
    for (name, kind, said), n in sorted(why.items(), key=lambda x: (x[0][:2], -x[1])):
        lines.append(f"| {name} | {kind} | {n} | {said.replace('|', '/')} |")
    return "\n".join(lines) + "\n", rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("projects", nargs="*", help=f"of {', '.join(PROJECTS)}; without any: all")
    parser.add_argument("--folder", type=Path, required=True, help="where the projects are put")
    parser.add_argument("--mlir", type=Path, help="the folder `tests` of numba-cuda-mlir")
    parser.add_argument(
        "--write", action="store_true", help="write docs/foreign_projects.md and README.md"
    )
    given = parser.parse_args()
    unknown = set(given.projects) - set(PROJECTS)
    if unknown:
        parser.error(f"the projects are {', '.join(PROJECTS)}; got {', '.join(sorted(unknown))}")
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for name in given.projects or ([] if given.mlir else PROJECTS):
        version, _, packages, tests = PROJECTS[name]
        install = [["install", *packages], ["install", "--no-deps", f"{name}=={version}"]]
        python = environment(folder, name, install)
        cwd, files = folder, [CHECKS / f"check_{name.replace('-', '_')}.py"]
        if tests:
            cwd, files = sources(folder, name, version, python), tests
        run(python, cwd, files, folder / f"{name}.xml")
    if given.mlir:
        mlir = f"numba-cuda-mlir=={MLIR_VERSION}"
        install = [["install", "--no-deps", mlir], ["install", "filecheck"]]
        python = environment(folder, "numba-cuda-mlir", install)
        files = [f"test_{name}.py" for name in MLIR]
        run(python, given.mlir.resolve(), files, folder / "numba-cuda-mlir.xml")
    text, rows = page(folder)
    print(text)
    if given.write:
        PAGE.write_text(text, encoding="utf-8")
        text = README.read_text(encoding="utf-8")
        for name, row in rows.items():
            text = re.sub(rf"^\| {name} .*$", row, text, flags=re.M)
        README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
