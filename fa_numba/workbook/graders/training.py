"""Shared by the graders of training: comparison with float64, and a layer with its gradients."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fa_numba import reference
from fa_numba.workbook.graders.causes import Wrong

FACTOR = 4  # of the error of plain float32


def expect(name, got, want, plain, *, of="", mistakes=()):
    """Fail unless `got` is as close to float64 as plain float32 is, up to FACTOR.

    `want` is the result in float64, `plain` in float32. `of`, the case, begins the message.
    `mistakes` are known ones, each with the result that it leads to.
    """
    __tracebackhide__ = True
    got, want, plain = np.asarray(got), np.asarray(want), np.asarray(plain)
    case = f"{of}: " * bool(of)
    assert got.shape == want.shape, (
        f"{case}{name} must have the shape {want.shape}, got {got.shape}"
    )
    limit = FACTOR * np.abs(plain - want).max(initial=0) + 1e-6 * np.abs(want).max(initial=0)
    wrong = ~(np.abs(got - want) <= limit)  # NaN is wrong
    if not wrong.any():
        assert got.dtype == np.float32, f"{case}{name} must be float32, got {got.dtype}"
        return
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    place = f"{name}{list(at) if at else ''}"
    causes = [
        sentence
        for sentence, result in mistakes
        if np.shape(result) == got.shape
        and np.allclose(got, result, rtol=1e-4, atol=10 * limit, equal_nan=True)
        and not np.allclose(want, result, rtol=1e-4, atol=30 * limit)
    ]
    if not causes and np.isnan(got[at]):
        causes = ["NaN comes from inf - inf, inf / inf or 0 / 0."]
    raise Wrong(
        f"{case}{place} must be {want[at]:.6g}, got {got[at]:.6g}. Wrong: {wrong.sum()} of "
        f"{wrong.size}. {causes[0] if causes else ''}".rstrip(),
        causes=causes,
        where=place,
    )


def expect_same(name, now, before):
    """Fail unless an argument is as it was."""
    __tracebackhide__ = True
    assert np.array_equal(now, before), f"{name} is an input: it must not be changed"


@dataclass(frozen=True)
class Layer:
    """The attention half of a layer: its inputs, in float32, and its gradients.

    Without rotary embedding: `join` of the case, which the answer is given, scales the columns of q
    instead, so that an answer that leaves it out is wrong.
    """

    x: np.ndarray
    w_qkv: np.ndarray
    w_out: np.ndarray
    dmiddle: np.ndarray
    batch: int
    heads: int
    kv_heads: int
    dtype: type = np.float64

    @cached_property
    def plain(self):
        """The same layer, computed in float32."""
        return replace(self, dtype=np.float32)

    @property
    def head_dim(self):
        return self.x.shape[1] // self.heads

    def _in_dtype(self, x):
        return np.asarray(x, self.dtype)

    def normalize(self, x):
        return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + self.dtype(1e-5))

    def forward(self, x):
        """Return the layer's q, k, v, out and lse for the input x, and its result."""
        x, w_qkv, w_out = map(self._in_dtype, (x, self.w_qkv, self.w_out))
        shape = self.batch, len(x) // self.batch, -1, self.head_dim
        heads = (self.normalize(x) @ w_qkv).reshape(shape)
        q = heads[:, :, : self.heads] * self.dtype(2)
        k = heads[:, :, self.heads : -self.kv_heads]
        v = heads[:, :, -self.kv_heads :]
        out, lse = reference.attention(q, k, v, causal=True, dtype=self.dtype)
        return q, k, v, out, lse, x + out.reshape(x.shape) @ w_out

    @cached_property
    def saved(self):
        """The inputs of the answer: x, and the float32 results of the forward pass."""
        results = self.plain.forward(self.x)[:-1]
        return tuple(np.ascontiguousarray(x, np.float32) for x in (self.x, *results))

    def gradients(
        self,
        *,
        residual=True,
        normed=True,
        joined=True,
        through_norm=True,
        projected=True,
        transposed=True,
        once=True,
        of_x=True,
        inner=True,
    ):
        """dx, dw_qkv and dw_out.

        Parameters
        ----------
        residual, normed, joined, through_norm, projected, transposed, once, of_x, inner : bool
            Each is a step; without it the results are those of a usual mistake.
        """
        x, w_qkv, w_out, dmiddle = map(
            self._in_dtype, (self.x, self.w_qkv, self.w_out, self.dmiddle)
        )
        q, k, v, out, _, _ = self.forward(x)
        dout = dmiddle @ (w_out.T if transposed else w_out) if projected else dmiddle
        dout = dout.reshape(out.shape)
        dq, dk, dv = reference.attention_bwd(dout, q, k, v, causal=True, dtype=self.dtype)
        parts = dq * self.dtype(2 if joined else 1), dk, dv
        dqkv = np.concatenate(parts, axis=2).reshape(len(x), -1)
        y, dy = self.normalize(x), dqkv @ w_qkv.T
        dx = self.normalize_grad(dy, x if of_x else y) if through_norm else dy
        dw_out = out.reshape(x.shape).T @ dmiddle
        return {
            "dx": dx + dmiddle * self.dtype((1 if once else 2) if residual else 0),
            "dw_qkv": (y if normed else x).T @ dqkv,
            "dw_out": dw_out if inner else dw_out.T,
        }

    def normalize_grad(self, dy, x):
        """The gradient of x, where y = normalize(x)."""
        y, inverse = self.normalize(x), 1 / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-5)
        return self._in_dtype(inverse * (dy - y * (dy * y).mean(axis=1, keepdims=True)))

    def loss(self, x):
        """A number whose gradient by x is dx: sum(dmiddle * middle)."""
        return float(np.sum(self.dmiddle * self.forward(x)[-1]))


def random_layer(batch=2, seqlen=5, heads=4, kv_heads=2, head_dim=4, *, seed=0):
    """A layer of normally distributed numbers."""
    rng, width = np.random.default_rng(seed), heads * head_dim
    shapes = (
        (batch * seqlen, width),
        (width, (heads + 2 * kv_heads) * head_dim),
        (width, width),
        (batch * seqlen, width),
    )
    arrays = [rng.standard_normal(shape, np.float32) for shape in shapes]
    for weight in arrays[1:3]:
        weight /= np.float32(np.sqrt(width))
    return Layer(*arrays, batch, heads, kv_heads)


def functions_of_a_layer():
    """attn_grad and join, of the grader, which can be sent as code."""

    def attn_grad(dout, q, k, v, out, lse, causal=False):
        assert causal, "attn_grad must be called with causal=True"
        for name, given in (("dout", dout), ("q", q), ("k", k), ("v", v), ("out", out)):
            assert np.ndim(given) == 4, (
                f"attn_grad: {name} must be (batch, seqlen, heads, head_dim), got {np.shape(given)}"
            )
        group, scale = q.shape[2] // k.shape[2], np.float32(1 / np.sqrt(q.shape[3]))
        keys, values = np.repeat(k, group, axis=2), np.repeat(v, group, axis=2)
        s = np.einsum("bmhd,bnhd->bhmn", q, keys) * scale
        s = np.where(np.tri(q.shape[1], dtype=bool), s, -np.float32(np.inf))
        p = np.exp(s - lse[..., None])
        delta = np.einsum("bmhd,bmhd->bhm", dout, out)[..., None]
        ds = p * (np.einsum("bmhd,bnhd->bhmn", dout, values) - delta) * scale
        dk, dv = np.einsum("bhmn,bmhd->bnhd", ds, q), np.einsum("bhmn,bmhd->bnhd", p, dout)
        grouped = (*k.shape[:3], group, k.shape[3])
        dk, dv = dk.reshape(grouped).sum(axis=3), dv.reshape(grouped).sum(axis=3)
        return np.einsum("bhmn,bnhd->bmhd", ds, keys), dk, dv

    def join(dq, dk, dv):
        parts = np.concatenate([dq * np.float32(2), dk, dv], axis=2)
        return parts.reshape(dq.shape[0] * dq.shape[1], -1)

    return attn_grad, join
