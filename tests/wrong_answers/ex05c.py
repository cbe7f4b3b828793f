"""Wrong and right answers of ex05c: see tests/wrong_answers/__init__.py."""

TILE = "    tile = cuda.shared.array((32, 33), float32)  # an odd row length: no bank conflicts\n"
FIRST = "    t, first = cuda.threadIdx.x, cuda.blockIdx.x * 32\n    total = float32(0)\n"
LOOP = "    for start in range(0, x.shape[1], 32):\n"
ROWS = "        for r in range(32):\n"
LOAD = "            tile[r, t] = x[first + r, start + t]\n"
READY = "        cuda.syncwarp()  # the tile is complete: safe to read\n"
COLS = "        for c in range(32):\n"
ADD = "            total += tile[t, c]\n"
DONE = "        cuda.syncwarp()  # every thread has read its row: safe to overwrite\n"
STORE = "    y[first + t] = total"
ALL = FIRST + TILE + LOOP + ROWS + LOAD + READY + COLS + ADD + DONE + STORE

WRONG = [
    ("as it was", ALL, """    m = cuda.grid(1)
    mine = float32(0)
    for n in range(x.shape[1]):
        mine += x[m, n]
    y[m] = mine"""),
    ("not padded", TILE, TILE.replace("33", "32")),
    ("a row more for padding", TILE, TILE.replace("(32, 33)", "(33, 32)")),
    ("the tile loaded down columns", LOAD, "            tile[t, r] = x[first + t, start + r]\n"),
    ("the first tile alone", LOOP, LOOP.replace("x.shape[1]", "32")),
    ("the last tile is left out", LOOP, LOOP.replace("x.shape[1]", "x.shape[1] - 32")),
    ("16 columns of each tile", COLS, COLS.replace("32", "16")),
    ("the sum begins anew", READY, READY + "        total = float32(0)\n"),
    ("thread 0 adds all", [(COLS, "        if t == 0:\n            total = float32(0)\n" + COLS)]),
    ("a second tile", TILE, TILE + "    other = cuda.shared.array((32, 33), float32)\n    other[0, cuda.threadIdx.x] = float32(0)\n"),
    ("a tile as wide as x", TILE, TILE.replace("33", "129")),
    ("float64", FIRST, FIRST.replace("float32(0)", "0.0")),
    ("the sum in y", [(ADD, ADD + "        y[first + t] = total\n")]),
    ("x is loaded twice", LOAD, "            tile[r, t] = x[first + r, start + t]\n            tile[r, t] = x[first + r, start + t]\n"),
    ("256 columns at most", LOOP, LOOP.replace("x.shape[1]", "min(x.shape[1], 256)")),
    ("10 thread blocks at most", LOOP, "    if first >= 320:\n        return\n" + LOOP),
    ("the first tile in each turn", "x[first + r, start + t]", "x[first + r, t]"),
]  # fmt: skip

RIGHT = [
    ("by shuffles, without a tile", ALL, """    t, first = cuda.threadIdx.x, cuda.blockIdx.x * 32
    mine = float32(0)
    for r in range(32):
        total = float32(0)
        for start in range(0, x.shape[1], 32):
            total += x[first + r, start + t]
        for distance in (16, 8, 4, 2, 1):
            total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)
        if t == r:
            mine = total
    y[first + t] = mine"""),
    ("each thread begins elsewhere, no padding", [(TILE, TILE.replace("33", "32")), (ADD, ADD.replace("[t, c]", "[t, (c + t) % 32]"))]),
    ("a swizzle", [(TILE, TILE.replace("33", "32")), (LOAD, LOAD.replace("[r, t] =", "[r, t ^ r] =")), (ADD, ADD.replace("[t, c]", "[t, c ^ t]"))]),
    ("the barrier of a thread block", [(READY, READY.replace("warp", "threads")), (DONE, DONE.replace("warp", "threads"))]),
]  # fmt: skip

EQUIVALENT = [
    (f"{LOOP.strip()} -> {LOOP.strip().replace('[1], 32', '[1] - 1, 32')}", "N is a multiple of 32: the last start is N - 32"),
]  # fmt: skip
