"""ex18e: paged decode of a cache of e4m3, or int8."""

NUMBER = "x = libdevice.int_as_float(int32(size << 20)) * float32(2.0**120)  # corrects the bias"
NAN = "if size == 0x7F:"
SIGN = "return -x if code & 0x80 else x"
K_FACTOR = "k_factor = k_scale[page, offset, kv_head] if inside else float32(0)"
V_FACTOR = "v_factor = v_scale[page, offset, kv_head] if inside else float32(0)"
K = "k = from_byte(k_cache[page, offset, kv_head, d]) if inside else float32(0)"
V = "v = from_byte(v_cache[page, offset, kv_head, d]) if inside else float32(0)"
K_TILE = "k_tile[row, d] = k * k_factor"
V_TILE = "v_tile[row, d] = v * v_factor"
INT8 = "return float32(code - 256 if code > 127 else code)"
PAGE = "page = block_table[b, key // PAGE_SIZE] if inside else 0"

WRONG = [
    ("no scales", [(K_TILE, "k_tile[row, d] = k"), (V_TILE, "v_tile[row, d] = v")]),
    ("one scale for both", V_FACTOR, V_FACTOR.replace("v_scale", "k_scale")),
    ("the scale of head 0", K_FACTOR, K_FACTOR.replace("kv_head", "0")),
    ("the scale of the page's first token", K_FACTOR, K_FACTOR.replace("offset", "0")),
    ("the scale of the page's first token, for V", V_FACTOR, V_FACTOR.replace("offset", "0")),
    ("the scale of the first page", K_FACTOR, K_FACTOR.replace("[page,", "[block_table[b, 0],")),
    ("the scale of the tile's page", V_FACTOR, V_FACTOR.replace("[page,", "[block_table[b, n_start // PAGE_SIZE],")),
    ("the scale by head and offset", K_FACTOR, K_FACTOR.replace("offset, kv_head]", "kv_head % PAGE_SIZE, offset % k_scale.shape[2]]")),
    ("divided by the scale", K_TILE, "k_tile[row, d] = k / k_factor if inside else float32(0)"),
    ("over 448", K_TILE, "k_tile[row, d] = k * k_factor / float32(448)"),
    ("the byte is the number", K, K.replace("from_byte(k_cache[page, offset, kv_head, d])", "float32(k_cache[page, offset, kv_head, d])")),
    ("scales of slots that nobody has", K_FACTOR, "k_factor = k_scale[page, offset, kv_head]"),
    ("the scale for each number", "for d in range(tx, HEAD_DIM, BLOCK_N):\n                    k = ", "for d in range(tx, HEAD_DIM, BLOCK_N):\n                    k_factor = k_scale[page, offset, kv_head] if inside else float32(0)\n                    k = "),
    ("whole pages are read", "inside = key < seqlen_k", "inside = key < (seqlen_k + PAGE_SIZE - 1) // PAGE_SIZE * PAGE_SIZE"),
    ("the page of the tile", PAGE, PAGE.replace("key //", "n_start //")),
    ("scales summed in the scores", "s *= softmax_scale", "s *= softmax_scale * k_scale[block_table[b, 0], 0, kv_head] if seqlen_k > 0 else softmax_scale"),
    ("256 pages at most", PAGE, PAGE.replace("key // PAGE_SIZE", "key // PAGE_SIZE % 256")),
    ("subnormal numbers are 0", NUMBER, NUMBER + "\n    if size < 8:\n        x = float32(0)"),
    ("subnormal numbers have a leading 1", NUMBER, "x = float32(8 + (size & 7)) * math.exp2(float32(max(size >> 3, 1) - 10))" + "\n    if size == 0:\n        x = float32(0)"),
    ("0 is 2^-10", NUMBER, "x = float32(8 + (size & 7)) * libdevice.exp2f(float32((size >> 3) - 10))"),
    ("infinities, as in float16", NAN, "if size == 0x78:\n        x = float32(math.inf)\n    if size > 0x78:"),
    ("all of the largest exponent are NaN", NAN, "if size >= 0x78:"),
    ("NaN is 480", NAN, "if size > 0x7F:"),
    ("one NaN", NAN, "if code == 0x7F:"),
    ("no sign", SIGN, "return x"),
    ("a bias of 8", NUMBER, NUMBER.replace("2.0**120", "2.0**119")),
    ("e5m2", NUMBER, NUMBER.replace("size << 20", "size << 21").replace("2.0**120", "2.0**112")),
    ("the format with a bias of 8 and one NaN, 0x80 (fnuz)", [(NUMBER, NUMBER.replace("2.0**120", "2.0**119")), (NAN, "if code == 0x80:")]),
    ("a finite number hides a key", "s = float32(-math.inf)  # a", "s = float32(-1e4)  # a"),
    ("the maximum starts at 0", "m_i = float32(-math.inf)", "m_i = float32(0.0)"),
    ("int8 without a sign", INT8, "return float32(code)"),
    ("int8 moved by 128", INT8, "return float32(code - 128)"),
    ("int8 as sign and size", INT8, "return float32(128 - code if code > 127 else code)"),
    ("int8 in one's complement", INT8, INT8.replace("256", "255")),
    ("int8: 127 is -129", INT8, INT8.replace("> 127", "> 126")),
    ("int8: -128 is -127", INT8, "return float32(max(code - 256, -127) if code > 127 else code)"),
    ("always e4m3", [(K, K.replace("from_byte", "from_e4m3")), (V, V.replace("from_byte", "from_e4m3"))]),
    ("values always e4m3", V, V.replace("from_byte", "from_e4m3")),
    ("float64", NUMBER, NUMBER.replace("float32(2.0**120)", "2.0**120")),
]  # fmt: skip

RIGHT = [
    ("by arithmetic", NUMBER, "x = float32((8 + (size & 7)) << (size >> 3) if size >= 8 else 2 * size) * float32(1 / 1024)"),
    ("the product in one line", [("                    " + K + "\n", ""), (K_TILE, "k_tile[row, d] = from_byte(k_cache[page, offset, kv_head, d]) * k_factor if inside else float32(0)")]),
    ("V's scale in a scale of the row", [(V_FACTOR, "v_factor = float32(0)\n                if inside:\n                    v_factor = v_scale[page, offset, kv_head]"), (V_TILE, "v_tile[row, d] = v_factor * v")]),
    ("int8 by a shift", INT8, "return float32(int32(code << 24) >> 24)"),
    ("the sign in the bits", [(NUMBER, "bits = int32(size << 20) | (int32(-2147483648) if code & 0x80 else int32(0))\n    x = libdevice.int_as_float(int32(bits)) * float32(2.0**120)"), (SIGN, "return x")]),
]  # fmt: skip

EQUIVALENT = [
    ("m_safe = m_new if m_new > -math.inf else float32(0.0) -> m_safe = m_new if m_new >= -math.inf else float32(0.0)", "a tile of a share has a key, so m_new is finite after it"),
    (f"{K_FACTOR} -> {K_FACTOR[:-2]}1)", "a key that does not exist is 0"),
    (f"{V_FACTOR} -> {V_FACTOR[:-2]}1)", "a value that does not exist is 0"),
    (f"{V} -> {V[:-2]}1)", "its factor is 0"),
    (f"{K} -> {K[:-2]}1)", "its factor is 0"),
    (f"{PAGE} -> {PAGE[:-1]}1", "a key that does not exist is not loaded"),
]  # fmt: skip
