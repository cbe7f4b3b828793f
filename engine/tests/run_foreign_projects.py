"""Run the GPU tests of other projects on the engine, and count: a table for the README.

    python engine/tests/run_foreign_projects.py stumpy fbpic --folder /tmp/projects

Each project is fetched from the package index into the folder, at the version below, with a virtual
environment of its own that sees the packages of this Python. Nothing of it is kept in this
repository, and no other test runs this: it takes an hour on two cores.

numba-cuda's own tests have a script of their own, run_numba_cuda_suite.py. numba-cuda-mlir has no
tests in its distribution: give the `tests` folder of its repository by --mlir.
"""

import argparse
import ast
import collections
import subprocess
import sys
import tarfile
import venv
import xml.etree.ElementTree as ET
from pathlib import Path

HERE = Path(__file__).parent
CHECKS = HERE / "foreign_projects"
STUMPY = "aamp aamp_ostinato aamp_stimp aampdist mpdist ostinato stimp stump".split()
# Name -> version, other packages, whether its own tests are run or those of foreign_projects.
PROJECTS = {
    "stumpy": ("1.14.1", ["pandas", "scipy", "polars"], [f"tests/test_gpu_{n}.py" for n in STUMPY]),
    "fbpic": ("0.27.1", ["scipy", "h5py", "pyfftw"], None),
    "datashader": ("0.19.1", ["xarray", "dask[array]", "param", "colorcet", "multipledispatch",
                              "toolz", "scipy", "pyct"], None),
    "xarray-spatial": ("0.5.3", ["xarray", "dask[array]", "scipy", "datashader"], None),
}  # fmt: skip
MLIR = ["test_atomics.py", "test_bitwise.py", "test_bool.py", "test_cuda_builtins.py",
        "test_complex.py", "test_array_reductions.py", "test_device_functions.py",
        "test_dynamic_shared_memory.py", "test_enum.py"]  # fmt: skip
KINDS = "right", "refused", "found", "wrong", "skipped"


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
            archive.extractall(folder, filter="data")
    return found


def run(python, cwd, files, report):
    """Run tests under --simt; return how many of each kind, and why the others are not right."""
    words = "-m pytest -q -p pytest_simt --simt -p no:cacheprovider".split()
    subprocess.run([python, *words, f"--junitxml={report}", *files], cwd=cwd)
    counts, reasons = collections.Counter(), collections.Counter()
    for case in ET.parse(report).iter("testcase"):
        said = case.find("properties/property[@name='simt']")
        problem = next((x for x in case if x.tag in ("failure", "error")), None)
        kind, why = "right", ""
        if case.find("skipped") is not None:
            kind = "skipped"
        elif said is not None:
            kind, error, message = ast.literal_eval(said.get("value"))
            why = f"{error}: {message}"
        elif problem is not None:
            kind, why = "wrong", problem.get("message", "").partition("\n")[0]
        counts[kind] += 1
        if why:
            reasons[kind, why] += 1
    return counts, reasons


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("projects", nargs="*", help=f"of {', '.join(PROJECTS)}; without any: all")
    parser.add_argument("--folder", type=Path, required=True, help="where the projects are put")
    parser.add_argument("--mlir", type=Path, help="the folder `tests` of numba-cuda-mlir")
    given = parser.parse_args()
    unknown = set(given.projects) - set(PROJECTS)
    if unknown:
        parser.error(f"the projects are {', '.join(PROJECTS)}; got {', '.join(sorted(unknown))}")
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    rows, why = [], []
    for name in given.projects or ([] if given.mlir else PROJECTS):
        version, packages, tests = PROJECTS[name]
        install = [["install", *packages], ["install", "--no-deps", f"{name}=={version}"]]
        python = environment(folder, name, install)
        cwd, files = folder, [CHECKS / f"check_{name.replace('-', '_')}.py"]
        if tests:
            cwd, files = sources(folder, name, version, python), tests
        rows.append((f"{name} {version}", *run(python, cwd, files, folder / f"{name}.xml")))
    if given.mlir:
        install = [["install", "--no-deps", "numba-cuda-mlir==0.6.0"], ["install", "filecheck"]]
        python = environment(folder, "numba-cuda-mlir", install)
        rows.append(("numba-cuda-mlir", *run(python, given.mlir, MLIR, folder / "mlir.xml")))
    print("\n| project | tests |", " | ".join(KINDS), "|")
    print("|---|" + "---:|" * (1 + len(KINDS)))
    for name, counts, reasons in rows:
        print(f"| {name} | {counts.total()} |", " | ".join(str(counts[k]) for k in KINDS), "|")
        why += [(n, name, *reason) for reason, n in reasons.most_common()]
    print("\n| tests | project | outcome | what was said |\n|---:|---|---|---|")
    for row in why:
        print("|", " | ".join(str(x).replace("|", "/") for x in row), "|")


if __name__ == "__main__":
    main()
