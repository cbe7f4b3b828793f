"""Grader of ex22b: AdamW, against float64."""

import numpy as np
import pytest

from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.elements import expect_neighbours
from fa_numba.workbook.graders.kernels import launched
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_traffic
from fa_numba.workbook.graders.training import expect

RATE, THREADS = 0.01, 64
NAMES = "weights", "averages", "squares"
WEIGHTS_MISTAKES = {
    "There is no correction: c1 and c2 are missing.": {"c1": False, "c2": False},
    "averages is not divided by c1.": {"c1": False},
    "squares is not divided by c2.": {"c2": False},
    "The decay is missing.": {"decay": 0.0},
    "The decay is not multiplied by rate.": {"decay": 1 / RATE},
    "The decay has the wrong sign: it makes weights smaller.": {"decay": -1.0},
    "The step goes uphill: weights -= rate * ...": {"sign": -1},
    "The square root is missing.": {"root": False},
}


def by_formula(state, grads, t, dtype=np.float64, *, c1=True, c2=True, decay=1.0, sign=1,
               root=True):  # fmt: skip
    """weights, averages and squares after a step; the options are usual mistakes."""
    w, m, s = (x.astype(dtype) for x in state)
    g, b1, b2 = grads.astype(dtype), dtype(0.9), dtype(0.99)
    m, s = b1 * m + (1 - b1) * g, b2 * s + (1 - b2) * g * g
    with np.errstate(all="ignore"):
        m_hat = m / (1 - b1**t) if c1 else m
        s_hat = s / (1 - b2**t) if c2 else s
        quotient = m_hat / ((np.sqrt(s_hat) if root else s_hat) + dtype(1e-8))
    return w - dtype(RATE) * (sign * quotient + dtype(0.1 * decay) * w), m, s


def first_state(number=6, seed=0):
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal(number, np.float32)
    return weights, np.zeros(number, np.float32), np.zeros(number, np.float32)


def compare(state, want, plain, of, mistakes=()):
    for i in (1, 2, 0):  # the averages first: the weights follow from them
        of_this = [(sentence, wrong[i]) for sentence, wrong in mistakes]
        expect(NAMES[i], state[i], want[i], plain[i], of=of, mistakes=of_this)


def run_step(exercise, state, grads, t):
    """A step of the learner's, in place; returns the trace."""
    c1, c2 = expect_corrections(exercise, t)
    given = dict(zip(NAMES, state, strict=True)) | {"grads": grads}
    scalars = {"c1": np.float32(c1), "c2": np.float32(c2), "rate": np.float32(RATE)}
    grid = -(-len(grads) // THREADS)
    got, trace = launched(exercise.kernel, grid, THREADS, NAMES, **given, **scalars)
    for array, name in zip(state, NAMES, strict=True):
        array[:] = got[name]
    return trace


def expect_corrections(exercise, t):
    """c1 and c2 of step t, right ones."""
    got = exercise.corrections(t)
    assert isinstance(got, tuple | list) and len(got) == 2, (
        f"corrections must return (c1, c2), got {got!r:.40}"
    )
    for name, c, beta in zip(("c1", "c2"), got, (0.9, 0.99), strict=True):
        want = 1 - beta**t
        near = {
            "It is one step behind: t counts from 1.": 1 - beta ** (t - 1),
            "It is one step ahead: t counts from 1.": 1 - beta ** (t + 1),
            "That is the share that comes from the 0: the other one is meant.": beta**t,
        }
        causes = [said for said, wrong in near.items() if abs(c - wrong) <= 1e-9]
        if not abs(c - want) <= 1e-9:
            raise Wrong(f"step {t}: {name} must be {want:.6g}, got {c:.6g}. {''.join(causes[:1])}",
                        causes=causes, where=name)  # fmt: skip
    return got


@pytest.mark.parametrize("t", [1, 2, 7, 300])
def test_corrections(exercise, t):
    """corrections of the first steps and of late ones"""
    expect_corrections(exercise, t)


@pytest.mark.parametrize("t", [1, 2, 3, 100, 300])
def test_one_step(exercise, t):
    """one step, at the beginning and later"""
    rng = np.random.default_rng(t)
    state = first_state(seed=t)
    if t > 1:
        state[1][:] = 0.3 * rng.standard_normal(6, np.float32)
        state[2][:] = rng.random(6, np.float32)
    grads = rng.standard_normal(6, np.float32)
    want, plain = (by_formula(state, grads, t, d) for d in (np.float64, np.float32))
    mistakes = [(name, by_formula(state, grads, t, **o)) for name, o in WEIGHTS_MISTAKES.items()]
    before = tuple(x.copy() for x in state)
    swapped = (want[0], before[1] * 0.1 + 0.9 * grads, before[2] * 0.01 + 0.99 * grads**2)
    mistakes.append(("beta and 1 - beta are exchanged.", swapped))
    inside = by_formula(before, grads + np.float32(0.1) * before[0], t, decay=0.0)
    mistakes.append(("The decay is part of the gradient: it stands beside the quotient.", inside))
    c1, c2 = 1 - 0.9**t, 1 - 0.99**t
    corrected = want[0], want[1] / c1, want[2] / c2
    mistakes.append(("The array is as it was: change it in place.", before))
    mistakes.append(("The correction is stored: it belongs to this step's quotient.", corrected))
    run_step(exercise, state, grads, t)
    compare(state, want, plain, f"t = {t}", mistakes)


def test_twenty_steps(exercise):
    """twenty steps of 650 weights, in eleven thread blocks"""
    state, rng = first_state(650, seed=5), np.random.default_rng(6)
    want, plain = state, state
    state = tuple(x.copy() for x in state)
    for t in range(1, 21):
        grads = rng.standard_normal(650, np.float32)
        want, plain = by_formula(want, grads, t), by_formula(plain, grads, t, np.float32)
        run_step(exercise, state, grads, t)
    compare(state, want, plain, "after 20 steps")


def test_constant_gradients(exercise):
    """constant gradients: each step is one learning rate long, the first ones too"""
    state = tuple(np.zeros(3, np.float32) for _ in NAMES)
    grads = np.array([1e-3, -2.0, 50.0], np.float32)
    for t in range(1, 6):
        before = state[0].copy()
        run_step(exercise, state, grads, t)
        moved = state[0] - before * np.float32(1 - 0.1 * RATE)
        assert np.allclose(moved, -RATE * np.sign(grads), rtol=1e-3), (
            f"t = {t}, gradients 0.001, -2 and 50: the weights must move by {RATE:g} each, got "
            f"{', '.join(f'{x:.4g}' for x in np.abs(moved))}"
        )


def test_no_gradient(exercise):
    """gradients of 0: no NaN, and only the decay moves the weights"""
    state = first_state(seed=7)
    before = state[0].copy()
    run_step(exercise, state, np.zeros(6, np.float32), 1)
    assert np.isfinite(state[0]).all(), "0 / 0: EPSILON is added to the square root"
    assert np.allclose(state[0], before * (1 - 0.1 * RATE), rtol=1e-5), (
        f"weights must shrink by {0.1 * RATE:g} of themselves"
    )


def test_tiny_gradients(exercise):
    """gradients as small as EPSILON: half a step, since EPSILON is added"""
    state = tuple(np.zeros(2, np.float32) for _ in NAMES)
    run_step(exercise, state, np.full(2, 1e-8, np.float32), 1)
    assert np.allclose(state[0], -RATE / 2, rtol=1e-3), (
        f"gradients of 1e-8 beside an EPSILON of 1e-8: the weights must move by {-RATE / 2:g}, got "
        f"{state[0][0]:.4g}"
    )


def test_traffic(exercise):
    """four arrays are loaded once, three are stored once, by neighbouring threads"""
    state = first_state(192, seed=8)
    trace = run_step(exercise, state, np.ones(192, np.float32), 1)
    wanted = {(name, "loads"): (192, "once for each weight") for name in (*NAMES, "grads")}
    wanted |= {(name, "stores"): (192, "once for each weight") for name in NAMES}
    expect_traffic(trace, wanted)
    expect_neighbours(trace, NAMES, "Neighbouring threads have neighbouring weights.")
    expect_chip_memory(trace, allowed="the numbers of a weight are registers")


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32 throughout"""
    one = np.float32(1)
    gpu_ready(exercise.kernel, (*first_state(), np.ones(6, np.float32), one, one, one))
