"""Grader of ex22d: rotary embedding in place and its gradient, against float64."""

import numpy as np
import pytest

from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.elements import expect_neighbours
from fa_numba.workbook.graders.kernels import launched
from fa_numba.workbook.graders.meter import expect_chip_memory, expect_traffic
from fa_numba.workbook.graders.training import expect

CONTEXT, NUM_THREADS = 300, 64
ALIASED = {
    "left": "left is read after it was changed: that is what `broken_kernel` computes.",
    "right": "right is read after it was changed.",
}


def table(head_dim, dtype=np.float32):
    angles = np.outer(np.arange(CONTEXT), 100.0 ** (-2 * np.arange(head_dim // 2) / head_dim))
    return np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)


def turned(x, positions, *, back=False, dtype=np.float64, bug="", pairs=False):
    """The rotation by its definition; `pairs`, and `bug` (the half written first), are mistakes."""
    x, half = x.astype(dtype), x.shape[2] // 2
    c, s = (t[positions][:, None] for t in table(x.shape[2], dtype))
    s = -s if back else s
    left, right = (x[:, :, ::2], x[:, :, 1::2]) if pairs else (x[:, :, :half], x[:, :, half:])
    new_left = left * c - right * s
    new_right = right * c + (new_left if bug == "left" else left) * s
    if bug == "right":
        new_left = left * c - new_right * s
    if pairs:
        return np.stack([new_left, new_right], axis=3).reshape(x.shape)
    return np.concatenate([new_left, new_right], axis=2)


def case(rows=10, heads=3, head_dim=6, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, heads, head_dim), np.float32)
    return x, rng.integers(0, CONTEXT, rows, dtype=np.int32)


def run(exercise, x, positions, *, back=False, tables=None):
    """x or dx after a launch of kernel or grad_kernel, and the trace."""
    cos, sin = tables or table(x.shape[2])
    name, kernel = ("dx", exercise.grad_kernel) if back else ("x", exercise.kernel)
    given = {name: x, "positions": positions, "cos": cos, "sin": sin}
    got, trace = launched(kernel, x.shape[:2], NUM_THREADS, (name,), **given)
    return got[name], trace


def check(exercise, x, positions, *, back, of):
    want, plain = (turned(x, positions, back=back, dtype=d) for d in (np.float64, np.float32))
    mistakes = [
        (ALIASED[half], turned(x, positions, back=back, bug=half)) for half in ("left", "right")
    ]
    mistakes += [
        ("A negative position reads the table from its end: no angle is negative there.",
         turned(x, -positions)),
        ("It turns the other way.", turned(x, positions, back=not back)),
        ("The pairs are x[d] and x[d + half], not neighbours.",
         turned(x, positions, back=back, pairs=True)),
        ("The array is as it was: change it in place.", x.copy()),
    ]  # fmt: skip
    got, _ = run(exercise, x, positions, back=back)
    expect("dx" if back else "x", got, want, plain, of=of, mistakes=mistakes)


def test_quarter_turn(exercise):
    """kernel: (1, 0) turned by a quarter is (0, 1)"""
    x, zero = np.array([[[1, 0]]], np.float32), np.zeros((1, 1), np.float32)
    got, _ = run(exercise, x, np.zeros(1, np.int32), tables=(zero, zero + 1))
    got = got.ravel().tolist()
    if not np.allclose(got, [0, 1]):
        causes = [ALIASED["left"] if got == [0, 0] else ALIASED["right"] if got == [-1, 1] else ""]
        said = f"cos 0, sin 1: (1, 0) must become (0, 1), got {got}. {causes[0]}"
        raise Wrong(said.rstrip(), causes=causes)


@pytest.mark.parametrize(
    "rows, heads, head_dim", [(1, 1, 2), (300, 1, 8), (3, 18, 66), (2, 2, 128), (2, 1, 260)]
)
def test_kernel(exercise, rows, heads, head_dim):
    """kernel: the rotation of each position"""
    x, positions = case(rows, heads, head_dim)
    check(exercise, x, positions, back=False, of="kernel")


def test_lengths(exercise):
    """kernel: a rotation keeps lengths"""
    x, positions = case(seed=1)
    before = np.linalg.norm(x, axis=2)
    after = np.linalg.norm(run(exercise, x, positions)[0], axis=2)
    worst = np.unravel_index(np.abs(after - before).argmax(), before.shape)
    assert np.allclose(before, after, rtol=1e-4), (
        f"position {positions[worst[0]]}: a head of length {before[worst]:.4f} has length "
        f"{after[worst]:.4f} after it"
    )


def test_distance_alone(exercise):
    """kernel: a score depends on the distance of query and key alone"""
    rng, scores = np.random.default_rng(2), []
    q, k = rng.standard_normal((2, 8), np.float32)
    for start in range(0, 18, 3):
        x = np.stack([q, k])[:, None].copy()
        x, _ = run(exercise, x, np.array([start + 5, start], np.int32))
        scores.append(float(x[0, 0] @ x[1, 0]))
    assert np.ptp(scores) <= 1e-4, (
        f"distance 5, keys at 0, 3, 6, ...: scores from {min(scores):.4f} to {max(scores):.4f}"
    )


@pytest.mark.parametrize("rows, heads, head_dim", [(1, 1, 2), (10, 3, 6), (2, 2, 130)])
def test_gradient(exercise, rows, heads, head_dim):
    """grad_kernel: turns back"""
    dx, positions = case(rows, heads, head_dim, seed=4)
    check(exercise, dx, positions, back=True, of="grad_kernel")


def test_there_and_back(exercise):
    """grad_kernel after kernel: a rotation's transpose is its inverse"""
    x, positions = case(seed=5)
    there, _ = run(exercise, x, positions)
    back, _ = run(exercise, there, positions, back=True)
    assert np.allclose(back, x, atol=1e-5), f"there and back: off by {np.abs(back - x).max():.3g}"


@pytest.mark.parametrize("back", [False, True], ids=["kernel", "grad_kernel"])
def test_traffic(exercise, back):
    """x is loaded once and stored once, by neighbouring threads, without shared memory"""
    x, positions = case(3, 2, 128, seed=6)
    name = "dx" if back else "x"
    _, trace = run(exercise, x, positions, back=back)
    once = (x.size, "once for each number")
    expect_traffic(trace, {(name, "loads"): once, (name, "stores"): once})
    expect_neighbours(trace, [name], "Neighbouring threads have neighbouring columns.")
    expect_chip_memory(trace, allowed="a pair is two registers")


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32 throughout"""
    for kernel in (exercise.kernel, exercise.grad_kernel):
        gpu_ready(kernel, (*case(), *table(6)))
