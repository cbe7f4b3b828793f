"""The `fa-numba` command."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys

from fa_numba.runtime import installing


def _parser() -> argparse.ArgumentParser:
    from fa_numba.workbook import classroom, handout

    parser = argparse.ArgumentParser(
        prog="fa-numba",
        description="The workbook: write attention kernels and have them graded.",
        epilog="Exercises are named ex06b (one) or ex06 (a whole lesson). "
        "`fa-numba COMMAND --help` says more of each.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    def add(name, help, **argument):
        command = commands.add_parser(name, help=help, description=help)
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
    add("debrief", "the point of an exercise, once yours passes", nargs=None).add_argument(
        "--force", action="store_true", help="show it before that"
    )
    add("solution", "our solution, once yours passes", nargs=None).add_argument(
        "--force", action="store_true", help="show it before that"
    )
    command = add("reset", "bring back the untouched stub; keeps your file as a backup", nargs=None)
    command.add_argument("--yes", action="store_true", help="do not ask")
    command.add_argument(
        "--from", dest="start", metavar="EARLIER",
        help="an exercise of yours that has passed, such as ex07d: begin with your code of it",
    )  # fmt: skip
    handout.add_options(add("handout", "a copy of the workbook for a class, without solutions"))
    _add_language_model(add)
    _add_serve(commands)
    add("tour", "run the first lessons' kernels on real text and print one table")
    command = add("ladder", "the steps of lesson 11; with a number, run one beside the one below")
    command.add_argument("rung", nargs="?", type=int, help="a number, such as 4")
    command.add_argument("--head-dim", type=int, default=64, help="64 (default) or 128")
    _add_trace(commands)
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


def _add_trace(commands):
    from fa_numba.microscope import command as trace_command

    command = commands.add_parser(
        "trace",
        help="a kernel under the microscope: traffic, races, occupancy, machine code",
        description="A kernel's work, counted on the CPU, and its cost on a GPU.",
        epilog=trace_command.EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    trace_command.add_options(command)


def _add_language_model(add):
    from fa_numba.language_model import command

    command.add_train_options(
        add("train", "train a small language model on text, by these kernels")
    )
    command.add_generate_options(add("generate", "continue a text, with the model you trained"))


def _add_serve(commands):
    from fa_numba.language_model.server import serve

    command = commands.add_parser(
        "serve",
        help="answer requests with the model you trained, many at a time",
        description="A web server with OpenAI's completions, and a page that shows its pages.",
        epilog=serve.EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    serve.add_options(command)


def _run(options) -> int:
    extra = "serve" if options.command == "serve" else "lessons"
    _need(f"fa-numba {options.command}", *NEEDS.get(options.command, ()), extra=extra)
    if options.command in ("init", "update"):
        from fa_numba.workbook import folder

        return folder.main(options)
    if options.command == "learn":
        from fa_numba.workbook import learn

        return learn.main(options.more, options.name)
    if options.command == "handout":
        from fa_numba.workbook import handout

        return handout.main(options)
    if options.command == "grade":
        from fa_numba.workbook import classroom

        if classroom.are_folders(options.name):
            return classroom.main(options)
    if options.command == "doctor":
        from fa_numba.workbook import doctor

        return doctor.main()
    if options.command == "tour":
        from fa_numba.workbook import tour

        return tour.main()
    if options.command in ("train", "generate"):
        from fa_numba.language_model import command

        return {"train": command.train, "generate": command.generate_text}[options.command](options)
    if options.command == "serve":
        from fa_numba.language_model.server import serve

        return serve.main(options)
    if options.command == "trace":
        from fa_numba.microscope import command as trace_command

        return trace_command.main(options)

    from fa_numba.workbook import catalog, grader, stubs

    code, result = 0, None
    if options.command in ("check", "grade"):
        found = [e for n in options.name for e in catalog.find(n)] or catalog.all_exercises()
        result = grader.grade_all(found, verbose=options.verbose)
        code = int(not result.passed)
    elif options.command == "watch":
        from fa_numba.workbook.watch import watch

        watch([e for n in options.name for e in catalog.find(n)] or catalog.all_exercises())
        return 0
    elif options.command == "ladder":
        from fa_numba.workbook import ladder

        result = (
            ladder.listed() if options.rung is None else ladder.run(options.rung, options.head_dim)
        )
    elif options.command == "lessons":
        from fa_numba.workbook import contents

        result = contents.listed()
    elif options.command == "status":
        if options.run and (
            mine := [e for e in catalog.all_exercises() if stubs.state(e) == "changed"]
        ):
            grader.grade_all(mine)
        result = grader.status()
    elif options.command == "board":
        from fa_numba.workbook.board import board

        found = [e for n in options.name for e in catalog.find(n)]
        result = board(found or catalog.all_exercises())
    elif options.command == "show":
        result = grader.show(options.name)
    elif options.command == "hint":
        result = grader.hint(options.name, options.tier)
    elif options.command == "debrief":
        result = grader.debrief(options.name, force=options.force)
    elif options.command == "reset":
        result = grader.reset(options.name, start=options.start, yes=options.yes)
    elif options.command == "solution":
        result = grader.solution(options.name, force=options.force)

    from rich.console import Console

    Console().print(result)
    return code


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    from fa_numba.language_model import command as language_model
    from fa_numba.language_model.text import Damaged
    from fa_numba.microscope.command import BadRequest
    from fa_numba.workbook import classroom, folder, grader
    from fa_numba.workbook.catalog import UnknownExercise
    from numba_cuda_simulator.errors import KernelError

    expected = (BadRequest, KernelError, Missing, UnknownExercise, FileNotFoundError)
    expected += (language_model.BadRequest, Damaged)
    expected += (classroom.Refused, folder.Refused, grader.NoSuchHint)
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
    except KeyboardInterrupt:
        print("fa-numba: stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
