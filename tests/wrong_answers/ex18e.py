"""ex18e: paged decode of an int8 cache."""

K_FACTOR = "k_factor = k_scale[page, kv_head] if inside else float32(0)"
V_FACTOR = "v_factor = v_scale[page, kv_head] if inside else float32(0)"
K = "k = float32(k_cache[page, offset, kv_head, d]) if inside else float32(0)"
V = "v = float32(v_cache[page, offset, kv_head, d]) if inside else float32(0)"
K_TILE = "k_tile[row, d] = k * k_factor"
V_TILE = "v_tile[row, d] = v * v_factor"
PAGE = "page = block_table[b, key // PAGE_SIZE] if inside else 0"
LOOP = "for d in range(tx, HEAD_DIM, BLOCK_N):\n                    k = "

WRONG = [
    ("no scales", [(K_TILE, "k_tile[row, d] = k"), (V_TILE, "v_tile[row, d] = v")]),
    ("no scale of V", V_TILE, "v_tile[row, d] = v"),
    ("one scale for both", V_FACTOR, V_FACTOR.replace("v_scale", "k_scale")),
    ("the scale of head 0", K_FACTOR, K_FACTOR.replace("kv_head", "0")),
    ("the scale of the first page", K_FACTOR, K_FACTOR.replace("[page,", "[block_table[b, 0],")),
    ("the scale of the tile", V_FACTOR, V_FACTOR.replace("[page,", "[block_table[b, n_start // PAGE_SIZE],")),
    ("the scale of the sequence", K_FACTOR, K_FACTOR.replace("[page,", "[b,")),
    ("the scale by page and offset", K_FACTOR, K_FACTOR.replace("kv_head]", "offset % k_scale.shape[1]]")),
    ("divided by the scale", K_TILE, "k_tile[row, d] = k / k_factor if inside else float32(0)"),
    ("read as unsigned", K, K.replace("float32(k_cache[page, offset, kv_head, d])", "float32(k_cache[page, offset, kv_head, d] & 255)")),
    ("symmetric: -128 is -127", V, V.replace("float32(v_cache[page, offset, kv_head, d])", "max(float32(v_cache[page, offset, kv_head, d]), float32(-127))")),
    ("over 127", K_TILE, "k_tile[row, d] = k * k_factor / float32(127)"),
    ("float64", K, K.replace("float32(k_cache[page, offset, kv_head, d])", "k_cache[page, offset, kv_head, d] * 1.0")),
    ("int8 times float32", [(V, V.replace("float32(v_cache[page, offset, kv_head, d]) if inside else float32(0)", "v_cache[page, offset, kv_head, d] if inside else 0"))]),
    ("scales of pages that nobody has", K_FACTOR, "k_factor = k_scale[page, kv_head]"),
    ("the scale for each number", LOOP, LOOP.replace("k = ", "k_factor = k_scale[page, kv_head] if inside else float32(0)\n                    k = ")),
    ("whole pages are read", "inside = key < seqlen_k", "inside = key < (seqlen_k + PAGE_SIZE - 1) // PAGE_SIZE * PAGE_SIZE"),
    ("the page of the tile", PAGE, PAGE.replace("key //", "n_start //")),
    ("scales summed in the scores", "s *= softmax_scale", "s *= softmax_scale * k_scale[block_table[b, 0], kv_head] if seqlen_k > 0 else softmax_scale"),
    ("256 pages at most", PAGE, PAGE.replace("key // PAGE_SIZE", "key // PAGE_SIZE % 256")),
]  # fmt: skip

RIGHT = [
    ("the product in one line", [("                    " + K + "\n", ""), (K_TILE, "k_tile[row, d] = float32(k_cache[page, offset, kv_head, d]) * k_factor if inside else float32(0)")]),
    ("V's scale in a scale of the row", [(V_FACTOR, "v_factor = float32(0)\n                if inside:\n                    v_factor = v_scale[page, kv_head]"), (V_TILE, "v_tile[row, d] = v_factor * v")]),
]  # fmt: skip

EQUIVALENT = [
    ("m_safe = m_new if m_new > -math.inf else float32(0.0) -> m_safe = m_new if m_new >= -math.inf else float32(0.0)", "a tile of a share has a key, so m_new is finite after it"),
    (f"{K_FACTOR} -> {K_FACTOR[:-2]}1)", "a key that does not exist is 0"),
    (f"{V_FACTOR} -> {V_FACTOR[:-2]}1)", "a value that does not exist is 0"),
    (f"{V} -> {V[:-2]}1)", "its factor is 0"),
    (f"{K} -> {K[:-2]}1)", "its factor is 0"),
    (f"{PAGE} -> {PAGE[:-1]}1", "a key that does not exist is not loaded"),
]  # fmt: skip
