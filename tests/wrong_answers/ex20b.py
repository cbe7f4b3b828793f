"""ex20b: chunked linear attention."""

# fmt: off
LOOP = "for start in range(0, seqlen, CHUNK):"
SCORES = "for n in range(tx, ty + 1, COLS):  # later tokens need no score"
OWN = "        for n in range(ty + 1):\n            y += s_tile[ty, n] * v_tile[n, tx]"
BEFORE = "y += q_tile[ty, f] * u_tile[f, tx]"
OUT = "out[m, tx] = y / l if l != float32(0.0) else float32(0.0)"
UPDATE = "u_tile[f, tx] += kv"
ADD = "            add(k_tile, v_tile, u_tile)\n"
LOAD_K = "k_tile[ty, f] = phi_k[m, f] if m < seqlen else float32(0.0)"
V1 = "v_tile[ty, tx] = v[m, tx] if m < seqlen else float32(0.0)"
STORE = "        for f in range(ty, FEATURE_DIM, CHUNK):\n            state[f, tx] = u_tile[f, tx]\n"

WRONG = [
    ("only positive sums", OUT, OUT.replace("!=", ">")),
    ("a small number for 0", OUT, "out[m, tx] = y / (l + float32(1e-6))"),
    ("no guard", OUT, "out[m, tx] = y / l"),
    ("not divided", OUT, "out[m, tx] = y"),
    ("later tokens with weight 0", [(SCORES, "for n in range(tx, CHUNK, COLS):"), ("s_tile[ty, n] = s  #", "s_tile[ty, n] = s if n <= ty else float32(0.0)  #"), (OWN, OWN.replace("range(ty + 1)", "range(CHUNK)"))]),
    ("no mask within the chunk", [(SCORES, "for n in range(tx, CHUNK, COLS):"), (OWN, OWN.replace("range(ty + 1)", "range(CHUNK)"))]),
    ("the chunks before are missing", BEFORE, "y += q_tile[ty, f] * u_tile[f, tx] * float32(0.0)"),
    ("the chunk is in the state twice", UPDATE, "u_tile[f, tx] += kv + kv"),
    ("the state is not stored", STORE, ""),
    ("the state before is ignored", "u_tile[f, tx] = state[f, tx]", "u_tile[f, tx] = float32(0.0)"),
    ("the state goes to HBM after each chunk", ADD, ADD + "            for f in range(ty, FEATURE_DIM, CHUNK):\n                state[f, tx] = u_tile[f, tx] + float32(0.0)\n"),
    ("keys beyond the last", LOAD_K, "k_tile[ty, f] = phi_k[min(m, seqlen - 1), f]"),
    ("queries for keys", ADD, ADD.replace("k_tile", "q_tile")),
    ("the last, ragged chunk is missing", LOOP, "for start in range(0, seqlen // CHUNK * CHUNK, CHUNK):"),
    ("256 chunks at most", LOOP, "for start in range(0, min(seqlen, 256 * CHUNK), CHUNK):"),
    ("chunks no larger than the block is wide", SCORES, "for n in range(tx, min(ty + 1, COLS), COLS):"),
    ("every thread stores the divisor", "if tx == HEAD_DIM:", "if tx <= HEAD_DIM:"),
    ("rows that do not exist are stored", "if m < seqlen and tx < HEAD_DIM:", "if m <= seqlen and tx < HEAD_DIM:"),
    ("a spare tile", "        divisor = cuda", "        spare = cuda.shared.array((CHUNK, CHUNK), float32)\n        spare[0, 0] = float32(0.0)\n        divisor = cuda"),
    ("a local array", "        divisor = cuda", "        row = cuda.local.array(64, float32)\n        row[0] = float32(0.0)\n        divisor = cuda"),
    ("v loaded twice", V1, V1 + "\n                if m < seqlen:\n                    v_tile[ty, tx] = v[m, tx]"),
    ("features are changed", LOAD_K, LOAD_K + "\n                if m < seqlen:\n                    phi_k[m, f] = float32(0.0)"),
    ("float64", "y = float32(0.0)", "y = 0.0"),
    ("a warp's barrier before the scores are read", "cuda.syncthreads()  # s_tile is complete", "cuda.syncwarp()  # s_tile is complete"),
    ("a warp's barrier before the divisor is read", "cuda.syncthreads()  # divisor is complete", "cuda.syncwarp()  # divisor is complete"),
    ("HEAD_DIM 64 at most", UPDATE, "u_tile[f, tx] += kv if tx <= 64 else float32(0.0)"),
    ("chunks of 64 at most", OWN, OWN.replace("range(ty + 1)", "range(min(ty + 1, 64))")),
    ("the first warp alone", UPDATE, "u_tile[f, tx] += kv if ty * COLS + tx < 32 else float32(0.0)"),
    ("the chunk in place of the state", "u_tile[f, tx] += kv", "u_tile[f, tx] = kv"),
    ("the chunk's scores behind the token", OWN, OWN.replace("range(ty + 1)", "range(CHUNK)")),
    ("scores transposed", OWN, OWN.replace("s_tile[ty, n]", "s_tile[n, ty]")),
    ("the state is replaced", UPDATE, "u_tile[f, tx] = kv"),
]

RIGHT = [
    ("other names", [("def kernel(phi_q, phi_k, v, state, out):", "def kernel(Q, K, V, U, O):"), ("seqlen = v.shape[0]", "seqlen = V.shape[0]"), ("u_tile[f, tx] = state[f, tx]", "u_tile[f, tx] = U[f, tx]"),
        ("q_tile[ty, f] = phi_q[m, f]", "q_tile[ty, f] = Q[m, f]"), (LOAD_K, LOAD_K.replace("phi_k", "K")), (V1, V1.replace("= v[", "= V[")), (OUT, OUT.replace("out[", "O[")), ("state[f, tx] = u_tile[f, tx]\n", "U[f, tx] = u_tile[f, tx]\n")]),
    ("its own chunk first, sums in other variables", [("        for f in range(FEATURE_DIM):\n            y += q_tile[ty, f] * u_tile[f, tx]  # phi(Q) U, the chunks before\n", ""),
        ("        return y\n", "        past = float32(0.0)\n        for f in range(FEATURE_DIM):\n            past += q_tile[ty, f] * u_tile[f, tx]\n        return y + past\n")]),
    ("tokens outside, features inside", [("            kv = float32(0.0)\n            for n in range(CHUNK):\n                kv += k_tile[n, f] * v_tile[n, tx]\n            u_tile[f, tx] += kv", "            for n in range(CHUNK):\n                u_tile[f, tx] += k_tile[n, f] * v_tile[n, tx]")]),
]

EQUIVALENT = []
