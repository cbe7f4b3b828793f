"""ex13c: the last tile."""

# make_broken shares lines with the solution: these stand only in the solution.
# fmt: off
EXPECT = "            expect(barrier, 2 * BLOCK_N * HEAD_DIM * 4)\n"
EXISTS = "exists = n_start + c < k.shape[0]"
SCORE = "s[c] = dot * softmax_scale if exists else float32(-math.inf)"
LOOP = "for n_start in range(0, k.shape[0], BLOCK_N):\n" + EXPECT
DOT = "dot += q[row, d] * k_tile[c, d]\n                " + EXISTS
MAX = SCORE + "\n                m_new = max(m_new, s[c])"
ALL = "0, k.shape[0], BLOCK_N"

WRONG = [
    ("the bytes as they were", EXPECT, "            there = min(BLOCK_N, k.shape[0] - n_start)\n            expect(barrier, 2 * there * HEAD_DIM * 4 + 0)\n"),
    ("the bytes alone are mended", SCORE, "s[c] = dot * softmax_scale + 0 * n_start if c >= 0 else float32(0)"),
    ("bytes of float16", EXPECT, EXPECT.replace(" * 4", " * 2")),
    ("announced twice", EXPECT, EXPECT + EXPECT),
    ("not announced", EXPECT, ""),
    ("the last key is masked, too", EXISTS, "exists = n_start + c < k.shape[0] - 1"),
    ("every tile is masked like the last", EXISTS, "exists = c < (k.shape[0] - 1) % BLOCK_N + 1"),
    ("-1e4 for a key that does not exist", SCORE, SCORE.replace("float32(-math.inf)", "float32(-1e4)")),
    ("-1e9 for a key that does not exist", SCORE, SCORE.replace("float32(-math.inf)", "float32(-1e9)")),
    ("-1e30 for a key that does not exist", SCORE, SCORE.replace("float32(-math.inf)", "float32(-1e30)")),
    ("0 for a key that does not exist", SCORE, SCORE.replace("float32(-math.inf)", "float32(0.0)")),
    ("masked before the scale", SCORE, "s[c] = (dot if exists else float32(-1e5)) * softmax_scale"),
    ("masked after the maximum", MAX, "s[c] = dot * softmax_scale\n                m_new = max(m_new, s[c])\n                s[c] = s[c] if exists else float32(-math.inf)"),
    ("scores of 0 are masked", SCORE, SCORE.replace("if exists", "if dot != 0")),
    ("the last tile is left out", LOOP, LOOP.replace("range(0, k.shape[0], BLOCK_N)", "range(0, k.shape[0] // BLOCK_N * BLOCK_N, BLOCK_N)")),
    ("16 tiles at most", LOOP, LOOP.replace("range(0, k.shape[0], BLOCK_N)", "range(0, min(k.shape[0], 16 * BLOCK_N), BLOCK_N)")),
    ("128 columns", DOT, "dot += q[row, d] * k_tile[c, d] if d < 128 else float32(0.0)\n                " + EXISTS),
    ("tiles of 64 keys", EXISTS, "exists = n_start + c < k.shape[0] and c < 64"),
    ("keys from HBM", DOT, "dot += q[row, d] * k[min(n_start + c, k.shape[0] - 1), d]\n                " + EXISTS),
    ("float64", SCORE, SCORE.replace("dot * softmax_scale", "dot * softmax_scale * 1.0000000001")),
]

RIGHT = [
    ("the mask behind the loop", [(EXISTS + "\n                ", ""), (SCORE, "s[c] = dot * softmax_scale\n                if n_start + c >= k.shape[0]:\n                    s[c] = float32(-math.inf)")]),
    ("what is there", [(EXPECT, "            there = k.shape[0] - n_start\n            expect(barrier, 8 * BLOCK_N * HEAD_DIM)\n"), (EXISTS, "exists = c < there")]),
]

EQUIVALENT = [
    ("barrier[ANNOUNCED] = barrier[ARRIVED] = 0 -> barrier[ANNOUNCED] = barrier[ARRIVED] = 1", "only their difference counts"),
]
