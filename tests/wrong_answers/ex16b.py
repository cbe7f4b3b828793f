"""ex16b: the query and the head of a row."""

OWNER = "return row // group_size, kv_head * group_size + row % group_size"
M = "m = row // group_size"
LAST = "return seqlen_k - seqlen_q + m"

WRONG = [
    ("changed over", OWNER, "return kv_head * group_size + row % group_size, row // group_size"),
    ("query after query", OWNER, "return row % group_size, kv_head * group_size + row // group_size"),
    ("one query", OWNER, "return 0, kv_head * group_size + row"),
    ("the head of the keys", OWNER, "return row // group_size, kv_head"),
    ("the number of keys", LAST, "return seqlen_k - seqlen_q + m + 1"),
    ("not its own key", LAST, "return seqlen_k - seqlen_q + m - 1"),
    ("all keys", LAST, "return seqlen_k - 1"),
    ("the head for the query", M, "m = row % group_size"),
    ("groups of 64 at most", OWNER, OWNER.replace("// group_size", "// min(group_size, 64)")),
    ("256 K/V heads at most", OWNER, OWNER.replace("kv_head", "kv_head % 256")),
    ("256 queries at most", M, "m = min(row // group_size, 255)"),
]  # fmt: skip

RIGHT = [
    ("by divmod", OWNER, "m, g = divmod(row, group_size)\n    return m, g + kv_head * group_size"),
    ("by the last query", LAST, "return seqlen_k - (seqlen_q - m)"),
    ("one calls the other", M, "m, _ = owner(row, 0, group_size)"),
]  # fmt: skip

EQUIVALENT = []
