"""Wrong and right answers of ex04b: see tests/wrong_answers/__init__.py."""

MASK = "    s = np.where(mask, s, big_neg)\n"
WEIGHTS = "    p = np.where(mask, np.exp(s - s.max(axis=1, keepdims=True)), 0)\n"
DIVIDED = "    return p / np.maximum(p.sum(axis=1, keepdims=True), 1) @ v"
PLAIN = "    p = np.exp(s - s.max(axis=1, keepdims=True))\n"
QUOTIENT = "    return p / p.sum(axis=1, keepdims=True) @ v\n"

WRONG = [
    ("as it was", [(MASK, "    s = np.where(mask, big_neg, s)\n"), (WEIGHTS, PLAIN), (DIVIDED, QUOTIENT)]),
    ("only the mask", [(WEIGHTS, PLAIN), (DIVIDED, QUOTIENT)]),
    ("only empty rows", [(MASK, "    s = np.where(mask, big_neg, s)\n")]),
    ("~mask in one place", WEIGHTS, WEIGHTS.replace("where(mask", "where(~mask")),
    ("minus infinity alone", [(MASK, MASK.replace("big_neg", "-np.inf")), (WEIGHTS, PLAIN), (DIVIDED, QUOTIENT)]),
    ("0 / 0", DIVIDED, QUOTIENT),
    ("hidden scores are 0", MASK, "    s = np.where(mask, s, 0)\n"),
    ("hidden scores are -1e4", [(MASK, "    s = np.where(mask, s, np.float32(-1e4))\n"), (WEIGHTS, PLAIN), (DIVIDED, QUOTIENT)]),
    ("hidden scores are -1e9", [(MASK, "    s = np.where(mask, s, np.float32(-1e9))\n")]),
    ("hidden weights alone", MASK, ""),
    ("the maximum of all rows", WEIGHTS, WEIGHTS.replace("axis=1, ", "")),
    ("a small number for 0", DIVIDED, DIVIDED.replace("np.maximum(p.sum(axis=1, keepdims=True), 1)", "(p.sum(axis=1, keepdims=True) + np.float32(1e-3))")),
    ("its own causal mask", MASK, "    mask = np.tril(np.ones_like(mask))\n" + MASK),
    ("no mask", MASK, "    mask = np.ones_like(mask)\n" + MASK),
    ("the mask in place", MASK, MASK + "    mask[:, 0] = True\n"),
    ("a score of 0 counts as hidden", [(MASK, "    s = s * mask\n"), (WEIGHTS, "    m = np.where(s == 0, big_neg, s).max(axis=1, keepdims=True)\n    p = np.where(s == 0, 0, np.exp(s - m))\n")]),
    ("256 keys at most", MASK, "    mask = mask & (np.arange(len(k)) < 256)\n" + MASK),
]  # fmt: skip

RIGHT = [
    ("minus infinity, and a maximum that is finite", """
import numpy as np


def broken_attention(q, k, v, mask):
    s = q @ k.T / np.sqrt(np.float32(q.shape[1]))
    big_neg = np.finfo(s.dtype).min
    s = np.where(mask, big_neg, s)
    p = np.exp(s - s.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True) @ v


def attention(q, k, v, mask):
    s = np.where(mask, q @ k.T / np.sqrt(np.float32(q.shape[1])), -np.inf)
    m = s.max(axis=1, keepdims=True)
    p = np.exp(s - np.where(m == -np.inf, 0, m))
    l = p.sum(axis=1, keepdims=True)
    return p / np.where(l == 0, 1, l) @ v
"""),
    ("empty rows at the end", [(WEIGHTS, PLAIN), (DIVIDED, "    out = p / p.sum(axis=1, keepdims=True) @ v\n    out[~mask.any(axis=1)] = 0\n    return out")]),
    ("minus infinity, NaN that np.where drops", MASK, MASK.replace("big_neg", "-np.inf")),
    ("nan_to_num makes 0 of 0 / 0", [(MASK, MASK.replace("big_neg", "-np.inf")), (WEIGHTS, PLAIN), (DIVIDED, "    return np.nan_to_num(p / p.sum(axis=1, keepdims=True)) @ v\n")]),
    ("the opposite, inverted", MASK, "    s = np.where(~mask, big_neg, s)\n"),
]  # fmt: skip

EQUIVALENT = []
