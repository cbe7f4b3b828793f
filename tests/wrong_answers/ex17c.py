"""ex17c: the split kernel of Flash-Decoding."""

# fmt: off
M_I = "m_i = float32(-math.inf)"
S = "s = float32(-math.inf)  # a key that does not exist: exp gives 0"
TILES = "num_n_tiles = (seqlen_k + BLOCK_N - 1) // BLOCK_N"
FIRST = "n_first = split * num_n_tiles // num_splits * BLOCK_N"
STOP = "n_stop = (split + 1) * num_n_tiles // num_splits * BLOCK_N"
LOOP = "for n_start in range(n_first, n_stop, BLOCK_N):"
STORE = "store(head, acc, m_i, l_i, out_partial[split, b], lse_partial[split, b])"
LOAD_K = "k_tile[row, d] = k_cache[b, n_start + row, kv_head, d] if inside else float32(0)"
INSIDE = "inside = n_start + row < seqlen_k"
TEST = "if n >= seqlen_k:"
ROWS = "for row in range(ty, BLOCK_N, BLOCK_M):"
LAST = "            cuda.syncthreads()  # every thread is done with v_tile: safe to overwrite\n"

WRONG = [
    ("-1e4 for a key that does not exist", S, "s = float32(-1e4)"),
    ("-1e9 for a key that does not exist", S, "s = float32(-1e9)"),
    ("-1e30 for a key that does not exist", S, "s = float32(-1e30)"),
    ("-1e4 for the first maximum", M_I, "m_i = float32(-1e4)"),
    ("-1e9 for the first maximum", M_I, "m_i = float32(-1e9)"),
    ("-1e30 for the first maximum", M_I, "m_i = float32(-1e30)"),
    ("one split does all the work", [(FIRST, "n_first = 0"), (STOP, "n_stop = num_n_tiles * BLOCK_N if split == 0 else 0")]),
    ("shares of tiles // num_splits", [(FIRST, "share = num_n_tiles // num_splits\n        n_first = split * share * BLOCK_N"), (STOP, "n_stop = (split + 1) * share * BLOCK_N")]),
    ("the last split takes the rest", [(FIRST, "share = num_n_tiles // num_splits\n        n_first = split * share * BLOCK_N"), (STOP, "n_stop = ((split + 1) * share if split < num_splits - 1 else num_n_tiles) * BLOCK_N")]),
    ("shares of the cache, not of the sequence", TILES, "num_n_tiles = (k_cache.shape[1] + BLOCK_N - 1) // BLOCK_N"),
    ("tiles rounded down", TILES, "num_n_tiles = seqlen_k // BLOCK_N"),
    ("a part-filled tile in two splits", [(FIRST, "n_first = split * seqlen_k // num_splits"), (STOP, "n_stop = (split + 1) * seqlen_k // num_splits")]),
    ("all splits write the first", STORE, STORE.replace("out_partial[split", "out_partial[0").replace("lse_partial[split", "lse_partial[0")),
    ("split and sequence changed over", STORE, STORE.replace("out_partial[split, b]", "out_partial[b % num_splits, split % out_partial.shape[1]]")),
    ("16 splits at most", "num_splits = cuda.gridDim.x", "num_splits = min(16, cuda.gridDim.x)"),
    ("128 splits at most", [(FIRST, "num_splits = min(128, num_splits)\n        " + FIRST), (LOOP, "for n_start in range(n_first if split < 128 else 0, n_stop if split < 128 else 0, BLOCK_N):")]),
    ("the cache is read to its end", INSIDE, INSIDE.replace("seqlen_k", "k_cache.shape[1]")),
    ("keys past the end take part", TEST, "if n >= n_stop:"),
    ("length of sequence 0", "seqlen_k = seq_lens[b]", "seqlen_k = seq_lens[0]"),
    ("heads in turn", "head = kv_head * GROUP_SIZE + ty", "head = ty * cuda.gridDim.y + kv_head"),
    ("K/V head 0", LOAD_K, LOAD_K.replace("kv_head", "0")),
    ("no scale", "s *= softmax_scale", "s *= float32(1.0)"),
    ("nothing rescaled", "add_tile(acc, l_i, alpha", "add_tile(acc, l_i, float32(1.0)"),
    ("l rescaled twice", "add_tile(acc, l_i, alpha", "add_tile(acc, l_i * alpha, alpha"),
    ("not divided", "acc, m_i, l_i, out_partial", "acc, m_i, float32(1.0), out_partial"),
    ("each head loads the keys", ROWS, "for row in range(BLOCK_N):"),
    ("q is loaded in every tile", LAST, LAST + "            for d in range(tx, HEAD_DIM, BLOCK_N):\n                q_tile[ty, d] = q[b, head, d]\n"),
    ("lse is read back", STORE, STORE + "\n        if tx == 0:\n            lse_partial[split, b, head] = lse_partial[split, b, head]"),
    ("exponents held above -80", "math.exp(s - m_safe)", "(math.exp(max(s - m_safe, float32(-80.0))) if s > -math.inf else float32(0.0))"),
    ("128 tiles at most", LOOP, "for n_start in range(n_first, min(n_stop, n_first + 128 * BLOCK_N), BLOCK_N):"),
    ("64 sequences at most", "        num_splits = cuda.gridDim.x\n", "        num_splits = cuda.gridDim.x\n        b = b % 64\n"),
    ("a spare tile", "        p_tile = cuda", "        spare = cuda.shared.array((GROUP_SIZE, BLOCK_N), float32)\n        spare[ty, tx] = float32(0.0)\n        p_tile = cuda"),
    ("a local array of scores", "        m_i = float32(-math.inf)\n", "        scores = cuda.local.array(1024, float32)\n        scores[0] = float32(0.0)\n        m_i = float32(-math.inf)\n"),
    ("every thread computes all scores of its row", LAST, LAST + "            for c in range(BLOCK_N):\n                for d in range(HEAD_DIM):\n                    s += q_tile[ty, d] * k_tile[tx, d]\n"),
    ("NaN of the cache becomes 0", STORE, "for n in range(seqlen_k + tx, k_cache.shape[1], BLOCK_N):\n            if split == 0 and ty == 0:\n                k_cache[b, n, kv_head, 0] = float32(0.0)\n        " + STORE),
    ("float64", "l_i = float32(0.0)", "l_i = 0.0"),
    ("0 for the first maximum", M_I, "m_i = float32(0.0)"),
    ("256 splits at most", [(FIRST, "num_splits = min(256, num_splits)\n        " + FIRST), (LOOP, "for n_start in range(n_first if split < 256 else 0, n_stop if split < 256 else 0, BLOCK_N):")]),
    ("128 columns in a score", "for d in range(HEAD_DIM):\n                s +=", "for d in range(min(HEAD_DIM, 128)):\n                s +="),
    ("a barrier of each warp behind s_tile", "cuda.syncthreads()  # s_tile", "cuda.syncwarp()  # s_tile"),
    ("a barrier of each warp behind p_tile", "cuda.syncthreads()  # p_tile", "cuda.syncwarp()  # p_tile"),
    ("a barrier of each warp behind v_tile", "cuda.syncthreads()  # every", "cuda.syncwarp()  # every"),
    ("splits cut at any key, the score tested", [(FIRST, "n_first = split * seqlen_k // num_splits"), (STOP, "n_stop = (split + 1) * seqlen_k // num_splits"), (TEST, "if n >= n_stop:")]),
]

RIGHT = [
    ("other names, tiles in turn", [("def kernel(q, k_cache, v_cache, seq_lens, out_partial, lse_partial, softmax_scale):", "def kernel(q, K, V, n_keys, O, L, scale):"),
        ("seqlen_k = seq_lens[b]", "seqlen_k = n_keys[b]"), (LOAD_K, LOAD_K.replace("k_cache", "K")), ("= v_cache[b,", "= V[b,"), ("s *= softmax_scale", "s *= scale"),
        (STORE, STORE.replace("out_partial", "O").replace("lse_partial", "L")),
        (LOOP, "for n_start in range(split * BLOCK_N, num_n_tiles * BLOCK_N, num_splits * BLOCK_N):")]),
    ("equal shares from the front, an idle split answers first", [
        (FIRST, "share = (num_n_tiles + num_splits - 1) // num_splits * BLOCK_N\n        n_first = split * share"), (STOP, "n_stop = min(n_first + share, seqlen_k)"),
        ("        for d in range(tx, HEAD_DIM, BLOCK_N):\n            q_tile", "        if n_first >= n_stop:\n            for d in range(tx, HEAD_DIM, BLOCK_N):\n                out_partial[split, b, head, d] = float32(0.0)\n            if tx == 0:\n                lse_partial[split, b, head] = float32(-math.inf)\n            return\n        for d in range(tx, HEAD_DIM, BLOCK_N):\n            q_tile")]),
]

EQUIVALENT = [
    ("m_safe = m_new if m_new > -math.inf else float32(0.0) -> m_safe = m_new if m_new >= -math.inf else float32(0.0)", "a tile of a share has a key, so m_new is finite after it"),
    ("k_tile[row, d] = k_cache[b, n_start + row, kv_head, d] if inside else float32(0) -> k_tile[row, d] = k_cache[b, n_start + row, kv_head, d] if inside else float32(1)", "the score of a key that does not exist is -inf, whatever the tile holds"),
    ("v_tile[row, d] = v_cache[b, n_start + row, kv_head, d] if inside else float32(0) -> v_tile[row, d] = v_cache[b, n_start + row, kv_head, d] if inside else float32(1)", "a key that does not exist has weight 0"),
]
