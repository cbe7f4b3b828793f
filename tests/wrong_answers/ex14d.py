"""ex14d: the rotation in a kernel."""

# fmt: off
BEFORE = "if not BACK:\n            value *= signs[tx]"
AFTER = "if BACK:\n            value *= signs[tx]\n        y"
LOOP = "while h < HEAD_DIM:"
WARP = "if h < 32 <= HEAD_DIM:"
SHUFFLE = "other = cuda.shfl_xor_sync(FULL_WARP, value, h)"
PARTNER = "other = row[tx ^ h]"
SIGN = "value = value + other if tx & h == 0 else other - value"
ROOT = "value *= float32(1.0 / math.sqrt(HEAD_DIM))"

WRONG = [
    ("sums alone", SIGN, "value = value + other"),
    ("the sign by the lowest bit", SIGN, SIGN.replace("tx & h", "tx & 1")),
    ("the sign by half of the row", SIGN, SIGN.replace("tx & h == 0", "tx < h")),
    ("divided by d", ROOT, "value *= float32(1.0 / HEAD_DIM)"),
    ("float64 root", ROOT, "value = value / math.sqrt(HEAD_DIM)"),
    ("no signs", BEFORE, "if not BACK:\n            value *= float32(1.0)"),
    ("back without signs", AFTER, AFTER.replace("signs[tx]", "float32(1.0)")),
    ("signs both times", AFTER, "value *= signs[tx]\n        y"),
    ("the last step is missing", LOOP, "while 2 * h < HEAD_DIM:"),
    ("neighbours alone", "h *= 2", "h += h if h < 32 else HEAD_DIM"),
    ("the row of block 0", "value = x[m, tx]", "value = x[0, tx]"),
    ("shuffles beyond a warp", WARP, "if h < 64 <= HEAD_DIM:"),
    ("the partner to the right", PARTNER, "other = row[(tx + h) % HEAD_DIM]"),
    ("the partner of the other end", PARTNER, "other = row[HEAD_DIM - 1 - tx]"),
    ("one barrier for each step", PARTNER + "\n                cuda.syncthreads()  # every partner has read: safe to overwrite", PARTNER),
    ("a barrier of a warp", "cuda.syncthreads()  # row is complete: safe to read", "cuda.syncwarp()"),
    ("three barriers for each step", [(WARP, "if h < 0:"), (PARTNER, "cuda.syncthreads()\n                " + PARTNER)]),
    ("two rows", PARTNER, PARTNER + "\n                spare = cuda.shared.array(HEAD_DIM, float32)\n                spare[tx] = other"),
    ("x is loaded again", "value *= float32(1.0 / math", "value += float32(0.0) * x[m, tx]\n        value *= float32(1.0 / math"),
    ("x is changed", "value = x[m, tx]", "x[m, tx] *= float32(2.0)\n        value = x[m, tx] * float32(0.5)"),
    ("256 rows at most", "y[m, tx] = value", "if m < 256:\n            y[m, tx] = value"),
    ("512 columns at most", SIGN, SIGN.replace("tx & h == 0", "tx & h & 511 == 0")),
]

RIGHT = [
    ("barriers in every step", [("            " + WARP + "\n                " + SHUFFLE + "\n            else:\n                row[tx] = value\n                cuda.syncthreads()  # row is complete: safe to read\n                " + PARTNER + "\n                cuda.syncthreads()  # every partner has read: safe to overwrite\n",
        "            row[tx] = value\n            cuda.syncthreads()  # row is complete: safe to read\n            " + PARTNER + "\n            cuda.syncthreads()  # every partner has read: safe to overwrite\n")]),
    ("from the largest step down", [("h = 1\n", "h = HEAD_DIM // 2\n"), (LOOP, "while h > 0:"), ("h *= 2", "h //= 2")]),
]

EQUIVALENT = []
