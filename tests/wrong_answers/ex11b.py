"""ex11b: 4 x 4 sums in a thread."""

COLUMN = "column = cuda.local.array(4, float32)\n"
A = "column[i] = a_tile[ty + i * TX, k]"
B = "x = b_tile[k, tx + j * TX]"
SUM = "acc[i, j] += column[i] * x"
PLACE = "row, col = first_row + i * TX, first_col + j * TX"
TEST = "if row < c.shape[0] and col < c.shape[1]:"
STORE = "c[row, col] = acc[i, j]"
K = "for k in range(TX):"
FIRST = "for i in range(4):\n                column"

WRONG = [
    ("neighbouring rows", A, "column[i] = a_tile[4 * ty + i, k]"),
    ("neighbouring columns", B, "x = b_tile[k, 4 * tx + j]"),
    ("neighbours in both and in the store", [(A, "column[i] = a_tile[4 * ty + i, k]"), (B, "x = b_tile[k, 4 * tx + j]"), (PLACE, "row, col = first_row + 3 * ty + i, first_col + 3 * tx + j")]),
    ("two loads for each product", SUM, "acc[i, j] += a_tile[ty + i * TX, k] * b_tile[k, tx + j * TX]"),
    ("a is loaded again", SUM, "acc[i, j] += a_tile[ty + i * TX, k] * x"),
    ("b is loaded again", SUM, "acc[i, j] += column[i] * b_tile[k, tx + j * TX]"),
    ("one sum", SUM, "acc[0, 0] += column[i] * x"),
    ("four values of k", K, "for k in range(4):"),
    ("three rows", FIRST, FIRST.replace("4", "3")),
    ("rows 4 apart", A, "column[i] = a_tile[ty + i * 4, k]"),
    ("columns 4 apart", B, "x = b_tile[k, tx + j * 4]"),
    ("tx for ty", A, "column[i] = a_tile[tx + i * TX, k]"),
    ("no test", TEST, "if True:"),
    ("the first element is tested", TEST, "if first_row < c.shape[0] and first_col < c.shape[1]:"),
    ("added to c", STORE, "c[row, col] += acc[i, j]"),
    ("one element", STORE, "c[row, col] = acc[0, 0]"),
    ("all of the column", COLUMN, "column = cuda.local.array(16, float32)\n"),
    ("float64", COLUMN, "column = cuda.local.array(4, 'float64')\n"),
    ("float16 sums", SUM, "acc[i, j] += float32(int(column[i] * 2048)) / float32(2048) * x"),
    ("256 values of k at most", "for k_start in range(0, a.shape[1], TX):", "for k_start in range(0, min(a.shape[1], 256), TX):"),
    ("256 rows at most", TEST, "if row < min(c.shape[0], 256) and col < c.shape[1]:"),
    ("256 columns at most", TEST, "if row < c.shape[0] and col < min(c.shape[1], 256):"),
    ("the last k alone", "acc[i, j] += column[i] * x", "acc[i, j] = column[i] * x"),
]  # fmt: skip

RIGHT = [
    ("four numbers of b are kept, rows outside", [(A, "column[i] = b_tile[k, tx + i * TX]"), (B, "x = a_tile[ty + j * TX, k]"), (SUM, "acc[j, i] += column[i] * x"),]),
    ("both are kept", [(COLUMN, COLUMN + "        line = cuda.local.array(4, float32)\n"), (A, A + "\n                line[i] = b_tile[k, tx + i * TX]"), (B, "x = line[j]"),]),
    ("from the last k", K, "for k in range(TX - 1, -1, -1):"),
]  # fmt: skip

EQUIVALENT = [
    (f"{COLUMN.strip()} -> {COLUMN.strip().replace('4,', '5,')}", "8 floats beside acc are allowed",),
]  # fmt: skip
