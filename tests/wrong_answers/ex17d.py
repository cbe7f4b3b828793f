"""ex17d: the combine kernel."""

# fmt: off
SPLITS = "for split in range(lse_partial.shape[0]):"
MAX = "m_new = max(m_i, score)"
SAFE = "m_safe = m_new if m_new > -math.inf else float32(0.0)  # -inf - -inf would be NaN"
ALPHA = "alpha = math.exp(m_i - m_safe)"
L = "l_i = alpha * l_i + p"
ACC = "acc[i] = alpha * acc[i] + p * out_partial[split, b, head, d]"
OUT = "out[b, head, d] = acc[i] / l_i if l_i > 0 else float32(0.0)"
LSE = "lse[b, head] = m_i + math.log(l_i) if l_i > 0 else float32(-math.inf)"
TWO_LOOPS = '''        top = float32(-math.inf)
        for split in range(lse_partial.shape[0]):
            top = max(top, lse_partial[split, b, head])
        base = top if top > -math.inf else float32(0.0)
        total = float32(0.0)
        for split in range(lse_partial.shape[0]):
            total += math.exp(lse_partial[split, b, head] - base)
        merged = base + math.log(total)
        for d in range(tx, HEAD_DIM, 32):
            x = float32(0.0)
            for split in range(lse_partial.shape[0]):
                if lse_partial[split, b, head] > -math.inf:
                    x += math.exp(lse_partial[split, b, head] - merged) * out_partial[split, b, head, d]
            out[b, head, d] = x
        if tx == 0:
            lse[b, head] = merged
'''
BODY = '''        m_i = float32(-math.inf)
        l_i = float32(0.0)
        for i in range(NUM_COLS):
            acc[i] = float32(0.0)
        for split in range(lse_partial.shape[0]):
            score = lse_partial[split, b, head]
            m_new = max(m_i, score)
            m_safe = m_new if m_new > -math.inf else float32(0.0)  # -inf - -inf would be NaN
            alpha = math.exp(m_i - m_safe)
            p = math.exp(score - m_safe)
            m_i = m_new
            l_i = alpha * l_i + p
            for i in range(NUM_COLS):
                d = tx + i * 32
                if d < HEAD_DIM:
                    acc[i] = alpha * acc[i] + p * out_partial[split, b, head, d]
        for i in range(NUM_COLS):
            d = tx + i * 32
            if d < HEAD_DIM:
                out[b, head, d] = acc[i] / l_i if l_i > 0 else float32(0.0)
        if tx == 0:
            lse[b, head] = m_i + math.log(l_i) if l_i > 0 else float32(-math.inf)
'''

WRONG = [
    ("no maximum", MAX, "m_new = float32(0.0)"),
    ("the maximum of this split alone", MAX, "m_new = score"),
    ("no guard", SAFE, "m_safe = m_new"),
    ("-1e3 for the first maximum", "m_i = float32(-math.inf)", "m_i = float32(-1e3)"),
    ("alpha upside down", ALPHA, "alpha = math.exp(m_safe - m_i)"),
    ("acc not rescaled", ACC, ACC.replace("alpha * ", "")),
    ("l not rescaled", L, L.replace("alpha * ", "")),
    ("splits count alike", "p = math.exp(score - m_safe)", "p = float32(1.0)"),
    ("exponents clipped", "p = math.exp(score - m_safe)", "p = math.exp(max(score - m_safe, float32(-30.0)))"),
    ("not divided", OUT, "out[b, head, d] = acc[i]"),
    ("divided by the number of splits", OUT, OUT.replace("/ l_i", "/ lse_partial.shape[0]")),
    ("empty rows are NaN", OUT, "out[b, head, d] = acc[i] / l_i"),
    ("empty rows are not written", OUT, "if l_i > 0:\n                    out[b, head, d] = acc[i] / l_i"),
    ("lse of empty rows is 0", LSE, LSE.replace("-math.inf", "0.0")),
    ("log2", LSE, LSE.replace("log(", "log2(")),
    ("lse without the maximum", LSE, LSE.replace("m_i + ", "")),
    ("the largest lse", LSE, "lse[b, head] = m_i"),
    ("every thread stores lse", "if tx == 0:", "if tx >= 0:"),
    ("32 splits at most", SPLITS, "for split in range(min(32, lse_partial.shape[0])):"),
    ("128 splits at most", SPLITS, "for split in range(min(128, lse_partial.shape[0])):"),
    ("1024 splits at most", SPLITS, "for split in range(min(1024, lse_partial.shape[0])):"),
    ("the last split is missing", SPLITS, "for split in range(lse_partial.shape[0] - 1):"),
    ("64 sequences at most", "        m_i = float32(-math.inf)\n", "        b = b % 64\n        m_i = float32(-math.inf)\n"),
    ("head and sequence changed over", "score = lse_partial[split, b, head]", "score = lse_partial[split, head % lse_partial.shape[1], b % lse_partial.shape[2]]"),
    ("neighbouring columns to one thread", [(ACC, ACC), ("                d = tx + i * 32\n                if d < HEAD_DIM:\n                    acc", "                d = tx * NUM_COLS + i\n                if d < HEAD_DIM:\n                    acc"), ("            d = tx + i * 32\n            if d < HEAD_DIM:\n                out", "            d = tx * NUM_COLS + i\n            if d < HEAD_DIM:\n                out")]),
    ("out_partial is loaded twice", ACC, "acc[i] = alpha * acc[i] + p * out_partial[split, b, head, d] + float32(0.0) * out_partial[split, b, head, d]"),
    ("out is summed in HBM", OUT, "out[b, head, d] = float32(0.0)\n                out[b, head, d] += acc[i] / l_i if l_i > 0 else float32(0.0)"),
    ("weights in a local array", "        m_i = float32(-math.inf)\n", "        w = cuda.local.array(2048, float32)\n        w[0] = float32(0.0)\n        m_i = float32(-math.inf)\n"),
    ("weights in shared memory", "        m_i = float32(-math.inf)\n", "        w = cuda.shared.array(2048, float32)\n        w[tx] = float32(0.0)\n        m_i = float32(-math.inf)\n"),
    ("a barrier", "        if tx == 0:\n", "        cuda.syncthreads()\n        if tx == 0:\n"),
    ("lse_partial is changed", "            m_i = m_new\n", "            m_i = m_new\n            if tx == 0:\n                lse_partial[split, b, head] = score - m_new\n"),
    ("float64", "l_i = float32(0.0)", "l_i = 0.0"),
]

RIGHT = [
    ("the statement's formula, the lse first", [(BODY, TWO_LOOPS), ("        acc = cuda.local.array(NUM_COLS, float32)\n", "")]),
    ("other names", [("def kernel(out_partial, lse_partial, out, lse):", "def kernel(O_part, L_part, O, L):"), (SPLITS, "for split in range(L_part.shape[0]):"),
        ("score = lse_partial[split, b, head]", "score = L_part[split, b, head]"), (ACC, ACC.replace("out_partial", "O_part")), ("out[b, head, d] = acc", "O[b, head, d] = acc"), ("lse[b, head] = m_i", "L[b, head] = m_i")]),
    ("empty splits are passed over", "            m_new = max(m_i, score)\n", "            if score == -math.inf:\n                for i in range(NUM_COLS):\n                    acc[i] = acc[i]\n                continue\n            m_new = max(m_i, score)\n"),
]

EQUIVALENT = [
    ("if tx == 0: -> if tx == 1:", "all threads of a warp have m_i and l_i"),
    ("lse[b, head] = m_i + math.log(l_i) if l_i > 0 else float32(-math.inf) -> lse[b, head] = m_i + math.log(l_i) if l_i >= 0 else float32(-math.inf)", "log(0) is -inf"),
]
