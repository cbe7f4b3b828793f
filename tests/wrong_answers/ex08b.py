"""ex08b: the gradients of K and V."""

# fmt: off
IF = "if m < seqlen_q and n < seqlen_k and m >= first_m:"
P = "p = math.exp(s * softmax_scale - lse_tile[ty])"
DS = "ds_tile[ty, tx] = p * (dp - delta_tile[ty])"
DV = "dv_acc[i] += p_tile[row, tx] * do_tile[row, d]"
DK = "dk_acc[i] += ds_tile[row, tx] * q_tile[row, d]"
STORE = "dk[n, d] = dk_acc[i] * softmax_scale"
BEGIN = "m_begin = max(0, n_start + seqlen_q - seqlen_k) // BLOCK_M * BLOCK_M"
LOOP = "for m_start in range(m_begin, seqlen_q, BLOCK_M):"
NUMBERS = "            if tx == 0:\n                lse_tile[ty] = lse[m] if m < seqlen_q else float32(0.0)\n                delta_tile[ty] = delta[m] if m < seqlen_q else float32(0.0)\n"
ALL = IF + "\n                p = math.exp(s * softmax_scale - lse_tile[ty])"


def filled(number):
    """A finite score for hidden pairs, and exp of it."""
    return (f"{number} for a hidden pair", [
        (IF, f"if m < seqlen_q and n < seqlen_k:\n                s = s * softmax_scale if m >= first_m else float32({number})"), (P, "p = math.exp(s - lse_tile[ty])")])


WRONG = [
    filled("-1e4"), filled("-1e9"), filled("-1e30"), filled("-math.inf"),
    ("no mask", "first_m = n + seqlen_q - seqlen_k if CAUSAL else 0", "first_m = 0"),
    ("top-left mask", "first_m = n + seqlen_q - seqlen_k if CAUSAL else 0", "first_m = n if CAUSAL else 0"),
    ("strict mask", "first_m = n + seqlen_q - seqlen_k if CAUSAL else 0", "first_m = n + seqlen_q - seqlen_k + 1 if CAUSAL else 0"),
    ("dead tiles are visited", BEGIN, "m_begin = 0"),
    ("dead tiles load lse and delta", [(LOOP, "for m_start in range(0, seqlen_q, BLOCK_M):"),
        ("            m = m_start + ty\n", "            m = m_start + ty\n            alive = m_start >= m_begin\n"),
        ("q_tile[ty, d] = q[m, d] if m < seqlen_q", "q_tile[ty, d] = q[m, d] if alive and m < seqlen_q"),
        ("do_tile[ty, d] = dout[m, d] if m < seqlen_q", "do_tile[ty, d] = dout[m, d] if alive and m < seqlen_q")]),
    ("a live tile is skipped", BEGIN, "m_begin = (max(0, n_start + seqlen_q - seqlen_k) + BLOCK_M - 1) // BLOCK_M * BLOCK_M"),
    ("no scale in the scores", P, "p = math.exp(s - lse_tile[ty])"),
    ("no scale in dk", STORE, "dk[n, d] = dk_acc[i]"),
    ("scale twice in dk", DS, "ds_tile[ty, tx] = softmax_scale * p * (dp - delta_tile[ty])"),
    ("scale in dv", "dv[n, d] = dv_acc[i]", "dv[n, d] = dv_acc[i] * softmax_scale"),
    ("delta added", DS, DS.replace("-", "+")),
    ("no delta", DS, "ds_tile[ty, tx] = p * dp"),
    ("ds without p", DS, "ds_tile[ty, tx] = dp - delta_tile[ty]"),
    ("p not divided", P, "p = math.exp(s * softmax_scale)"),
    ("dv from ds", DV, DV.replace("p_tile", "ds_tile")),
    ("dk from p", DK, DK.replace("ds_tile", "p_tile")),
    ("dk of dout", DK, DK.replace("q_tile", "do_tile")),
    ("a row of p, not a column", DV, "dv_acc[i] += p_tile[tx % BLOCK_M, row % BLOCK_N] * do_tile[row, d]"),
    ("dv without the last tile's rows", LOOP, "for m_start in range(m_begin, seqlen_q // BLOCK_M * BLOCK_M, BLOCK_M):"),
    ("64 m-tiles at most", LOOP, "for m_start in range(m_begin, min(seqlen_q, m_begin + 64 * BLOCK_M), BLOCK_M):"),
    ("128 m-tiles at most", LOOP, "for m_start in range(m_begin, min(seqlen_q, m_begin + 128 * BLOCK_M), BLOCK_M):"),
    ("128 n-tiles at most", "n_start = cuda.blockIdx.x * BLOCK_N", "n_start = cuda.blockIdx.x % 128 * BLOCK_N"),
    ("every thread loads lse and delta", "            if tx == 0:\n", "            if tx >= 0:\n"),
    ("lse and delta straight from HBM", [(P, P.replace("lse_tile[ty]", "lse[m]"))]),
    ("k loaded in every turn", "            m = m_start + ty\n", "            m = m_start + ty\n            for d in range(ty, HEAD_DIM, BLOCK_M):\n                if n < seqlen_k:\n                    k_tile[tx, d] = k[n, d]\n            cuda.syncthreads()\n"),
    ("dk summed in HBM", [("            dk_acc[i] = float32(0.0)\n", "            dk_acc[i] = float32(0.0)\n            if n < seqlen_k and ty + i * BLOCK_M < HEAD_DIM:\n                dk[n, ty + i * BLOCK_M] = float32(0.0)\n"), (STORE, "dk[n, d] += dk_acc[i] * softmax_scale")]),
    ("accumulators are not cleared", "            dv_acc[i] = float32(0.0)\n", ""),
    ("keys that do not exist are stored", "        if n < seqlen_k:\n", "        if n <= seqlen_k:\n"),
    ("dv in a shared tile", "        dv_acc = cuda.local", "        dv_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)\n        dv_tile[tx, 0] = float32(0.0)\n        dv_acc = cuda.local"),
    ("a local array of all queries", "        dv_acc = cuda.local", "        all_p = cuda.local.array(1024, float32)\n        all_p[0] = float32(0.0)\n        dv_acc = cuda.local"),
    ("every thread computes a whole row of scores", "            p = float32(0.0)\n", "            for c in range(BLOCK_N):\n                for d in range(HEAD_DIM):\n                    dp += float32(0.0) * q_tile[ty, d] * k_tile[c, d]\n            p = float32(0.0)\n"),
    ("delta is changed", NUMBERS, NUMBERS + "            if tx == 0 and m < seqlen_q:\n                delta[m] = float32(0.0)\n"),
    ("float64", "dp = float32(0.0)", "dp = 0.0"),
]

RIGHT = [
    ("other names", [("def kernel(dout, q, k, v, lse, delta, dk, dv, softmax_scale):", "def kernel(dO, q, k, v, L, D, dK, dV, scale):"),
        ("= dout[m, d] if", "= dO[m, d] if"), ("= lse[m] if", "= L[m] if"), ("= delta[m] if", "= D[m] if"),
        (P, P.replace("softmax_scale", "scale")), (STORE, "dK[n, d] = dk_acc[i] * scale"), ("dv[n, d] =", "dV[n, d] =")]),
    ("scale in ds, a guard for lse = -inf", [(DS, "ds_tile[ty, tx] = softmax_scale * p * (dp - delta_tile[ty])"), (STORE, "dk[n, d] = dk_acc[i]"),
        (IF, "if n < seqlen_k and lse_tile[ty] > -math.inf and m < seqlen_q and m >= first_m:")]),
    ("the exponent held to 0", P, "p = math.exp(min(s * softmax_scale - lse_tile[ty], float32(0.0)))"),
]

OUTSIDE = "rows of queries that do not exist hold 0 and add 0; keys that do not exist are not stored"
EQUIVALENT = [
    ("if m < seqlen_q and n < seqlen_k and (m >= first_m): -> if m >= first_m:", OUTSIDE),
    ("if m < seqlen_q and n < seqlen_k and (m >= first_m): -> if m <= seqlen_q and n < seqlen_k and (m >= first_m):", OUTSIDE),
    ("if m < seqlen_q and n < seqlen_k and (m >= first_m): -> if m < seqlen_q and n <= seqlen_k and (m >= first_m):", OUTSIDE),
]
