"""ex13c: the last tile that TMA brings."""

# fmt: off
# `published` has most of these lines, too: the whole body is changed at once.
HEAD = '    """Attention for any number of keys."""\n'
BODY = HEAD + """    m_i, l_i, acc = np.full((len(q), 1), -np.inf), np.zeros((len(q), 1)), np.zeros(q.shape)
    copies = Copies()
    for n_start in range(0, len(k), BLOCK_N):
        there = min(BLOCK_N, len(k) - n_start)  # keys that exist
        copies.expect(2 * BLOCK_N * k.shape[1] * k.itemsize)
        k_tile = copies.load(k, n_start, BLOCK_N)
        v_tile = copies.load(v, n_start, BLOCK_N)
        copies.wait()
        s = q @ k_tile.T / np.sqrt(q.shape[1])
        s[:, there:] = -np.inf
"""
EXPECT = "copies.expect(2 * BLOCK_N * k.shape[1] * k.itemsize)"
MASK = "s[:, there:] = -np.inf"


def changed(*pairs):
    text = BODY
    for old, new in pairs:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return BODY, text


WRONG = [
    ("as published", *changed((EXPECT, EXPECT.replace("BLOCK_N", "there")), ("        " + MASK + "\n", ""))),
    ("the mask alone", EXPECT, EXPECT.replace("BLOCK_N", "there")),
    ("eight bytes always", EXPECT, EXPECT.replace("k.itemsize", "8")),
    ("scores 0", MASK, "s[:, there:] = 0"),
    ("scores -1", MASK, "s[:, there:] = -1"),
    ("one key too many", MASK, "s[:, there + 1:] = -np.inf"),
    ("one key too few", MASK, "s[:, there - 1:] = -np.inf"),
    ("in every tile", MASK, "s[:, len(k) % BLOCK_N:] = -np.inf"),
    ("rows masked", MASK, "s[there:] = -np.inf"),
    ("a NaN", MASK, "s[:, there:] = np.nan"),
    ("never waits, never masks", *changed(("        copies.wait()\n", ""), ("        " + MASK + "\n", ""))),
    ("leaves the last tile out", *changed(("range(0, len(k), BLOCK_N)", "range(0, len(k) - BLOCK_N + 1, BLOCK_N)"))),
    ("masks all that is 0", MASK, "s[:, there:] *= -np.inf"),
    ("scores -1e4", MASK, "s[:, there:] = -1e4"),
    ("scores -1e9", MASK, "s[:, there:] = -1e9"),
    ("scores -1e30", MASK, "s[:, there:] = -1e30"),
    ("0 for the first maximum", *changed(("np.full((len(q), 1), -np.inf)", "np.zeros((len(q), 1))"))),
    ("-1e4 for the first maximum", *changed(("np.full((len(q), 1), -np.inf)", "np.full((len(q), 1), -1e4)"))),
    ("a key of score 0 does not exist", MASK, "s[s == 0] = -np.inf"),
    ("256 keys at most", *changed(("range(0, len(k), BLOCK_N)", "range(0, min(len(k), 256), BLOCK_N)"))),
    ("128 columns at most", *changed(("s = q @ k_tile.T", "s = q[:, :128] @ k_tile[:, :128].T"))),
    ("64 keys of a tile at most", MASK, "s[:, min(there, 64):] = -np.inf"),
]

RIGHT = [
    ("a large negative score", MASK, "s[:, there:] = -1e300"),
    ("np.where", MASK, "s = np.where(np.arange(BLOCK_N) < there, s, -np.inf)"),
    ("the tile is cut", *changed((MASK, "s, v_tile = s[:, :there], v_tile[:there]"))),
]

EQUIVALENT = []
