"""The `fa-numba` command."""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import os
import re
import sys

from fa_numba.runtime import installing


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        """Suggest the command that a mistyped one is nearest to, as Python 3.15 does."""
        choice = r"(argument COMMAND: invalid choice: '(.*)') (\(choose from (.*)\))"
        if known := re.fullmatch(choice, message):
            _, typed, _, commands = known.groups()
            if near := difflib.get_close_matches(typed, re.findall(r"\w+", commands), 1):
                message = f"{known[1]}, maybe you meant {near[0]!r}? {known[3]}"
        super().error(message)


def _parser() -> argparse.ArgumentParser:
    from fa_numba.language_model import command as language_model
    from fa_numba.language_model.server import serve
    from fa_numba.microscope import command as microscope
    from fa_numba.workbook import classroom, handout

    parser = _Parser(
        prog="fa-numba",
        description="The workbook: write attention kernels and have them graded.",
        epilog="Exercises are named ex06b (one) or ex06 (a whole lesson). "
        "`fa-numba COMMAND --help` says more of each.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    def add(name, help, *, description=None, epilog=None, **argument):
        raw = argparse.RawDescriptionHelpFormatter if epilog else argparse.HelpFormatter
        command = commands.add_parser(
            name, help=help, description=description or help, epilog=epilog, formatter_class=raw
        )
        if argument:
            command.add_argument(
                "name", metavar="NAME", help="an exercise, such as ex06b", **argument
            )
        return command

    command = add("init", "make a folder with the lessons and exercises, to work in")
    command.add_argument("folder", nargs="?", default="my-workbook", help="default: my-workbook")
    learn = add("learn", "the lessons in JupyterLab, as copies to work in")
    learn.usage = "fa-numba learn [-h] [NAME] [options of JupyterLab]"
    learn.epilog = "NAME is the lesson to open, such as 06, or an exercise of it; else 00."
    add("update", "bring the folder up to the installed version; no answer is touched")
    add("doctor", "the installed tools, the backend that runs kernels, and the reason")
    add("lessons", "all lessons: minutes, and the kinds of their exercises")
    add("status", "the exercises that you have passed").add_argument(
        "--run", action="store_true", help="grade everything you have started first"
    )
    add("board", "your kernels' counts beside par and the best known, counted anew", nargs="*")
    add("show", "the statement of an exercise", nargs=None)
    for name, help in (
        ("check", "grade exercises or lessons; without a name, all"),
        ("grade", "the same as check; or, for a class, folders of students' files"),
    ):
        command = add(name, help, nargs="*")
        command.add_argument(
            "-v", "--verbose", action="store_true", help="every failure in full, not only the first"
        )
    classroom.add_options(command)
    add("watch", "grade an exercise whenever you save it; without a name, any", nargs="*")
    add("hint", "the next of three hints", nargs=None).add_argument(
        "--tier", type=int, choices=(1, 2, 3), help="this hint, instead of the next"
    )
    for name, help in (
        ("debrief", "the point of an exercise, once yours passes"),
        ("solution", "our solution, once yours passes"),
    ):
        command = add(name, help, nargs=None)
        command.add_argument("--force", action="store_true", help="show it before that")
    command = add("reset", "bring back the untouched stub; keeps your file as a backup", nargs=None)
    command.add_argument("--yes", action="store_true", help="do not ask")
    command.add_argument(
        "--from", dest="start", metavar="EARLIER",
        help="an exercise of yours that has passed, such as ex07d: begin with your code of it",
    )  # fmt: skip
    handout.add_options(add("handout", "a copy of the workbook for a class, without solutions"))
    language_model.add_train_options(
        add("train", "train a small language model on text, by these kernels")
    )
    language_model.add_generate_options(
        add("generate", "continue a text, with the model you trained")
    )
    command = add(
        "serve",
        "answer requests with the model you trained, many at a time",
        description="A web server with OpenAI's completions, and a page that shows its pages.",
        epilog=serve.EPILOG,
    )
    serve.add_options(command)
    add("tour", "run the first lessons' kernels on real text and print one table")
    command = add("ladder", "the steps of lesson 11; with a number, run one beside the one below")
    command.add_argument("rung", nargs="?", type=int, help="a number, such as 4")
    command.add_argument("--head-dim", type=int, default=64, help="64 (default) or 128")
    command = add(
        "trace",
        "a kernel under the microscope: traffic, races, occupancy, machine code",
        description="A kernel's work, counted on the CPU, and its cost on a GPU.",
        epilog=microscope.EPILOG,
    )
    microscope.add_options(command)
    return parser


class Missing(Exception):
    """A package that a command needs is not installed."""


def _need(command, *packages, extra="lessons"):
    """Raise `Missing`, which names the package to install, before an import fails."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pip = "In the checkout: make, or " * installing.IN_CHECKOUT + installing.command(extra)
            raise Missing(
                f"{command} needs the package {package}, which is not installed here. {pip}"
            )


NEEDS = {
    "learn": ["jupyterlab"],
    "lessons": ["rich"],
    "status": ["rich"],
    "board": ["rich", "pytest"],
    "show": ["rich"],
    "check": ["rich", "pytest"],
    "grade": ["rich", "pytest"],
    "watch": ["rich", "pytest"],
    "hint": ["rich"],
    "debrief": ["rich"],
    "solution": ["rich"],
    "reset": ["rich"],
    "serve": ["starlette", "threadpoolctl", "uvicorn"],
    "tour": ["rich", "matplotlib"],
    "ladder": ["rich"],
}


# Commands that a module's `main` runs
MAINS = {
    "init": "workbook.folder",
    "update": "workbook.folder",
    "learn": "workbook.learn",
    "handout": "workbook.handout",
    "doctor": "workbook.doctor",
    "tour": "workbook.tour",
    "serve": "language_model.server.serve",
    "trace": "microscope.command",
}


def _run(options) -> int:
    command = options.command
    extra = "serve" if command == "serve" else "lessons"
    _need(f"fa-numba {command}", *NEEDS.get(command, ()), extra=extra)
    if command in MAINS:
        return importlib.import_module(f"fa_numba.{MAINS[command]}").main(options)
    if command in ("train", "generate"):
        from fa_numba.language_model import command as language_model

        run = language_model.train if command == "train" else language_model.generate_text
        return run(options)

    from fa_numba.workbook import catalog, classroom, grader, stubs

    if command == "grade" and classroom.are_folders(options.name):
        return classroom.main(options)
    code, found = 0, []
    if command in ("check", "grade", "watch", "board"):
        found = [e for n in options.name for e in catalog.find(n)] or catalog.all_exercises()
    if command in ("check", "grade"):
        result = grader.grade_all(found, verbose=options.verbose)
        code = int(not result.passed)
    elif command == "watch":
        from fa_numba.workbook.watch import watch

        watch(found)
        return 0
    elif command == "board":
        from fa_numba.workbook.board import board

        result = board(found)
    elif command == "ladder":
        from fa_numba.workbook import ladder

        result = (
            ladder.listed() if options.rung is None else ladder.run(options.rung, options.head_dim)
        )
    elif command == "lessons":
        from fa_numba.workbook import contents

        result = contents.listed()
    elif command == "status":
        if options.run and (
            mine := [e for e in catalog.all_exercises() if stubs.state(e) == "changed"]
        ):
            grader.grade_all(mine)
        result = grader.status()
    elif command == "show":
        result = grader.show(options.name)
    elif command == "hint":
        result = grader.hint(options.name, options.tier)
    elif command == "debrief":
        result = grader.debrief(options.name, force=options.force)
    elif command == "reset":
        result = grader.reset(options.name, start=options.start, yes=options.yes)
    else:
        result = grader.solution(options.name, force=options.force)

    from rich.console import Console

    Console().print(result)
    return code


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    from fa_numba.language_model import command as language_model
    from fa_numba.language_model.text import Damaged
    from fa_numba.microscope.command import BadRequest
    from fa_numba.workbook import grader
    from fa_numba.workbook.catalog import Refused, UnknownExercise
    from numba_cuda_simulator.errors import KernelError

    expected = (BadRequest, KernelError, Missing, UnknownExercise, FileNotFoundError)
    expected += (language_model.BadRequest, Damaged)
    expected += (Refused, grader.NoSuchHint)
    if hasattr(sys.stdout, "reconfigure"):  # not every encoding of Windows has a check mark
        sys.stdout.reconfigure(errors="replace")
    parser = _parser()
    options, rest = parser.parse_known_args(argv)
    if options.command is None:
        parser.print_help()
        return 0
    if options.command == "learn":
        named = bool(rest) and not rest[0].startswith("-")
        options.name, options.more = (rest[0], rest[1:]) if named else (None, rest)
    elif getattr(options, "arguments", None) is not None and all(
        "=" in x[1:] and x[0] != "-" for x in rest
    ):
        options.arguments += rest  # of `trace`: those that follow an option
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        status = _run(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader has enough: `fa-numba trace ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to flush
        return 141  # as of a program that SIGPIPE ended
    except MemoryError as error:
        said = f": {error}" if str(error) else ""
        print(f"fa-numba: this machine has not enough memory{said}", file=sys.stderr)
        return 2
    except expected as error:
        print(f"fa-numba: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.filename is None:
            raise
        advice = " Work in a folder in which you may write" * isinstance(error, PermissionError)
        print(f"fa-numba: {error.filename}: {error.strerror}.{advice}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    import fa_numba_command  # sees Ctrl-C

    sys.exit(fa_numba_command.main())
