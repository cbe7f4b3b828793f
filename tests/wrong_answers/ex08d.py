"""ex08d: gradients of attention with dropout."""

from tests.wrong_answers import body_changes

# fmt: off
BODY, changed = body_changes("ex08d_dropout_gradients")

DS, DP = "ds = p * (dp - delta)", "dp = (dout @ v.T) * z"
DELTA = "delta = np.sum(dout * (pz @ v), axis=1, keepdims=True)"
DV = "dv = pz.T @ dout"

WRONG = [
    ("as published", *changed((DS, "ds = pz * (dp - delta)"))),
    ("it calls published_bwd", *changed((BODY, "    return published_bwd(dout, q, k, v, z, softmax_scale)\n"))),
    ("Z in P alone", *changed((DP, "dp = dout @ v.T"), (DS, "ds = pz * (dp - delta)"))),
    ("no dropout at all in dS", *changed((DP, "dp = dout @ v.T"), (DELTA, DELTA.replace("pz", "p")))),
    ("delta without Z", *changed((DELTA, DELTA.replace("pz", "p")))),
    ("Z after the bracket", *changed((DP, "dp = dout @ v.T"), (DS, "ds = p * (dp - delta) * z"))),
    ("dv without Z", *changed((DV, "dv = p.T @ dout"))),
    ("the scale twice", *changed((DS, "ds = softmax_scale * p * (dp - delta)"))),
    ("z is written", *changed((DP, "z *= 1 - 1e-12\n    dp = (dout @ v.T) * z"))),
    ("published_bwd is mended instead", [("ds = pz * (dp - delta)", "ds = p * (dp - delta) + 0 * pz")]),
    ("64 keys at most", *changed((DS, DS + "\n    ds[:, 64:] = 0"))),
    ("64 queries at most", *changed((DS, DS + "\n    ds[64:] = 0"))),
    ("64 columns at most", *changed((DV, DV + "\n    dv[:, 64:] = 0"))),
]

RIGHT = [
    ("delta as a sum over the keys", *changed(("    " + DELTA + "\n", ""), (DP, DP + "\n    delta = np.sum(p * dp, axis=1, keepdims=True)"))),
    ("einsum and other names", *changed((BODY, '''    logits = softmax_scale * np.einsum("md,nd->mn", q, k)
    share = np.exp(logits - logits.max(axis=1)[:, None])
    share = share / share.sum(axis=1)[:, None]
    kept = share * z
    g = np.einsum("md,nd->mn", dout, v) * z
    mean = np.einsum("mn,mn->m", share, g)
    gs = softmax_scale * share * (g - mean[:, None])
    return gs @ k, gs.T @ q, kept.T @ dout
'''))),
]

EQUIVALENT = []
