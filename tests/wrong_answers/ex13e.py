"""ex13e: the ring in a kernel, a producer and its consumers."""

# fmt: off
USE = "    use, stage = tile // ring.shape[0], tile % ring.shape[0]\n"
EMPTY = "    wait_empty(bars, stage, (use + 1) % 2)\n"
COPY = "    start_copy(ring, bars, stage, x, tile, log)\n"
FULL = "    wait_full(bars, stage, use % 2)\n"
LEFT = "    left = read(ring, bars, stage, i)\n"
RIGHT_READ = "    right = read(ring, bars, stage, (i + 1) % ring.shape[1])\n"
ARRIVE = "    arrive(bars, stage)\n"
RETURN = "    return left * right\n"

WRONG = [
    ("full: the other parity", FULL, FULL.replace("use % 2", "(use + 1) % 2")),
    ("full: always parity 0", FULL, FULL.replace("use % 2", "0")),
    ("full: parity of the tile", FULL, FULL.replace("use % 2", "tile % 2")),
    ("full: not awaited", FULL, ""),
    ("full: awaited by one consumer", FULL, "    if i == 0:\n    " + FULL),
    ("full: another stage", FULL, FULL.replace("stage,", "(stage + 1) % ring.shape[0],")),
    ("full: awaited behind the reads", FULL + LEFT + RIGHT_READ, LEFT + RIGHT_READ + FULL),
    ("empty: the other parity", EMPTY, EMPTY.replace("(use + 1) % 2", "use % 2")),
    ("empty: always parity 1", EMPTY, EMPTY.replace("(use + 1) % 2", "1")),
    ("empty: parity of the tile", EMPTY, EMPTY.replace("(use + 1)", "(tile + 1)")),
    ("empty: not awaited", EMPTY, ""),
    ("empty: awaited behind the copy", EMPTY + COPY, COPY + EMPTY),
    ("empty: another stage", EMPTY, EMPTY.replace("stage,", "(stage + 1) % ring.shape[0],")),
    ("empty: awaited from the third use on", EMPTY, "    if use > 1:\n    " + EMPTY),
    ("the producer waits for full", EMPTY, "    wait_full(bars, stage, (use + 1) % 2)\n"),
    ("nobody arrives", ARRIVE, ""),
    ("one consumer arrives", ARRIVE, "    if i == 0:\n    " + ARRIVE),
    ("all but one arrive", ARRIVE, "    if i > 0:\n    " + ARRIVE),
    ("arrives twice", ARRIVE, ARRIVE + ARRIVE),
    ("arrives for each read", LEFT, LEFT + ARRIVE),
    ("arrives before it reads", FULL, FULL + ARRIVE),
    ("arrives between its reads", LEFT + RIGHT_READ + ARRIVE, LEFT + ARRIVE + RIGHT_READ),
    ("the producer arrives", COPY, COPY + ARRIVE),
    ("copies twice", COPY, COPY + COPY),
    ("copies the next tile", COPY, COPY.replace("tile, log", "(tile + 1) % x.shape[0], log")),
    ("copies tile 0", COPY, COPY.replace("tile, log", "0, log")),
    ("copies into the next stage", COPY, COPY.replace("stage,", "(stage + 1) % ring.shape[0],")),
    ("leaves out the last tile", COPY, "    if tile < x.shape[0] - 1:\n    " + COPY),
    ("reads the next stage", LEFT, LEFT.replace("stage,", "(stage + 1) % ring.shape[0],")),
    ("no neighbour", RIGHT_READ, RIGHT_READ.replace("(i + 1) % ring.shape[1]", "i")),
    ("the left neighbour", RIGHT_READ, RIGHT_READ.replace("(i + 1)", "(i + ring.shape[1] - 1)")),
    ("added", RETURN, "    return left + right\n"),
    ("256 tiles at most", USE + EMPTY, "    if tile >= 256:\n        return\n" + USE + EMPTY),
    ("8 stages at most", USE + EMPTY, "    use, stage = tile // min(ring.shape[0], 8), tile % min(ring.shape[0], 8)\n" + EMPTY),
    ("a barrier of the thread block", ARRIVE, "    cuda.syncthreads()\n" + ARRIVE),
]

RIGHT = [
    ("use and stage apart, parity by a bit", [(USE + FULL, "    stages = ring.shape[0]\n    stage = tile % stages\n    wait_full(bars, stage, (tile // stages) & 1)\n"), (EMPTY, EMPTY.replace("(use + 1) % 2", "1 - use % 2"))]),
    ("one return", [(LEFT + RIGHT_READ, "    product = read(ring, bars, stage, (i + 1) % ring.shape[1]) * read(ring, bars, stage, i)\n"), (RETURN, "    return product\n")]),
]

EQUIVALENT = [
    (f"{EMPTY.strip()} -> " + EMPTY.strip().replace("use + 1", "use - 1"), "the same parity"),
]
