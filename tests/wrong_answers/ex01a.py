"""Wrong and right answers of ex01a: see tests/wrong_answers/__init__.py."""

VECTOR = "    return n / (3 * n * dtype_bytes)"
MATMUL = "    return 2 * m * n * k / (dtype_bytes * (m * k + k * n + m * n))"
STANDARD = "    return 4 * N * N * d / (dtype_bytes * (4 * N * d + 4 * N * N))"
FUSED = "    return 4 * N * N * d / (dtype_bytes * 4 * N * d)"
RIDGE = "    return peak_flops / bandwidth"
ROOF = "    return min(peak_flops, intensity * bandwidth)"

WRONG = [
    ("two arrays moved, not three", VECTOR, VECTOR.replace("3", "2")),
    ("float32 taken for granted", VECTOR, VECTOR.replace("dtype_bytes", "4")),
    ("whole numbers", VECTOR, VECTOR.replace("/", "//")),
    ("square matrices", MATMUL, MATMUL.replace("m * k + k * n", "2 * m * k")),
    ("C is read and written", MATMUL, MATMUL.replace("+ m * n", "+ 2 * m * n")),
    ("a loop that counts", MATMUL, "    flops = 0\n    for _ in range(m):\n        for _ in range(n):\n            flops += k\n    return flops / (dtype_bytes * (m * k + k * n + m * n))"),
    ("S and P are written only", STANDARD, STANDARD.replace("4 * N * N))", "2 * N * N))")),
    ("S alone", STANDARD, STANDARD.replace("4 * N * N))", "2 * N * N))")),
    ("one product", STANDARD, STANDARD.replace("4 * N * N * d", "2 * N * N * d")),
    ("Q, K, V without O", STANDARD, STANDARD.replace("4 * N * d +", "3 * N * d +")),
    ("the exps are counted too", STANDARD, STANDARD.replace("4 * N * N * d", "(4 * d + 1) * N * N")),
    ("O is not written", FUSED, FUSED.replace("dtype_bytes * 4", "dtype_bytes * 3")),
    ("constant", FUSED, "    return d / dtype_bytes"),
    ("two bytes taken for granted", FUSED, FUSED.replace("dtype_bytes", "2")),
    ("the ridge in whole numbers", RIDGE, RIDGE.replace("/", "//")),
    ("memory only", ROOF, "    return intensity * bandwidth"),
    ("peak only", ROOF, "    return peak_flops"),
    ("no return", ROOF, "    min(peak_flops, intensity * bandwidth)"),
    ("text", ROOF, "    return str(min(peak_flops, intensity * bandwidth))"),
    ("a right loop over the rows of A", MATMUL, "    flops = 0\n    for _ in range(m):\n        flops += 2 * n * k\n    return flops / (dtype_bytes * (m * k + k * n + m * n))"),
    ("a loop over the keys", FUSED, "    flops = sum(4 * N * d for _ in range(N))\n    return flops / (dtype_bytes * 4 * N * d)"),
]  # fmt: skip

RIGHT = [
    ("n cancelled", VECTOR, "    return 1 / 3 / dtype_bytes"),
    ("FLOP and bytes by name, the roof by an if", [
        (MATMUL, "    flops = 2 * m * n * k\n    moved = dtype_bytes * m * k\n"
                 "    moved += dtype_bytes * (m + k) * n\n    return flops / moved"),
        (ROOF, "    if intensity < peak_flops / bandwidth:\n"
               "        return intensity * bandwidth\n    return peak_flops"),
    ]),
    ("simplified", [(STANDARD, "    return N * d / (N + d) / dtype_bytes"), (FUSED, "    return N / dtype_bytes")]),
    ("a helper of one's own", [
        (VECTOR, "    return _intensity(n, 3 * n, dtype_bytes)"),
        ("def vector_add(n", "def _intensity(flops, elements, dtype_bytes):\n"
         "    return flops / elements / dtype_bytes\n\n\ndef vector_add(n"),
    ]),
]  # fmt: skip

EQUIVALENT = []
