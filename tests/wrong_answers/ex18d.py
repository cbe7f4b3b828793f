"""ex18d: the split kernel over keys in pages."""

KEY = "key = n_start + row"
INSIDE = "inside = key < seqlen_k"
PAGE = "page = block_table[b, key // PAGE_SIZE] if inside else 0"
OFFSET = "offset = key % PAGE_SIZE"
LOOP = "for d in range(tx, HEAD_DIM, BLOCK_N):\n                    k_tile"
K = "k_tile[row, d] = k_cache[page, offset, kv_head, d] if inside else float32(0)"
V = "v_tile[row, d] = v_cache[page, offset, kv_head, d] if inside else float32(0)"
TEST = "if n >= seqlen_k:"
STORE = "store(head, acc, m_i, l_i, out_partial[split, b], lse_partial[split, b])"
FIRST = "n_first = split * num_n_tiles // num_splits * BLOCK_N"
STOP = "n_stop = (split + 1) * num_n_tiles // num_splits * BLOCK_N"

WRONG = [
    ("the page of the tile", PAGE, PAGE.replace("key //", "n_start //")),
    ("the next page at most", PAGE, PAGE.replace("key // PAGE_SIZE", "n_start // PAGE_SIZE + (row >= PAGE_SIZE - n_start % PAGE_SIZE)")),
    ("the offset in the tile", OFFSET, "offset = row % PAGE_SIZE"),
    ("no table", PAGE, "page = key // PAGE_SIZE if inside else 0"),
    ("the table of sequence 0", PAGE, PAGE.replace("[b,", "[0,")),
    ("the page by the offset", PAGE, PAGE.replace("//", "%")),
    ("pages of a tile", [(PAGE, PAGE.replace("PAGE_SIZE", "BLOCK_N")), (OFFSET, "offset = key % BLOCK_N % PAGE_SIZE")]),
    ("no test of the key", [(PAGE, "page = block_table[b, key // PAGE_SIZE]"), (INSIDE, "inside = True")]),
    ("whole pages are read", INSIDE, "inside = key < (seqlen_k + PAGE_SIZE - 1) // PAGE_SIZE * PAGE_SIZE"),
    ("a page without number 0", PAGE, PAGE.replace("else 0", "else 0\n                inside = inside and page > 0")),
    ("looked up for each number", LOOP, LOOP.replace("k_tile", "page = block_table[b, key // PAGE_SIZE] if inside else 0\n                    k_tile")),
    ("values of K's head 0", V, V.replace("kv_head", "0")),
    ("values from the keys", V, V.replace("v_cache", "k_cache")),
    ("keys past the end with score 0", TEST, "if n >= seqlen_k + BLOCK_N:"),
    ("the last key is not seen", TEST, "if n >= seqlen_k - 1:"),
    ("no scale", "s *= softmax_scale", "s *= float32(1.0)"),
    ("every split takes all tiles", [(FIRST, "n_first = 0"), (STOP, "n_stop = num_n_tiles * BLOCK_N")]),
    ("splits cut at pages", [(FIRST, "n_first = split * ((seqlen_k + PAGE_SIZE - 1) // PAGE_SIZE) // num_splits * PAGE_SIZE"), (STOP, "n_stop = (split + 1) * ((seqlen_k + PAGE_SIZE - 1) // PAGE_SIZE) // num_splits * PAGE_SIZE")]),
    ("results of sequence 0", STORE, STORE.replace("out_partial[split, b]", "out_partial[split, 0]")),
    ("heads in turn", "head = kv_head * GROUP_SIZE + ty", "head = ty * cuda.gridDim.y + kv_head"),
    ("each head loads the keys", "for row in range(ty, BLOCK_N, BLOCK_M):", "for row in range(BLOCK_N):"),
    ("256 pages at most", PAGE, PAGE.replace("key // PAGE_SIZE", "key // PAGE_SIZE % 256")),
    ("pages of 256 slots at most", OFFSET, "offset = key % PAGE_SIZE % 256"),
    ("128 columns of a key", "for d in range(HEAD_DIM):\n                s +=", "for d in range(min(HEAD_DIM, 128)):\n                s +="),
    ("nothing rescaled", "add_tile(acc, l_i, alpha", "add_tile(acc, l_i, float32(1.0)"),
    ("-1e9 for a key that does not exist", "s = float32(-math.inf)  # a key that does not exist: exp gives 0", "s = float32(-1e9)"),
    ("float64", "l_i = float32(0.0)", "l_i = 0.0"),
    ("the table is changed", STORE, STORE + "\n        if tx == 0 and ty == 0:\n            block_table[b, 0] = 0"),
    ("a dense copy in shared memory", "        acc = cuda.local", "        spare = cuda.shared.array((64, HEAD_DIM), float32)\n        spare[ty, tx % HEAD_DIM] = float32(0.0)\n        acc = cuda.local"),
]  # fmt: skip

RIGHT = [
    ("divmod, and a test around the loads", [(PAGE, "i, offset = divmod(key, PAGE_SIZE)\n                page = block_table[b, i] if inside else 0"), ("                " + OFFSET + "\n", ""),]),
    ("an even share, rounded up", [
        (FIRST, "share = (num_n_tiles + num_splits - 1) // num_splits\n        n_first = min(split * share, num_n_tiles) * BLOCK_N"),
        (STOP, "n_stop = min((split + 1) * share, num_n_tiles) * BLOCK_N"),
    ]),
    ("the page as an array", [(K, K.replace("k_cache[page, offset, kv_head, d]", "k_cache[page][offset, kv_head, d]"))]),
]  # fmt: skip

EQUIVALENT = [
    ("m_safe = m_new if m_new > -math.inf else float32(0.0) -> m_safe = m_new if m_new >= -math.inf else float32(0.0)", "a tile of a share has a key, so m_new is finite after it"),
    (f"{V} -> {V[:-2]}1)", "a key that does not exist has weight 0"),
    (f"{K} -> {K[:-2]}1)", "the score of a key that does not exist is -inf, whatever the tile holds"),
    (f"{PAGE} -> {PAGE[:-1]}1", "a key that does not exist is not loaded"),
]  # fmt: skip
