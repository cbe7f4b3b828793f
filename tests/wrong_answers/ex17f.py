"""ex17f: the kernel for a prefix that all requests share, and the bytes of both levels."""

ROW = "r = cuda.blockIdx.z * BLOCK_M + ty  # this thread's row, of batch * GROUP_SIZE"
PLACE = "b, head = r // GROUP_SIZE, kv_head * GROUP_SIZE + r % GROUP_SIZE"
EXISTS = "exists = b < q.shape[0]"
Q = "q_tile[ty, d] = q[b, head, d] if exists else float32(0)"
K = "k_tile[row, d] = k_prefix[n_start + row, kv_head, d] if inside else float32(0)"
V = "v_tile[row, d] = v_prefix[n_start + row, kv_head, d] if inside else float32(0)"
ROWS = "for row in range(ty, BLOCK_N, BLOCK_M):"
STORE = "store(head, acc, m_i, l_i, out_partial[split, b], lse_partial[split, b])"
TILES = "num_n_tiles = (seqlen_k + BLOCK_N - 1) // BLOCK_N"
FIRST = "n_first = split * num_n_tiles // num_splits * BLOCK_N"
STOP = "n_stop = (split + 1) * num_n_tiles // num_splits * BLOCK_N"
M_I = "m_i = float32(-math.inf)"
LAST = "            cuda.syncthreads()  # every thread is done with v_tile: safe to overwrite\n"
COUNT = "rows, row_bytes = len(suffixes) * num_heads, 4 * head_dim"
M_TILES = "tiles = -(-rows // num_kv_heads // BLOCK_M)"
KEYS = "keys = tiles * prefix + sum(suffixes)"
BYTES = "return 2 * keys * num_kv_heads * row_bytes, num_splits * rows * (row_bytes + 4)"

WRONG = [
    ("tiles of GROUP_SIZE rows", ROW, "r = cuda.blockIdx.z * GROUP_SIZE + ty"),
    ("all requests read q of the first", Q, Q.replace("q[b,", "q[0,")),
    ("heads in turn", PLACE, "b, head = r // GROUP_SIZE, r % GROUP_SIZE * cuda.gridDim.y + kv_head"),
    ("K/V head 0", K, K.replace("kv_head,", "0,")),
    ("V of head 0", V, V.replace("kv_head,", "0,")),
    ("rows past the end are stored", "if exists:\n            store", "if True:\n            store"),
    ("rows past the end load q", Q, "q_tile[ty, d] = q[b, head, d]"),
    ("rows past the end leave before the barriers", EXISTS, EXISTS + "\n        if not exists:\n            return"),
    ("rows past the end load no keys", ROWS, "for row in range(ty if exists else BLOCK_N, BLOCK_N, BLOCK_M):"),
    ("rows past the end are stored in the last request", [(EXISTS, "exists = True\n        b = min(b, q.shape[0] - 1)")]),
    ("each row loads the keys", ROWS, "for row in range(BLOCK_N):"),
    ("keys of the first rows", ROWS, "for row in range(ty, min(BLOCK_N, 2 * BLOCK_M), BLOCK_M):"),
    ("one split does all the work", [(FIRST, "n_first = 0"), (STOP, "n_stop = num_n_tiles * BLOCK_N if split == 0 else 0")]),
    ("all splits do all the work", [(FIRST, "n_first = 0"), (STOP, "n_stop = num_n_tiles * BLOCK_N")]),
    ("tiles rounded down", TILES, "num_n_tiles = seqlen_k // BLOCK_N"),
    ("all splits write the first", STORE, STORE.replace("[split,", "[0,")),
    ("256 splits at most", [(FIRST, "num_splits = min(256, num_splits)\n        " + FIRST), ("range(n_first, n_stop, BLOCK_N)", "range(n_first if split < 256 else 0, n_stop if split < 256 else 0, BLOCK_N)")]),
    ("256 requests at most", PLACE, PLACE + "\n        b = b % 256"),
    ("64 K/V heads at most", PLACE, PLACE + "\n        kv_head = kv_head % 64"),
    ("128 columns in a score", "for d in range(HEAD_DIM):\n                s +=", "for d in range(min(HEAD_DIM, 128)):\n                s +="),
    ("causal within the prefix", "if n >= seqlen_k:", "if n >= seqlen_k or n > r + seqlen_k - 2:"),
    ("no scale", "s *= softmax_scale", "s *= float32(1.0)"),
    ("-1e30 for the first maximum", M_I, "m_i = float32(-1e30)"),
    ("0 for the first maximum", M_I, "m_i = float32(0.0)"),
    ("not divided", "acc, m_i, l_i, out_partial", "acc, m_i, float32(1.0), out_partial"),
    ("a barrier of each warp behind s_tile", "cuda.syncthreads()  # s_tile", "cuda.syncwarp()  # s_tile"),
    ("a barrier of each warp behind v_tile", "cuda.syncthreads()  # every", "cuda.syncwarp()  # every"),
    ("q is loaded in every tile", LAST, LAST + "            for d in range(tx, HEAD_DIM, BLOCK_N):\n                q_tile[ty, d] = q[b, head, d] if exists else float32(0)\n"),
    ("lse is read back", STORE, STORE + "\n            if tx == 0:\n                lse_partial[split, b, head] = lse_partial[split, b, head]"),
    ("float64", "l_i = float32(0.0)", "l_i = 0.0"),
    ("bytes: the prefix once per request", M_TILES, "tiles = len(suffixes)"),
    ("bytes: the prefix once", M_TILES, "tiles = 1"),
    ("bytes: requests are the rows", M_TILES, "tiles = -(-len(suffixes) // BLOCK_M)"),
    ("bytes: tiles rounded down", M_TILES, "tiles = rows // num_kv_heads // BLOCK_M"),
    ("bytes: tiles not rounded", M_TILES, "tiles = rows / num_kv_heads / BLOCK_M"),
    ("bytes: padded suffixes", KEYS, "keys = tiles * prefix + len(suffixes) * max(suffixes)"),
    ("bytes: suffixes per tile", KEYS, "keys = tiles * (prefix + sum(suffixes))"),
    ("bytes: query heads for K/V heads", BYTES, BYTES.replace("num_kv_heads", "num_heads")),
    ("bytes: the merge reads, too", BYTES, BYTES.replace("num_splits * rows", "2 * num_splits * rows")),
    ("bytes: K/V heads have partial results", BYTES, BYTES.replace("* rows *", "* rows // (num_heads // num_kv_heads) *")),
    ("bytes: floats", M_TILES, "import math\n    tiles = math.ceil(rows / num_kv_heads / BLOCK_M) * 1.0"),
]  # fmt: skip

RIGHT = [
    ("rows of a head side by side, requests in turn", PLACE, "b, head = r % q.shape[0], kv_head * GROUP_SIZE + r // q.shape[0]\n        if r >= q.shape[0] * GROUP_SIZE:\n            b = q.shape[0]"),
    ("shares from the front", [(FIRST, "share = (num_n_tiles + num_splits - 1) // num_splits * BLOCK_N\n        n_first = split * share"), (STOP, "n_stop = min(n_first + share, seqlen_k)")]),
    ("rows past the end compute the first row again", [(Q, "q_tile[ty, d] = q[b, head, d] if exists else float32(1)")]),
    ("bytes of a token first", [(KEYS, "token = 8 * num_kv_heads * head_dim"), (BYTES, "stored = 4 * rows * num_splits\n    return token * tiles * prefix + sum(token * n for n in suffixes), stored * head_dim + stored")]),
]  # fmt: skip

EQUIVALENT = [
    ("m_safe = m_new if m_new > -math.inf else float32(0.0) -> m_safe = m_new if m_new >= -math.inf else float32(0.0)", "a tile of a share has a key, so m_new is finite after it"),
    (f"{Q} -> {Q[:-2]}1)", "a row that does not exist is not stored"),
    (f"{K} -> {K[:-2]}1)", "the score of a key that does not exist is -inf, whatever the tile holds"),
    (f"{V} -> {V[:-2]}1)", "a key that does not exist has weight 0"),
]  # fmt: skip
