"""simt run script.py; simt trace script.py:kernel; simt prove file.py:kernel."""

import argparse
import runpy
import sys
from contextlib import nullcontext
from pathlib import Path

from .errors import KernelError
from .hook import enable
from .launch import tracing
from .options import options
from .proof import prove


def main(arguments=None):
    """Run a program whose CUDA kernels run on the CPU, checked; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="simt", description="Run a program's Numba CUDA kernels on the CPU, and check them."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run a program; the first error in a kernel ends it")
    trace = commands.add_parser(
        "trace", help="run a program, and print what each launch loaded, stored and raced for"
    )
    run.add_argument("script", help="a Python file")
    trace.add_argument("script", help="a Python file, or file.py:kernel for this kernel alone")
    for command in run, trace:
        command.add_argument("--device", help="the GPU to be, as T4 or H100")
        command.add_argument("arguments", nargs=argparse.REMAINDER, help="the program's own")
    proof = commands.add_parser(
        "prove", help="races and wrong indices at all sizes: status 0 proven, 1 refuted, 2 open"
    )
    proof.add_argument("script", help="file.py:kernel, or file.py:make_kernel(8)")
    proof.add_argument("--block", required=True, help="threads, as 128 or 8,8")
    proof.add_argument("--grid", help='blocks, as "(n + 127) // 128"; left out, any')
    proof.add_argument("--where", action="append", default=[], help='a fact, as "n %% 32 == 0"')
    proof.add_argument("--arguments", nargs="*", default=[], help='"float32[n]" n; left out, any')
    given = parser.parse_args(arguments)
    file, kernel = given.script, None
    if given.command != "run" and not Path(file).exists():
        file, _, kernel = file.rpartition(":")
    if not Path(file).is_file():
        parser.error(f"there is no file {file or given.script!r}")
    try:
        device = getattr(given, "device", None)
        options(wrap=True, **({"device": device} if device else {}))
    except KernelError as error:
        parser.error(error.message)
    enable(as_gpu=True)
    if given.command == "prove":
        return prove_kernel(parser, given, file, kernel)
    sys.argv = [file, *given.arguments]
    sys.path.insert(0, str(Path(file).resolve().parent))
    with tracing() if given.command == "trace" else nullcontext() as traces:
        try:
            runpy.run_path(file, run_name="__main__")
            status = 0
        except KernelError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            status = 1
        finally:  # also of a program that fails because of what a race did
            found = traces is None or show(traces, kernel, file)
    return status or int(not found)


def prove_kernel(parser, given, file, kernel):
    """Print the verdict on a kernel of a file; return the exit status."""
    sys.path.insert(0, str(Path(file).resolve().parent))
    world = runpy.run_path(file)  # its `if __name__ == "__main__"` does not run
    arguments = [int(a) if a.lstrip("-").isdigit() else a for a in given.arguments]
    try:
        found = eval(kernel or "None", world)  # a name, or the call of a factory
        verdict = prove(found, given.grid, given.block, *arguments, where=given.where)
    except (NameError, AttributeError, TypeError, ValueError, KernelError) as error:
        parser.error(str(error))
    print(verdict)
    return ["proven", "refuted", "undecided"].index(verdict.status)


def show(traces, kernel, file):
    """Print the traces of a kernel, or of all; tell whether there are any, and nothing is wrong."""
    shown = [t for t in traces if kernel in (None, t.kernel)]
    for t in shown:
        print(t, end="\n\n")
    if not shown:
        names = ", ".join(sorted({t.kernel for t in traces})) or "no kernel"
        what = "no kernel" if kernel is None else f"'{kernel}'"
        print(f"{what} was not launched; {file} launched {names}", file=sys.stderr)
    return bool(shown) and not any(t.races or t.uninitialised for t in shown)
