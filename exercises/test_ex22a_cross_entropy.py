"""Grader of ex22a: the cross-entropy and its gradient, against float64."""

import numpy as np
import pytest

from fa_numba.workbook.graders.loops import expect_no_loop
from fa_numba.workbook.graders.training import expect, expect_same

SIZES = [(1, 2), (3, 5), (7, 103), (64, 300)]
CAPPED = "The loss has an end: it is a log of p, and p of this target is 0 in float32."


def case(rows, vocabulary, *, scale=3.0, seed=0):
    rng = np.random.default_rng(seed)
    logits = np.float32(scale) * rng.standard_normal((rows, vocabulary), np.float32)
    return logits, rng.integers(0, vocabulary, rows, dtype=np.int32)


def answers(logits, targets, dtype=np.float64):
    """Loss and gradient, in `dtype`; by lse, so that float32 rounds as scores of 1e4 do."""
    x = logits.astype(dtype)
    m = x.max(axis=1, keepdims=True)
    log_p = x - (m + np.log(np.exp(x - m).sum(axis=1, keepdims=True)))
    y = (targets[:, None] == np.arange(logits.shape[1])).astype(dtype)
    return -(log_p * y).sum() / dtype(len(x)), (np.exp(log_p) - y) / dtype(len(x))


def check(exercise, logits, targets, of):
    got = exercise.cross_entropy(logits, targets)
    assert isinstance(got, tuple | list) and len(got) == 2, (
        f"cross_entropy must return (loss, dlogits), got {got!r:.60}"
    )
    loss, dlogits = got
    want, plain = answers(logits, targets), answers(logits, targets, np.float32)
    rows, n = len(logits), logits.shape[1]
    y = targets[:, None] == np.arange(n)
    columns = "[:, targets] is every target in every row: row i has column targets[i]."
    log_p = np.log(np.maximum(want[1] * rows + y, 1e-300))
    mistakes = [
        ("That is the sum over the rows, not the mean.", want[0] * rows),
        ("That is the mean over the rows and the columns.", want[0] / n),
        ("That is in bits: np.log is in nats.", want[0] / np.log(2)),
        ("The sign is the other one: the loss is -log p.", -want[0]),
        (columns, -log_p[:, targets].mean()),
    ]
    assert np.shape(loss) == (), f"{of}: loss must be one number, got {np.shape(loss)}"
    if np.isinf(loss) or np.isnan(loss):
        mistakes.append(("exp has overflowed, or p of a target is 0.", loss))
    expect("loss", np.float32(loss), want[0], plain[0], of=of, mistakes=mistakes)
    mistakes = [
        ("The gradient is that of the sum over the rows: divide by their number.", want[1] * rows),
        ("The 1 of the target is missing: p - one-hot.", want[1] + y / rows),
        ("The sign is the other one: p - one-hot.", -want[1]),
        ("The gradient is divided by rows and columns: rows alone.", want[1] / n),
        (columns, want[1] + (y - 1.0 * np.isin(np.arange(n), targets)) / rows),
    ]
    expect("dlogits", dlogits, *(x[1] for x in (want, plain)), of=of, mistakes=mistakes)


@pytest.mark.parametrize("rows, vocabulary", SIZES)
def test_random(exercise, rows, vocabulary):
    """loss and dlogits of random scores"""
    check(exercise, *case(rows, vocabulary), f"logits of {rows} x {vocabulary}")


def test_no_loop(exercise):
    """500 rows: no loop over them"""
    logits, targets = case(500, 3)
    check(exercise, logits, targets, "logits of 500 x 3")
    expect_no_loop(exercise.cross_entropy, logits, targets, over="rows")


@pytest.mark.parametrize("shift", [1e4, -1e4])
def test_large(exercise, shift):
    """scores of 1e4 and -1e4: no exp overflows"""
    logits, targets = case(6, 9, seed=1)
    check(exercise, logits + np.float32(shift), targets, f"all scores near {shift:g}")


def test_unlikely_target(exercise):
    """a target whose p is 0 in float32 has a finite loss, and the right one"""
    logits, targets = np.zeros((2, 4), np.float32), np.array([1, 3], np.int32)
    logits[0, 2] = 500
    loss, dlogits = exercise.cross_entropy(logits, targets)
    want, plain = answers(logits, targets), answers(logits, targets, np.float32)
    mistakes = [(CAPPED, loss)] if not loss > 0.99 * want[0] or np.isinf(loss) else []
    expect("loss", np.float32(loss), want[0], plain[0], of="a score 500 below the maximum",
           mistakes=mistakes)  # fmt: skip
    expect("dlogits", dlogits, want[1], plain[1], of="a score 500 below the maximum")


def test_knows_nothing(exercise):
    """equal scores: the loss is log(vocabulary)"""
    loss, _ = exercise.cross_entropy(np.zeros((5, 103), np.float32), np.arange(5, dtype=np.int32))
    assert abs(loss - np.log(103)) <= 1e-5, f"log(103) is {np.log(103):.5f}, got {loss:.5f}"


def test_finite_differences(exercise):
    """dlogits is the slope of the loss"""
    logits, targets = case(3, 4, seed=2)
    _, dlogits = exercise.cross_entropy(logits, targets)
    assert np.shape(dlogits) == logits.shape, f"dlogits must have the shape {logits.shape}"
    for at in np.ndindex(logits.shape):
        moved = logits.astype(np.float64)
        moved[at] += 1e-5
        up = answers(moved, targets)[0]
        moved[at] -= 2e-5
        slope = (up - answers(moved, targets)[0]) / 2e-5
        assert abs(dlogits[at] - slope) <= 1e-5, (
            f"dlogits{list(at)}: the loss changes by {slope:.6f} per unit, got {dlogits[at]:.6f}"
        )


def test_inputs_unchanged(exercise):
    """logits and targets are not changed"""
    logits, targets = case(4, 6)
    before = logits.copy(), targets.copy()
    exercise.cross_entropy(logits, targets)
    expect_same("logits", logits, before[0])
    expect_same("targets", targets, before[1])
