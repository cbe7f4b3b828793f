"""simt run script.py; simt trace script.py:kernel."""

import argparse
import runpy
import sys
from contextlib import nullcontext
from pathlib import Path

from .errors import KernelError
from .hook import enable
from .launch import tracing
from .options import options


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
    given = parser.parse_args(arguments)
    file, kernel = given.script, None
    if given.command == "trace" and not Path(file).exists():
        file, _, kernel = file.rpartition(":")
    if not Path(file).is_file():
        parser.error(f"there is no file {file or given.script!r}")
    try:
        options(wrap=True, **({"device": given.device} if given.device else {}))
    except KernelError as error:
        parser.error(error.message)
    enable(as_gpu=True)
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
