"""Wrong and right answers of ex00h: see tests/wrong_answers/__init__.py."""

POINT = "    i = cuda.blockIdx.x * POINTS + t % POINTS\n"
BRANCH = "    if t < POINTS:\n"
FIRST = "        out_x[i] = c[i] * x[i] - s[i] * y[i]\n"
SECOND = "        out_y[i] = s[i] * x[i] + c[i] * y[i]\n"
SIDES = FIRST + "    else:\n" + SECOND
WHOLE = POINT + BRANCH + SIDES.rstrip()

WRONG = [
    ("as it was given", POINT + BRANCH, "    i = cuda.blockIdx.x * POINTS + t // 2\n    if t % 2 == 0:\n"),
    ("the branch alone", POINT, "    i = cuda.blockIdx.x * POINTS + t // 2\n"),
    ("the point alone", BRANCH, "    if t % 2 == 0:\n"),
    ("a border inside of a warp", POINT + BRANCH, "    i = cuda.blockIdx.x * POINTS + (t + 48) % POINTS\n    if 16 <= t < 80:\n"),
    ("sixteens in turn", POINT + BRANCH, "    i = cuda.blockIdx.x * POINTS + t // 32 * 16 + t % 16\n    if t // 16 % 2 == 0:\n"),
    ("a warp too many", BRANCH, "    if t < POINTS + 32:\n"),
    ("the first point left out", BRANCH, "    if 0 < t < POINTS:\n"),
    ("thread blocks of 128 points", POINT, "    i = cuda.blockIdx.x * 128 + t % POINTS\n"),
    ("all threads do both", WHOLE, POINT + FIRST.replace("        ", "    ") + SECOND.replace("        ", "    ").rstrip()),
    ("exchanged", BRANCH, "    if t >= POINTS:\n        out_y[i] = c[i] * x[i] - s[i] * y[i]\n    elif t >= 0:\n"),
    ("loads before the branch, twice", POINT, POINT + "    u = x[i] * c[i]\n"),
    ("through local memory", POINT, POINT + "    own = cuda.local.array(1, cuda.types.float32)\n    own[0] = x[i]\n"),
    ("8 thread blocks at most", POINT, POINT + "    if cuda.blockIdx.x >= 8:\n        return\n"),
]  # fmt: skip

RIGHT = [
    ("half of the threads do both", WHOLE, POINT + BRANCH + FIRST + SECOND.rstrip()),
    ("the best known", WHOLE, POINT + BRANCH + "        px, py, pc, ps = x[i], y[i], c[i], s[i]\n        out_x[i] = pc * px - ps * py\n        out_y[i] = ps * px + pc * py"),
    ("warps in turn", POINT + BRANCH, "    i = cuda.blockIdx.x * POINTS + t // 64 * 32 + t % 32\n    if t // 32 % 2 == 0:\n"),
    ("the second half first", POINT + BRANCH + SIDES, "    i = cuda.blockIdx.x * 64 + t\n    if t >= 64:\n        i -= 64\n        out_y[i] = c[i] * y[i] + s[i] * x[i]\n    else:\n" + FIRST),
    ("numbers first", POINT + BRANCH + SIDES,
     POINT + "    px, py, pc, ps = x[i], y[i], c[i], s[i]\n" + BRANCH
     + "        out_x[i] = pc * px - ps * py\n    else:\n        out_y[i] = ps * px + pc * py\n"),
]  # fmt: skip

EQUIVALENT = []
