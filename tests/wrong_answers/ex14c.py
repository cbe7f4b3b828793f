"""ex14c: whose scale?"""

# fmt: off
K = "s = q8 @ k8[tile].T * (q_scale * k_scales[t] / np.sqrt(head_dim))"
ACC = "acc = alpha * acc + round_e4m3(P_SCALE * p) @ v8[tile] / P_SCALE * v_scales[t]"
END = "return acc / l_i"
OLD_ACC = ACC.replace(" * v_scales[t]", "")

WRONG = [
    ("as published", [(K, K.replace("[t]", "[0]")), (ACC, OLD_ACC), (END, "return acc * v_scales[-1] / l_i")]),
    ("K mended alone", [(ACC, OLD_ACC), (END, "return acc * v_scales[-1] / l_i")]),
    ("V mended alone", K, K.replace("[t]", "[0]")),
    ("K's last scale", K, K.replace("[t]", "[-1]")),
    ("V's scale of K", ACC, ACC.replace("v_scales", "k_scales")),
    ("K's scale of V", K, K.replace("k_scales", "v_scales")),
    ("V's scale twice", END, "return acc * v_scales[-1] / l_i"),
    ("the mean scale", [(ACC, OLD_ACC), (END, "return acc * v_scales.mean() / l_i")]),
    ("the first scale of V", [(ACC, OLD_ACC), (END, "return acc * v_scales[0] / l_i")]),
    ("the old sum has the new scale", ACC, "acc = (alpha * acc + round_e4m3(P_SCALE * p) @ v8[tile] / P_SCALE) * v_scales[t]"),
    ("the scale is in P before it is rounded", ACC, "acc = alpha * acc + round_e4m3(P_SCALE * p * v_scales[t]) @ v8[tile] / P_SCALE"),
    ("the next tile's", ACC, ACC.replace("v_scales[t]", "v_scales[t - 1]")),
    ("0 for the first maximum", K, "m_i = m_i if t else np.zeros((rows, 1))\n        " + K),
    ("-1e4 for the first maximum", K, "m_i = m_i if t else np.full((rows, 1), -1e4)\n        " + K),
    ("128 columns at most", K, K.replace("q8 @ k8[tile].T", "q8[:, :128] @ k8[tile, :128].T")),
]

RIGHT = [
    ("V scaled before", ACC, ACC.replace("v8[tile] / P_SCALE * v_scales[t]", "(v8[tile] * v_scales[t]) / P_SCALE")),
    ("acc over the newest scale, as the kernel", [(ACC, "acc = alpha * acc * (v_scales[t - 1] / v_scales[t] if t else 1.0) + round_e4m3(P_SCALE * p) @ v8[tile] / P_SCALE"), (END, "return acc * v_scales[-1] / l_i")]),
]

EQUIVALENT = []
