"""How long does a call take that only enqueues, and how long the first one of a process?"""

import os
import subprocess
import sys
import tempfile
import time
from unittest import mock

import cupy
import numpy as np

import fa_numba
from benchmarks.timing import save
from fa_numba import launching

SHAPE = (1, 16, 1, 64)  # batch, seqlen, num_heads, head_dim: the GPU is done before the next call

FIRST_CALL = """
import time
import cupy
import fa_numba
q, k, v = (cupy.ones((1, 64, 2, 64), "float32") for _ in range(3))
cupy.cuda.Device().synchronize()
start = time.perf_counter()
fa_numba.flash_attn_v2(q, k, v, causal=True)
cupy.cuda.Device().synchronize()
print(time.perf_counter() - start)
"""


def main():
    rows = [{"call": name, "microseconds": round(us, 1)} for name, us in enqueues()]
    rows += [{"call": name, "seconds": round(s, 3)} for name, s in first_calls()]
    save(
        "launch",
        rows,
        note=f"float32 {SHAPE}; median of 500 calls, each enqueued while the GPU is idle; first "
        "calls are in a process of their own, from arrays on the GPU to results there",
    )


def enqueues():
    """Yield (name, microseconds) of calls that return before the GPU has done their work."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    rng = cupy.random.default_rng(0)
    q, k, v = (rng.standard_normal(SHAPE, dtype=np.float32) for _ in range(3))
    tensors = [torch.as_tensor(x, device="cuda") for x in (q, k, v)]
    heads_first = [x.transpose(1, 2).contiguous() for x in tensors]
    yield "flash_attn_v2, CuPy", enqueue_us(fa_numba.flash_attn_v2, q, k, v)
    yield "flash_attn_simt, CuPy", enqueue_us(fa_numba.flash_attn_simt, q, k, v)
    yield "flash_attn_v2, PyTorch", enqueue_us(fa_numba.flash_attn_v2, *tensors)
    with mock.patch.object(launching, "enabled", False):
        name = "flash_attn_v2, CuPy, by Numba's dispatcher"
        yield name, enqueue_us(fa_numba.flash_attn_v2, q, k, v)
    yield "two cupy.empty", enqueue_us(lambda: (cupy.empty(SHAPE), cupy.empty(SHAPE)))
    yield "SDPA, PyTorch", enqueue_us(scaled_dot_product_attention, *heads_first)


def enqueue_us(function, *args, repeats=500):
    """Median microseconds until ``function(*args)`` returns."""
    samples = []
    for _ in range(repeats + 20):
        start = time.perf_counter()
        function(*args)
        samples.append(time.perf_counter() - start)
        cupy.cuda.get_current_stream().synchronize()
        cupy.cuda.Device().synchronize()  # PyTorch's stream too
    return 1e6 * float(np.median(samples[20:]))


def first_calls():
    """Yield (name, seconds) of the first call in a new process."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {"FA_NUMBA_CACHE": folder}
        for name in ("first call, nothing on disk", "first call, kernel on disk"):
            yield name, median_first_call(environment, 1 if "nothing" in name else 3)


def median_first_call(environment, repeats):
    """Seconds of that call in a process of its own, the median of some."""
    samples = []
    for _ in range(repeats):
        command = [sys.executable, "-c", FIRST_CALL]
        told = subprocess.run(
            command, env=os.environ | environment, capture_output=True, text=True, check=True
        )
        samples.append(float(told.stdout))
    return float(np.median(samples))


if __name__ == "__main__":
    main()
