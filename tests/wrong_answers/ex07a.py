"""ex07a: live tiles and masked tiles of a causal mask."""

# fmt: off
LIVE = "return max(0, math.ceil(num_keys / BLOCK_N))"
MASK = "return last_n > last_key(m_tile * BLOCK_M, seqlen_q, seqlen_k)"
GRID = "num_m_tiles = math.ceil(seqlen_q / BLOCK_M)"

WRONG = [
    ("top-left aligned", "return m + seqlen_k - seqlen_q", "return m"),
    ("strict mask", "return m + seqlen_k - seqlen_q", "return m + seqlen_k - seqlen_q - 1"),
    ("queries that do not exist count", "min((m_tile + 1) * BLOCK_M, seqlen_q)", "((m_tile + 1) * BLOCK_M)"),
    ("a tile of no keys counts negatively", "max(0, math.ceil(num_keys / BLOCK_N))", "math.ceil(num_keys / BLOCK_N)"),
    ("rounded down", LIVE, "return max(0, num_keys // BLOCK_N)"),
    ("the first query, not the last", "last_m = min((m_tile + 1) * BLOCK_M, seqlen_q) - 1", "last_m = m_tile * BLOCK_M"),
    ("float32 has 24 bits", LIVE, "import numpy as np\n    return max(0, math.ceil(np.float32(num_keys) / np.float32(BLOCK_N)))"),
    ("a loop over keys", LIVE, "return sum(1 for n in range(0, max(0, num_keys), BLOCK_N))"),
    ("needs_mask by the last query", MASK, "return last_n > last_key((m_tile + 1) * BLOCK_M - 1, seqlen_q, seqlen_k)"),
    ("needs_mask for square problems only", MASK, "return last_n > m_tile * BLOCK_M"),
    ("needs_mask always", MASK, "return True"),
    ("the ragged last tile forgotten", MASK, "return min(last_n, seqlen_k - 1) > last_key(m_tile * BLOCK_M, seqlen_q, seqlen_k)"),
    ("needs_mask is an int", MASK, MASK.replace("return ", "return int(") + ")"),
    ("the last m-tile is missing", GRID, "num_m_tiles = seqlen_q // BLOCK_M"),
    ("the whole grid, dead tiles too", "num_live_n_tiles(m_tile, BLOCK_M, BLOCK_N, seqlen_q, seqlen_k)\n        for", "math.ceil(seqlen_k / BLOCK_N)\n        for"),
    ("counts are floats", "return m + seqlen_k - seqlen_q", "return float(m + seqlen_k - seqlen_q)"),
    ("tiles of 64 queries at most", "min((m_tile + 1) * BLOCK_M, seqlen_q)", "min((m_tile + 1) * min(BLOCK_M, 64), seqlen_q)"),
    ("tiles of 64 keys at most", LIVE, LIVE.replace("BLOCK_N", "min(BLOCK_N, 64)")),
    ("needs_mask of 64 keys at most", "last_n = (n_tile + 1) * BLOCK_N - 1", "last_n = (n_tile + 1) * min(BLOCK_N, 64) - 1"),
]

RIGHT = [
    ("floor division of negatives", [(LIVE, "return max(0, -(-num_keys // BLOCK_N))"), (GRID, "num_m_tiles = (seqlen_q + BLOCK_M - 1) // BLOCK_M"),]),
    ("a Python loop over m-tiles", [
        (GRID, "total = 0"),
        ("""    return sum(
        num_live_n_tiles(m_tile, BLOCK_M, BLOCK_N, seqlen_q, seqlen_k)
        for m_tile in range(num_m_tiles)
    )""", """    for i in range(0, seqlen_q, BLOCK_M):
        total += num_live_n_tiles(i // BLOCK_M, BLOCK_M, BLOCK_N, seqlen_q, seqlen_k)
    return total"""),
    ]),
]

EQUIVALENT = []
