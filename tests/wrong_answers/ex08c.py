"""ex08c: the gradient of Q."""

# fmt: off
SEES = "sees = m < seqlen_q and n < seqlen_k and n <= last_n"
P = "p = math.exp(s * softmax_scale - lse) if sees else float32(0.0)"
DS = "return p, p * (dp - delta)"
LSE, DELTA = "v_tile, lse_tile[ty], d", "ty], delta_tile[ty], sees"
DQ = "dq_acc[i] += ds_tile[ty, c] * k_tile[c, d]"
STORE = "dq[m, d] = dq_acc[i] * softmax_scale"
STOP = "n_stop = min(m_start + BLOCK_M, seqlen_q) + seqlen_k - seqlen_q"
LOOP = "for n_start in range(0, n_stop, BLOCK_N):"
LAST = "last_n = m + seqlen_k - seqlen_q if CAUSAL else seqlen_k - 1"


def filled(number):
    """A finite score for hidden pairs, and exp of it."""
    return (f"{number} for a hidden pair", [
        (P, f"p = math.exp((s * softmax_scale if sees else float32({number})) - lse)")])


WRONG = [
    filled("-1e4"), filled("-1e9"), filled("-1e30"), filled("-math.inf"),
    ("no mask", LAST, "last_n = seqlen_k - 1"),
    ("top-left mask", LAST, "last_n = m if CAUSAL else seqlen_k - 1"),
    ("strict mask", LAST, "last_n = m + seqlen_k - seqlen_q - 1 if CAUSAL else seqlen_k - 1"),
    ("keys beyond the last take part", SEES, "sees = m < seqlen_q and n <= max(last_n, n_stop + BLOCK_N)"),
    ("sees is not used", P, "p = math.exp(s * softmax_scale - lse)"),
    ("ex08b's columns", "d = tx + i * BLOCK_N\n            if d < HEAD_DIM:\n                for c", "d = ty + i * BLOCK_M\n            if d < HEAD_DIM:\n                for c"),
    ("dead tiles are visited", STOP, "n_stop = seqlen_k"),
    ("the last live tile is skipped", STOP, "n_stop = (min(m_start + BLOCK_M, seqlen_q) + seqlen_k - seqlen_q) // BLOCK_N * BLOCK_N"),
    ("no scale in the scores", P, "p = math.exp(s - lse_tile[ty])"),
    ("no scale in dq", STORE, "dq[m, d] = dq_acc[i]"),
    ("scale twice", DS, "return p, softmax_scale * p * (dp - delta)"),
    ("dq of v", DQ, DQ.replace("k_tile", "v_tile")),
    ("dp of q and v", "dp += do_tile[ty, d] * v_tile[tx, d]", "dp += q_tile[ty, d] * v_tile[tx, d]"),
    ("dp of dout and k", "dp += do_tile[ty, d] * v_tile[tx, d]", "dp += do_tile[ty, d] * k_tile[tx, d]"),
    ("ds not transposed back", DQ, "dq_acc[i] += ds_tile[c % BLOCK_M, ty % BLOCK_N] * k_tile[c, d]"),
    ("64 n-tiles at most", LOOP, "for n_start in range(0, min(n_stop, 64 * BLOCK_N), BLOCK_N):"),
    ("128 n-tiles at most", LOOP, "for n_start in range(0, min(n_stop, 128 * BLOCK_N), BLOCK_N):"),
    ("128 m-tiles at most", "m_start = cuda.blockIdx.x * BLOCK_M", "m_start = cuda.blockIdx.x % 128 * BLOCK_M"),
    ("every thread loads lse and delta", "        if tx == 0:\n", "        if tx >= 0:\n"),
    ("lse straight from HBM", LSE, "v_tile, lse[m], d"),
    ("delta straight from HBM", DELTA, "ty], delta[m] if m < seqlen_q else float32(0.0), sees"),
    ("q loaded in every turn", "            n = n_start + tx\n", "            if m < seqlen_q:\n                for d in range(tx, HEAD_DIM, BLOCK_N):\n                    q_tile[ty, d] = q[m, d]\n            cuda.syncthreads()\n            n = n_start + tx\n"),
    ("every thread loads all of a key", "                for d in range(tx, HEAD_DIM, BLOCK_N):\n                    inside", "                for d in range(HEAD_DIM):\n                    inside"),
    ("dq summed in HBM", [("            dq_acc[i] = float32(0.0)\n", "            dq_acc[i] = float32(0.0)\n            if m < seqlen_q and tx + i * BLOCK_N < HEAD_DIM:\n                dq[m, tx + i * BLOCK_N] = float32(0.0)\n"), (STORE, "dq[m, d] += dq_acc[i] * softmax_scale")]),
    ("the accumulator is not cleared", "            dq_acc[i] = float32(0.0)\n", "            pass\n"),
    ("queries that do not exist are stored", "        if m < seqlen_q:\n", "        if m <= seqlen_q:\n"),
    ("rows without a key are left as they were", STORE, "dq[m, d] = dq_acc[i] * softmax_scale if n_stop > 0 else dq[m, d]"),
    ("dq in a shared tile", "        dq_acc = cuda.local", "        dq_tile = cuda.shared.array((BLOCK_M, HEAD_DIM), float32)\n        dq_tile[ty, 0] = float32(0.0)\n        dq_acc = cuda.local"),
    ("a local array of all keys", "        dq_acc = cuda.local", "        all_p = cuda.local.array(1024, float32)\n        all_p[0] = float32(0.0)\n        dq_acc = cuda.local"),
    ("k is changed", "            n = n_start + tx\n", "            n = n_start + tx\n            if ty == 0 and n < seqlen_k:\n                k[n, 0] = k_tile[tx, 0] + float32(1e-3)\n"),
    ("float64", "dp = float32(0.0)", "dp = 0.0"),
    ("a score of 0 is hidden", P, P.replace("if sees", "if sees and s != 0")),
    ("64 columns at most", STORE, STORE.replace("dq[m, d]", "dq[m, d % 64]")),
    ("rows of dout and v exchanged", "do_tile[ty, d] * v_tile[tx, d]", "do_tile[tx, d] * v_tile[ty, d]"),
    ("the sum over BLOCK_M", "for c in range(BLOCK_N):\n                    dq_acc", "for c in range(BLOCK_M):\n                    dq_acc"),
    ("P without lse", P, P.replace(" - lse", "")),
    ("ds without P", DS, "return p, dp - delta"),
    ("ds with the other sign", DS, "return p, p * (delta - dp)"),
    ("ds before p", DS, "return p * (dp - delta), p"),
    ("delta behind the product", "return p, p * (dp - delta)", "return p, p * dp - delta"),
]

RIGHT = [
    ("other names", [("def kernel(dout, q, k, v, lse, delta, dq, softmax_scale):", "def kernel(dO, q, k, v, L, D, dQ, scale):"),
        ("= dout[m, d] if", "= dO[m, d] if"), ("= lse[m] if", "= L[m] if"), ("= delta[m] if", "= D[m] if"),
        ("sees, softmax_scale\n            )", "sees, scale\n            )"), (STORE, "dQ[m, d] = dq_acc[i] * scale")]),
    ("an m-tile without keys is answered first", "        for d in range(tx, HEAD_DIM, BLOCK_N):\n            q_tile",
     "        if n_stop <= 0:\n            for d in range(tx, HEAD_DIM, BLOCK_N):\n                if m < seqlen_q:\n                    dq[m, d] = float32(0.0)\n            return\n"
     "        for d in range(tx, HEAD_DIM, BLOCK_N):\n            q_tile"),
    ("scale in ds, -inf for hidden keys and a guard for lse", [(DS, "return p, softmax_scale * p * (dp - delta)"), (STORE, "dq[m, d] = dq_acc[i]"),
        (P, "p = float32(0.0)\n        if lse > -math.inf:\n            p = math.exp((s * softmax_scale if sees else float32(-math.inf)) - lse)")]),
]

EQUIVALENT = []
