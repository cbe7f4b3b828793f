"""ex22a: cross-entropy and its gradient."""

SHIFT = "shifted = logits - logits.max(axis=1, keepdims=True)"
TOTAL = "total = exp.sum(axis=1, keepdims=True)"
LOSS = "loss = (np.log(total[:, 0]) - shifted[each]).mean()"
P = "dlogits = exp / total"
ONE = "    dlogits[each] -= 1\n"
RETURN = "return loss, dlogits / np.float32(len(targets))"

WRONG = [
    ("the maximum of all rows", SHIFT, "shifted = logits - logits.max()"),
    ("the mean for the maximum", SHIFT, SHIFT.replace(".max(", ".mean(")),
    ("the shift in place", SHIFT, "logits -= logits.max(axis=1, keepdims=True)\n    shifted = logits"),
    ("log of p", LOSS, "loss = -np.log(exp[each] / total[:, 0]).mean()"),
    ("log of p, cut off", LOSS, "loss = -np.log(np.maximum(exp[each] / total[:, 0], 1e-37)).mean()"),
    ("log of p plus a bit", LOSS, "loss = -np.log(exp[each] / total[:, 0] + 1e-9).mean()"),
    ("the sum over rows", LOSS, LOSS.replace(".mean()", ".sum()")),
    ("bits", LOSS, LOSS.replace("np.log(", "np.log2(")),
    ("a loss for each row", LOSS, LOSS.replace(".mean()", "")),
    ("without the log of the sum", LOSS, "loss = -shifted[each].mean()"),
    ("the mean over columns too", LOSS, "loss = (np.log(total) - shifted).mean()"),
    ("a product for the target", LOSS, "loss = (np.log(total[:, 0]) - shifted[:, targets[0]]).mean()"),
    ("softmax over rows", TOTAL, "total = exp.sum(axis=0, keepdims=True)"),
    ("the target's sign", ONE, "    dlogits[each] += 1\n"),
    ("every target in every row", ONE, "    dlogits[:, targets] -= 1\n"),
    ("y - p", RETURN, "return loss, -dlogits / np.float32(len(targets))"),
    ("divided by all numbers", RETURN, "return loss, dlogits / np.float32(logits.size)"),
    ("float64", RETURN, "return loss, dlogits.astype(np.float64) / len(targets)"),
    ("the loss alone", RETURN, "return loss"),
    ("p is not divided", P, "dlogits = exp.copy()"),
    ("a loop over rows", SHIFT, "shifted = np.array([row - row.max() for row in logits])"),
    ("a loop over rows by map", LOSS, "loss = np.float32(np.mean([np.log(t) - s[y] for t, s, y in zip(total[:, 0], shifted, targets)]))"),
    ("256 rows at most", ONE, "    dlogits[np.arange(min(256, len(targets))), targets[:256]] -= 1\n"),
    ("256 columns at most", TOTAL, TOTAL.replace("exp.sum", "exp[:, :256].sum")),
]  # fmt: skip

RIGHT = [
    ("lse first", [
        (SHIFT, "m = logits.max(axis=1)\n    lse = m + np.log(np.exp(logits - m[:, None]).sum(axis=1))"),
        ("    exp = np.exp(shifted)\n", ""),
        ("    " + TOTAL + "\n", ""),
        (LOSS, "loss = (lse - logits[each]).mean()"),
        (P, "dlogits = np.exp(logits - lse[:, None])"),
    ]),
    ("one-hot", [
        (LOSS, "y = np.eye(logits.shape[1], dtype=np.float32)[targets]\n    loss = ((np.log(total) - shifted) * y).sum() / np.float32(len(y))"),
        (P, "dlogits = exp / total - y"),
        (ONE, ""),
    ]),
]  # fmt: skip

EQUIVALENT = []
