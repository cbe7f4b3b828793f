"""ex13e: the ring in a kernel."""

# fmt: off
FIRST = "for tile in range(min(NUM_STAGES, num_tiles)):"
START = "start_copy(ring, bars, tile, x[b], tile, log[b])"
LOOP = "for tile in range(num_tiles):"
USE = "use, stage = tile // NUM_STAGES, tile % NUM_STAGES"
FULL = "            wait_full(bars, stage, use % 2)\n"
READ = "left, right = read(ring, bars, stage, tx), read(ring, bars, stage, (tx + 1) % TILE)"
ARRIVE = "            arrive(bars, stage)\n"
IF = "if tx == 0 and tile + NUM_STAGES < num_tiles:"
EMPTY = "                wait_empty(bars, stage, use % 2)\n"
NEXT = "start_copy(ring, bars, stage, x[b], tile + NUM_STAGES, log[b])"
SUM = "\n            total += left * right\n"
COPY = "            " + IF + "\n" + EMPTY + "                " + NEXT + "\n"

WRONG = [
    ("full: the other parity", FULL, FULL.replace("use % 2", "(use + 1) % 2")),
    ("full: always parity 0", FULL, FULL.replace("use % 2", "0")),
    ("full: parity of the tile", FULL, FULL.replace("use % 2", "tile % 2")),
    ("full: not awaited", FULL, ""),
    ("full: awaited by thread 0", FULL, "            if tx == 0:\n    " + FULL),
    ("full: another stage", FULL, FULL.replace("stage,", "(stage + 1) % NUM_STAGES,")),
    ("empty: the other parity", EMPTY, EMPTY.replace("use % 2", "(use + 1) % 2")),
    ("empty: always parity 0", EMPTY, EMPTY.replace("use % 2", "0")),
    ("empty: not awaited", EMPTY, ""),
    ("empty: another stage", EMPTY, EMPTY.replace("stage,", "(stage + 1) % NUM_STAGES,")),
    ("nobody arrives", ARRIVE, ""),
    ("thread 0 alone arrives", ARRIVE, "            if tx == 0:\n    " + ARRIVE),
    ("all but thread 0 arrive", ARRIVE, "            if tx > 0:\n    " + ARRIVE),
    ("arrives twice", ARRIVE, ARRIVE + ARRIVE),
    ("arrives before it reads", "            " + READ + SUM + ARRIVE + COPY, ARRIVE + COPY + "            " + READ + SUM),
    ("one copy at the beginning", FIRST, "for tile in range(1):"),
    ("a tile that does not exist", FIRST, "for tile in range(NUM_STAGES):"),
    ("the copy of the next tile", NEXT, NEXT.replace("tile + NUM_STAGES", "(tile + 1) % num_tiles")),
    ("the last copies are left out", IF, "if tx == 0 and tile + NUM_STAGES < num_tiles - 1:"),
    ("another block's tiles", NEXT, NEXT.replace("x[b]", "x[0]")),
    ("stages backwards", USE, "use, stage = tile // NUM_STAGES, NUM_STAGES - 1 - tile % NUM_STAGES"),
    ("one neighbour", READ, READ.replace("(tx + 1) % TILE", "tx")),
    ("256 tiles at most", LOOP, "for tile in range(min(num_tiles, 256)):"),
    ("8 stages at most", FIRST, "for tile in range(min(NUM_STAGES, 8, num_tiles)):"),
    ("a barrier in the loop", ARRIVE, "            cuda.syncthreads()\n" + ARRIVE),
]

RIGHT = [
    ("stage and parity counted up", [("        for tile in range(num_tiles):\n            " + USE + "\n", "        stage, parity = 0, 0\n        for tile in range(num_tiles):\n"),
        (FULL, FULL.replace("use % 2", "parity")), (EMPTY, EMPTY.replace("use % 2", "parity")),
        (NEXT, NEXT + "\n            stage += 1\n            if stage == NUM_STAGES:\n                stage = 0\n                parity = 1 - parity")]),
    ("loops nested", [(IF, "later = tile + NUM_STAGES\n            if tx == 0 and later < num_tiles:"), (NEXT, NEXT.replace("tile + NUM_STAGES", "later"))]),
]

EQUIVALENT = [
    ("if tx == 0: -> if tx == 1:", "any one thread may start the first copies"),
    ("if tx == 0 and tile + NUM_STAGES < num_tiles: -> if tx == 1 and tile + NUM_STAGES < num_tiles:", "any one thread may start the later copies, if it waits"),
]
