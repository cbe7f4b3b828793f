"""What do pages cost? The lookup beside a plain copy, and scores of keys in pages beside dense."""

import cupy
import numpy as np
from numba import cuda, float32, int64

import fa_numba
from benchmarks.timing import save, time_ms
from fa_numba.runtime.arrays import launch

BATCH, SEQLEN, NUM_KV_HEADS, HEAD_DIM = 32, 4096, 8, 128
PAGE_SIZES = (1, 8, 16, 32, 128)
WARPS = 8  # per thread block


def make_scores(PAGED, PAGE_SIZE=None, INDEX=int64):
    """s[b, h, t] = q[b, h] . k[b, t, h], a warp per score; only the address differs.

    Without a PAGE_SIZE the kernel divides by that of `keys`; INDEX is the type of the division.
    """

    @cuda.jit
    def scores(q, keys, block_table, s):
        lane, t = cuda.threadIdx.x, cuda.blockIdx.x * WARPS + cuda.threadIdx.y
        h, b = cuda.blockIdx.y, cuda.blockIdx.z
        if t >= s.shape[2]:
            return
        if PAGED:
            page_size = INDEX(keys.shape[1] if PAGE_SIZE is None else PAGE_SIZE)
            row, offset = block_table[b, INDEX(t) // page_size], INDEX(t) % page_size
        else:
            row, offset = b, t
        total = float32(0)
        for i in range(lane, q.shape[2], 32):
            total += q[b, h, i] * keys[row, offset, h, i]
        shift = 16
        while shift > 0:
            total += cuda.shfl_down_sync(0xFFFFFFFF, total, shift)
            shift //= 2
        if lane == 0:
            s[b, h, t] = total

    return scores


def main():
    rng = cupy.random.default_rng(0)
    shape = (BATCH, SEQLEN, NUM_KV_HEADS, HEAD_DIM)
    k, v = (rng.standard_normal(shape, dtype=np.float32) for _ in range(2))
    q = rng.standard_normal((BATCH, NUM_KV_HEADS, HEAD_DIM), dtype=np.float32)
    s = cupy.empty((BATCH, NUM_KV_HEADS, SEQLEN), np.float32)
    seq_lens = cupy.full(BATCH, SEQLEN, np.int32)
    grid, block = (SEQLEN // WARPS, NUM_KV_HEADS, BATCH), (32, WARPS)

    k_copy, v_copy = cupy.empty_like(k), cupy.empty_like(v)
    ms = time_ms(lambda: (cupy.copyto(k_copy, k), cupy.copyto(v_copy, v)))
    rows = [row("plain copy", None, ms, 4 * k.nbytes)]
    no_table = cupy.zeros((1, 1), np.int32)
    ms = time_ms(launch, make_scores(False), grid, block, q, k, no_table, s)
    rows.append(row("scores, dense keys", None, ms, k.nbytes))
    expected = s.copy()

    for page_size in PAGE_SIZES:
        pages = SEQLEN // page_size
        order = cupy.asarray(np.random.default_rng(0).permutation(BATCH * pages))
        block_table = order.reshape(BATCH, pages).astype(np.int32)  # never 0, 1, 2, ...
        k_cache, v_cache = (cupy.empty((BATCH * pages, page_size, *shape[2:]), np.float32)
                            for _ in range(2))  # fmt: skip
        k_cache[order], v_cache[order] = k.reshape(k_cache.shape), v.reshape(v_cache.shape)

        arguments = (k_cache, v_cache, block_table, seq_lens)
        k_out, v_out = fa_numba.paged_kv_lookup(*arguments, max_len=SEQLEN)
        assert bool((k_out == k).all() and (v_out == v).all()), page_size
        del k_out, v_out
        ms = time_ms(fa_numba.paged_kv_lookup, *arguments, max_len=SEQLEN)
        rows.append(row("lookup", page_size, ms, 4 * k.nbytes))

        s.fill(np.nan)
        ms = time_ms(launch, make_scores(True), grid, block, q, k_cache, block_table, s)
        assert bool((s == expected).all()), page_size
        rows.append(row("scores, keys in pages", page_size, ms, k.nbytes))
    rows.sort(key=lambda row: (row["what"] not in ("plain copy", "lookup"), row["what"]))
    note = (
        f"float32, {BATCH} sequences of {SEQLEN} tokens, {NUM_KV_HEADS} K/V heads, head_dim "
        f"{HEAD_DIM}, pages shuffled; GB/s counts keys and values once per read and write"
    )
    save("paged", rows, note=note)


def row(what, page_size, ms, moved):
    gb_per_s = round(moved / ms / 1e6)
    return {"what": what, "page_size": page_size, "ms": round(ms, 4), "GB/s": gb_per_s}
