"""ex07c: a budget of barriers."""

from tests.wrong_answers import body_changes

# fmt: off
BODY, changed = body_changes("ex07c_fewer_barriers")

FIRST = "            cuda.syncthreads()  # v_tile is complete, and with it s_tile\n"
WARP = "            cuda.syncwarp()  # the row of p_tile is complete, and nobody else reads it\n"
LAST = "            cuda.syncthreads()  # every thread is done with v_tile: safe to overwrite\n"
BARRIER = "            cuda.syncthreads()\n"
MAXIMUM = "            m_new = m_i\n"
SUM = "            l_i *= alpha\n"
V = "                    acc[i] += p_tile[ty, c] * v_tile[c, tx + i * 32]\n"

WRONG = [
    ("as it was given", *changed((FIRST, BARRIER + FIRST), (WARP, BARRIER + BARRIER), (SUM, BARRIER + SUM))),
    ("four barriers", *changed((WARP, BARRIER), (SUM, BARRIER + SUM))),
    ("a warp's barrier for v_tile", *changed((FIRST, "            cuda.syncwarp()\n"))),
    ("a warp's barrier before the next tile", *changed((LAST, "            cuda.syncwarp()\n"))),
    ("barriers in the wrong places", *changed((WARP, ""), (MAXIMUM, MAXIMUM + BARRIER))),
    ("a barrier that not all reach", *changed((LAST, "            if n_start + 32 < s.shape[1] or ty == 0:\n                cuda.syncthreads()\n"))),
    ("v from HBM, without a tile", *changed((V, V.replace("v_tile[c,", "v[n_start + c,")))),
    ("two tiles of v", *changed(
        ("v_tile = cuda.shared.array((32, HEAD_DIM), float32)", "v_tile = cuda.shared.array((64, HEAD_DIM), float32)"),
        ("v_tile[row, d] = v[", "v_tile[n_start % 64 + row, d] = v["), (V, V.replace("v_tile[c,", "v_tile[n_start % 64 + c,")), (LAST, ""))),
    ("l is that of the last tile", *changed((SUM, "            l_i = float32(0.0)\n"))),
    ("64 columns at most", *changed((V, V.replace("tx + i * 32]", "(tx + i * 32) % 64]")))),
    ("256 keys at most", *changed(("range(0, s.shape[1], 32)", "range(0, min(s.shape[1], 256), 32)"))),
    ("256 queries at most", *changed(("m = cuda.blockIdx.x * BLOCK_M + ty", "m = (cuda.blockIdx.x * BLOCK_M + ty) % 256"))),
    ("a first maximum of -1e4", *changed(("m_i = float32(-math.inf)", "m_i = float32(-1e4)"))),
]

RIGHT = [
    ("three barriers", *changed((WARP, BARRIER))),
    ("the barrier before the loads", *changed((LAST, ""), ("            for row in range(ty, 32, BLOCK_M):\n", BARRIER + "            for row in range(ty, 32, BLOCK_M):\n"))),
    ("s read in the warp before the first barrier", *changed((FIRST, "            cuda.syncwarp()\n"), (WARP, WARP.replace("syncwarp", "syncthreads")))),
]

EQUIVALENT = [
    ("for n_start in range(0, s.shape[1], 32): -> for n_start in range(0, s.shape[1] - 1, 32):", "lengths are multiples of 32"),
    ("if tx == 0: -> if tx == 1:", "all threads of a row hold the same m_i and l_i"),
    ("s_tile = cuda.shared.array((BLOCK_M, 32), float32) -> s_tile = cuda.shared.array((BLOCK_M, 33), float32)", "a padded column, which may be there"),
    ("p_tile = cuda.shared.array((BLOCK_M, 32), float32) -> p_tile = cuda.shared.array((BLOCK_M, 33), float32)", "a padded column, which may be there"),
]
