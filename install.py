"""Install fa-numba into a virtual environment: ``python3 install.py [lessons | dev | site]``.

`make` calls this. It runs in any Python, so that one which is too old hears so before anything is
downloaded. The versions are those of `constraints/`, which passed every test; `--newest` takes the
newest that pyproject.toml allows. A second call with nothing changed installs nothing.
"""

from __future__ import print_function

import argparse
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.abspath(__file__))
LAYERS = {
    "lessons": ["lessons", "serve"],
    "dev": ["lessons", "serve", "dev", "mpi"],
    "site": ["lessons", "serve", "dev", "site"],
}


def read(*names):
    with io.open(os.path.join(ROOT, *names), encoding="utf-8") as file:
        return file.read()


def allowed():
    """(lowest, first without numba-cuda, first too new) Python of pyproject.toml, as (3, 11)."""
    text = read("pyproject.toml")
    found = re.search(r'requires-python = ">=3\.(\d+),<3\.(\d+)"', text)
    on_gpu = re.search(r"numba-cuda>=[^\"]*python_version < '3\.(\d+)'", text)
    return tuple((3, int(minor)) for minor in (found.group(1), on_gpu.group(1), found.group(2)))


def refuse_a_python_that_does_not_fit():
    low, no_gpu, high = allowed()
    if low <= sys.version_info[:2] < high:
        return
    age = "old" if sys.version_info[:2] < low else "new"
    minors = list(range(low[1], high[1]))
    fitting = ["python3.%d" % m for m in sorted(minors, key=lambda m: (m >= no_gpu[1], -m))]
    here = [name for name in fitting if runs([name, "-c", "pass"])]
    print(
        "Python %s (%s) is too %s: fa-numba needs %s to %s. Nothing was installed."
        % (
            "%d.%d.%d" % sys.version_info[:3],
            sys.executable,
            age,
            "3.%d" % minors[0],
            "3.%d" % minors[-1],
        ),
        file=sys.stderr,
    )
    if here:
        print("This machine has %s:  make PYTHON=%s" % (here[0], here[0]), file=sys.stderr)
    else:
        print(
            "Install one of them (python.org, your package manager, conda, uv), then for example:"
            "  make PYTHON=%s" % fitting[0],
            file=sys.stderr,
        )
    sys.exit(1)


def runs(command):
    """What a command prints, with a line end at least; None where it fails."""
    try:
        said = subprocess.check_output(command, stderr=subprocess.STDOUT)
    except (OSError, subprocess.CalledProcessError):
        return None
    return said.decode("utf-8", "replace") or "\n"


def accelerator():
    """The extra that fits the machine: the GPU's driver decides which CUDA it can run.

    All are empty for a Python without numba-cuda.
    """
    found = re.search(r"CUDA Version: *(\d+)", runs(["nvidia-smi"]) or "")
    cuda = int(found.group(1)) if found else 0
    return "compiler" if cuda < 12 else "cuda12" if cuda == 12 else "cuda13"


def executable(venv):
    windows = os.name == "nt"
    return os.path.join(venv, "Scripts" if windows else "bin", "python" + ".exe" * windows)


def version_of(venv):
    """ "3.12" of the Python in a virtual environment, None where there is none that runs."""
    ask = "import sys, pip; print('%d.%d' % sys.version_info[:2])"
    return (runs([executable(venv), "-c", ask]) or "").strip() or None


def make_venv(venv, stamp):
    """A virtual environment of this Python, here; another one is replaced."""
    mine, there = "%d.%d" % sys.version_info[:2], version_of(venv)
    moved = stamp.get("folder", ROOT) != ROOT
    if there == mine and not moved:
        return
    if os.path.exists(venv):
        was = "has been moved" if moved else "is of Python %s" % there if there else "does not run"
        print("%s %s: it is made anew, of Python %s" % (os.path.basename(venv), was, mine))
        shutil.rmtree(venv)
    create(venv)


def create(venv):
    base = getattr(sys, "_base_executable", None) or sys.executable  # not the one just removed
    made = subprocess.run([base, "-m", "venv", venv], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)  # fmt: skip
    if made.returncode:
        shutil.rmtree(venv, ignore_errors=True)
        sys.exit(
            "%s\n%s -m venv failed. On Debian and Ubuntu: sudo apt install python%d.%d-venv"
            % ((made.stdout.decode("utf-8", "replace").strip(), base) + sys.version_info[:2])
        )


def pip(venv, what, arguments):
    """Run `pip install`, with one line of progress; all that pip said where it fails."""
    command = [executable(venv), "-m", "pip", "install", "--disable-pip-version-check"]
    command.append("--no-compile")  # Python compiles the few modules that are used, when they are
    run = subprocess.Popen(command + arguments, cwd=ROOT, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT)  # fmt: skip
    said, collected, terminal = [], 0, sys.stdout.isatty()
    print("Installing %s ..." % what, end="" if terminal else "\n")
    sys.stdout.flush()
    with io.TextIOWrapper(run.stdout, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            said.append(line)
            collected += line.startswith("Collecting ")
            if terminal and line.startswith("Collecting "):
                print("\rInstalling %s: package %d ..." % (what, collected), end="")
                sys.stdout.flush()
    if terminal:
        print()
    if run.wait():
        sys.stderr.write("".join(said))
        sys.exit("pip install failed: its last lines say why. Then run make again.")


def main():
    refuse_a_python_that_does_not_fit()
    parser = argparse.ArgumentParser(prog="install.py", description=__doc__.split("\n\n")[0])
    parser.add_argument("layer", nargs="?", choices=sorted(LAYERS), default="lessons")
    parser.add_argument("--venv", default=".venv", help="the folder; the default is .venv")
    parser.add_argument(
        "--newest", action="store_true", help="the newest versions, not those of constraints/"
    )
    options = parser.parse_args()
    venv = os.path.join(ROOT, options.venv)
    stamp_file = os.path.join(venv, "installed.json")
    try:
        there = json.loads(read(stamp_file))
    except (IOError, ValueError):
        there = {}
    make_venv(venv, there)

    extra = accelerator()
    constraints = "constraints/%s.txt" % ("cuda12" if extra == "cuda12" else "cuda13")
    wanted = {
        "extras": LAYERS[options.layer] + [extra],
        "newest": options.newest,
        "files": hashlib.sha256(
            (
                read("pyproject.toml")
                + read("engine", "pyproject.toml")
                + read(*constraints.split("/"))
            ).encode("utf-8")
        ).hexdigest(),
        "folder": ROOT,
    }
    if (
        os.path.exists(stamp_file)
        and set(wanted["extras"]) <= set(there.get("extras", ()))
        and all(there.get(key) == wanted[key] for key in ("newest", "files", "folder"))
    ):
        return

    where = "%s (%s)" % (options.venv, "newest versions" if options.newest else constraints)
    pinned = ["--constraint", constraints]
    newest = ["--upgrade", "--upgrade-strategy", "eager"]
    versions = newest if options.newest else pinned
    pip(venv, "hatchling into " + where, versions + ["hatchling>=1.27"])
    extras = "[%s]" % ",".join(wanted["extras"])
    on_gpu = sys.version_info[:2] < allowed()[1]
    if not on_gpu:
        print(
            "Python %d.%d has no numba-cuda and no CuPy: everything runs on the CPU, and nothing "
            "compiles for a GPU. For those: make PYTHON=python%d.%d"
            % (sys.version_info[:2] + (3, allowed()[1][1] - 1))
        )
    size = "1.3 GB" if on_gpu else "0.6 GB"
    what = "fa-numba%s into %s: %s, some minutes" % (extras, where, size)
    both = ["--editable", "./engine", "--editable", "." + extras]
    pip(venv, what, versions + ["--no-build-isolation"] + both)
    with io.open(stamp_file, "w", encoding="utf-8") as file:
        file.write(json.dumps(wanted, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
