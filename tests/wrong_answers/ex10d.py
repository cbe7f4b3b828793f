"""ex10d: a packed batch whose sequences do not see each other."""

# The kernel with the bug has all lines but these two.
QUERY = "is_query = m < seqlen\n"
FIRST = (
    QUERY
    + "        for d in range(HEAD_DIM):\n            acc[d] = float32(0)\n        m_i, l_i = NEG_INF"
)
MASK = "if is_query and n < seqlen and (n <= m or not CAUSAL):"
END = "        if is_query:\n            for d in range(HEAD_DIM):\n                out[start + m, d] = acc[d] / l_i\n\n    return kernel"

WRONG = [
    ("only the queries", MASK, "if is_query and start + n < k.shape[0] and (n <= m or not CAUSAL):"),
    ("only the keys", QUERY, "is_query = start + m < q.shape[0]\n"),
    ("every thread has a query", QUERY, "is_query = True\n"),
    ("one query too few", QUERY, "is_query = m < seqlen - 1\n"),
    ("one key too few", MASK, MASK.replace("n < seqlen", "n < seqlen - 1")),
    ("keys in the batch", MASK, MASK.replace("n < seqlen", "start + n < seqlen")),
    ("never causal", MASK, MASK.replace("n <= m or not CAUSAL", "True")),
    ("positions in the batch", MASK, MASK.replace("n <= m", "n <= start + m")),
    ("upside down", MASK, MASK.replace("n <= m", "n >= m")),
    ("a query by itself", QUERY, "is_query = m_start < seqlen\n"),
    ("all rows are stored", END, END.replace("if is_query", "if start + m < q.shape[0]")),
    ("the first warp alone", QUERY, "is_query = m < seqlen and tx < 32\n"),
    ("64 columns at most", END, END.replace("out[start + m, d]", "out[start + m, d % 64]")),
    ("256 tokens at most", END, END.replace("if is_query", "if is_query and start + m < 256")),
    ("eight tiles of keys at most", MASK, MASK.replace("n < seqlen", "n < min(seqlen, 8 * BLOCK)")),
    ("a first maximum of -1e4", FIRST, FIRST.replace("NEG_INF", "float32(-1e4)")),
    ("a first maximum of 0", FIRST, FIRST.replace("NEG_INF", "float32(0)")),
]  # fmt: skip

RIGHT = [
    ("rows of the sequence in the batch", [(QUERY, "is_query = start + m < cu_seqlens[b + 1]\n"), (MASK, "if is_query and start + n < cu_seqlens[b + 1] and (n <= m or not CAUSAL):"),]),
    ("the mask in two conditions", MASK, "if n >= seqlen:\n                    continue\n                if is_query and (n <= m or not CAUSAL):"),
]  # fmt: skip

EQUIVALENT = [
    ("acc[d] = float32(0) -> acc[d] = float32(1)", "the first key multiplies it by alpha = 0"),
    ("m_i, l_i = (NEG_INF, float32(0)) -> m_i, l_i = (NEG_INF, float32(1))", "the first key multiplies it by alpha = 0",),
    *(
        (
            f"{x}_tile[tx, d] = {x}[row, d] if row < k.shape[0] else float32(0) -> "
            f"{x}_tile[tx, d] = {x}[row, d] if row < k.shape[0] else float32(1)",
            "the mask lets nothing behind the batch through",
        )
        for x in "kv"
    ),
    ("s = float32(0) -> s = float32(1)", "all scores of a row move together"),
]  # fmt: skip
