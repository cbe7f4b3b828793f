"""From kernel to PTX to machine code, on a machine without a GPU.

Numba lowers a kernel to NVVM IR, libNVVM turns that into PTX, and ptxas turns PTX into the machine
code of one GPU generation. Neither library needs a GPU, so a laptop can say how many registers a
kernel takes, whether any spill to memory, and whether a float64 instruction has crept in.
This is the only module that touches how numba-cuda compiles.
"""

import contextlib
import functools
import importlib.util
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
from numba import cuda, from_dtype, types

TARGETS = ((7, 5), (8, 0), (9, 0, "a"))  # T4, A100, H100/H200: the generations that we promise


class CompilerMissingError(RuntimeError):
    """A tool is not installed; the message says which, and how to get it."""


@dataclass(frozen=True)
class MachineCode:
    """What the compilers made of a kernel.

    Attributes
    ----------
    ptx : str
    cc : tuple
        Compute capability, (major, minor) or (major, minor, "a").
    registers : int
        Per thread.
    spill_bytes : int
        Bytes of register spill stores and loads in the code; 0 is what one wants.
    local_bytes : int
        Stack frame per thread, in local memory, which lives in HBM.
    shared_bytes : int
        Static shared memory per thread block.
    float64_instructions : int
        PTX instructions on float64.
    """

    ptx: str
    cc: tuple
    registers: int
    spill_bytes: int
    local_bytes: int
    shared_bytes: int
    float64_instructions: int


def compiler_available():
    """True where libNVVM and NVRTC can be loaded, so that kernels compile to PTX."""
    return importlib.util.find_spec("cuda.bindings") is not None and _nvvm_loads()


@functools.cache
def _nvvm_loads():
    from cuda.bindings import nvrtc

    try:
        from numba.cuda.cudadrv.nvvm import NVVM

        NVVM()
        nvrtc.nvrtcVersion()
    except Exception:  # each library raises its own kind where a file is missing
        return False
    return True


def signature_of(args):
    """Numba types of launch arguments, as the CUDA dispatcher would infer them.

    Parameters
    ----------
    args : sequence of NumPy arrays, NumPy or Python scalars, or Numba types
        Numba types pass through, so that a signature may be written by hand.

    Returns
    -------
    tuple of numba types
    """
    return tuple(_type_of(arg) for arg in args)


def _type_of(arg):
    if isinstance(arg, types.Type):
        return arg
    if isinstance(arg, np.ndarray):
        layout = "C" if arg.flags.c_contiguous else "F" if arg.flags.f_contiguous else "A"
        return types.Array(
            from_dtype(arg.dtype), arg.ndim, layout, readonly=not arg.flags.writeable
        )
    if isinstance(arg, np.generic):
        return from_dtype(arg.dtype)
    for python, numba in ((bool, types.boolean), (int, types.int64), (float, types.float64)):
        if isinstance(arg, python):
            return numba
    raise TypeError(f"args must be arrays, scalars or Numba types, got {type(arg).__name__}")


def compile_ptx(kernel, args, *, cc=(8, 0)):
    """PTX of a kernel for these arguments.

    Parameters
    ----------
    kernel : function decorated with ``@cuda.jit``
    args : sequence
        As for `signature_of`.
    cc : tuple, default=(8, 0)

    Returns
    -------
    str

    Raises
    ------
    CompilerMissingError
        NVVM or NVRTC is not installed.
    numba.core.errors.TypingError
        The kernel uses what Numba cannot compile; the message shows the line.
    """
    if not compiler_available():
        raise CompilerMissingError(
            'compiling needs NVVM and NVRTC: pip install -e ".[compiler]" (no GPU needed)'
        )
    options = {
        name: kernel.targetoptions[name]
        for name in ("fastmath", "launch_bounds")
        if kernel.targetoptions.get(name)
    }
    # Device functions ask the current device for its capability: answer for it.
    device = mock.Mock(compute_capability=cc)
    with contextlib.ExitStack() as patches:
        patches.enter_context(
            mock.patch("numba.cuda.dispatcher.get_current_device", return_value=device)
        )
        ptx, _ = cuda.compile(
            kernel.py_func,
            signature_of(args),
            cc=cc,
            device=False,
            abi="numba",
            output="ptx",
            **options,
        )
    return ptx


def compile_kernel(kernel, args, *, cc=(8, 0)):
    """Compile a kernel to the machine code of one GPU generation and report on it.

    Parameters
    ----------
    kernel : function decorated with ``@cuda.jit``
    args : sequence of arrays, scalars or Numba types
        What the kernel would be launched with.
    cc : tuple, default=(8, 0)

    Returns
    -------
    MachineCode

    Raises
    ------
    CompilerMissingError
        NVVM, NVRTC or ptxas is not installed.
    numba.core.errors.TypingError
        The kernel uses what Numba cannot compile.
    """
    ptx = compile_ptx(kernel, args, cc=cc)
    report = _ptxas(ptx, cc)

    def number(pattern):
        return sum(int(n) for n in re.findall(pattern, report))

    return MachineCode(
        ptx=ptx,
        cc=cc,
        registers=number(r"Used (\d+) registers"),
        spill_bytes=number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
        local_bytes=number(r"(\d+) bytes stack frame"),
        shared_bytes=number(r"(\d+) bytes smem"),
        float64_instructions=len(re.findall(r"^\s*[^/\n]*\.f64\s", ptx, re.MULTILINE)),
    )


def gpu_ready(kernel, args, *, to_machine_code=False):
    """Raise where a kernel that runs on the CPU engine would not compile for a GPU.

    Does nothing where the compiler is not installed: the check is then left to a machine that
    has it.

    Parameters
    ----------
    kernel : function decorated with ``@cuda.jit``
    args : sequence
        What the kernel is launched with.
    to_machine_code : bool, default=False
        Go on to machine code for every one of `TARGETS`, without spills or local memory.

    Raises
    ------
    numba.core.errors.TypingError
        With Numba's reason and the line.
    AssertionError
        The kernel compiles, but computes in float64 although no argument is float64, or its
        machine code spills.
    """
    if not compiler_available():
        return
    ptx = compile_ptx(kernel, args)
    wants_float64 = any("float64" in str(t) for t in signature_of(args))
    lines = [line.strip() for line in ptx.splitlines() if re.search(r"\.f64\s", line)]
    assert wants_float64 or not lines, (
        f"{kernel.py_func.__name__} computes in float64 in {len(lines)} instructions "
        f"(the first: {lines[0]}): a bare literal such as 0.0 is float64 to Numba; "
        "write float32(0.0). On a GPU float64 is up to 64 times slower"
    )
    for cc in TARGETS if to_machine_code else ():
        code = compile_kernel(kernel, args, cc=cc)
        assert not code.spill_bytes + code.local_bytes, (
            f"{kernel.py_func.__name__} for {cc} spills {code.spill_bytes} bytes of registers and "
            f"keeps {code.local_bytes} bytes of arrays in local memory, which lives in HBM"
        )


@functools.cache
def _ptxas_path():
    try:
        from cuda.pathfinder import find_nvidia_binary_utility

        # ptxas lies beside nvcc in the wheel, in conda and in a CUDA toolkit
        nvcc = find_nvidia_binary_utility("nvcc")
    except ImportError:
        nvcc = None
    beside = Path(nvcc).with_name("ptxas") if nvcc else None
    found = beside if beside and beside.exists() else shutil.which("ptxas")
    if found is None:
        raise CompilerMissingError('machine code needs ptxas: pip install -e ".[dev]"')
    return str(found)


def _ptxas(ptx, cc):
    arch = "sm_" + "".join(str(part) for part in cc)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx)
        run = subprocess.run(
            [
                _ptxas_path(),
                "-v",
                f"-arch={arch}",
                str(source),
                "-o",
                str(source.with_suffix(".o")),
            ],
            capture_output=True,
            text=True,
        )
    if run.returncode:
        raise RuntimeError(f"ptxas refused the kernel for {arch}: {run.stderr.strip()}")
    return run.stderr
