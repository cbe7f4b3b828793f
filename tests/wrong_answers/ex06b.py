"""Wrong and right answers of ex06b: see tests/wrong_answers/__init__.py."""

Q_TILE = "        q_tile = cuda.shared.array((BLOCK_M, HEAD_DIM), float32)\n"
P_TILE = "        p_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)\n"
KEYS = "        for n_start in range(0, seqlen_k, BLOCK_N):\n"
K_ROWS = "            for row in range(ty, BLOCK_N, BLOCK_M):\n"
K_COLS = "                for d in range(tx, HEAD_DIM, BLOCK_N):\n                    inside"
QUERIES = "            for m_start in range(0, seqlen_q, BLOCK_M):\n"
Q_LOAD = "                    q_tile[ty, d] = q[m_row, d] if m_row < seqlen_q else float32(0.0)\n"
STATE = "                if tx == 0:\n                    l_old[ty]"
MISSING = "                s = float32(-math.inf)  # a key"
EXISTS = "                if n_start + tx < seqlen_k:\n"
DOT = "                        s += q_tile[ty, d] * k_tile[tx, d]\n"
SCALE = "                    s *= softmax_scale  #"
M_NEW = "                m_new = m_old[ty]\n"
P = "                p_tile[ty, tx] = math.exp(s - m_new)\n"
WEIGHED = (
    "                cuda.syncthreads()  # p_tile is complete; l_old and m_old may be overwritten\n"
)
L_NEW = "                l_new = l_alpha\n"
ROW = "                if m_row < seqlen_q:\n"
OUT_COLS = "                    for d in range(tx, HEAD_DIM, BLOCK_N):\n                        acc"
UNDO = "                        acc = l_alpha * out[m_row, d]  #"
ACC = "                            acc += p_tile[ty, c] * v_tile[c, d]\n"
OUT = "                        out[m_row, d] = acc / l_new  #"
STORE = "                        l[m_row], m[m_row] = l_new, m_new  #"

WRONG = [
    *((f"a missing key is {low}", MISSING, f"                s = float32({low})  # a key") for low in ("0.0", "-1e4", "-1e9", "-1e30")),
    ("a missing key is loaded as 0 and counts", EXISTS, "                if tx >= 0:\n"),
    ("one key too many", EXISTS, EXISTS.replace("<", "<=")),
    ("the last key is left out", EXISTS, EXISTS.replace("seqlen_k", "seqlen_k - 1")),
    ("whole tiles of keys", KEYS, KEYS.replace("seqlen_k,", "seqlen_k // BLOCK_N * BLOCK_N,")),
    ("whole tiles of queries", QUERIES, QUERIES.replace("seqlen_q,", "max(seqlen_q // BLOCK_M * BLOCK_M, 1),")),
    ("64 tiles of keys at most", KEYS, KEYS.replace("seqlen_k,", "min(seqlen_k, 64 * BLOCK_N),")),
    ("64 tiles of queries at most", QUERIES, QUERIES.replace("seqlen_q,", "min(seqlen_q, 64 * BLOCK_M),")),
    ("no guard of the query", ROW, "                if True:\n"),
    ("no scale", SCALE, "                    pass  #"),
    ("1/sqrt(head_dim)", SCALE, "                    s *= float32(1 / math.sqrt(HEAD_DIM))  #"),
    ("divided by the scale", SCALE, "                    s /= softmax_scale  #"),
    ("the tile's maximum alone", M_NEW, "                m_new = float32(-math.inf)\n"),
    *((f"the maximum is never below {low}", M_NEW, f"                m_new = max(m_old[ty], float32({low}))\n") for low in ("-1e4", "-1e30")),
    ("exp cut off at -20", P, "                p_tile[ty, tx] = math.exp(max(s - m_new, float32(-20.0))) if n_start + tx < seqlen_k else float32(0.0)\n"),
    ("l starts from 0 in each tile", L_NEW, "                l_new = float32(0.0)\n"),
    ("out is not rescaled", UNDO, "                        acc = l_old[ty] * out[m_row, d]  #"),
    ("out of the last tile alone", UNDO, "                        acc = float32(0.0)  #"),
    ("the first launch only", UNDO, "                        acc = float32(0.0)\n                        if n_start > 0:\n                            acc = l_alpha * out[m_row, d]  #"),
    ("divided by the old l", OUT, "                        out[m_row, d] = acc / l_alpha  #"),
    ("k for v", ACC, ACC.replace("v_tile", "k_tile")),
    ("p transposed", ACC, ACC.replace("p_tile[ty, c]", "p_tile[c, tx]")),
    ("l is not stored", STORE, "                        m[m_row] = m_new  #"),
    ("m is not stored", STORE, "                        l[m_row] = l_new  #"),
    ("l and m swapped", STORE, STORE.replace("l_new, m_new", "m_new, l_new")),
    ("m is stored as exp", STORE, STORE.replace("l_new, m_new", "l_new, math.exp(m_new)")),
    ("every thread stores l", "                    if tx == 0:\n                        l[", "                    if tx >= 0:\n                        l["),
    ("every thread loads the state", STATE, STATE.replace("tx == 0", "tx >= 0")),
    ("an early return", "                m_row = m_start + ty\n", "                m_row = m_start + ty\n                if m_row >= seqlen_q:\n                    return\n"),
    ("a barrier under the guard", WEIGHED, "                if m_row < seqlen_q:\n    " + WEIGHED),
    ("k is loaded by every row of threads", K_ROWS, "            for row in range(BLOCK_N):\n"),
    ("k and v in every inner turn", [(DOT, "                        s += q_tile[ty, d] * k[n_start + tx, d]\n")]),
    ("q from HBM", DOT, "                        s += (q[m_row, d] if m_row < seqlen_q else float32(0.0)) * k_tile[tx, d]\n"),
    ("neighbouring columns to one thread", K_COLS,
     "                own = -(-HEAD_DIM // BLOCK_N)\n"
     "                for d in range(tx * own, min(tx * own + own, HEAD_DIM)):\n"
     "                    inside"),
    ("out by neighbouring columns", OUT_COLS,
     "                    own = -(-HEAD_DIM // BLOCK_N)\n"
     "                    for d in range(tx * own, min(tx * own + own, HEAD_DIM)):\n"
     "                        acc"),
    ("head_dim at most 16", DOT, "                        if d < 16:\n    " + DOT),
    ("all of q in shared memory", Q_TILE, "        all_of_q = cuda.shared.array((1024, 4), float32)\n        all_of_q[cuda.threadIdx.y, 0] = float32(0.0)\n" + Q_TILE),
    ("a spare tile", P_TILE, P_TILE + "        spare = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)\n        spare[0, 0] = float32(0.0)\n"),
    ("the scores of a row in a local array", L_NEW, "                scores = cuda.local.array(1024, float32)\n                scores[tx] = s\n" + L_NEW),
    ("thread (ty, 0) owns all columns of out", OUT_COLS, "                    for d in range(0 if tx == 0 else HEAD_DIM, HEAD_DIM):\n                        acc"),
    ("q scaled in place", Q_LOAD, "                    if m_row < seqlen_q and n_start == 0:\n                        q[m_row, d] *= float32(1.0)\n" + Q_LOAD),
    ("float64", L_NEW, "                l_new = 0.0 + l_alpha\n"),
    ("64 columns at most", DOT, "                        if d < 64:\n    " + DOT),
    ("64 columns of out", OUT, OUT.replace("out[m_row, d] =", "out[m_row, d % 64] =")),
    ("a barrier of the warp alone", WEIGHED, "                cuda.syncwarp()\n"),
]  # fmt: skip

RIGHT = [
    ("flat loads, padded tiles, other names", """
import functools
import math

from numba import cuda, float32


@functools.cache
def make_kernel(HEAD_DIM, BLOCK_M, BLOCK_N):
    ROW = HEAD_DIM + 1

    @cuda.jit
    def kernel(queries, keys, values, result, norm, top, factor):
        q = cuda.shared.array((BLOCK_M, ROW), float32)
        k = cuda.shared.array((BLOCK_N, ROW), float32)
        v = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        s = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        p = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        norms = cuda.shared.array(BLOCK_M, float32)
        tops = cuda.shared.array(BLOCK_M, float32)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        me = y * BLOCK_N + x
        n = 0
        while n < keys.shape[0]:
            for i in range(me, BLOCK_N * HEAD_DIM, BLOCK_M * BLOCK_N):
                row, col = i // HEAD_DIM, i % HEAD_DIM
                k[row, col], v[row, col] = float32(0), float32(0)
                if n + row < keys.shape[0]:
                    k[row, col] = keys[n + row, col]
                    v[row, col] = values[n + row, col]
            m = 0
            while m < queries.shape[0]:
                for i in range(me, BLOCK_M * HEAD_DIM, BLOCK_M * BLOCK_N):
                    row, col = i // HEAD_DIM, i % HEAD_DIM
                    q[row, col] = float32(0)
                    if m + row < queries.shape[0]:
                        q[row, col] = queries[m + row, col]
                live = m + y < queries.shape[0]
                if x == BLOCK_N - 1 and live:
                    norms[y] = norm[m + y]
                    tops[y] = top[m + y]
                cuda.syncthreads()
                mine = float32(0)
                for c in range(HEAD_DIM - 1, -1, -1):
                    mine += k[x, c] * q[y, c]
                s[y, x] = mine * factor if n + x < keys.shape[0] else float32(-math.inf)
                cuda.syncthreads()
                old = tops[y] if live else float32(0)
                new = old
                for c in range(BLOCK_N):
                    if s[y, c] > new:
                        new = s[y, c]
                kept = norms[y] * math.exp(old - new) if live else float32(0)
                p[y, x] = math.exp(s[y, x] - new)
                cuda.syncthreads()
                if live:
                    total = kept
                    for c in range(BLOCK_N):
                        total += p[y, c]
                    for c in range(x, HEAD_DIM, BLOCK_N):
                        mixed = float32(0)
                        for j in range(BLOCK_N):
                            mixed += p[y, j] * v[j, c]
                        if kept > 0:
                            mixed += kept * result[m + y, c]
                        result[m + y, c] = mixed / total
                    if x == 0:
                        norm[m + y], top[m + y] = total, new
                cuda.syncthreads()
                m += BLOCK_M
            n += BLOCK_N

    return kernel
"""),
    ("a helper, ifs for ternaries, a local array of own columns", [
        (DOT, "                        s += product(q_tile, k_tile, ty, tx, d)\n"),
        (OUT, "                        own = cuda.local.array(HEAD_DIM, float32)\n"
              "                        own[d] = acc / l_new\n"
              "                        out[m_row, d] = own[d]  #"),
        ("@functools.cache\ndef make_kernel", "@cuda.jit(device=True)\n"
         "def product(a, b, i, j, d):\n    return a[i, d] * b[j, d]\n\n\n"
         "@functools.cache\ndef make_kernel"),
    ]),
]  # fmt: skip

EQUIVALENT = []
