"""ex17a: the merger of two partial results."""

# fmt: off
GUARD = "    if lse_max == -math.inf:  # two empty parts: -inf - -inf would be NaN\n        return float32(0.0), float32(0.0), lse_max\n"
RETURN = "return e_a / (e_a + e_b), e_b / (e_a + e_b), lse_max + math.log(e_a + e_b)"
EXP = "e_a, e_b = math.exp(lse_a - lse_max), math.exp(lse_b - lse_max)"
MAX = "lse_max = max(lse_a, lse_b)"
MIX_A = "a = w_a * x_a if w_a > 0 else float32(0.0)  # whatever an empty part holds is not let in"
MIX_B = "return a + w_b * x_b if w_b > 0 else a"

WRONG = [
    ("no maximum", MAX, "lse_max = float32(0.0)"),
    ("the first for the larger", MAX, "lse_max = lse_a"),
    ("no guard for two empty parts", GUARD, ""),
    ("two empty parts weigh one half", GUARD, GUARD.replace("float32(0.0), float32(0.0)", "float32(0.5), float32(0.5)")),
    ("lse of two empty parts is 0", GUARD, GUARD.replace("lse_max\n", "float32(0.0)\n", 2).replace("if float32(0.0)", "if lse_max")),
    ("-1e9 stands for -inf", MAX, "lse_a = max(lse_a, float32(-1e9))\n    lse_b = max(lse_b, float32(-1e9))\n    lse_max = max(lse_a, lse_b)"),
    ("-1e4 counts as empty", GUARD, GUARD.replace("== -math.inf", "<= float32(-9.9e3)")),
    ("exponents clipped at -20", EXP, EXP.replace("lse_a - lse_max", "max(lse_a - lse_max, float32(-20.0))")),
    ("not divided", RETURN, "return e_a, e_b, lse_max + math.log(e_a + e_b)"),
    ("log2", RETURN, RETURN.replace("math.log", "math.log2")),
    ("lse of the mean", RETURN, RETURN.replace("log(e_a + e_b)", "log((e_a + e_b) / 2)")),
    ("weights changed over", RETURN, "return e_b / (e_a + e_b), e_a / (e_a + e_b), lse_max + math.log(e_a + e_b)"),
    ("weights of half each", RETURN, "return float32(0.5), float32(0.5), lse_max + math.log(e_a + e_b)"),
    ("empty parts are let in", [(MIX_A, "a = w_a * x_a"), (MIX_B, "return a + w_b * x_b")]),
    ("an empty left part is let in", MIX_A, "a = w_a * x_a"),
    ("an empty right part is let in", MIX_B, "return a + w_b * x_b"),
    ("the left part alone, if the right is empty", MIX_B, "return a + w_b * x_b if w_b > 0 else x_a"),
    ("the mean", [(MIX_A, "a = x_a / 2 if w_a > 0 else float32(0.0)"), (MIX_B, "return a + x_b / 2 if w_b > 0 else a")]),
    ("small weights are left out", MIX_A, "a = w_a * x_a if w_a > float32(1e-20) else float32(0.0)"),
    ("x_a for x_b", MIX_B, "return a + w_b * x_a if w_b > 0 else a"),
    ("a divided mean", MIX_B, "return (a + w_b * x_b) / (w_a + w_b) if w_b > 0 else a / w_a"),
    ("float64", RETURN, RETURN.replace("log(e_a + e_b)", "log(0.0 + e_a + e_b)")),
    ("weights of a up to 1e-3 are left out", MIX_A, MIX_A.replace("w_a > 0", "w_a > float32(1e-3)")),
    ("weights of b up to 1e-3 are left out", MIX_B, MIX_B.replace("w_b > 0", "w_b > float32(1e-3)")),
    ("weights of b up to 1e-7 are left out", MIX_B, MIX_B.replace("w_b > 0", "w_b > float32(1e-7)")),
]

RIGHT = [
    ("weights from the merged lse", RETURN, "lse = lse_max + math.log(e_a + e_b)\n    return math.exp(lse_a - lse), math.exp(lse_b - lse), lse"),
    ("a sigmoid, with a case for each order", [(EXP + "\n    " + RETURN,
        "small = math.exp(min(lse_a, lse_b) - lse_max)\n    big = float32(1.0) / (float32(1.0) + small)\n    lse = lse_max + math.log(float32(1.0) + small)\n"
        "    if lse_a >= lse_b:\n        return big, small * big, lse\n    return small * big, big, lse")]),
    ("mix by ifs", [(MIX_A, "x = float32(0.0)\n    if w_a > 0:\n        x += w_a * x_a\n    if w_b > 0:\n        x += w_b * x_b"), (MIX_B, "return x")]),
]

EQUIVALENT = []
