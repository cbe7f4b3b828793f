"""ex17f: combine with fewer loads."""

IF = "if w_b > 0:  # else the split changes nothing, and its out_partial is not asked for"
MIX = "x = mix(w_a, x, w_b, out_partial[split, b, head, d])"
SPLITS = "for split in range(lse_partial.shape[0]):"
MERGE = "w_a, w_b, merged = merge_weights(merged, lse_partial[split, b, head])"

WRONG = [
    ("as ex17d", IF, "if True:"),
    ("positive lse alone", IF, "if lse_partial[split, b, head] > 0:"),
    ("heavy splits alone", IF, "if w_b > float32(1e-3):"),
    ("splits heavier than those before", IF, "if w_b > w_a:"),
    ("the first split is left out", IF, "if w_b > 0 and split > 0:"),
    ("w_a in place of w_b", IF, "if w_a > 0:"),
    ("until the first empty one", IF, "if w_b == 0:\n                    break\n                if w_b > 0:"),
    ("loaded first", [(MERGE, "y = out_partial[split, b, head, d]\n                " + MERGE), (MIX, "x = mix(w_a, x, w_b, y)")]),
    ("half of the splits", SPLITS, "for split in range(min(4, lse_partial.shape[0])):"),
    ("not weighted again", MIX, MIX.replace("mix(w_a,", "mix(float32(1.0),")),
    ("lse of splits that are loaded", IF, "if w_b == 0:\n                    merged = lse_partial[split, b, head]\n                if w_b > 0:"),
    ("float64", MIX, "x = mix(w_a, x, w_b, out_partial[split, b, head, d] * math.pi / math.pi)"),
    ("256 splits at most", SPLITS, "for split in range(min(256, lse_partial.shape[0])):"),
    ("256 columns at most", "for d in range(cuda.threadIdx.x, HEAD_DIM, 32):", "for d in range(cuda.threadIdx.x, min(HEAD_DIM, 256), 32):"),
    ("weights above 1e-4 alone", IF, "if w_b > float32(1e-4):"),
    ("weights up to 1e-3 are left out", "if w_b > 0 else a", "if w_b > float32(1e-3) else a"),
]  # fmt: skip

RIGHT = [
    ("the budget, not par", IF, "if lse_partial[split, b, head] > -math.inf:"),
    ("continue", IF, "if w_b == 0:\n                    continue\n                if True:"),
    ("what rounding hides is left out", IF, "if w_b > float32(1e-12):"),
]  # fmt: skip

EQUIVALENT = [
    ("a = w_a * x_a if w_a > 0 else float32(0.0) -> a = w_a * x_a if w_a >= 0 else float32(0.0)", "x, what was merged before, is finite"),
    ("return a + w_b * x_b if w_b > 0 else a -> return a + w_b * x_b if w_b >= 0 else a", "mix is only called where w_b > 0"),
]  # fmt: skip
