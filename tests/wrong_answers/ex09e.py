"""Wrong and right answers of ex09e: see tests/wrong_answers/__init__.py."""

SCALE = "        x = qk[m, n] * softmax_scale\n"
CAP = "        x = softcap * math.tanh(x / softcap)\n"
ALIBI = "        x -= slope * float32(abs(position - n))\n"
MASK = (
    "        if n > position or n <= position - W:\n            x = float32(-math.inf)\n"
    "        s[m, n] = x\n"
)
ORDER = SCALE + CAP + ALIBI + MASK
HIDE = "            x = float32(-math.inf)\n        s[m, n] = x\n"

WRONG = [
    ("one too narrow", MASK, MASK.replace("<= position - W", "<= position - W + 1")),
    ("softcap still after the mask", CAP + ALIBI + MASK, ALIBI + MASK.replace("s[m, n] = x", "s[m, n] = softcap * math.tanh(x / softcap)")),
    ("the slope still before the scale", SCALE, "        x = (qk[m, n] - slope * float32(abs(position - n))) * softmax_scale\n        x += slope * float32(abs(position - n))\n"),
    ("the slope before the cap", CAP + ALIBI, ALIBI + CAP),
    ("the scale after the cap", SCALE + CAP, "        x = qk[m, n]\n" + CAP + "        x = x * softmax_scale\n"),
    ("a hidden key is -softcap", HIDE, HIDE.replace("float32(-math.inf)", "-softcap")),
    ("a hidden key is -1e9", HIDE, HIDE.replace("-math.inf", "-1e9")),
    ("a hidden key is 0", HIDE, HIDE.replace("-math.inf", "0.0")),
    ("the slope added", ALIBI, ALIBI.replace("-=", "+=")),
    ("no distance", ALIBI, ALIBI.replace("float32(abs(position - n))", "float32(n)")),
    ("top-left", MASK, MASK.replace("position", "m")),
    ("no softcap", CAP, ""),
    ("float64 by the distance", ALIBI, ALIBI.replace("float32(abs(position - n))", "abs(position - n)")),
    ("hidden scores are not stored", MASK, "        if n <= position and n > position - W:\n            s[m, n] = x\n"),
    ("256 keys at most", MASK, MASK.replace("n > position or", "n > position or n >= 256 or")),
    ("256 queries at most", MASK, MASK.replace("n > position or", "n > position or m >= 256 or")),
]  # fmt: skip

RIGHT = [
    ("early -inf, other names", ORDER, """\
        away = position - n
        score = float32(-math.inf)
        if 0 <= away and away < W:
            scaled = softmax_scale * qk[m, n]
            score = math.tanh(scaled / softcap) * softcap - slope * float32(away)
        s[m, n] = score
"""),
    ("two ifs, one after the other", MASK, """\
        if n > position:
            x = float32(-math.inf)
        if position - n >= W:
            x = float32(-math.inf)
        s[m, n] = x
"""),
]  # fmt: skip

EQUIVALENT = [
    ("x -= slope * float32(abs(position - n)) -> x -= slope * float32(abs(n - position))", "the same distance",),
]  # fmt: skip
