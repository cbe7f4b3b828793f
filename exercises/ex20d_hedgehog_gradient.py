"""ex20d · Hedgehog: learn the feature map, and its gradient by hand

Hedgehog's map is learned until phi(q) . phi(k) weighs the keys as softmax does. With weights w of
shape (d, F), a row x of length d has 2 F features:

    phi(x) = [e^(x w), e^(-x w)]                                 feature_map

Of N queries q and keys k, each with a w of its own, causal: query m sees the keys n <= m, with

    a[m, n] = phi(q[m]) . phi(k[n]),    A[m, n] = a[m, n] / (sum of a[m, :] over n <= m)

and A = 0 for n > m                                              attention_weights

Given p (N, N), the weights of softmax attention, each row a distribution over n <= m and 0 beyond,
the loss is the cross-entropy, its mean over the queries:

    loss = -1/N * sum over m and n <= m of p[m, n] log A[m, n]   loss

These are given. Write the gradient of the loss by both weights  gradient

All arrays are float64 NumPy; q, k (N, d), N, d, F >= 1; |x w| stays below 100. p may be 0 where
n <= m, and nothing may be NaN for that. No argument is changed. Derive the gradient on paper first
(lesson 20 helps); no finite differences, no loop over m, n, or the elements of w.

About 6 lines.
"""

import numpy as np


def feature_map(x, w):
    """phi(x) = [e^(x w), e^(-x w)], of shape (N, 2 F)."""
    xw = x @ w
    return np.concatenate([np.exp(xw), np.exp(-xw)], axis=1)


def attention_weights(phi_q, phi_k):
    """A, of shape (N, N): each row sums to 1 over the keys n <= m and is 0 beyond."""
    a = np.tril(phi_q @ phi_k.T)
    return a / a.sum(axis=1, keepdims=True)


def loss(q, k, w_q, w_k, p):
    """Cross-entropy between p and A, the mean over the queries: a number."""
    weights = attention_weights(feature_map(q, w_q), feature_map(k, w_k))
    sees = np.tri(len(q), dtype=bool)  # log 0, beyond the mask, is not looked at
    return -np.sum(p[sees] * np.log(weights[sees])) / len(q)


def gradient(q, k, w_q, w_k, p):
    """(d loss / d w_q, d loss / d w_k), of the shapes of w_q and w_k."""
    num_features = w_q.shape[1]
    phi_q, phi_k = feature_map(q, w_q), feature_map(k, w_k)
    # YOUR CODE HERE
    raise NotImplementedError("ex20d: gradient")


# Stub e70e1717 of solutions/ex20d_hedgehog_gradient.py: `fa-numba reset ex20d` brings it back.
