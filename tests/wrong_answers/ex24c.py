"""ex24c: decoding, values are the first columns of keys."""

# fmt: off
TILES = "for n_start in range(0, seqlen_k, BLOCK_N):"
COUNT = "tokens = min(BLOCK_N, seqlen_k - n_start)"
ROWS = "for r in range(ty, tokens, BLOCK_M):"
LOAD = "k_tile[r, d] = latent_cache[b, n_start + r, d]"
KEYS = "for r in range(tokens):"
KEEP = "k_row[c] = k_tile[r, d]"
SUM = "s += q_row[c] * k_row[c]"
SHUFFLE = "s += cuda.shfl_xor_sync(FULL_MASK, s, 16 >> step)"
SCALE = "s *= softmax_scale"
NEW = "m_new = max(m_i, s)"
ALPHA = "alpha = math.exp(m_i - m_new)"
P = "p = math.exp(s - m_new)"
L = "l_i = alpha * l_i + p"
ACC = "acc[c] = alpha * acc[c] + p * k_row[c]"
KEPT = "m_i = m_new\n"
STORE = "store(head, acc, m_i, l_i, out[b], lse[b])"
V_ROW = "d = tx + 32 * c\n                    if d < LATENT_DIM:\n                        acc[c] = alpha * acc[c] + p * "

WRONG = [
    ("the value is the last columns", ACC, V_ROW.replace("d = tx", "d = ROW_DIM - LATENT_DIM + tx").replace("d < LATENT_DIM", "d < ROW_DIM") + "k_tile[r, d]"),
    ("values from HBM again", ACC, V_ROW + "latent_cache[b, n_start + r, d]"),
    ("values from shared memory again", ACC, V_ROW + "k_tile[r, d]"),
    ("the score without the rotated key", SUM, "if d < LATENT_DIM:\n                            " + SUM),
    ("values without the row's own token", ACC, ACC.replace("p * k_row[c]", "p * k_row[0]")),
    ("whole tiles", COUNT, "tokens = BLOCK_N"),
    ("the last tile is missing", TILES, "for n_start in range(0, seqlen_k - BLOCK_N + 1, BLOCK_N):"),
    ("sequence 0", LOAD, LOAD.replace("[b,", "[0,")),
    ("every warp loads every row", ROWS, "for r in range(0, tokens):"),
    ("warps without a head leave", TILES, "if head >= q.shape[1]:\n            return\n        " + TILES),
    ("no scale", SCALE, "s *= float32(1.0)"),
    ("the scale after the maximum", [(SCALE + "\n", "s *= float32(1.0)\n"), (P, "p = math.exp((s - m_new) * softmax_scale)"), (ALPHA, "alpha = math.exp((m_i - m_new) * softmax_scale)")]),
    ("no maximum", NEW, "m_new = float32(0.0)"),
    ("the maximum not kept", KEPT, "m_i = m_i\n"),
    ("-1e9 before the first token", TILES, "m_i = float32(-1e9)\n        " + TILES),
    ("p under the old maximum", P, "p = math.exp(s - max(m_i, float32(-1e30)))"),
    ("divided at each token", ACC, ACC + " / l_i * l_i"),
    ("no butterfly", SHUFFLE, "s += float32(0.0) * cuda.shfl_xor_sync(FULL_MASK, s, 16 >> step)"),
    ("four steps of it", SHUFFLE, "s += cuda.shfl_xor_sync(FULL_MASK, s, 16 >> step) * (step < 4)"),
    ("out of sequence 0", STORE, STORE.replace("out[b]", "out[0]")),
    ("lse of sequence 0", STORE, STORE.replace("lse[b]", "lse[0]")),
    ("a tile of values in shared memory", TILES, "v_tile = cuda.shared.array((BLOCK_N, LATENT_DIM), float32)\n        v_tile[0, 0] = float32(0.0)\n        " + TILES),
    ("256 tokens at most", TILES, TILES.replace("seqlen_k", "min(seqlen_k, 256)")),
    ("float64", ACC, ACC.replace("p * k_row[c]", "p * k_row[c] * 1.0")),
    ("a lane a row", [(ROWS, "for r in range(32 * ty + tx, tokens, 32 * BLOCK_M):"), ("for d in range(tx, ROW_DIM, 32):", "for d in range(ROW_DIM):")]),
]

RIGHT = [
    ("the row in two loops, no branch at the end", [(SUM, "pass"), 
        ("for step in range(5):", "for c in range(ROW_COLS):\n                    s += q_row[c] * k_row[c]\n                for step in range(5):")]),
    ("the tile walked to its end with a test", [(ROWS, "for r in range(ty, BLOCK_N, BLOCK_M):\n                if n_start + r >= seqlen_k:\n                    break"),
        (COUNT + "\n", "tokens = BLOCK_N if n_start + BLOCK_N <= seqlen_k else seqlen_k - n_start\n")]),
    ("two cases in place of a maximum", [(NEW, "m_new = s if s > m_i else m_i"), (ACC, "acc[c] *= alpha\n                    acc[c] += p * k_row[c]")]),
]

EQUIVALENT = [
    ("s += cuda.shfl_xor_sync(FULL_MASK, s, 16 >> step) -> s += cuda.shfl_xor_sync(FULL_MASK, s, 17 >> step)", "distances 17, 8, 4, 2, 1 combine to every distance up to 31 as well"),
]
