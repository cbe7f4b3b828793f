"""`python -m benchmarks` asks every question; `python -m benchmarks softmax` asks one.

Results go to benchmarks/results/<question>.json, where the lessons read them, into the pictures of
docs/plots, and into the tables of README.md and docs/. With `--into h100` they go to
benchmarks/results/h100/ and replace none of the others: for a second GPU. With `--seconds 500` no
question, and no part of one that has many, begins after so long; a record's note says what is
missing. On a machine without a GPU only the questions of `ON_A_CPU` are asked.
"""

import argparse
import importlib.util
import sys
import time
from pathlib import Path

from benchmarks import readme, timing
from fa_numba.runtime import arrays

HERE = Path(__file__).parent
QUESTIONS = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))
ON_A_CPU = (
    "cpu drafts engine language_model_cpu ranks same_text serial serving serving_switches_cpu "
    "topk_pages user_masks_cpu"
).split()


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("questions", nargs="*", help=f"default: all of {', '.join(QUESTIONS)}")
    parser.add_argument("--into", metavar="FOLDER", help="folder of benchmarks/results/")
    parser.add_argument("--seconds", type=float, help="after which nothing more is begun")
    given = parser.parse_args(arguments)
    if unknown := set(given.questions) - set(QUESTIONS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there is {', '.join(QUESTIONS)}")
    if given.into:
        if not given.into.isidentifier():
            parser.error(f"--into must be a plain name, such as h100, got {given.into!r}")
        timing.into = given.into
    if given.seconds:
        timing.ends = time.monotonic() + given.seconds
    asked = False
    for name in given.questions or QUESTIONS:
        if name not in ON_A_CPU and not arrays.gpu_available():
            print(f"{name}: needs a GPU")
            continue
        if time.monotonic() >= timing.ends:
            print(f"{name}: not asked, the time is over")
            continue
        importlib.import_module(f"benchmarks.bench_{name}").main()
        asked = True
    if not asked:
        return
    if importlib.util.find_spec("matplotlib"):
        importlib.import_module("benchmarks.plots").write()
    else:
        print("matplotlib is not installed: docs/plots are as they were")
    readme.write()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\ninterrupted: what was saved before stays, and nothing was written by halves")
