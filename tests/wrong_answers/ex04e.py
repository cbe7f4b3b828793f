"""Wrong and right answers of ex04e: see tests/wrong_answers/__init__.py."""

NEW = "    m_new = max(m_i, s)\n"
ALPHA = "    alpha = math.exp(m_i - m_new)\n"
P = "    p = math.exp(s - m_new)\n"
ACC = "        acc_row[c] = acc_row[c] * alpha + p * v[n, c]\n"
RETURN = "    return m_new, l_i * alpha + p\n"
MERGE_ACC = "        acc_row[c] += alpha * acc[chunk, m_row, c]\n"
MERGE_L = "    return l_i + alpha * l[chunk, m_row]\n"
DOT = "            s += q_row[c] * k[n, c]\n"
STORE_ACC = "        acc[chunk, m_row, c] = acc_row[c]\n"
OUT = "        out[m_row, c] = acc_row[c] / l_i if l_i != 0 else float32(0.0)\n"

WRONG = [
    ("the sum of the article, with alpha for p", RETURN, "    return m_new, l_i + alpha\n"),
    ("alpha upside down", ALPHA, "    alpha = math.exp(m_new - m_i)\n"),
    ("alpha of the new key", ACC, "        acc_row[c] = acc_row[c] + alpha * p * v[n, c]\n"),
    ("acc is replaced", ACC, "        acc_row[c] = p * v[n, c]\n"),
    ("powers of 2", [(ALPHA, ALPHA.replace("exp", "exp2")), (P, P.replace("exp", "exp2"))]),
    ("alpha of the score", ALPHA, "    alpha = math.exp(s - m_new)\n"),
    ("m is not kept", RETURN, RETURN.replace("m_new,", "s,")),
    ("m stays", RETURN, RETURN.replace("m_new,", "m_i,")),
    ("the larger of s and 0", NEW, "    m_new = max(s, float32(0.0))\n"),
    ("p of the old maximum", P, "    p = math.exp(s - m_i)\n"),
    ("p cut off", P, "    p = math.exp(max(s - m_new, float32(-10.0)))\n"),
    ("l before acc, exchanged", RETURN, "    return l_i * alpha + p, m_new\n"),
    ("the first column", ACC, ACC.replace("v[n, c]", "v[n, 0]")),
    ("acc is divided with each key", ACC, ACC.replace("\n", " / (l_i * alpha + p)\n")),
    ("merge: averages", MERGE_L, "    return l_i + float32(1.0)\n"),
    ("merge: the first chunk's acc", MERGE_ACC, MERGE_ACC.replace("acc[chunk", "acc[0")),
    ("merge: l rescaled in place", MERGE_L, "    l[chunk, m_row] *= alpha\n    return l_i + l[chunk, m_row]\n"),
    ("merge: not divided", OUT, "        out[m_row, c] = acc_row[c]\n"),
    ("acc is divided in each chunk", STORE_ACC, "        acc[chunk, m_row, c] = acc_row[c] / l_i if l_i > 0 else float32(0.0)\n"),
    ("q is loaded for each key", DOT, "            s += q[m_row, c] * k[n, c]\n"),
    ("float64", RETURN, "    return m_new, l_i * alpha + p * 1.0\n"),
    ("a score of 0 weighs nothing", P, P + "    if s == 0:\n        p = float32(0)\n"),
    ("256 queries at most", "    if m_row >= q.shape[0]:\n", "    if m_row >= min(q.shape[0], 256):\n"),
    ("the first warp alone", "    if m_row >= out.shape[0]:\n", "    if m_row >= out.shape[0] or cuda.threadIdx.x >= 32:\n"),
    ("a maximum below -1e4 starts anew", NEW, "    m_new = max(m_i, s) if m_i > float32(-1e4) else s\n"),
]  # fmt: skip

RIGHT = [
    ("shrinks only where the maximum rises", NEW + ALPHA + P + "    for c in range(HEAD_DIM):\n" + ACC
     + RETURN, """    if s > m_i:
        shrink = math.exp(m_i - s)
        for c in range(HEAD_DIM):
            acc_row[c] *= shrink
        l_i *= shrink
        m_i = s
    weight = math.exp(s - m_i)
    for c in range(HEAD_DIM):
        acc_row[c] += weight * v[n, c]
    return m_i, l_i + weight
"""),
    ("the sums first, other names", [(ACC, "        acc_row[c] *= alpha\n        acc_row[c] += v[n, c] * p\n"), (MERGE_L, "    part = l[chunk, m_row] * alpha\n    return part + l_i\n")]),
]  # fmt: skip

EQUIVALENT = []
