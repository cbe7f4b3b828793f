"""How near to the copy's speed do the fast decoding kernels read the cache, beside the libraries?

Before anything is timed, all of a kernel's output is compared with float64 at that size. A call in
a CUDA graph of `CALLS` calls is timed too. That time holds neither the launches nor the clearing of
L2, which is not needed: each call reads far more than L2 holds.

`python -m benchmarks.bench_decode_fast --wide` prints both decoders of heads above 256 columns
instead, and `--rings` other rings of `flash_decode_columns`.
"""

import itertools
import sys
from functools import partial

import cupy
import torch

from benchmarks.exact import ROUNDING, definition, relative_error
from benchmarks.peers import sdpa
from benchmarks.timing import save_each, time_graph, time_ms
from fa_numba.on_cuda_cores.flash_decode_wide import flash_decode_wide
from fa_numba.tensor_core import flash_decode_columns as columns
from fa_numba.tensor_core.flash_decode_gather import flash_decode_gather
from fa_numba.tensor_core.flash_decode_mma import flash_decode_mma

HEAD_DIM = 128
# For each dtype: the kernels, and the page sizes that some of them are timed with.
KERNELS = {
    "float16": (flash_decode_wide, flash_decode_mma, flash_decode_gather),
    "float32": (flash_decode_wide,),
}
PAGE_SIZES = (1, 16)
PAGED = {"float16": (flash_decode_mma, flash_decode_gather)}
SIZES = ((1, 65_536), (16, 8192), (64, 2048))  # sequences, tokens of each
HEADS = ((32, 32), (32, 8))  # of the query, of K and V
LIBRARIES = {"SDPA cuDNN": "CUDNN_ATTENTION", "SDPA FA2": "FLASH_ATTENTION"}
REPEATS = 10
CALLS = 5  # of a CUDA graph


def main():
    parts = {
        f"{dtype}, {batch} × {seqlen}, {heads[0]}/{heads[1]}": partial(
            measure, dtype, batch, seqlen, *heads
        )
        for dtype in KERNELS
        for batch, seqlen in SIZES
        for heads in HEADS
    }
    save_each(
        "decode_fast",
        parts,
        note=f"one query of each sequence, head_dim {HEAD_DIM}; GB/s counts K and V once; of copy: "
        "that over the bytes read and written per second by a copy of K to V; of best: over the "
        "quickest library's at that size; of contiguous: pages over our quickest without; "
        f"graph: a call of {CALLS} in a CUDA graph; error: ‖out − float64‖ / ‖float64‖",
    )


def measure(dtype, batch, seqlen, num_heads, num_kv_heads):
    """The rows of one size: each kernel and page size, then the libraries."""
    torch.manual_seed(0)
    q = torch.randn(batch, 1, num_heads, HEAD_DIM, device="cuda").to(getattr(torch, dtype))
    shape = (batch, seqlen, num_kv_heads, HEAD_DIM)
    k, v = (torch.empty(shape, device="cuda", dtype=q.dtype).normal_() for _ in range(2))
    want = definition(q, k, v)
    moved = k.nbytes + v.nbytes
    copy_ms = time_copy(k)
    sizes = {"dtype": dtype, "batch": batch, "seqlen": seqlen}
    sizes |= {"heads": f"{num_heads}/{num_kv_heads}"}
    rows = []
    for name, page_size, function in functions(q, k, v):
        error = relative_error(function(), want)
        if not name.startswith("SDPA"):  # of a library it is written down, whatever it is
            assert error <= 4 * ROUNDING[dtype], f"{name}, {sizes}, {page_size=}: {error}"
        ms, graph_ms = on_torch_stream(function), time_graph(function, CALLS)
        rows.append(
            {
                "kernel": name,
                **sizes,
                "page_size": page_size,
                "ms": round(ms, 4),
                "GB/s": round(moved / ms / 1e6),
                "graph GB/s": round(moved / graph_ms / 1e6),
                "of copy": round(moved / ms / (2 * k.nbytes / copy_ms), 3),
                "error": float(f"{error:.2g}"),
            }
        )
    compare(rows)
    return rows


def compare(rows):
    """Add each row's share of the fastest library, and the share of pages over no pages."""
    libraries = [row for row in rows if row["kernel"].startswith("SDPA")]
    ours = [row for row in rows if row not in libraries and row["page_size"] is None]
    for row in rows:
        row["of best"] = round(min(x["ms"] for x in libraries) / row["ms"], 3)
        of_graph = row["graph GB/s"] / max(x["graph GB/s"] for x in libraries)
        row["graph of best"] = round(of_graph, 3)
        if row["page_size"] is not None:
            row["of contiguous"] = round(min(x["ms"] for x in ours) / row["ms"], 3)


def functions(q, k, v):
    """Yield (name, page size, call without arguments that returns out)."""
    batch, seqlen = k.shape[:2]
    seq_lens = torch.full((batch,), seqlen, dtype=torch.int32, device="cuda")
    dtype = str(q.dtype).removeprefix("torch.")

    def call(decode, caches, table=None):
        return lambda: decode(q, *caches, seq_lens, block_table=table)[0]

    for decode in KERNELS[dtype]:
        yield decode.__name__, None, call(decode, (k, v))
    for page_size in PAGE_SIZES if dtype in PAGED else ():
        caches, table = paged(k, v, page_size)
        for decode in PAGED[dtype]:
            yield decode.__name__, page_size, call(decode, caches, table)
        del caches, table
    libraries = {"SDPA, PyTorch's choice": ""} if q.dtype == torch.float32 else LIBRARIES
    for name, library in libraries.items():
        yield name, None, sdpa(library, q, k, v)[0]


def paged(k, v, page_size):
    """The same tokens in shuffled pages."""
    batch, seqlen, *token = k.shape
    pages = seqlen // page_size
    order = torch.randperm(batch * pages, device="cuda")
    caches = []
    for x in (k, v):
        cache = torch.empty(batch * pages, page_size, *token, device="cuda", dtype=x.dtype)
        cache[order] = x.reshape(cache.shape)
        caches.append(cache)
    return caches, order.reshape(batch, pages).to(torch.int32)


def time_copy(x):
    """Milliseconds of a copy of x on the GPU."""
    y = torch.empty_like(x)
    return on_torch_stream(lambda: y.copy_(x))


def on_torch_stream(function):
    """`time_ms` where the libraries enqueue."""
    with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
        return time_ms(function, repeats=REPEATS)


def wide(groups=(1, 2, 4, 8, 16), page_sizes=(None, 16, 64), rings=()):
    """Print milliseconds and share of a copy's rate for heads of 320 and 512 columns.

    One query of each of 16 sequences of 8192 keys with 4 heads, compared with float64 before. With
    rings, tuples of keys of a tile and stages, flash_decode_columns alone is timed, with each.
    """
    choose, lengths = columns.choose_tiling, torch.full((16,), 8192, dtype=torch.int32).cuda()
    for head_dim in (320, 512):
        torch.manual_seed(0)
        shape = 16, 8192, 4, head_dim
        k, v = (torch.empty(shape, device="cuda", dtype=torch.float16).normal_() for _ in "kv")
        copy_ms = time_copy(k)
        caches = {x: paged(k, v, x) if x else ((k, v), None) for x in page_sizes}
        for group, page_size in itertools.product(groups, page_sizes):
            q = torch.randn(16, 1, 4 * group, head_dim, device="cuda").half()
            want, row = definition(q, k, v), {}
            given, table = caches[page_size]
            for form in rings or (flash_decode_wide, columns.flash_decode_columns):
                function = columns.flash_decode_columns if rings else form
                if rings:
                    columns.choose_tiling = lambda *_, ring=form: columns.Tiling(*ring)
                    function.replays.clear()
                call = partial(function, q, *given, lengths, block_table=table)
                error = relative_error(call()[0], want)
                assert error <= 4 * ROUNDING["float16"], f"{form}, {head_dim=}, {group=}: {error}"
                ms = on_torch_stream(call)
                row[form if rings else form.__name__] = round(ms, 4), round(copy_ms / ms, 3)
            print(f"d = {head_dim}, {group} rows, pages of {page_size}: {row}", flush=True)
    columns.choose_tiling = choose


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--wide"]:
            wide()
        case ["--rings"]:
            wide((4, 16), (None, 16), rings=((32, 3), (16, 4), (16, 6)))
        case _:
            main()
