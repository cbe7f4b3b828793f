"""ex16d: causal attention of the second chunk."""

RANGE = "for n in range(seq_len - q.shape[0] + m + 1):"

WRONG = [
    ("no mask", RANGE, "for n in range(seq_len):"),
    ("one key too many", RANGE, "for n in range(min(seq_len, seq_len - q.shape[0] + m + 2)):"),
    ("the chunk is not in the cache", RANGE, "for n in range(min(k_cache.shape[0], seq_len + m + 1)):"),
    ("the cache is read to its end", RANGE, "for n in range(k_cache.shape[0] - q.shape[0] + m + 1):"),
    ("chunks of 32", RANGE, "for n in range((seq_len - 1) // 32 * 32 + m + 1):"),
    ("chunks of 8", RANGE, "for n in range((seq_len - 1) // 8 * 8 + m + 1):"),
    ("the chunk alone", RANGE, "for n in range(seq_len - q.shape[0], seq_len - q.shape[0] + m + 1):"),
    ("the chunk without what came before its last key", RANGE, "for n in range(m, seq_len - q.shape[0] + m + 1):"),
    ("the first thread block alone", RANGE, "for n in range(seq_len - q.shape[0] + m % 32 + 1):"),
    ("keys are read that count for nothing", RANGE, "for n in range(seq_len):\n            if n > seq_len - q.shape[0] + m:\n                acc[0] += float32(0.0) * k_cache[n, 0]\n                continue"),
    ("the first key counts twice", RANGE, "for i in range(-1, seq_len - q.shape[0] + m + 1):\n            n = max(i, 0)"),
    ("the broken kernel is mended", "for n in range(m + 1):", RANGE),
    ("float64", RANGE, "l_i = 0.0\n        " + RANGE),
    ("256 keys at most", RANGE, RANGE.replace("range(", "range(min(256, ").replace("):", ")):")),
    ("0 for the first maximum", RANGE, "m_i = float32(0.0)\n        " + RANGE),
    ("-1e4 for the first maximum", RANGE, "m_i = float32(-1e4)\n        " + RANGE),
    ("-1e9 for the first maximum", RANGE, "m_i = float32(-1e9)\n        " + RANGE),
]  # fmt: skip

RIGHT = [
    ("the number of its token", RANGE, "token = seq_len - q.shape[0] + m\n        for n in range(token + 1):"),
    ("all keys, and a test before they are loaded", RANGE, "for n in range(seq_len):\n            if n > m + seq_len - q.shape[0]:\n                break"),
]  # fmt: skip

EQUIVALENT = []
