"""Wrong and right answers of ex04d: see tests/wrong_answers/__init__.py."""

MATRIX = "    matrix = N * d\n"
MOVED = "    return matrix, num_blocks * matrix, num_blocks * matrix, matrix\n"
STANDARD = "    standard = (4 * N * N + 4 * N * d) * dtype_bytes"
SPEEDUP = '    return standard / flash_traffic(N, d, B_r, B_c, dtype_bytes)["total"]\n'

WRONG = [
    ("Q per thread block", MOVED, MOVED.replace("return matrix", "return num_blocks * matrix")),
    ("K and V once", MOVED, MOVED.replace("num_blocks * ", "")),
    ("out per thread block", MOVED, MOVED.replace(", matrix\n", ", num_blocks * matrix\n")),
    ("out is not written", MOVED, MOVED.replace(", matrix\n", ", 0\n")),
    ("out is left out", MOVED, MOVED.replace(", matrix\n", "\n")),
    ("the order of out", MOVED, "    return matrix, matrix, num_blocks * matrix, num_blocks * matrix\n"),
    ("squares", MATRIX, "    matrix = N * N\n"),
    ("bytes, not elements", MATRIX, "    matrix = 2 * N * d\n"),
    ("whole tiles", MATRIX, "    matrix = num_blocks * -(-N // num_blocks) * d\n"),
    ("floats", MATRIX, "    matrix = 1.0 * N * d\n"),
    ("float32 by default", "def flash_traffic(N, d, B_r, B_c, dtype_bytes=2):", "def flash_traffic(N, d, B_r, B_c, dtype_bytes=4):"),
    ("S and P once", STANDARD, STANDARD.replace("4 * N * N", "2 * N * N")),
    ("standard in fp16", STANDARD, STANDARD.replace("dtype_bytes", "2")),
    ("the ratio in whole numbers", SPEEDUP, SPEEDUP.replace("standard /", "standard //")),
    ("the limit 2 B_r / d", SPEEDUP, "    return 2 * B_r / d\n"),
    ("no return", SPEEDUP, "    flash_traffic(N, d, B_r, B_c, dtype_bytes)\n"),
]  # fmt: skip

RIGHT = [
    ("a list, other order", MOVED, "    of_k = d * N * num_blocks\n    return [matrix, of_k, of_k, d * N]\n"),
    ("the speed-up by its formula", STANDARD + "  # S, P out and back; Q, K, V in, O out\n" + SPEEDUP, "    return 2 * (N + d) / (d * (1 - (-N // B_r)))\n"),
    ("the speed-up in steps", SPEEDUP, '    flash = flash_traffic(N, d, B_r, B_c, dtype_bytes)["total"]\n' "    return (standard / N) / (flash / N)\n"),
]  # fmt: skip

EQUIVALENT = []
