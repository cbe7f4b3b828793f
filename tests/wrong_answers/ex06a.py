"""Wrong and right answers of ex06a: see tests/wrong_answers/__init__.py."""

M_NEW = "    m_new = np.maximum(m, s.max(axis=1))\n"
BASE = "    base = np.where(np.isneginf(m_new), np.float32(0), m_new)"
ALPHA = "    alpha = np.exp(m - base)"
P = "    p = np.exp(s - base[:, None])"
L = "    l_new = alpha * l + p.sum(axis=1)\n"
SUM = "    unnormalised = (l * alpha)[:, None] * out + p @ v\n"
DIVISOR = "    divisor = np.where(l_new == 0, np.float32(1), l_new)"
RETURN = "    return unnormalised / divisor[:, None], l_new, m_new\n"

WRONG = [
    ("no stand-in for -inf", BASE, "    base = m_new"),
    ("the lowest float32 for -inf, and it is returned", M_NEW, "    m_new = np.maximum(np.maximum(m, s.max(axis=1)), np.finfo(np.float32).min)\n"),
    *((f"below {low} counts as masked", BASE, f"    base = np.where(m_new < {low}, np.float32(0), m_new)") for low in ("-1e4", "-1e9", "-1e30")),
    ("m from -1e9", M_NEW, "    m_new = np.maximum(np.maximum(m, s.max(axis=1)), np.float32(-1e9))\n"),
    ("the tile's maximum alone", M_NEW, "    m_new = s.max(axis=1)\n"),
    ("the maximum of the whole tile", M_NEW, "    m_new = np.maximum(m, s.max())\n"),
    ("the maximum leaves out the first key", M_NEW, "    m_new = np.maximum(m, s[:, 1:].max(axis=1, initial=-np.inf))\n"),
    ("exp cut off at -20", P, "    p = np.exp(np.maximum(s - base[:, None], np.float32(-20)))"),
    ("alpha cut off at -20", ALPHA, "    alpha = np.exp(np.maximum(m - base, np.float32(-20)))"),
    ("far keys dropped", P, P + "\n    p = np.where(p < 1e-8, np.float32(0), p)"),
    ("l summed down the columns", L, "    l_new = alpha * l + p.sum(axis=0)[: len(l)].sum()\n"),
    ("divided by the old l", DIVISOR, "    divisor = np.where(l == 0, np.float32(1), l)"),
    ("0 / 0", DIVISOR, "    divisor = l_new"),
    ("a small number for 0", DIVISOR, "    divisor = l_new + np.float32(1e-5)"),
    ("l of a masked row is 1", RETURN, RETURN.replace(", l_new,", ", divisor,")),
    ("nan_to_num over all", RETURN, "    return np.nan_to_num(unnormalised / divisor[:, None]), l_new, np.nan_to_num(m_new)\n"),
    ("m and l swapped", RETURN, RETURN.replace("l_new, m_new", "m_new, l_new")),
    ("out alone", RETURN, RETURN.replace(", l_new, m_new", "")),
    ("no return", RETURN, "    unnormalised /= divisor[:, None]\n"),
    ("float64", P, "    p = np.exp(s.astype(np.float64) - base[:, None])"),
    ("m in place", M_NEW, "    m_old = m.copy()\n    np.maximum(m, s.max(axis=1), out=m)\n    m_new, m = m, m_old\n"),
    ("out in place", RETURN, "    out[:] = unnormalised / divisor[:, None]\n    return out.copy(), l_new, m_new\n"),
    ("s in place", P, "    s -= base[:, None]\n    p = np.exp(s)"),
    ("-inf in s replaced", M_NEW, "    s[np.isneginf(s)] = -3.4e38\n" + M_NEW),
    ("an argument returned where nothing changes", RETURN, "    if np.isneginf(s).all():\n        return out, l, m\n" + RETURN),
    ("the argument m returned where the maximum stays", RETURN, "    if (m_new == m).all():\n        m_new = m\n" + RETURN),
    ("a loop over rows", SUM, "    unnormalised = np.stack([\n        l[i] * alpha[i] * out[i] + p[i] @ v for i in range(len(l))\n    ])\n"),
    ("a loop over keys", SUM, "    unnormalised = (l * alpha)[:, None] * out\n    for n in range(s.shape[1]):\n        unnormalised = unnormalised + p[:, n, None] * v[n]\n"),
    ("a loop over elements", L, "    l_new = alpha * l\n    for i in range(len(l)):\n        for n in range(s.shape[1]):\n            l_new[i] += p[i, n]\n"),
    ("128 columns of v", SUM, SUM + "    unnormalised[:, 128:] = 0\n"),
    ("a loop over rows, by lists", L, "    l_new = np.array([a * b + sum(row) for a, b, row in zip(alpha.tolist(), l.tolist(), p.tolist())], np.float32)\n"),
]  # fmt: skip

RIGHT = [
    ("as the paper writes it", """
import numpy as np


def tile_update(s, v, out, l, m):
    zero = np.float32(0)

    def exp(a, b):
        masked = np.isneginf(a)
        return np.where(masked, zero, np.exp(np.where(masked, zero, a) - np.where(masked, zero, b)))

    m_ij = np.max(s, axis=1)
    p_ij = exp(s, m_ij[:, np.newaxis])
    l_ij = np.sum(p_ij, axis=1)
    m_new = np.maximum(m, m_ij)
    old, new = exp(m, m_new), exp(m_ij, m_new)
    l_new = old * l + new * l_ij
    out_new = (l * old)[:, None] * out + new[:, None] * (p_ij @ v)
    return out_new / np.where(l_new > 0, l_new, np.float32(1))[:, None], l_new, m_new
"""),
    ("only the rows that see a key", """
import numpy as np


def tile_update(s, v, out, l, m):
    out, l, m = out.copy(), l.copy(), m.copy()
    top = np.maximum(m, s.max(axis=1))
    live = top > -np.inf
    base = top[live]
    p = np.exp(s[live] - base[:, None])
    alpha = np.exp(m[live] - base) * l[live]
    total = alpha + p.sum(axis=1)
    out[live] = (alpha[:, None] * out[live] + p @ v) / total[:, None]
    l[live], m[live] = total, base
    return out, l, m
"""),
    ("einsum, a list, warnings and nan_to_num", """
import numpy as np


def tile_update(s, v, out, l, m):
    m_new = np.maximum(m, s.max(axis=1))
    p = np.nan_to_num(np.exp(s - m_new[:, None]))
    alpha = np.nan_to_num(np.exp(m - m_new))
    l_new = alpha * l + p.sum(axis=1)
    out_new = np.einsum("m,md->md", alpha * l, out) + np.einsum("mn,nd->md", p, v)
    return [np.nan_to_num(out_new / l_new[:, None]), l_new, m_new]
"""),
]  # fmt: skip

EQUIVALENT = [
    (f"{DIVISOR.strip()} -> {DIVISOR.strip().replace('(1)', '(2)')}", "0 divided by any number but 0: a row without a key has out = 0"),
    ("base = np.where(np.isneginf(m_new), np.float32(0), m_new) -> base = np.where(np.isneginf(m_new), np.float32(1), m_new)", "exp(-inf - x) is 0 for every finite x"),
]  # fmt: skip
