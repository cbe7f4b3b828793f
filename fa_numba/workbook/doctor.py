"""``fa-numba doctor``: the installed tools, the backend that runs kernels, and the reason."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

from fa_numba.analysis import cuda_tools
from fa_numba.runtime import arrays
from fa_numba.runtime.installing import version
from numba_cuda_simulator import without_numba


def _compiler() -> str:
    return f"NVVM found, writes PTX {cuda_tools.ptx_version()}: kernels compile without a GPU too"


def _tool(question) -> str:
    tool = question()
    path = Path(tool.path)
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())  # fits on a line
    return f"{tool.release}, {path}"


def _cupy() -> str:
    here = version("cupy-cuda12x", "cupy-cuda13x", "cupy")
    if here == "not installed":
        return here + " (needed only for arrays on a GPU)"
    import cupy

    return f"{here}, sees {cupy.cuda.runtime.getDeviceCount()} GPU(s)"


def _driver() -> str:
    command = [
        "nvidia-smi",
        "--query-gpu=name,driver_version,memory.total",
        "--format=csv,noheader",
    ]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except OSError:  # not there; in a browser there are no processes
        return "no NVIDIA driver (nvidia-smi is not here)"
    except subprocess.TimeoutExpired:
        return "nvidia-smi does not answer"
    if run.returncode:
        return "nvidia-smi fails: " + (run.stdout or run.stderr).strip().split("\n")[0]
    return "; ".join(run.stdout.strip().splitlines())


def _numba() -> str:
    if without_numba.is_installed():
        return (
            "not installed: the engine, lessons and graders work; nothing is compiled, for a CPU "
            "or a GPU (pip install numba)"
        )
    return version("numba")


def _gpu() -> str:
    backend = arrays.backend()
    return backend.gpu or f"none: {backend.reason}"


def rows() -> list[tuple[str, str]]:
    """(subject, finding) for everything that decides where kernels run."""

    def probe(function, *args):
        try:
            return function(*args)
        except cuda_tools.CompilerMissingError as error:
            return str(error)
        except Exception as error:  # one broken library must not hide the others
            return cuda_tools.one_line(error)

    found = [
        ("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        ("NumPy", version("numpy")),
        ("numba", _numba()),
        ("numba-cuda", version("numba-cuda")),
        ("CuPy", probe(_cupy)),
        ("compiler", probe(_compiler)),
        ("ptxas", probe(_tool, cuda_tools.ptxas)),
        ("nvdisasm", probe(_tool, cuda_tools.nvdisasm)),
        ("driver", probe(_driver)),
        ("GPU", probe(_gpu)),
    ]
    first = {}  # finding -> its subject: one missing library is told once
    for subject, finding in found:
        first.setdefault(finding, subject)
    return [
        (subject, finding if len(finding) < 60 or first[finding] == subject else "the same as "
         f"for {first[finding]}")
        for subject, finding in found
    ]  # fmt: skip


def main(options=None) -> int:
    """Print the table and where kernels run."""
    try:
        from rich.console import Console
    except ImportError:  # doctor is for installs in which something is missing
        for subject, finding in rows():
            print(f"{subject:<11}{finding}")
        print(f"\n{arrays.backend()}")
        return 0
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    console = Console()
    table = Table.grid(padding=(0, 2))
    for subject, finding in rows():
        table.add_row(Text(subject, style="bold"), Text(finding, overflow="fold"))
    console.print(table)
    console.print(
        Panel(
            Text(str(arrays.backend())),
            title="backend",
            title_align="left",
            width=min(console.width, 100),
        )
    )
    return 0
