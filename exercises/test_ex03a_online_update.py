"""Grader of ex03a: the two functions behind online softmax."""

import math

import numpy as np
import pytest
from numba import cuda, float32

from fa_numba import simt
from fa_numba.analysis.gpu_ready import gpu_ready
from fa_numba.workbook.graders.causes import Wrong
from fa_numba.workbook.graders.meter import expect_chip_memory

INF = math.inf
LOWEST = float(np.finfo(np.float32).min)


def launch(how, name, values, kernel, *args):
    """Launch a kernel that calls the function `name`; say so where it returns something else."""
    try:
        return how(kernel, *args)
    except Exception as error:
        if "unpack" in str(error):
            raise AssertionError(
                f"{name} must return {values}: is a return missing, in one of its branches?"
            ) from None
        raise


UPDATE = "online_update", "three numbers, (m_new, l_new, alpha)"
MERGE = "merge", "two numbers, (m, l)"


def scan(exercise, scores):
    """(m, l, alpha) after each score, one thread feeding them to online_update."""
    online_update = exercise.online_update

    @cuda.jit
    def kernel(s, m, l, alpha):
        m_i = float32(-math.inf)
        l_i = float32(0.0)
        for n in range(s.shape[0]):
            m_i, l_i, alpha_n = online_update(m_i, l_i, s[n])
            m[n] = m_i
            l[n] = l_i
            alpha[n] = alpha_n

    s = np.array(scores, np.float32)
    m, l, alpha = (np.full(len(s), np.nan, np.float32) for _ in range(3))
    trace = launch(simt.trace, *UPDATE, kernel, 1, 1, s, m, l, alpha)
    expect_chip_memory(trace, allowed="online_update computes with three scalars, in registers")
    return m, l, alpha


def merged(exercise, a, b):
    """(m, l) of many pairs at once: thread i merges pair i of a with pair i of b."""
    merge = exercise.merge

    @cuda.jit
    def kernel(m_a, l_a, m_b, l_b, m, l):
        i = cuda.grid(1)
        if i < m.shape[0]:
            m[i], l[i] = merge(m_a[i], l_a[i], m_b[i], l_b[i])

    pairs = [np.array(part, np.float32) for side in (a, b) for part in side]
    m, l = (np.full(len(pairs[0]), np.nan, np.float32) for _ in range(2))
    trace = launch(simt.trace, *MERGE, kernel, -(-len(m) // 64), 64, *pairs, m, l)
    expect_chip_memory(trace, allowed="merge computes with four scalars, in registers")
    return m, l


def state(scores):
    """(m, l) of a part of a row, by the definition, in float64."""
    s = np.asarray(scores, np.float64)
    m = s.max(initial=-INF)
    return m, (np.exp(s - m).sum() if m > -INF else 0.0)


def close(got, want):
    """Equal, or within a few float32 roundings, however small; NaN is never close."""
    return got == want or abs(got - want) <= 2e-5 * abs(want) + 1e-37


def check_scan(exercise, scores, why):
    m, l, alpha = scan(exercise, scores)
    s = np.array(scores, np.float32)
    m_old = -INF
    for n in range(len(s)):
        m_want, l_want = state(s[: n + 1])
        seen = f"after scores[:{n + 1}] = {_short(s[: n + 1])}"
        assert m[n] == m_want, f"{seen}: m must be {m_want:.6g}, got {m[n]:.6g}. {why}"
        if not close(l[n], l_want):
            causes = scan_causes(s, l)
            said = "".join(causes[:1]) or why
            raise Wrong(
                f"{seen}: l must be {l_want:.6g}, got {l[n]:.6g}. {said}", causes=causes, where="l"
            )
        if m_old > -INF:
            factor = math.exp(m_old - m_want)
            assert close(alpha[n], factor), (
                f"{seen}: the maximum went from {m_old:.6g} to {m_want:.6g}, so alpha must be "
                f"exp({m_old - m_want:.6g}) = {factor:.6g}, got {alpha[n]:.6g}"
            )
        assert np.isfinite(alpha[n]), f"{seen}: alpha must be a finite number, got {alpha[n]}"
        m_old = m_want


def scan_causes(scores, l):
    """The mistakes in the line of l_new that explain all of l."""
    found = []
    for sentence, rule in (
        ("l_i is not multiplied by alpha: exp(s_j - m_new) = exp(s_j - m_i) * alpha, for all old "
         "scores at once.", lambda l, alpha, p, old: l + p),
        ("l_i is divided by alpha: multiply by alpha, which is at most 1.",
         lambda l, alpha, p, old: l / alpha + p),
        ("alpha belongs to the old scores alone, not to exp(s - m_new).",
         lambda l, alpha, p, old: (l + p) * alpha),
        ("The new score counts exp(s - m_new), not 1.", lambda l, alpha, p, old: l * alpha + 1),
        ("The new score is under the new maximum too: exp(s - m_new), not exp(s - m_i).",
         lambda l, alpha, p, old: l * alpha + old),
        ("The old sum is lost: l_new = l_i * alpha + exp(s - m_new).",
         lambda l, alpha, p, old: p),
        ("The new score is not added to l.", lambda l, alpha, p, old: l * alpha),
    ):  # fmt: skip
        m_i, l_i, series = -INF, 0.0, []
        with np.errstate(all="ignore"):
            for s in scores.astype(np.float64):
                m_new = max(m_i, s)
                if m_new > -INF:
                    l_i = rule(l_i, np.exp(m_i - m_new), np.exp(s - m_new), np.exp(s - m_i))
                m_i = m_new
                series.append(l_i)
        if np.allclose(l, series, rtol=1e-4, equal_nan=True):
            found.append(sentence)
    return found


def _short(values):
    text = [f"{v:.4g}" for v in values]
    return "[" + ", ".join(text if len(text) <= 6 else [*text[:2], "...", *text[-3:]]) + "]"


def test_first_score(exercise):
    """online_update: a single score s is (m, l) = (s, 1)"""
    for s in (0.0, 3.5, -1e4, 1e4):
        check_scan(exercise, [s], "The first score s is its own maximum: l = exp(s - s) = 1.")


def test_running_values(exercise):
    """online_update: m and l are right after every score of a row"""
    scores = np.random.default_rng(0).normal(size=50) * 5
    check_scan(exercise, scores, "l is the sum of exp(s - m) over all scores so far.")


def test_ascending(exercise):
    """online_update: ascending scores, so that each one shrinks what was summed before"""
    why = "Each new maximum needs l * exp(m_old - m_new) before the new term is added."
    check_scan(exercise, np.linspace(-5, 5, 20), why)


def test_descending(exercise):
    """online_update: descending scores leave the maximum alone, and alpha is 1"""
    why = "The maximum stays the first score: alpha = exp(0) = 1."
    check_scan(exercise, np.linspace(0, -10, 20), why)


def test_equal(exercise):
    """online_update: n equal scores give l = n"""
    check_scan(exercise, [2.5] * 9, "Each of n equal scores adds exp(0) = 1.")


def test_large(exercise):
    """online_update: scores of +-10000, in both orders"""
    why = "Subtract the new maximum before every exp."
    check_scan(exercise, [-1e4, 1e4, 0, 1e4], why)
    check_scan(exercise, [1e4, -1e4, 9999.5, 1e4], why)


def test_steps(exercise):
    """online_update: steps of 20, 50 and 85, whose factors are small but not 0"""
    why = "exp takes any m_old - m_new, however far below 0, without a limit."
    for step in (20, 50, 85):
        check_scan(exercise, [1, 1 + step, 2 + step, 2], why)


def test_masked_scores(exercise):
    """online_update: a masked score (-inf) changes nothing, wherever it comes"""
    check_scan(exercise, [1.0, -INF, 2.0, -INF, -INF, 0.5], "exp(-inf - m) is 0.")
    check_scan(exercise, [-INF, -INF, 1.0, 3.0], "-inf - -inf is NaN: guard m_new == -inf.")


def test_only_masked(exercise):
    """online_update: nothing but masked scores stays (-inf, 0), without NaN"""
    check_scan(exercise, [-INF] * 4, "-inf - -inf is NaN: guard m_new == -inf.")


def test_low(exercise):
    """online_update: scores far below 0, down to the lowest float32, are scores, not masked"""
    why = "Only -inf is masked, and no finite number is below every score."
    check_scan(exercise, [-2e4, -INF, -1.9e4], why)
    check_scan(exercise, [-2e9, -2e9, -INF, -2e9], why)
    check_scan(exercise, [-INF, -2e30, -2e30, -1.9e30], why)
    check_scan(exercise, [LOWEST, LOWEST, -INF, -3e38, 3e38], why)


@pytest.mark.parametrize("split", [0, 1, 13, 25, 26])
def test_merge_two_halves(exercise, split):
    """merge: two parts of a row give what the whole row gives"""
    rng = np.random.default_rng(split)
    rows = [np.float32(scale * rng.normal(size=26)) for scale in (1, 10, 3000)]
    a = zip(*(state(row[:split]) for row in rows), strict=True)
    b = zip(*(state(row[split:]) for row in rows), strict=True)
    m, l = merged(exercise, a, b)
    for i, row in enumerate(rows):
        m_want, l_want = state(row)
        if m[i] != m_want:
            cause = "merge: m is the larger of the two maxima."
            raise Wrong(f"the larger maximum is {m_want:.6g}, got {m[i]:.6g}", causes=[cause])
        if not close(l[i], l_want):
            cause = "merge: bring both sums to the common maximum before adding them."
            raise Wrong(
                f"{split} and {26 - split} scores, maximum {m_want:.6g}: l must be {l_want:.6g}, "
                f"got {l[i]:.6g}. {cause}",
                causes=[cause],
            )


def random_parts(num_sides):
    rng = np.random.default_rng(1)
    return [(rng.normal(size=64) * 30, rng.uniform(1, 9, 64)) for _ in range(num_sides)]


def check_same(one, other, what):
    for name, x, y in zip(("m", "l"), one, other, strict=True):
        for i in range(len(x)):
            assert close(x[i], y[i]), f"{name} depends on {what}: {x[i]:.6g} or {y[i]:.6g}"


def test_merge_is_commutative(exercise):
    """merge: the order of the two parts does not matter"""
    a, b = random_parts(2)
    check_same(merged(exercise, a, b), merged(exercise, b, a), "which part comes first")


def test_merge_is_associative(exercise):
    """merge: (a + b) + c = a + (b + c), so that any tree of threads may be used"""
    a, b, c = random_parts(3)
    left = merged(exercise, merged(exercise, a, b), c)
    right = merged(exercise, a, merged(exercise, b, c))
    check_same(left, right, "which two of three parts are merged first")


def test_merge_with_nothing(exercise):
    """merge: (-inf, 0) on either side changes nothing"""
    some = ([0.0, -1e4, 1e4, 88.0], [1.0, 2.5, 300.0, 7.0])
    nothing = ([-INF] * 4, [0.0] * 4)
    for side, (m, l) in (
        ("right", merged(exercise, some, nothing)),
        ("left", merged(exercise, nothing, some)),
    ):
        for i in range(4):
            assert (m[i], l[i]) == (some[0][i], np.float32(some[1][i])), (
                f"(m, l) = ({some[0][i]}, {some[1][i]}) merged with (-inf, 0) on the {side} must "
                f"stay as it is, got ({m[i]}, {l[i]})"
            )


def test_merge_low(exercise):
    """merge: maxima far below 0, down to the lowest float32, are maxima, not empty parts"""
    a = ([-2e4, -2e9, -2e30, LOWEST, -2e30], [2.0, 3.0, 1.0, 1.5, 2.0])
    b = ([-2e4 - 1, -2e9, -INF, LOWEST, 2e30], [1.0, 2.0, 0.0, 2.5, 7.0])
    for one, other in ((a, b), (b, a)):
        m, l = merged(exercise, one, other)
        want_l = [2 + math.exp(-1), 5, 1, 4, 7]
        for i in range(5):
            m_want = max(np.float32(a[0][i]), np.float32(b[0][i]))
            assert m[i] == m_want and close(l[i], want_l[i]), (
                f"({one[0][i]:.6g}, {one[1][i]}) and ({other[0][i]:.6g}, {other[1][i]}) must be "
                f"({m_want:.6g}, {want_l[i]:.6g}), got ({m[i]:.6g}, {l[i]:.6g}): only -inf is empty"
            )


def test_merge_of_far_maxima(exercise):
    """merge: a part whose maximum is 20, 50 or 85 lower still counts"""
    for gap in (20, 50, 85):
        m, l = merged(exercise, ([0.0], [1e-30]), ([-float(gap)], [4.0]))
        want = np.float32(1e-30) + 4 * math.exp(-gap)
        assert m[0] == 0 and close(l[0], want), (
            f"(0, 1e-30) and (-{gap}, 4) must be (0, {want:.6g}), got ({m[0]:.6g}, {l[0]:.6g}): "
            "exp takes any difference, however far below 0"
        )


def test_merge_nothing_with_nothing(exercise):
    """merge: (-inf, 0) with (-inf, 0) is (-inf, 0), not NaN"""
    m, l = merged(exercise, ([-INF], [0.0]), ([-INF], [0.0]))
    assert m[0] == -INF and l[0] == 0, (
        f"want (-inf, 0), got ({m[0]}, {l[0]}): -inf - -inf is NaN, so guard m == -inf"
    )


def test_update_is_merge_with_one_score(exercise):
    """online_update(m, l, s) is merge(m, l, s, 1)"""
    scores = np.random.default_rng(3).normal(size=20).astype(np.float32) * 9
    m, l, _ = scan(exercise, scores)
    m_merge, l_merge = merged(exercise, (m[:-1], l[:-1]), (scores[1:], np.ones(19)))
    check_same((m_merge, l_merge), (m[1:], l[1:]), "which of the two functions adds a score")


def test_compiles_for_a_gpu(exercise):
    """both functions compile for a GPU, in float32"""
    online_update, merge = exercise.online_update, exercise.merge

    @cuda.jit
    def kernel(x):
        m_i, l_i, alpha = online_update(x[0], x[1], x[2])
        m, l = merge(m_i, l_i, x[3], x[4])
        x[0] = m * x[3] + x[4]  # a float64 would show here, and not in an assignment alone
        x[1] = l * x[3] + x[4]
        x[2] = alpha * x[3] + x[4]

    x = np.ones(5, np.float32)
    launch(simt.run, "each function", "as many numbers as the statement says", kernel, 1, 1, x)
    try:
        gpu_ready(kernel, (x,))
    except AssertionError as error:
        if "float64" not in str(error):
            raise
        raise AssertionError(
            "online_update or merge computes in float64, or returns one: a bare literal such as "
            "1.0 is float64 to Numba. Write float32(1.0)"
        ) from None
