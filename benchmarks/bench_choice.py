"""Is the kernel that a job takes the fastest?

Random problems, drawn anew each day. For each problem every kernel that can is timed. The least
time is compared with that of the kernel that `flash_attn` or `flash_attn_grad` takes.
"""

import datetime
import itertools
from functools import partial
from typing import NamedTuple

import cupy
import numpy as np

from benchmarks.timing import save_each, time_ms
from fa_numba import dispatch, flash_attn, which
from fa_numba.dispatch import attention
from fa_numba.runtime import arrays

PROBLEMS, AT_A_TIME = 48, 8  # of each kind; in a part
REPEATS = 5
LARGEST = 1 << 36  # products of a query and a key, in all heads
JOBS = (("flash_attn", attention.Inputs), ("flash_attn_grad", attention.GradientInputs))


class Problem(NamedTuple):
    dtype: str
    batch: int
    seqlen_q: int
    seqlen_k: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    causal: bool = False


def main():
    seed = int(datetime.date.today().strftime("%Y%m%d"))
    parts = {}
    for job, kind in JOBS:
        problems = random_problems(job, seed)
        for i in range(0, PROBLEMS, AT_A_TIME):
            parts[f"{job}, problems from {i}"] = partial(rows_of, job, kind, problems)
    save_each(
        "choice",
        parts,
        note="ms; ratio: the time of the fastest kernel over that of the kernel that the job "
        f"takes; seed {seed}",
    )


def rows_of(job, kind, problems):
    """The rows of the next problems."""
    for problem in itertools.islice(problems, AT_A_TIME):
        if row := measure(job, kind, problem):
            yield row


def random_problems(job, seed):
    """Draw problems whose sizes are no round numbers. A third decode one to sixteen queries."""
    rng = np.random.default_rng(seed)

    def about(least, most):
        return int(np.exp(rng.uniform(np.log(least), np.log(most))))

    while True:
        dtype = str(rng.choice(["float16", "float16", "float16", "float32"]))
        head_dim = int(rng.choice([64, 128]))
        group_size, num_kv_heads = int(rng.choice([1, 1, 4])), about(1, 33)
        decodes = job == "flash_attn" and rng.random() < 1 / 3
        seqlen_k = about(200, 40000) if decodes else about(60, 12000)
        seqlen_q = about(1, 17) if decodes else seqlen_k
        batch = about(1, 1 + max(1, 32768 // seqlen_k))
        causal = bool(rng.integers(2)) and not decodes
        heads = group_size * num_kv_heads, num_kv_heads
        problem = Problem(dtype, batch, seqlen_q, seqlen_k, *heads, head_dim, causal)
        if batch * heads[0] * seqlen_q * seqlen_k * (8 if dtype == "float32" else 1) < LARGEST:
            yield problem


def inputs(problem):
    """q, k, v."""
    query = problem.batch, problem.seqlen_q, problem.num_heads, problem.head_dim
    key = problem.batch, problem.seqlen_k, problem.num_kv_heads, problem.head_dim
    return [
        cupy.random.standard_normal(shape, dtype=np.float32).astype(problem.dtype)
        for shape in (query, key, key)
    ]


def measure(job, kind, problem):
    """A row for one problem, or None where only one kernel can, beside that of the lessons."""
    q, k, v = arguments = inputs(problem)
    options = {"causal": True} if problem.causal else {}
    if job == "flash_attn_grad":
        dout = cupy.random.standard_normal(q.shape, dtype=np.float32).astype(q.dtype)
        arguments = [dout, q, k, v, *flash_attn(q, k, v, **options)]
    facts = kind(*map(arrays.facts, arguments))
    taken = which(job, *arguments, **options).kernel
    able = {
        title: candidate
        for title, candidate in dispatch.JOBS[job].candidates.items()
        if candidate.package != "kernels"  # those of the lessons are far slower
        and candidate.refusal(facts, options) is None
    }
    if len(able) < 2:
        return None
    ms = {
        title: float(f"{time_ms(candidate, *arguments, repeats=REPEATS, **options):.3g}")
        for title, candidate in able.items()
    }
    row = {"job": job} | problem._asdict() | {"kernel": taken, "ms": ms}
    row["ratio"] = round(min(ms.values()) / ms[taken], 3)
    print(row, flush=True)
    return row
