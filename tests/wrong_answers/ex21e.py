"""ex21e: states whose lse is a log2."""

LN_2 = "ln_2 = float32(0.6931471805599453)"
M = "m = max(m, ln_2 * lses[r, row])"
TOTAL = "total += math.exp(ln_2 * lses[r, row] - m)"
ACC = "acc += math.exp(ln_2 * lses[r, row] - m) * outs[r, row, d]"
# Lines of broken_kernel, too: named with a neighbour.
OUT = ACC + "\n        out[row, d] = acc / total"
END = OUT + "\n    if cuda.threadIdx.x == 0:\n        lse[row] = m + math.log(total)"
COLS = TOTAL + "\n    for d in range(cuda.threadIdx.x, outs.shape[2], cuda.blockDim.x):"
FIRST = LN_2 + "\n    m = float32(-math.inf)\n    for r in range(outs.shape[0]):"

WRONG = [
    ("as it was", LN_2, "ln_2 = float32(1.0)"),
    ("upside down", LN_2, "ln_2 = float32(1.442695)"),
    ("log10", LN_2, "ln_2 = float32(0.30103)"),
    ("lse alone is mended", [(LN_2, "ln_2 = float32(1.0)"), (END, END.replace("m + math.log(total)", "float32(0.69314718) * (m + math.log(total))"))]),
    ("lse stays a log2", END, END.replace("m + math.log(total)", "(m + math.log(total)) / ln_2")),
    ("weights alone are mended", END, END.replace("m + math", "m / ln_2 + math")),
    ("scaled after the difference", [(M, M.replace("ln_2 * ", "")), (TOTAL, "total += math.exp(ln_2 * (lses[r, row] - m))"), (ACC, "acc += math.exp(ln_2 * (lses[r, row] - m)) * outs[r, row, d]")]),
    ("divided by the ranks", OUT, OUT.replace("acc / total", "acc / float32(outs.shape[0])")),
    ("no maximum", M, "m = float32(0.0)"),
    ("0 for the first maximum", FIRST, FIRST.replace("-math.inf", "0.0")),
    ("the row of block 0", ACC, ACC.replace("row, d]", "0, d]")),
    ("8 ranks at most", "for r in range(outs.shape[0]):\n        " + TOTAL, "for r in range(min(8, outs.shape[0])):\n        " + TOTAL),
    ("64 columns at most", COLS, COLS.replace("outs.shape[2]", "min(64, outs.shape[2])")),
    ("512 columns at most", COLS, COLS.replace("outs.shape[2]", "min(512, outs.shape[2])")),
    ("256 rows at most", END, END.replace("cuda.threadIdx.x == 0", "cuda.threadIdx.x == 0 and row < 256")),
    ("log2 of the sum", END, END.replace("math.log(", "math.log2(")),
    ("a float64 factor", LN_2, "ln_2 = math.log(2)"),
    ("every thread stores lse", END, END.replace("cuda.threadIdx.x == 0", "cuda.threadIdx.x >= 0")),
    ("summed in HBM", OUT, ACC + "\n        out[row, d] = float32(0.0)\n        out[row, d] += acc / total"),
]  # fmt: skip

RIGHT = [
    ("exp2", [(M, "m = max(m, lses[r, row])"), (TOTAL, "total += float32(2.0) ** (lses[r, row] - m)"), (END, END.replace("m + math.log(total)", "ln_2 * m + math.log(total)").replace(ACC, "acc += float32(2.0) ** (lses[r, row] - m) * outs[r, row, d]"))]),
    ("a running merge", [(M, "x = ln_2 * lses[r, row]\n        m = x if x > m else m")]),
    ("divided in the weights", [(OUT, ACC.replace("- m)", "- m) / total") + "\n        out[row, d] = acc")]),
]  # fmt: skip

EQUIVALENT = [
    ("if cuda.threadIdx.x == 0: -> if cuda.threadIdx.x == 1:", "any one thread may store lse")
]
