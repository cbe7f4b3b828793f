"""ex24b: scores of a row of two parts."""

# fmt: off
ROWS = "for r in range(ty, min(BLOCK_N, latent.shape[0] - n_start), BLOCK_M):"
FIRST = "for d in range(tx, LATENT_DIM, 32):"
SECOND = "for d in range(tx, ROPE_DIM, 32):"
LATENT = "k_tile[r, d] = latent[n_start + r, d]"
ROPE = "k_tile[r, LATENT_DIM + d] = k_rope[n_start + r, d]"
COLUMN = "d = tx + 32 * c\n            if d < ROW_DIM:"
SUM = "s += q_row[c] * k_tile[r, d]"
STEPS = "for step in range(5):"
SHUFFLE = "s += cuda.shfl_xor_sync(FULL_MASK, s, 16 >> step)"

WRONG = [
    ("the rotated key first", [(LATENT, "k_tile[r, ROPE_DIM + d] = latent[n_start + r, d]"), (ROPE, "k_tile[r, d] = k_rope[n_start + r, d]")]),
    ("whole tiles", ROWS, "for r in range(ty, BLOCK_N, BLOCK_M):"),
    ("only the heads load", ROWS, ROWS + "\n            if cuda.blockIdx.y * BLOCK_M + ty >= 3:\n                break"),
    ("every warp loads every row", ROWS, ROWS.replace("range(ty, min", "range(0, min").replace(", BLOCK_M)", ")")),
    ("32 columns at most", FIRST, "for d in range(tx, min(LATENT_DIM, 32), 32):"),
    ("one number of the rotated key in a lane", SECOND, "for d in range(tx, min(32, ROPE_DIM), 32):"),
    ("lanes own neighbours", [(FIRST, "for d in range(tx * ROW_COLS, min(LATENT_DIM, (tx + 1) * ROW_COLS)):")]),
    ("lanes load rows", [(ROWS, "for r in range(ty * 32 + tx, min(BLOCK_N, latent.shape[0] - n_start), 32 * BLOCK_M):"), (FIRST, "for d in range(LATENT_DIM):"), (SECOND, "for d in range(ROPE_DIM):")]),
    ("the last columns of each row without a test", COLUMN, "d = min(tx + 32 * c, ROW_DIM - 1)\n            if d >= 0:"),
    ("latent columns alone", COLUMN, COLUMN.replace("d < ROW_DIM", "d < LATENT_DIM")),
    ("rotated columns alone", COLUMN, COLUMN.replace("d < ROW_DIM", "LATENT_DIM <= d and d < ROW_DIM")),
    ("no butterfly", [(STEPS, "for step in range(0):")]),
    ("four steps", STEPS, "for step in range(4):"),
    ("the maximum of the lanes", SHUFFLE, "s = max(s, cuda.shfl_xor_sync(FULL_MASK, s, 16 >> step))"),
    ("the butterfly in each column", [(SUM, SUM + "\n            for step in range(5):\n                s += cuda.shfl_xor_sync(FULL_MASK, s, 16 >> step)"), ("        for step in range(5):\n            " + SHUFFLE + "\n        return softmax_scale * s", "        return softmax_scale * s")]),
    ("every lane sums the whole row", [("for c in range(ROW_COLS):\n            d = tx + 32 * c\n            if d < ROW_DIM:\n                " + SUM, "for d in range(ROW_DIM):\n            s += cuda.shfl_sync(FULL_MASK, q_row[d // 32], d % 32) * k_tile[r, d]"), ("        for step in range(5):\n            " + SHUFFLE + "\n        return softmax_scale * s", "        return softmax_scale * s")]),
    ("the first row of the tile", SUM, SUM.replace("[r, d]", "[0, d]")),
    ("a scale in each lane's part and at the end", SUM, SUM.replace("+= ", "+= softmax_scale * ")),
    ("float64", "s = float32(0.0)", "s = 0.0"),
    ("a barrier of its own", ROWS, "cuda.syncthreads()\n        " + ROWS),
    ("rows of 256 columns at most", COLUMN, COLUMN.replace("d < ROW_DIM", "d < min(ROW_DIM, 256)")),
    ("shfl_down", "cuda.shfl_xor_sync", "cuda.shfl_down_sync"),
]

RIGHT = [
    ("one loop over the row", [(FIRST, "for d in range(tx, ROW_DIM, 32):"), (LATENT, "k_tile[r, d] = latent[n_start + r, d] if d < LATENT_DIM else k_rope[n_start + r, d - LATENT_DIM]"),
        ("            " + SECOND + "\n                " + ROPE + "\n", "")]),
    ("an if around each row, sums by shfl_down and a broadcast", [(ROWS, "for r in range(ty, BLOCK_N, BLOCK_M):\n            if n_start + r >= latent.shape[0]:\n                break"),
        (SHUFFLE, "s += cuda.shfl_down_sync(FULL_MASK, s, 16 >> step)"), ("return softmax_scale * s", "return softmax_scale * cuda.shfl_sync(FULL_MASK, s, 0)")]),
]

EQUIVALENT = [
    ("s += cuda.shfl_xor_sync(FULL_MASK, s, 16 >> step) -> s += cuda.shfl_xor_sync(FULL_MASK, s, 17 >> step)", "distances 17, 8, 4, 2, 1 combine to every distance up to 31 as well"),
]
