"""Microseconds of the host for a call of attention by PyTorch, on a CPU with a fake driver.

12 calls in a row, run by Python or in a graph of torch.compile, of ours and of PyTorch's attention
for the CPU, whose tensors are so small that the host's time is nearly all. After the first call
every list of addresses has its CUDA graph: on a GPU addresses come back. It prints a table and
records nothing: bench_torch_step measures on a GPU.
"""

import statistics
import sys
import time
from pathlib import Path

import ml_dtypes  # noqa: F401 - NumPy's bfloat16, which numba-cuda loads where there is a GPU
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from benchmarks.readme import table
from fa_numba.runtime import graphs
from fa_numba.torch import scaled_dot_product_attention

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import fake_torch_gpu

CALLS, ROUNDS = 12, 60
OURS, THEIRS = (1, 2, 64, 64), (1, 1, 1, 8)  # batch, heads, seqlen, head_dim


def chain(attend):
    def run(q, k, v):
        for _ in range(CALLS):
            q = attend(q, k, v, is_causal=True)
        return q

    return run


def contenders():
    """Functions without arguments, by (name, how, pass)."""
    made = {}
    for name, attend, shape in (
        ("fa_numba.torch", scaled_dot_product_attention, OURS),
        ("SDPA for the CPU", sdpa, THEIRS),
    ):
        inputs = [torch.zeros(shape, dtype=torch.bfloat16).requires_grad_() for _ in range(3)]
        dout = torch.zeros(shape, dtype=torch.bfloat16)
        for how in ("eager", "compiled"):
            run = chain(attend)
            run = torch.compile(run, fullgraph=True) if how == "compiled" else run

            def forward(run=run, inputs=inputs):
                with torch.no_grad():
                    run(*inputs)

            def both(run=run, inputs=inputs, dout=dout):
                torch.autograd.grad(run(*inputs), inputs, dout)

            made[name, how, "forward"], made[name, how, "both passes"] = forward, both
    return made


def main():
    patch, seen = pytest.MonkeyPatch(), set()
    gpu = fake_torch_gpu.install(patch)

    def relaunch(self, key, stream):
        known = id(self) in seen
        seen.add(id(self))
        return known

    patch.setattr(graphs.Launches, "relaunch", relaunch)
    torch.set_num_threads(1)
    calls, us = contenders(), {}
    for i in range(ROUNDS + 12):
        for key, call in calls.items():
            start = time.perf_counter()
            call()
            if i >= 12:
                us.setdefault(key, []).append((time.perf_counter() - start) * 1e6 / CALLS)
        gpu.replays.clear()
    rows = {}
    for (name, how, passes), samples in us.items():
        fastest = statistics.quantiles(samples, n=10)[0]
        rows.setdefault(name, {"µs": name})[f"{how}, {passes}"] = round(fastest, 1)
    print(table(list(rows.values())))
    patch.undo()


if __name__ == "__main__":
    main()
