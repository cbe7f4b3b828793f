"""Wrong and right answers of ex04d: see tests/wrong_answers/__init__.py."""

BLOCKS = "    num_blocks = -(-N // B_r)\n"
MATRIX = "    matrix = N * d * dtype_bytes\n"
Q = '        "q_reads": matrix,\n'
K = '        "k_reads": num_blocks * matrix,\n'
V = '        "v_reads": num_blocks * matrix,\n'
OUT = '        "out_writes": matrix,\n'
TILES = '        "num_kv_tiles": -(-N // B_c),\n'
Q_BLOCK = '        "q_reads_per_block": min(B_r, N) * d * dtype_bytes,\n'
KV_BLOCK = '        "kv_reads_per_block": 2 * matrix,\n'
TOTAL = '        "total": sum(traffic.values()),\n'
STANDARD = "    standard = (4 * N * N + 4 * N * d) * dtype_bytes"
SPEEDUP = '    return standard / flash_traffic(N, d, B_r, B_c, dtype_bytes)["total"]\n'

WRONG = [
    ("blocks rounded down", BLOCKS, "    num_blocks = max(1, N // B_r)\n"),
    ("blocks not rounded", BLOCKS, "    num_blocks = N / B_r\n"),
    ("blocks rounded by floats", BLOCKS, "    num_blocks = int(N / B_r + 1)\n"),
    ("blocks of B_c", BLOCKS, "    num_blocks = -(-N // B_c)\n"),
    ("blocks walked in a loop", BLOCKS, "    num_blocks = sum(1 for _ in range(0, N, B_r))\n"),
    ("whole tiles of Q", Q, '        "q_reads": num_blocks * B_r * d * dtype_bytes,\n'),
    ("Q per tile of K", Q, '        "q_reads": matrix * -(-N // B_c),\n'),
    ("K once", K, '        "k_reads": matrix,\n'),
    ("K in whole tiles", K,
     '        "k_reads": num_blocks * -(-N // B_c) * B_c * d * dtype_bytes,\n'),
    ("V once", V, '        "v_reads": matrix,\n'),
    ("out is read and written per tile", OUT, '        "out_writes": num_blocks * matrix,\n'),
    ("tiles of K rounded down", TILES, TILES.replace("-(-N // B_c)", "N // B_c")),
    ("tiles of K of all blocks", TILES, TILES.replace("-(-N", "num_blocks * -(-N")),
    ("tiles of K and of V", TILES, TILES.replace("-(-N", "2 * -(-N")),
    ("a block's Q beyond N", Q_BLOCK, Q_BLOCK.replace("min(B_r, N)", "B_r")),
    ("all of Q per block", Q_BLOCK, '        "q_reads_per_block": matrix,\n'),
    ("K alone per block", KV_BLOCK, KV_BLOCK.replace("2 * ", "")),
    ("K and V of one tile per block", KV_BLOCK,
     '        "kv_reads_per_block": 2 * B_c * d * dtype_bytes,\n'),
    ("the total without out", TOTAL,
     '        "total": sum(traffic.values()) - matrix,\n'),
    ("elements", MATRIX, "    matrix = N * d\n"),
    ("floats", MATRIX, "    matrix = 1.0 * N * d * dtype_bytes\n"),
    ("float32 by default",
     "def flash_traffic(N, d, B_r, B_c, dtype_bytes=2):",
     "def flash_traffic(N, d, B_r, B_c, dtype_bytes=4):"),
    ("S and P once", STANDARD, STANDARD.replace("4 * N * N", "2 * N * N")),
    ("standard without Q, K, V, O", STANDARD, STANDARD.replace(" + 4 * N * d", "")),
    ("standard in fp16", STANDARD, STANDARD.replace("dtype_bytes", "2")),
    ("the ratio upside down", SPEEDUP,
     '    return flash_traffic(N, d, B_r, B_c, dtype_bytes)["total"] / standard\n'),
    ("the ratio in whole numbers", SPEEDUP, SPEEDUP.replace("standard /", "standard //")),
    ("the limit 2 B_r / d", SPEEDUP, "    return 2 * B_r / d\n"),
    ("no return", SPEEDUP, "    flash_traffic(N, d, B_r, B_c, dtype_bytes)\n"),
]  # fmt: skip

RIGHT = [
    ("divmod, other order", [
        (BLOCKS, "    whole, rest = divmod(N, B_r)\n    num_blocks = whole + (rest > 0)\n"),
        (TILES, TILES.replace("-(-N // B_c)", "(N + B_c - 1) // B_c")),
        (Q_BLOCK, '        "q_reads_per_block": (N if N < B_r else B_r) * d * dtype_bytes,\n'),
        (TOTAL, '        "total": 2 * matrix * (num_blocks + 1),\n')]),
    ("the speed-up by its formula", STANDARD + "  # S, P out and back; Q, K, V in, O out\n"
     + SPEEDUP, "    return 2 * (N + d) / (d * (1 - (-N // B_r)))\n"),
    ("the speed-up in steps", SPEEDUP,
     '    flash = flash_traffic(N, d, B_r, B_c, dtype_bytes)["total"]\n'
     "    return (standard / N) / (flash / N)\n"),
]  # fmt: skip

EQUIVALENT = []
