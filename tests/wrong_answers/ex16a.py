"""ex16a: the size of a cache, and what a decoding step reads of it."""

# fmt: off
CACHE = "return 2 * seqlen * num_layers * num_kv_heads * head_dim * dtype_bytes"
BATCH = "return memory_bytes // cache_bytes(seqlen, num_layers, num_kv_heads, head_dim, dtype_bytes)"
QO = "q_and_out = 2 * num_layers * num_heads * head_dim * dtype_bytes"
FLOPS = "flops = 4 * num_layers * num_heads * head_dim * seqlen"

WRONG = [
    ("16-bit numbers always", CACHE, CACHE.replace("dtype_bytes", "2")),
    ("a float", CACHE, CACHE.replace("return ", "return 1.0 * ")),
    ("through float64", CACHE, CACHE.replace("return ", "return int(1.0 * ") + ")"),
    ("rounded up", BATCH, BATCH.replace("memory_bytes //", "-(-memory_bytes //") + ")"),
    ("divided in float64", BATCH, BATCH.replace("return memory_bytes //", "return int(memory_bytes /") + ")"),
    ("batch of 16-bit numbers", BATCH, BATCH.replace("dtype_bytes)", "2)")),
    ("at least one fits", BATCH, BATCH.replace("return ", "return max(1, ") + ")"),
    ("queries of the K/V heads", QO, QO.replace("num_heads", "num_kv_heads")),
    ("queries of all tokens", QO, QO + " * seqlen"),
    ("the cache alone", QO, "q_and_out = 0"),
    ("FLOPs of the K/V heads", FLOPS, FLOPS.replace("num_heads", "num_kv_heads")),
    ("one FLOP for a multiply-add", FLOPS, FLOPS.replace("4", "2")),
    ("the limit for long sequences", "return flops / moved", "return 2 * num_heads / num_kv_heads / dtype_bytes"),
    ("whole FLOPs", "return flops / moved", "return flops // moved"),
]

RIGHT = [
    ("counted otherwise", [
        (CACHE, "per_token = num_layers * num_kv_heads * head_dim\n    return sum(seqlen * per_token * dtype_bytes for _ in 'kv')"),
        (BATCH, "return divmod(memory_bytes, cache_bytes(seqlen, num_layers, num_kv_heads, head_dim, dtype_bytes))[0]"),
    ]),
    ("the intensity from one layer", "return flops / moved", "group = num_heads / num_kv_heads\n    return 2 * group * seqlen / (seqlen + group) / dtype_bytes"),
]

EQUIVALENT = []
