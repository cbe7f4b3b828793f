"""ex07d: the FlashAttention-2 kernel."""

# fmt: off
M_I = "m_i = float32(-math.inf)"
S = "s = float32(-math.inf)  # a key that is hidden or does not exist: exp gives 0"
IF = "if n > last_n:"
SAFE = "m_safe = m_new if m_new > -math.inf else float32(0.0)"
STOP = "return m + seqlen_k - seqlen_q, end_m + seqlen_k - seqlen_q"
FULL = "return seqlen_k - 1, seqlen_k"
LOAD_K = "k_tile[row, d] = k[n_start + row, d] if inside else float32(0.0)"
LOAD_Q = "q_tile[ty, d] = q[m, d] if m < seqlen_q else float32(0.0)"
LSE = "lse[m] = m_i + math.log(l_i) if l_i > 0 else float32(-math.inf)"
OUT = "out[m, d] = acc[i] / l_i if l_i > 0 else float32(0.0)"
BARRIER_4 = "            cuda.syncthreads()  # every thread is done with v_tile: safe to overwrite\n"


def finite(name, number):
    """A finite number in place of -inf, for hidden keys and for the running maximum."""
    return [
        (f"{name} for a hidden key", S, f"s = float32({number})"),
        (f"{name} for the first maximum and hidden keys", [
            (S, f"s = float32({number})"), (M_I, f"m_i = float32({number})")]),
        (f"{name} for the first maximum", [
            (M_I, f"m_i = float32({number})"), (SAFE, "m_safe = m_new")]),
    ]


WRONG = [
    *finite("-1e4", "-1e4"),
    *finite("-1e9", "-1e9"),
    *finite("-1e30", "-1e30"),
    ("float32's lowest for a hidden key", S, "s = float32(-3.4028234e38)"),
    ("no guard of -inf - -inf", [(SAFE, "m_safe = m_new"), (OUT, "out[m, d] = acc[i] / l_i"), (LSE, "lse[m] = m_i + math.log(l_i)")]),
    ("add_tile without alpha", "l_i = add_tile(acc, l_i, alpha", "l_i = add_tile(acc, l_i, float32(1.0)"),
    ("acc not rescaled", "acc[i] *= alpha\n", "acc[i] *= float32(1.0)\n"),
    ("l not rescaled", "        l_i *= alpha\n", ""),
    ("l_i is not taken from add_tile", "            l_i = add_tile(", "            add_tile("),
    ("the new maximum is forgotten", "            m_i = m_new\n", ""),
    ("the maximum of this tile alone", "m_new = m_i\n", "m_new = float32(-math.inf)\n"),
    ("no scale", "s *= softmax_scale", "s *= float32(1.0)"),
    ("1/sqrt(d) for softmax_scale", "s *= softmax_scale", "s *= float32(1 / math.sqrt(HEAD_DIM))"),
    ("scale after the maximum", [("s *= softmax_scale", "s = s"), ("math.exp(s - m_safe)", "math.exp((s - m_safe) * softmax_scale)")]),
    ("a hidden key keeps its score", S, "s *= float32(1.0)"),
    ("p is set to 0, the maximum sees hidden keys", [(IF, "hidden = n > last_n\n            if n >= seqlen_k:"), ("math.exp(s - m_safe)  # P", "float32(0.0) if hidden else math.exp(s - m_safe)  # P")]),
    ("top-left mask", STOP, "return m, end_m + seqlen_k - seqlen_q"),
    ("strict mask", STOP, STOP.replace("- seqlen_q, end", "- seqlen_q - 1, end")),
    ("no mask", STOP, "return seqlen_k - 1, seqlen_k"),
    ("keys beyond the last take part", FULL, "return seqlen_k + BLOCK_N, seqlen_k"),
    ("dead tiles are visited", STOP, "return m + seqlen_k - seqlen_q, seqlen_k"),
    ("loads only the keys that some query sees", LOAD_K, "k_tile[row, d] = k[n_start + row, d] if n_start + row < min(seqlen_k, n_stop) else float32(0.0)"),
    ("log2", "math.log(l_i)", "math.log2(l_i)"),
    ("lse without the maximum", "m_i + math.log(l_i)", "math.log(l_i)"),
    ("lse of rows without a key is 0", LSE, "lse[m] = m_i + math.log(l_i) if l_i > 0 else float32(0.0)"),
    ("not divided", OUT, "out[m, d] = acc[i]"),
    ("every thread stores lse", "if tx == 0:", "if tx >= 0:"),
    ("every thread loads all of q's row", "for d in range(tx, HEAD_DIM, BLOCK_N):\n            q_tile", "for d in range(HEAD_DIM):\n            q_tile"),
    ("q is loaded in every tile", BARRIER_4, BARRIER_4 + "            for d in range(tx, HEAD_DIM, BLOCK_N):\n                if m < seqlen_q:\n                    q_tile[ty, d] = q[m, d]\n"),
    ("out is summed in HBM", [("            acc[i] = float32(0.0)", "            acc[i] = float32(0.0)\n            if m < seqlen_q and tx + i * BLOCK_N < HEAD_DIM:\n                out[m, tx + i * BLOCK_N] = float32(0.0)"),
                              (OUT, "out[m, d] += acc[i] / l_i if l_i > 0 else float32(0.0)")]),
    ("exponents held above -80", "math.exp(s - m_safe)", "(math.exp(max(s - m_safe, float32(-80.0))) if s > -math.inf else float32(0.0))"),
    ("64 tiles at most", "for n_start in range(0, n_stop, BLOCK_N):", "for n_start in range(0, min(n_stop, 64 * BLOCK_N), BLOCK_N):"),
    ("256 tiles at most", "for n_start in range(0, n_stop, BLOCK_N):", "for n_start in range(0, min(n_stop, 256 * BLOCK_N), BLOCK_N):"),
    ("64 m-tiles at most", "m_start = cuda.blockIdx.x * BLOCK_M", "m_start = cuda.blockIdx.x % 64 * BLOCK_M"),
    ("a spare tile", "        p_tile = cuda", "        spare = cuda.shared.array((BLOCK_M, BLOCK_N), float32)\n        spare[ty, tx] = float32(0.0)\n        p_tile = cuda"),
    ("acc in shared memory", "acc = cuda.local.array(NUM_COLS, float32)", "out_tile = cuda.shared.array((BLOCK_M, BLOCK_N * NUM_COLS), float32)\n        out_tile[ty, tx] = float32(0.0)\n        acc = cuda.local.array(NUM_COLS, float32)"),
    ("a local array of a whole row of scores", "        m_i = float32(-math.inf)\n", "        row_of_scores = cuda.local.array(1024, float32)\n        row_of_scores[0] = float32(0.0)\n        m_i = float32(-math.inf)\n"),
    ("every thread computes all scores of its row", BARRIER_4, BARRIER_4 + "            for c in range(BLOCK_N):\n                for d in range(HEAD_DIM):\n                    s += q_tile[ty, d] * k_tile[tx, d]\n"),
    ("q is scaled in HBM", LOAD_Q, "if m < seqlen_q:\n                q[m, d] = q[m, d] * float32(1.0000001)\n            " + LOAD_Q),
    ("float64", "l_i = float32(0.0)", "l_i = 0.0"),
    ("rows that do not exist are stored", "        if m < out.shape[0]:\n", "        if m <= out.shape[0]:\n"),
    ("out is not cleared for rows without a key", OUT, "out[m, d] = acc[i] / l_i if l_i > 0 else out[m, d]"),
    ("64 columns at most", OUT, OUT.replace("out[m, d]", "out[m, d % 64]")),
    ("each thread's own maximum", "m_new = max(m_new, s_tile[ty, c])", "m_new = max(m_new, s)"),
]

RIGHT = [
    ("another bound of the loop", STOP, "return m + seqlen_k - seqlen_q, min(seqlen_k, m_start + BLOCK_M + seqlen_k - seqlen_q)"),
    ("other names for the parameters", [
        ("def kernel(q, k, v, out, lse, softmax_scale):", "def kernel(Q, K, V, O, L, scale):"),
        ("seqlen_q, seqlen_k = q.shape[0], k.shape[0]", "seqlen_q, seqlen_k = Q.shape[0], K.shape[0]"),
        ("= q[m, d] if", "= Q[m, d] if"), ("= k[n_start", "= K[n_start"), ("= v[n_start", "= V[n_start"),
        ("s *= softmax_scale", "s *= scale"), ("l_i, out, lse)\n\n    return", "l_i, O, L)\n\n    return"),
    ]),
    ("an m-tile without keys is answered first", "        m_i = float32(-math.inf)\n",
     "        if n_stop <= 0:\n            for d in range(tx, HEAD_DIM, BLOCK_N):\n                if m < seqlen_q:\n"
     "                    out[m, d] = float32(0.0)\n            if tx == 0 and m < seqlen_q:\n                lse[m] = float32(-math.inf)\n            return\n"
     "        m_i = float32(-math.inf)\n"),
    ("q scaled on its way to shared memory, padded columns", [
        (LOAD_Q, "q_tile[ty, d] = q[m, d] * softmax_scale if m < seqlen_q else float32(0.0)"), ("s *= softmax_scale", "s = s"),
        ("    @cuda.jit\n", "    PADDED = HEAD_DIM + 1\n\n    @cuda.jit\n"),
        ("(BLOCK_M, HEAD_DIM), float32)", "(BLOCK_M, PADDED), float32)"),
        ("k_tile = cuda.shared.array((BLOCK_N, HEAD_DIM)", "k_tile = cuda.shared.array((BLOCK_N, PADDED)"),
    ]),
    ("one tile for s and p, a lowest finite first maximum", [
        ("        p_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)\n", ""),
        (M_I, "m_i = float32(-3.4028234e38)"),
        ("            p_tile[ty, tx] = math.exp(s - m_safe)", "            cuda.syncthreads()\n            s_tile[ty, tx] = math.exp(s - m_safe)"),
        ("alpha, p_tile, v_tile)\n            cuda", "alpha, s_tile, v_tile)\n            cuda"),
    ]),
]

EQUIVALENT = [
    ("m_safe = m_new if m_new > -math.inf else float32(0.0) -> m_safe = m_new if m_new >= -math.inf else float32(0.0)", "NaN in l_i, which is not > 0: the row is answered as one without keys"),
]
