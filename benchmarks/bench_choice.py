"""Is the kernel that a job takes the fastest at problems that nobody has measured?

Random problems, the same in every run. For each problem every kernel that can is timed. The least
time is compared with that of the kernel that `flash_attn` or `flash_attn_grad` takes.
"""

import itertools

import cupy
import numpy as np

from benchmarks.bench_fastest import Problem, inputs
from benchmarks.timing import save, time_ms
from fa_numba import dispatch, flash_attn, which
from fa_numba.dispatch import attention
from fa_numba.runtime import arrays

PROBLEMS = 48  # of each kind
REPEATS = 5
LARGEST = 1 << 36  # products of a query and a key, in all heads
JOBS = (("flash_attn", attention.Inputs), ("flash_attn_grad", attention.GradientInputs))


def main():
    rows = [
        row
        for job, kind in JOBS
        for problem in itertools.islice(random_problems(job), PROBLEMS)
        if (row := measure(job, kind, problem))
    ]
    save(
        "choice",
        rows,
        note="ms; ratio: the time of the fastest kernel over that of the kernel that the job takes",
    )


def random_problems(job):
    """Draw problems whose sizes are no round numbers. A third decode one to sixteen queries."""
    rng = np.random.default_rng(0)

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
    del row["deterministic"]
    row["ratio"] = round(min(ms.values()) / ms[taken], 3)
    print(row, flush=True)
    return row


if __name__ == "__main__":
    main()
