"""ex08b: the gradients of K and V."""

# fmt: off
P = "p = math.exp(s * softmax_scale - lse) if sees else float32(0.0)"
DS = "return p, p * (dp - delta)"
LSE, DELTA = "v_tile, lse_tile[ty], d", "ty], delta_tile[ty], sees"
DV = "dv_acc[i] += p_tile[row, tx] * do_tile[row, d]"
DK = "dk_acc[i] += ds_tile[row, tx] * q_tile[row, d]"
STORE = "dk[n, d] = dk_acc[i] * softmax_scale"
BEGIN = "m_begin = max(0, n_start + seqlen_q - seqlen_k) // BLOCK_M * BLOCK_M"
LOOP = "for m_start in range(m_begin, seqlen_q, BLOCK_M):"
NUMBERS = "            if tx == 0:\n                lse_tile[ty] = lse[m] if m < seqlen_q else float32(0.0)\n                delta_tile[ty] = delta[m] if m < seqlen_q else float32(0.0)\n"


def filled(number):
    """A finite score for hidden pairs, and exp of it."""
    return (f"{number} for a hidden pair", [
        (P, f"p = math.exp((s * softmax_scale if sees else float32({number})) - lse)")])


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
    ("no scale in dk", STORE, "dk[n, d] = dk_acc[i]"),
    ("scale twice in dk", DS, "return p, softmax_scale * p * (dp - delta)"),
    ("scale in dv", "dv[n, d] = dv_acc[i]", "dv[n, d] = dv_acc[i] * softmax_scale"),
    ("sees is not used", P, "p = math.exp(s * softmax_scale - lse)"),
    ("p and ds are exchanged", DS, "return p * (dp - delta), p"),
    ("a column beyond HEAD_DIM", "            if d < HEAD_DIM:\n                for row", "            if d >= 0:\n                for row"),
    ("dv from ds", DV, DV.replace("p_tile", "ds_tile")),
    ("dk from p", DK, DK.replace("ds_tile", "p_tile")),
    ("dk of dout", DK, DK.replace("q_tile", "do_tile")),
    ("a row of p, not a column", DV, "dv_acc[i] += p_tile[tx % BLOCK_M, row % BLOCK_N] * do_tile[row, d]"),
    ("dv without the last tile's rows", LOOP, "for m_start in range(m_begin, seqlen_q // BLOCK_M * BLOCK_M, BLOCK_M):"),
    ("64 m-tiles at most", LOOP, "for m_start in range(m_begin, min(seqlen_q, m_begin + 64 * BLOCK_M), BLOCK_M):"),
    ("128 m-tiles at most", LOOP, "for m_start in range(m_begin, min(seqlen_q, m_begin + 128 * BLOCK_M), BLOCK_M):"),
    ("128 n-tiles at most", "n_start = cuda.blockIdx.x * BLOCK_N", "n_start = cuda.blockIdx.x % 128 * BLOCK_N"),
    ("every thread loads lse and delta", "            if tx == 0:\n", "            if tx >= 0:\n"),
    ("lse and delta straight from HBM", LSE, "v_tile, lse[m], d"),
    ("k loaded in every turn", "            m = m_start + ty\n", "            m = m_start + ty\n            for d in range(ty, HEAD_DIM, BLOCK_M):\n                if n < seqlen_k:\n                    k_tile[tx, d] = k[n, d]\n            cuda.syncthreads()\n"),
    ("dk summed in HBM", [("            dk_acc[i] = float32(0.0)\n", "            dk_acc[i] = float32(0.0)\n            if n < seqlen_k and ty + i * BLOCK_M < HEAD_DIM:\n                dk[n, ty + i * BLOCK_M] = float32(0.0)\n"), (STORE, "dk[n, d] += dk_acc[i] * softmax_scale")]),
    ("accumulators are not cleared", "            dv_acc[i] = float32(0.0)\n", ""),
    ("keys that do not exist are stored", "        if n < seqlen_k:\n", "        if n <= seqlen_k:\n"),
    ("dv in a shared tile", "        dv_acc = cuda.local", "        dv_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)\n        dv_tile[tx, 0] = float32(0.0)\n        dv_acc = cuda.local"),
    ("a local array of all queries", "        dv_acc = cuda.local", "        all_p = cuda.local.array(1024, float32)\n        all_p[0] = float32(0.0)\n        dv_acc = cuda.local"),
    ("every thread computes a whole row of scores", "        p = math", "        for c in range(BLOCK_N):\n            for d in range(HEAD_DIM):\n                dp += float32(0.0) * q_tile[ty, d] * k_tile[c, d]\n        p = math"),
    ("delta is changed", NUMBERS, NUMBERS + "            if tx == 0 and m < seqlen_q:\n                delta[m] = float32(0.0)\n"),
    ("float64", "dp = float32(0.0)", "dp = 0.0"),
    ("64 columns at most", "            if d < HEAD_DIM:\n                for row", "            if d < min(HEAD_DIM, 64):\n                for row"),
    ("a score of 0 is hidden", P, P.replace("if sees", "if sees and s != 0")),
    ("the columns of tx", "d = ty + i * BLOCK_M\n            if d < HEAD_DIM:\n                for row", "d = tx + i * BLOCK_N\n            if d < HEAD_DIM:\n                for row"),
    ("ds before p", DS, "return p * (dp - delta), p"),
]

RIGHT = [
    ("other names", [("def kernel(dout, q, k, v, lse, delta, dk, dv, softmax_scale):", "def kernel(dO, q, k, v, L, D, dK, dV, scale):"),
        ("= dout[m, d] if", "= dO[m, d] if"), ("= lse[m] if", "= L[m] if"), ("= delta[m] if", "= D[m] if"),
        ("sees, softmax_scale\n            )", "sees, scale\n            )"), (STORE, "dK[n, d] = dk_acc[i] * scale"), ("dv[n, d] =", "dV[n, d] =")]),
    ("scale in ds, a guard for lse = -inf", [(DS, "return p, softmax_scale * p * (dp - delta)"), (STORE, "dk[n, d] = dk_acc[i]"),
        (P, "p = float32(0.0)\n        if sees and lse > -math.inf:\n            p = math.exp(s * softmax_scale - lse)")]),
    ("the exponent held to 0", P, "p = math.exp(min(s * softmax_scale - lse, float32(0.0))) if sees else float32(0.0)"),
]

EQUIVALENT = []
