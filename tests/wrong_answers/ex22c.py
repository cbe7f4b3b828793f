"""ex22c: the gradient of a tied embedding."""

PRODUCT = "dembedding = dlogits.T @ last"
ADD = "np.add.at(dembedding, tokens, dx0)"
RETURN = "return dembedding"

WRONG = [
    ("the last of equal tokens", ADD, "dembedding[tokens] += dx0"),
    ("set, not added", ADD, "dembedding[tokens] = dx0"),
    ("the logits alone", "    " + ADD + "\n", ""),
    ("the lookup alone", PRODUCT, "dembedding = np.zeros((dlogits.shape[1], last.shape[1]), np.float32)"),
    ("transposed", PRODUCT, "dembedding = (last.T @ dlogits)"),
    ("transposed, the right shape", PRODUCT, "dembedding = (last.T @ dlogits).reshape(dlogits.shape[1], -1)"),
    ("dx0 for last", PRODUCT, "dembedding = dlogits.T @ dx0"),
    ("last for dx0", ADD, "np.add.at(dembedding, tokens, last)"),
    ("subtracted", ADD, "np.subtract.at(dembedding, tokens, dx0)"),
    ("the mean of equal tokens", ADD, "n = np.bincount(tokens, minlength=len(dembedding))\n    np.add.at(dembedding, tokens, dx0 / n[tokens][:, None].astype(np.float32))"),
    ("the mean of both uses", RETURN, "return dembedding / 2"),
    ("the first token of each kind", ADD, "first = np.unique(tokens, return_index=True)[1]\n    dembedding[tokens[first]] += dx0[first]"),
    ("each row to the next token", ADD, "np.add.at(dembedding, np.roll(tokens, 1), dx0)"),
    ("into dx0", ADD, "dx0 += 0.5\n    np.add.at(dembedding, tokens, dx0)"),
    ("float64", PRODUCT, "dembedding = dlogits.T.astype(np.float64) @ last"),
    ("nothing returned", "    " + RETURN + "\n", ""),
    ("256 tokens at most", ADD, "np.add.at(dembedding, tokens[:256], dx0[:256])"),
    ("64 columns at most", ADD, "np.add.at(dembedding[:, :64], tokens, dx0[:, :64])"),
]  # fmt: skip

RIGHT = [
    ("one-hot", ADD, "dembedding += (tokens[:, None] == np.arange(len(dembedding))).astype(np.float32).T @ dx0"),
    ("a loop over tokens", ADD, "for token, row in zip(tokens, dx0):\n        dembedding[token] += row"),
]  # fmt: skip

EQUIVALENT = []
