"""ex18c: the page belongs to the key."""

# broken_kernel shares lines with the solution: what stands only in the solution is named with a neighbour.
IF = "    if n < seq_lens[b]:\n        page = block_table[b, n // page_size]\n        score = float32(0)"
PAGE = "page = block_table[b, n // page_size]"
TEST = "if n < seq_lens[b]:"
LOOP = (
    IF
    + "\n        for d in range(q.shape[1]):\n            score += q[b, d] * k_cache[page, n % page_size, d]\n        s[b, n] = score"
)

WRONG = [
    ("as it was", [(TEST, "if n_start < seq_lens[b] :"), (PAGE, "page = block_table[b, n_start // page_size + 0]")]),
    ("the page of the tile", PAGE, "page = block_table[b, n_start // page_size + 0]"),
    ("the test of the tile", TEST, "if n_start < seq_lens[b] :"),
    ("the next page only", PAGE, "page = block_table[b, n_start // page_size + (n % page_size < n_start % page_size)]"),
    ("the slot in the tile", LOOP, LOOP.replace("n % page_size, d", "cuda.threadIdx.x % page_size, d")),
    ("the page by rows", PAGE, "page = block_table[b, n % page_size]"),
    ("no table", PAGE, "page = n // page_size"),
    ("the table of sequence 0", PAGE, "page = block_table[0, n // page_size]"),
    ("one token too few", TEST, "if n < seq_lens[b] - 1:"),
    ("tested against the grid", TEST, "if n < s.shape[1]:"),
    ("length of sequence 0", TEST, "if n < seq_lens[0]:"),
    ("zero behind the end", TEST, "s[b, n] = float32(0)\n    if n < seq_lens[b]:"),
    ("page_size as BLOCK_N", PAGE, "page = block_table[b, n // BLOCK_N]"),
    ("keys loaded twice", LOOP, LOOP.replace("score += q[b, d]", "score += k_cache[page, n % page_size, d] * 0 + q[b, d]")),
    ("a float64 sum", LOOP, LOOP.replace("float32(0)", "0.0 * 1.0")),
    ("pages of 32 slots at most", LOOP, LOOP.replace("n % page_size, d", "n % min(page_size, 32), d")),
    ("pages of 256 slots at most", LOOP, LOOP.replace("n % page_size, d", "n % min(page_size, 256), d")),
    ("128 numbers of a key at most", LOOP, LOOP.replace("range(q.shape[1])", "range(min(q.shape[1], 128))")),
    ("256 sequences at most", TEST, "if b < 256 and n < seq_lens[b]:"),
    ("32 tiles at most", TEST, "if n < min(256, seq_lens[b]):"),
]  # fmt: skip

RIGHT = [
    ("a return for the others", IF, "    if n >= seq_lens[b]:\n        return\n    if True:\n        " + PAGE + "\n        score = float32(0)"),
    ("looked up in the loop", LOOP, LOOP.replace("k_cache[page,", "k_cache[block_table[b, n // page_size],")),
    ("divmod by hand", PAGE, "i = n // page_size\n        page = block_table[b, i]"),
]  # fmt: skip

EQUIVALENT = []
