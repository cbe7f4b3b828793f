"""Shared by the graders of kernels that find their scores in HBM: out = softmax(s) v, and lse."""

import math

import numpy as np

from fa_numba import simt
from fa_numba.workbook.graders.attention import (
    Head,
    expect_close,
    expect_guard,
    expect_unchanged,
    guarded,
)
from fa_numba.workbook.graders.mistakes import forward_mistakes


def head_of_scores(s, head_dim, *, seed=0):
    """A head whose scores are exactly `s` (rows, keys): the keys are the unit vectors."""
    v = np.random.default_rng(seed).standard_normal((s.shape[1], head_dim), np.float32)
    dout = np.zeros((len(s), head_dim), np.float32)
    return Head(np.asarray(s, np.float32), np.eye(s.shape[1], dtype=np.float32), v, dout, False, 1)


def random_scores(rows, keys, head_dim, *, seed=0, size=1.0):
    """A head with normally distributed scores, `size` times as large."""
    s = np.random.default_rng(seed + 100).standard_normal((rows, keys))
    return head_of_scores(size * s, head_dim, seed=seed)


def sloping_scores(rows, keys, head_dim):
    """Scores that ascend along even rows and descend along odd ones, from -8 to 8."""
    sign = np.where(np.arange(rows) % 2 == 0, 1, -1)[:, None]
    return head_of_scores(sign * np.linspace(-8, 8, keys).round(2), head_dim)


def low_scores(rows, keys, head_dim):
    """Scores below -2e4, but for one key of each even row: its score, the maximum, is 0."""
    s = np.tile(-2e4 - np.arange(keys) * 7 % 10, (rows, 1))
    s[::2, keys // 2] = 0
    return head_of_scores(s, head_dim)


def trace_of(kernel, head, block):
    """Launch kernel(s, v, out, lse), threads (BLOCK_N, BLOCK_M): outputs with guards, and trace."""
    outputs = {"out": guarded(*head.dout.shape), "lse": guarded(len(head.q))}
    arrays = [array for array, _ in outputs.values()]
    grid = math.ceil(len(head.q) / block[1])
    return outputs, simt.trace(kernel, grid, block, head.q, head.v, *arrays)


def expect_rows(outputs, head, block):
    """Fail unless out and lse of `trace_of` are right."""
    for name, (got, _) in outputs.items():
        expect_close(
            name,
            got,
            head.forward[name],
            head.plain.forward[name],
            tile=block[1],
            mistakes=[
                *row_mistakes(head, block[0]),
                *column_mistakes(head, block[0]),
                *forward_mistakes(head, block[1], block[0]),
            ],
        )


def row_mistakes(head, tile):
    """Mistakes of the update that other graders do not know, as `forward_mistakes` yields them."""
    s, v = head.scores, head.v.astype(np.float64)
    for sentence, options in (
        ("acc is multiplied by 1 / alpha: alpha = exp(m_old - m_new) shrinks what is there.",
         {"power": -1}),
        ("acc is divided by l in every tile, and again at the end.", {"divide": True}),
        ("acc is multiplied by 1 / alpha, and divided by l in every tile and again at the end.",
         {"power": -1, "divide": True}),
        ("V is added without its weights: P V, not rowsum(V).", {"weights": False}),
        ("The tile before is lost: acc and l_i are added to, not replaced.", {"keep": 0}),
    ):  # fmt: skip
        yield sentence, {"out": updated(s, v, tile, **options)}


def column_mistakes(head, tile):
    """Mistakes of threads that own columns of out: thread tx has tx, tx + tile, tx + 2 tile, ..."""
    s, v = head.scores, head.v.astype(np.float64)
    column = np.arange(v.shape[1])
    thread, i = column % tile, column // tile
    own = "acc[i] is column tx + i * BLOCK_N, of v_tile too."
    out = head.forward["out"]
    yield own, {"out": out[:, i]}
    yield own, {"out": out[:, thread * (v.shape[1] // tile) + i]}
    acc, l = np.zeros((len(s), v.shape[1])), np.zeros((len(s), tile))
    per_key, total = acc.copy(), np.zeros(len(s))
    m = np.full(len(s), -np.inf)
    with np.errstate(all="ignore"):
        for n in range(0, s.shape[1], tile):
            m_new = np.maximum(m, s[:, n : n + tile].max(axis=1))
            alpha, m = np.exp(m - m_new)[:, None], m_new
            p = np.exp(s[:, n : n + tile] - m_new[:, None])
            total = alpha[:, 0] * total + p.sum(axis=1)
            l[:, : p.shape[1]] = (alpha * l)[:, : p.shape[1]] + p
            acc = alpha * acc + p @ v[n : n + tile]
            for c in range(p.shape[1]):
                per_key = alpha * per_key + p[:, c, None] * v[n + c]
        yield (
            "l_i adds the sum of the whole row of P, not one element.",
            {"out": acc / l[:, thread]},
        )
        yield (
            "acc is multiplied by alpha once per tile, not once per key.",
            {"out": per_key / total[:, None]},
        )


def updated(s, v, tile, *, power=1, divide=False, weights=True, keep=1):
    """out of rows of scores by a broken update of acc, in float64."""
    m, l = np.full(len(s), -np.inf), np.zeros(len(s))
    acc = np.zeros((len(s), v.shape[1]))
    with np.errstate(all="ignore"):
        for n in range(0, s.shape[1], tile):
            m_new = np.maximum(m, s[:, n : n + tile].max(axis=1))
            p = np.exp(s[:, n : n + tile] - m_new[:, None])
            alpha = np.exp(m - m_new) if n else np.ones(len(s))
            l = keep * alpha * l + p.sum(axis=1)
            acc = keep * acc * alpha[:, None] ** power
            acc += p @ v[n : n + tile] if weights else v[n : n + tile].sum(axis=0)
            acc = acc / l[:, None] if divide else acc
            m = m_new
        return acc / l[:, None]


def expect_inputs_kept(kernel, head, block):
    """Fail where s or v is changed, or something is written beside out and lse."""
    before = {"s": head.q.copy(), "v": head.v.copy()}
    outputs, _ = trace_of(kernel, head, block)
    expect_unchanged(before, {"s": head.q, "v": head.v})
    for name, (_, larger) in outputs.items():
        expect_guard(name, larger)


def traffic_of(head, block):
    """(array, loads or stores) -> (elements, how they come about), for `meter.expect_traffic`."""
    tiles = math.ceil(len(head.q) / block[1])
    return {
        ("s", "loads"): (head.q.size, "each score once"),
        ("v", "loads"): (head.v.size * tiles, "v once per thread block"),
        ("out", "loads"): (0, "out stays in registers until the end"),
        ("lse", "loads"): (0, "lse is written at the end, and never read"),
        ("out", "stores"): (head.dout.size, "seqlen_q * HEAD_DIM"),
        ("lse", "stores"): (len(head.q), "seqlen_q"),
    }
