"""How long does topk_decode take, by the number of pages that it reads?

Beside it in one run: paged_attn_decode, which reads all pages, and a copy of the bounds, which are
read whatever k is.
"""

import cupy
import numpy as np

from benchmarks.timing import save, time_ms
from fa_numba import paged_attn_decode, topk_decode
from fa_numba.kv_cache import page_scores
from fa_numba.kv_cache.top_pages import top_pages

BATCH, SIZES, PAGE_SIZE = 8, (2048, 8192, 32_768, 131_072), 16
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
NUM_TOP_PAGES = 16, 64, 256, 1024
REPEATS = 9


def main():
    save(
        "topk_decode",
        [row for seqlen in SIZES for row in measure(seqlen)],
        note=f"{BATCH} sequences, one query each, shuffled pages of {PAGE_SIZE}, "
        f"{HEADS}/{KV_HEADS} heads of {HEAD_DIM}, float16; ms with L2 cold, Python's time not "
        "counted; all ms: paged_attn_decode; scores, choice: parts of ms; scores do not depend on "
        "k; copy: half of the time in which the bounds are copied; bytes: those of all pages over "
        "those of bounds and chosen pages, so the most that few pages can be faster",
    )


def measure(seqlen):
    """A row for each number of pages."""
    number = BATCH * seqlen // PAGE_SIZE
    shape = number, PAGE_SIZE, KV_HEADS, HEAD_DIM
    caches = [cupy.random.standard_normal(shape, np.float32).astype(np.float16) for _ in "kv"]
    q = cupy.random.standard_normal((BATCH, 1, HEADS, HEAD_DIM), np.float32).astype(np.float16)
    bounds = caches[0].min(axis=1), caches[0].max(axis=1)
    table = cupy.random.permutation(number).astype(np.int32).reshape(BATCH, -1)
    tables = table, cupy.full(BATCH, seqlen, np.int32)

    def timed(function, *args):
        return time_ms(function, *args, repeats=REPEATS)

    all_ms = timed(paged_attn_decode, q, *caches, *tables)
    scores = page_scores(q, *bounds, *tables, PAGE_SIZE)
    scores_ms = timed(page_scores, q, *bounds, *tables, PAGE_SIZE)
    both, copied = cupy.stack(bounds), cupy.empty((2, *bounds[0].shape), bounds[0].dtype)
    copy_ms = timed(cupy.copyto, copied, both) / 2
    for top in NUM_TOP_PAGES:
        if top * PAGE_SIZE >= seqlen:
            continue
        ms = timed(topk_decode, q, *caches, *bounds, *tables, top)
        yield {
            "seqlen": seqlen,
            "pages": top,
            "share of pages": round(top * PAGE_SIZE / seqlen, 4),
            "ms": round(ms, 4),
            "scores": round(scores_ms, 4),
            "copy": round(copy_ms, 4),
            "choice": round(timed(top_pages, scores, *tables, PAGE_SIZE, top), 4),
            "all ms": round(all_ms, 4),
            "faster": round(all_ms / ms, 2),
            "bytes": round(1 / (1 / PAGE_SIZE + top * PAGE_SIZE / seqlen), 2),
        }
