"""Milliseconds of kernels on the GPU that is here, in the largest launch that their grader traces.

``python -m fa_numba.workbook.gpu_times FOLDER ex02b ...`` prints them as JSON. It grades FOLDER's
files and our solutions in its own process, which keeps of each the traced launch with the most
bytes of arrays; launches it on the GPU; and compares the arrays with those of the CPU engine.
`measure` has several such processes work at a time; one of them at a time uses the GPU to measure.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np

from fa_numba.runtime import arrays
from fa_numba.workbook import own
from fa_numba.workbook.catalog import Exercise, find_one
from fa_numba.workbook.grading.answering import Worker

LARGEST_DIFFERENCE = 1e-2  # of the largest number of an array: e4m3 may round to the other side
MOST_SECONDS = 120, 20  # of all exercises, and of each: a kernel may hang
IN_PROCESS = {"FA_NUMBA_GRADE_IN_PROCESS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


@dataclass
class Launch:
    """A launch that a grader has traced, with its arguments before and after it on the engine."""

    kernel: object
    grid: tuple
    block: tuple
    before: list
    after: list
    shared_bytes: int

    @property
    def num_bytes(self) -> int:
        return sum(x.nbytes for x in self.before if isinstance(x, np.ndarray))

    def on_gpu(self):
        """The launch as a function without arguments, compiled.

        Raises
        ------
        ValueError
            The arrays are not those of the engine afterwards.
        """
        import cupy

        args = [
            cupy.asarray(np.ascontiguousarray(x)) if isinstance(x, np.ndarray) else x
            for x in self.before
        ]
        call = partial(
            arrays.launch, self.kernel, self.grid, self.block, *args, shared_bytes=self.shared_bytes
        )
        call()
        for got, want in zip(args, self.after, strict=True):
            if isinstance(want, np.ndarray) and not same(cupy.asnumpy(got), want):
                raise ValueError("its arrays on this GPU are not those of the CPU engine")
        return call


def same(got: np.ndarray, want: np.ndarray) -> bool:
    """Whether two arrays agree: floats nearly, other numbers exactly."""
    if want.dtype.kind != "f":
        return np.array_equal(got, want)
    most = np.abs(want[np.isfinite(want)], dtype=np.float64).max(initial=0.0)
    return np.allclose(got, want, rtol=0, atol=LARGEST_DIFFERENCE * most, equal_nan=True)


def can_be_timed(exercise: Exercise) -> bool:
    """Whether a GPU runs the kernel: that of a model, which the engine alone runs, it does not."""
    return "gpu_ready" in exercise.grader.read_text(encoding="utf-8")


def measure(folder: Path, exercises: list[Exercise]) -> dict[str, tuple[float, float] | str]:
    """Milliseconds of the file in `folder` and of our solution by exercise, or why there are none.

    Without a GPU or our solutions nothing is measured: the result is empty.
    """
    wanted = [e for e in exercises if can_be_timed(e) and e.solution.is_file()]
    if not (wanted and own.has_cupy_and_gpu()):
        return {}
    number = min(len(wanted), os.cpu_count() or 1)
    shares = [wanted[i::number] for i in range(number)]
    running = []
    with tempfile.TemporaryDirectory() as place:
        for share in shares:
            names = [e.short for e in share]
            command = [sys.executable, "-m", __name__, str(folder), *names, "--lock", place]
            running.append(
                subprocess.Popen(
                    command, cwd=share[0].root, stdout=subprocess.PIPE, stderr=subprocess.PIPE
                )
            )
        found = {}
        for share, process in zip(shares, running, strict=True):
            try:
                seconds = MOST_SECONDS[0] + MOST_SECONDS[1] * len(wanted)
                out, said = process.communicate(timeout=seconds)
                found |= json.loads(out)
            except subprocess.TimeoutExpired:
                process.kill()
                found |= {e.short: f"no result after {seconds} s" for e in share}
            except ValueError:  # no JSON
                found |= {e.short: said.decode().strip()[-300:] for e in share}
    return {name: tuple(x) if isinstance(x, list) else x for name, x in found.items()}


def largest_launches(exercises: list[Exercise], folder: Path) -> dict[str, Launch]:
    """The largest traced launch of each exercise, by its name, with the kernels of `folder`."""
    import pytest

    kept, trace = {}, Worker.launch_trace

    def launch_trace(worker, kernel, grid, block, *args, shared_bytes=0, **options):
        copied = [x.copy() if isinstance(x, np.ndarray) else x for x in args]
        made = trace(worker, kernel, grid, block, *args, shared_bytes=shared_bytes, **options)
        launch = Launch(kernel, made.grid, made.block, copied, [], shared_bytes)
        name = Path(worker.path).stem
        if name not in kept or launch.num_bytes > kept[name].num_bytes:
            launch.after = [x.copy() if isinstance(x, np.ndarray) else x for x in args]
            kept[name] = launch
        return made

    os.environ |= IN_PROCESS
    # A folder by its path: what "exercises" grades would be kept as the learner's progress.
    options = f"--impl={folder}", "--capture=sys", "-p", "no:cacheprovider", "-q"
    with (
        mock.patch.object(Worker, "launch_trace", launch_trace),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        pytest.main([*(str(e.grader) for e in exercises), *options])
    return kept


@contextlib.contextmanager
def alone(place: str | None):
    """Keep the other processes of `measure` from the GPU."""
    if place is None:
        yield
        return
    from fcntl import LOCK_EX, flock

    folder = os.open(place, os.O_RDONLY)
    try:
        flock(folder, LOCK_EX)
        yield
    finally:
        os.close(folder)  # and with it the lock


def main(arguments: list[str]) -> None:
    """Print the times of some exercises as JSON."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path, help="of the files to measure")
    parser.add_argument("names", nargs="+", help="of exercises; those without a time are left out")
    parser.add_argument("--lock", help="a folder: who has its lock may measure")
    options = parser.parse_args(arguments)
    exercises = [e for e in map(find_one, options.names) if can_be_timed(e)]
    if not exercises:
        return print("{}")
    folder, ours = options.folder.resolve(), exercises[0].solution.parent.resolve()
    both = [largest_launches(exercises, folder)]
    both.append(both[0] if folder == ours else largest_launches(exercises, ours))
    found = {}
    for e in exercises:
        try:
            if any(e.name not in launches for launches in both):
                raise LookupError("its checks have traced no launch")
            calls = [launches[e.name].on_gpu() for launches in both]
            with alone(options.lock):
                found[e.short] = [own.gpu_ms(call) for call in calls]
        except Exception as error:  # the others are worth having
            found[e.short] = f"{type(error).__name__}: {error}"[:300]
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
