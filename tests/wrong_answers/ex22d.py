"""ex22d: rotary embedding in place."""

LOAD = "left, right = x[row, head, i], x[row, head, half + i]"
LEFT = "x[row, head, i] = left * c - right * s"
RIGHT_LINE = "x[row, head, half + i] = right * c + left * s"
BOTH = LEFT + "\n        " + RIGHT_LINE
# The lines that broken_kernel has, too, are named with a neighbour.
ANGLE = "        c, s = cos[positions[row], i], sin[positions[row], i]\n        left"
GRAD_LEFT = "dx[row, head, i] = left * c - right * minus_s"
GRAD_RIGHT = "dx[row, head, half + i] = right * c + left * minus_s"
GRAD_ANGLE = "c, minus_s = cos[positions[row], i], -sin[positions[row], i]"
GRAD_LOAD = "left, right = dx[row, head, i], dx[row, head, half + i]"

WRONG = [
    ("as it was", [(LEFT, "x[row, head, i] = x[row, head, i] * c - x[row, head, half + i] * s + 0 * left"), (RIGHT_LINE, "x[row, head, half + i] = x[row, head, half + i] * c + x[row, head, i] * s + 0 * right")]),
    ("right loaded too late", RIGHT_LINE, "x[row, head, half + i] = right * c + x[row, head, i] * s"),
    ("the other way round", BOTH, "x[row, head, half + i] = right * c + left * s\n        x[row, head, i] = left * c - x[row, head, half + i] * s"),
    ("clockwise", [(LEFT, "x[row, head, i] = left * c + right * s"), (RIGHT_LINE, "x[row, head, half + i] = right * c - left * s")]),
    ("a mirror", RIGHT_LINE, "x[row, head, half + i] = left * s - right * c"),
    ("the halves exchanged", BOTH, "x[row, head, half + i] = left * c - right * s\n        x[row, head, i] = right * c + left * s"),
    ("pairs of neighbours", [(LOAD, "left, right = x[row, head, 2 * i], x[row, head, 2 * i + 1]"), (LEFT, "x[row, head, 2 * i] = left * c - right * s"), (RIGHT_LINE, "x[row, head, 2 * i + 1] = right * c + left * s")]),
    ("the row for the position", ANGLE, ANGLE.replace("positions[row]", "row % cos.shape[0]")),
    ("positions from 1", ANGLE, ANGLE.replace("positions[row]", "(positions[row] + 1) % cos.shape[0]")),
    ("the position of row 0", ANGLE, ANGLE.replace("positions[row]", "positions[0]")),
    ("one angle for all pairs", ANGLE, ANGLE.replace("positions[row], i]", "positions[row], 0]")),
    ("the first head alone", RIGHT_LINE, "x[row, head, half + i] = right * c + left * s if head == 0 else right"),
    ("left alone", RIGHT_LINE, "right = right * c + left * s"),
    ("256 positions at most", ANGLE, ANGLE.replace("positions[row]", "positions[row] % 256")),
    ("256 rows at most", LEFT, "x[row, head, i] = left * c - right * s if row < 256 else left"),
    ("grad: not turned", [(GRAD_LEFT, "dx[row, head, i] = left"), (GRAD_RIGHT, "dx[row, head, half + i] = right")]),
    ("grad: both signs", GRAD_ANGLE, GRAD_ANGLE.replace("= cos", "= -cos")),
    ("grad: cosine's sign", GRAD_ANGLE, GRAD_ANGLE.replace("= cos", "= -cos").replace("-sin", "sin")),
    ("grad: with the bug", GRAD_RIGHT, "dx[row, head, half + i] = right * c + dx[row, head, i] * minus_s"),
    ("grad: sin is changed", GRAD_LOAD, GRAD_LOAD + "\n        sin[positions[row], i] = sin[positions[row], i] * 1"),
    ("grad: another position", GRAD_ANGLE, GRAD_ANGLE.replace("positions[row]", "positions[dx.shape[0] - 1 - row]")),
    ("grad: 64 pairs at most", GRAD_LEFT, GRAD_LEFT + " if i < 64 else left"),
]  # fmt: skip

RIGHT = [
    ("the old left in a variable", [(LOAD, "left = x[row, head, i]\n        right = x[row, head, half + i]"), (LEFT, "turned = left * c - right * s"), (RIGHT_LINE, "x[row, head, half + i] = right * c + left * s\n        x[row, head, i] = turned")]),
    ("signs at the sums", [(GRAD_ANGLE, "c = cos[positions[row], i]\n        s = sin[positions[row], i]"), (GRAD_LEFT, "dx[row, head, i] = left * c + right * s\n"), (GRAD_RIGHT, "dx[row, head, half + i] = right * c - left * s\n")]),
]  # fmt: skip

EQUIVALENT = []
