"""ex17e: splits without keys that say so by +inf."""

# fmt: off
TEST = "if -math.inf < score < math.inf:"
MAX = "            m = max(merged, score)\n            " + TEST
OLD = "            m = max(merged, score)\n            if m > -math.inf:"

WRONG = [
    ("as it was", TEST, "if m > -math.inf:"),
    ("only +inf is looked at", TEST, "if score < math.inf:"),
    ("only -inf is looked at", TEST, "if score > -math.inf:"),
    ("+inf becomes -inf, its out is let in", MAX, "            score = score if score < math.inf else float32(-math.inf)\n" + OLD),
    ("+inf becomes a large number", MAX, "            score = min(score, float32(1e30))\n" + OLD),
    ("splits after the first empty one are left out", TEST, "if score == math.inf or score == -math.inf:\n                break\n            if score < math.inf:"),
    ("the first split is taken to have keys", TEST, "if split == 0 or -math.inf < score < math.inf:"),
    ("large lse count as empty", TEST, "if float32(-100.0) < score < float32(100.0):"),
    ("positive lse count as empty", TEST, "if -math.inf < score < 0:"),
    ("NaN becomes 0, and weighs", TEST, "if score == score:"),
    ("the broken kernel is mended", "            if m > -math.inf:", "            if -math.inf < score < math.inf:"),
    ("the input is mended", TEST, "if score == math.inf:\n                lse_partial[split, b, head] = float32(-math.inf)\n            if -math.inf < score < math.inf:"),
    ("float64", TEST, "x += 0.0 * 1.0\n            " + TEST),
    ("256 splits at most", TEST, "if split < 256 and -math.inf < score < math.inf:"),
    ("256 columns at most", TEST, "if d < 256 and -math.inf < score < math.inf:"),
    ("-1e4 is no key", TEST, "if float32(-1e4) < score < math.inf:"),
    ("the first state has the lse 0", TEST, "merged = merged if split else float32(0.0)\n            " + TEST),
]

RIGHT = [
    ("the maximum: a split with -inf has out 0", TEST, "if -math.inf < m < math.inf:"),
    ("continue", TEST, "if score == math.inf or score == -math.inf:\n                continue\n            if m > -math.inf:"),
    ("by isinf", TEST, "if not math.isinf(score):"),
    ("the largest finite number", TEST, "if abs(score) <= float32(3.4e38):"),
]

EQUIVALENT = []
