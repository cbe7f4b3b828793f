"""ex12c: from accumulators to an operand."""

# fmt: off
A = "a[2 * r + h] = p[4 * (2 * k + r // 2) + 2 * (r % 2) + h]"
ZERO = "        for r in range(4):\n            d[r] = float32(0.0)\n        for k in range(BLOCK_N // 16):\n"
LOAD = "load_b(b, v, 16 * k, col)"
MMA = "mma_f16(d, a, b)\n"
STORE = "store_d(out, d, row, col)"

WRONG = [
    ("products one after the other", A, A.replace("2 * k + r // 2", "k")),
    ("registers 1 and 2 exchanged", A, "a[2 * r + h] = p[4 * (2 * k + r % 2) + 2 * (r // 2) + h]"),
    ("halves exchanged", A, A.replace("2) + h]", "2) + 1 - h]")),
    ("halves of both products", A, "a[2 * r + h] = p[4 * (2 * k + h) + r]"),
    ("halves apart", A, A.replace("a[2 * r + h]", "a[r + 4 * h]")),
    ("the products backwards", A, A.replace("2 * k + r // 2", "2 * k + 1 - r // 2")),
    ("p is used up", A, A + "\n            p[4 * (2 * k + r // 2) + 2 * (r % 2) + h] = float32(0.0)"),
    ("d is not set", ZERO, ZERO.replace("d[r] = float32(0.0)", "a[r] = float32(0.0)")),
    ("d is set for each k", ZERO, "        for k in range(BLOCK_N // 16):\n            for r in range(4):\n                d[r] = float32(0.0)\n"),
    ("one product", ZERO, ZERO.replace("BLOCK_N // 16", "1")),
    ("the last product is left out", ZERO, ZERO.replace("BLOCK_N // 16", "max(1, BLOCK_N // 16 - 1)")),
    ("the first rows of v", LOAD, "load_b(b, v, 0, col)"),
    ("rows of v in steps of 8", LOAD, "load_b(b, v, 8 * k, col)"),
    ("the first columns of v", LOAD, "load_b(b, v, 16 * k, 0)"),
    ("the product twice", MMA, "mma_f16(d, a, b)\n            mma_f16(d, a, b)\n"),
    ("half of the lanes", MMA, "if cuda.laneid < 16:\n                mma_f16(d, a, b)\n"),
    ("the first rows of out", STORE, "store_d(out, d, 0, col)"),
    ("not stored for every warp", STORE, "if cuda.threadIdx.y < 2:\n            store_d(out, d, row, col)"),
    ("256 columns at most", STORE, "if col < 256:\n            store_d(out, d, row, col)"),
    ("256 keys at most", ZERO, ZERO.replace("BLOCK_N // 16", "min(BLOCK_N, 256) // 16")),
    ("through shared memory", MMA, "tile = cuda.shared.array(32, float32)\n            tile[cuda.threadIdx.x] = float32(0.0)\n            mma_f16(d, a, b)\n"),
]

RIGHT = [
    ("written out", [("    for r in range(4):\n        for h in range(2):\n            " + A, "    first = 8 * k\n    for i in range(8):\n        a[i] = p[first + i]")]),
    ("v first", [("            to_operand(a, p, k)\n            " + LOAD, "            " + LOAD + "\n            to_operand(a, p, k)")]),
]

EQUIVALENT = []
