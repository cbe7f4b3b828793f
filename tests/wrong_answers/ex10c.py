"""ex10c: the sequence of a tile, by a binary search."""

WHILE = "while b_end - b > 1:"
MIDDLE = "middle = (b + b_end) // 2"
IF = "if cu_seqlens[middle] // BLOCK + middle <= tile:"
LOWER = "b = middle\n"
UPPER = "b_end = middle"
RETURN = "        return b\n\n"

WRONG = [
    ("rows, not tiles", IF, "if cu_seqlens[middle] <= tile:"),
    ("rows by BLOCK", IF, "if cu_seqlens[middle] <= tile * BLOCK:"),
    ("rounded up", IF, "if (cu_seqlens[middle] + BLOCK - 1) // BLOCK + middle <= tile:"),
    ("the end of the sequence", IF, "if cu_seqlens[middle + 1] // BLOCK + middle <= tile:"),
    ("one step", WHILE, "if b_end - b > 1:"),
    ("no step", WHILE, "while b_end - b > 1000000:"),
    ("the ends change places", [(LOWER, "b_end = middle  # lower\n"), (UPPER + "\n", "b = middle\n")]),
    ("the end", RETURN, "        return b_end\n\n"),
    ("the one before", RETURN, "        return b - 1\n\n"),
    ("always 0", RETURN, "        return 0\n\n"),
    ("one by one", [(WHILE, "while b + 1 < b_end:"), (MIDDLE, "middle = b + 1"), (UPPER + "\n", "return b\n")]),
    ("nothing is returned", RETURN, "\n"),
    ("a float", MIDDLE, "middle = int((b + b_end) / 2)"),
    ("one more than the batch", "cu_seqlens.shape[0] - 1", "cu_seqlens.shape[0]"),
    ("tiles of 64 at most", IF, IF.replace("BLOCK", "min(BLOCK, 64)")),
    ("256 tokens at most", IF, IF.replace("cu_seqlens[middle]", "min(cu_seqlens[middle], 256)")),
    ("b one too far", "b = middle\n            else", "b = middle + 1\n            else"),
    ("b_end one too near", "b_end = middle", "b_end = middle - 1"),
]  # fmt: skip

RIGHT = [
    ("both ends included", [
        ("b, b_end = 0, cu_seqlens.shape[0] - 1", "b, last = 0, cu_seqlens.shape[0] - 2"),
        (WHILE, "while b < last:"),
        (MIDDLE, "middle = (b + last + 1) // 2"),
        (UPPER + "\n", "last = middle - 1\n"),
    ]),
    ("a shift", MIDDLE, "middle = b + ((b_end - b) >> 1)"),
]  # fmt: skip

EQUIVALENT = []
