"""ex14c: whose scale?"""

# make_broken shares lines with the solution: these stand only in the solution.
# fmt: off
K = "s[c] = dot * (scale * k_scales[t])"
ACC = "acc[d] += p8 * v8[n_start + c, d] * v_scales[t]"
END = "out[m, d] = acc[d] / l_i"
TILES = "for t in range(k8.shape[0] // BLOCK_N):\n            n_start = t * BLOCK_N\n            m_new = m_i"
OLD_ACC = "acc[d] += p8 * v8[n_start + c, d] * float32(1.0)"
LAST = "v_scales[v_scales.shape[0] - 1]"

WRONG = [
    ("as it was", [(K, K.replace("[t]", "[0 * t]")), (ACC, OLD_ACC), (END, f"out[m, d] = acc[d] * {LAST} / l_i")]),
    ("K mended alone", [(ACC, OLD_ACC), (END, f"out[m, d] = acc[d] * {LAST} / l_i")]),
    ("V mended alone", K, K.replace("[t]", "[0 * t]")),
    ("K's last scale", K, K.replace("[t]", "[k_scales.shape[0] - 1]")),
    ("V's scale of K", ACC, ACC.replace("v_scales", "k_scales")),
    ("K's scale of V", K, K.replace("k_scales", "v_scales")),
    ("V's scale twice", END, f"out[m, d] = acc[d] * {LAST} / l_i"),
    ("the first scale of V", [(ACC, OLD_ACC), (END, "out[m, d] = acc[d] * v_scales[0] / l_i")]),
    ("no scale of V", ACC, OLD_ACC),
    ("the scale of the key, not of the tile", ACC, ACC.replace("[t]", "[c % v_scales.shape[0]]")),
    ("the old sum has the new scale", ACC, "acc[d] = (acc[d] + p8 * v8[n_start + c, d]) * v_scales[t]"),
    ("the scale is in P before it is rounded", ACC, "acc[d] += round_e4m3(float32(P_SCALE) * p * v_scales[t]) / float32(P_SCALE) * v8[n_start + c, d]"),
    ("the tile before", ACC, ACC.replace("v_scales[t]", "v_scales[max(t - 1, 0)]")),
    ("0 for the first maximum", TILES, TILES.replace("m_new = m_i", "m_new = m_i if t > 0 else float32(0.0)")),
    ("-1e4 for the first maximum", TILES, TILES.replace("m_new = m_i", "m_new = max(m_i, float32(-1e4))")),
    ("P is not rounded", ACC, ACC.replace("p8", "p")),
    ("V's scale in l", ACC, ACC + "\n                l_i *= v_scales[t] if v_scales[t] > 0 else float32(1.0)"),
    ("8 tiles at most", TILES, TILES.replace("k8.shape[0] // BLOCK_N", "min(8, k8.shape[0] // BLOCK_N)")),
    ("the last tile is left out", TILES, TILES.replace("range(k8", "range(-1 + k8")),
    ("out is summed in HBM", END, "out[m, d] = float32(0.0)\n            out[m, d] += acc[d] / l_i"),
    ("the scale is stored in v8", ACC, "v8[n_start + c, d] *= float32(1.0)\n                    " + ACC),
]

RIGHT = [
    ("V scaled before", ACC, "acc[d] += p8 * (v8[n_start + c, d] * v_scales[t])"),
    ("the scale of the tile in a variable", [(TILES, TILES.replace("m_new = m_i", "of_k, of_v = scale * k_scales[t], v_scales[t]\n            m_new = m_i")), (K, "s[c] = dot * of_k"), (ACC, "acc[d] += of_v * p8 * v8[n_start + c, d]")]),
]

EQUIVALENT = []
