"""ex09b: five points of a tile."""

# fmt: off
STEP = "return BLOCK - 1"
TILE = "tile = sees[m_start : m_start + BLOCK_M, n_start : n_start + BLOCK_N]"

WRONG = [
    ("a step that divides nothing in the tile", STEP, "return 2 * BLOCK"),
    ("every other key", STEP, "return 2"),
    ("three", STEP, "return 3"),
    ("seven", STEP, "return 7"),
    ("a float", STEP, "return BLOCK / 2 + 0.5"),
    ("a loop over steps", STEP, "step = 1\n    while any(x % step == 0 for x in (1, BLOCK, 2 * BLOCK - 1)) or step < BLOCK - 1:\n        step += 1\n    return step"),
    ("five points again", TILE, "return broken_class(sees, m_start, n_start, BLOCK_M, BLOCK_N)"),
    ("every other pair", TILE, TILE.replace("BLOCK_M,", "BLOCK_M : 2,").replace("BLOCK_N]", "BLOCK_N : 2]")),
    ("the last row is missing", TILE, TILE.replace("+ BLOCK_M,", "+ BLOCK_M - 1,")),
    ("the last column is missing", TILE, TILE.replace("+ BLOCK_N]", "+ BLOCK_N - 1]")),
    ("a row too many", TILE, TILE.replace("+ BLOCK_M,", "+ BLOCK_M + 1,")),
    ("square tiles", TILE, TILE.replace("n_start + BLOCK_N", "n_start + BLOCK_M")),
    ("always mixed", TILE, "return MIXED"),
    ("64 columns at most", TILE, TILE.replace("+ BLOCK_N]", "+ min(BLOCK_N, 64)]")),
    ("256 rows at most", TILE, TILE.replace("+ BLOCK_M,", "+ min(BLOCK_M, 256),")),
    ("whole if any", "return WHOLE if tile.all() else MIXED", "return WHOLE if tile.any() else MIXED"),
    ("writes", TILE, "sees[m_start, n_start] = True\n    " + TILE),
    ("a Python loop", TILE, TILE + "\n    seen = [bool(x) for row in tile for x in row]\n    tile = sees[:1, :1] * 0 + all(seen)"),
]

RIGHT = [
    ("another step", STEP, "return BLOCK + 1 if BLOCK > 3 else 2"),
    ("counted", "    if not tile.any():\n        return HIDDEN\n    return WHOLE if tile.all() else MIXED", "    seen = int(tile.sum())\n    return HIDDEN if seen == 0 else WHOLE if seen == tile.size else MIXED"),
]

EQUIVALENT = [
    ("return BLOCK - 1 -> return BLOCK + 1", "it divides none of 1, BLOCK and 2 BLOCK - 1 either"),
]
