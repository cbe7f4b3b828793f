"""ex18a: where token t lives."""

# fmt: off
PAGES = "return -(-seq_len // page_size)"
IF = "if not 0 <= t < seq_lens[b]:"
PAGE = "page, offset = int(block_table[b, t // page_size]), t % page_size"
MISSING = "    if page < 0:\n        raise ValueError(f\"token {t} of sequence {b} is in a page that was never given out\")\n"
SLOT = "return page, offset, page * page_size + offset"
WASTED = "return sum(pages_needed(int(n), page_size) * page_size - int(n) for n in seq_lens)"

WRONG = [
    ("rounded down", PAGES, "return seq_len // page_size"),
    ("one page too many where full", PAGES, "return seq_len // page_size + 1"),
    ("in float64", PAGES, "import math\n    return math.ceil(seq_len / page_size)"),
    ("at least one page", PAGES, "return max(1, -(-seq_len // page_size))"),
    ("negative t counts from the end", IF, "if t >= seq_lens[b]:"),
    ("one token too many", IF, "if not 0 <= t <= seq_lens[b]:"),
    ("tokens up to the end of the page", IF, "if not 0 <= t < pages_needed(seq_lens[b], page_size) * page_size:"),
    ("length of sequence 0", IF, IF.replace("seq_lens[b]", "seq_lens[0]")),
    ("length of the longest", IF, IF.replace("seq_lens[b]", "max(seq_lens)")),
    ("ValueError for both", "raise IndexError(f", "raise ValueError(f"),
    ("IndexError for both", "raise ValueError(f", "raise IndexError(f"),
    ("no ValueError", MISSING, ""),
    ("the page first", [(IF, "if 0 <= t // page_size < block_table.shape[1] and block_table[b, t // page_size] < 0:\n        raise ValueError('no page')\n    " + IF)]),
    ("row of sequence 0", PAGE, PAGE.replace("[b, ", "[0, ")),
    ("the page's number is t // page_size", PAGE, "page, offset = t // page_size, t % page_size"),
    ("int32", PAGE, PAGE.replace("int(block_table[b, t // page_size])", "block_table[b, t // page_size]")),
    ("offset and page changed over", SLOT, "return offset, page, page * page_size + offset"),
    ("slot of the sequence", SLOT, "return page, offset, t"),
    ("slot by the number of pages", SLOT, "return page, offset, page * block_table.shape[1] + offset"),
    ("waste in int32", WASTED, "import numpy as np\n    n = np.asarray(seq_lens, np.int32)\n    return int(((n + np.int32(page_size - 1)) // np.int32(page_size) * np.int32(page_size) - n).sum())"),
    ("waste of a page for full ones", WASTED, "return sum(page_size - int(n) % page_size for n in seq_lens)"),
    ("waste of empty sequences", WASTED, "return sum(max(1, pages_needed(int(n), page_size)) * page_size - int(n) for n in seq_lens)"),
    ("pages of all tokens together", WASTED, "total = sum(int(n) for n in seq_lens)\n    return pages_needed(total, page_size) * page_size - total"),
    ("waste by a loop over tokens", WASTED, "return sum(pages_needed(int(n), page_size) * page_size - sum(1 for t in range(n)) for n in seq_lens)"),
    ("the table is cleaned up", PAGE, PAGE + "\n    block_table[b, pages_needed(int(seq_lens[b]), page_size):] = 0"),
    ("256 sequences at most", WASTED, WASTED.replace("in seq_lens", "in seq_lens[:256]")),
    ("256 columns at most", PAGE, PAGE.replace("t // page_size]", "min(t // page_size, 255)]")),
    ("pages of 256 at most", WASTED, "page_size = min(page_size, 256)\n    " + WASTED),
]

RIGHT = [
    ("divmod", [(PAGES, "pages, rest = divmod(seq_len, page_size)\n    return pages + (rest > 0)"),
        (PAGE, "column, offset = divmod(t, page_size)\n    page = block_table[b, column].item()")]),
    ("waste by the remainder", WASTED, "return sum(-int(n) % page_size for n in seq_lens)"),
    ("two tests", IF, "if t < 0 or t + 1 > int(seq_lens[b]):"),
]

EQUIVALENT = []
