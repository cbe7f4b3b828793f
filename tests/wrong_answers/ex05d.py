"""Wrong and right answers of ex05d: see tests/wrong_answers/__init__.py."""

SOLVE = "    return (elements - 2 * B_c * d) // (d + B_c)\n"
PAIRS = (
    "    pairs = [(tallest(B_c, d, elements), B_c) for B_c in range(1, elements // (2 * d) + 1)]\n"
)
BEST = "    return max(pairs, key=math.prod)"
TEST = "    if elements < 3 * d + 1:\n"
NEED = "{dtype_bytes * (3 * d + 1)} bytes, "

WRONG = [
    ("rounded up", SOLVE, SOLVE.replace("(elements - 2 * B_c * d)", "(elements - 2 * B_c * d + d)")),
    ("floats", SOLVE, SOLVE.replace("//", "/")),
    ("square tiles", SOLVE, "    return min(B_c, (elements - 2 * B_c * d) // (d + B_c))\n"),
    ("a multiple of 16", SOLVE, SOLVE.replace("\n", " // 16 * 16 or 1\n")),
    ("B_c up to 256", PAIRS, PAIRS.replace("elements // (2 * d)", "min(elements // (2 * d), 256)")),
    ("B_c a power of two", PAIRS, PAIRS.replace(")]", ") if B_c & (B_c - 1) == 0]")),
    ("the largest B_c", BEST, "    return pairs[-1]"),
    ("the largest sum", BEST, BEST.replace("math.prod", "sum")),
    ("the tallest", BEST, "    return max(pairs)"),
    ("the pair the other way round", BEST, BEST + "[::-1]"),
    ("a list", BEST, "    return list(max(pairs, key=math.prod))"),
    ("no return", BEST, "    max(pairs, key=math.prod)"),
    ("the formula without rounding", PAIRS, "    B_c = int((d * d + elements / 2) ** 0.5 - d)\n    pairs = [(2 * B_c, B_c)]\n"),
    ("nothing is tested", TEST, "    if elements < 0:\n"),
    ("no number in the message", NEED, "more, "),
    ("tallest by a loop", SOLVE, "    B_r = 0\n    while (B_r + 1) * (d + B_c) + 2 * B_c * d <= elements:\n        B_r += 1\n    return B_r\n"),
    ("two loops", PAIRS, """    pairs = [
        (B_r, B_c) for B_c in range(1, elements // (2 * d) + 1) for B_r in range(1, elements // d + 1)
        if B_r * d + 2 * B_c * d + B_r * B_c <= elements
    ]
"""),
]  # fmt: skip

RIGHT = [
    ("a loop", PAIRS + BEST, """    best = (0, 0)
    for B_c in range(1, elements // (2 * d) + 1):
        B_r = tallest(B_c, d, elements)
        if B_r * B_c >= best[0] * best[1]:
            best = (B_r, B_c)
    return best"""),
    ("near the formula only", PAIRS, """    middle = int((d * d + elements / 2) ** 0.5 - d)
    reach = max(64, middle // 8)
    near = range(max(1, middle - reach), middle + reach)
    pairs = [(tallest(n, d, elements), n) for n in near if tallest(n, d, elements) > 0]
"""),
    ("divmod", SOLVE, "    return divmod(elements - B_c * (d + d), B_c + d)[0]\n"),
]  # fmt: skip

FOR = PAIRS.strip()
BEYOND = "beyond elements / (2 d) not even one row of Q fits: its product is not positive"
EQUIVALENT = [
    (f"{FOR} -> {FOR.replace('+ 1)]', '+ 2)]')}", BEYOND),
    (f"{FOR} -> {FOR.replace('(2 * d)', 'd')}", BEYOND),
    (f"{FOR} -> {FOR.replace('(2 * d)', '(3 * d)')}", "the best B_c lies near elements / (4 d) at most; the same for d up to 12 and 1500 elements"),
]  # fmt: skip
