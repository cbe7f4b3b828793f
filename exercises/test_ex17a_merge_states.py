"""Grader of ex17a: the merger of two partial results."""

import math

import numpy as np
import pytest
from numba import cuda

from fa_numba import simt
from fa_numba.workbook.graders.attention import expect_guard, expect_unchanged, guarded, random_head
from fa_numba.workbook.graders.meter import expect_traffic

INF = math.inf


def weights(exercise, lse_a, lse_b):
    """(w_a, w_b, lse) of many pairs at once, a thread each."""
    merge_weights = exercise.merge_weights

    @cuda.jit
    def kernel(lse_a, lse_b, w_a, w_b, lse):
        i = cuda.grid(1)
        if i < lse.shape[0]:
            w_a[i], w_b[i], lse[i] = merge_weights(lse_a[i], lse_b[i])

    a, b = np.array(lse_a, np.float32), np.array(lse_b, np.float32)
    results = np.full((3, len(a)), np.nan, np.float32)
    simt.run(kernel, -(-len(a) // 32), 32, a, b, *results)
    return results


def merged(exercise, a, b, threads=32):
    """Run the kernel, checked, on outputs with guards around them."""
    (out_a, lse_a), (out_b, lse_b) = a, b
    (out, around_out), (lse, around_lse) = guarded(*out_a.shape), guarded(len(lse_a))
    simt.run(exercise.kernel, len(lse_a), threads, out_a, lse_a, out_b, lse_b, out, lse)
    expect_guard("out", around_out)
    expect_guard("lse", around_lse)
    return out, lse


def random_states(number, num_rows=24, head_dim=20, seed=0):
    """States whose lse are far apart in some rows, equal in others."""
    rng = np.random.default_rng(seed)
    size = np.resize([0.0, 1.0, 20.0, 1e4], num_rows)
    return [
        (
            rng.standard_normal((num_rows, head_dim), np.float32),
            np.float32(np.clip(rng.standard_normal(num_rows) * size, -1e4, 1e4)),
        )
        for _ in range(number)
    ]


def resolution(lse):
    """How far apart two float32 are at this lse: no weight e^(lse_a - lse) is better than that."""
    return np.spacing(np.abs(np.where(np.isfinite(lse), lse, 0)).astype(np.float32))


def expect_equal(got, want, what):
    size = np.abs(want[0]).max(axis=1, initial=1)
    tolerances = (4 * size * resolution(want[1]) + 1e-5 * size)[:, None], 2 * resolution(want[1])
    for name, x, y, tolerance in zip(("out", "lse"), got, want, tolerances, strict=True):
        with np.errstate(invalid="ignore"):
            wrong = np.argwhere(~((x == y) | (np.abs(x - y) <= tolerance + 1e-6)))
        if len(wrong):
            at = tuple(int(i) for i in wrong[0])
            pytest.fail(f"{name}{list(at)} must be {y[at]:.7g}, got {x[at]:.7g}: {what}")


@pytest.mark.parametrize(
    "a, b",
    [(0, 0), (1, -1), (3.5, 3.25), (0, 20), (-80, -81)],
    ids="equal near close far low".split(),
)
def test_weights(exercise, a, b):
    """merge_weights: the weights of the definition, and the log of the sum"""
    (w_a,), (w_b,), (lse,) = weights(exercise, [a], [b])
    total = math.exp(a) + math.exp(b)
    for name, got, want in (
        ("w_a", w_a, math.exp(a) / total),
        ("w_b", w_b, math.exp(b) / total),
        ("lse", lse, math.log(total)),
    ):
        assert abs(got - want) <= 1e-6 * max(1, abs(want)), (
            f"lse_a = {a}, lse_b = {b}: {name} must be {want:.7g}, got {got:.7g}"
        )


def test_weights_sum_to_one(exercise):
    """merge_weights: the two weights sum to 1"""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 200)) * 10
    w_a, w_b, _ = weights(exercise, a, b)
    i = int(np.argmax(np.abs(w_a + w_b - 1)))
    assert abs(w_a[i] + w_b[i] - 1) <= 1e-6, (
        f"lse_a = {a[i]:.4g}, lse_b = {b[i]:.4g}: w_a + w_b = {w_a[i] + w_b[i]:.7g}, not 1: "
        "divide both by the sum of the two"
    )


@pytest.mark.parametrize("a, b", [(1e4, 9999), (1e4, -1e4), (-1e4, -1e4), (-9999, -1e4), (89, 0)])
def test_large_lse(exercise, a, b):
    """merge_weights: lse of 1e4 and -1e4, where e^lse is inf or 0 in float32"""
    for first, second in ((a, b), (b, a)):
        w_a, w_b, lse = (float(x[0]) for x in weights(exercise, [first], [second]))
        want = 1 / (1 + math.exp(min(700, second - first)))
        limit = 1e-5 + 2 * float(resolution(max(first, second)))
        assert abs(w_a - want) <= limit and abs(w_b - (1 - want)) <= limit, (
            f"lse_a = {first}, lse_b = {second}: the weights must be {want:.6g} and {1 - want:.6g},"
            f" got {w_a:.6g} and {w_b:.6g}: subtract the larger lse before exp"
        )
        want = np.logaddexp(first, second)
        assert abs(lse - want) <= 1e-6 * abs(want), f"lse must be {want:.7g}, got {lse:.7g}"


def test_one_empty_part(exercise):
    """merge_weights: a part without keys weighs 0, on either side"""
    for a, b, want in (
        (2.5, -INF, (1, 0, 2.5)),
        (-INF, -3, (0, 1, -3)),
        (-1e4, -INF, (1, 0, -1e4)),
    ):
        got = tuple(float(x[0]) for x in weights(exercise, [a], [b]))
        assert got == want, f"lse_a = {a}, lse_b = {b}: (w_a, w_b, lse) must be {want}, got {got}"


def test_two_empty_parts(exercise):
    """merge_weights: two parts without keys give (0, 0, -inf), not NaN"""
    got = tuple(float(x[0]) for x in weights(exercise, [-INF], [-INF]))
    assert got == (0, 0, -INF), f"want (0, 0, -inf), got {got}: -inf - -inf is NaN, guard it"


@pytest.mark.parametrize("cut", [1, 7, 16, 39])
def test_halves_of_the_keys(exercise, cut):
    """kernel: attention over both halves of the keys is attention over all"""
    head = random_head(10, 40, 12)
    parts = [
        type(head)(head.q, head.k[keys], head.v[keys], head.dout).plain.forward
        for keys in (slice(cut), slice(cut, None))
    ]
    out, lse = merged(exercise, *((part["out"], part["lse"]) for part in parts))
    want = (head.forward["out"], head.forward["lse"])
    expect_equal((out, lse), want, f"attention over {cut} and {40 - cut} keys, merged")


def test_weightless_part(exercise):
    """kernel: a part 120 below the other adds nothing, however large its out"""
    (a,) = random_states(1)
    a = (a[0], np.clip(a[1], -50, 50))
    b = (np.full_like(a[0], 3e38), a[1] - 120)
    for first, second in ((a, b), (b, a)):
        expect_equal(merged(exercise, first, second), a, "e^-120 is 0 in float32: hold no exponent")


def test_order(exercise):
    """kernel: the order of the two parts does not matter"""
    a, b = random_states(2)
    what = "the other order of the two parts gives something else"
    expect_equal(merged(exercise, a, b), merged(exercise, b, a), what)


def test_grouping(exercise):
    """kernel: (a + b) + c = a + (b + c), so that any tree of thread blocks may be used"""
    a, b, c = random_states(3)
    left = merged(exercise, merged(exercise, a, b), c)
    right = merged(exercise, a, merged(exercise, b, c))
    expect_equal(left, right, "the other grouping of three parts gives something else")


@pytest.mark.parametrize("side", ["left", "right"])
def test_empty_part_holds_nan(exercise, side):
    """kernel: what an empty part's out holds is not looked at, not even NaN"""
    (a,) = random_states(1)
    a = (a[0], np.clip(a[1], -50, 50))
    empty = (np.full_like(a[0], np.nan), np.full_like(a[1], -INF))
    got = merged(exercise, empty, a) if side == "left" else merged(exercise, a, empty)
    what = f"the {side} part has no keys (lse = -inf) and NaN in out: 0 * NaN is NaN, skip it"
    expect_equal(got, a, what)


def test_both_empty(exercise):
    """kernel: two empty parts give out = 0, lse = -inf"""
    empty = (np.full((3, 8), np.nan, np.float32), np.full(3, -INF, np.float32))
    want = (np.zeros((3, 8)), np.full(3, -INF))
    expect_equal(merged(exercise, empty, empty), want, "no keys on either side")


@pytest.mark.parametrize(
    "head_dim, threads", [(1, 32), (33, 32), (100, 32), (20, 1), (20, 7), (8, 64)]
)
def test_sizes(exercise, head_dim, threads):
    """kernel: any head_dim, any number of threads"""
    a, b = random_states(2, num_rows=5, head_dim=head_dim)
    with np.errstate(over="ignore"):
        w = 1 / (1 + np.exp(b[1].astype(float) - a[1]))[:, None]
    want = (w * a[0] + (1 - w) * b[0], np.logaddexp(a[1].astype(float), b[1]))
    expect_equal(merged(exercise, a, b, threads), want, f"{head_dim=}, {threads} threads")


def test_long(exercise):
    """kernel: a thousand rows, and rows of 5000 columns"""
    for num_rows, head_dim in ((1001, 2), (2, 5003)):
        a, b = random_states(2, num_rows, head_dim)
        a, b = ((out, np.clip(lse, -50, 50)) for out, lse in (a, b))
        w = 1 / (1 + np.exp(b[1].astype(float) - a[1]))[:, None]
        want = (w * a[0] + (1 - w) * b[0], np.logaddexp(a[1].astype(float), b[1]))
        expect_equal(merged(exercise, a, b), want, f"{num_rows} rows, {head_dim=}")


def test_traffic(exercise):
    """kernel: HBM traffic: out_a and out_b loaded once at most, out and lse stored once"""
    (out_a, lse_a), (out_b, lse_b) = random_states(2, num_rows=6, head_dim=40)
    out, lse = np.zeros_like(out_a), np.zeros_like(lse_a)
    launch = exercise.kernel, 6, 32, out_a, lse_a, out_b, lse_b, out, lse
    trace = simt.trace(*launch)
    for name, size in (("out_a", out_a.size), ("out_b", out_b.size)):
        got = trace.arrays[name].loads  # fewer where a part weighs nothing and is skipped
        assert got <= size, f"loads of {name}: want at most {size}, the meter shows {got}"
    expect_traffic(
        trace,
        {
            ("out", "stores"): (out.size, "num_rows * head_dim"),
            ("lse", "stores"): (lse.size, "num_rows"),
            ("out", "loads"): (0, "out is only written"),
            ("lse", "loads"): (0, "lse is only written"),
        },
    )
    assert trace.barriers == 0, "nobody reads what another thread wrote: no barrier"
    assert trace.shared_bytes == 0, (
        f"nobody reads what another thread wrote: no shared memory, but there are "
        f"{trace.shared_bytes} bytes of it in {', '.join(trace.shared)}"
    )


def test_inputs_unchanged(exercise):
    """kernel: the two parts stay as they are"""
    a, b = random_states(2)
    names = ("out_a", "lse_a", "out_b", "lse_b")
    before = {name: x.copy() for name, x in zip(names, (*a, *b), strict=True)}
    merged(exercise, a, b)
    expect_unchanged(before, dict(zip(names, (*a, *b), strict=True)))


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32"""
    from fa_numba.analysis.gpu_ready import gpu_ready

    x, y = np.zeros((2, 8), np.float32), np.zeros(2, np.float32)
    simt.run(exercise.kernel, 2, 8, x, y, x.copy(), y, x.copy(), y.copy())
    gpu_ready(exercise.kernel, (x, y, x, y, x, y))
