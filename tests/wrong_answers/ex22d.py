"""ex22d: rotary embedding in place."""

TURNED = "turned = left * c - right * s"
HALF = """    left, right = x[:, :, :half], x[:, :, half:]
    c, s = cos[positions][:, None], sin[positions][:, None]  # the same for all heads
    turned"""
RIGHT_LINE = "    right[:] = right * c + left * s\n    left[:] = turned\n"
GRAD = "mended(dx, positions, cos, -sin)"

WRONG = [
    ("as published", [(TURNED, "left[:] = left * c - right * s"), (RIGHT_LINE, "    right[:] = right * c + left * s\n")]),
    ("the other way round", [(TURNED, "turned = left"), (RIGHT_LINE, "    right[:] = right * c + left * s\n    left[:] = left * c - right * s\n")]),
    ("a view, not a copy", [(TURNED, "turned = left\n    left[:] = left * c - right * s"), (RIGHT_LINE, "    right[:] = right * c + turned * s\n")]),
    ("clockwise", [(TURNED, "turned = left * c + right * s"), (RIGHT_LINE, "    right[:] = right * c - left * s\n    left[:] = turned\n")]),
    ("a mirror", RIGHT_LINE, "    right[:] = left * s - right * c\n    left[:] = turned\n"),
    ("the halves exchanged", RIGHT_LINE, "    left[:] = right * c + left * s\n    right[:] = turned\n"),
    ("names, not arrays", RIGHT_LINE, "    right = right * c + left * s\n    left = turned\n"),
    ("pairs of neighbours", HALF, HALF.replace("x[:, :, :half], x[:, :, half:]", "x[:, :, ::2], x[:, :, 1::2]")),
    ("the row for the position", HALF, HALF.replace("cos[positions]", "cos[: len(x)]").replace("sin[positions]", "sin[: len(x)]")),
    ("positions from 1", HALF, HALF.replace("cos[positions]", "cos[(positions + 1) % len(cos)]").replace("sin[positions]", "sin[(positions + 1) % len(sin)]")),
    ("the first head alone", RIGHT_LINE, "    right[:, :1] = (right * c + left * s)[:, :1]\n    left[:, :1] = turned[:, :1]\n"),
    ("returned", RIGHT_LINE, "    right[:] = right * c + left * s\n    left[:] = turned\n    return x\n"),
    ("grad: not turned", GRAD, "pass"),
    ("grad: both signs", GRAD, "mended(dx, positions, -cos, -sin)"),
    ("grad: cosine's sign", GRAD, "mended(dx, positions, -cos, sin)"),
    ("grad: by the published code", GRAD, "published(dx, positions, cos, -sin)"),
    ("grad: sin is changed", GRAD, "sin *= -1\n    mended(dx, positions, cos, sin)"),
    ("grad: other positions", GRAD, "mended(dx, positions[::-1].copy(), cos, -sin)"),
    ("256 positions at most", HALF, HALF.replace("cos[positions]", "cos[positions % 256]")),
    ("256 rows at most", RIGHT_LINE, "    right[:256] = (right * c + left * s)[:256]\n    left[:256] = turned[:256]\n"),
]  # fmt: skip

RIGHT = [
    ("a copy of left", [(TURNED, "old = left.copy()\n    left[:] = left * c - right * s"), (RIGHT_LINE, "    right[:] = right * c + old * s\n")]),
    ("both at once", [(TURNED, "both = left * c - right * s, right * c + left * s"), (RIGHT_LINE, "    left[:], right[:] = both\n")]),
    ("complex numbers", [(TURNED, "turned = (left + 1j * right) * (c + 1j * s)"), (RIGHT_LINE, "    left[:], right[:] = turned.real, turned.imag\n")]),
]  # fmt: skip

EQUIVALENT = []
