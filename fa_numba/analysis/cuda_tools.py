"""NVVM, ptxas and nvdisasm: where they are, and whether they work together.

There are three steps: kernels to PTX (`compiler_available`), to machine code
(`assembler_available`) and to a listing of instructions (`disassembler_available`). Each function
tries its step on a kernel of one instruction, since an installed tool may be too old: ptxas refuses
the PTX of a newer NVVM.

Tools that pip or conda installed come first, those of a CUDA toolkit next, those on the PATH last.
"""

import functools
import importlib.util
import re
import shutil
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from fa_numba.runtime import installing
from numba_cuda_simulator.errors import CompilerMissingError

_IR = """\
target triple = "nvptx64-nvidia-cuda"
target datalayout = "{}"
define void @trial() {{
  ret void
}}
!nvvmir.version = !{{!0}}
!0 = !{{i32 {}, i32 {}, i32 {}, i32 {}}}
"""
_PTX = """\
.version {}
.target sm_75
.address_size 64
.visible .entry trial() {{ ret; }}
"""
LISTING = ("--print-code", "--print-line-info-inline")  # the format that `sass.parse` reads


@dataclass(frozen=True)
class Tool:
    """A program that has passed its trial."""

    name: str
    path: str
    release: str  # version of its CUDA toolkit, such as "13.5"


def compiler_available():
    """Whether NVVM and NVRTC compile kernels to PTX. Machine code needs ptxas as well."""
    return _answers(ptx_version)


def assembler_available():
    """Whether kernels compile to machine code: `compiler_available`, and a ptxas new enough."""
    return _answers(ptxas)


def disassembler_available():
    """Whether machine code can also be listed: `assembler_available`, and nvdisasm."""
    return _answers(nvdisasm)


def _answers(question):
    try:
        question()
    except CompilerMissingError:
        return False
    return True


@functools.cache
def ptx_version():
    """Version of the PTX that NVVM writes here, such as "9.5".

    Raises
    ------
    CompilerMissingError
        NVVM or NVRTC is not installed, or does not load.
    """
    needed = f"compiling needs NVVM and NVRTC: {_install()} (no GPU needed)"
    if importlib.util.find_spec("cuda") is None or not importlib.util.find_spec("cuda.bindings"):
        raise CompilerMissingError(needed)
    try:
        from cuda.bindings import nvrtc
        from numba.cuda.cudadrv.nvvm import NVVM, CompilationUnit

        nvrtc.nvrtcVersion()
        nvvm, unit = NVVM(), CompilationUnit({"arch": "compute_75"})
        unit.add_module(_IR.format(nvvm.data_layout, *nvvm.get_ir_version()).encode())
        ptx = unit.compile().decode()
    except Exception as error:  # each library raises its own kind where a file is missing
        raise CompilerMissingError(f"{needed}; here: {one_line(error)}") from error
    return re.search(r"^\.version (\S+)", ptx, re.MULTILINE)[1]


@functools.cache
def ptxas():
    """The `Tool` that turns NVVM's PTX into machine code.

    Raises
    ------
    CompilerMissingError
        None is installed, or none is new enough.
    """
    version = ptx_version()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "trial.ptx")
        source.write_text(_PTX.format(version))

        def refusal(path):
            run = _run(path, "-arch=sm_75", str(source), "-o", str(Path(folder, "trial.cubin")))
            if newest := re.search(r"Unsupported \.version.*current version is '(.*?)'", run):
                return f"is older than the compiler's PTX {version}: it reads PTX {newest[1]}"
            return run

        return _first_that_fits("ptxas", refusal)


@functools.cache
def nvdisasm():
    """The `Tool` that lists the instructions of machine code.

    Raises
    ------
    CompilerMissingError
        None is installed, or none reads this machine code.
    """
    assembler = ptxas()
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder, "trial.ptx"), Path(folder, "trial.cubin")
        source.write_text(_PTX.format(ptx_version()))
        _run(assembler.path, "-arch=sm_75", str(source), "-o", str(cubin))
        return _first_that_fits("nvdisasm", lambda path: _run(path, *LISTING, str(cubin)))


def _first_that_fits(name, refusal):
    """The first tool of that name that passes its trial."""
    reasons = []
    for path in _paths(name):
        if reason := refusal(path):
            reasons.append(f"{name} {_release(path)} ({path}) {reason}. Newer: {_install()}")
        else:
            return Tool(name, path, _release(path))
    raise CompilerMissingError(
        reasons[0] if reasons else f"machine code needs {name}: {_install()}"
    )


def _paths(name):
    """Paths of a tool, the pinned ones first."""
    found = []
    with suppress(ImportError):
        from cuda import pathfinder
        from cuda.pathfinder import find_nvidia_binary_utility

        # Of a tool that it does not know.
        unsupported = getattr(pathfinder, "UnsupportedBinaryError", LookupError)
        # ptxas and nvdisasm are beside nvcc, which every release of cuda-pathfinder finds.
        for utility in (name, "nvcc", "nvdisasm"):
            with suppress(RuntimeError, LookupError, ValueError, unsupported):
                if path := find_nvidia_binary_utility(utility):
                    found.append(Path(path).with_name(name + Path(path).suffix))
    if on_path := shutil.which(name):
        found.append(Path(on_path))
    return [str(path) for path in dict.fromkeys(found) if path.exists()]


def _release(path):
    """The toolkit's version, such as "13.5", or "of unknown version"."""
    with suppress(OSError, subprocess.SubprocessError):
        run = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60)
        if match := re.search(r"release (\d+\.\d+)", run.stdout):
            return match[1]
    return "of unknown version"


def _run(*command):
    """The reason why a command fails, in one line; "" if it succeeds."""
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        return f"does not run: {one_line(error)}"
    if run.returncode == 0:
        return ""
    lines = (run.stderr or run.stdout).strip().splitlines()
    return f"fails: {lines[0] if lines else f'exit status {run.returncode}'}"


def _install():
    """The command that installs the missing tools."""
    extra = "compiler"
    with suppress(metadata.PackageNotFoundError):
        if metadata.version("cuda-bindings").startswith("12."):
            extra = "cuda12"
    return installing.command_for_gpu_code(extra)


def one_line(error):
    """An error's class and message, for a line of text."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
