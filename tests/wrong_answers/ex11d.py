"""ex11d: a budget of loads for each FMA."""

SHAPE = "return 8, 8"
COLUMN = "column = cuda.local.array(ROWS, float32)\n"
A = "column[i] = p_tile[ty + i * TY, r]"
B = "x = v_tile[r, tx + j * TX]"
SUM = "acc[i, j] += column[i] * x"
R = "for r in range(64):\n            for i in range(ROWS):\n                column"

WRONG = [
    ("4 x 4", SHAPE, "return 4, 4"),
    ("16 x 4: no registers, too many loads", SHAPE, "return 2, 32"),
    ("16 x 8: too many sums", SHAPE, "return 16, 8"),
    ("one element", SHAPE, "return 1, 4"),
    ("16 x 16", SHAPE, "return 16, 16"),
    ("no divisor", SHAPE, "return 6, 8"),
    ("a list", SHAPE, "return [8, 8]"),
    ("floats", SHAPE, "return 8.0, 8.0"),
    ("p is loaded again", SUM, "acc[i, j] += p_tile[ty + i * TY, r] * x"),
    ("v is loaded again", SUM, "acc[i, j] += column[i] * v_tile[r, tx + j * TX]"),
    ("neighbouring rows", A, "column[i] = p_tile[ROWS * ty + i, r]"),
    ("neighbouring columns", B, "x = v_tile[r, COLS * tx + j]"),
    ("tx for ty", A, "column[i] = p_tile[tx + i * TY, r]"),
    ("half of r", R, R.replace("64", "32")),
    ("a whole tile in local memory", COLUMN, "column = cuda.local.array(64, float32)\n"),
    ("float64", COLUMN, "column = cuda.local.array(ROWS, 'float64')\n"),
    ("twice", SUM, SUM + "\n                    acc[i, j] += column[i] * x"),
    ("v by a shuffle", B, "x = cuda.shfl_sync(0xFFFFFFFF, v_tile[r, tx + j * TX], tx + 8 * (ty % 4))"),
]  # fmt: skip

RIGHT = [
    ("8 x 4", SHAPE, "return 8, 4"),
    ("4 x 16", SHAPE, "return 4, 16"),
    ("a row of v is kept", [
        (COLUMN, "line = cuda.local.array(COLS, float32)\n"),
        ("for i in range(ROWS):\n                " + A, "for j in range(COLS):\n                line[j] = v_tile[r, tx + j * TX]"),
        ("for j in range(COLS):\n                " + B, "for i in range(ROWS):\n                x = p_tile[ty + i * TY, r]"),
        ("for i in range(ROWS):\n                    " + SUM, "for j in range(COLS):\n                    acc[i, j] += x * line[j]"),
    ]),
]  # fmt: skip

EQUIVALENT = []
