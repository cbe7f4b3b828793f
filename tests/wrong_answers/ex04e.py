"""Wrong and right answers of ex04e: see tests/wrong_answers/__init__.py."""

GUARD = "    if m_row >= q.shape[0]:\n"
START = "    m_i = float32(-math.inf)\n    l_i = float32(0.0)\n    n_start"
CHUNK = "    n_start = chunk * key_chunk_size\n"
KEYS = "    for n in range(n_start, min(n_start + key_chunk_size, k.shape[0])):\n"
DOT = "            s += q_row[c] * k[n, c]\n"
SCALE = "        s *= softmax_scale\n"
MASKED = "        if m_new > -math.inf:  #"
ALPHA = "            alpha = math.exp(m_i - m_new)\n"
P = "            p = math.exp(s - m_new)\n"
L = "            l_i = l_i * alpha + p\n"
ACC = "                acc_row[c] = acc_row[c] * alpha + p * v[n, c]\n"
STORE_L = "    l[chunk, m_row] = l_i\n    m"
STORE_M = "    m[chunk, m_row] = m_i\n"
STORE_ACC = "        acc[chunk, m_row, c] = acc_row[c]\n"
Q_LOAD = "        q_row[c] = q[m_row, c]\n"
ACC_ROW = (
    "    acc_row = cuda.local.array(HEAD_DIM, float32)\n    for c in range(HEAD_DIM):\n        q"
)
M_START = "    m_i = float32(-math.inf)\n    for chunk"
MAXIMUM = "        m_i = max(m_i, m[chunk, m_row])\n"
EMPTY = "    if m_i == -math.inf:  #"
MERGE_ALPHA = "        alpha = math.exp(m[chunk, m_row] - m_i)\n"
MERGE_L = "        l_i += alpha * l[chunk, m_row]\n"
MERGE_ACC = "            acc_row[c] += alpha * acc[chunk, m_row, c]\n"
OUT = "        out[m_row, c] = acc_row[c] / l_i if l_i != 0 else float32(0.0)\n"
CHUNKS = "    num_chunks = -(-seqlen_k // key_chunk_size)\n"
KEPT = "    kept = min(query_chunk_size, seqlen_q) * num_chunks * (d + 2)\n"
RETURN = "    return kept, seqlen_q * seqlen_k * d"

WRONG = [
    ("no guard of the row", GUARD, "    if m_row < 0:\n"),
    ("guard off by one", GUARD, GUARD.replace(">=", ">")),
    *((f"m starts at {low}", START, START.replace("-math.inf", low))
      for low in ("0.0", "-1e4", "-1e9", "-1e30")),
    *((f"below {low} counts as masked", MASKED, MASKED.replace("-math.inf", f"float32({low})"))
      for low in ("-1e4", "-1e30")),
    ("no guard of masked keys", MASKED, "        if m_new < math.inf:  #"),
    ("the whole row for each chunk", KEYS, "    for n in range(k.shape[0]):\n"),
    ("the last key of a chunk is left out", KEYS,
     KEYS.replace("k.shape[0])", "k.shape[0]) - 1")),
    ("a chunk from 0", CHUNK, "    n_start = 0\n"),
    ("chunks of 8", CHUNK, "    n_start = chunk * 8\n"),
    ("256 keys at most", KEYS, KEYS.replace("key_chunk_size,", "min(key_chunk_size, 256),")),
    ("no scale", SCALE, ""),
    ("1/sqrt(d) for softmax_scale", SCALE, "        s *= float32(1 / math.sqrt(HEAD_DIM))\n"),
    ("alpha is missing in l", L, "            l_i = l_i + p\n"),
    ("alpha is missing in acc", ACC, ACC.replace(" * alpha", "")),
    ("alpha upside down", ALPHA, "            alpha = math.exp(m_new - m_i)\n"),
    ("m is not kept", "            m_i = m_new\n    l[", "            m_i = s\n    l["),
    ("p without the maximum", P, "            p = math.exp(s)\n"),
    ("p cut off", P, "            p = math.exp(max(s - m_new, float32(-10.0)))\n"),
    ("acc is divided in each chunk", STORE_ACC,
     "        acc[chunk, m_row, c] = acc_row[c] / l_i if l_i > 0 else float32(0.0)\n"),
    ("l of an empty chunk is 1", STORE_L, STORE_L.replace("= l_i", "= l_i if l_i > 0 else "
                                                          "float32(1.0)")),
    ("m of an empty chunk is finite", STORE_M, "    m[chunk, m_row] = max(m_i, float32(-1e30))\n"),
    ("q is loaded for each key", DOT, "            s += q[m_row, c] * k[n, c]\n"),
    ("acc in HBM", [
        (ACC, "                acc_row[c] = acc_row[c] * alpha + p * v[n, c]\n"
              "                acc[chunk, m_row, c] = acc_row[c]\n")]),
    ("scores of a chunk in a local array", [
        (ACC_ROW, "    kept = cuda.local.array(512, float32)\n" + ACC_ROW),
        (SCALE, SCALE + "        kept[n - n_start] = s\n")]),
    ("k in shared memory", ACC_ROW,
     "    k_tile = cuda.shared.array((32, HEAD_DIM), float32)\n"
     "    k_tile[cuda.threadIdx.x, 0] = k[0, 0]\n" + ACC_ROW),
    ("q is scaled in place", Q_LOAD, "        q[m_row, c] = q[m_row, c] * float32(1.0)\n" + Q_LOAD),
    ("the merge starts at 0", M_START, M_START.replace("-math.inf", "0.0")),
    ("the merge starts at -1e9", M_START, M_START.replace("-math.inf", "-1e9")),
    ("the merge starts at -1e30", M_START, M_START.replace("-math.inf", "-1e30")),
    ("merge: below -1e30 is no key", EMPTY, "    if m_i < float32(-1e30):  #"),
    ("merge: no guard of m", EMPTY, "    if m_i == math.inf:  #"),
    ("merge: the first chunk's maximum", MAXIMUM, "        m_i = m[0, m_row]\n"),
    ("merge: no alpha", MERGE_ALPHA, "        alpha = float32(1.0)\n"),
    ("merge: no alpha of l", MERGE_L, "        l_i += l[chunk, m_row]\n"),
    ("merge: no alpha of acc", MERGE_ACC, MERGE_ACC.replace("alpha * ", "")),
    ("merge: averages", MERGE_L, "        l_i += float32(1.0)\n"),
    ("merge: 64 chunks at most", [
        ("    for chunk in range(m.shape[0]):\n        alpha",
         "    for chunk in range(min(m.shape[0], 64)):\n        alpha")]),
    ("merge: not divided", OUT, "        out[m_row, c] = acc_row[c]\n"),
    ("merge: no guard of 0 / 0", OUT, "        out[m_row, c] = acc_row[c] / l_i\n"),
    ("merge: a small number for 0", OUT, "        out[m_row, c] = acc_row[c] / (l_i + "
                                         "float32(1e-4))\n"),
    ("merge: out as an accumulator", MERGE_ACC,
     MERGE_ACC + "            out[m_row, c] = acc_row[c]\n"),
    ("merge: l rescaled in place", MERGE_L,
     "        l[chunk, m_row] *= alpha\n        l_i += l[chunk, m_row]\n"),
    ("merge: thread 0 does it all", [
        ("    m_row = cuda.grid(1)\n    if m_row >= out.shape[0]:\n        return\n",
         "    if cuda.grid(1) > 0:\n        return\n    for m_row in range(out.shape[0]):\n"
         "        merge_row(acc, l, m, out, m_row)\n\n\n@cuda.jit(device=True)\n"
         "def merge_row(acc, l, m, out, m_row):\n")]),
    ("chunks rounded down", CHUNKS, "    num_chunks = max(seqlen_k // key_chunk_size, 1)\n"),
    ("acc alone is kept", KEPT, KEPT.replace("d + 2", "d")),
    ("all queries are kept", KEPT, KEPT.replace("min(query_chunk_size, seqlen_q)", "seqlen_q")),
    ("more queries than there are", KEPT,
     KEPT.replace("min(query_chunk_size, seqlen_q)", "query_chunk_size")),
    ("k once per chunk of queries", RETURN, "    return kept, num_chunks * seqlen_k * d"),
    ("k and v", RETURN, RETURN.replace("seqlen_q *", "2 * seqlen_q *")),
    ("floats", RETURN, "    return float(kept), float(seqlen_q) * seqlen_k * d"),
]  # fmt: skip

RIGHT = [
    ("the chunk's maximum first is more traffic, so one walk; other names and loops", """
import math

from numba import cuda, float32

HEAD_DIM = 8


@cuda.jit(device=True)
def score(query, keys, j, factor):
    total = float32(0)
    for i in range(HEAD_DIM):
        total += query[i] * keys[j, i]
    return total * factor


@cuda.jit
def summarize_chunks(queries, keys, values, sums, norms, tops, chunk_len, factor):
    i = cuda.threadIdx.x + cuda.blockIdx.x * cuda.blockDim.x
    part = cuda.blockIdx.y
    if i < queries.shape[0]:
        query = cuda.local.array(HEAD_DIM, float32)
        total = cuda.local.array(HEAD_DIM, float32)
        for c in range(HEAD_DIM):
            query[c] = queries[i, c]
            total[c] = float32(0)
        top, norm = float32(-math.inf), float32(0)
        j = part * chunk_len
        end = j + chunk_len
        while j < end and j < keys.shape[0]:
            s = score(query, keys, j, factor)
            if s > top:
                shrink = math.exp(top - s)
                top = s
                norm *= shrink
                for c in range(HEAD_DIM):
                    total[c] *= shrink
            weight = math.exp(s - top) if s > -math.inf else float32(0)
            norm += weight
            for c in range(HEAD_DIM):
                total[c] += weight * values[j, c]
            j += 1
        tops[part, i], norms[part, i] = top, norm
        for c in range(HEAD_DIM):
            sums[part, i, c] = total[c]


@cuda.jit
def merge_chunks(sums, norms, tops, result):
    i = cuda.grid(1)
    if i < result.shape[0]:
        total = cuda.local.array(HEAD_DIM, float32)
        for c in range(HEAD_DIM):
            total[c] = float32(0)
        top, norm = float32(-math.inf), float32(0)
        for part in range(tops.shape[0] - 1, -1, -1):
            m = tops[part, i]
            l = norms[part, i]
            new = max(top, m)
            base = float32(0) if new == -math.inf else new
            old_weight, weight = math.exp(top - base), math.exp(m - base)
            norm = norm * old_weight + l * weight
            for c in range(HEAD_DIM):
                total[c] = total[c] * old_weight + sums[part, i, c] * weight
            top = new
        for c in range(HEAD_DIM):
            result[i, c] = total[c] / norm if norm > 0 else float32(0)


def traffic(seqlen_q, seqlen_k, d, query_chunk_size, key_chunk_size):
    queries = seqlen_q if seqlen_q < query_chunk_size else query_chunk_size
    chunks = (seqlen_k + key_chunk_size - 1) // key_chunk_size
    return queries * chunks * d + 2 * queries * chunks, d * seqlen_k * seqlen_q
"""),
    ("a row of v is kept, a helper for the division", [
        (ACC, "                v_row[c] = v[n, c]\n"
              "                acc_row[c] = acc_row[c] * alpha + p * v_row[c]\n"),
        (ACC_ROW, "    v_row = cuda.local.array(HEAD_DIM, float32)\n" + ACC_ROW),
        (OUT, "        out[m_row, c] = share(acc_row[c], l_i)\n"),
        ("def traffic", "@cuda.jit(device=True)\ndef share(part, whole):\n"
         "    if whole > 0:\n        return part / whole\n    return float32(0.0)\n\n\n"
         "def traffic")]),
]  # fmt: skip

EQUIVALENT = []
