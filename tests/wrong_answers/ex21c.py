"""ex21c: who waits in a ring."""

DIAGONAL = "diagonal = c * (c + 1) // 2"
FIRST = "if step == 0:"
TABLE = 'return {"contiguous": c * c, "striped": diagonal, "zigzag": c * c // 2}[layout]'
TIME = "time = sum(busiest(layout, step, c) for step in range(world_size))"
SEQLEN = "seqlen = world_size * c"
BUSY = "return seqlen * (seqlen + 1) / 2 / (world_size * time)"

WRONG = [
    ("a float", DIAGONAL, "diagonal = c * (c + 1) / 2"),
    ("through float64", DIAGONAL, "diagonal = int(c * (c + 1) / 2)"),
    ("every step is the first", FIRST, "if step >= 0:"),
    ("no first step", FIRST, "if step < 0:"),
    ("contiguous: the average", TABLE, TABLE.replace('"contiguous": c * c,', '"contiguous": c * c // 2,')),
    ("contiguous: the idle rank", TABLE, TABLE.replace('"contiguous": c * c,', '"contiguous": 0,')),
    ("contiguous: fewer and fewer", TABLE, TABLE.replace('"contiguous": c * c,', '"contiguous": c * c // step,')),
    ("striped below the diagonal", TABLE, TABLE.replace('"striped": diagonal', '"striped": c * (c - 1) // 2')),
    ("striped as zigzag", TABLE, TABLE.replace('"striped": diagonal', '"striped": c * c // 2')),
    ("zigzag as striped", TABLE, TABLE.replace('"zigzag": c * c // 2', '"zigzag": diagonal')),
    ("zigzag: a quarter", TABLE, TABLE.replace('"zigzag": c * c // 2', '"zigzag": c * c // 4')),
    ("one step too many", TIME, TIME.replace("range(world_size)", "range(world_size + 1)")),
    ("the first step W times", TIME, TIME.replace("layout, step,", "layout, 0,")),
    ("all pairs, mask or not", BUSY, "return seqlen * seqlen / (world_size * time)"),
    ("the idle part", BUSY, "return 1 - seqlen * (seqlen + 1) / 2 / (world_size * time)"),
    ("the limit", BUSY, "return world_size / (2 * world_size - 1) if layout == 'contiguous' else 1.0"),
    ("four ranks, or a power of two", TIME, "world_size = world_size if world_size < 5 else 1 << world_size.bit_length() - 1\n    " + TIME),
]  # fmt: skip

RIGHT = [
    ("by cases", [(FIRST, "if step == 0 or layout == 'striped':"), (TABLE, "return c * c if layout == 'contiguous' else c * c // 2"),]),
    ("busy in closed form", [(TIME, "later = busiest(layout, 1, c)"), (SEQLEN, "time = busiest(layout, 0, c) + (world_size - 1) * later"), (BUSY, "return c * (world_size * c + 1) / (2 * time)"),]),
]  # fmt: skip

EQUIVALENT = []
