"""Which kernel is fastest for which problem, forward and backward? Writes fa_numba/fastest.json.

`fa_numba.flash_attn` and `flash_attn_grad` look there for the problem most like their own. The
records of other GPUs are kept.
"""

import datetime
import itertools
import json
from typing import NamedTuple

import cupy
import numpy as np
from numba import cuda

from benchmarks.timing import machine, time_ms
from fa_numba import dispatch
from fa_numba.dispatch import attention, measured
from fa_numba.runtime import arrays
from fa_numba.workbook.tables import as_json

WIDTH = 2048  # num_heads * head_dim
TOKENS = 16384  # batch * seqlen of a large problem; a small one has one sequence
REPEATS = 5
GROUPED = (  # batch, queries, keys
    *itertools.product((1, 4, 16, 64), (1,), (1024, 4096, 16384)),
    *itertools.product((1, 4, 16), (4, 10), (1024, 4096)),
    (1, 1, 65536),
    (1, 4, 16384),
)
GROUPED_FLOAT32 = tuple(itertools.product((1, 4, 16), (1, 4, 10), (1024, 4096)))
UNGROUPED = tuple(itertools.product((1, 4, 16), (1,), (1024, 4096)))
FAR_BEHIND = 5  # a kernel that takes so many times the best's time is not asked at longer ones


def main():
    slow, gpu = set(), cuda.get_current_device()
    records = json.loads(measured.TABLE.read_text()) if measured.TABLE.exists() else {}
    records[arrays.gpu_name(cupy.empty(0))] = {
        "command": "python -m benchmarks fastest",
        "compute_capability": gpu.compute_capability[:2],
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "rows": [measure(problem, slow) for problem in dict.fromkeys(problems())],
        "gradients": [measure_gradients(problem, slow) for problem in gradient_problems()],
    }
    text = as_json(dict(sorted(records.items())))
    measured.TABLE.write_text(text + "\n", encoding="utf-8")


class Problem(NamedTuple):
    dtype: str
    batch: int
    seqlen_q: int
    seqlen_k: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    causal: bool = False
    deterministic: bool = False


def square(dtype, head_dims, seqlens):
    """Problems with as many queries as keys: one sequence, and many."""
    for head_dim, seqlen, causal in itertools.product(head_dims, seqlens, (False, True)):
        heads = WIDTH // head_dim
        for batch in sorted({1, TOKENS // seqlen} if seqlen < 8192 else {TOKENS // seqlen}):
            yield Problem(dtype, batch, seqlen, seqlen, heads, heads, head_dim, causal)


def problems():
    yield from square("float32", (64, 128, 256), (128, 512, 2048, 8192))
    yield from square("float16", (32, 64, 128, 256), (64, 128, 256, 512, 768, 1024, 2048, 8192))
    for dtype, head_dim in itertools.product(("float32", "float16"), (64, 128, 256)):
        heads = WIDTH // head_dim
        for sizes in ((1, 1, 65536), (16, 1, 4096), (1, 16, 8192), (8, 16, 512)):
            yield Problem(dtype, *sizes, heads, heads, head_dim)
    for head_dim in (64, 128):
        for sizes in UNGROUPED:
            yield Problem("float16", *sizes, WIDTH // head_dim, WIDTH // head_dim, head_dim)
    for head_dim, num_kv_heads in itertools.product((64, 128), (4, 8)):
        for sizes in GROUPED:  # the keys of grouped queries are read once
            yield Problem("float16", *sizes, 32, num_kv_heads, head_dim)
    for head_dim in (64, 128):
        for sizes in GROUPED_FLOAT32:
            yield Problem("float32", *sizes, 32, 8, head_dim)


def gradient_problems():
    """The same of gradients, and deterministic ones."""
    for dtype, head_dims in (("float32", (64, 128)), ("float16", (64, 80, 128))):
        for problem in square(dtype, head_dims, (128, 320, 1024, 8192)):
            yield problem
            if problem.seqlen_q == 1024 and problem.batch > 1:
                yield problem._replace(deterministic=True)
    for head_dim, seqlen in itertools.product((64, 128), (2048, 6144)):  # few heads
        yield Problem("float32", 1, seqlen, seqlen, 2, 2, head_dim, causal=seqlen == 6144)


def measure(problem, slow):
    """A row of the table: the time of each kernel that can. `slow` holds those far behind."""
    return row_of("flash_attn", attention.Inputs, inputs(problem), problem, slow)


def measure_gradients(problem, slow):
    """The same for the kernels that compute gradients."""
    q, k, v = inputs(problem)
    dout, *_ = inputs(problem)
    out, lse = dispatch.flash_attn(q, k, v, causal=problem.causal)
    arguments = dout, q, k, v, out, lse
    return row_of("flash_attn_grad", attention.GradientInputs, arguments, problem, slow)


def row_of(job, kind, arguments, problem, slow):
    facts = kind(*map(arrays.facts, arguments))
    options = {name: True for name in ("causal", "deterministic") if getattr(problem, name)}
    of_its_kind = problem.dtype, problem.head_dim, problem.causal
    ms, candidates = {}, dispatch.JOBS[job].candidates
    for title, candidate in candidates.items():
        if (title, *of_its_kind) in slow or candidate.refusal(facts, options) is not None:
            continue
        ms[title] = float(f"{time_ms(candidate, *arguments, repeats=REPEATS, **options):.3g}")
    limit = FAR_BEHIND * min(ms.values())
    slow |= {
        (title, *of_its_kind)
        for title in ms
        if ms[title] > limit and candidates[title].package != "tensor_core"
    }
    row = problem._asdict() | {"ms": ms}
    if problem.num_kv_heads == problem.num_heads:
        del row["num_kv_heads"]
    if not problem.deterministic:
        del row["deterministic"]
    print(row, flush=True)
    return row


def inputs(problem):
    """q, k, v."""
    shapes = (
        (problem.batch, n, heads, problem.head_dim)
        for n, heads in (
            (problem.seqlen_q, problem.num_heads),
            (problem.seqlen_k, problem.num_kv_heads),
            (problem.seqlen_k, problem.num_kv_heads),
        )
    )
    return [
        cupy.random.standard_normal(shape, dtype=np.float32).astype(problem.dtype)
        for shape in shapes
    ]


if __name__ == "__main__":
    main()
