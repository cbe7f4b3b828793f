"""ex20d: the loss of Hedgehog's distillation, and its gradient."""

# fmt: off
MAP = "return np.concatenate([np.exp(xw), np.exp(-xw)], axis=1)"
A = "a = np.tril(phi_q @ phi_k.T)"
ROWS = "return a / a.sum(axis=1, keepdims=True)"
LOSS = "return -np.sum(p[sees] * np.log(weights[sees])) / len(q)"
DA = "da = np.tril((attention_weights(phi_q, phi_k) - p) / (phi_q @ phi_k.T)) / len(q)"
DXW_K = "dxw_k = (da.T @ phi_q) * phi_k"
DW_Q = "dw_q = q.T @ (dxw_q[:, :num_features] - dxw_q[:, num_features:])"
DW_K = "dw_k = k.T @ (dxw_k[:, :num_features] - dxw_k[:, num_features:])"
BODY = '''    da = np.tril((attention_weights(phi_q, phi_k) - p) / (phi_q @ phi_k.T)) / len(q)
    dxw_q = (da @ phi_k) * phi_q
    dxw_k = (da.T @ phi_q) * phi_k
    dw_q = q.T @ (dxw_q[:, :num_features] - dxw_q[:, num_features:])
    dw_k = k.T @ (dxw_k[:, :num_features] - dxw_k[:, num_features:])
    return dw_q, dw_k
'''
DIFFERENCES = '''    pairs = []
    for which in (0, 1):
        w = (w_q, w_k)[which]
        dw = np.zeros_like(w)
        for i in np.ndindex(w.shape):
            ends = []
            for step in (1e-5, -1e-5):
                moved = [w_q.copy(), w_k.copy()]
                moved[which][i] += step
                ends.append(loss(q, k, *moved, p))
            dw[i] = (ends[0] - ends[1]) / 2e-5
        pairs.append(dw)
    return tuple(pairs)
'''
BY_PAIRS = '''    dw_q, dw_k = np.zeros_like(w_q), np.zeros_like(w_k)
    F = w_q.shape[1]
    phi_q, phi_k = feature_map(q, w_q), feature_map(k, w_k)
    A = attention_weights(phi_q, phi_k)
    for m in range(len(q)):
        for n in range(m + 1):
            da = (A[m, n] - p[m, n]) / (phi_q[m] @ phi_k[n]) / len(q)
            both = da * phi_q[m] * phi_k[n]
            dw_q += np.outer(q[m], both[:F] - both[F:])
            dw_k += np.outer(k[n], both[:F] - both[F:])
    return dw_q, dw_k
'''
BY_QUERIES = '''    dw_q, dw_k = np.zeros_like(w_q), np.zeros_like(w_k)
    F = w_q.shape[1]
    phi_q, phi_k = feature_map(q, w_q), feature_map(k, w_k)
    A = attention_weights(phi_q, phi_k)
    for m in range(len(q)):
        da = (A[m, : m + 1] - p[m, : m + 1]) / (phi_k[: m + 1] @ phi_q[m]) / len(q)
        both = da[:, None] * phi_q[m] * phi_k[: m + 1]
        both = both[:, :F] - both[:, F:]
        dw_q += np.outer(q[m], both.sum(axis=0))
        dw_k += k[: m + 1].T @ both
    return dw_q, dw_k
'''
BY_FEATURES = '''    F = w_q.shape[1]
    phi_q, phi_k = feature_map(q, w_q), feature_map(k, w_k)
    da = np.tril((attention_weights(phi_q, phi_k) - p) / (phi_q @ phi_k.T)) / len(q)
    dw_q, dw_k = np.empty_like(w_q), np.empty_like(w_k)
    for f in range(F):
        rows, columns = (da @ phi_k[:, f :: F]) * phi_q[:, f :: F], (da.T @ phi_q[:, f :: F]) * phi_k[:, f :: F]
        dw_q[:, f], dw_k[:, f] = q.T @ (rows[:, 0] - rows[:, 1]), k.T @ (columns[:, 0] - columns[:, 1])
    return dw_q, dw_k
'''

WRONG = [
    ("one half of the features", MAP, "return np.concatenate([np.exp(xw), np.exp(xw)], axis=1)"),
    ("features below each other", MAP, MAP.replace("axis=1", "axis=0")),
    ("features held below e^30", MAP, "xw = np.clip(xw, -30, 30)\n    " + MAP),
    ("strict mask", A, "a = np.tril(phi_q @ phi_k.T, -1) + 1e-300"),
    ("no mask", A, "a = phi_q @ phi_k.T"),
    ("columns sum to 1", ROWS, ROWS.replace("axis=1", "axis=0")),
    ("softmax of the products", ROWS, "a = np.tril(np.exp(a - a.max()))\n    " + ROWS),
    ("the sum over the queries", LOSS, LOSS.replace(" / len(q)", "")),
    ("the mean over the pairs", LOSS, LOSS.replace("len(q)", "sees.sum()")),
    ("the sign of the loss", LOSS, LOSS.replace("-np", "np")),
    ("log2", LOSS, LOSS.replace("np.log", "np.log2")),
    ("an array of one number", LOSS, LOSS.replace("return ", "return np.array([") + "])"),
    ("log of all pairs", [("    sees = np.tri(len(q), dtype=bool)  # log 0, beyond the mask, is not looked at\n", ""), (LOSS, LOSS.replace("p[sees]", "p").replace("weights[sees]", "weights"))]),
    ("the divergence, not the cross-entropy", LOSS, LOSS + " + np.sum(p[p > 0] * np.log(p[p > 0])) / len(q)"),
    ("keys not transposed", DXW_K, "dxw_k = (da @ phi_q) * phi_k"),
    ("queries for keys", DW_K, DW_K.replace("k.T", "q.T")),
    ("finite differences", BODY, DIFFERENCES),
    ("a loop over pairs", BODY, BY_PAIRS),
    ("the weights of keys first", "return dw_q, dw_k", "return dw_k, dw_q"),
    ("w_q is moved", "return dw_q, dw_k", "w_q -= 0.0001 * dw_q\n    return dw_q, dw_k"),
    ("phi is divided in place", ROWS, "phi_q /= a.sum(axis=1, keepdims=True)\n    return np.tril(phi_q @ phi_k.T)"),
    ("a loop over queries", BODY, BY_QUERIES),
    ("a loop over keys in a comprehension", DXW_K, "dxw_k = np.array([da[:, n] @ phi_q for n in range(len(k))]) * phi_k"),
    ("256 queries at most", DA, DA + "\n    da[256:] = 0"),
    ("64 rows of w at most", DW_Q, DW_Q + "\n    dw_q[64:] = 0"),
]

RIGHT = [
    ("no mask: A and p are 0 beyond it", DA, DA.replace("np.tril", "")),
    ("einsum, and a gradient with 2 w", [(DW_Q, "both = dxw_q.reshape(len(q), 2, num_features)\n    dw_q = np.einsum('nd,nf->df', q, both[:, 0] - both[:, 1])"), (A, "a = np.where(np.tri(len(phi_q)), np.einsum('mf,nf->mn', phi_q, phi_k), 0)")]),
    ("the loss as a mean of rows", LOSS, "log = np.log(np.where(sees, weights, 1))\n    return float(-(np.where(sees, p, 0) * log).sum(axis=1).mean())"),
    ("a loop over features, which is none over elements", BODY, BY_FEATURES),
]

EQUIVALENT = []
