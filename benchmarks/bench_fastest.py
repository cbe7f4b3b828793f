"""Which kernel is fastest for which problem, forward and backward? Writes fa_numba/fastest.json.

`fa_numba.flash_attn` and `flash_attn_grad` look there for the problem most like their own.
"""

import datetime
import itertools
import json

import cupy
import numpy as np
from numba import cuda

from benchmarks.timing import machine, time_ms
from fa_numba import dispatch
from fa_numba.dispatch import attention, measured
from fa_numba.runtime import arrays

WIDTH = 2048  # num_heads * head_dim
TOKENS = 16384  # batch * seqlen of a large problem; a small one has one sequence
REPEATS = 5
FAR_BEHIND = 5  # a kernel that takes so many times the best's time is not asked at longer ones
TABLES = ("rows", "gradients")  # of problems, forward and backward


def main():
    slow = set()
    write({
        "gpu": {
            "machine": machine(),
            "command": "python -m benchmarks fastest",
            "date": datetime.date.today().isoformat(),
            "compute_capability": cuda.get_current_device().compute_capability[:2],
            "rows": [measure(problem, slow) for problem in problems()],
            "gradients": [measure_gradients(problem, slow) for problem in gradient_problems()],
        }
    })  # fmt: skip


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
    measured.TABLE.write_text("{\n " + ",\n ".join(parts) + "}\n")


def problems():
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


def gradient_problems():
    """The same, and deterministic, of gradients; but 256 columns, which few of the kernels have."""
    for dtype, head_dim in itertools.product(("float32", "float16"), (64, 128)):
        heads = WIDTH // head_dim
        for seqlen, causal in itertools.product((128, 1024, 8192), (False, True)):
            for batch in {1, TOKENS // seqlen} if seqlen < 8192 else {TOKENS // seqlen}:
                yield dtype, batch, seqlen, seqlen, heads, head_dim, causal, False
            if seqlen == 1024:
                yield dtype, TOKENS // seqlen, seqlen, seqlen, heads, head_dim, causal, True


def measure(problem, slow):
    """A row of the table: the time of each kernel that can. `slow` holds those far behind."""
    *sizes, head_dim, causal = problem
    options = {"causal": True} if causal else {}
    return row_of("flash_attn", attention.Inputs, inputs(*sizes, head_dim), problem, options, slow)


def measure_gradients(problem, slow):
    """The same for the kernels that compute gradients."""
    *sizes, head_dim, causal, deterministic = problem
    options = {"causal": True} if causal else {}
    q, k, v = inputs(*sizes, head_dim)
    dout, *_ = inputs(*sizes, head_dim)
    out, lse = dispatch.flash_attn(q, k, v, **options)
    if deterministic:
        options["deterministic"] = True
    arguments = dout, q, k, v, out, lse
    kind = attention.GradientInputs
    row = row_of("flash_attn_grad", kind, arguments, problem[:-1], options, slow)
    return {**row, "deterministic": True} if deterministic else row


def row_of(job, kind, arguments, problem, options, slow):
    dtype, batch, seqlen_q, seqlen_k, num_heads, head_dim, causal = problem
    facts = kind(*map(arrays.facts, arguments))
    able = [
        (title, candidate)
        for title, candidate in dispatch.JOBS[job].candidates.items()
        if (title, dtype, head_dim, causal) not in slow
        and candidate.refusal(facts, options) is None
    ]
    ms = {
        title: float(f"{time_ms(candidate, *arguments, repeats=REPEATS, **options):.3g}")
        for title, candidate in able
    }
    limit = FAR_BEHIND * min(ms.values())
    slow |= {(title, dtype, head_dim, causal) for title in ms if ms[title] > limit}
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
    return [cupy.random.standard_normal(shape, dtype=np.float32).astype(dtype) for shape in shapes]


if __name__ == "__main__":
    main()
