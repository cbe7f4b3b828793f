"""Wrong and right answers of ex05d: see tests/wrong_answers/__init__.py."""

BUDGET = "    budget = sram_bytes // dtype_bytes  # elements\n"
LOOP = "    for B_c in range(1, budget // (2 * d) + 1):\n"
SOLVE = "        B_r = (budget - 2 * B_c * d) // (d + B_c)\n"
TEST = "        if B_r >= 1 and B_r * B_c > best[0] * best[1]:\n"
KEEP = "            best = (B_r, B_c)\n"
NONE = "    if best == (0, 0):\n        raise ValueError(\n"
NEED = "{dtype_bytes * (3 * d + 1)} bytes, "
RETURN = "    return best\n"
BODY = LOOP + SOLVE + TEST + KEEP

WRONG = [
    ("elements for bytes", BUDGET, "    budget = sram_bytes\n"),
    ("two bytes taken for granted", BUDGET, "    budget = sram_bytes // 2\n"),
    ("float32 by default", "d, dtype_bytes=2):", "d, dtype_bytes=4):"),
    ("K without V", SOLVE, SOLVE.replace("2 * B_c * d", "B_c * d")),
    ("the scores are forgotten", SOLVE, SOLVE.replace("(d + B_c)", "d")),
    ("rounded up", SOLVE, SOLVE.replace("(budget - 2 * B_c * d)", "(budget - 2 * B_c * d + d)")),
    ("floats", SOLVE, SOLVE.replace("//", "/")),
    ("the last B_c is left out", LOOP, LOOP.replace(" + 1", "")),
    ("B_c up to 256", LOOP, LOOP.replace("budget // (2 * d) + 1", "min(budget // (2 * d), 256) + 1")),
    ("B_c a power of two", TEST, TEST.replace("if ", "if B_c & (B_c - 1) == 0 and ")),
    ("B_r a multiple of 16", SOLVE, SOLVE.replace("(d + B_c)\n", "(d + B_c)\n        "
                                                  "B_r = B_r // 16 * 16 or B_r\n")),
    ("square tiles", SOLVE, SOLVE + "        B_r = min(B_r, B_c)\n"),
    ("the largest B_c", TEST, "        if B_r >= 1:\n"),
    ("the largest sum", TEST, TEST.replace("B_r * B_c > best[0] * best[1]",
                                           "B_r + B_c > best[0] + best[1]")),
    ("empty tiles", TEST, TEST.replace("B_r >= 1 and ", "")
     .replace(" > best[0] * best[1]", " >= best[0] * best[1]")),
    ("the pair the other way round", KEEP, "            best = (B_c, B_r)\n"),
    ("two loops", LOOP + SOLVE + TEST,
     "    for B_c in range(1, budget // (2 * d) + 1):\n        for B_r in range(1, budget // d):\n"
     "            if B_r * d + 2 * B_c * d + B_r * B_c > budget:\n                break\n"
     "            if B_r * B_c <= best[0] * best[1]:\n                continue\n"),
    ("the formula without rounding", BODY,
     "    B_c = int((d * d + budget / 2) ** 0.5 - d)\n    if B_c > 0:\n"
     "        best = (2 * B_c, B_c)\n"),
    ("the formula, then B_r", BODY,
     "    B_c = int((d * d + budget / 2) ** 0.5 - d)\n    if B_c > 0:\n"
     "        best = ((budget - 2 * B_c * d) // (d + B_c), B_c)\n"),
    ("None where nothing fits", NONE, "    if best == (0, 0):\n        return None\n"
     "    if False:\n        raise ValueError(\n"),
    ("(0, 0) where nothing fits", NONE, "    if False:\n        raise ValueError(\n"),
    ("another error", "        raise ValueError(\n", "        raise IndexError(\n"),
    ("no number in the message", NEED, "more, "),
    ("elements in the message", NEED, "{3 * d + 1} bytes, "),
    ("without the scores in the message", NEED, "{dtype_bytes * 3 * d} bytes, "),
    ("a list", RETURN, "    return list(best)\n"),
    ("three numbers", RETURN, "    return (*best, best[0] * best[1])\n"),
    ("no return", RETURN, ""),
]  # fmt: skip

RIGHT = [
    ("a loop over B_r, the last of equal pairs", """
def calculate_block_sizes(sram_bytes, d, dtype_bytes=2):
    elements = sram_bytes // dtype_bytes
    if elements < 3 * d + 1:
        raise ValueError(f"B_r = B_c = 1 needs {dtype_bytes * (3 * d + 1)} bytes")
    best_product, pair = 0, None
    B_r = 1
    while B_r * d <= elements:
        B_c = max((elements - B_r * d) // (2 * d + B_r), 0)
        if B_r * B_c >= best_product:
            best_product, pair = B_r * B_c, (B_r, B_c)
        B_r += 1
    return pair
"""),
    ("max with a key", BODY, """
    def rows(B_c):
        return (budget - 2 * B_c * d) // (d + B_c)

    columns = range(1, budget // (2 * d) + 1)
    B_c = max(columns, key=lambda B_c: B_c * rows(B_c), default=0)
    if B_c and rows(B_c) > 0:
        best = rows(B_c), B_c
"""),
    ("near the formula only", BODY, """
    middle = int((d * d + budget / 2) ** 0.5 - d)
    reach = max(64, middle // 8)
    for B_c in range(max(1, middle - reach), middle + reach):
        B_r = (budget - 2 * B_c * d) // (d + B_c)
        if B_r >= 1 and B_r * B_c > best[0] * best[1]:
            best = (B_r, B_c)
"""),
]  # fmt: skip

IF = "if B_r >= 1 and B_r * B_c > best[0] * best[1]:"
FOR = "for B_c in range(1, budget // (2 * d) + 1):"
BEYOND = "beyond budget / (2 d) not even one row of Q fits: such a B_c is skipped"
EQUIVALENT = [
    (f"{IF} -> if B_r * B_c > best[0] * best[1]:", "B_c is positive: so is B_r where this is true"),
    (f"{IF} -> {IF.replace(' > ', ' >= ')}", "of equal products any is right"),
    (f"{FOR} -> {FOR.replace('+ 1)', '+ 2)')}", BEYOND),
    (f"{FOR} -> {FOR.replace('(2 * d)', '2')}", BEYOND),
    (f"{FOR} -> {FOR.replace('(2 * d)', 'd')}", BEYOND),
    (f"{FOR} -> {FOR.replace('(2 * d)', '(3 * d)')}",
     "the best B_c lies near budget / (4 d) at most; the same for d up to 12 and 1500 elements"),
]  # fmt: skip
