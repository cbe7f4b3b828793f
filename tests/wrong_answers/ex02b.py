"""Wrong and right answers of ex02b: see tests/wrong_answers/__init__.py."""

FIRST = "    stride = NUM_THREADS // 2\n"
LOOP = "    while stride > 0:\n"
IF = "        if tid < stride:\n"
STEP = "            partial[tid] = max(partial[tid], partial[tid + stride])\n"
BARRIER = "        cuda.syncthreads()  # this level is complete before the next one reads it\n"
HALF = "        stride //= 2\n"
TREE = FIRST + LOOP + IF + STEP + BARRIER + HALF

WRONG = [
    ("a quarter at first", FIRST, "    stride = NUM_THREADS // 4\n"),
    ("a sum", STEP, "            partial[tid] += partial[tid + stride]\n"),
    ("never negative", STEP, STEP.replace("max(", "max(float32(0), ")),
    ("never below -1e9", STEP, STEP.replace("max(", "max(float32(-1e9), ")),
    ("the neighbour's number", STEP, STEP.replace("tid + stride", "tid + 1")),
    ("the barrier under the if", BARRIER, "    " + BARRIER),
    ("a warp barrier", BARRIER, BARRIER.replace("syncthreads", "syncwarp")),
    ("no barrier in the last warp", BARRIER, "        if stride > 16:\n            cuda.syncthreads()\n"),
    ("no barrier after the last level", BARRIER, "        if stride > 1:\n            cuda.syncthreads()\n"),
    ("two barriers", BARRIER, BARRIER + BARRIER),
    ("everybody works", IF, "        if tid + stride < NUM_THREADS:\n"),
    ("one thread too few", IF, "        if tid < stride - 1:\n"),
    ("divided by 4", HALF, "        stride //= 4\n"),
    ("every second thread", TREE, "    stride = 1\n    while stride < NUM_THREADS:\n        if tid % (2 * stride) == 0:\n" + STEP + BARRIER + "        stride *= 2\n"),
    ("neighbouring threads, distant numbers: conflicts", TREE,
     "    stride = 1\n    while stride < NUM_THREADS:\n        i = 2 * stride * tid\n"
     "        if i < NUM_THREADS:\n            partial[i] = max(partial[i], partial[i + stride])\n"
     + BARRIER + "        stride *= 2\n"),
    ("thread 0 alone", TREE, "    if tid == 0:\n        for i in range(1, NUM_THREADS):\n            partial[0] = max(partial[0], partial[i])\n    cuda.syncthreads()\n"),
    ("thread 0 alone, in a register", TREE,
     "    if tid == 0:\n        m_i = partial[0]\n        for i in range(1, NUM_THREADS):\n"
     "            m_i = max(m_i, partial[i])\n        partial[0] = m_i\n    cuda.syncthreads()\n"),
    ("a second array", TREE, "    other = cuda.shared.array(NUM_THREADS, float32)\n"
     "    other[tid] = partial[tid]\n    cuda.syncthreads()\n"
     + TREE.replace("partial[tid + stride]", "other[tid + stride]")),
    ("never below -1e4", STEP, STEP.replace("max(", "max(float32(-1e4), ")),
    ("the first warp alone", IF, "        if tid < min(stride, 32):\n"),
    ("never below -1e30", STEP, STEP.replace("max(", "max(float32(-1e30), ")),
    ("8 rows at most", FIRST, "    if cuda.blockIdx.x >= 8:\n        return\n" + FIRST),
    ("0 counts as empty", STEP, "            if partial[tid] == 0 or partial[tid] < partial[tid + stride]:\n                partial[tid] = partial[tid + stride]\n"),
]  # fmt: skip

RIGHT = [
    ("its own number in a register", TREE,
     "    m_i = partial[tid] if tid < NUM_THREADS // 2 else float32(0)\n" + FIRST + LOOP + IF
     + "            m_i = max(m_i, partial[tid + stride])\n            partial[tid] = m_i\n"
     + BARRIER + HALF),
    ("four at a time", TREE,
     "    width = 32\n    while width > 0:\n        if tid < width:\n            m_i = partial[tid]\n"
     "            i = tid + width\n            while i < 4 * width:\n"
     "                m_i = max(m_i, partial[i])\n                i += width\n"
     "            partial[tid] = m_i\n        cuda.syncthreads()\n        width //= 4\n"
     "    if tid == 0:\n        partial[0] = max(partial[0], partial[1])\n    cuda.syncthreads()\n"),
    ("a loop over the levels, an if in place of max", TREE,
     "    for level in range(7):\n        half = 64 >> level\n        if tid < half:\n"
     "            b = partial[tid + half]\n            if b > partial[tid]:\n"
     "                partial[tid] = b\n        cuda.syncthreads()\n"),
]  # fmt: skip

EQUIVALENT = []
