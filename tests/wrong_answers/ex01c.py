"""Wrong and right answers of ex01c: see tests/wrong_answers/__init__.py."""

FLOPS = "    flops = 2 * m * n * k\n"
BYTES = "    loaded, stored = 2 * (m * k + k * n), 2 * m * n\n"
PRODUCT = "    product = max(flops / peak, (loaded + stored) / bandwidth)\n"
COPIES = "    copies = (loaded + stored) / (pcie / 2)\n"

WRONG = [
    ("as it was given", FLOPS + BYTES + PRODUCT + COPIES,
     "    flops = m * n * k\n    loaded, stored = 4 * (m * k + k * n), 4 * m * n\n"
     "    product = flops / peak + (loaded + stored) / bandwidth\n"
     "    copies = (loaded + stored) / pcie\n"),
    ("one FLOP", FLOPS, "    flops = m * n * k * 1\n"),
    ("four bytes", BYTES, BYTES.replace("2", "4")),
    ("four bytes of C", BYTES, BYTES.replace("2 * m * n", "4 * m * n")),
    ("the sum", PRODUCT, PRODUCT.replace("max(", "sum((").replace("width)", "width))")),
    ("four directions", COPIES, COPIES.replace("/ 2)", "/ 4)")),
    ("C overlaps with A and B", COPIES, "    copies = max(loaded, stored) / (pcie / 2)\n"),
    ("all overlaps", PRODUCT, PRODUCT + "    product -= min(product, 2 * (loaded + stored) / pcie)\n"),
    ("squares", BYTES, "    loaded, stored = 2 * (m * m + n * n), 2 * m * n\n"),
    ("milliseconds", COPIES, COPIES.replace("= (", "= 1e3 * (")),
]  # fmt: skip

RIGHT = [
    ("other words", FLOPS + BYTES + PRODUCT + COPIES, "    moved = 2 * (m * k + k * n + m * n)\n    product = max(2 * m * n * k / peak, moved / bandwidth)\n    copies = 2 * moved / pcie\n"),
    ("an if", PRODUCT, "    product = flops / peak\n    if (loaded + stored) / bandwidth > product:\n        product = (loaded + stored) / bandwidth\n"),
]  # fmt: skip

EQUIVALENT = []
