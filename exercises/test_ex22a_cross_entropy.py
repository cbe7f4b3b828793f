"""Grader of ex22a: the cross-entropy and its gradient in one kernel, against float64."""

import numpy as np
import pytest

from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.elements import expect_neighbours
from fa_numba.workbook.graders.kernels import expect_at_most, launched
from fa_numba.workbook.graders.meter import expect_chip_memory
from fa_numba.workbook.graders.training import expect

NUM_THREADS = 64
SIZES = [(1, 2), (3, 5), (7, 103), (2, 650), (300, 3)]
NEIGHBOURS = "Thread tx has the columns tx, tx + NUM_THREADS, ..."


def case(rows, vocabulary, *, scale=3.0, seed=0):
    rng = np.random.default_rng(seed)
    logits = np.float32(scale) * rng.standard_normal((rows, vocabulary), np.float32)
    return logits, rng.integers(0, vocabulary, rows, dtype=np.int32)


def run(exercise, logits, targets):
    outputs = {"loss": np.full(len(logits), np.nan, np.float32)}
    outputs["dlogits"] = np.full_like(logits, np.nan)
    given = {"logits": logits, "targets": targets, **outputs}
    return launched(exercise.kernel, len(logits), NUM_THREADS, tuple(outputs), **given)


def answers(logits, targets, dtype=np.float64):
    """Losses and gradient, in `dtype`."""
    x = logits.astype(dtype)
    shifted = x - x.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    y = (targets[:, None] == np.arange(logits.shape[1])).astype(dtype)
    return -(log_p * y).sum(axis=1), (np.exp(log_p) - y) / dtype(len(x))


def check(exercise, logits, targets, of):
    got, _ = run(exercise, logits, targets)
    want, plain = answers(logits, targets), answers(logits, targets, np.float32)
    rows, n = logits.shape
    y = targets[:, None] == np.arange(n)
    with np.errstate(all="ignore"):
        overflown = -np.log(np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True))
        capped = -np.log(np.exp(-want[0]).astype(np.float32))
    losses = [
        ("That is the mean loss of the row: the caller divides by rows.", want[0] / rows),
        ("That is in bits: math.log is in nats.", want[0] / np.log(2)),
        ("The sign is the other one: the loss is -log p.", -want[0]),
        ("The score of the target is missing.", want[0] - below_maximum(logits, targets)),
        ("exp has overflowed: subtract the row's maximum.", np.where(y, overflown, 0).sum(axis=1)),
        ("The loss is a log of p, and p of this target is 0 in float32.", capped),
    ]
    expect("loss", got["loss"], want[0], plain[0], of=of, mistakes=losses)
    gradients = [
        ("The gradient is that of the sum over the rows: divide by their number.", want[1] * rows),
        ("The 1 of the target is missing: p - y.", want[1] + y / rows),
        ("The sign is the other one: p - y.", -want[1]),
        ("The gradient is divided by rows and columns: rows alone.", want[1] / n),
    ]
    expect("dlogits", got["dlogits"], want[1], plain[1], of=of, mistakes=gradients)


def below_maximum(logits, targets):
    """maximum - score of the target, of each row."""
    return logits.max(axis=1) - logits[np.arange(len(targets)), targets].astype(np.float64)


@pytest.mark.parametrize("rows, vocabulary", SIZES)
def test_random(exercise, rows, vocabulary):
    """loss and dlogits of random scores, any number of columns"""
    check(exercise, *case(rows, vocabulary), f"logits of {rows} x {vocabulary}")


@pytest.mark.parametrize("shift", [1e4, -1e4])
def test_large(exercise, shift):
    """scores of 1e4 and -1e4: no exp overflows"""
    logits, targets = case(6, 9, seed=1)
    check(exercise, logits + np.float32(shift), targets, f"all scores near {shift:g}")


def test_unlikely_target(exercise):
    """a target whose p is 0 in float32 has a finite loss, and the right one"""
    logits, targets = np.zeros((2, 4), np.float32), np.array([1, 3], np.int32)
    logits[0, 3] = 500  # in the last column
    check(exercise, logits, targets, "a score 500 below the maximum")


def test_knows_nothing(exercise):
    """equal scores: the loss is log(vocabulary)"""
    got, _ = run(exercise, np.zeros((5, 103), np.float32), np.arange(5, dtype=np.int32))
    loss = got["loss"][0]
    assert abs(loss - np.log(103)) <= 1e-5, f"log(103) is {np.log(103):.5f}, got {loss:.5f}"


def test_slope(exercise):
    """dlogits is the slope of the mean loss"""
    logits, targets = case(3, 4, seed=2)
    dlogits = run(exercise, logits, targets)[0]["dlogits"]
    for at in np.ndindex(logits.shape):
        moved = logits.astype(np.float64)
        moved[at] += 1e-5
        up = answers(moved, targets)[0].mean()
        moved[at] -= 2e-5
        slope = (up - answers(moved, targets)[0].mean()) / 2e-5
        assert abs(dlogits[at] - slope) <= 1e-5, (
            f"dlogits{list(at)}: the loss changes by {slope:.6f} per unit, got {dlogits[at]:.6f}"
        )


def test_traffic(exercise):
    """a logit is loaded at most three times, a gradient stored once, by neighbouring threads"""
    logits, targets = case(2, 640)
    _, trace = run(exercise, logits, targets)
    expect_at_most(
        trace,
        logits_loads=(3 * logits.size + 2 * NUM_THREADS, "three for each, and the target's"),
        dlogits_loads=(0, "dlogits is only written"),
        dlogits_stores=(logits.size, "one for each"),
        loss_stores=(2, "one thread stores the loss of a row"),
        targets_loads=(2 * NUM_THREADS, "one for each thread"),
    )
    expect_neighbours(trace, ["dlogits"], NEIGHBOURS)
    requests = trace.arrays["logits"].load_sectors
    assert requests <= 3 * logits.size // 8 + 4 * 2, (
        f"640 columns are 80 sectors of 32 bytes, three times for each row; the kernel touches "
        f"{requests} sectors. {NEIGHBOURS}"
    )
    allowed = "part has a number for each thread, and a thread keeps its own in registers"
    expect_chip_memory(trace, shared=4 * NUM_THREADS, allowed=allowed)


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32 throughout"""
    logits, targets = case(2, 9)
    gpu_ready(exercise.kernel, (logits, targets, np.zeros(2, np.float32), np.zeros_like(logits)))
