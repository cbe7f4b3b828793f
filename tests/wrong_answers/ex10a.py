"""ex10a: shares of padding."""

TOKENS = "return 1 - sum(lengths) / (len(lengths) * max(lengths))"
PAIRS = "return 1 - sum(n * n for n in lengths) / (len(lengths) * max(lengths) ** 2)"
COMPUTED = "computed = sum((tile * math.ceil(n / tile)) ** 2 for n in lengths)"
WASTE = "return 1 - sum(n * n for n in lengths) / computed"

WRONG = [
    ("padding for each real token", TOKENS, "return len(lengths) * max(lengths) / sum(lengths) - 1"),
    ("per cent", TOKENS, "return 100 * (1 - sum(lengths) / (len(lengths) * max(lengths)))"),
    ("the number of tokens", TOKENS, "return len(lengths) * max(lengths) - sum(lengths)"),
    ("pairs as tokens", PAIRS, "return padding_of_tokens(lengths)"),
    ("the square of the sum", PAIRS, "return 1 - sum(lengths) ** 2 / (len(lengths) * max(lengths)) ** 2"),
    ("both are padding", PAIRS, "return padding_of_tokens(lengths) ** 2"),
    ("causal pairs", PAIRS, "return 1 - sum(n * (n + 1) / 2 for n in lengths) / (len(lengths) * max(lengths) ** 2)"),
    ("rounded down", COMPUTED, COMPUTED.replace("math.ceil", "math.floor").replace("for n in lengths)", "for n in lengths) or 1")),
    ("tiles of the whole batch", COMPUTED, "computed = (tile * math.ceil(sum(lengths) / tile)) ** 2"),
    ("only queries are rounded", COMPUTED, "computed = sum(n * tile * math.ceil(n / tile) for n in lengths)"),
    ("a tile too many", COMPUTED, "computed = sum((tile * (n // tile + 1)) ** 2 for n in lengths)"),
    ("padded to the longest", COMPUTED, "computed = len(lengths) * (tile * math.ceil(max(lengths) / tile)) ** 2"),
    ("tokens over pairs", WASTE, "return 1 - sum(lengths) / computed"),
    ("tiles of 64 at most", COMPUTED, COMPUTED.replace("sum((tile * math.ceil(n / tile))", "sum((min(tile, 64) * math.ceil(n / min(tile, 64)))")),
    ("lengths to 128", PAIRS, PAIRS.replace("n * n for", "min(n, 128) ** 2 for")),
]  # fmt: skip

RIGHT = [
    ("NumPy", [
        ("import math\n", "import math\n\nimport numpy as np\n"),
        (PAIRS, "n = np.array(lengths, float)\n    return float(1 - (n / n.max()).__pow__(2).mean())"),
        (TOKENS, "return float(1 - np.mean(lengths) / max(lengths))"),
    ]),
    ("whole tiles by integers", COMPUTED, "computed = sum((-(-n // tile) * tile) ** 2 for n in lengths)"),
]  # fmt: skip

EQUIVALENT = []
