"""From kernel to PTX to machine code, on a machine without a GPU.

Numba lowers a kernel to NVVM IR, libNVVM turns that into PTX, and ptxas turns PTX into the machine
code of one GPU generation. Neither library needs a GPU, so a laptop can say how many registers a
kernel takes, whether any spill to memory, which instructions each line became, and whether a
float64 instruction has crept in. Only this module and `probes` touch how numba-cuda compiles.
"""

import contextlib
import functools
import gc
import html
import inspect
import linecache
import re
import subprocess
import tempfile
import warnings
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import numpy as np
from numba import cuda, from_dtype, types

from fa_numba.analysis import cuda_tools, devices, sass
from fa_numba.analysis.cuda_tools import (
    CompilerMissingError,
    assembler_available,
    compiler_available,
    disassembler_available,
)
from fa_numba.runtime import launching

__all__ = [
    "CompilerMissingError", "MachineCode", "TARGETS", "assembler_available", "assemble",
    "compile_for", "compile_kernel", "compile_ptx", "compile_ptx_for", "compile_with_lines",
    "compiler_available", "compute_capability", "disassembler_available", "machine_code",
    "signature_of", "source_line",
]  # fmt: skip

TARGETS = ((7, 5), (8, 0), (9, 0, "a"))  # T4, A100, H100/H200: the supported generations


@dataclass(frozen=True)
class MachineCode:
    """A compiled kernel. Prints as its source, beside the instructions of each line.

    Attributes
    ----------
    name : str
    ptx : str
    cc : tuple
        Compute capability, (major, minor) or (major, minor, "a").
    registers : int
        Registers per thread.
    spill_bytes : int
        Bytes of register spill stores and loads in the code; 0 is best.
    local_bytes : int
        Stack frame per thread, in local memory, which is in HBM.
    shared_bytes : int
        Static shared memory per thread block.
    float64_instructions : int
        PTX instructions on float64.
    file : str
        The kernel's source file.
    cubin : bytes
        The machine code as a GPU loads it.
    report : str
        Output of ptxas. It contains "C75" if wgmma cannot overlap with other work, or if warps
        cannot exchange registers (setmaxnreg).
    """

    name: str
    ptx: str = field(repr=False)
    cc: tuple
    registers: int
    spill_bytes: int
    local_bytes: int
    shared_bytes: int
    float64_instructions: int
    file: str
    first_line: int
    source: tuple[str, ...] = field(repr=False)
    cubin: bytes = field(repr=False)
    report: str = field(repr=False)

    @functools.cached_property
    def instructions(self):
        """Every `sass.Instruction` in order; those of device functions too.

        Raises
        ------
        CompilerMissingError
            nvdisasm is not installed, or does not read it.
        """
        with tempfile.TemporaryDirectory() as folder:
            cubin = Path(folder, "kernel.cubin")
            cubin.write_bytes(self.cubin)
            tool = cuda_tools.nvdisasm()
            run = _run_tool(tool, *cuda_tools.LISTING, str(cubin))
        if run.returncode:
            raise RuntimeError(f"{tool.path} cannot list the kernel: {run.stderr.strip()}")
        return sass.parse(run.stdout, self.file)

    @functools.cached_property
    def counts(self):
        """Instructions by label: ``code.counts["LDS.128"]``, "FFMA", "MUFU.EX2", "CALL div_s64"."""
        return Counter(instruction.label for instruction in self.instructions)

    @functools.cached_property
    def kinds(self):
        """Instructions by kind, one of `sass.KINDS`: ``code.kinds["integer"]``."""
        return Counter(instruction.kind for instruction in self.instructions)

    @functools.cached_property
    def lines(self):
        """For each source line that became instructions, a Counter of their labels.

        The line None has code that the compiler added, such as division.
        """
        lines = {}
        for instruction in self.instructions:
            lines.setdefault(instruction.line, Counter())[instruction.label] += 1
        return lines

    def summary(self):
        """Registers, memory, and the instructions that matter, in a few lines of text."""
        dull = {"integer", "branch"}
        notable = Counter(
            i.label for i in self.instructions if i.kind not in dull or i.mnemonic == "CALL"
        )
        listed = " · ".join(f"{label} {count}" for label, count in notable.most_common())
        shares = ", ".join(f"{count} {kind}" for kind, count in self.kinds.most_common())
        return (
            f"{self.name} for sm_{_arch(self.cc)}: {self.registers} registers, "
            f"{self.shared_bytes} bytes shared, {self.local_bytes} bytes local, "
            f"{self.spill_bytes} bytes spilled\n"
            f"{len(self.instructions)} instructions: {shares}\n{listed}"
        )

    def _rows(self):
        """Kinds that occur, and (line number, source text, count of each kind) per line."""
        kinds = [kind for kind in sass.KINDS if self.kinds[kind]]
        by_line = {}
        for instruction in self.instructions:
            where = instruction.line
            if where is None:
                where = f"({instruction.helper or 'no line'})"
            by_line.setdefault(where, Counter())[instruction.kind] += 1
        last = self.first_line + len(self.source)
        own = range(self.first_line, last)
        rows = [
            (n, text, by_line.get(n, Counter())) for n, text in zip(own, self.source, strict=True)
        ]
        # Device functions of the same file, and instructions without a line.
        numbers = sorted(n for n in by_line if isinstance(n, int) and n not in own)
        others = sorted(n for n in by_line if isinstance(n, str))
        lines = {n: source_line(self.file, n) for n in numbers}
        rows += [(n, lines[n], by_line[n]) for n in numbers]
        rows += [("", name, by_line[name]) for name in others]
        return kinds, rows

    def __str__(self):
        kinds, rows = self._rows()
        heads = ["all", *kinds]
        widths = [max(len(head), 4) for head in heads]
        text = [self.summary(), ""]
        text.append(" ".join(h.rjust(w) for h, w in zip(heads, widths, strict=True)) + "  line")
        for number, source, count in rows:
            cells = [count.total(), *(count[kind] for kind in kinds)]
            shown = " ".join(str(c or "").rjust(w) for c, w in zip(cells, widths, strict=True))
            text.append(f"{shown}  {number!s:>4}  {source}".rstrip())
        return "\n".join(text)

    def _repr_html_(self):
        kinds, rows = self._rows()
        most = max((count.total() for *_, count in rows), default=1)
        head = "".join(f"<th>{name}</th>" for name in ("all", *kinds, "line"))
        body = []
        for number, source, count in rows:
            cells = [count.total(), *(count[kind] for kind in kinds)]
            shade = 0.45 * count.total() / most
            numbers = "".join(f"<td>{c or ''}</td>" for c in cells)
            body.append(
                f'<tr style="background: rgba(230, 120, 0, {shade:.2f})">{numbers}'
                f'<td>{number}</td><td style="text-align: left; white-space: pre">'
                f"<code>{html.escape(source)}</code></td></tr>"
            )
        return (
            f'<pre style="white-space: pre-wrap">{html.escape(self.summary())}</pre>'
            f'<table style="font-size: small"><thead><tr>{head}'
            f'<th style="text-align: left">source</th></tr></thead>'
            f"<tbody>{''.join(body)}</tbody></table>"
        )


def signature_of(args):
    """Numba types of launch arguments, as the CUDA dispatcher would infer them.

    Parameters
    ----------
    args : sequence of NumPy arrays, NumPy or Python scalars, or Numba types; or a signature
        Numba types pass through, so that a signature may be written by hand; so may all of it,
        as ``void(float32[::1], int64)`` or a string of that.

    Returns
    -------
    tuple of numba types
    """
    if isinstance(args, str) or type(args).__name__ == "Signature":
        from numba.core import sigutils

        return tuple(sigutils.normalize_signature(args)[0])
    return tuple(_type_of(arg) for arg in args)


def _type_of(arg):
    if isinstance(arg, types.Type):
        return arg
    if isinstance(arg, np.ndarray):
        layout = "C" if arg.flags.c_contiguous else "F" if arg.flags.f_contiguous else "A"
        # Plain Numba has no bfloat16, numba-cuda has.
        bfloat16 = arg.dtype.name == "bfloat16"
        dtype = cuda.types.bfloat16 if bfloat16 else from_dtype(arg.dtype)
        return types.Array(dtype, arg.ndim, layout, readonly=not arg.flags.writeable)
    if isinstance(arg, np.generic):
        return from_dtype(arg.dtype)
    if isinstance(arg, tuple):
        return types.BaseTuple.from_types([_type_of(part) for part in arg])
    for python, numba in ((bool, types.boolean), (int, types.int64), (float, types.float64)):
        if isinstance(arg, python):
            return numba
    raise TypeError(
        f"args must be arrays, scalars, tuples or Numba types, got {type(arg).__name__}"
    )


def compile_ptx(kernel, args, *, cc=(8, 0), lineinfo=False):
    """PTX of a kernel for these arguments.

    Parameters
    ----------
    kernel : function decorated with ``@cuda.jit``
    args : sequence
        As for `signature_of`.
    cc : tuple, default=(8, 0)
    lineinfo : bool, default=False
        Name the source line of each instruction.

    Returns
    -------
    str

    Raises
    ------
    CompilerMissingError
        NVVM or NVRTC is not installed.
    numba.core.errors.TypingError
        Numba cannot compile the kernel; the message shows the line.
    """
    (ptx,), _ = _compile(kernel, args, (cc,), lineinfo)
    return ptx


def compile_ptx_for(kernel, args, targets=TARGETS):
    """`compile_ptx` for several GPU generations: a list, in little more time than for one."""
    ptxes, _ = _compile(kernel, args, targets)
    return ptxes


def compile_with_lines(kernel, args, *, cc=(8, 0)):
    """PTX with line numbers, and the types that Numba inferred for every variable.

    Returns
    -------
    ptx : str
    results : list
        Numba's compile results of the device functions, as far as they are called, and of the
        kernel, which comes last.
    """
    (ptx,), results = _compile(kernel, args, (cc,), lineinfo=True)
    return ptx, results


def _compile(kernel, args, targets, lineinfo=False):
    """PTX for each target, and Numba's compile results where lines are asked for.

    Numba writes the same NVVM IR for all GPUs from sm_75 on, and takes longer over it than libNVVM
    and ptxas over theirs: it is made once.
    """
    cuda_tools.ptx_version()  # raises where there is no compiler
    from numba.cuda import compiler

    launching.prepare_compiler()
    options = {
        name: kernel.targetoptions[name]
        for name in ("fastmath", "launch_bounds")
        if kernel.targetoptions.get(name)
    }
    with contextlib.ExitStack() as context:
        context.enter_context(_no_garbage_collection())
        context.enter_context(_answer_for(targets[0]))
        results = context.enter_context(_compile_anew()) if lineinfo else []
        library, _ = compiler._compile_pyfunc_with_fixup(
            kernel.py_func,
            signature_of(args),
            cc=targets[0],
            device=False,
            abi="numba",
            lineinfo=lineinfo,
            **options,
        )
        return [library.get_asm_str(cc=cc) for cc in targets], results


@contextlib.contextmanager
def _no_garbage_collection():
    """Numba makes so many objects that Python would look for circles among them 200 times."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _answer_for(cc):
    """Device functions ask the current device for its compute capability: answer for it."""
    device = mock.Mock(compute_capability=cc)
    return mock.patch("numba.cuda.dispatcher.get_current_device", return_value=device)


@contextlib.contextmanager
def _compile_anew():
    """Inside, device functions are compiled again, with line numbers; afterwards all is restored.

    Numba compiles a device function once and keeps the result, without line numbers. The results
    from here have line numbers, and must not be used by a launch.
    """
    from numba.cuda import compiler, debuginfo, dispatcher
    from numba.cuda.descriptor import cuda_target

    kept, results = {}, []
    compile_device, compile_cuda = dispatcher.CUDADispatcher.compile_device, compiler.compile_cuda
    target = cuda_target.target_context

    def compile_device_anew(self, *args, **kwargs):
        if self not in kept:
            kept[self] = self.overloads
            self.overloads = OrderedDict()
        return compile_device(self, *args, **kwargs)

    def compile_and_note(*args, **kwargs):
        results.append(compile_cuda(*args, **{**kwargs, "lineinfo": True}))
        return results[-1]

    with (
        mock.patch.object(dispatcher.CUDADispatcher, "compile_device", compile_device_anew),
        mock.patch.object(dispatcher, "compile_cuda", compile_and_note),
        mock.patch.object(compiler, "compile_cuda", compile_and_note),
        mock.patch.object(target, "cached_internal_func", {}),
        # Lines only: for some kernels libNVVM refuses Numba's debug data of variables.
        mock.patch.object(debuginfo.CUDADIBuilder, "mark_variable", lambda *_, **__: None),
        mock.patch.object(debuginfo.CUDADIBuilder, "update_variable", lambda *_, **__: None),
        warnings.catch_warnings(),
    ):
        # A kernel made by exec: its instructions have line numbers all the same.
        warnings.filterwarnings("ignore", message="Could not find source")
        try:
            yield results
        finally:
            for function, overloads in kept.items():
                function.overloads = overloads
            for result in results:
                with contextlib.suppress(KeyError):  # the kernel itself, and functions that failed
                    target.remove_user_function(result.entry_point)


def compile_kernel(kernel, args, *, cc=(8, 0)):
    """Compile a kernel to the machine code of one GPU generation and report on it.

    Parameters
    ----------
    kernel : function decorated with ``@cuda.jit``
    args : sequence of arrays, scalars or Numba types
        Arguments of a launch.
    cc : tuple, default=(8, 0)

    Returns
    -------
    MachineCode

    Raises
    ------
    CompilerMissingError
        NVVM, NVRTC or ptxas is not installed, or ptxas is too old for NVVM.
    numba.core.errors.TypingError
        Numba cannot compile the kernel.
    """
    (code,) = compile_for(kernel, args, (cc,))
    return code


def compile_for(kernel, args, targets=TARGETS):
    """`compile_kernel` for several GPU generations, in little more time than for one.

    Parameters
    ----------
    kernel, args
        As for `compile_kernel`.
    targets : sequence of tuple, default=TARGETS
        Compute capabilities.

    Returns
    -------
    list of MachineCode
    """
    ptxes = compile_ptx_for(kernel, args, targets)
    return [assemble(kernel, ptx, cc) for ptx, cc in zip(ptxes, targets, strict=True)]


def machine_code(kernel, args, *, device=None):
    """The machine code of a kernel, mapped to its source lines. Needs no GPU.

    Parameters
    ----------
    kernel : function decorated with ``@cuda.jit``
    args : sequence of arrays, scalars or Numba types, or a signature
        Arguments of a launch; see `signature_of`.
    device : str, Device or tuple, default=None
        A GPU's name, as for `devices.device` (None is the GPU in this machine, else the T4), or a
        compute capability such as (8, 0).

    Returns
    -------
    MachineCode

    Raises
    ------
    CompilerMissingError
        NVVM, NVRTC, ptxas or (on reading the instructions) nvdisasm is not installed.
    numba.core.errors.TypingError
        Numba cannot compile the kernel.

    Examples
    --------
    >>> code = machine_code(kernel, (x, y), device="H100")    # doctest: +SKIP
    >>> code.registers, code.counts["LDG.128"]                # doctest: +SKIP
    >>> print(code)                                           # doctest: +SKIP
    """
    cc = compute_capability(device)
    return assemble(kernel, compile_ptx(kernel, args, cc=cc, lineinfo=True), cc)


def compute_capability(device=None):
    """The compute capability of a GPU by name; a tuple is returned as it is.

    From Hopper on it has the suffix "a", which tensor-core instructions such as wgmma need.
    """
    if isinstance(device, tuple):
        return device
    major, minor = devices.device(device).compute_capability
    return (major, minor, "a") if major >= 9 else (major, minor)


def assemble(kernel, ptx, cc):
    """`MachineCode` of a kernel from its PTX."""
    report, cubin = _ptxas(ptx, cc)

    def number(pattern):
        return sum(int(n) for n in re.findall(pattern, report))

    function = kernel.py_func
    try:
        source, first_line = inspect.getsourcelines(function)
    except OSError:  # made by exec: no source to show
        source, first_line = [], function.__code__.co_firstlineno
    return MachineCode(
        name=function.__name__,
        ptx=ptx,
        cc=cc,
        registers=max(map(int, re.findall(r"Used (\d+) registers", report)), default=0),
        spill_bytes=number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
        local_bytes=number(r"(\d+) bytes stack frame"),
        shared_bytes=number(r"(\d+) bytes smem"),
        float64_instructions=len(re.findall(r"^\s*[^/\n]*\.f64\s", ptx, re.MULTILINE)),
        file=function.__code__.co_filename,
        first_line=first_line,
        source=tuple(line.rstrip() for line in source),
        cubin=cubin,
        report=report,
    )


def _run_tool(tool, *arguments):
    return subprocess.run([tool.path, *arguments], capture_output=True, text=True)


def _arch(cc):
    return "".join(str(part) for part in cc)


def _ptxas(ptx, cc):
    """The output of ptxas, and the machine code."""
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        command = ["-v", f"-arch=sm_{_arch(cc)}", str(source), "-o", str(cubin)]
        if "\t.loc\t" in ptx:
            command.append("-lineinfo")
        ptxas = cuda_tools.ptxas()
        run = _run_tool(ptxas, *command)
        if "Unresolved extern function" in run.stderr:
            # float16 arithmetic calls a function that is linked at launch: leave the call open.
            run = _run_tool(ptxas, "-c", *command)
        if run.returncode:
            raise RuntimeError(f"ptxas refused the kernel for sm_{_arch(cc)}: {run.stderr.strip()}")
        return run.stderr, cubin.read_bytes()


def source_line(file, number):
    """Text of a source line, "" where it cannot be found."""
    return linecache.getline(file, number).rstrip()
