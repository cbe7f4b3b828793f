"""Wrong and right answers of ex03a: see tests/wrong_answers/__init__.py."""

M_NEW = "    m_new = max(m_i, s)\n"
GUARD = "    if m_new == -math.inf:  # only"
EMPTY = "        return m_new, l_i, float32(1.0)\n"
ALPHA = "    alpha = math.exp(m_i - m_new)\n"
RETURN = "    return m_new, l_i * alpha + math.exp(s - m_new), alpha\n"
M = "    m = max(m_a, m_b)\n"
MERGE_GUARD = "    if m == -math.inf:  # two"
MERGE_EMPTY = "        return m, float32(0.0)\n"
MERGE = "    return m, l_a * math.exp(m_a - m) + l_b * math.exp(m_b - m)\n"

WRONG = [
    *((f"below {low} counts as masked", GUARD, f"    if m_new < float32({low}):  # only") for low in ("-1e4", "-1e9", "-1e30")),
    ("the maximum is never below -1e30", M_NEW, "    m_new = max(m_i, s, float32(-1e30))\n"),
    ("a masked score is not guarded alone", EMPTY, "        return m_new, l_i + float32(1), float32(1)\n"),
    ("a masked beginning has alpha NaN", EMPTY, "        return m_new, l_i, m_i - m_new\n"),
    ("a masked beginning has alpha inf", EMPTY, "        return m_new, l_i, -m_i\n"),
    ("m is left at 0 where all is masked", EMPTY, "        return float32(0), l_i, float32(1)\n"),
    ("alpha of the score", ALPHA, "    alpha = math.exp(s - m_new)\n"),
    ("alpha cut off at -40", ALPHA, "    alpha = math.exp(max(m_i - m_new, float32(-40)))\n"),
    ("alpha is 0 beyond a step of 30", ALPHA, ALPHA + "    if m_i - m_new < float32(-30):\n        alpha = float32(0)\n"),
    ("the new score is rescaled as well", RETURN, "    return m_new, (l_i + math.exp(s - m_new)) * alpha, alpha\n"),
    ("the new score under the old maximum", RETURN, RETURN.replace("s - m_new", "s - m_i")),
    ("the new score counts 1", RETURN, RETURN.replace("math.exp(s - m_new)", "float32(1)")),
    ("alpha is not returned", RETURN, RETURN.replace(", alpha\n", "\n")),
    ("alpha before the maximum", RETURN, "    return alpha, m_new, l_i * alpha + math.exp(s - m_new)\n"),
    ("alpha is always 1", RETURN, RETURN.replace(", alpha\n", ", float32(1)\n")),
    ("the score replaces the maximum", M_NEW, "    m_new = s\n"),
    ("no return", RETURN, "    l_i = l_i * alpha + math.exp(s - m_new)\n"),
    ("a local array", ALPHA, "    pair = cuda.local.array(2, float32)\n    pair[0] = m_i - m_new\n    alpha = math.exp(pair[0])\n"),
    *((f"merge: below {low} is empty", MERGE_GUARD, f"    if m < float32({low}):  # two") for low in ("-1e4", "-1e9", "-1e30")),
    ("merge: the empty part is (0, 0)", MERGE_EMPTY, "        return float32(0), float32(0)\n"),
    ("merge: nothing is rescaled", MERGE, "    return m, l_a + l_b\n"),
    ("merge: the factors are swapped", MERGE, "    return m, l_b * math.exp(m_a - m) + l_a * math.exp(m_b - m)\n"),
    ("merge: the first maximum", M, "    m = m_a\n"),
    ("merge: far parts are dropped", MERGE, "    if m_a - m_b > float32(30):\n        return m_a, l_a\n" + MERGE),
    ("merge: the counts are weighed", MERGE, "    return m, (l_a * math.exp(m_a - m) + l_b * math.exp(m_b - m)) / (l_a + l_b)\n"),
    ("merge: the sum alone", MERGE, MERGE.replace("return m, ", "return ")),
    ("float64", EMPTY, "        return m_new, l_i, 1.0\n"),
    ("a score of 0 is masked", GUARD, "    if m_new == -math.inf or s == 0:  # only"),
    ("merge: a maximum of 0 is empty", MERGE_GUARD, "    if m == -math.inf or m == 0:  # two"),
]  # fmt: skip

RIGHT = [
    ("by the case, other names", """
import math

from numba import cuda, float32


@cuda.jit(device=True)
def online_update(top, total, score):
    if score == -math.inf:
        return top, total, float32(1)
    if score > top:
        shrink = math.exp(top - score)
        return score, total * shrink + float32(1), shrink
    return top, total + math.exp(score - top), float32(1)


@cuda.jit(device=True)
def merge(top_a, total_a, top_b, total_b):
    if top_a < top_b:
        return merge_sorted(top_b, total_b, top_a, total_a)
    return merge_sorted(top_a, total_a, top_b, total_b)


@cuda.jit(device=True)
def merge_sorted(high, total_high, low, total_low):
    if low == -math.inf:
        return high, total_high
    return high, total_high + total_low * math.exp(low - high)
"""),
    ("a stand-in for -inf", [
        (GUARD, "    base = float32(0) if m_new == -math.inf else m_new\n"
                "    if m_new == math.inf:  # only"),
        (ALPHA, "    alpha = math.exp(m_i - base)\n"),
        (RETURN, RETURN.replace("s - m_new", "s - base")),
    ]),
    ("merge's empty part keeps l_a", MERGE_EMPTY, "        return m, l_a\n"),
    ("alpha 0 before the first score", EMPTY, "        return m_new, l_i, float32(0.0)\n"),
    ("online_update by merge", ALPHA + RETURN, "    alpha = math.exp(m_i - m_new)\n    m_new, l_new = merge(m_i, l_i, s, float32(1))\n    return m_new, l_new, alpha\n"),
]  # fmt: skip

EQUIVALENT = []
