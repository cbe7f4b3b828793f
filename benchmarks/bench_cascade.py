"""How much of the bytes that a shared prefix saves does cascade_decode save in time?

Requests share a prefix, and each has a suffix of its own. In one run: plain paged decoding and the
cascade, with the prefix's pages one after the other and shuffled. Calls are in CUDA graphs; outputs
are compared with each other first.

    python -m benchmarks.bench_cascade parts        what each launch takes; other splits
"""

import sys
from unittest import mock

import cupy
import numpy as np

from benchmarks.timing import save
from fa_numba import cascade_decode, paged_attn_decode
from fa_numba.kv_cache import cascade_plan
from fa_numba.runtime import arrays, launching
from fa_numba.tiling.split_tiling import make_tiling

REQUESTS, PREFIXES, SUFFIX, PAGE_SIZE = 32, (1024, 8192, 32_768), 256, 16
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
CALLS, REPLAYS = 5, 15  # of a CUDA graph
EARLY_CONFIG = launching.early_config.__wrapped__  # of a launch that begins early


def main():
    rows = [row for prefix in PREFIXES for row in measure(prefix)]
    save(
        "cascade",
        rows,
        note=f"{REQUESTS} requests, one query each, suffixes of {SUFFIX}, pages of {PAGE_SIZE}, "
        f"{HEADS}/{KV_HEADS} heads of {HEAD_DIM}, float16; a call in a CUDA graph of {CALLS}; "
        "faster: time of plain paged decoding over this; bytes: the same of the bytes of K and V; "
        "of bytes: faster over bytes",
    )


def problem_of(prefix):
    """q, k_cache, v_cache, lengths; block tables by the order of the prefix's pages."""
    shared, own = prefix // PAGE_SIZE, SUFFIX // PAGE_SIZE
    num_pages = shared + REQUESTS * own
    rng = np.random.default_rng(0)
    shape = (num_pages, PAGE_SIZE, KV_HEADS, HEAD_DIM)
    k, v = (cupy.random.standard_normal(shape, np.float32).astype(np.float16) for _ in "kv")
    q = cupy.random.standard_normal((REQUESTS, 1, HEADS, HEAD_DIM), np.float32).astype(np.float16)
    lengths = np.full(REQUESTS, prefix + SUFFIX, np.int32)
    orders = {"one after the other": np.arange(num_pages), "shuffled": rng.permutation(num_pages)}
    tables = {}
    for name, order in orders.items():
        first = np.broadcast_to(order[:shared], (REQUESTS, shared))
        tables[name] = np.hstack([first, order[shared:].reshape(REQUESTS, own)]).astype(np.int32)
    return q, k, v, lengths, tables


def measure(prefix):
    """Rows for one length of the prefix."""
    q, k, v, lengths, block_tables = problem_of(prefix)
    promised = REQUESTS * (prefix + SUFFIX) / (prefix + REQUESTS * SUFFIX)
    rows = []
    for name, table in block_tables.items():
        plan = cascade_plan(table, lengths, PAGE_SIZE).on_device_of(q)
        tables = cupy.asarray(table), cupy.asarray(lengths)
        plain_ms, want = time_graph(lambda tables=tables: paged_attn_decode(q, k, v, *tables)[0])
        ms, got = time_graph(lambda plan=plan: cascade_decode(q, k, v, plan)[0])
        error = float(cupy.linalg.norm(got - want) / cupy.linalg.norm(want))
        assert error < 2e-3, f"{prefix}, {name}: {error}"
        rows.append(
            {
                "prefix": prefix,
                "pages of the prefix": name,
                "plain ms": round(plain_ms, 4),
                "cascade ms": round(ms, 4),
                "faster": round(plain_ms / ms, 2),
                "bytes": round(promised, 2),
                "of bytes": round(plain_ms / ms / promised, 3),
            }
        )
    return rows


def parts(prefix):
    """Print times of plain decoding, of a call, without a kernel, and with other tiles."""
    from fa_numba.tensor_core import flash_attn_split as split
    from fa_numba.tensor_core import shared_segment

    launch, launch_parts = arrays.launch, split.launch_parts
    q, k, v, lengths, tables = problem_of(prefix)
    plans = {x: cascade_plan(y, lengths, PAGE_SIZE).on_device_of(q) for x, y in tables.items()}
    table = cupy.asarray(tables["shuffled"]), cupy.asarray(lengths)
    # A replay would launch what was recorded.
    attend = shared_segment.attend_together.__wrapped__

    def say(what, order="shuffled"):
        with mock.patch.object(shared_segment, "attend_together", attend):
            ms, _ = time_graph(lambda: cascade_decode(q, k, v, plans[order])[0])
        print(f"{prefix}, {what}: {ms:.4f} ms", flush=True)

    def of_neighbours(call, tiling, splits, k, v, parts, table):
        """As if there were no pages: those of the prefix are the first ones."""
        keys = (x[: table.size].reshape(1, -1, KV_HEADS, HEAD_DIM) for x in (k, v))
        launch_parts(call, tiling, splits, *keys, parts)

    plain_ms, _ = time_graph(lambda: paged_attn_decode(q, k, v, *table)[0])
    print(f"{prefix}, plain decoding: {plain_ms:.4f} ms", flush=True)
    say("a call")
    with mock.patch.object(launching, "early_config", in_order):
        say("the second launch after the first one")
    with mock.patch.object(split, "launch_parts", of_neighbours):
        say("without pages", "one after the other")
    for left_out in "flash_decode_gather_kernel", "flash_attn_split_kernel":

        def launched(kernel, *given, left_out=left_out, **more):
            if kernel.__name__ != left_out:
                launch(kernel, *given, **more)

        with mock.patch.object(arrays, "launch", launched):
            say(f"without {left_out}")
    for consumers, heads in ((1, 2), (2, 4)):
        for splits in (4, 8, 12, 16, 24, 32):
            chosen = make_tiling(HEAD_DIM, consumers, heads), splits
            with mock.patch.object(split, "tiling_of", return_value=chosen):
                say(f"{64 * consumers} rows, {splits} splits")


def in_order(*sizes_and_stream):
    """A description of a launch that begins when the kernel before it has ended."""
    config = EARLY_CONFIG(*sizes_and_stream)
    config.numAttrs = 0
    return config


def time_graph(function):
    """Milliseconds of a call in a CUDA graph of several; and its result."""
    memory, stream = cupy.cuda.MemoryPool(), cupy.cuda.Stream(non_blocking=True)
    with cupy.cuda.using_allocator(memory.malloc), stream:
        result = [function() for _ in range(CALLS + 1)][-1]  # the pool then has the memory for them
        stream.begin_capture()
        kept = [function() for _ in range(CALLS)]
        graph = stream.end_capture()
        times = []
        for _ in range(REPLAYS + 1):
            start, end = cupy.cuda.Event(), cupy.cuda.Event()
            start.record()
            graph.launch(stream)
            end.record()
            end.synchronize()
            times.append(cupy.cuda.get_elapsed_time(start, end) / CALLS)
        del kept
    return sorted(times[1:])[REPLAYS // 2], result.astype(np.float32)


if __name__ == "__main__":
    if "parts" not in sys.argv:
        main()
    else:
        for prefix in (256, 512, *PREFIXES):
            parts(prefix)
