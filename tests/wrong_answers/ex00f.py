"""Wrong and right answers of ex00f: see tests/wrong_answers/__init__.py."""

FILL = "    tile[t] = x[i]\n"
BARRIER = "    cuda.syncthreads()\n"
START = "    largest = tile[0]\n"
LOOP = "    for j in range(1, TILE):\n"
KEEP = "        largest = max(largest, tile[j])\n"
STORE = "    out[i] = tile[t] - largest"

WRONG = [
    ("the barrier behind the loop", [(BARRIER, ""), (STORE, BARRIER + STORE)]),
    ("syncwarp", BARRIER, "    cuda.syncwarp()\n"),
    ("a barrier for half of them", BARRIER, "    if t < 32:\n    " + BARRIER),
    ("from zero", START, "    largest = float32(0.0)\n"),
    ("from one's own, a short loop", [(START, "    largest = tile[t]\n"), (LOOP, "    for j in range(t + 1, TILE):\n")]),
    ("half a tile", LOOP, LOOP.replace("TILE", "TILE // 2")),
    ("past the tile", LOOP, LOOP.replace("TILE", "TILE + 1")),
    ("the newest", KEEP, "        largest = tile[j]\n"),
    ("a sum", KEEP, "        largest += tile[j]\n"),
    ("x read again", STORE, "    out[i] = x[i] - largest"),
    ("all from HBM", FILL + BARRIER + START + LOOP + KEEP, "    tile[t] = x[i]\n    cuda.syncthreads()\n    largest = x[i - t]\n" + LOOP + KEEP.replace("tile[j]", "x[i - t + j]")),
    ("filled by the wrong place", FILL, "    tile[t] = x[t]\n"),
    ("thread 0 fills", FILL, "    if t == 0:\n        for j in range(TILE):\n            tile[j] = x[i + j]\n"),
    ("one thread stores", STORE, "    if t == 0:\n        for j in range(TILE):\n            out[i + j] = tile[j] - largest"),
    ("a second tile", FILL, "    other = cuda.shared.array(TILE, float32)\n    other[t] = x[i]\n    tile[t] = other[t]\n"),
    ("from -1e4", START, "    largest = float32(-1e4)\n"),
    ("0 counts as empty", KEEP, "        if largest == 0 or tile[j] > largest:\n            largest = tile[j]\n"),
    ("8 tiles at most", STORE, "    if cuda.blockIdx.x < 8:\n    " + STORE),
    ("the first warp alone", STORE, "    if t < 32:\n    " + STORE),
]  # fmt: skip

RIGHT = [
    ("an if, from one's own", [(START, "    mine = largest = tile[t]\n"),
                               (LOOP, "    for j in range(TILE):\n"),
                               (KEEP, "        if tile[j] > largest:\n"
                                      "            largest = tile[j]\n"),
                               (STORE, "    out[i] = mine - largest")]),
    ("a while loop, own number kept", [
        (FILL, "    own = x[i]\n    tile[t] = own\n"),
        (LOOP + KEEP, "    j = TILE - 1\n    while j > 0:\n"
                      "        largest = max(tile[j], largest)\n        j -= 1\n"),
        (STORE, "    out[i] = own - largest")]),
]  # fmt: skip

EQUIVALENT = []
