"""Which kernel is fastest for which problem, forward and backward? Writes fa_numba/fastest.json.

`fa_numba.flash_attn` and `flash_attn_grad` look there for the problem most like their own. On a GPU
the GPU's part is measured, else the CPU engine's; the other part is kept.
"""

import datetime
import itertools
import json
import statistics
import time

import numpy as np
from numba import cuda

from benchmarks.timing import machine, time_ms
from fa_numba import dispatch
from fa_numba.runtime import arrays

WIDTH = 2048  # num_heads * head_dim
TOKENS = 16384  # batch * seqlen of a large problem; a small one has one sequence
REPEATS = 5
FAR_BEHIND = 5  # a kernel that takes so many times the best's time is not asked at longer ones
TABLES = ("rows", "gradients")  # of problems, forward and backward


def main():
    record = json.loads(dispatch.TABLE.read_text()) if dispatch.TABLE.exists() else {}
    on_gpu = arrays.gpu_available()
    problems = gpu_problems if on_gpu else cpu_problems
    gradient_problems = gpu_gradient_problems if on_gpu else cpu_gradient_problems
    slow = set()
    record["gpu" if on_gpu else "cpu"] = {
        "machine": machine(),
        "command": "python -m benchmarks fastest",
        "date": datetime.date.today().isoformat(),
        "rows": [measure(problem, slow) for problem in problems()],
        "gradients": [measure_gradients(problem, slow) for problem in gradient_problems()],
    }
    if on_gpu:
        record["gpu"]["compute_capability"] = cuda.get_current_device().compute_capability[:2]
    write(record)


def write(record):
    """As JSON, a row in a line."""
    parts = []
    for name, part in sorted(record.items()):
        lines = [
            f"{json.dumps(key)}: {json.dumps(part[key])}"
            for key in sorted(part)
            if key not in TABLES
        ]
        for key in TABLES:
            rows = ",\n   ".join(map(json.dumps, part[key]))
            lines.append(f'"{key}": [\n   {rows}]')
        parts.append(f'"{name}": {{\n  ' + ",\n  ".join(lines) + "}")
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


def gpu_gradient_problems():
    """The same, and deterministic, of gradients; but 256 columns, which few of the kernels have."""
    for dtype, head_dim in itertools.product(("float32", "float16"), (64, 128)):
        heads = WIDTH // head_dim
        for seqlen, causal in itertools.product((128, 1024, 8192), (False, True)):
            for batch in {1, TOKENS // seqlen} if seqlen < 8192 else {TOKENS // seqlen}:
                yield dtype, batch, seqlen, seqlen, heads, head_dim, causal, False
            if seqlen == 1024:
                yield dtype, TOKENS // seqlen, seqlen, seqlen, heads, head_dim, causal, True


def cpu_gradient_problems():
    for seqlen, causal in itertools.product((32, 128), (False, True)):
        yield "float32", 1, seqlen, seqlen, 2, 16, causal, False


def measure(problem, slow):
    """A row of the table: the time of each kernel that can. `slow` holds those far behind."""
    *sizes, head_dim, causal = problem
    options = {"causal": True} if causal else {}
    arguments = dispatch.Inputs(*inputs(*sizes, head_dim))
    return row_of(dispatch.CANDIDATES, problem, arguments, options, slow)


def measure_gradients(problem, slow):
    """The same for the kernels that compute gradients."""
    *sizes, head_dim, causal, deterministic = problem
    options = {"causal": True} if causal else {}
    q, k, v = inputs(*sizes, head_dim)
    dout, *_ = inputs(*sizes, head_dim)
    out, lse = dispatch.flash_attn(q, k, v, **options)
    if deterministic:
        options["deterministic"] = True
    arguments = dispatch.GradientInputs(dout, q, k, v, out, lse)
    row = row_of(dispatch.GRADIENTS, problem[:-1], arguments, options, slow)
    return {**row, "deterministic": True} if deterministic else row


def row_of(candidates, problem, arguments, options, slow):
    dtype, batch, seqlen_q, seqlen_k, num_heads, head_dim, causal = problem
    able = [c for c in candidates.values() if c.refusal(arguments, options) is None]
    kind = dtype, head_dim, causal
    able = [c for c in able if (c.name, *kind) not in slow]
    ms = {c.name: float(f"{milliseconds(c, *arguments, **options):.3g}") for c in able}
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
