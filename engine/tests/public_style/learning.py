"""Layers of neural networks, forwards and backwards."""

import math

import numpy as np
from numba import cuda, float32, uint64
from simt_kernels import Zoo, floats, zeros

ZOO = Zoo()
launched = ZOO.launched

THREADS = 32
FULL_MASK = 0xFFFFFFFF
EPS = 1e-5


@cuda.jit(device=True)
def block_sum(value, cache):
    """Sum over a block, for all its threads; one barrier before the cache is used again."""
    t = cuda.threadIdx.x
    cache[t] = value
    cuda.syncthreads()
    step = cuda.blockDim.x // 2
    while step > 0:
        if t < step:
            cache[t] += cache[t + step]
        cuda.syncthreads()
        step //= 2
    total = cache[0]
    cuda.syncthreads()
    return total


@launched(3, THREADS, lambda rng: (floats(rng, 3, 50), floats(rng, 50), floats(rng, 50),
    zeros(3, 50)), rtol=1e-6, tolerance=1e-4,
    answer=lambda x, w, b, out: (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1,
    keepdims=True) + EPS) * w + b)  # fmt: skip
def layernorm(x, weight, bias, out):
    cache = cuda.shared.array(THREADS, float32)
    row, t, n = cuda.blockIdx.x, cuda.threadIdx.x, x.shape[1]
    part = float32(0)
    for j in range(t, n, THREADS):
        part += x[row, j]
    mean = block_sum(part, cache) / float32(n)
    part = float32(0)
    for j in range(t, n, THREADS):
        d = x[row, j] - mean
        part += d * d
    rstd = float32(1) / math.sqrt(block_sum(part, cache) / float32(n) + float32(EPS))
    for j in range(t, n, THREADS):
        out[row, j] = (x[row, j] - mean) * rstd * weight[j] + bias[j]


@launched((5, 1), 16, lambda rng: (rng.integers(0, 9, 5), floats(rng, 9, 12), zeros(5, 12)),
    answer=lambda tokens, table, out: table[tokens])  # fmt: skip
def embedding(tokens, table, out):
    row = table[tokens[cuda.blockIdx.x]]
    c = cuda.threadIdx.x
    if c < row.shape[0]:
        out[cuda.blockIdx.x, c] = row[c]


@launched(5, 16, lambda rng: (rng.integers(0, 4, 5), floats(rng, 5, 12), zeros(4, 12)), rtol=1e-5,
    answer=lambda tokens, dout,
    dtable: np.stack([dout[tokens == t].sum(0) for t in range(4)]))  # fmt: skip
def embedding_backward(tokens, dout, dtable):
    c = cuda.threadIdx.x
    if c < dtable.shape[1]:
        cuda.atomic.add(dtable, (tokens[cuda.blockIdx.x], c), dout[cuda.blockIdx.x, c])


@launched(4, THREADS, lambda rng: (3 * floats(rng, 4, 45), rng.integers(0, 45, 4), zeros(4),
    zeros(4, 45)), rtol=1e-5, tolerance=1e-4,
    answer=lambda x, labels, loss, dx: cross_entropy_answer(x, labels))  # fmt: skip
def cross_entropy(logits, labels, loss, dlogits):
    """Loss and gradient in one kernel; online softmax, merged by shuffles."""
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    m_i, l_i = float32(-math.inf), float32(0)
    for j in range(lane, logits.shape[1], THREADS):
        m_new = max(m_i, logits[row, j])
        l_i = l_i * math.exp(m_i - m_new) + math.exp(logits[row, j] - m_new)
        m_i = m_new
    offset = 16
    while offset:
        m_other = cuda.shfl_xor_sync(FULL_MASK, m_i, offset)
        l_other = cuda.shfl_xor_sync(FULL_MASK, l_i, offset)
        m_new = max(m_i, m_other)
        l_i = l_i * math.exp(m_i - m_new) + l_other * math.exp(m_other - m_new)
        m_i = m_new
        offset >>= 1
    label = labels[row]
    for j in range(lane, logits.shape[1], THREADS):
        p = math.exp(logits[row, j] - m_i) / l_i
        dlogits[row, j] = p - float32(1) if j == label else p
    if lane == 0:
        loss[row] = math.log(l_i) + m_i - logits[row, label]


def cross_entropy_answer(x, labels):
    p = np.exp(x - x.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return -np.log(p[np.arange(4), labels]), p - np.eye(45)[labels]


@launched(2, 64, lambda rng: (floats(rng, 100), zeros(3, 100)), rtol=1e-6,
    answer=lambda x, out: activations_answer(x.astype("f8")))  # fmt: skip
def activations(x, out):
    i = cuda.grid(1)
    if i < x.size:
        v = x[i]
        out[0, i] = gelu(v)
        out[1, i] = v / (float32(1) + math.exp(-v))  # SiLU
        out[2, i] = math.log1p(math.exp(-abs(v))) + max(v, float32(0))  # softplus


@cuda.jit(device=True, inline="always")
def gelu(x):
    root = float32(0.7978845608)
    inner = root * (x + float32(0.044715) * x * x * x)
    return float32(0.5) * x * (float32(1) + math.tanh(inner))


def activations_answer(x):
    gelu_ = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return np.stack([gelu_, x / (1 + np.exp(-x)), np.log1p(np.exp(x))])


@cuda.jit(device=True)
def splitmix(x):
    """A counter-based generator: the counter's bits, well mixed."""
    x = x + uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> uint64(27))) * uint64(0x94D049BB133111EB)
    return x ^ (x >> uint64(31))


@launched(2, 64, lambda rng: (floats(rng, 120), np.float32(0.3), np.uint64(42), zeros(120),
    zeros(120, dtype=bool)))  # fmt: skip
def dropout(x, p, seed, out, kept):
    i = cuda.grid(1)
    if i < x.size:
        bits = splitmix(seed + uint64(i)) >> uint64(40)
        keep = float32(bits) * float32(2.0**-24) >= p
        kept[i] = keep
        out[i] = x[i] / (float32(1) - p) if keep else float32(0)


@launched(
    2, THREADS, lambda rng: (floats(rng, 2, 40), zeros(2, 40, dtype=np.int8), zeros(2)),
    answer=lambda x, q, scale: (
        np.rint(x / (s := np.abs(x).max(1) / np.float32(127))[:, None]).astype(np.int8), s),
)  # fmt: skip
def quantise_rows(x, q, scale):
    """int8 with one scale per row, from the largest magnitude."""
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    largest = float32(0)
    for j in range(lane, x.shape[1], THREADS):
        largest = max(largest, abs(x[row, j]))
    for mask in (16, 8, 4, 2, 1):
        largest = max(largest, cuda.shfl_xor_sync(FULL_MASK, largest, mask))
    step = largest / float32(127)
    for j in range(lane, x.shape[1], THREADS):
        q[row, j] = round(x[row, j] / step)
    if lane == 0:
        scale[row] = step


@launched(2, 64, lambda rng: (floats(rng, 60, 3), floats(rng, 4, 3), zeros(60, dtype=np.int64),
    zeros(4, 3), zeros(4, dtype=np.int32)), rtol=1e-5, tolerance=1e-4,
    answer=lambda x, c, label, sums, n: k_means_answer(x, c))  # fmt: skip
def k_means_step(points, centres, label, sums, counts):
    i = cuda.grid(1)
    if i >= points.shape[0]:
        return
    best, nearest = float32(math.inf), 0
    for c in range(centres.shape[0]):
        distance = float32(0)
        for d in range(centres.shape[1]):
            diff = points[i, d] - centres[c, d]
            distance += diff * diff
        if distance < best:
            best, nearest = distance, c
    label[i] = nearest
    for d in range(centres.shape[1]):
        cuda.atomic.add(sums, (nearest, d), points[i, d])
    cuda.atomic.add(counts, nearest, 1)


def k_means_answer(x, centres):
    label = ((x[:, None] - centres) ** 2).sum(2).argmin(1)
    return label, np.stack([x[label == c].sum(0) for c in range(4)]), np.bincount(label, None, 4)
