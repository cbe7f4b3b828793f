"""An attention head that looks things up, and a feature map that learns to imitate it.

The tokens are the bytes of the package's reference.py. A query says which byte it is, a key says
which byte stands before it, so that a query finds the places where its byte has been before. Each
byte is a random vector, with a little noise on it.
"""

import functools
import math
from pathlib import Path

import numpy as np

from fa_numba import reference

HEAD_DIM, LENGTH = 16, 64
MAPS = "elu1", "relu", "taylor2"  # those that need no training


@functools.cache
def tokens():
    """The bytes, as an array of uint8."""
    return np.frombuffer(Path(reference.__file__).read_bytes(), np.uint8)


def pieces():
    """Where the pieces begin that training never sees."""
    return range(_held_out() + 100, len(tokens()) - LENGTH, 400)


def head(start):
    """q, k, v, (LENGTH, HEAD_DIM) in float64, of the piece whose first token is `start`.

    `start` is at least 1, for the first key needs the token before.
    """
    if not 1 <= start <= len(tokens()) - LENGTH:
        raise ValueError(f"start must be from 1 to {len(tokens()) - LENGTH}, got {start}")
    embedding = np.random.default_rng(1).standard_normal((256, HEAD_DIM))
    noise = np.random.default_rng(start).standard_normal((2, LENGTH, HEAD_DIM))
    this = tokens()[start : start + LENGTH]
    before = tokens()[start - 1 : start + LENGTH - 1]
    q = 1.5 * (embedding[this] + 0.3 * noise[0])
    k = 1.5 * (embedding[before] + 0.3 * noise[1])
    return q, k, embedding[this]


def softmax_weights(q, k):
    """Causal weights of softmax attention, (N, N)."""
    s = np.where(np.tri(len(q)), q @ k.T / math.sqrt(q.shape[1]), -np.inf)
    p = np.exp(s - s.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def linear_weights(phi_q, phi_k):
    """Causal weights of linear attention, (N, N)."""
    a = np.tril(phi_q @ phi_k.T)
    return a / np.maximum(a.sum(axis=1, keepdims=True), 1e-300)


def features_of(name, x):
    """Features of one head, (N, F), of a map that needs no training."""
    return reference.feature_map(x[None, :, None], name)[0, :, 0]


def weights_by(name):
    """The function (q, k) -> weights of a map that needs no training."""
    return lambda q, k: linear_weights(features_of(name, q), features_of(name, k))


def even_weights(q, k):
    """Each key that is seen has the same weight."""
    return np.tri(len(q)) / np.arange(1, len(q) + 1)[:, None]


def measures(weights_of):
    """Means over the held-out pieces: entropy, in_order, divergence.

    `weights_of` makes weights, (N, N), of q and k. The entropy is that of a row of weights.
    in_order: of all pairs of keys, the part in which the higher score has the larger weight, for
    the last query of a piece. The divergence is that of the weights from softmax's.
    """
    total = []
    for start in pieces():
        q, k, _ = head(start)
        s, p, a = q @ k.T / math.sqrt(HEAD_DIM), softmax_weights(q, k), weights_of(q, k)
        with np.errstate(divide="ignore", invalid="ignore"):
            entropy = -np.sum(a * np.log(np.where(a > 0, a, 1)), axis=1).mean()
            divergence = np.sum(p * np.log(np.where(p > 0, p / a, 1)), axis=1).mean()
        higher = s[-1][:, None] > s[-1]
        total.append([entropy, (a[-1][:, None] > a[-1])[higher].mean(), divergence])
    return tuple(map(float, np.mean(total, axis=0)))


def both_signs(x, w):
    """Hedgehog's map [e^(x w), e^(-x w)]."""
    return np.exp(np.hstack([x @ w, -x @ w]))


def one_sign(x, w):
    """The map e^(x w)."""
    return np.exp(x @ w)


def hedgehog_weights(q, k, w, phi=both_signs):
    """Weights with learned maps: w[0] of the queries, w[1] of the keys."""
    return linear_weights(phi(q, w[0]), phi(k, w[1]))


def loss_and_gradient(q, k, w, p, phi=both_signs):
    """Cross-entropy between p and the weights of the map, and its gradient by w."""
    phi_q, phi_k = phi(q, w[0]), phi(k, w[1])
    a = phi_q @ phi_k.T
    weights = linear_weights(phi_q, phi_k)
    loss = -np.sum(p * np.log(np.where(p > 0, weights, 1))) / len(p)
    da = np.tril((weights - p) / a) / len(p)
    gradients = []
    for x, dxw in ((q, (da @ phi_k) * phi_q), (k, (da.T @ phi_q) * phi_k)):
        plus, minus = dxw[:, : w.shape[2]], dxw[:, w.shape[2] :]
        gradients.append(x.T @ (plus - minus if minus.size else plus))
    return loss, np.array(gradients)


def untrained(columns=32, seed=2):
    """Small random weights (2, HEAD_DIM, columns), from which training starts."""
    return 0.25 * np.random.default_rng(seed).standard_normal((2, HEAD_DIM, columns))


def train(w, phi=both_signs, steps=400, step_size=0.02):
    """Train a map on pieces that are not held out, by Adam: the weights, and the divergences.

    `w`, (2, HEAD_DIM, columns), is where training starts, and is left as it is. `phi` is
    `both_signs` or `one_sign`. The divergences, one per step, are from softmax's weights.
    """
    w, mean, square, divergences = w.copy(), 0.0, 0.0, []
    starts = np.random.default_rng(3).integers(1, _held_out() - LENGTH, steps)
    for t, start in enumerate(starts, 1):
        q, k, _ = head(start)
        p = softmax_weights(q, k)
        loss, gradient = loss_and_gradient(q, k, w, p, phi)
        divergences.append(loss + np.sum(p * np.log(np.where(p > 0, p, 1))) / len(p))
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.99 * square + 0.01 * gradient**2
        w -= step_size * (mean / (1 - 0.9**t)) / (np.sqrt(square / (1 - 0.99**t)) + 1e-9)
    return w, divergences


@functools.cache
def trained(columns=32, signs=2):
    """Weights after 400 steps and the divergences on the way, computed once.

    32 columns have 64 features with both signs. `signs` is 1 for `one_sign`, 2 for `both_signs`.
    """
    if signs not in (1, 2):
        raise ValueError(f"signs must be 1 or 2, got {signs!r}")
    w = untrained(columns, seed=2 if columns == 32 else 4)
    return train(w, both_signs if signs == 2 else one_sign)


def attention_error(name, w=None):
    """How far `linear_attn` is from `flash_attn_v2` on four held-out pieces.

    `name` is that of a map of the package; for "hedgehog" `w` are the weights, used with both
    signs. The error is the norm of the difference over that of the output of softmax attention; the
    second result counts the numbers in the state.
    """
    from fa_numba import flash_attn_v2, linear_attn

    heads = [head(start) for start in pieces()[:4]]
    q, k, v = (np.array(x, np.float32)[:, :, None] for x in zip(*heads, strict=True))
    options = {"feature_map": name, "causal": True}
    if w is not None:
        signed = np.concatenate([w, -w], axis=2)[:, None].astype(np.float32)
        options["weights"] = tuple(signed)  # e^(x w) with [w, -w] has both signs
    exact, _ = flash_attn_v2(q, k, v, causal=True)
    out, state = linear_attn(q, k, v, **options)
    return float(np.linalg.norm(out - exact) / np.linalg.norm(exact)), state[0].size


def _held_out():
    return len(tokens()) * 3 // 4
