"""A training step's functions by the kernels of lesson 22: our solutions in place of theirs."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fa_numba.language_model import rows
from fa_numba.workbook import own_training, passed, progress
from fa_numba.workbook.catalog import find_one

ROOT = Path(__file__).parents[1]


@pytest.fixture
def theirs(monkeypatch):
    """All of lesson 22 has passed, with our solutions."""

    def load(exercise):
        return passed.load(SimpleNamespace(short=exercise.short, stub=exercise.solution))

    monkeypatch.setattr(own_training, "load", load)
    monkeypatch.setattr(progress, "is_passed", lambda exercise: True)
    functions, missing = own_training.own_training()
    assert missing == []
    return functions


def test_nothing_has_passed(monkeypatch):
    monkeypatch.setattr(progress, "is_passed", lambda exercise: False)
    assert own_training.own_training() == ({}, ["ex22a", "ex22b", "ex22c", "ex22d", "ex22e"])
    assert all(find_one(short, ROOT) for short in own_training.OF)


def test_each_is_what_numpy_says(theirs):
    rng = np.random.default_rng(0)
    logits, targets = rng.standard_normal((9, 7), np.float32), np.arange(9, dtype=np.int32) % 7
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    loss, dlogits = theirs["cross_entropy"](logits, targets)
    assert np.isclose(loss, -np.log(p[np.arange(9), targets]).mean())
    assert np.allclose(dlogits, (p - np.eye(7)[targets]) / 9, atol=1e-6)

    dx0, last = rng.standard_normal((2, 9, 4), np.float32)
    got = theirs["embedding_grad"](targets, dx0, dlogits, last)
    assert np.allclose(got, dlogits.T @ last + np.eye(7)[targets].T @ dx0, atol=1e-5)

    weights, zeros = np.ones(70, np.float32), np.zeros((2, 70), np.float32)
    theirs["step"](weights, *zeros, np.full(70, 3, np.float32), 1, 0.01)
    assert np.allclose(weights, 1 - 0.01 * (1 + 0.1))

    x, positions = rng.standard_normal((5, 2, 6), np.float32), np.arange(5, dtype=np.int32)
    angles = rng.standard_normal((5, 3)).astype(np.float32)
    turned, want = x.copy(), x.copy()
    theirs["rotate"](turned, positions, np.cos(angles), np.sin(angles))
    rows.rotate(want, positions, np.cos(angles), np.sin(angles))
    assert np.allclose(turned, want, atol=1e-6)
    theirs["rotate_grad"](turned, positions, np.cos(angles), np.sin(angles))
    assert np.allclose(turned, x, atol=1e-6)
