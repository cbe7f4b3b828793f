"""Wrong and right answers of ex06c: see tests/wrong_answers/__init__.py."""

SCALE = "                s_ij *= softmax_scale  # mended: the scale was missing\n"
MISSING = (
    "                if n_start + tx >= seqlen_k:\n                    s_ij = float32(-math.inf)"
)
CONSTANT = "    softmax_scale = float32(1 / math.sqrt(HEAD_DIM))\n"
MENDED = SCALE + MISSING
HEAD = '        paper    FlashAttention, arXiv:2205.14135, Algorithm 1\n        """\n'
DOC = (
    """\
        \"\"\"FlashAttention-1 forward of one head, as published, with both bugs mended.

        grid     (1,); threads (BLOCK_N, BLOCK_M), one per score of the tile
        shared   q_load (BLOCK_M, HEAD_DIM); k_load, v_load (BLOCK_N, HEAD_DIM);
                 s_tile, p_tile (BLOCK_M, BLOCK_N); l_load, m_load (BLOCK_M,)
        HBM      k, v once; q, out, l, m once per K/V tile, the last three there and back
"""
    + HEAD
)
Q_LOAD = HEAD + "        q_load = cuda.shared.array((BLOCK_M, HEAD_DIM), float32)\n"

WRONG = [
    ("the scale is still missing", SCALE, ""),
    ("missing keys still count", MISSING, MISSING.replace(">= seqlen_k", "< 0")),
    ("neither is mended", SCALE, "                s_ij *= float32(1.0)\n                if s_ij > 1e30:\n                    s_ij = s_ij\n"),
    ("1 / head_dim", CONSTANT, "    softmax_scale = float32(1 / HEAD_DIM)\n"),
    ("sqrt(head_dim)", CONSTANT, "    softmax_scale = float32(math.sqrt(HEAD_DIM))\n"),
    ("1/8 for every head_dim", CONSTANT, "    softmax_scale = float32(0.125)\n"),
    ("the scale in float64", [(CONSTANT, "    softmax_scale = 1 / math.sqrt(HEAD_DIM)\n")]),
    ("the scale after the mask", MENDED, MISSING.replace("-math.inf", "-1e9") + "  # a key\n" + SCALE.rstrip()),
    *((f"a missing key is {low}", MISSING, MISSING.replace("-math.inf", low)) for low in ("-1e4", "-1e9", "-1e30", "0.0")),
    ("the last key is left out", MISSING, MISSING.replace(">= seqlen_k", ">= seqlen_k - 1")),
    ("the mask by the query", MISSING, MISSING.replace("n_start + tx >= seqlen_k", "m_start + ty >= seqlen_q")),
    ("the mask by the row of threads", MISSING, MISSING.replace("n_start + tx", "n_start + ty")),
    ("masked by its value", MISSING, MISSING.replace("n_start + tx >= seqlen_k", "s_ij == 0")),
    ("64 tiles at most", MISSING, MISSING.replace(">= seqlen_k", ">= min(seqlen_k, 64 * BLOCK_N)")),
    ("scaled twice", SCALE, SCALE + SCALE),
    ("a larger tile", Q_LOAD, Q_LOAD.replace("BLOCK_M, HEAD_DIM", "2 * BLOCK_M, HEAD_DIM")),
    ("a spare tile", Q_LOAD, Q_LOAD + "        spare = cuda.shared.array((16, 16), float32)\n        spare[0, 0] = float32(0.0)\n"),
    ("q scaled in place", MENDED, MISSING.replace("                if", """                if n_start == 0 and m_start + ty < seqlen_q and tx == 0:
                    for d in range(HEAD_DIM):
                        q[m_start + ty, d] *= float32(1.0)
                s_ij *= softmax_scale
                if""", 1)),
    ("the published kernel mended as well", [
        ("                    s_ij += q_load[ty, d] * k_load[tx, d]\n                s_tile[ty, tx] = "
         "s_ij\n", "                    s_ij += q_load[ty, d] * k_load[tx, d]\n"
         "                s_ij *= float32(1 / math.sqrt(HEAD_DIM))\n"
         "                if n_start + tx >= seqlen_k:\n"
         "                    s_ij = float32(-math.inf)\n                s_tile[ty, tx] = s_ij\n")]),
    ("a scale for 64 columns at most", CONSTANT, CONSTANT.replace("HEAD_DIM", "min(HEAD_DIM, 64)")),
    ("256 queries at most", MISSING, MISSING.replace(">= seqlen_k", ">= seqlen_k or m_start + ty >= 256")),
]  # fmt: skip

RIGHT = [
    ("a ternary, divided by the root", [(SCALE, ""), (MISSING, "                s_ij = (s_ij / float32(math.sqrt(HEAD_DIM)) if n_start + tx < seqlen_k else float32(-math.inf))")]),
    ("the mask before the scale", MENDED, MISSING + "  # -inf times a positive number is -inf\n" + SCALE.rstrip()),
    ("other names for the arguments", [("    def kernel(q, k, v, out, l, m):\n" + DOC, "    def kernel(Q, K, V, O, L, M):\n" + DOC + "        q, k, v, out, l, m = Q, K, V, O, L, M\n")]),
]  # fmt: skip

DEAD = "m_load[ty] = m[m_row] if q_mask else float32(-math.inf)"
EQUIVALENT = [
    (f"{DEAD} -> {DEAD.replace('(-', '(')}", "the row of a query that does not exist: nothing of it is stored"),
]  # fmt: skip
