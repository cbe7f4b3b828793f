"""Grader of ex17a: the merger of two partial results."""

import math

import numpy as np
import pytest
from numba import cuda

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.attention import expect_guard, guarded, random_head
from fa_numba.workbook.graders.causes import Wrong

INF = math.inf
LIGHT = 1e-2, 1e-3, 1e-5, 1e-10, 1e-30  # weights that count beside 1


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
    simt.run(kernel, -(-len(a) // 64), 64, a, b, *results)
    return results


def merged(exercise, a, b, threads=32):
    """Run the kernel, checked, on outputs with guards around them."""
    (out_a, lse_a), (out_b, lse_b) = a, b
    (out, around_out), (lse, around_lse) = guarded(*out_a.shape), guarded(len(lse_a))
    simt.trace(exercise.kernel, len(lse_a), threads, out_a, lse_a, out_b, lse_b, out, lse)
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
            where = f"{name}{list(at)}"
            message = f"{where} must be {y[at]:.7g}, got {x[at]:.7g}: {what}"
            raise Wrong(message, causes=[what[0].upper() + what[1:] + "."], where=where)


def exact(a, b):
    """(w_a, w_b, lse) by definition, for one pair."""
    lse = float(np.logaddexp(a, b))
    return (0.0, 0.0, -INF) if lse == -INF else (math.exp(a - lse), math.exp(b - lse), lse)


def expect_weights(exercise, a, b):
    """The weights of many pairs, and a reason where they are wrong."""
    got = weights(exercise, a, b).astype(np.float64)
    a, b = (np.array(x, np.float32).astype(np.float64) for x in (a, b))
    want = np.array([exact(*pair) for pair in zip(a, b, strict=True)]).T
    near = 1e-5 + 2 * resolution(np.maximum(a, b))
    with np.errstate(invalid="ignore"):
        limits = near, near, 1e-6 * np.maximum(1, np.abs(want[2]))
        same = [(x == y) | (np.abs(x - y) <= t) for x, y, t in zip(got, want, limits, strict=True)]
    wrong = np.flatnonzero(~np.all(same, axis=0))
    if not len(wrong):
        return
    with np.errstate(all="ignore"):
        top = np.maximum(a, b)
        e_a, e_b = np.exp(a - top), np.exp(b - top)
        far_a, far_b = np.exp(np.float32(a)), np.exp(np.float32(b))  # float32 ends at e^89
        finite = np.where(np.isneginf(top), 0, top)
        t_a, t_b = np.exp2(a - finite), np.exp2(b - finite)
        known = {
            "The weights are not divided by their sum.": [e_a, e_b, want[2]],
            "The weights have changed places.": [want[1], want[0], want[2]],
            "lse takes the natural logarithm, not log2.": [*want[:2], top + np.log2(e_a + e_b)],
            "lse lacks the maximum that was subtracted.": [*want[:2], np.log(e_a + e_b)],
            "lse is the larger of the two, without the log of the sum.": [*want[:2], top],
            "Two empty parts: -inf - -inf is NaN. Return zeros before.": np.where(
                np.isneginf(top), np.nan, want
            ),
            "exp overflows, or all is 0: subtract the larger lse before exp.": [
                far_a / (far_a + far_b),
                far_b / (far_a + far_b),
                np.log(far_a + far_b),
            ],
            "The weights are powers of 2: lse is a natural logarithm, its inverse is exp.": [
                t_a / (t_a + t_b),
                t_b / (t_a + t_b),
                top + np.log2(t_a + t_b),
            ],
        }
        causes = [
            cause
            for cause, x in known.items()
            if np.allclose(x, got, rtol=1e-4, atol=1e-5, equal_nan=True)
        ]
    i = int(wrong[0])
    where = f"lse_a = {a[i]:g}, lse_b = {b[i]:g}"
    raise Wrong(
        f"{where}: (w_a, w_b, lse) must be ({', '.join(f'{x:.7g}' for x in want[:, i])}), got "
        f"({', '.join(f'{x:.7g}' for x in got[:, i])})",
        causes=causes,
        where=where,
    )


def test_weights(exercise):
    """merge_weights: the weights of the definition, and the log of the sum"""
    expect_weights(exercise, [0, 1, 3.5, 0, -80], [0, -1, 3.25, 20, -81])


def test_weights_of_many(exercise):
    """merge_weights: many pairs, in both orders; the weights sum to 1"""
    a, b = np.random.default_rng(0).standard_normal((2, 200)) * 10
    expect_weights(exercise, a, b)
    expect_weights(exercise, b, a)


def test_large_lse(exercise):
    """merge_weights: lse of 1e4 and -1e4, where e^lse is inf or 0 in float32"""
    a, b = np.array([(1e4, 9999), (1e4, -1e4), (-1e4, -1e4), (-9999, -1e4), (89, 0)]).T
    expect_weights(exercise, a, b)
    expect_weights(exercise, b, a)


def test_one_empty_part(exercise):
    """merge_weights: a part without keys weighs 0, on either side"""
    expect_weights(exercise, [2.5, -INF, -1e4], [-INF, -3, -INF])


def test_two_empty_parts(exercise):
    """merge_weights: two parts without keys give (0, 0, -inf), not NaN"""
    expect_weights(exercise, [-INF], [-INF])


def test_mix(exercise):
    """mix: w_a x_a + w_b x_b; what weighs nothing is not let in, what weighs little is"""
    mix = exercise.mix

    @cuda.jit
    def kernel(w_a, x_a, w_b, x_b, x):
        i = cuda.grid(1)
        if i < x.shape[0]:
            x[i] = mix(w_a[i], x_a[i], w_b[i], x_b[i])

    nan = math.nan
    cases = [
        (0.25, 8, 0.75, 4), (0.5, -2, 0.5, 2), (1, 3, 0, nan), (0, nan, 1, 5), (0, nan, 0, nan),
        (0, INF, 1, 2), (1, 2, 0, -INF), (0.125, -8, 0.875, 16),
        *((w, 1 / w, 1, 0) for w in LIGHT), *((1, 0, w, 1 / w) for w in LIGHT),
    ]  # fmt: skip
    want = np.array([5, 0, 3, 5, 0, 2, 2, 13, *[1] * 2 * len(LIGHT)])
    x = np.full(len(cases), np.nan, np.float32)
    simt.run(kernel, 1, 32, *np.array(cases, np.float32).T.copy(), x)
    wrong = np.flatnonzero(~(np.abs(x - want) <= 1e-5))
    if len(wrong):
        i = wrong[0]
        cause = (
            "A weight of 0 does not keep NaN out: 0 * NaN is NaN. Test the weight in mix."
            if not np.isfinite(x[i])
            else "A small weight counts, too: only a weight of 0 keeps its number out."
            if min(cases[i][0], cases[i][2]) in LIGHT
            else "mix is not w_a x_a + w_b x_b."
        )
        call = f"mix{cases[i]}"
        raise Wrong(f"{call} must be {want[i]}, got {x[i]:g}", causes=[cause], where=call)


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
        expect_equal(
            merged(exercise, first, second),
            a,
            "a weight of e^-120 is 0 in float32: hold no exponent",
        )


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


@pytest.mark.parametrize("head_dim, threads", [(1, 32), (33, 7)])
def test_sizes(exercise, head_dim, threads):
    """kernel: any head_dim, any number of threads"""
    a, b = random_states(2, num_rows=5, head_dim=head_dim)
    with np.errstate(over="ignore"):
        w = 1 / (1 + np.exp(b[1].astype(float) - a[1]))[:, None]
    want = (w * a[0] + (1 - w) * b[0], np.logaddexp(a[1].astype(float), b[1]))
    expect_equal(merged(exercise, a, b, threads), want, "this is not the weighted mean")


def test_compiles_for_a_gpu(exercise):
    """compiles for a GPU, in float32"""
    x, y = np.zeros((2, 8), np.float32), np.zeros(2, np.float32)
    simt.run(exercise.kernel, 2, 8, x, y, x.copy(), y, x.copy(), y.copy())
    gpu_ready(exercise.kernel, (x, y, x, y, x, y))
