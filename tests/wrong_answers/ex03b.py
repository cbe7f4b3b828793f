"""Wrong and right answers of ex03b: see tests/wrong_answers/__init__.py."""

# broken_kernel shares the other lines.
NEW = "            m_new = max(m_i, s)\n"
STEP = "            l_i = l_i * math.exp(m_i - m_new) + math.exp(s - m_new)\n"
OLD = "            m_i = m_new\n"
MERGE = "            l_i = l_i * math.exp(m_i - m_new) + l_b * math.exp(m_b - m_new)\n"
TAIL = (
    MERGE
    + """        else:
            l_i += l_b  # one of the two is empty: its l is 0
        m_i = m_new
        offset //= 2

    if lane == 0:
        m[row] = m_i
        l[row] = l_i"""
)
LOOP = NEW + STEP + OLD
SHUFFLES = (
    LOOP
    + """
    offset = 16
    while offset > 0:
        m_b = cuda.shfl_xor_sync(FULL_MASK, m_i, offset)
        l_b = cuda.shfl_xor_sync(FULL_MASK, l_i, offset)
        m_new = max(m_i, m_b)
        if min(m_i, m_b) > -math.inf:
"""
)
BROKEN_STEP = "            m_i = max(m_i, s)\n            l_i += math.exp(s - m_i)\n"
BROKEN_MERGE = "            l_i = l_i * math.exp(m_new - m_i) + l_b * math.exp(m_new - m_b)\n"

WRONG = [
    ("as it was", [(LOOP, BROKEN_STEP), (MERGE, BROKEN_MERGE)]),
    ("the loop still forgets", LOOP, BROKEN_STEP),
    ("the merge is still upside down", MERGE, BROKEN_MERGE),
    ("the old maximum is overwritten first", LOOP, NEW + OLD + STEP),
    ("the merge is not rescaled", MERGE, "            l_i = l_i + l_b\n"),
    ("the merge swaps the factors", MERGE, "            l_i = l_i * math.exp(m_b - m_new) + l_b * math.exp(m_i - m_new)\n"),
    ("the new score is rescaled as well", STEP, "            l_i = (l_i + math.exp(s - m_new)) * math.exp(m_i - m_new)\n"),
    ("the maximum is not kept", OLD, ""),
    ("an exponent cut off at -10", STEP, STEP.replace("m_i - m_new", "max(m_i - m_new, float32(-10))")),
    ("no guard in the merge", SHUFFLES, SHUFFLES.replace("min(m_i, m_b) > -math.inf", "True")),
    ("offsets from 8", SHUFFLES, SHUFFLES.replace("16", "8")),
    ("a shuffle under an if", SHUFFLES, SHUFFLES.replace(
        "        l_b = cuda.shfl_xor_sync(FULL_MASK, l_i, offset)\n",
        "        l_b = l_i\n        if lane < 16:\n"
        "            l_b = cuda.shfl_xor_sync(FULL_MASK, l_i, offset)\n")),
    ("all lanes store", TAIL, TAIL.replace("lane == 0", "lane >= 0")),
    ("l divided by the columns", TAIL, TAIL.replace("l[row] = l_i", "l[row] = l_i / float32(x.shape[1])")),
    ("float64", STEP, STEP.replace("l_i * ", "1.0 * l_i * ")),
    ("the row twice", STEP, STEP.replace("math.exp(s - m_new)", "math.exp(x[row, n] - m_new)")),
    ("4096 columns at most", "    for n in range(lane, x.shape[1], 32):\n        s = x[row, n]\n"
     "        if s > -math.inf:  # a masked score adds nothing\n" + LOOP,
     "    for n in range(lane, min(x.shape[1], 4096), 32):\n        s = x[row, n]\n"
     "        if s > -math.inf:  # a masked score adds nothing\n" + LOOP),
    ("a score of 0 is masked", LOOP, "            if s == 0:\n                continue\n" + LOOP),
]  # fmt: skip

RIGHT = [
    ("by the case, alpha first, lane 31 stores", [
        (LOOP, "            if s > m_i:\n                l_i = l_i * math.exp(m_i - s) + float32(1)\n"
               "                m_i = s\n            else:\n                l_i += math.exp(s - m_i)\n"),
        (TAIL, TAIL.replace("lane == 0", "lane == 31"))]),
    ("alpha in a variable, divided where it was multiplied", [
        (STEP, "            alpha = math.exp(m_i - m_new)\n"
               "            l_i = l_i * alpha + math.exp(s - m_new)\n"),
        (MERGE, "            l_i = l_i / math.exp(m_new - m_i) + l_b / math.exp(m_new - m_b)\n")]),
    ("merged in another order of the offsets", [(SHUFFLES, SHUFFLES.replace("offset = 16", "offset = 1").replace("> 0:", "< 32:", 1)), (TAIL, TAIL.replace("offset //= 2", "offset *= 2"))]),
]  # fmt: skip

EQUIVALENT = [
    ("offset = 16 -> offset = 17", "distances 17, 8, 4, 2, 1 combine to every distance up to 31 as well: each lane meets all"),
    ("if lane == 0: -> if lane == 1:", "every lane holds the same pair: any may store it"),
    ("if min(m_i, m_b) > -math.inf: -> if max(m_i, m_b) > -math.inf:", "if one side is empty its factor is exp(-inf) = 0, and its l is 0"),
]  # fmt: skip
