"""Wrong and right answers of ex03d: see tests/wrong_answers/__init__.py."""

LAST = "    last = x_best.shape[0] - 1\n"
ENTER = "    if ranks_before(x_j, col, x_best[last], col_best[last]):\n"
CLIMB = "        for i in range(last, 0, -1):\n"
SWAP = "            if ranks_before(x_best[i], col_best[i], x_best[i - 1], col_best[i - 1]):\n"
SWAP_COLS = "                col_best[i - 1], col_best[i] = col_best[i], col_best[i - 1]\n"

WRONG = [
    ("any score enters", ENTER, "    if x_j > -math.inf:\n"),
    ("-inf never enters", ENTER, ENTER.replace("if ", "if x_j > -math.inf and ")),
    ("below -1e9 never enters", ENTER, ENTER.replace("if ", "if x_j > float32(-1e9) and ")),
    ("equal scores never enter", ENTER, "    if x_j > x_best[last]:\n"),
    ("16 slots at most", LAST, "    last = min(x_best.shape[0], 16) - 1\n"),
    ("climbs one slot", CLIMB, "        for i in range(last, last - 1, -1):\n"),
    ("climbs down", CLIMB, "        for i in range(1, last + 1):\n"),
    ("the columns stay behind", SWAP_COLS, ""),
    ("the larger column first", SWAP, "            if x_best[i] > x_best[i - 1] or (x_best[i] == x_best[i - 1] and col_best[i] > col_best[i - 1]):\n"),
    ("no rule for ties", SWAP, "            if x_best[i] > x_best[i - 1]:\n"),
    ("columns compared as float32", SWAP, "            if x_best[i] > x_best[i - 1] or (x_best[i] == x_best[i - 1] and float32(col_best[i]) < float32(col_best[i - 1])):\n"),
    ("the column is cut to 16 bits", "        col_best[last] = col\n", "        col_best[last] = col % 65536\n"),
    ("a third list", LAST, LAST + "    spare = cuda.local.array(4, float32)\n    spare[0] = x_j\n    x_j = spare[0]\n"),
    ("the row again from a shared array", LAST, LAST + "    spare = cuda.shared.array(32, float32)\n    spare[cuda.threadIdx.x] = x_j\n    x_j = spare[cuda.threadIdx.x]\n"),
    ("0 counts as empty", ENTER, ENTER.replace("if ", "if x_j != 0 and ")),
    ("256 columns at most", "        for col in range(x.shape[1]):\n", "        for col in range(min(x.shape[1], 256)):\n"),
    ("the first warp alone", "        if row >= x.shape[0]:\n", "        if row >= x.shape[0] or cuda.threadIdx.x >= 32:\n"),
]  # fmt: skip

RIGHT = [
    ("a search for the slot, then a shift",
     LAST + ENTER + "        x_best[last] = x_j\n        col_best[last] = col\n" + CLIMB + SWAP
     + "                x_best[i - 1], x_best[i] = x_best[i], x_best[i - 1]\n" + SWAP_COLS,
     """    i = len(x_best)
    while i > 0 and ranks_before(x_j, col, x_best[i - 1], col_best[i - 1]):
        i -= 1
        if i + 1 < len(x_best):
            x_best[i + 1] = x_best[i]
            col_best[i + 1] = col_best[i]
    if i < len(x_best):
        x_best[i] = x_j
        col_best[i] = col
"""),
    ("the newcomer in registers until its slot is found",
     LAST + ENTER + "        x_best[last] = x_j\n        col_best[last] = col\n" + CLIMB + SWAP
     + "                x_best[i - 1], x_best[i] = x_best[i], x_best[i - 1]\n" + SWAP_COLS,
     """    for i in range(x_best.shape[0]):
        if ranks_before(x_j, col, x_best[i], col_best[i]):
            x_old, col_old = x_best[i], col_best[i]
            x_best[i], col_best[i] = x_j, col
            x_j, col = x_old, col_old
"""),
]  # fmt: skip

EQUIVALENT = []
