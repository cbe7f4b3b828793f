"""Feature maps φ of linear attention: φ(q)·φ(k) replaces the e^(q·k/√d) of softmax attention.

elu1       x + 1 where x > 0, else e^x                 d features, all positive
relu       x where x > 0, else 0                       d features; all may be 0
taylor2    1, then x_i, then x_i x_j, each scaled      1 + d + d² features
hedgehog   e^(x W), W learned                          as many as W has columns

With taylor2 φ(q)·φ(k) is the start of the Taylor series of e^s, 1 + s + s²/2 with s = q·k/√d, and
at least 1/2. The features are 1, x_i / d^¼ and x_i x_j / √(2d). The √2 is easily forgotten; without
it the last term would be s².

The maps of Hedgehog are learned, one for the queries and one for the keys of each head, so that
φ(q)·φ(k) weighs the keys as softmax does. Its authors use [e^(xW), e^(-xW)], the map of the weights
[W, -W].

Papers: Katharopoulos et al. 2020, Transformers are RNNs, arXiv:2006.16236 (elu1); Zhang et al.
2024, The Hedgehog & the Porcupine, arXiv:2402.04347 (taylor2, hedgehog).
"""

import functools
import math

import numpy as np
from numba import cuda, float32

from fa_numba.runtime import arrays
from fa_numba.tiling.linear_attn import feature_dim

THREADS = 128  # per row


@cuda.jit(device=True, inline="always")
def elu1(x_row, w, head, f):
    x = x_row[f]
    return x + float32(1.0) if x > float32(0.0) else math.exp(x)


@cuda.jit(device=True, inline="always")
def relu(x_row, w, head, f):
    x = x_row[f]
    return float32(0.0) if x < float32(0.0) else x  # NaN stays NaN


@cuda.jit(device=True, inline="always")
def taylor2(x_row, w, head, f):
    head_dim = x_row.shape[0]
    if f == 0:
        return float32(1.0)
    if f <= head_dim:
        return x_row[f - 1] / math.sqrt(math.sqrt(float32(head_dim)))
    i, j = (f - 1 - head_dim) // head_dim, (f - 1 - head_dim) % head_dim
    return x_row[i] * x_row[j] / math.sqrt(float32(2 * head_dim))


@cuda.jit(device=True, inline="always")
def hedgehog(x_row, w, head, f):
    xw = float32(0.0)
    for d in range(x_row.shape[0]):
        xw += x_row[d] * float32(w[head, d, f])
    return math.exp(xw)


PHI = {"elu1": elu1, "relu": relu, "taylor2": taylor2, "hedgehog": hedgehog}


@functools.cache
def make_feature_map(HEAD_DIM, name):
    """The kernel for one feature map: launch it with threads (THREADS,).

    Only "hedgehog" uses w; for the other maps it may be any scalar.
    """
    phi_of = PHI[name]

    @cuda.jit
    def feature_map_kernel(x, w, phi):
        """A thread block owns one row of x; thread tid takes features tid, tid + THREADS, ...

        grid      (seqlen, num_heads, batch); threads (THREADS,)
        shared    x_row (HEAD_DIM,)
        private   nothing
        HBM       x, phi once; w once per row
        paper     The Hedgehog & the Porcupine
        budget    64 registers, 256 bytes shared (HEAD_DIM=64)
        """
        x_row = cuda.shared.array(HEAD_DIM, float32)
        tid = cuda.threadIdx.x
        n, head, b = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
        for d in range(tid, HEAD_DIM, THREADS):
            x_row[d] = float32(x[b, n, head, d])
        cuda.syncthreads()  # x_row is complete: safe to read
        for f in range(tid, phi.shape[3], THREADS):
            phi[b, n, head, f] = phi_of(x_row, w, head, f)

    return feature_map_kernel


def feature_map(x, name, w=None):
    """φ of each row of each head. `linear_attn` has checked the arguments.

    Parameters
    ----------
    x : array of shape (batch, seqlen, num_heads, head_dim), float32, float16 or bfloat16
    name : "elu1", "relu", "taylor2" or "hedgehog"
    w : array of shape (num_heads, head_dim, num_features), dtype of x, default=None
        The weights of "hedgehog"; the other maps have none.

    Returns
    -------
    array of shape (batch, seqlen, num_heads, feature_dim), float32, library of x
    """
    batch, seqlen, num_heads, head_dim = x.shape
    num_features = None if w is None else w.shape[2]
    phi = arrays.empty(x, (batch, seqlen, num_heads, feature_dim(name, head_dim, num_features)))
    kernel = make_feature_map(head_dim, name)
    w = np.float32(0) if w is None else w
    arrays.launch(kernel, (seqlen, num_heads, batch), (THREADS,), x, w, phi)
    return phi
