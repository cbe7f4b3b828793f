"""How close is decoding to the speed of memory, by number of splits, and what do pages cost?"""

import cupy
import numpy as np

from benchmarks.peers import sdpa
from benchmarks.timing import save, time_ms
from fa_numba.kernels.flash_decode import flash_decode
from fa_numba.kernels.paged_attn_decode import paged_attn_decode

HEAD_DIM = 128
SIZES = ((1, 131_072), (16, 8192), (64, 2048))  # sequences, tokens of each
HEADS = ((32, 32), (32, 8))  # of the query, of K and V
SPLITS = (1, 2, 4, 8, 16, 32, 64)  # and 0, chosen
PAGE_SIZES = (1, 16, 256)


def main():
    rows = []
    for batch, seqlen in SIZES:
        for num_heads, num_kv_heads in HEADS:
            sizes = {"batch": batch, "seqlen": seqlen, "heads": f"{num_heads}/{num_kv_heads}"}
            for name, splits, page_size, ms in measure(batch, seqlen, num_heads, num_kv_heads):
                moved = 2 * 4 * batch * seqlen * num_kv_heads * HEAD_DIM
                rows.append(
                    {"kernel": name, **sizes, "num_splits": splits, "page_size": page_size}
                    | {"ms": round(ms, 4), "GB/s": round(moved / ms / 1e6)}
                )
    note = (
        f"float32, one query of each sequence, head_dim {HEAD_DIM}; num_splits 0 is chosen; "
        "GB/s counts K and V once"
    )
    save("decode", rows, note=note)


def measure(batch, seqlen, num_heads, num_kv_heads):
    """Yield (name, num_splits, page_size, milliseconds): ours, then PyTorch's."""
    import torch

    rng = cupy.random.default_rng(0)
    q = rng.standard_normal((batch, 1, num_heads, HEAD_DIM), dtype=np.float32)
    shape = (batch, seqlen, num_kv_heads, HEAD_DIM)
    k, v = (rng.standard_normal(shape, dtype=np.float32) for _ in range(2))
    seq_lens = cupy.full(batch, seqlen, np.int32)
    for splits in (0, *SPLITS):
        ms = time_ms(flash_decode, q, k, v, seq_lens, num_splits=splits, repeats=8)
        yield "flash_decode", splits, None, ms
    for page_size in PAGE_SIZES:
        pages = seqlen // page_size
        order = cupy.asarray(np.random.default_rng(0).permutation(batch * pages))
        block_table = order.reshape(batch, pages).astype(np.int32)  # never 0, 1, 2, ...
        paged = (batch * pages, page_size, num_kv_heads, HEAD_DIM)
        k_cache, v_cache = cupy.empty(paged, np.float32), cupy.empty(paged, np.float32)
        k_cache[order], v_cache[order] = k.reshape(paged), v.reshape(paged)
        arguments = (q, k_cache, v_cache, block_table, seq_lens)
        ms = time_ms(paged_attn_decode, *arguments, repeats=8)
        yield "paged_attn_decode", 0, page_size, ms
        del k_cache, v_cache, arguments
    call, _ = sdpa("", *(torch.as_tensor(x, device="cuda") for x in (q, k, v)))
    yield "SDPA, PyTorch's choice", None, None, time_ms(call, repeats=8)
