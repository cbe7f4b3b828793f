"""How much of attention's weight is on the pages that topk_decode reads, and what is the error?

Keys of one long sequence: normal ones, which a row attends to alike, and keys in clusters, as many
as a document has topics, where a query is near to one. In NumPy, on a CPU: recall is the share of
the softmax's weight on the pages that are read; the error is that of out against all keys.
"""

import numpy as np

from benchmarks.timing import save
from fa_numba import reference, topk_decode
from fa_numba.kv_cache import page_scores, update_page_bounds
from fa_numba.kv_cache.top_pages import top_pages

KEYS, PAGE_SIZE, HEADS, KV_HEADS, HEAD_DIM = 8192, 16, 8, 2, 64
QUERIES, TOPICS = 8, 32  # a topic is a run of neighbouring keys
NUM_TOP_PAGES = (4, 16, 32, 64, 128, 256, 512)
DATA = "normal", "topics"


def main():
    rows = [row for data in DATA for row in measure(data)]
    save(
        "topk_pages",
        rows,
        note=f"{KEYS} keys in pages of {PAGE_SIZE}, {HEADS}/{KV_HEADS} heads of {HEAD_DIM}, "
        f"{QUERIES} queries, float32, NumPy on a CPU; topics: {TOPICS} runs of keys around a "
        "centre each, a query is near one of them; recall: share of the weight on the pages that "
        "are read, mean of rows; error: ‖out − exact‖ / ‖exact‖; bytes: those of bounds and pages "
        "over those of all K and V",
    )


def made(data, rng):
    q = rng.standard_normal((QUERIES, 1, HEADS, HEAD_DIM), np.float32)
    k, v = rng.standard_normal((2, KEYS, KV_HEADS, HEAD_DIM), np.float32)
    if data == "topics":
        centres = 1.5 * rng.standard_normal((TOPICS, KV_HEADS, HEAD_DIM), np.float32)
        k = 0.5 * k + np.repeat(centres, KEYS // TOPICS, axis=0)
        near = centres[rng.integers(TOPICS, size=QUERIES)]
        q = 0.5 * q + np.repeat(near, HEADS // KV_HEADS, axis=1)[:, None]
    return q, k, v


def measure(data):
    """A row for each number of pages."""
    rng = np.random.default_rng(0)
    q, k, v = made(data, rng)
    num_pages = KEYS // PAGE_SIZE
    caches = [x.reshape(num_pages, PAGE_SIZE, KV_HEADS, HEAD_DIM) for x in (k, v)]
    bounds = np.empty((2, num_pages, KV_HEADS, HEAD_DIM), np.float32)
    update_page_bounds(k, *bounds, np.arange(KEYS, dtype=np.int32), PAGE_SIZE)
    table = np.tile(np.arange(num_pages, dtype=np.int32), (QUERIES, 1))
    lengths = np.full(QUERIES, KEYS, np.int32)
    exact, _ = reference.paged_attention(q, *caches, table, lengths)
    groups = q[:, 0].reshape(QUERIES, KV_HEADS, -1, HEAD_DIM)
    s = np.einsum("bhgd,nhd->bhgn", groups, k) / np.sqrt(HEAD_DIM)
    p = np.exp(s - s.max(axis=3, keepdims=True))
    p /= p.sum(axis=3, keepdims=True)
    weight = p.reshape(*p.shape[:3], num_pages, PAGE_SIZE).sum(axis=4)
    scores = page_scores(q, *bounds, table, lengths, PAGE_SIZE)
    for top in NUM_TOP_PAGES:
        out, _ = topk_decode(q, *caches, *bounds, table, lengths, top)
        chosen, _ = top_pages(scores, table, lengths, PAGE_SIZE, top)
        pages = chosen.reshape(QUERIES, KV_HEADS, 1, -1) // (PAGE_SIZE * KV_HEADS)
        recall = np.take_along_axis(weight, np.broadcast_to(pages, (*weight.shape[:3], top)), 3)
        yield {
            "keys": data,
            "pages": top,
            "share of pages": round(top / num_pages, 4),
            "bytes": round(top / num_pages + 2 / PAGE_SIZE / 2, 3),
            "recall": round(float(recall.sum(axis=3).mean()), 4),
            "error": float(f"{np.linalg.norm(out - exact) / np.linalg.norm(exact):.2g}"),
        }
