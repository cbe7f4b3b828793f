"""ex16c: one decoding step with grouped heads."""

# fmt: off
M_I = "m_i = float32(-math.inf)"
S = "s = float32(-math.inf)  # a key that does not exist: exp gives 0"
LOOP = "for n_start in range(0, seqlen_k, BLOCK_N):"
STORE = "store(head, acc, m_i, l_i, out[b], lse[b])"
LOAD_Q = "q_tile[ty, d] = q[b, head, d]"
INSIDE = "inside = n_start + row < seqlen_k"
ROWS = "for row in range(ty, BLOCK_N, BLOCK_M):"
TEST = "if n >= seqlen_k:"
LAST = "            cuda.syncthreads()  # every thread is done with v_tile: safe to overwrite\n"

WRONG = [
    ("-1e4 for a key that does not exist", S, "s = float32(-1e4)"),
    ("-1e9 for a key that does not exist", S, "s = float32(-1e9)"),
    ("-1e30 for a key that does not exist", S, "s = float32(-1e30)"),
    ("-1e4 for the first maximum", M_I, "m_i = float32(-1e4)"),
    ("-1e9 for the first maximum", M_I, "m_i = float32(-1e9)"),
    ("-1e30 for the first maximum", M_I, "m_i = float32(-1e30)"),
    ("0 for the first maximum", M_I, "m_i = float32(0.0)"),
    ("keys of the padding take part", TEST, "if n >= k_cache.shape[1]:"),
    ("the cache is read to its end", INSIDE, "inside = n_start + row < k_cache.shape[1]"),
    ("the longest sequence's length", "seqlen_k = seq_lens[b]", "seqlen_k = max(seq_lens[b], seq_lens[0])"),
    ("another sequence's out", STORE, STORE.replace("out[b]", "out[0]")),
    ("the row of the group", STORE, STORE.replace("head,", "ty,")),
    ("heads in turn", "head = kv_head * GROUP_SIZE + ty", "head = ty * cuda.gridDim.x + kv_head"),
    ("K/V head 0", "k_tile[row, d] = k_cache[b, n_start + row, kv_head, d]", "k_tile[row, d] = k_cache[b, n_start + row, 0, d]"),
    ("sequence 0's values", "v_tile[row, d] = v_cache[b, n_start", "v_tile[row, d] = v_cache[0, n_start"),
    ("no scale", "s *= softmax_scale", "s *= float32(1.0)"),
    ("nothing rescaled", "add_tile(acc, l_i, alpha", "add_tile(acc, l_i, float32(1.0)"),
    ("l rescaled twice", "add_tile(acc, l_i, alpha", "add_tile(acc, l_i * alpha, alpha"),
    ("each head loads the keys", ROWS, "for row in range(BLOCK_N):"),
    ("columns to neighbouring rows of threads", "                for d in range(tx, HEAD_DIM, BLOCK_N):\n                    inside", "                for d in range(tx * ((HEAD_DIM + BLOCK_N - 1) // BLOCK_N), min(HEAD_DIM, (tx + 1) * ((HEAD_DIM + BLOCK_N - 1) // BLOCK_N))):\n                    inside"),
    ("a thread loads a whole key", [(ROWS, "for row in range(tx if ty == 0 else BLOCK_N, BLOCK_N, BLOCK_N):"), ("                for d in range(tx, HEAD_DIM, BLOCK_N):\n                    inside", "                for d in range(HEAD_DIM):\n                    inside")]),
    ("q is loaded in every tile", LAST, LAST + "            for d in range(tx, HEAD_DIM, BLOCK_N):\n                q_tile[ty, d] = q[b, head, d]\n"),
    ("exponents held above -80", "math.exp(s - m_safe)", "(math.exp(max(s - m_safe, float32(-80.0))) if s > -math.inf else float32(0.0))"),
    ("128 tiles at most", LOOP, "for n_start in range(0, min(seqlen_k, 128 * BLOCK_N), BLOCK_N):"),
    ("256 tiles at most", LOOP, "for n_start in range(0, min(seqlen_k, 256 * BLOCK_N), BLOCK_N):"),
    ("64 K/V heads at most", "        kv_head, b = cuda.blockIdx.x,", "        kv_head, b = cuda.blockIdx.x % 64,"),
    ("64 sequences at most", "        seqlen_k = seq_lens[b]", "        b = b % 64\n        seqlen_k = seq_lens[b]"),
    ("a spare tile", "        p_tile = cuda", "        spare = cuda.shared.array((GROUP_SIZE, BLOCK_N), float32)\n        spare[ty, tx] = float32(0.0)\n        p_tile = cuda"),
    ("a local array of scores", "        m_i = float32(-math.inf)\n", "        scores = cuda.local.array(1024, float32)\n        scores[0] = float32(0.0)\n        m_i = float32(-math.inf)\n"),
    ("every thread computes all scores of its row", LAST, LAST + "            for c in range(BLOCK_N):\n                for d in range(HEAD_DIM):\n                    s += q_tile[ty, d] * k_tile[tx, d]\n"),
    ("seq_lens is changed", STORE, "if tx == 0:\n            seq_lens[b] = seqlen_k + 1\n        " + STORE),
    ("float64", "l_i = float32(0.0)", "l_i = 0.0"),
    ("128 columns in a score", "for d in range(HEAD_DIM):\n                s +=", "for d in range(min(HEAD_DIM, 128)):\n                s +="),
    ("a barrier of each warp behind s_tile", "cuda.syncthreads()  # s_tile", "cuda.syncwarp()  # s_tile"),
    ("a barrier of each warp behind p_tile", "cuda.syncthreads()  # p_tile", "cuda.syncwarp()  # p_tile"),
    ("a barrier of each warp behind v_tile", "cuda.syncthreads()  # every", "cuda.syncwarp()  # every"),
    ("the first warp alone", "        store(head,", "        if ty * BLOCK_N + tx < 32:\n            store(head,"),
]

RIGHT = [
    ("other names", [("def kernel(q, k_cache, v_cache, seq_lens, out, lse, softmax_scale):", "def kernel(Q, K, V, lens, O, L, scale):"),
        ("seqlen_k = seq_lens[b]", "seqlen_k = lens[b]"), (LOAD_Q, "q_tile[ty, d] = Q[b, head, d]"), ("= k_cache[b,", "= K[b,"), ("= v_cache[b,", "= V[b,"),
        ("s *= softmax_scale", "s *= scale"), (STORE, STORE.replace("out[b], lse[b]", "O[b], L[b]"))]),
    ("an empty sequence is answered before q is loaded", "        for d in range(tx, HEAD_DIM, BLOCK_N):\n            q_tile",
     "        if seqlen_k == 0:\n            for d in range(tx, HEAD_DIM, BLOCK_N):\n                out[b, head, d] = float32(0.0)\n            if tx == 0:\n                lse[b, head] = float32(-math.inf)\n            return\n"
     "        for d in range(tx, HEAD_DIM, BLOCK_N):\n            q_tile"),
    ("lowest finite number for the first maximum, one tile for s and p", [(M_I, "m_i = float32(-3.4028234e38)"),
        ("        p_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)\n", ""),
        ("            p_tile[ty, tx] = math.exp(s - m_safe)", "            cuda.syncthreads()\n            s_tile[ty, tx] = math.exp(s - m_safe)"),
        ("alpha, p_tile, v_tile)\n            cuda", "alpha, s_tile, v_tile)\n            cuda")]),
]

EQUIVALENT = [
    ("m_safe = m_new if m_new > -math.inf else float32(0.0) -> m_safe = m_new if m_new >= -math.inf else float32(0.0)", "each tile has a key, so m_new is finite after it"),
    ("k_tile[row, d] = k_cache[b, n_start + row, kv_head, d] if inside else float32(0) -> k_tile[row, d] = k_cache[b, n_start + row, kv_head, d] if inside else float32(1)", "the score of a key that does not exist is -inf, whatever the tile holds"),
    ("v_tile[row, d] = v_cache[b, n_start + row, kv_head, d] if inside else float32(0) -> v_tile[row, d] = v_cache[b, n_start + row, kv_head, d] if inside else float32(1)", "a key that does not exist has weight 0"),
]
