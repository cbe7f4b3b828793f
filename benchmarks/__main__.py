"""`python -m benchmarks` asks every question; `python -m benchmarks softmax` asks one.

Results go to benchmarks/results/<question>.json, where the lessons read them, into the pictures of
docs/plots, and into the tables of README.md and docs/.
"""

import importlib.util
import sys
from pathlib import Path

from benchmarks import readme

HERE = Path(__file__).parent
QUESTIONS = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))


def main(names):
    unknown = set(names) - set(QUESTIONS)
    if unknown:
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; there is {', '.join(QUESTIONS)}")
    for name in names or QUESTIONS:
        importlib.import_module(f"benchmarks.bench_{name}").main()
    if importlib.util.find_spec("matplotlib"):
        importlib.import_module("benchmarks.plots").write()
    else:
        print("matplotlib is not installed: docs/plots are as they were")
    readme.write()


if __name__ == "__main__":
    main(sys.argv[1:])
