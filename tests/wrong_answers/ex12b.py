"""ex12b: a swizzled tile."""

# fmt: off
MAP = "return 32 * row + 4 * ((word // 4) ^ (row % 8)) + word % 4"
WRITE = "tile[word_of(row, lane)] = x[first + row, lane]"
ROWS = "for row in range(warp, 32, 4):"
TASKS = "for task in range(warp, 32, 4):"
PLACE = "chunk, row = task // 4, 8 * (task % 4) + lane // 4"
READ = "y[chunk, first + row, lane % 4] = tile[word_of(row, 4 * chunk + lane % 4)]"

WRONG = [
    ("no swizzle", MAP, "return 32 * row + word"),
    ("xor by half the row", MAP, MAP.replace("row % 8", "row // 2 % 8")),
    ("four places", MAP, MAP.replace("row % 8", "row % 4")),
    ("padded rows", MAP, "return 36 * row % 1024 + word"),
    ("padding", MAP, "return 33 * row + word"),
    ("words swizzled, chunks torn", MAP, "return 32 * row + (word ^ (row % 32))"),
    ("shifted by words", MAP, "return 32 * row + (word + row) % 32"),
    ("right for 24 rows", MAP, MAP.replace("row % 8", "(row % 8 if row < 24 else 0)")),
    ("right from multiples of 8 on alone", MAP, MAP.replace("row % 8", "(row % 8 ^ (row // 8 % 2))")),
    ("right for 256 rows", MAP, MAP.replace("row % 8", "(row % 8 if row < 256 else 0)")),
    ("rows exchanged", MAP, MAP.replace("32 * row", "32 * (row ^ 1)")),
    ("chunks backwards in the tile of 8", MAP, MAP.replace("+ word % 4", "+ 3 - word % 4")),
    ("written elsewhere", WRITE, "tile[32 * row + lane] = x[first + row, lane]"),
    ("read elsewhere", READ, READ.replace("word_of(row, 4 * chunk + lane % 4)", "32 * row + 4 * chunk + lane % 4")),
    ("a chunk of the wrong rows", PLACE, "chunk, row = task % 8, 8 * (task // 8) + lane // 4 + (task // 31)"),
    ("rows by columns", PLACE, "chunk, row = task // 4, 8 * (task % 4) + lane % 8"),
    ("every warp writes all", ROWS, "for row in range(32):"),
    ("chunks of 4 lanes", [(TASKS, "for task in range(warp, 8, 4):"), (PLACE, "chunk, row = task, lane"), (READ, "for i in range(4):\n            y[chunk, first + row, i] = tile[word_of(row, 4 * chunk + i)]")]),
    ("a second tile", WRITE, WRITE + "\n        spare = cuda.shared.array(32, float32)\n        spare[lane] = float32(0.0)"),
    ("two barriers", "    cuda.syncthreads()  # the tile is complete: safe to read\n", "    cuda.syncthreads()\n    cuda.syncthreads()\n"),
    ("a barrier of a warp", "cuda.syncthreads()  # the tile is complete: safe to read", "cuda.syncwarp()"),
    ("256 rows at most", READ, "if first < 256:\n            " + READ),
]

RIGHT = [
    ("shifted by chunks", MAP, "return 32 * row + 4 * ((word // 4 + row) % 8) + word % 4"),
    ("shifted by an odd number of chunks, backwards", MAP, "return 32 * row + 4 * ((word // 4 - 3 * row) % 8) + word % 4"),
    ("tasks by rows first", PLACE, "chunk, row = task % 8, 8 * (task // 8) + lane // 4"),
]

EQUIVALENT = []
