"""ex08c: the gradient of Q."""

# fmt: off
IF = "if m < seqlen_q and n < seqlen_k and n <= last_n:"
P = "p = math.exp(s * softmax_scale - lse_tile[ty])"
DS = "ds_tile[ty, tx] = p * (dp - delta_tile[ty])"
DQ = "dq_acc[i] += ds_tile[ty, c] * k_tile[c, d]"
STORE = "dq[m, d] = dq_acc[i] * softmax_scale"
STOP = "n_stop = min(m_start + BLOCK_M, seqlen_q) + seqlen_k - seqlen_q"
LOOP = "for n_start in range(0, n_stop, BLOCK_N):"
LAST = "last_n = m + seqlen_k - seqlen_q if CAUSAL else seqlen_k - 1"


def filled(number):
    """A finite score for hidden pairs, and exp of it."""
    return (f"{number} for a hidden pair", [
        (IF, f"if m < seqlen_q and n < seqlen_k:\n                s = s * softmax_scale if n <= last_n else float32({number})"), (P, "p = math.exp(s - lse_tile[ty])")])


WRONG = [
    filled("-1e4"), filled("-1e9"), filled("-1e30"), filled("-math.inf"),
    ("no mask", LAST, "last_n = seqlen_k - 1"),
    ("top-left mask", LAST, "last_n = m if CAUSAL else seqlen_k - 1"),
    ("strict mask", LAST, "last_n = m + seqlen_k - seqlen_q - 1 if CAUSAL else seqlen_k - 1"),
    ("keys beyond the last take part", IF, "if m < seqlen_q and n <= max(last_n, n_stop + BLOCK_N):"),
    ("dead tiles are visited", STOP, "n_stop = seqlen_k"),
    ("the last live tile is skipped", STOP, "n_stop = (min(m_start + BLOCK_M, seqlen_q) + seqlen_k - seqlen_q) // BLOCK_N * BLOCK_N"),
    ("no scale in the scores", P, "p = math.exp(s - lse_tile[ty])"),
    ("no scale in dq", STORE, "dq[m, d] = dq_acc[i]"),
    ("scale twice", DS, "ds_tile[ty, tx] = softmax_scale * p * (dp - delta_tile[ty])"),
    ("delta added", DS, DS.replace("-", "+")),
    ("no delta", DS, "ds_tile[ty, tx] = p * dp"),
    ("ds without p", DS, "ds_tile[ty, tx] = dp - delta_tile[ty]"),
    ("dq of v", DQ, DQ.replace("k_tile", "v_tile")),
    ("dp of q and v", "dp += do_tile[ty, d] * v_tile[tx, d]", "dp += q_tile[ty, d] * v_tile[tx, d]"),
    ("dp of dout and k", "dp += do_tile[ty, d] * v_tile[tx, d]", "dp += do_tile[ty, d] * k_tile[tx, d]"),
    ("ds not transposed back", DQ, "dq_acc[i] += ds_tile[c % BLOCK_M, ty % BLOCK_N] * k_tile[c, d]"),
    ("64 n-tiles at most", LOOP, "for n_start in range(0, min(n_stop, 64 * BLOCK_N), BLOCK_N):"),
    ("128 n-tiles at most", LOOP, "for n_start in range(0, min(n_stop, 128 * BLOCK_N), BLOCK_N):"),
    ("128 m-tiles at most", "m_start = cuda.blockIdx.x * BLOCK_M", "m_start = cuda.blockIdx.x % 128 * BLOCK_M"),
    ("every thread loads lse and delta", "        if tx == 0:\n", "        if tx >= 0:\n"),
    ("lse straight from HBM", P, P.replace("lse_tile[ty]", "lse[m]")),
    ("delta straight from HBM", DS, DS.replace("delta_tile[ty]", "(delta[m] if m < seqlen_q else float32(0.0))")),
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
]

RIGHT = [
    ("other names", [("def kernel(dout, q, k, v, lse, delta, dq, softmax_scale):", "def kernel(dO, q, k, v, L, D, dQ, scale):"),
        ("= dout[m, d] if", "= dO[m, d] if"), ("= lse[m] if", "= L[m] if"), ("= delta[m] if", "= D[m] if"),
        (P, P.replace("softmax_scale", "scale")), (STORE, "dQ[m, d] = dq_acc[i] * scale")]),
    ("an m-tile without keys is answered first", "        for d in range(tx, HEAD_DIM, BLOCK_N):\n            q_tile",
     "        if n_stop <= 0:\n            for d in range(tx, HEAD_DIM, BLOCK_N):\n                if m < seqlen_q:\n                    dq[m, d] = float32(0.0)\n            return\n"
     "        for d in range(tx, HEAD_DIM, BLOCK_N):\n            q_tile"),
    ("scale in ds, -inf for hidden keys and a guard for lse", [(DS, "ds_tile[ty, tx] = softmax_scale * p * (dp - delta_tile[ty])"), (STORE, "dq[m, d] = dq_acc[i]"),
        (IF, "if lse_tile[ty] > -math.inf and m < seqlen_q and n < seqlen_k:\n                s = s * softmax_scale if n <= last_n else float32(-math.inf)"), (P, "p = math.exp(s - lse_tile[ty])")]),
]

OUTSIDE = "rows of queries that do not exist are not stored; the last key of one that exists is below seqlen_k"
EQUIVALENT = [
    ("last_n = m + seqlen_k - seqlen_q if CAUSAL else seqlen_k - 1 -> last_n = m + seqlen_k - seqlen_q if CAUSAL else seqlen_k + 1", "`n < seqlen_k` is tested beside it"),
    ("last_n = m + seqlen_k - seqlen_q if CAUSAL else seqlen_k - 1 -> last_n = m + seqlen_k - seqlen_q if CAUSAL else seqlen_k", "`n < seqlen_k` is tested beside it"),
    ("if m < seqlen_q and n < seqlen_k and (n <= last_n): -> if n <= last_n:", OUTSIDE),
    ("if m < seqlen_q and n < seqlen_k and (n <= last_n): -> if m <= seqlen_q and n < seqlen_k and (n <= last_n):", OUTSIDE),
    ("if m < seqlen_q and n < seqlen_k and (n <= last_n): -> if m < seqlen_q and n <= seqlen_k and (n <= last_n):", OUTSIDE),
]
