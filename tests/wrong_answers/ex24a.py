"""ex24a: both matrices absorbed."""

# fmt: off
ABSORB = 'np.concatenate([np.einsum("hd,hcd->hc", q_nope, w_uk), q_rope], axis=1)'
SCALE = "1 / math.sqrt(head_dim + rope_dim)"
EXPAND = 'np.einsum("hc,hcd->hd", out_latent, w_uv)'

WRONG = [
    ("the rotated part first", ABSORB, 'np.concatenate([q_rope, np.einsum("hd,hcd->hc", q_nope, w_uk)], axis=1)'),
    ("the matrix of head 0", ABSORB, "np.concatenate([q_nope @ w_uk[0].T, q_rope], axis=1)"),
    ("the rotated part twice", ABSORB, ABSORB.replace("q_rope]", "2 * q_rope]")),
    ("the rotated part is 0", ABSORB, ABSORB.replace("q_rope]", "0 * q_rope]")),
    ("without the rotated part", ABSORB, 'np.einsum("hd,hcd->hc", q_nope, w_uk)'),
    ("scaled in absorb too", ABSORB, ABSORB + " / math.sqrt(q_nope.shape[1] + q_rope.shape[1])"),
    ("one query for all heads", ABSORB, ABSORB.replace("q_nope, w", "q_nope[:1].repeat(len(q_nope), 0), w")),
    ("the scale of the row", SCALE, "1 / math.sqrt(latent_dim + rope_dim)"),
    ("the scale of the latent", SCALE, "1 / math.sqrt(latent_dim)"),
    ("DeepSeek's scale for all", SCALE, "192 ** -0.5"),
    ("values by the matrix of head 0", EXPAND, "out_latent @ w_uv[0]"),
    ("heads added up", EXPAND, 'np.einsum("hc,hcd->d", out_latent, w_uv) + np.zeros_like(w_uv[:, 0])'),
    ("the first columns of the latent", EXPAND, "out_latent[:, : w_uv.shape[2]]"),
    ("in float64", EXPAND, 'np.einsum("hc,hcd->hd", out_latent.astype(np.float64), w_uv)'),
    ("queries in float32", ABSORB, ABSORB + ".astype(np.float32)"),
    ("the argument is changed", EXPAND, EXPAND + " + w_uv.__imul__(1.5)[0, 0, 0] * 0"),
    ("256 heads at most", ABSORB, 'np.concatenate([np.einsum("hd,hcd->hc", np.where(np.arange(len(q_nope))[:, None] < 256, q_nope, 0), w_uk), q_rope], axis=1)'),
    ("scale: no root", "return 1 / math.sqrt(head_dim + rope_dim)", "return 1 / (head_dim + rope_dim)"),
    ("scale: a sum of roots", "return 1 / math.sqrt(head_dim + rope_dim)", "return 1 / (math.sqrt(head_dim) + math.sqrt(rope_dim))"),
    ("absorb: the sum of the matrices", '"hd,hcd->hc", q_nope, w_uk', '"hd,gcd->hc", q_nope, w_uk'),
]

RIGHT = [
    ("matmul, and a row of zeros filled", [(ABSORB, "(np.hstack([(w_uk @ q_nope[:, :, None])[:, :, 0], q_rope]))"),
        (EXPAND, "(out_latent[:, None] @ w_uv)[:, 0]"), (SCALE, "(head_dim + rope_dim) ** -0.5")]),
    ("head by head", [(ABSORB, "np.stack([np.concatenate([w @ x, r]) for w, x, r in zip(w_uk, q_nope, q_rope)])"), (EXPAND, "np.stack([x @ w for x, w in zip(out_latent, w_uv)])")]),
]

EQUIVALENT = []
