"""Wrong and right answers of ex00d: see tests/wrong_answers/__init__.py."""

BODY = "        out[row, col] = (x[row, col] - shift[row]) * scale[col]"

WRONG = [
    ("no brackets", BODY, "        out[row, col] = x[row, col] - shift[row] * scale[col]"),
    ("shift of the column", BODY, BODY.replace("shift[row]", "shift[col]")),
    ("scale of the row", BODY, BODY.replace("scale[col]", "scale[row]")),
    ("both exchanged", BODY, "        out[row, col] = (x[row, col] - shift[col]) * scale[row]"),
    ("the first shift for all", BODY, BODY.replace("shift[row]", "shift[0]")),
    ("in place", BODY, "        x[row, col] -= shift[row]\n        out[row, col] = x[row, col] * scale[col]"),
    ("in two steps through out", BODY, "        out[row, col] = x[row, col] - shift[row]\n        out[row, col] *= scale[col]"),
    ("shift changed", BODY, BODY + "\n        shift[row] = 0"),
    ("x read twice", BODY, "        out[row, col] = x[row, col] * scale[col] - shift[row] * scale[col]\n        if x[row, col] == shift[row]:\n            out[row, col] = 0"),
    ("64 rows at most", BODY, "        if row < 64:\n    " + BODY),
    ("256 columns at most", BODY, "        if col < 256:\n    " + BODY),
]  # fmt: skip

RIGHT = [
    ("by names", BODY, "        difference = x[row, col] - shift[row]\n        out[row, col] = scale[col] * difference"),
    ("row by row", BODY, "        out[row][col] = scale[col] * (-shift[row] + x[row][col])"),
]  # fmt: skip

EQUIVALENT = []
