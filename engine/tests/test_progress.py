"""A launch that will take long says so, shows how far it is, and can be stopped."""

import _thread
import sys
import threading
import time
import types

import numpy as np
import pytest
from numba import cuda

import numba_cuda_simulator as simt
from numba_cuda_simulator import launch, progress


@cuda.jit
def halve(x, turns):
    i = cuda.grid(1)
    for _ in range(turns):
        x[i] *= 0.5


@cuda.jit
def sum_up(x, out):
    total = 0.0
    for _ in range(10):
        for i in range(len(x)):
            total += x[i]
    out[0] = total


@pytest.fixture
def impatient(monkeypatch):
    """Launches of 0.1 s count as long, and stay in lockstep."""
    monkeypatch.setattr(progress, "LONG", 0.1)
    monkeypatch.setattr(progress, "FIRST_LOOK", 0.02)
    monkeypatch.setattr(progress, "STEP", 0.005)
    monkeypatch.setattr(progress, "REDRAW", 0.02)
    monkeypatch.setattr(launch, "LANES_PER_BATCH", 64)
    with simt.options(compiled="never"):
        yield


def long_launch():
    simt.run(halve, 200, 64, np.ones(200 * 64), 100)


def terminal(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)


def test_short_launches_are_silent(capsys):
    simt.run(halve, 4, 64, np.ones(256), 20)
    assert capsys.readouterr() == ("", "")


def test_many_batches(impatient, capsys):
    """One line, and no bar where nobody looks."""
    long_launch()
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "\r" not in err
    assert "halve with 12,800 threads will take about" in err


@pytest.mark.parametrize("block", [1, 32])
def test_one_batch(block, impatient, capsys):
    """What is done of the outermost loop tells."""
    n = 40_000 if block == 1 else 2_000
    simt.run(sum_up, 1, block, np.ones(n), np.zeros(1))
    assert f"sum_up with {block} threads will take" in capsys.readouterr().err


def test_bar(impatient, capsys, monkeypatch):
    terminal(monkeypatch)
    long_launch()
    lines = capsys.readouterr().err.split("\r")
    bars = [line for line in lines if line.startswith("[")]
    assert len(bars) > 2 and "%, about" in bars[-1]
    done = [line.count("#") for line in bars]
    assert done == sorted(done) and done[-1] > progress.WIDTH // 2
    assert lines[-1] == "" and lines[-2].strip() == ""  # it is gone at the end


def test_the_estimate_is_about_right(impatient, monkeypatch):
    """On a clock that other programs do not move; one of some launches is not disturbed."""
    said, found, clock = [], [], time.process_time
    monkeypatch.setattr(
        progress, "time", types.SimpleNamespace(monotonic=clock, process_time=clock)
    )
    monkeypatch.setattr(progress.Progress, "say", staticmethod(said.append))
    monkeypatch.setattr(progress, "duration", lambda seconds: f"{seconds}")
    while len(found) < 5 and not any(1 / 2 < ratio < 2 for ratio in found):
        start = clock()
        long_launch()
        took = clock() - start
        found.append(float(said.pop().split("about ")[1].split()[0]) / took)
    assert 1 / 2 < found[-1] < 2, found


def test_interrupt(impatient, capsys, monkeypatch):
    """Ctrl-C stops a long launch after little work, and takes the bar away."""
    terminal(monkeypatch)
    pressed = []

    def press():
        end = time.monotonic() + 60
        while "\r" not in sys.stderr.getvalue() and time.monotonic() < end:  # until there is a bar
            time.sleep(0.01)
        pressed.append(time.process_time())
        _thread.interrupt_main()

    threading.Thread(target=press, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        simt.run(halve, 1, 1, np.ones(1), 10**8)
    assert time.process_time() - pressed[0] < 0.5  # 0.1 on a quiet machine
    assert capsys.readouterr().err.endswith(" \r")


def test_a_loop_left_early(impatient):
    """A loop that may be left by break is not watched: its length says nothing."""

    @cuda.jit
    def kernel(x):
        for i in range(100):
            if i == 3:
                break
        for i in range(100):
            x[i] = i

    seen = []
    turns = progress.Progress.turns

    def noted(self, numbers):
        seen.append(self.in_loop)
        return turns(self, numbers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress.Progress, "turns", noted)
        for block in (1, 2):
            simt.run(kernel, 1, block, np.zeros(100), checked=False)
    assert seen == [False] * 2


def test_durations():
    found = map(progress.duration, (75, 150, 9000, 400_000))
    assert ", ".join(found) == "75 seconds, 2 minutes, 2 hours, 5 days"
