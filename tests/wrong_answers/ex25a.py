"""ex25a: the bounds of a page."""

# fmt: off
TOKENS = "tokens = min(page_size, seq_lens[b] - i * page_size)"
IF = "if tokens > 0:"
PAGE = "page = block_table[b, i]"
COLUMNS = "for d in range(tx, head_dim, 32):"
FIRST = "low = high = k_cache[page, 0, kv_head, d]"
LOOP = "for offset in range(1, tokens):"
LOAD = "x = k_cache[page, offset, kv_head, d]"
LOW = "low = min(low, x)"
HIGH = "high = max(high, x)"
STORE = "k_min[page, kv_head, d] = low"

WRONG = [
    ("empty slots take part", TOKENS, "tokens = page_size if i * page_size < seq_lens[b] else 0"),
    ("the last page is left out", TOKENS, "tokens = page_size if (i + 1) * page_size <= seq_lens[b] else 0"),
    ("the last token alone", LOOP, "for offset in range(max(tokens - 1, 1), tokens):"),
    ("page i, the table is not looked at", PAGE, "page = i"),
    ("the table of sequence 0", PAGE, "page = block_table[0, i]"),
    ("the length of sequence 0", TOKENS, TOKENS.replace("[b]", "[0]")),
    ("from 0", FIRST, "low = high = k_cache[page, 0, kv_head, d] * 0"),
    ("32 columns at most", COLUMNS, "for d in range(tx, min(head_dim, 32), 32):"),
    ("256 columns at most", COLUMNS, "for d in range(tx, min(head_dim, 256), 32):"),
    ("the columns of a lane are neighbours", COLUMNS, "for d in range(tx * ((head_dim + 31) // 32), min(head_dim, (tx + 1) * ((head_dim + 31) // 32))):"),
    ("every lane does all columns", COLUMNS, "for d in range(head_dim):"),
    ("exchanged", [(LOW, "low = max(low, x)"), (HIGH, "high = min(high, x)")]),
    ("the largest absolute number", HIGH, "high = max(high, abs(x))"),
    ("the mean", [(LOW, "low += (x - low) / (offset + 1)"), (HIGH, "high = low")]),
    ("head 0", LOAD, LOAD.replace("kv_head", "0")),
    ("bounds in HBM", STORE, "k_min[page, kv_head, d] = min(low, k_min[page, kv_head, d] + float(0) * low) if False else low\n            k_min[page, kv_head, d] = k_min[page, kv_head, d]"),
    ("keys are read twice", HIGH, "high = max(high, k_cache[page, offset, kv_head, d])"),
    ("pages without tokens get 0", STORE, STORE + "\n    elif i < block_table.shape[1] and tx == 0:\n        for d in range(head_dim):\n            k_min[block_table[b, i], kv_head, d] = k_max[block_table[b, i], kv_head, d] = 0"),
    ("a barrier", PAGE, PAGE + "\n        cuda.syncthreads()"),
    ("64 tokens of a page at most", LOOP, "for offset in range(1, min(tokens, 64)):"),
    ("64 sequences at most", TOKENS, "b = b % 64\n    " + TOKENS),
    ("stored as page i", STORE, "k_min[i, kv_head, d] = low"),
    ("the last token of each page is left out", LOOP, "for offset in range(1, tokens - 1):"),
]

RIGHT = [
    ("from infinities, with comparisons", [
        (FIRST, "low, high = float32(math.inf), float32(-math.inf)"), (LOOP, "for offset in range(tokens):"),
        (LOW, "low = x if x < low else low"), (HIGH, "high = x if x > high else high"),
        ("from numba import cuda\n", "import math\n\nfrom numba import cuda, float32\n")]),
    ("a thread block without tokens leaves at once", [(IF, "if tokens <= 0:\n        return\n    if True:"), (LOOP, "for offset in range(tokens - 1, 0, -1):")]),
]

EQUIVALENT = []
