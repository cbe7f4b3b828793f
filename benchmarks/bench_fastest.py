"""Which forward kernel is fastest for which problem? Writes fa_numba/fastest.json.

`fa_numba.flash_attn` looks there for the problem most like its own. On a GPU the GPU's part is
measured, else the CPU engine's; the other part stays as it was.
"""

import datetime
import itertools
import json
import statistics
import time

import numpy as np

from benchmarks.timing import machine, time_ms
from fa_numba import arrays, dispatch

WIDTH = 2048  # num_heads * head_dim
TOKENS = 16384  # batch * seqlen of a large problem; a small one has one sequence
REPEATS = 5
FAR_BEHIND = 5  # a kernel that takes so many times the best's time is not asked at longer ones


def main():
    record = json.loads(dispatch.TABLE.read_text()) if dispatch.TABLE.exists() else {}
    on_gpu = arrays.gpu_available()
    problems, slow = gpu_problems() if on_gpu else cpu_problems(), set()
    record["gpu" if on_gpu else "cpu"] = {
        "machine": machine(),
        "command": "python -m benchmarks fastest",
        "date": datetime.date.today().isoformat(),
        "rows": [measure(problem, slow) for problem in problems],
    }
    write(record)


def write(record):
    """As JSON, a row in a line."""
    parts = []
    for name, part in sorted(record.items()):
        lines = [
            f"{json.dumps(key)}: {json.dumps(part[key])}" for key in sorted(part) if key != "rows"
        ]
        rows = ",\n   ".join(map(json.dumps, part["rows"]))
        parts.append(f'"{name}": {{\n  ' + ",\n  ".join([*lines, f'"rows": [\n   {rows}]']) + "}")
    dispatch.TABLE.write_text("{\n " + ",\n ".join(parts) + "}\n")


def gpu_problems():
    """Yield (dtype, batch, seqlen_q, seqlen_k, num_heads, head_dim, causal)."""
    for dtype, head_dim in itertools.product(("float32", "float16"), (64, 128, 256)):
        heads = WIDTH // head_dim
        for seqlen, causal in itertools.product((128, 512, 2048, 8192), (False, True)):
            for batch in {1, TOKENS // seqlen} if seqlen < 8192 else {TOKENS // seqlen}:
                yield dtype, batch, seqlen, seqlen, heads, head_dim, causal
        for batch, seqlen_q, seqlen_k in (
            (1, 1, 65536),
            (16, 1, 4096),
            (1, 16, 8192),
            (8, 16, 512),
        ):
            yield dtype, batch, seqlen_q, seqlen_k, heads, head_dim, False


def cpu_problems():
    for head_dim, seqlen, causal in itertools.product((16, 64), (32, 256), (False, True)):
        yield "float32", 1, seqlen, seqlen, 2, head_dim, causal
    yield "float32", 1, 1, 2048, 2, 64, False


def measure(problem, slow):
    """A row of the table: the time of each kernel that can. `slow` holds those far behind."""
    dtype, batch, seqlen_q, seqlen_k, num_heads, head_dim, causal = problem
    q, k, v = inputs(dtype, batch, seqlen_q, seqlen_k, num_heads, head_dim)
    options = {"causal": True} if causal else {}
    able = [c for c in dispatch.CANDIDATES.values() if c.refusal(q, k, v, options) is None]
    kind = dtype, head_dim, causal
    able = [c for c in able if (c.name, *kind) not in slow]
    ms = {c.name: float(f"{milliseconds(c, q, k, v, **options):.3g}") for c in able}
    slow |= {(name, *kind) for name in ms if ms[name] > FAR_BEHIND * min(ms.values())}
    row = {
        "dtype": dtype,
        "batch": batch,
        "seqlen_q": seqlen_q,
        "seqlen_k": seqlen_k,
        "num_heads": num_heads,
        "head_dim": head_dim,
        "causal": causal,
        "ms": ms,
    }
    print(row, flush=True)
    return row


def inputs(dtype, batch, seqlen_q, seqlen_k, num_heads, head_dim):
    shapes = [(batch, n, num_heads, head_dim) for n in (seqlen_q, seqlen_k, seqlen_k)]
    if not arrays.gpu_available():
        rng = np.random.default_rng(0)
        return [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    import cupy

    return [cupy.random.standard_normal(shape, dtype=np.float32).astype(dtype) for shape in shapes]


def milliseconds(function, *args, **options):
    if arrays.gpu_available():
        return time_ms(function, *args, repeats=REPEATS, **options)
    function(*args, **options)
    samples = []
    for _ in range(REPEATS):
        start = time.process_time()
        function(*args, **options)
        samples.append(1e3 * (time.process_time() - start))
    return statistics.median(samples)


if __name__ == "__main__":
    main()
