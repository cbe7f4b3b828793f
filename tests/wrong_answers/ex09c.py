"""ex09c: the FlashAttention-2 kernel with a window and a sink."""

# fmt: off
FIRST = "first = max(0, m_start + seqlen_k - seqlen_q - WINDOW + 1)"
RETURN = "return p - WINDOW + 1, p, first // BLOCK_N * BLOCK_N, end_m + seqlen_k - seqlen_q"
M_I = "m_i = float32(sink)"
L_I = "l_i = float32(1.0)"
IF = "if n > last_n or n < first_n:"
S = "s = float32(-math.inf)"
LOOP = "for n_start in range(n_first, n_stop, BLOCK_N):"
STORE = "        store(m, acc, m_i, l_i, out, lse)\n\n    return"
NO_SINK = [(M_I, "m_i = float32(-math.inf)"), (L_I, "l_i = float32(0.0)")]
AT_END = "        m_safe = max(m_i, sink)\n        l_i = l_i * math.exp(m_i - m_safe) + math.exp(sink - m_safe)\n"

WRONG = [
    ("no sink", NO_SINK),
    ("the sink counts, and is not the maximum", L_I, "l_i = float32(0.0)"),
    ("the sink is scaled", M_I, "m_i = float32(sink * softmax_scale)"),
    ("exp(sink) without a maximum", [NO_SINK[0], (L_I, "l_i = math.exp(sink)")]),
    ("the sink in every tile", "            l_i = add_tile(", "            l_i += math.exp(sink - m_safe)\n            l_i = add_tile("),
    ("the sink at the end, out not rescaled", [*NO_SINK, (STORE, AT_END + "        m_i = m_safe\n" + STORE)]),
    ("the sink in lse alone", [*NO_SINK, (STORE, STORE.replace("\n\n", "\n        if tx == 0 and m < q.shape[0]:\n            lse[m] = m_i + math.log(l_i + math.exp(sink - m_i)) if l_i > 0 else sink\n\n"))]),
    ("the sink's value is 1", "            acc[i] = float32(0.0)", "            acc[i] = float32(1.0)"),
    ("the sink is subtracted from the scores", [*NO_SINK, ("s *= softmax_scale", "s = s * softmax_scale - sink")]),
    ("top-left", "p = m + seqlen_k - seqlen_q", "p = m"),
    ("the window of the m-tile's first query", RETURN, RETURN.replace("p - WINDOW + 1", "m_start + seqlen_k - seqlen_q - WINDOW + 1")),
    ("no last key", IF, "if n >= k.shape[0] or n < first_n:"),
    ("starts at tile 0", RETURN, RETURN.replace("first // BLOCK_N * BLOCK_N", "0")),
    ("starts at the first key, not at its tile", RETURN, RETURN.replace("first // BLOCK_N * BLOCK_N", "first")),
    ("starts with the last query's first key", FIRST, "first = max(0, m_start + BLOCK_M - 1 + seqlen_k - seqlen_q - WINDOW + 1)"),
    ("a negative start", FIRST, "first = m_start + seqlen_k - seqlen_q - WINDOW + 1"),
    ("rounded up", RETURN, RETURN.replace("first // BLOCK_N", "(first + BLOCK_N - 1) // BLOCK_N")),
    ("ends with the sequence", RETURN, RETURN.replace("end_m + seqlen_k - seqlen_q", "seqlen_k")),
    ("dead tiles are loaded and hidden", LOOP, "for n_start in range(0, n_stop, BLOCK_N):"),
    ("-1e4 for a hidden key", S, "s = float32(-1e4)"),
    ("-1e9 for a hidden key", S, "s = float32(-1e9)"),
    ("-1e30 for a hidden key", S, "s = float32(-1e30)"),
    ("p is set to 0, the maximum sees hidden keys", [(IF, "hidden = n > last_n or n < first_n\n            if n >= seqlen_k:"), ("math.exp(s - m_safe)  # P", "float32(0.0) if hidden else math.exp(s - m_safe)  # P")]),
    ("the maximum of this tile alone", "m_new = m_i\n", "m_new = float32(-math.inf)\n"),
    ("nothing rescaled", "add_tile(acc, l_i, alpha", "add_tile(acc, l_i, float32(1.0)"),
    ("l rescaled twice", "add_tile(acc, l_i, alpha", "add_tile(acc, l_i * alpha, alpha"),
    ("no scale", "s *= softmax_scale", "s *= float32(1.0)"),
    ("lse without the maximum", "store(m, acc, m_i,", "store(m, acc, float32(0.0),"),
    ("64 m-tiles at most", "m_start = cuda.blockIdx.x * BLOCK_M", "m_start = cuda.blockIdx.x % 64 * BLOCK_M"),
    ("256 tiles at most", LOOP, "for n_start in range(n_first, min(n_stop, n_first + 256 * BLOCK_N), BLOCK_N):"),
    ("float64", L_I, "l_i = 1.0"),
]

RIGHT = [
    ("the sink at the end", [
        *NO_SINK, (STORE, "        m_end = max(m_i, sink)\n        scale_end = math.exp(m_i - m_end)\n        l_i = l_i * scale_end + math.exp(sink - m_end)\n"
                          "        for i in range(NUM_COLS):\n            acc[i] *= scale_end\n        m_i = m_end\n" + STORE)]),
    ("an m-tile without keys is answered first", "        for n_start in range(n_first", "        if n_stop <= n_first:\n            n_stop = n_first\n        for n_start in range(n_first"),
    ("the first key of the tile by a loop", RETURN, "n_first = 0\n        while n_first + BLOCK_N <= first:\n            n_first += BLOCK_N\n        return p - WINDOW + 1, p, n_first, end_m + seqlen_k - seqlen_q"),
]

EQUIVALENT = [
    ("m_safe = m_new if m_new > -math.inf else float32(0.0) -> m_safe = m_new if m_new >= -math.inf else float32(0.0)", "m_i begins with the sink, which is finite"),
]
