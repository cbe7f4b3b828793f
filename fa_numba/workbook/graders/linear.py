"""Shared by the graders of linear attention: heads, their answers, usual mistakes."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fa_numba.workbook.graders.attention import (
    expect_close,
    expect_guard,
    expect_unchanged,
    guarded,
)


@dataclass(frozen=True)
class LinearHead:
    """One head of causal linear attention: 2-D float32 arrays, with the answers in float64.

    `before` is the state that earlier tokens have left, (feature_dim, head_dim + 1).
    """

    phi_q: np.ndarray
    phi_k: np.ndarray
    v: np.ndarray
    before: np.ndarray
    dtype: type = np.float64

    @cached_property
    def plain(self):
        return replace(self, dtype=np.float32)

    @property
    def arrays(self):
        return {"phi_q": self.phi_q, "phi_k": self.phi_k, "v": self.v}

    @cached_property
    def _in_dtype(self):
        phi_q, phi_k, v, before = (
            x.astype(self.dtype) for x in (self.phi_q, self.phi_k, self.v, self.before)
        )
        return phi_q, phi_k, np.hstack([v, np.ones((len(v), 1), self.dtype)]), before

    @cached_property
    def answers(self):
        """out and state, by the definition."""
        return self.mistaken()

    def mistaken(self, *, sees=None, before=1, divide=True):
        """out and state with another mask, another share of the state before, or undivided."""
        phi_q, phi_k, v1, state = self._in_dtype
        m, n = np.indices((len(phi_q), len(phi_k)))
        a = np.where(n <= m if sees is None else sees(m, n), phi_q @ phi_k.T, 0)
        with np.errstate(all="ignore"):
            total = a @ v1 + before * (phi_q @ state)
            l = total[:, -1:] if divide else 1
            out = np.where(l == 0, 0, total[:, :-1] / np.where(l == 0, 1, l))
            return {"out": out.astype(self.dtype), "state": before * state + phi_k.T @ v1}


def random_linear_head(seqlen, feature_dim, head_dim, *, seed=0, before=False):
    """Features as elu + 1 makes them, of normally distributed numbers; a state if `before`."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((3 * seqlen, feature_dim)).astype(np.float32)
    phi_q, phi_k, phi_old = np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))).reshape(
        3, seqlen, feature_dim
    )
    v, v_old = rng.standard_normal((2, seqlen, head_dim)).astype(np.float32)
    old = phi_old.T @ np.hstack([v_old, np.ones((seqlen, 1), np.float32)])
    return LinearHead(phi_q, phi_k, v, old if before else np.zeros_like(old))


def mistakes(head, chunk=None):
    """Usual mistakes and their results, for `expect_close`."""
    yield (
        "out is not divided by the sum of its weights, column HEAD_DIM of the same product.",
        {"out": head.mistaken(divide=False)["out"]},
    )
    yield "The state that was given is ignored.", head.mistaken(before=0)
    yield (
        "A token does not see itself: its key and value belong to its sum.",
        {"out": head.mistaken(sees=lambda m, n: n < m)["out"]},
    )
    yield (
        "The mask is missing: a token sees later ones.",
        {"out": head.mistaken(sees=lambda m, n: m >= 0)["out"]},
    )
    q, k, v, before = head.phi_q, head.phi_k, head.v, head.before
    yield (
        "The state is the sum of phi(k) v^T: phi(q) is no part of it.",
        LinearHead(q, q, v, before, head.dtype).answers,
    )
    yield (
        "The result is phi(q)^T U, not phi(k)^T U.",
        {"out": LinearHead(k, k, v, before, head.dtype).answers["out"]},
    )
    if chunk is None:
        last = LinearHead(q[-1:], k[-1:], v[-1:], 0 * before, head.dtype)
        alone = "Each token counts alone: the result is of U, the sum of phi(k) v^T so far."
        for share in (0, 1):
            yield alone, {"out": head.mistaken(sees=lambda m, n: n == m, before=share)["out"]}
        yield "The state is replaced: add phi(k) v^T to it.", {"state": last.answers["state"]}
        yield "The new state is not stored.", {"state": before}
        return
    last = (len(head.v) - 1) // chunk * chunk
    own = LinearHead(*(x[last:] for x in head.arrays.values()), 0 * head.before, head.dtype)
    replaced = "The chunk takes the place of the state: add to it, with +=."
    yield replaced, {"state": own.answers["state"]}
    two = head.mistaken(sees=lambda m, n: (n <= m) & (n // chunk >= m // chunk - 1), before=0)
    yield replaced, {"out": two["out"]}
    if len(head.v) == last + chunk:  # each token of it has replaced the one before
        one = LinearHead(*(x[-1:] for x in head.arrays.values()), 0 * head.before, head.dtype)
        yield replaced, {"state": one.answers["state"]}
    for sentence, sees in (
        ("A token sees later ones of its own chunk.", lambda m, n: n // chunk <= m // chunk),
        ("The tokens of a token's own chunk are missing.", lambda m, n: n // chunk < m // chunk),
        (
            "The tokens of earlier chunks are missing: they are in the state.",
            lambda m, n: (n <= m) & (n // chunk == m // chunk),
        ),
    ):
        yield sentence, {"out": head.mistaken(sees=sees)["out"]}


def check_linear_head(run, head, *, chunk=None, factor=2):
    """Hold `run(phi_q, phi_k, v, state, out)` to the definition; nothing else may be written."""
    out, larger_out = guarded(*head.v.shape)
    state, larger_state = guarded(*head.before.shape)
    state[:] = head.before
    given = {name: x.copy() for name, x in head.arrays.items()}
    run(*head.arrays.values(), state, out)
    want, plain, got = head.answers, head.plain.answers, {"out": out, "state": state}
    for name, rows in (("out", "token"), ("state", "feature")):
        expect_close(
            name, got[name], want[name], plain[name], tile=chunk or 1, rows=rows,
            mistakes=mistakes(head, chunk), factor=factor,
        )  # fmt: skip
    expect_guard("out", larger_out)
    expect_guard("state", larger_state)
    expect_unchanged(given, head.arrays)
