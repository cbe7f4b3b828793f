"""Wrong and right answers of ex04a: see tests/wrong_answers/__init__.py."""

SPLIT = "    return y.reshape(len(y), num_heads, -1).transpose(1, 0, 2)\n"
CONCAT = "    return out.transpose(1, 0, 2).reshape(out.shape[1], -1)\n"
HEADS = "    q, k, v = (split_heads(x @ W, num_heads) for W in (W_q, W_k, W_v))\n"
LAYER = "    return concat_heads(attention(q, k, v)) @ W_o"

WRONG = [
    ("a reshape alone", SPLIT, "    return y.reshape(num_heads, len(y), -1)\n"),
    ("no transpose", SPLIT, "    return y.reshape(len(y), num_heads, -1)\n"),
    ("every num_heads-th column", SPLIT, "    return y.reshape(len(y), -1, num_heads).transpose(2, 0, 1)\n"),
    ("columns before tokens", SPLIT, SPLIT.replace("(1, 0, 2)", "(1, 2, 0)")),
    ("num_heads columns", SPLIT, "    return y.reshape(len(y), -1, num_heads).transpose(1, 0, 2)\n"),
    ("no return of split", SPLIT, "    y.reshape(len(y), num_heads, -1)\n"),
    ("concat by a reshape alone", CONCAT, "    return out.reshape(out.shape[1], -1)\n"),
    ("the heads of concat side by side, transposed", CONCAT, "    return out.transpose(1, 2, 0).reshape(out.shape[1], -1)\n"),
    ("concat of tokens", CONCAT, "    return out.reshape(-1, out.shape[2])\n"),
    ("W_o first", LAYER, "    return concat_heads(attention(q, k, v @ W_o[: v.shape[2], : v.shape[2]]))"),
    ("W_o transposed", LAYER, LAYER.replace("W_o", "W_o.T")),
    ("q and k exchanged", LAYER, LAYER.replace("(q, k, v)", "(k, q, v)")),
    ("k for v", HEADS, HEADS.replace("W_k, W_v)", "W_k, W_k)")),
    ("one head", HEADS, HEADS.replace("W, num_heads", "W, 1")),
    ("no heads", HEADS, "    q, k, v = (x @ W for W in (W_q, W_k, W_v))\n    q, k, v = q[None], k[None], v[None]\n"),
    ("weights transposed", HEADS, HEADS.replace("x @ W,", "x @ W.T,")),
    ("no mask", LAYER, """    s = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[2])
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return concat_heads(p / p.sum(axis=-1, keepdims=True) @ v) @ W_o"""),
    ("x in place", HEADS, "    x += 0.5\n" + HEADS),
    ("256 tokens at most", LAYER, "    out = attention(q[:, :256], k[:, :256], v[:, :256])\n    out = np.pad(out, ((0, 0), (0, len(x) - out.shape[1]), (0, 0)))\n    return concat_heads(out) @ W_o"),
    ("8 heads at most", LAYER, LAYER.replace("attention(q, k, v)", "attention(q, k, v) * (np.arange(num_heads) < 8)[:, None, None]")),
]  # fmt: skip

RIGHT = [
    ("by slices, and a sum over heads", """
import numpy as np


def attention(q, k, v):
    N, d = q.shape[1:]
    s = q @ k.transpose(0, 2, 1) / np.sqrt(d)
    s = np.where(np.tril(np.ones((N, N), bool)), s, -np.inf)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True) @ v


def split_heads(y, num_heads):
    return np.stack(np.split(y, num_heads, axis=1))


def concat_heads(out):
    return np.concatenate(list(out), axis=1)


def multi_head_attention(x, W_q, W_k, W_v, W_o, num_heads):
    out = attention(*(split_heads(x @ W, num_heads) for W in (W_q, W_k, W_v)))
    d = out.shape[2]
    return sum(out[h] @ W_o[h * d : (h + 1) * d] for h in range(num_heads))
"""),
    ("swapaxes, and -1 left out", [
        (SPLIT, "    N, D = y.shape\n    return np.swapaxes(y.reshape(N, num_heads, D // num_heads), 0, 1)\n"),
        (CONCAT, "    return np.hstack([out[h] for h in range(out.shape[0])])\n")]),
]  # fmt: skip

ANY = "NumPy takes any negative number for the size that is left"
EQUIVALENT = [
    (f"{line.strip()} -> {line.strip().replace('-1)', '-2)')}", ANY) for line in (SPLIT, CONCAT)
]
