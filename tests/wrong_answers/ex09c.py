"""Wrong and right answers of ex09c: see tests/wrong_answers/__init__.py."""

LIVE = "    live = sees.reshape(rows, BLOCK_M, cols, BLOCK_N).any(axis=(1, 3))\n"
KEYS = "    keys = live.any(axis=0).sum() * BLOCK_N * HEAD_DIM\n"
QUERIES = "    queries = live.sum() * BLOCK_M\n"
MOVED = (
    '    moved = {"q": queries * HEAD_DIM, "k": keys, "v": keys, "out": 2 * queries * HEAD_DIM}\n'
)
RETURN = '    return moved | {"l": 2 * queries, "m": 2 * queries}\n'

WRONG = [
    ("a tile must be full", LIVE, LIVE.replace("any", "all")),
    ("the axes exchanged", LIVE, "    live = sees.reshape(BLOCK_M, rows, BLOCK_N, cols)"
                                 ".any(axis=(0, 2))\n"),
    ("k for each live tile", KEYS, KEYS.replace("live.any(axis=0).sum()", "live.sum()")),
    ("k for all columns", KEYS, KEYS.replace("live.any(axis=0).sum()", "cols")),
    ("k by rows of tiles", KEYS, KEYS.replace("axis=0", "axis=1")),
    ("q for each row of tiles once", QUERIES, QUERIES.replace("live.sum()",
                                                              "live.any(axis=1).sum()")),
    ("wanted pairs", QUERIES, "    queries = sees.sum()\n"),
    ("dead tiles, too", QUERIES, QUERIES.replace("live.sum()", "live.size")),
    ("BLOCK_N queries", QUERIES, QUERIES.replace("BLOCK_M", "BLOCK_N")),
    ("out is stored alone", MOVED, MOVED.replace("2 * queries", "queries")),
    ("out three times", MOVED, MOVED.replace("2 * queries", "3 * queries")),
    ("q twice", MOVED, MOVED.replace('"q": queries', '"q": 2 * queries')),
    ("l is not loaded", RETURN, RETURN.replace('"l": 2 * queries', '"l": queries')),
    ("m of each column", RETURN, RETURN.replace('"m": 2 * queries', '"m": 2 * queries * HEAD_DIM')),
    ("bytes", RETURN, '    moved |= {"l": 2 * queries, "m": 2 * queries}\n'
                      "    return {name: 4 * number for name, number in moved.items()}\n"),
    ("no m", RETURN, '    return moved | {"l": 2 * queries}\n'),
    ("a sum", RETURN, "    return sum(moved.values())\n"),
    ("tiles of 32 keys at most", KEYS, KEYS.replace("BLOCK_N", "min(BLOCK_N, 32)")),
    ("tiles of 64 queries at most", QUERIES, QUERIES.replace("BLOCK_M", "min(BLOCK_M, 64)")),
    ("128 columns at most", KEYS, KEYS.replace("HEAD_DIM", "min(HEAD_DIM, 128)")),
    ("eight tiles of keys at most", KEYS, KEYS.replace("live.any(axis=0)", "live[:, :8].any(axis=0)")),
    ("256 queries at most", QUERIES, QUERIES.replace("live.sum()", "live[: max(1, 256 // BLOCK_M)].sum()")),
]  # fmt: skip

RIGHT = [
    ("tile by tile", """
def elements_moved(sees, BLOCK_M, BLOCK_N, HEAD_DIM):
    moved = dict.fromkeys(("q", "k", "v", "out", "l", "m"), 0)
    for n in range(0, sees.shape[1], BLOCK_N):
        live = [
            m
            for m in range(0, sees.shape[0], BLOCK_M)
            if sees[m : m + BLOCK_M, n : n + BLOCK_N].any()
        ]
        if live:
            moved["k"] += BLOCK_N * HEAD_DIM
            moved["v"] += BLOCK_N * HEAD_DIM
        for _ in live:
            moved["q"] += BLOCK_M * HEAD_DIM
            moved["out"] += 2 * BLOCK_M * HEAD_DIM
            moved["l"] += 2 * BLOCK_M
            moved["m"] += 2 * BLOCK_M
    return moved
"""),
    ("sums of a count of pairs", LIVE, "    pairs = sees.reshape(rows, BLOCK_M, cols, BLOCK_N)\n"
                                       "    live = pairs.sum(axis=3).sum(axis=1) > 0\n"),
]  # fmt: skip

EQUIVALENT = []
