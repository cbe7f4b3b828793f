"""A head that looks things up, made of a file's bytes: lesson 20 compares feature maps on it.

A query says which byte it is, a key says which byte stands before it, and a value says its own
byte. So a query finds the places where its byte has been before, and what came next.
"""

import math

import numpy as np

from fa_numba.workbook.catalog import find_root

HEAD_DIM, LENGTH = 16, 64
SPACING = 400  # bytes between two held-out pieces


class LookupHead:
    """Queries, keys and values of pieces of a text; see the module's docstring.

    Attributes
    ----------
    text : uint8 array
        The bytes of the package's `reference.py`.
    held_out : int
        Training never sees what comes after this byte.
    pieces : range
        Where the held-out pieces begin.
    """

    def __init__(self):
        path = find_root() / "fa_numba" / "reference.py"
        self.text = np.frombuffer(path.read_bytes(), np.uint8)
        self.embedding = np.random.default_rng(1).standard_normal((256, HEAD_DIM))
        self.held_out = len(self.text) * 3 // 4
        self.pieces = range(self.held_out + 100, len(self.text) - LENGTH, SPACING)

    def __call__(self, start):
        """q, k, v of shape (LENGTH, HEAD_DIM), of the bytes from `start` on."""
        noise = np.random.default_rng(start).standard_normal((2, LENGTH, HEAD_DIM))
        this, before = (self.text[i : i + LENGTH] for i in (start, start - 1))
        q = 1.5 * (self.embedding[this] + 0.3 * noise[0])
        k = 1.5 * (self.embedding[before] + 0.3 * noise[1])
        return q, k, self.embedding[this]

    def measures(self, weights_of):
        """Means over the held-out pieces.

        Parameters
        ----------
        weights_of : function
            Of q and k: the causal weights (LENGTH, LENGTH).

        Returns
        -------
        entropy : float
            Of a query's weights, natural logarithm.
        in_order : float
            Of two keys, how often the one with the higher score has the larger weight, for the last
            query of a piece.
        divergence : float
            From the weights of softmax; infinite where a key that they look at has weight 0.
        """
        total = []
        for start in self.pieces:
            q, k, _ = self(start)
            s, p, a = q @ k.T / math.sqrt(HEAD_DIM), softmax_weights(q, k), weights_of(q, k)
            with np.errstate(divide="ignore", invalid="ignore"):
                entropy = -np.sum(a * np.log(np.where(a > 0, a, 1)), axis=1).mean()
                divergence = np.sum(p * np.log(np.where(p > 0, p / a, 1)), axis=1).mean()
            higher = s[-1][:, None] > s[-1]
            total.append([entropy, (a[-1][:, None] > a[-1])[higher].mean(), divergence])
        return tuple(map(float, np.mean(total, axis=0)))


def softmax_weights(q, k):
    """The causal weights of softmax attention."""
    s = np.where(np.tri(len(q)), q @ k.T / math.sqrt(q.shape[1]), -np.inf)
    p = np.exp(s - s.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def linear_weights(phi_q, phi_k):
    """The causal weights of linear attention."""
    a = np.tril(phi_q @ phi_k.T)
    return a / np.maximum(a.sum(axis=1, keepdims=True), 1e-300)
