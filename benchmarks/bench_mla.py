"""How near to a copy's speed is latent attention (MLA), for 16 heads of a GPU in eight and for 128?

Before anything is timed, all of out is compared with float64 at that size. Times are those of
`bench_decode_fast`: with L2 cold, and in a CUDA graph.
"""

import torch

from benchmarks import bench_decode_fast as decode
from benchmarks.exact import ROUNDING, relative_error
from benchmarks.timing import save, time_graph
from fa_numba.tensor_core.mla_decode_mma import mla_decode_mma

LATENT_DIM, ROW_DIM = 512, 576
SCALE = 192**-0.5
PAGE_SIZE = 64
SIZES = ((64, 8192), (128, 8192))  # sequences, tokens of each
HEADS = (16, 32, 64, 128)


def main():
    save(
        "mla",
        [row for size in SIZES for heads in HEADS for row in measure(*size, heads)],
        note=f"one query of each sequence, bfloat16, rows of {ROW_DIM} numbers; TB/s counts the "
        "cache once; of copy: that over the bytes read and written per second by a copy of the "
        f"cache; graph: a call of {decode.CALLS} in a CUDA graph; error: ‖out − float64‖ / "
        "‖float64‖",
    )


def measure(batch, seqlen, num_heads):
    """The rows of one size: contiguous, and in shuffled pages."""
    torch.manual_seed(0)
    shape = (batch, seqlen, ROW_DIM)
    cache = torch.empty(shape, device="cuda", dtype=torch.bfloat16).normal_()
    q = torch.randn(batch, 1, num_heads, ROW_DIM, device="cuda").to(cache.dtype)
    lengths = torch.full((batch,), seqlen, dtype=torch.int32, device="cuda")
    want = definition(q, cache)
    copied = 2 * cache.nbytes / decode.time_copy(cache)
    rows = []
    for page_size in (None, PAGE_SIZE):
        rows_of, table = (cache, None) if page_size is None else in_pages(cache, page_size)

        def call(rows_of=rows_of, table=table):
            options = {"softmax_scale": SCALE, "block_table": table}
            return mla_decode_mma(q, rows_of, lengths, **options)[0]

        error = relative_error(call(), want)
        limit = 4 * ROUNDING["bfloat16"]
        assert error <= limit, f"{batch} × {seqlen}, {num_heads=}, {page_size=}: {error}"
        ms, graph_ms = decode.on_torch_stream(call), time_graph(call, decode.CALLS)
        rows.append(
            {
                "batch": batch,
                "seqlen": seqlen,
                "heads": num_heads,
                "page_size": page_size,
                "ms": round(ms, 4),
                "TB/s": round(cache.nbytes / ms / 1e9, 2),
                "of copy": round(cache.nbytes / ms / copied, 3),
                "graph ms": round(graph_ms, 4),
                "graph of copy": round(cache.nbytes / graph_ms / copied, 3),
                "TFLOP/s": round(work(batch, seqlen, num_heads) / graph_ms / 1e9),
                "error": float(f"{error:.2g}"),
            }
        )
        del rows_of, table, call
    return rows


def work(batch, seqlen, num_heads):
    """Floating-point operations of both products."""
    return 2 * batch * num_heads * seqlen * (ROW_DIM + LATENT_DIM)


def definition(q, cache):
    """Attention in float64 on the GPU, a sequence at a time."""
    out = torch.empty((*q.shape[:3], LATENT_DIM), dtype=torch.float64, device="cuda")
    for b, rows in enumerate(cache):
        rows = rows.double()
        out[b, 0] = torch.softmax(q[b, 0].double() @ rows.T * SCALE, dim=-1) @ rows[:, :LATENT_DIM]
    return out


def in_pages(cache, page_size):
    """The same tokens in shuffled pages, and the block table."""
    batch, seqlen, row_dim = cache.shape
    pages = cache.reshape(-1, page_size, row_dim)
    order = torch.randperm(len(pages), device="cuda")
    moved = torch.empty_like(pages)
    moved[order] = pages
    return moved, order.reshape(batch, seqlen // page_size).to(torch.int32)
