"""ex12a: a product by a warp."""

# fmt: off
A_ROW = "row = lane // 4 + 8 * (register % 2)"
A = "return row, 2 * (lane % 4) + 8 * (register // 2) + half"
B = "return 2 * (lane % 4) + 8 * register + half, lane // 4"
D = "return lane // 4 + 8 * (register // 2), 2 * (lane % 4) + register % 2"
IF = "if col < out.shape[1]:  # the whole warp has columns, or none of it"
ZERO = "        for r in range(4):\n            d[r] = float32(0.0)\n        for k in range(0, x.shape[1], 16):\n"
LOAD_A = "a[2 * r + h] = x[row + i, k + j]"
LOAD_B = "b[2 * r + h] = y[k + i, col + j]"
MMA = "mma_f16(d, a, b)"
STORE = "out[row + i, col + j] = d[r]"

WRONG = [
    ("A: registers 1 and 2 exchanged", [(A_ROW, "row = lane // 4 + 8 * (register // 2)"), (A, A.replace("register // 2", "register % 2"))]),
    ("A: halves exchanged", A, A.replace("+ half", "+ 1 - half")),
    ("A: transposed", A, "return 2 * (lane % 4) + 8 * (register // 2) + half, row"),
    ("A: lanes by columns", [(A_ROW, "row = lane % 8 + 8 * (register % 2)"), (A, "return row, 2 * (lane // 8) + 8 * (register // 2) + half")]),
    ("A: one column for each lane", A, A.replace("2 * (lane % 4)", "lane % 4").replace("+ half", "+ 4 * half")),
    ("B: transposed", B, "return lane // 4, 2 * (lane % 4) + 8 * register + half"),
    ("B: halves exchanged", B, B.replace("+ half", "+ 1 - half")),
    ("B: rows one after the other", B, "return 4 * (lane % 4) + 2 * register + half, lane // 4"),
    ("D: as A's left half", D, D.replace("register // 2", "register % 2").replace("+ register % 2", "+ register // 2")),
    ("D: transposed", D, "return 2 * (lane % 4) + register % 2, lane // 4 + 8 * (register // 2)"),
    ("D: rows one below the other", D, "return 2 * (lane // 4) + register // 2, 2 * (lane % 4) + register % 2"),
    ("d is not set", ZERO, ZERO.replace("            d[r] = float32(0.0)\n", "            a[r] = float32(0.0)\n")),
    ("d is set in each step", ZERO, "        for k in range(0, x.shape[1], 16):\n            for r in range(4):\n                d[r] = float32(0.0)\n"),
    ("one step", ZERO, ZERO.replace("x.shape[1]", "16")),
    ("steps of 8", ZERO, ZERO.replace("x.shape[1], 16", "x.shape[1] - 8, 8")),
    ("the last step is left out", ZERO, ZERO.replace("x.shape[1]", "max(16, x.shape[1] - 16)")),
    ("y transposed", LOAD_B, "b[2 * r + h] = y[k + j, col + i % 8]"),
    ("halves side by side", LOAD_A, "a[r + 4 * h] = x[row + i, k + j]"),
    ("the product twice", MMA, "mma_f16(d, a, b)\n            mma_f16(d, a, b)"),
    ("every lane but the last", MMA, "if lane < 31:\n                mma_f16(d, a, b)"),
    ("no guard", IF, "if col >= 0:"),
    ("one warp", IF, "if col < out.shape[1] and cuda.threadIdx.y == 0:"),
    ("256 columns at most", IF, "if col < min(256, out.shape[1]):"),
    ("256 rows at most", STORE, "if row < 256:\n                out[row + i, col + j] = d[r]"),
    ("summed in HBM", STORE, "out[row + i, col + j] = float32(0.0)\n            out[row + i, col + j] += d[r]"),
    ("float16 sums", MMA, "mma_f16(d, a, b)\n            for r in range(4):\n                d[r] = np.float16(d[r])"),
    ("y is changed", STORE, "y[i, col + j] = x[row + i, j]\n            out[row + i, col + j] = d[r]"),
]

RIGHT = [
    ("bits", [(A_ROW, "row = (lane >> 2) + ((register & 1) << 3)"), (A, "return row, ((lane & 3) << 1) + ((register >> 1) << 3) + half"), (B, "return ((lane & 3) << 1) + (register << 3) + half, lane >> 2")]),
    ("a return for warps without columns", [("    " + IF + "\n", "    if col >= out.shape[1]:\n        return\n    if True:\n")]),
]

EQUIVALENT = [
    ("for k in range(0, x.shape[1], 16): -> for k in range(0, x.shape[1] - 1, 16):", "x.shape[1] is a multiple of 16"),
]
