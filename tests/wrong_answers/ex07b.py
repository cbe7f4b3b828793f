"""ex07b: the online update of acc and l_i."""

# fmt: off
L = "l_i += p_tile[ty, c]  # l_i <- alpha l_i + rowsum(P)             line 9"
ACC = "acc[i] += p_tile[ty, c] * v_tile[c, tx + i * BLOCK_N]  # O <- alpha O + P V"
RESCALE = "            acc[i] *= alpha\n"
RETURN = "        return l_i\n"

WRONG = [
    ("l not rescaled", "        l_i *= alpha\n", ""),
    ("neither rescaled", [(RESCALE, ""), ("        l_i *= alpha\n", "")]),
    ("the inverse", RESCALE, "            acc[i] /= alpha if alpha > 0 else float32(1.0)\n"),
    ("rescaled once for each key", [(RESCALE, ""), (ACC, "acc[i] = acc[i] * alpha + p_tile[ty, c] * v_tile[c, tx + i * BLOCK_N]")]),
    ("rescaled after adding", [(RESCALE, ""), (RETURN, "        for i in range(NUM_COLS):\n            acc[i] *= alpha\n" + RETURN)]),
    ("FlashAttention-1's division in each tile", RETURN, "        for i in range(NUM_COLS):\n            acc[i] /= l_i\n" + RETURN),
    ("P of another row", ACC, "acc[i] += p_tile[(ty + 1) % BLOCK_M, c] * v_tile[c, tx + i * BLOCK_N]"),
    ("the thread's own p alone", ACC, "acc[i] += p_tile[ty, tx] * v_tile[c, tx + i * BLOCK_N]"),
    ("neighbouring columns", ACC, "acc[i] += p_tile[ty, c] * v_tile[c, tx * NUM_COLS + i]"),
    ("the sum is that of this tile", L, "l_i = l_i + p_tile[ty, c] if c else p_tile[ty, c]"),
    ("l_i is not returned", RETURN, "        return float32(1.0)\n"),
    ("a barrier", RETURN, "        cuda.syncthreads()\n" + RETURN),
    ("a tile of its own", "        l_i *= alpha\n", "        pv = cuda.shared.array((BLOCK_M, BLOCK_N), float32)\n        pv[ty, tx] = alpha\n        l_i *= alpha\n"),
    ("float64", ACC, "acc[i] += p_tile[ty, c] * v_tile[c, tx + i * BLOCK_N] * 1.0"),
    ("64 columns at most", ACC, ACC.replace("tx + i * BLOCK_N]", "(tx + i * BLOCK_N) % 64]")),
    ("alpha of 0 counts as 1", [("        l_i *= alpha\n", "        if alpha == 0:\n            alpha = float32(1.0)\n        l_i *= alpha\n")]),
]

RIGHT = [
    ("a sum first, added at the end", [
        (RESCALE, "            pv = float32(0.0)\n"), (ACC, "pv += p_tile[ty, c] * v_tile[c, tx + i * BLOCK_N]"),
        (RETURN, "            acc[i] = acc[i] * alpha + pv\n" + RETURN)]),
    ("one loop over the keys, other names", [
        ("def add_tile(acc, l_i, alpha, p_tile, v_tile):", "def add_tile(o, total, a, p, v_tile):"),
        ("        l_i *= alpha\n", "        total *= a\n"), (L, "total += p[ty, c]"), (RESCALE, "            o[i] = o[i] * a\n"),
        (ACC, "o[i] += p[ty, c] * v_tile[c, i * BLOCK_N + tx]"), (RETURN, "        return total\n")]),
]

EQUIVALENT = []
