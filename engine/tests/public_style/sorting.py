"""Sorting, searching, selecting, strings and graphs."""

import numpy as np
from numba import boolean, cuda, float32, int32, int64
from simt_kernels import Zoo, floats, integers, zeros

ZOO = Zoo()
launched = ZOO.launched

N = 32


K = 3


@launched(1, 8, lambda rng: (floats(rng, 8, 20), zeros(8, K), zeros(8, K, dtype=np.int32)),
    answer=lambda x, values, places: (-np.sort(-x)[:, :K], np.argsort(-x)[:, :K]))  # fmt: skip
def top_k(x, values, places):
    """The K largest of each row, by insertion into registers."""
    row = cuda.grid(1)
    best = cuda.local.array(K, float32)
    where = cuda.local.array(K, int32)
    for k in range(K):
        best[k] = -1e30
        where[k] = -1
    for j in range(x.shape[1]):
        v, place = x[row, j], int32(j)
        for k in range(K):
            if v > best[k]:
                best[k], v = v, best[k]
                where[k], place = place, where[k]
    for k in range(K):
        values[row, k] = best[k]
        places[row, k] = where[k]


TEXT = np.frombuffer(b"in the end the theory of the thing bothers them", np.uint8)


@launched(2, N, lambda rng: (TEXT.copy(), np.frombuffer(b"the", np.uint8).copy(),
    zeros(len(TEXT), dtype=np.int8), zeros(1, dtype=np.int32)),
    answer=lambda text, word, found, count: np.array([6]))  # fmt: skip
def find_word(text, word, found, count):
    i = cuda.grid(1)
    if i > text.size - word.size:
        return
    for j in range(word.size):
        if text[i + j] != word[j]:
            break
    else:
        found[i] = 1
        cuda.atomic.add(count, 0, 1)


@launched(1, N, lambda rng: (TEXT[:20].copy(), TEXT[7:27].copy(), zeros(1, dtype=np.int64)),
    answer=lambda a, b, out: np.array([edit_distance_answer(a, b)]))  # fmt: skip
def edit_distance(a, b, out):
    """Anti-diagonals of the table in turn, three of them in shared memory."""
    table = cuda.shared.array((3, N), int32)
    t = cuda.threadIdx.x
    m, n = a.size, b.size
    for diagonal in range(m + n + 1):
        now, before, long_before = diagonal % 3, (diagonal + 2) % 3, (diagonal + 1) % 3
        j = diagonal - t
        if t <= m and 0 <= j <= n:
            if t == 0:
                table[now, t] = j
            elif j == 0:
                table[now, t] = t
            else:
                replaced = table[long_before, t - 1] + (0 if a[t - 1] == b[j - 1] else 1)
                shifted = min(table[before, t - 1], table[before, t]) + 1
                table[now, t] = min(replaced, shifted)
        cuda.syncthreads()
    if t == m:
        out[0] = table[(m + n) % 3, m]


def edit_distance_answer(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row = row, [i]
        for j, y in enumerate(b, 1):
            row.append(min(before[j - 1] + int(x != y), before[j] + 1, row[j - 1] + 1))
    return row[-1]


@launched(1, (8, 8), lambda rng: (rng.integers(1, 30, (8, 8)),),
    answer=lambda d: floyd_warshall_answer(d))  # fmt: skip
def floyd_warshall(distance):
    cells = cuda.shared.array((8, 8), int64)
    j, i = cuda.threadIdx.x, cuda.threadIdx.y
    cells[i, j] = 0 if i == j else distance[i, j]
    for k in range(8):
        cuda.syncthreads()
        through = cells[i, k] + cells[k, j]  # by way of k nothing gets nearer to k itself
        if through < cells[i, j]:
            cells[i, j] = through
    distance[i, j] = cells[i, j]


def floyd_warshall_answer(d):
    d = d * (1 - np.eye(8, dtype=int))
    for k in range(8):
        d = np.minimum(d, d[:, k, None] + d[k])
    return d


EDGES_FROM = np.array([0, 3, 5, 6, 8, 8, 9])
EDGES_TO = np.array([1, 2, 3, 3, 4, 4, 0, 5, 2])


@launched(1, N, lambda rng: (EDGES_FROM, EDGES_TO, np.array([0, 1, 1, 1, -1, -1]), 1,
    zeros(6, dtype=np.int64)),
    answer=lambda offsets, targets, level, depth, next_level: np.array([0, 0, 0, 0, 2,
    2]))  # fmt: skip
def bfs_level(offsets, targets, level, depth, next_level):
    """One step: unvisited neighbours of this level get the next one; all agree on the number."""
    v = cuda.grid(1)
    if v < level.size and level[v] == depth:
        for e in range(offsets[v], offsets[v + 1]):
            w = targets[e]
            if level[w] < 0:
                next_level[w] = depth + 1


@launched(1, N, lambda rng: (np.array([1, 2, 3, 4, 5, 6, 7, 7]), zeros(8, dtype=np.int64)),
    answer=lambda parent, root: np.full(8, 7))  # fmt: skip
def pointer_jumping(parent, root):
    """Everyone follows the pointers of a list to its end, in logarithmically many rounds."""
    hop = cuda.shared.array(8, int64)
    t = cuda.threadIdx.x
    if t < 8:
        hop[t] = parent[t]
    for _ in range(3):
        cuda.syncthreads()
        next_hop = hop[hop[t]] if t < 8 else 0
        cuda.syncthreads()
        if t < 8:
            hop[t] = next_hop
    if t < 8:
        root[t] = hop[t]


@launched(1, N, lambda rng: (integers(rng, 40, low=0, high=12), zeros(12, dtype=bool),
    zeros(1, dtype=np.int32)),
    answer=lambda x, seen, count: (np.isin(np.arange(12), x), np.array([len(set(x))])))  # fmt: skip
def count_distinct(x, seen, count):
    flags = cuda.shared.array(12, boolean)
    t = cuda.threadIdx.x
    if t < 12:
        flags[t] = False
    cuda.syncthreads()
    for i in range(t, x.size, cuda.blockDim.x):
        flags[x[i]] = True
    cuda.syncthreads()
    if t < 12:
        seen[t] = flags[t]
        if flags[t]:
            cuda.atomic.add(count, 0, 1)
