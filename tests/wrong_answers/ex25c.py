"""ex25c: FlashAttention-2 over a list of tiles."""

# fmt: off
LAST = "last_n = m + seqlen_k - seqlen_q if CAUSAL else seqlen_k - 1"
LOOP = "for place in range(lists.shape[1]):"
TILE = "n_tile = lists[m_tile, place]"
IF = "if n_tile >= 0:  # for all threads of the block, or for none: barriers may be inside"
START = "n_start = n_tile * BLOCK_N"
INSIDE = "inside = n_start + row < seqlen_k"
HIDDEN = "if n_start + tx > last_n:"
S = "s = float32(-math.inf)  # a key that is hidden or does not exist: exp gives 0"
SAFE = "m_safe = m_new if m_new > -math.inf else float32(0.0)"
M_I = "m_i = float32(-math.inf)"
BARRIER_1 = "                cuda.syncthreads()  # q_tile, k_tile, v_tile are complete: safe to read\n"
BARRIER_4 = "                cuda.syncthreads()  # every thread is done with v_tile: safe to overwrite\n"
LOAD_V = "v_tile[row, d] = v[n_start + row, d] if inside else float32(0.0)"
SCALE = "s *= softmax_scale"

WRONG = [
    ("all tiles, the list is not looked at", [(LOOP, "for place in range((seqlen_k + BLOCK_N - 1) // BLOCK_N):"), (TILE, "n_tile = place")]),
    ("the list of m-tile 0", TILE, "n_tile = lists[0, place]"),
    ("the list ends at -1", IF, "if n_tile < 0:\n                break\n            else:"),
    ("the first element is a count", LOOP, "for place in range(1, lists.shape[1]):"),
    ("tiles of BLOCK_M keys", START, "n_start = n_tile * BLOCK_M"),
    ("-1 is tile 0", [(IF, "if n_tile >= -1:"), (START, "n_start = max(n_tile, 0) * BLOCK_N")]),
    ("stops at the first tile behind the diagonal", START, START + "\n                if CAUSAL and n_start > m_tile * BLOCK_M + BLOCK_M - 1 + seqlen_k - seqlen_q:\n                    break"),
    ("tiles on the diagonal are not masked", HIDDEN, "if n_start + tx >= seqlen_k:"),
    ("strict mask", HIDDEN, "if n_start + tx >= last_n + (0 if CAUSAL else 1):"),
    ("top-left mask", LAST, "last_n = m if CAUSAL else seqlen_k - 1"),
    ("keys past the last take part", LAST, "last_n = m + seqlen_k - seqlen_q if CAUSAL else seqlen_k + BLOCK_N"),
    ("a hidden key keeps its score", S, "s *= float32(1.0)"),
    ("-1e30 for a hidden key", S, "s = float32(-1e30)"),
    ("-1e30 for the first maximum", [(M_I, "m_i = float32(-1e30)"), (SAFE, "m_safe = m_new")]),
    ("no guard of -inf - -inf", SAFE, "m_safe = m_new"),
    ("no scale", SCALE, "s *= float32(1.0)"),
    ("the new maximum is forgotten", "                m_i = m_new\n", ""),
    ("the maximum of this tile alone", "m_new = m_i\n", "m_new = float32(-math.inf)\n"),
    ("add_tile without alpha", "l_i = add_tile(acc, l_i, alpha", "l_i = add_tile(acc, l_i, float32(1.0)"),
    ("V of the tile before", LOAD_V, "v_tile[row, d] = v[(n_start + row) % BLOCK_N, d] if inside else float32(0.0)"),
    ("no barrier before the scores", BARRIER_1, ""),
    ("no barrier at the end", BARRIER_4, ""),
    ("each thread walks the list by itself", [(IF, "if n_tile >= 0 and (m < seqlen_q or ty == 0):")]),
    ("all tiles are loaded, the others masked", [(LOOP, "for place in range(lists.shape[1] * ((seqlen_k + BLOCK_N - 1) // BLOCK_N)):"), (TILE, "n_tile = place // lists.shape[1]\n            named = lists[m_tile, place % lists.shape[1]] == n_tile"), (HIDDEN, "if n_start + tx > last_n or not named:")]),
    ("64 elements at most", LOOP, "for place in range(min(lists.shape[1], 64)):"),
    ("64 m-tiles at most", "m_tile = cuda.blockIdx.x", "m_tile = cuda.blockIdx.x % 64"),
    ("stored in every tile", BARRIER_4, BARRIER_4 + "                store(m, acc, m_i, l_i, out, lse)\n"),
    ("nothing is stored for an empty list", "        store(m, acc, m_i, l_i, out, lse)\n", "        if l_i > 0:\n            store(m, acc, m_i, l_i, out, lse)\n"),
    ("float64", "l_i = float32(0.0)", "l_i = 0.0"),
]

RIGHT = [
    ("continue in place of a branch, from the end of the list", [(LOOP, "for place in range(lists.shape[1] - 1, -1, -1):"), (IF, "if n_tile < 0:\n                continue\n            if True:")]),
    ("the list read by the clock of a while loop", [(LOOP, "place = -1\n        while place + 1 < lists.shape[1]:\n            place += 1")]),
    ("a tile behind the diagonal is not loaded", IF, "if n_tile >= 0 and (not CAUSAL or n_tile * BLOCK_N <= m_tile * BLOCK_M + BLOCK_M - 1 + seqlen_k - seqlen_q):"),
]

EQUIVALENT = []
