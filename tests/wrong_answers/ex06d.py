"""Wrong and right answers of ex06d: see tests/wrong_answers/__init__.py."""

TILES = (
    "        s_tile = cuda.shared.array((2, BLOCK_M, BLOCK_N), float32)  # of this tile and of the "
    "next\n"
)
NOW = "            now = s_tile[m_start // BLOCK_M % 2]\n"
STORE = "            now[ty, tx] = s[m, tx] if m < s.shape[0] else float32(0.0)\n"
BARRIER = "            cuda.syncthreads()  # complete: safe to read; nobody reads the other one any more\n"
TOP = "            m_row = now[ty, 0]\n"
SCAN = "                m_row = max(m_row, now[ty, c])\n"
SUM = "                l_row += math.exp(now[ty, c] - m_row)\n"
ACC = "                        acc += math.exp(now[ty, c] - m_row) * v_tile[c, d]\n"
OUT = ACC + "                    out[m, d] = acc / l_row\n"

WRONG = [
    ("a barrier of the warp alone", BARRIER, "            cuda.syncwarp()\n"),
    ("one tile of scores", NOW, "            now = s_tile[0]\n"),
    ("a barrier for every other tile", BARRIER, "            if m_start // BLOCK_M % 2 == 0:\n                cuda.syncthreads()\n"),
    ("still two barriers", OUT, OUT + "            cuda.syncthreads()\n"),
    ("the whole of s in shared memory", TILES, TILES.replace("(2,", "(64,")),
    ("scores from HBM", [(SCAN, "                m_row = max(m_row, s[min(m, s.shape[0] - 1), c])\n")]),
    ("no maximum", [(SUM, SUM.replace(" - m_row", "")), (ACC, ACC.replace(" - m_row", ""))]),
    ("rows that do not exist are stored", SUM + "            if m < s.shape[0]:\n", SUM + "            if True:\n"),
    ("float64", "            l_row = float32(0.0)\n            for c in range(BLOCK_N):\n"
     "                l_row += math", "            l_row = 0.0\n"
     "            for c in range(BLOCK_N):\n                l_row += math"),
    ("64 columns at most", OUT, OUT.replace("out[m, d]", "out[m, d % 64]")),
    ("256 rows at most", STORE, STORE.replace("s.shape[0]", "min(s.shape[0], 256)")),
    ("a maximum of at least -1e4", TOP, TOP.replace("now[ty, 0]", "max(now[ty, 0], float32(-1e4))")),
    ("a maximum of at least 0", TOP, TOP.replace("now[ty, 0]", "max(now[ty, 0], float32(0.0))")),
]  # fmt: skip

RIGHT = [
    ("two arrays by hand, a local maximum by if", """
import functools
import math

from numba import cuda, float32


@functools.cache
def make_two_barriers(HEAD_DIM, BLOCK_M, BLOCK_N):
    @cuda.jit
    def kernel(s, v, out):
        v_tile = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        s_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        p_tile = cuda.shared.array((BLOCK_M, BLOCK_N), float32)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        for row in range(ty, BLOCK_N, BLOCK_M):
            for d in range(tx, HEAD_DIM, BLOCK_N):
                v_tile[row, d] = v[row, d]
        for m_start in range(0, s.shape[0], BLOCK_M):
            m = m_start + ty
            s_tile[ty, tx] = s[m, tx] if m < s.shape[0] else float32(0.0)
            cuda.syncthreads()
            m_row = s_tile[ty, 0]
            for c in range(1, BLOCK_N):
                m_row = max(m_row, s_tile[ty, c])
            p_tile[ty, tx] = math.exp(s_tile[ty, tx] - m_row)
            cuda.syncthreads()
            l_row = float32(0.0)
            for c in range(BLOCK_N):
                l_row += p_tile[ty, c]
            if m < s.shape[0]:
                for d in range(tx, HEAD_DIM, BLOCK_N):
                    acc = float32(0.0)
                    for c in range(BLOCK_N):
                        acc += p_tile[ty, c] * v_tile[c, d]
                    out[m, d] = acc / l_row

    return kernel


@functools.cache
def make_kernel(HEAD_DIM, BLOCK_M, BLOCK_N):
    PAIR = 2 * BLOCK_M

    @cuda.jit
    def kernel(scores, values, result):
        mine = cuda.shared.array((BLOCK_N, HEAD_DIM), float32)
        pair = cuda.shared.array((PAIR, BLOCK_N), float32)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        for i in range(y * BLOCK_N + x, BLOCK_N * HEAD_DIM, BLOCK_M * BLOCK_N):
            mine[i // HEAD_DIM, i % HEAD_DIM] = values[i // HEAD_DIM, i % HEAD_DIM]
        row, place = y, y
        while row - y < scores.shape[0]:
            if row < scores.shape[0]:
                pair[place, x] = scores[row, x]
            cuda.syncthreads()
            if row < scores.shape[0]:
                top = pair[place, 0]
                for c in range(BLOCK_N):
                    if pair[place, c] > top:
                        top = pair[place, c]
                for d in range(x, HEAD_DIM, BLOCK_N):
                    total, acc = float32(0), float32(0)
                    for c in range(BLOCK_N):
                        p = math.exp(pair[place, c] - top)
                        total += p
                        acc += p * mine[c, d]
                    result[row, d] = acc / total
            row += BLOCK_M
            place = y if place != y else y + BLOCK_M

    return kernel
"""),
    ("both sums in one loop, indices in place of a view", [
        (NOW, "            t = m_start // BLOCK_M % 2\n"),
        (STORE, STORE.replace("now[", "s_tile[t, ")),
        (TOP, TOP.replace("now[", "s_tile[t, ")),
        (SCAN, SCAN.replace("now[", "s_tile[t, ")),
        (SUM, SUM.replace("now[", "s_tile[t, ")),
        (ACC, ACC.replace("now[", "s_tile[t, ")),
    ]),
]  # fmt: skip

EQUIVALENT = []
