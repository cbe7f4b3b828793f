"""ex18d: bytes of two routes."""

FOLLOW = "return sum(seq_lens) * 2 * num_kv_heads * head_dim * itemsize"
TOKENS = "tokens = 2 * sum(seq_lens) + len(seq_lens) * max(seq_lens)"
COPY = "return tokens * 2 * num_kv_heads * head_dim * itemsize"
SHARE = "return 4 / (page_size * 2 * num_kv_heads * head_dim * itemsize)"

WRONG = [
    ("loaded and stored", FOLLOW, FOLLOW.replace(" * 2", " * 4")),
    ("padding is read", FOLLOW, FOLLOW.replace("sum(seq_lens)", "len(seq_lens) * max(seq_lens)")),
    ("always float32", FOLLOW, FOLLOW.replace("itemsize", "4")),
    ("whole pages", FOLLOW, FOLLOW.replace("sum(seq_lens)", "sum(-(-n // 4) * 4 for n in seq_lens)")),
    ("a float", FOLLOW, FOLLOW.replace("* itemsize", "* float(itemsize)")),
    ("three times", TOKENS, "tokens = 3 * sum(seq_lens)"),
    ("padding is loaded", TOKENS, "tokens = 3 * len(seq_lens) * max(seq_lens)"),
    ("padding is loaded by the attention", TOKENS, "tokens = sum(seq_lens) + 2 * len(seq_lens) * max(seq_lens)"),
    ("an entry of 8 bytes", SHARE, SHARE.replace("return 4", "return 8")),
    ("64 heads at most", FOLLOW, FOLLOW.replace("num_kv_heads", "min(num_kv_heads, 64)")),
    ("heads of 256 numbers at most", COPY, COPY.replace("head_dim", "min(head_dim, 256)")),
    ("16 sequences at most", TOKENS, TOKENS.replace("sum(seq_lens)", "sum(seq_lens[:16])")),
]  # fmt: skip

RIGHT = [
    ("loops", TOKENS, "tokens = 0\n    for n in seq_lens:\n        tokens += n + max(seq_lens) + n"),
    ("by follow_bytes", COPY, "return follow_bytes(seq_lens, num_kv_heads, head_dim, itemsize) * tokens // sum(seq_lens)"),
]  # fmt: skip

EQUIVALENT = []
