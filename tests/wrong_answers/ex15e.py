"""ex15e: a transposition through a tile."""

TILE = "tile = cuda.shared.array((32, 32), float32)"
FILL = "tile[i, (i + tx) % 32] = x[row + i, col + tx]"
BARRIER = "cuda.syncthreads()  # the tile is complete: safe to read"
EMPTY = "y[col + i, row + tx] = tile[tx, (tx + i) % 32]"

WRONG = [
    ("conflicts", [(FILL, "tile[i, tx] = x[row + i, col + tx]"), (EMPTY, "y[col + i, row + tx] = tile[tx, i]")]),
    ("conflicts in stores", [(FILL, "tile[tx, i] = x[row + i, col + tx]"), (EMPTY, "y[col + i, row + tx] = tile[i, tx]")]),
    ("no tile", [(FILL, "y[col + tx, row + i] = x[row + i, col + tx]"), (EMPTY, "pass")]),
    ("written down columns", EMPTY, "y[col + tx, row + i] = tile[i, (i + tx) % 32]"),
    ("read down columns", [(FILL, "tile[tx, (i + tx) % 32] = x[row + tx, col + i]"), (EMPTY, "y[col + i, row + tx] = tile[tx, (tx + i) % 32]")]),
    ("a copy", EMPTY, "y[col + i, row + tx] = tile[i, (tx + i) % 32]"),
    ("tiles in their old places", EMPTY, "y[row + i, col + tx] = tile[tx, (tx + i) % 32]"),
    ("tiles stay, turned", EMPTY, "y[row % y.shape[0] + i, col % y.shape[1] + tx] = tile[tx, (tx + i) % 32]"),
    ("a quarter", EMPTY, "y[col + ty, row + tx] = tile[tx, (tx + ty) % 32]"),
    ("rows of 34", [(TILE, "tile = cuda.shared.array((32, 34), float32)"), (FILL, "tile[i, tx] = x[row + i, col + tx]"), (EMPTY, "y[col + i, row + tx] = tile[tx, i]")]),
    ("rows of 35: too long", [(TILE, "tile = cuda.shared.array((32, 35), float32)"), (FILL, "tile[i, tx] = x[row + i, col + tx]"), (EMPTY, "y[col + i, row + tx] = tile[tx, i]")]),
    ("shifted by two", [(FILL, "tile[i, (2 * i + tx) % 32] = x[row + i, col + tx]"), (EMPTY, "y[col + i, row + tx] = tile[tx, (2 * tx + i) % 32]")]),
    ("one off", EMPTY, "y[col + i, row + tx] = tile[tx, (tx + i + 1) % 32]"),
    ("stored twice", EMPTY, EMPTY + "\n        y[col + i, row + tx] = tile[tx, (tx + i) % 32]"),
    ("float64", TILE, TILE.replace("float32", "'float64'")),
    ("a tile of its own for each half", TILE, TILE + "\n    other = cuda.shared.array((32, 32), float32)\n    other[ty, tx] = x[row + ty, col + tx]"),
    ("a barrier of each warp", BARRIER, "cuda.syncwarp()"),
    ("the first warp alone", EMPTY, "if ty == 0:\n            " + EMPTY),
    ("256 columns at most", EMPTY, "if col < 256:\n            " + EMPTY),
    ("256 rows at most", EMPTY, "if row < 256:\n            " + EMPTY),
]  # fmt: skip

RIGHT = [
    ("rows of 33", [(TILE, "tile = cuda.shared.array((32, 33), float32)"), (FILL, "tile[i, tx] = x[row + i, col + tx]"), (EMPTY, "y[col + i, row + tx] = tile[tx, i]")]),
    ("a swizzle by XOR", [(FILL, "tile[i, i ^ tx] = x[row + i, col + tx]"), (EMPTY, "y[col + i, row + tx] = tile[tx, tx ^ i]")]),
    ("transposed on the way in", [(TILE, "tile = cuda.shared.array((32, 33), float32)"), (FILL, "tile[tx, i] = x[row + i, col + tx]"), (EMPTY, "y[col + i, row + tx] = tile[i, tx]")]),
]  # fmt: skip

EQUIVALENT = [
    ("tile = cuda.shared.array((32, 32), float32) -> tile = cuda.shared.array((33, 32), float32)", "a row that nobody uses, within the budget",),
]  # fmt: skip
